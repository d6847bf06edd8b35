package gateway

import (
	"context"
	"errors"
	"fmt"
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
func (sv *supervisor) unsupervised(ctx context.Context, limit int) ([]run.Run, error) {
	before := sv.foreignSince
	sv.foreignSince = map[id.Run]time.Time{}
	// Sessions that are reserved for another daemon. A daemon that starts one run of a session
	// supervises all of its runs.
	reserved := map[string]bool{}
	return sv.cfg.Runs.Unsupervised(ctx, limit, func(r run.Run) bool {
		since, ok := before[r.ID]
		if !ok {
			since = time.Now()
		}
		foreign, wait := sv.isForeign(ctx, r)
		if foreign {
			sv.foreignSince[r.ID] = since
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
func (sv *supervisor) isForeign(ctx context.Context, r run.Run) (foreign, wait bool) {
	if r.Jail == "" {
		return false, false
	}
	_, err := sv.cfg.Jails.Get(ctx, r.Jail)
	if !errors.Is(err, fault.NotFound) {
		return err != nil, true // checked again in the next scan
	}
	s, err := sv.cfg.Runs.Session(ctx, r.Session)
	if err != nil {
		return true, true
	}
	if s.Jail != r.Jail {
		return true, false
	}
	heldByOther := s.JailHolder != "" && s.JailHolder != sv.cfg.Runs.Holder()
	return heldByOther, heldByOther
}

// sweep cleans up the jails of runs that this daemon does not supervise.
func (sv *supervisor) sweep(ctx context.Context) error {
	all, err := sv.cfg.Jails.List(ctx, jail.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the jails: %w", err)
	}
	var errs []error
	for _, j := range all {
		if rid := id.Run(j.Spec.Labels[LabelRun]); rid != "" && j.State != jail.Stopped {
			errs = append(errs, sv.sweepOne(ctx, j, rid))
		}
	}
	return errors.Join(errs...)
}

// sweepOne cleans up one jail, according to the state of the run that it was created for.
func (sv *supervisor) sweepOne(ctx context.Context, j jail.Jail, rid id.Run) error {
	r, err := sv.cfg.Runs.Get(ctx, rid)
	if err != nil {
		if errors.Is(err, fault.NotFound) { // it was created for a branch that was not created
			return sv.deleteAbandoned(ctx, j)
		}
		return fmt.Errorf("read run %s of jail %s: %w", rid, j.ID, err)
	}
	sup := sv.supervisions.of(rid)
	switch {
	case sup != nil:
	case r.Jail != "" && r.Jail != j.ID: // the run was continued in another jail
		return sv.stopJail(ctx, j)
	case r.State.Ended():
		sv.cleanUpRun(r)
	case r.State == run.Paused && r.Why != run.ForApproval:
		sv.pauseJail(ctx, r)
	}
	return nil
}

// stopJail stops a jail that no run uses.
func (co *core) stopJail(ctx context.Context, j jail.Jail) error {
	if j.State == jail.Paused { // a frozen process cannot exit
		if _, err := co.cfg.Jails.Resume(ctx, j.ID); err != nil && !errors.Is(err, fault.Conflict) {
			return fmt.Errorf("resume jail %s to stop it: %w", j.ID, err)
		}
	}
	_, err := co.cfg.Jails.Stop(ctx, j.ID, jail.StopOptions{})
	if errors.Is(err, fault.Conflict) || errors.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// deleteAbandoned deletes the jail of a branch that does not exist. A new jail is kept, since
// its run may be created shortly.
func (sv *supervisor) deleteAbandoned(ctx context.Context, j jail.Jail) error {
	if j.Origin == nil || time.Since(j.Created) < foreignTimeout {
		return nil
	}
	return sv.deleteJail(ctx, j.ID)
}

// deleteJail deletes a jail and its automatic snapshots.
func (co *core) deleteJail(ctx context.Context, j id.Jail) error {
	if err := co.cfg.Jails.Delete(ctx, j); err != nil {
		return err
	}
	if co.cfg.Snapshots == nil {
		return nil
	}
	return co.cfg.Snapshots.JailDeleted(ctx, j)
}
