package gateway

import (
	"context"
	"errors"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/run"
)

// A jail of a run may be left without anybody who sees to it: its daemon was killed when
// the run had ended and the jail had not, or the run went on in another daemon meanwhile.

// foreignTimeout is how long a run that nobody is at is left to the daemon that has its jail.
const foreignTimeout = 30 * time.Second

// unsupervised returns the runs that nobody is at and that can go on here, at most limit. It is for
// the loop alone.
func (g *Gateway) unsupervised(ctx context.Context, limit int) ([]run.Run, error) {
	before := g.foreignSince
	g.foreignSince = map[id.Run]time.Time{}
	held := map[string]bool{} // sessions that are left to another daemon: who begins a run has them all
	return g.cfg.Runs.Unsupervised(ctx, limit, func(r run.Run) bool {
		since, ok := before[r.ID]
		if !ok {
			since = time.Now()
		}
		foreign, wait := g.isForeign(ctx, r)
		if foreign {
			g.foreignSince[r.ID] = since
		}
		if foreign && (wait || time.Since(since) < foreignTimeout) {
			held[r.Session] = true
			return false
		}
		return r.Jail != "" || !held[r.Session]
	})
}

// isForeign reports whether a run's jail is another daemon's. A run that has a jail of its
// own goes on in another if its daemon does not come back; one that works in the jail of
// its session waits.
func (g *Gateway) isForeign(ctx context.Context, r run.Run) (foreign, wait bool) {
	if r.Jail == "" {
		return false, false
	}
	_, err := g.cfg.Jails.Get(ctx, r.Jail)
	if !errors.Is(err, fault.NotFound) {
		return err != nil, true // it is looked again
	}
	s, err := g.cfg.Runs.Session(ctx, r.Session)
	if err != nil {
		return true, true
	}
	if s.Jail != r.Jail {
		return true, false
	}
	there := s.House != "" && s.House != g.cfg.Runs.Holder()
	return there, there
}

// sweep sees to the jails of runs that nobody here is at.
func (g *Gateway) sweep(ctx context.Context) error {
	all, err := g.cfg.Jails.List(ctx, jail.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for _, j := range all {
		if rid := id.Run(j.Spec.Labels[LabelRun]); rid != "" && j.State != jail.Stopped {
			errs = append(errs, g.sweepOne(ctx, j, rid))
		}
	}
	return errors.Join(errs...)
}

func (g *Gateway) sweepOne(ctx context.Context, j jail.Jail, rid id.Run) error {
	r, err := g.cfg.Runs.Get(ctx, rid)
	if err != nil {
		if errors.Is(err, fault.NotFound) { // it was made for a branch that was never made
			return g.deleteAbandoned(ctx, j)
		}
		return err
	}
	at := g.supervisionOf(rid)
	switch {
	case at != nil:
	case r.Jail != "" && r.Jail != j.ID: // it went on in another
		return g.stopJail(ctx, j)
	case r.State.Ended():
		g.cleanUpRun(r)
	case r.State == run.Paused && r.Why != run.ForApproval:
		g.pauseJail(ctx, r)
	}
	return nil
}

// stopJail stops a jail in which no run is at work any more.
func (g *Gateway) stopJail(ctx context.Context, j jail.Jail) error {
	if j.State == jail.Paused { // it could not end
		if _, err := g.cfg.Jails.Resume(ctx, j.ID); err != nil && !errors.Is(err, fault.Conflict) {
			return err
		}
	}
	_, err := g.cfg.Jails.Stop(ctx, j.ID, jail.StopOptions{})
	if errors.Is(err, fault.Conflict) || errors.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// deleteAbandoned removes the jail of a branch that there is not. One that is new may be about
// to get its run.
func (g *Gateway) deleteAbandoned(ctx context.Context, j jail.Jail) error {
	if j.Origin == nil || time.Since(j.Created) < foreignTimeout {
		return nil
	}
	return g.deleteJail(ctx, j.ID)
}

// deleteJail deletes a jail and what its automatic snapshots keep.
func (g *Gateway) deleteJail(ctx context.Context, j id.Jail) error {
	if err := g.cfg.Jails.Delete(ctx, j); err != nil {
		return err
	}
	if g.cfg.Snapshots == nil {
		return nil
	}
	return g.cfg.Snapshots.Abandoned(ctx, j)
}
