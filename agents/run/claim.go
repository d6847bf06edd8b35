package run

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"glasshouse/capability/budget"
	"glasshouse/fault"
	"glasshouse/id"
)

// A lease is the in-memory state of a session whose runs this process supervises. It is
// guarded by localSession.mu.
type lease struct {
	ctx    context.Context // done when the lease ends
	cancel context.CancelCauseFunc
	until  time.Time // expiry, as far as is known
	budget *budget.Budget
	runs   map[id.Run]*localRun
}

// A localRun is the in-memory state of a run in a session with a lease.
type localRun struct {
	parent       id.Run
	budget       *budget.Budget
	meters       map[string]MeterReading  // last charged counter readings; replaced, never modified
	steps        map[string]*stepInFlight // known steps in flight, by key
	supervised   bool                     // Claim was called
	ended        bool                     // the run has ended
	snapshotDone chan struct{}            // set while a snapshot blocks steps; closed afterwards
}

// A stepInFlight is a step that has begun and not ended.
type stepInFlight struct {
	reservation *budget.Reservation // nil: another process reserved for it, which counts as spent
	busy        bool                // a caller in this process executes it
}

// ErrLost is the cause of a lease's context if the lease expired or another Manager took it.
var ErrLost = errors.New("the lease on the session was lost")

// ErrReleased is the cause of a lease's context if this Manager released it.
var ErrReleased = errors.New("the lease on the session was released")

// claims has the leases of this process on sessions.
type claims struct {
	*core
	local *localSessions
}

// Claim makes the caller the supervisor of a run until the returned context is done. The cause
// of the context is ErrLost, ErrReleased or the closing of the Manager. Claim returns
// fault.Conflict if another Manager supervises a run of the same session, or if the run
// already has a supervisor in this process.
func (cl *claims) Claim(ctx context.Context, rid id.Run) (context.Context, error) {
	var claimed context.Context
	var sid string
	err := cl.local.changeClaimed(ctx, rid, func(t *transaction, r *Run, w *localRun) error {
		if w.supervised {
			return fault.Newf(fault.Conflict, "run.Claim", string(rid), "run already has a supervisor in this process")
		}
		if r.State.Ended() {
			return fault.Newf(fault.Conflict, "run.Claim", string(rid), "run is %s", r.State)
		}
		w.supervised, claimed, sid = true, t.current().ctx, r.Session
		t.undo = append(t.undo, func() { w.supervised, claimed = false, nil })
		return nil
	})
	if claimed == nil {
		return nil, err
	}
	cl.local.setSupervised(rid, sid)
	if err != nil { // the lease is stored, but the caller does not know that it supervises the run
		return nil, errors.Join(err, cl.Release(context.WithoutCancel(ctx), rid))
	}
	return claimed, nil
}

// Release ends the supervision of a run. If no run of the session has a supervisor any longer,
// any Manager may claim the session. After Release, the run is not supervised here, even if
// Release fails.
func (cl *claims) Release(ctx context.Context, rid id.Run) error {
	sid, err := cl.local.sessionOf(ctx, rid) // if it is not supervised, the session may still have an idle lease
	if err != nil {
		return err
	}
	cl.local.unsetSupervised(rid)
	l, err := cl.local.acquireLocal(sid)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer cl.local.releaseLocal(l)
	if l.lease == nil {
		return nil
	}
	if w := l.lease.runs[rid]; w != nil {
		w.supervised = false
	}
	return cl.local.releaseIdle(ctx, l)
}

// releaseIdle releases the lease on a session if this process executes and supervises nothing
// in it. The caller holds l.mu.
//
// +checklocks:l.mu
func (ls *localSessions) releaseIdle(ctx context.Context, l *localSession) error {
	l.lease.prune()
	for _, w := range l.lease.runs {
		if !w.idle() {
			return nil
		}
	}
	l.drop(ErrReleased)
	if err := ls.store.Release(context.WithoutCancel(ctx), l.id, ls.cfg.Holder); err != nil {
		return fmt.Errorf("release the lease on session %s: %w", l.id, err)
	}
	return nil
}

// idle reports whether this process neither supervises the run nor executes a step of it.
func (w *localRun) idle() bool {
	for _, at := range w.steps {
		if at.busy {
			return false
		}
	}
	return !w.supervised && w.snapshotDone == nil
}

// prune deletes ended runs whose budgets have no children.
func (c *lease) prune() {
	for rid, w := range c.runs {
		if w.ended && w.idle() && !c.hasChild(rid) {
			delete(c.runs, rid)
		}
	}
}

func (c *lease) hasChild(rid id.Run) bool {
	for _, w := range c.runs {
		if w.parent == rid {
			return true
		}
	}
	return false
}

// drop deletes the lease, with why as the cause of its context. The caller holds l.mu.
//
// +checklocks:l.mu
func (l *localSession) drop(why error) {
	if l.lease != nil {
		l.lease.cancel(why)
		l.lease = nil
	}
}

// Unsupervised returns up to limit active runs without a supervisor that satisfy suits, oldest
// first. It does not return runs of sessions that another Manager has a lease on.
func (cl *claims) Unsupervised(ctx context.Context, limit int, suits func(Run) bool) ([]Run, error) {
	limit = pageLimit(limit)
	var free []Run
	for after := id.Run(""); len(free) < limit; {
		list, err := cl.store.Unclaimed(ctx, cl.cfg.Holder, time.Now(), after, page)
		if err != nil {
			return nil, err
		}
		for _, r := range list {
			after = r.ID
			if len(free) < limit && !cl.isSupervised(r) && suits(r) {
				free = append(free, r)
			}
		}
		if len(list) < page {
			break
		}
	}
	return free, nil
}

