package run

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	term   context.Context // of this daemon when it claimed the session; the lease ends with it
	epoch  int64           // of that term
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

// A Node is this process among those that share the Store: fleet.Member.
type Node interface {
	// Term returns a context that is done while this process must not act as the holder of its
	// sessions, and the epoch that its claims contain.
	Term() (context.Context, int64)

	// Now returns the time by the clock that all these processes use.
	Now() time.Time
}

// alone is the Node of a process that does not share its Store.
type alone struct{}

func (alone) Term() (context.Context, int64) { return context.Background(), 0 }
func (alone) Now() time.Time                 { return time.Now() }

// ErrLost is the cause of a lease's context if this process may no longer execute the runs of
// the session, because of its Node, or because another Manager has claimed the session.
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

// Unsupervised returns up to limit runs without a supervisor that need one and satisfy suits,
// oldest first. It does not return runs of sessions that another Manager has a lease on, or
// that are assigned to another Node.
func (cl *claims) Unsupervised(ctx context.Context, limit int, suits func(Run) bool) ([]Run, error) {
	limit = pageLimit(limit)
	var free []Run
	for after := id.Run(""); len(free) < limit; {
		list, err := cl.store.Unclaimed(ctx, cl.cfg.Holder, after, page)
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
	if l := t.current(); l != nil && l.term.Err() == nil {
		return nil
	}
	t.local.drop(ErrLost) // +checklocksignore: a transaction holds local.mu, see current
	term, epoch := t.cfg.Node.Term()
	if term.Err() != nil {
		return &fault.Error{Op: "run.Claim", On: s.ID, Kind: fault.Unavailable,
			Err:    fmt.Errorf("this daemon may not execute runs at the moment: %w", context.Cause(term)),
			Remedy: "check the connection of this daemon to the database"}
	}
	won, err := t.store.Claim(t.ctx, s.ID, t.cfg.Holder, epoch)
	if err != nil {
		return fmt.Errorf("claim session %s: %w", s.ID, err)
	}
	if !won {
		return &fault.Error{Op: "run.Claim", On: s.ID, Kind: fault.Conflict,
			Err: errors.New("another daemon supervises the runs of this session"), Remedy: "send the request to that daemon, or wait until the session is released"}
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
	c := &lease{term: term, epoch: epoch, budget: b, runs: map[id.Run]*localRun{}}
	c.ctx, c.cancel = context.WithCancelCause(t.localSessions.ctx)
	stop := context.AfterFunc(term, func() { c.cancel(ErrLost) })
	context.AfterFunc(c.ctx, func() { stop() })
	t.local.lease = c // +checklocksignore: a transaction holds local.mu, see current
	return nil
}

// dropLoop deletes the in-memory state of all leases when this process may no longer act.
func (cl *claims) dropLoop() {
	const retry = time.Second
	for {
		term, _ := cl.cfg.Node.Term()
		if term.Err() != nil { // until the process may act again
			select {
			case <-cl.ctx.Done():
				return
			case <-time.After(retry):
			}
			continue
		}
		select {
		case <-cl.ctx.Done():
			return
		case <-term.Done():
			cl.dropAll()
		}
	}
}

func (cl *claims) dropAll() {
	for _, sid := range cl.local.ids() {
		l, err := cl.local.acquireLocal(sid)
		if err != nil {
			return // it was closed
		}
		l.mu.Lock()
		if l.lease != nil && l.lease.term.Err() != nil {
			cl.cfg.Log.Error("lost the lease on a session", "session", l.id)
			l.drop(ErrLost)
		}
		cl.local.releaseLocal(l)
	}
}

// Assign lets another Node supervise the runs of a session. It returns false if that Node is not up, or
// if a Manager has claimed the session.
func (cl *claims) Assign(ctx context.Context, sid, node string) (bool, error) {
	return cl.store.Assign(ctx, sid, node)
}
