package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/run"
)

// Saves is when runs are kept as they are without being asked: after so many steps, and
// after so long, whichever comes first, and only if something has changed.
type Saves struct {
	Steps int           `json:"steps,omitempty"` // 0 is 25; less than 0: not by steps
	Every time.Duration `json:"every,omitempty"` // 0 is 10 minutes; less than 0: not by time
	Keep  int           `json:"keep,omitempty"`  // of those that nobody asked for, the newest; 0 is 20
}

// withDefaults returns s with what it does not say filled in from o.
func (s Saves) withDefaults(o Saves) Saves {
	if s.Steps == 0 {
		s.Steps = o.Steps
	}
	if s.Every == 0 {
		s.Every = o.Every
	}
	if s.Keep <= 0 {
		s.Keep = o.Keep
	}
	return s
}

// defaultSaves are when nobody says anything else.
var defaultSaves = Saves{Steps: 25, Every: 10 * time.Minute, Keep: 20}

// saveSettings is when an agent's runs are kept.
func (g *Gateway) saveSettings(a Agent) Saves {
	all := g.cfg.Saves.withDefaults(defaultSaves)
	if a.Saves != nil {
		all = a.Saves.withDefaults(all)
	}
	return all
}

// A saver knows when a run was kept last.
type saver struct {
	mu sync.Mutex
	// +checklocks:mu
	busy bool // it is being kept
	// +checklocks:mu
	at time.Time // when it was, or was found unchanged
	// +checklocks:mu
	steps int64 // position of the journal then
}

// due reports whether it is time again, and for what reason. Who is told so keeps the
// run, and says it to done.
func (s *saver) due(want Saves, steps int64, now time.Time) (reason string, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.busy, s.at.IsZero(): // it is at it, or has not begun
		return "", false
	case want.Steps > 0 && steps-s.steps >= int64(want.Steps):
		reason = fmt.Sprintf("after %d steps", steps-s.steps)
	case want.Every > 0 && now.Sub(s.at) >= want.Every:
		reason = fmt.Sprintf("after %s", now.Sub(s.at).Round(time.Second))
	default:
		return "", false
	}
	s.busy = true
	return reason, true
}

func (s *saver) done(steps int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy, s.at, s.steps = false, time.Now(), steps
}

// begin has a saver go on from the last checkpoint of a run that has its jail, if it has
// one, whichever daemon took it.
func (g *Gateway) initSaver(ctx context.Context, s *saver, r run.Run) error {
	at, steps := r.Started, int64(0)
	err := g.eachCheckpoint(ctx, r.ID, func(c run.Checkpoint) {
		if c.Snapshot != "" || r.Jail == "" {
			at, steps = c.At, c.Steps
		}
	})
	if at.IsZero() { // of a branch that nobody was at so far
		at = time.Now()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at, s.steps = at, steps
	return err
}

// eachCheckpoint calls do with the checkpoints of a run, oldest first.
func (g *Gateway) eachCheckpoint(ctx context.Context, r id.Run, do func(run.Checkpoint)) error {
	for after := int64(0); ; {
		list, err := g.cfg.Runs.Checkpoints(ctx, r, after, 100)
		if err != nil {
			return err
		}
		for _, c := range list {
			after = c.N
			do(c)
		}
		if len(list) < 100 {
			return nil
		}
	}
}

// saveDue keeps the runs whose time has come.
func (g *Gateway) saveDue() {
	for _, a := range g.listSupervisions() {
		r, err := g.cfg.Runs.Get(g.ctx, a.run)
		if err != nil || r.State != run.Active {
			continue
		}
		ag, err := g.agentOf(r.Agent)
		if err != nil {
			continue
		}
		want := g.saveSettings(ag)
		if reason, due := a.saver.due(want, r.Steps, time.Now()); due {
			g.wg.Go(func() { g.saveOne(&a.saver, r, want, reason) })
		}
	}
}

// saveOne keeps a run, if anything has changed since it was kept last.
func (g *Gateway) saveOne(s *saver, r run.Run, want Saves, reason string) {
	s.mu.Lock()
	before := s.steps
	s.mu.Unlock()
	defer s.done(r.Steps)
	if r.Steps == before && !g.jailChanged(g.ctx, r) {
		return
	}
	_, err := g.checkpoint(g.ctx, r.ID, reason, "gateway", nil)
	if err == nil {
		err = g.pruneCheckpoints(g.ctx, r, want.Keep)
	}
	if err != nil && !errors.Is(err, fault.Conflict) && g.ctx.Err() == nil {
		g.cfg.Log.Warn("a run is not kept as it is", "run", r.ID, "err", err)
	}
}

// jailChanged reports whether the jail of a run may have changed since it was written down.
func (g *Gateway) jailChanged(ctx context.Context, r run.Run) bool {
	if !g.canSnapshot(ctx, r) {
		return false
	}
	changed, err := g.cfg.Jails.Changed(ctx, r.Jail)
	return changed || err != nil
}

// pruneCheckpoints forgets the checkpoints of a run that nobody asked for, but for the newest that
// have its jail and the newest that have not, and their snapshots with them.
func (g *Gateway) pruneCheckpoints(ctx context.Context, r run.Run, keep int) error {
	var alone, jailed []run.Checkpoint
	if err := g.eachCheckpoint(ctx, r.ID, func(c run.Checkpoint) {
		switch {
		case !c.Auto:
		case c.Snapshot == "":
			alone = append(alone, c)
		default:
			jailed = append(jailed, c)
		}
	}); err != nil {
		return err
	}
	old := append(alone[:max(0, len(alone)-keep)], jailed[:max(0, len(jailed)-keep)]...)
	if len(old) == 0 {
		return nil
	}
	began, err := g.branchPoints(ctx, r)
	if err != nil {
		return err
	}
	for _, c := range old {
		if began[c.ID] {
			continue // a branch goes on from it
		}
		if c.Snapshot != "" { // before the checkpoint, by which it is found
			if err := g.cfg.Snapshots.Delete(ctx, c.Snapshot); err != nil && !errors.Is(err, fault.NotFound) {
				return err
			}
		}
		if err := g.cfg.Runs.Forget(ctx, c); err != nil && !errors.Is(err, fault.Conflict) {
			return err
		}
	}
	return nil
}

// branchPoints are the checkpoints at which the branches of a run began.
func (g *Gateway) branchPoints(ctx context.Context, r run.Run) (map[id.Checkpoint]bool, error) {
	all := map[id.Checkpoint]bool{}
	if now, err := g.cfg.Runs.Get(ctx, r.ID); err != nil || now.Branches == 0 {
		return all, err
	}
	err := g.eachRun(ctx, run.Filter{Session: r.Session}, func(b run.Run) bool {
		if b.Of == r.ID {
			all[b.From] = true
		}
		return true
	})
	return all, err
}
