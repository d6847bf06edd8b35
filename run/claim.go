package run

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"glasshouse/budget"
	"glasshouse/fault"
	"glasshouse/id"
)

// A claim is a session whose runs are supervised here, and what of it is in memory
// and nowhere else. It is guarded by its live's mu.
type claim struct {
	ctx    context.Context // ends with the claim
	cancel context.CancelCauseFunc
	until  time.Time // as far as is known
	budget *budget.Budget
	runs   map[id.Run]*atWork
}

// An atWork is a run of such a session.
type atWork struct {
	parent     id.Run
	budget     *budget.Budget
	marks      map[string]Mark   // how far counters are in budget; replaced, never changed
	steps      map[string]*doing // that are in flight, as far as is known here
	supervised bool              // somebody has called Claim
	ended      bool              // nothing of it begins any more
	still      chan struct{}     // closed when steps may begin and end again; nil: they may
}

// A doing is a step in flight.
type doing struct {
	hold *budget.Hold // nil: another process held for it, and that counts as spent
	busy bool         // somebody here is at it
}

// ErrLost is why the context of a claim is done that another Manager may have now.
var ErrLost = errors.New("the claim on the session was lost")

// ErrReleased is why the context of a claim is done that was given up.
var ErrReleased = errors.New("the claim on the session was given up")

// Claim makes the caller the one who supervises a run, until the context that it
// returns is done; its cause says why it is. If another Manager supervises a run of
// the same session it is a fault.Conflict, and so it is if somebody in this process
// supervises this run.
func (m *Manager) Claim(ctx context.Context, rid id.Run) (context.Context, error) {
	var claimed context.Context
	var sid string
	err := m.work(ctx, rid, func(t *turn, r *Run, w *atWork) error {
		if w.supervised {
			return fault.Newf(fault.Conflict, "run.Claim", string(rid), "it is supervised here already")
		}
		if r.State.Ended() {
			return fault.Newf(fault.Conflict, "run.Claim", string(rid), "it is %s", r.State)
		}
		w.supervised, claimed, sid = true, t.current().ctx, r.Session
		t.undo = append(t.undo, func() { w.supervised, claimed = false, nil })
		return nil
	})
	if claimed == nil {
		return nil, err
	}
	m.mu.Lock()
	m.at[rid] = sid
	m.mu.Unlock()
	if err != nil { // it is kept that he has it, and he does not know
		return nil, errors.Join(err, m.Release(context.WithoutCancel(ctx), rid))
	}
	return claimed, nil
}

// Release says that the caller supervises a run no more. When nobody supervises any
// run of a session, any Manager may claim it. Whatever the error, the run is not
// supervised here any more.
func (m *Manager) Release(ctx context.Context, rid id.Run) error {
	m.mu.Lock()
	sid := m.at[rid]
	delete(m.at, rid)
	m.mu.Unlock()
	if sid == "" { // it is about what else goes on in its session
		r, err := m.store.Run(ctx, rid)
		if err != nil {
			return err
		}
		sid = r.Session
	}
	l, err := m.enter(sid)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer m.leave(l)
	if l.claim == nil {
		return nil
	}
	if w := l.claim.runs[rid]; w != nil {
		w.supervised = false
	}
	return m.releaseIdle(ctx, l)
}

// releaseIdle gives up the claim on a session without activity on this host. The caller
// holds l.mu.
//
// +checklocks:l.mu
func (m *Manager) releaseIdle(ctx context.Context, l *live) error {
	l.claim.prune()
	for _, w := range l.claim.runs {
		if !w.idle() {
			return nil
		}
	}
	l.drop(ErrReleased)
	if err := m.store.Release(context.WithoutCancel(ctx), l.id, m.cfg.Holder); err != nil {
		return fmt.Errorf("give up the claim on session %s: %w", l.id, err)
	}
	return nil
}

// idle reports whether nobody here is at the run.
func (w *atWork) idle() bool {
	for _, at := range w.steps {
		if at.busy {
			return false
		}
	}
	return !w.supervised && w.still == nil
}

// prune forgets runs that have ended, and from whose budgets none draws.
func (c *claim) prune() {
	for rid, w := range c.runs {
		if w.ended && w.idle() && !c.hasChild(rid) {
			delete(c.runs, rid)
		}
	}
}

func (c *claim) hasChild(rid id.Run) bool {
	for _, w := range c.runs {
		if w.parent == rid {
			return true
		}
	}
	return false
}

// drop forgets the claim. The caller holds l.mu.
//
// +checklocks:l.mu
func (l *live) drop(why error) {
	if l.claim != nil {
		l.claim.cancel(why)
		l.claim = nil
	}
}

// Unsupervised returns active runs that nobody supervises and that suit, oldest first, at
// most limit: those whose Manager was killed, those that were made elsewhere, and those
// that nobody has claimed yet.
func (m *Manager) Unsupervised(ctx context.Context, limit int, suits func(Run) bool) ([]Run, error) {
	limit = pageOf(limit)
	var free []Run
	for after := id.Run(""); len(free) < limit; {
		list, err := m.store.Unclaimed(ctx, m.cfg.Holder, time.Now(), after, page)
		if err != nil {
			return nil, err
		}
		for _, r := range list {
			after = r.ID
			if len(free) < limit && !m.supervises(r) && suits(r) {
				free = append(free, r)
			}
		}
		if len(list) < page {
			break
		}
	}
	return free, nil
}

