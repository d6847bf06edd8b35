package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/id"
)

// AutosaveSettings sets when automatic checkpoints are taken: after a number of steps or a time,
// whichever comes first, and only if the run or its jail has changed.
type AutosaveSettings struct {
	Steps int           `json:"steps,omitempty"` // 0 is 25; negative disables it
	Every time.Duration `json:"every,omitempty"` // 0 is 10 minutes; negative disables it
	Keep  int           `json:"keep,omitempty"`  // number of newest automatic checkpoints to keep; 0 is 20
}

// withDefaults returns s with its empty fields set from o.
func (s AutosaveSettings) withDefaults(o AutosaveSettings) AutosaveSettings {
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

// defaultSaves applies where neither the agent nor the configuration sets a value.
var defaultSaves = AutosaveSettings{Steps: 25, Every: 10 * time.Minute, Keep: 20}

// saveSettings returns the settings of automatic checkpoints for an agent.
func (cp *checkpoints) saveSettings(a Agent) AutosaveSettings {
	all := cp.cfg.Autosave.withDefaults(defaultSaves)
	if a.Autosave != nil {
		all = a.Autosave.withDefaults(all)
	}
	return all
}

// A saver tracks the automatic checkpoints of a run.
type saver struct {
	mu sync.Mutex
	// +checklocks:mu
	busy bool // a checkpoint is being taken
	// +checklocks:mu
	at time.Time // time of the last checkpoint or check without changes
	// +checklocks:mu
	steps int64 // steps of the run at that time
}

// due reports whether an automatic checkpoint is due, and why. If so, the saver is busy until
// the caller calls done.
func (s *saver) due(want AutosaveSettings, steps int64, now time.Time) (reason string, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.busy, s.at.IsZero(): // busy, or initSaver has not been called
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

func (s *saver) done(steps int64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy, s.at, s.steps = false, now, steps
}

// initSaver initialises a saver from the run's last checkpoint that includes the jail. Any daemon
// may have taken it.
func (cp *checkpoints) initSaver(ctx context.Context, s *saver, r run.Run) error {
	at, steps := r.Started, int64(0)
	err := cp.eachCheckpoint(ctx, r.ID, func(c run.Checkpoint) {
		if c.Snapshot != "" || r.Jail == "" {
			at, steps = c.At, c.Steps
		}
	})
	if at.IsZero() { // a branch that has not started yet
		at = cp.cfg.Runs.Now()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at, s.steps = at, steps
	return err
}

// eachCheckpoint calls do with the checkpoints of a run, oldest first.
func (cp *checkpoints) eachCheckpoint(ctx context.Context, r id.Run, do func(run.Checkpoint)) error {
	for after := int64(0); ; {
		list, err := cp.cfg.Runs.Checkpoints(ctx, r, after, 100)
		if err != nil {
			return fmt.Errorf("list the checkpoints of run %s: %w", r, err)
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

// saveDue takes the automatic checkpoints that are due.
func (cp *checkpoints) saveDue() {
	for _, sup := range cp.supervisions.list() {
		r, err := cp.cfg.Runs.Get(cp.ctx, sup.run)
		if err != nil || r.State != run.Active {
			continue
		}
		ag, err := cp.agentOf(r.Agent)
		if err != nil {
			continue
		}
		want := cp.saveSettings(ag)
		if reason, due := sup.saver.due(want, r.Steps, cp.cfg.Runs.Now()); due {
			cp.wg.Go(func() { cp.saveOne(&sup.saver, r, want, reason) })
		}
	}
}

// saveOne takes a checkpoint of a run, if anything has changed since the last one.
func (cp *checkpoints) saveOne(s *saver, r run.Run, want AutosaveSettings, reason string) {
	s.mu.Lock()
	before := s.steps
	s.mu.Unlock()
	defer func() { s.done(r.Steps, cp.cfg.Runs.Now()) }()
	if r.Steps == before && !cp.jailChanged(cp.ctx, r) {
		return
	}
	_, err := cp.checkpoint(cp.ctx, r.ID, reason, "gateway", nil)
	if err == nil {
		err = cp.pruneCheckpoints(cp.ctx, r, want.Keep)
	}
	if err != nil && !errors.Is(err, fault.Conflict) && cp.ctx.Err() == nil {
		cp.cfg.Log.Warn("could not take an automatic checkpoint of a run", "run", r.ID, "err", err)
	}
}

// jailChanged reports whether the jail of a run may have changed since its last snapshot.
func (cp *checkpoints) jailChanged(ctx context.Context, r run.Run) bool {
	if !cp.canSnapshot(ctx, r) {
		return false
	}
	changed, err := cp.cfg.Jails.Changed(ctx, r.Jail)
	return changed || err != nil
}

// pruneCheckpoints deletes old automatic checkpoints of a run and their snapshots. It keeps
// the newest ones with a snapshot, and as many without.
func (cp *checkpoints) pruneCheckpoints(ctx context.Context, r run.Run, keep int) error {
	var alone, jailed []run.Checkpoint
	if err := cp.eachCheckpoint(ctx, r.ID, func(c run.Checkpoint) {
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
	inUse, err := cp.branchPoints(ctx, r)
	if err != nil {
		return err
	}
	for _, c := range old {
		if inUse[c.ID] {
			continue // a branch starts from it
		}
		if c.Snapshot != "" { // before the checkpoint: only the checkpoint refers to the snapshot
			if err := cp.cfg.Snapshots.Delete(ctx, c.Snapshot); err != nil && !errors.Is(err, fault.NotFound) {
				return fmt.Errorf("delete snapshot %s of checkpoint %s: %w", c.Snapshot, c.ID, err)
			}
		}
		if err := cp.cfg.Runs.DeleteCheckpoint(ctx, c); err != nil && !errors.Is(err, fault.Conflict) {
			return fmt.Errorf("delete checkpoint %s: %w", c.ID, err)
		}
	}
	return nil
}

// branchPoints returns the checkpoints that branches of a run started from.
func (cp *checkpoints) branchPoints(ctx context.Context, r run.Run) (map[id.Checkpoint]bool, error) {
	all := map[id.Checkpoint]bool{}
	if now, err := cp.cfg.Runs.Get(ctx, r.ID); err != nil || now.Branches == 0 {
		return all, err
	}
	err := cp.eachRun(ctx, run.Filter{Session: r.Session}, func(b run.Run) bool {
		if b.BranchOf == r.ID {
			all[b.BranchPoint] = true
		}
		return true
	})
	return all, err
}