func (cl *claims) isSupervised(r Run) bool {
	l := cl.local.find(r.Session)
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lease != nil && l.lease.runs[r.ID] != nil && l.lease.runs[r.ID].supervised
}

// changeClaimed lets f change a run, with a lease on its session. It waits while a snapshot
// blocks the run.
func (ls *localSessions) changeClaimed(ctx context.Context, rid id.Run, f func(t *transaction, r *Run, w *localRun) error) error {
	r, err := ls.store.Run(ctx, rid)
	if err != nil {
		return err
	}
	for {
		var snapshotDone <-chan struct{}
		err := ls.change(ctx, r.Session, func(t *transaction) error {
			w, r, err := t.localRun(rid)
			if err != nil {
				return err
			}
			if w.snapshotDone != nil {
				snapshotDone = w.snapshotDone
				return nil
			}
			return f(t, r, w)
		})
		if err != nil || snapshotDone == nil {
			return err
		}
		select {
		case <-snapshotDone:
		case <-ctx.Done():
			return fmt.Errorf("wait for the end of a checkpoint: %w", context.Cause(ctx))
		}
	}
}

// localRun returns the in-memory state of a run, and acquires the lease on its session if
// necessary. The session and the ancestors of the run become part of the transaction, because
// the run spends from their budgets.
func (t *transaction) localRun(rid id.Run) (*localRun, *Run, error) {
	s, err := t.getSession()
	if err != nil {
		return nil, nil, err
	}
	if err := t.claimSession(s); err != nil {
		return nil, nil, err
	}
	if err := applyLimits(t.current().budget, s.Budget.Limits); err != nil {
		return nil, nil, err
	}
	r, err := t.run(rid)
	if err != nil {
		return nil, nil, err
	}
	w, err := t.openRun(r)
	return w, r, err
}

// openRun returns the in-memory state of a run. It creates the budgets of the run and its
// ancestors if necessary.
func (t *transaction) openRun(r *Run) (*localRun, error) {
	c := t.current()
	above := c.budget
	if r.Parent != "" {
		parent, err := t.run(r.Parent)
		if err != nil {
			return nil, err
		}
		p, err := t.openRun(parent)
		if err != nil {
			return nil, err
		}
		above = p.budget
	}
	if w := c.runs[r.ID]; w != nil {
		return w, applyLimits(w.budget, r.Budget.Limits)
	}
	b, err := budget.New("run "+string(r.ID), above, r.Budget, nil)
	if err != nil {
		return nil, fmt.Errorf("load the budget of run %s: %w", r.ID, err)
	}
	w := &localRun{parent: r.Parent, budget: b, meters: r.Meter, ended: r.State.Ended(), steps: map[string]*stepInFlight{}}
	c.runs[r.ID] = w
	return w, nil
}

// applyLimits updates a budget to the raised limits of its record.
func applyLimits(b *budget.Budget, limits budget.Amounts) error {
	if maps.Equal(b.State().Limits, limits) {
		return nil
	}
	return b.Raise(limits)
}

// claimSession acquires the lease on the session, unless this process already holds it.
func (t *transaction) claimSession(s *Session) error {
	if t.current() != nil {
		return nil
	}
	until := t.now.Add(t.cfg.Lease)
	won, err := t.store.Claim(t.ctx, s.ID, t.cfg.Holder, t.now, until)
	if err != nil {
		return fmt.Errorf("claim session %s: %w", s.ID, err)
	}
	if !won {
		return &fault.Error{Op: "run.Claim", On: s.ID, Kind: fault.Conflict,
			Err: errors.New("another daemon supervises the runs of this session"), Remedy: "send the request to that daemon, or wait until its lease expires"}
	}
	// Read the session again: after the lease, only this process spends from its budget.
	*s, err = t.store.Session(t.ctx, s.ID)
	if err != nil {
		return err
	}
	clear(t.runs)
	b, err := budget.New("session "+s.ID, nil, s.Budget, nil)
	if err != nil {
		return fmt.Errorf("load the budget of session %s: %w", s.ID, err)
	}
	c := &lease{until: until, budget: b, runs: map[id.Run]*localRun{}}
	c.ctx, c.cancel = context.WithCancelCause(t.localSessions.ctx)
	t.local.lease = c // +checklocksignore: a transaction holds local.mu, see current
	return nil
}

// renewLoop renews leases until the Manager is closed.
func (cl *claims) renewLoop() {
	tick := time.NewTicker(cl.cfg.Lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-cl.ctx.Done():
			return
		case <-tick.C:
			cl.renew()
		}
	}
}

// renew renews all leases. A lease is lost if another Manager took it, or if it could not be
// renewed before its expiry.
func (cl *claims) renew() {
	ctx, cancel := context.WithTimeout(cl.ctx, cl.cfg.Lease/3)
	defer cancel()
	until := time.Now().Add(cl.cfg.Lease)
	began := time.Now()
	held, err := cl.store.Renew(ctx, cl.cfg.Holder, until)
	if err != nil && cl.ctx.Err() == nil {
		cl.cfg.Log.Error("failed to renew leases on sessions", "error", err)
	}
	for _, sid := range cl.local.ids() {
		l, cerr := cl.local.acquireLocal(sid)
		if cerr != nil {
			return
		}
		l.mu.Lock()
		switch c := l.lease; {
		case c == nil:
		case err == nil && slices.Contains(held, l.id):
			c.until = until
		case err == nil && c.until.Sub(began) < cl.cfg.Lease, time.Now().After(c.until):
			cl.cfg.Log.Error("lost the lease on a session", "session", l.id)
			l.drop(ErrLost)
		}
		cl.local.releaseLocal(l)
	}
}