func (m *Manager) supervises(r Run) bool {
	m.mu.Lock()
	l := m.live[r.Session]
	m.mu.Unlock()
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.claim != nil && l.claim.runs[r.ID] != nil && l.claim.runs[r.ID].supervised
}

// work makes a change that only who has the claim may make.
func (m *Manager) work(ctx context.Context, rid id.Run, f func(t *turn, r *Run, w *atWork) error) error {
	r, err := m.store.Run(ctx, rid)
	if err != nil {
		return err
	}
	for {
		var still <-chan struct{}
		err := m.change(ctx, r.Session, func(t *turn) error {
			w, r, err := t.atWork(rid)
			if err != nil {
				return err
			}
			if w.still != nil {
				still = w.still
				return nil
			}
			return f(t, r, w)
		})
		if err != nil || still == nil {
			return err
		}
		select {
		case <-still:
		case <-ctx.Done():
			return fmt.Errorf("wait until a checkpoint is taken: %w", context.Cause(ctx))
		}
	}
}

// atWork is a run that is supervised here, and claims its session if need be. Its
// parents and its session, from whose budgets it draws, are part of the change.
func (t *turn) atWork(rid id.Run) (*atWork, *Run, error) {
	s, err := t.sess()
	if err != nil {
		return nil, nil, err
	}
	if err := t.claim(s); err != nil {
		return nil, nil, err
	}
	if err := follow(t.current().budget, s.Budget.Limits); err != nil {
		return nil, nil, err
	}
	r, err := t.run(rid)
	if err != nil {
		return nil, nil, err
	}
	w, err := t.budgetOf(r)
	return w, r, err
}

// budgetOf is a run with its budget, and the budgets above it.
func (t *turn) budgetOf(r *Run) (*atWork, error) {
	c := t.current()
	above := c.budget
	if r.Parent != "" {
		parent, err := t.run(r.Parent)
		if err != nil {
			return nil, err
		}
		p, err := t.budgetOf(parent)
		if err != nil {
			return nil, err
		}
		above = p.budget
	}
	if w := c.runs[r.ID]; w != nil {
		return w, follow(w.budget, r.Budget.Limits)
	}
	b, err := budget.New("run "+string(r.ID), above, r.Budget, nil)
	if err != nil {
		return nil, fmt.Errorf("the budget of %s: %w", r.ID, err)
	}
	w := &atWork{parent: r.Parent, budget: b, marks: r.Meter, ended: r.State.Ended(), steps: map[string]*doing{}}
	c.runs[r.ID] = w
	return w, nil
}

// follow raises the limits of a budget to what they were raised to in its record.
func follow(b *budget.Budget, limits budget.Amounts) error {
	if maps.Equal(b.State().Limits, limits) {
		return nil
	}
	return b.Raise(limits)
}

// claim claims the session, unless it is claimed.
func (t *turn) claim(s *Session) error {
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
			Err: errors.New("another daemon supervises the runs of this session"), Remedy: "ask that one, or wait until its claim is over"}
	}
	// As it is now that nobody else writes it.
	if *s, err = t.store.Session(t.ctx, s.ID); err != nil {
		return err
	}
	clear(t.runs)
	b, err := budget.New("session "+s.ID, nil, s.Budget, nil)
	if err != nil {
		return fmt.Errorf("the budget of session %s: %w", s.ID, err)
	}
	c := &claim{until: until, budget: b, runs: map[id.Run]*atWork{}}
	c.ctx, c.cancel = context.WithCancelCause(t.Manager.ctx)
	t.live.claim = c // +checklocksignore: a turn holds live.mu, see current
	return nil
}

// renewLoop renews claims for as long as the Manager is open.
func (m *Manager) renewLoop() {
	tick := time.NewTicker(m.cfg.Lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-tick.C:
			m.renew()
		}
	}
}

// renew renews all claims. Those that another has taken are lost, and so are those
// that could not be renewed for so long that another may have.
func (m *Manager) renew() {
	ctx, cancel := context.WithTimeout(m.ctx, m.cfg.Lease/3)
	defer cancel()
	until := time.Now().Add(m.cfg.Lease)
	began := time.Now()
	held, err := m.store.Renew(ctx, m.cfg.Holder, until)
	if err != nil && m.ctx.Err() == nil {
		m.cfg.Log.Error("claims on sessions cannot be renewed", "error", err)
	}
	m.mu.Lock()
	all := slices.Collect(maps.Keys(m.live))
	m.mu.Unlock()
	for _, sid := range all {
		l, cerr := m.enter(sid)
		if cerr != nil {
			return
		}
		l.mu.Lock()
		switch c := l.claim; {
		case c == nil:
		case err == nil && slices.Contains(held, l.id):
			c.until = until
		case err == nil && c.until.Sub(began) < m.cfg.Lease, time.Now().After(c.until):
			m.cfg.Log.Error("a claim is lost", "session", l.id)
			l.drop(ErrLost)
		}
		m.leave(l)
	}
}
