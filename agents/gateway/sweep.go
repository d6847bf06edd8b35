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
	"glasshouse/jail"
)

// A daemon that is killed may leave jails behind: the jail of a run that has ended, or of a
// run that another daemon has continued in a new jail. sweep stops and deletes them.

// unsupervised returns at most limit active runs that no daemon supervises and that can run here. A
// node that is being drained continues only those whose jails it has.
func (sv *supervisor) unsupervised(ctx context.Context, limit int) ([]run.Run, error) {
	drained := sync.OnceValue(func() bool { return sv.cfg.MayStart != nil && !sv.cfg.MayStart(ctx) })
	// Sessions whose jail is on another host. A daemon that starts one run of a session
	// supervises all of its runs.
	elsewhere := map[string]bool{}
	return sv.cfg.Runs.Unsupervised(ctx, limit, func(r run.Run) bool {
		if r.State != run.Active || elsewhere[r.Session] || drained() && !sv.hasJail(ctx, r) {
			return false
		}
		elsewhere[r.Session] = sv.isElsewhere(ctx, r)
		return !elsewhere[r.Session]
	})
}

// hasJail reports whether the jail of a run is on this host.
func (sv *supervisor) hasJail(ctx context.Context, r run.Run) bool {
	if r.Jail == "" {
		return false
	}
	_, err := sv.cfg.Jails.Get(ctx, r.Jail)
	return err == nil
}

// isElsewhere reports whether a run must wait for another daemon, which has the jail of its
// session. That daemon then supervises the session, if it is up. A run in a jail of its own
// is continued in a new jail: this daemon finds it only if that of the jail is lost.
func (sv *supervisor) isElsewhere(ctx context.Context, r run.Run) bool {
	if r.Jail == "" {
		return false
	}
	_, err := sv.cfg.Jails.Get(ctx, r.Jail)
	if !errors.Is(err, fault.NotFound) {
		return err != nil // checked again in the next scan
	}
	s, err := sv.cfg.Runs.Session(ctx, r.Session)
	if err != nil {
		return true
	}
	if s.Jail != r.Jail || s.JailHolder == "" || s.JailHolder == sv.cfg.Runs.Holder() {
		return false
	}
	if _, err := sv.cfg.Runs.Assign(ctx, s.ID, s.JailHolder); err != nil && ctx.Err() == nil {
		sv.cfg.Log.Warn("could not assign a session to the daemon with its jail", "session", s.ID, "daemon", s.JailHolder, "err", err)
	}
	return true
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
		return sv.stopJail(ctx, j.ID)
	case r.State.Ended():
		sv.cleanUpRun(r)
	case r.State == run.Paused && r.Why != run.ForApproval:
		sv.pauseJail(ctx, r)
	}
	return nil
}

// stopJail stops a jail that no run uses. It does not resume a paused jail: another daemon may have
// continued the run of its processes.
func (co *core) stopJail(ctx context.Context, j id.Jail) error {
	_, err := co.cfg.Jails.Stop(ctx, j, jail.StopOptions{})
	if errors.Is(err, fault.Conflict) || errors.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// branchTimeout is how long a jail is kept whose run does not exist yet.
const branchTimeout = 30 * time.Second

// deleteAbandoned deletes the jail of a branch that does not exist. A new jail is kept, since
// its run may be created shortly.
func (sv *supervisor) deleteAbandoned(ctx context.Context, j jail.Jail) error {
	if j.Origin == nil || time.Since(j.Created) < branchTimeout {
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
