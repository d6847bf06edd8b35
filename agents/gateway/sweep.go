package gateway

import (
	"context"
	"errors"
	"time"

	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

// A daemon that is killed may leave jails behind: the jail of a run that has ended, or of a
// run that another daemon has continued in a new jail. sweep stops and deletes them.

// foreignTimeout is how long an unsupervised run is reserved for the daemon that has its jail.
const foreignTimeout = 30 * time.Second

// unsupervised returns at most limit runs that no daemon supervises and that can run here.
// Only loop may call it.
func (g *Gateway) unsupervised(ctx context.Context, limit int) ([]run.Run, error) {
	before := g.foreignSince
	g.foreignSince = map[id.Run]time.Time{}
	// Sessions that are reserved for another daemon. A daemon that starts one run of a session
	// supervises all of its runs.
	reserved := map[string]bool{}
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
			reserved[r.Session] = true
			return false
		}
		return r.Jail != "" || !reserved[r.Session]
	})
}

// isForeign reports whether a run's jail belongs to another daemon, and whether the run must
// wait for that daemon. A run in a jail of its own is continued in a new jail if the daemon
// does not return. A run in the jail of its session waits.
func (g *Gateway) isForeign(ctx context.Context, r run.Run) (foreign, wait bool) {
	if r.Jail == "" {
		return false, false
	}
	_, err := g.cfg.Jails.Get(ctx, r.Jail)
	if !errors.Is(err, fault.NotFound) {
		return err != nil, true // checked again in the next scan
	}
	s, err := g.cfg.Runs.Session(ctx, r.Session)
	if err != nil {
		return true, true
	}
	if s.Jail != r.Jail {
		return true, false
	}
	heldByOther := s.JailHolder != "" && s.JailHolder != g.cfg.Runs.Holder()
	return heldByOther, heldByOther
}

// sweep cleans up the jails of runs that this daemon does not supervise.
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

// sweepOne cleans up one jail, according to the state of the run that it was created for.
func (g *Gateway) sweepOne(ctx context.Context, j jail.Jail, rid id.Run) error {
	r, err := g.cfg.Runs.Get(ctx, rid)
	if err != nil {
		if errors.Is(err, fault.NotFound) { // it was created for a branch that was not created
			return g.deleteAbandoned(ctx, j)
		}
		return err
	}
	sup := g.supervisionOf(rid)
	switch {
	case sup != nil:
	case r.Jail != "" && r.Jail != j.ID: // the run was continued in another jail
		return g.stopJail(ctx, j)
	case r.State.Ended():
		g.cleanUpRun(r)
	case r.State == run.Paused && r.Why != run.ForApproval:
		g.pauseJail(ctx, r)
	}
	return nil
}

// stopJail stops a jail that no run uses.
func (g *Gateway) stopJail(ctx context.Context, j jail.Jail) error {
	if j.State == jail.Paused { // a frozen process cannot exit
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

// deleteAbandoned deletes the jail of a branch that does not exist. A new jail is kept, since
// its run may be created shortly.
func (g *Gateway) deleteAbandoned(ctx context.Context, j jail.Jail) error {
	if j.Origin == nil || time.Since(j.Created) < foreignTimeout {
		return nil
	}
	return g.deleteJail(ctx, j.ID)
}

// deleteJail deletes a jail and its automatic snapshots.
func (g *Gateway) deleteJail(ctx context.Context, j id.Jail) error {
	if err := g.cfg.Jails.Delete(ctx, j); err != nil {
		return err
	}
	if g.cfg.Snapshots == nil {
		return nil
	}
	return g.cfg.Snapshots.JailDeleted(ctx, j)
}
