package run

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"filippo.io/age"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/redact"
	"glasshouse/policy/chain"
)

// A Chain is the causal chain (the audit log): chain.Chain.
type Chain interface {
	Append(ctx context.Context, e chain.Entry) (chain.Entry, error)
	Entries(ctx context.Context, q chain.Query) ([]chain.Entry, error)
}

// Config configures a Manager.
type Config struct {
	Store Store
	Chain Chain

	// Key encrypts personal data. All Managers of one Store need the same key. nil: data
	// labelled personal or secret is refused.
	Key *age.X25519Identity
	TTL time.Duration // retention of encrypted data; 0 is 24 hours

	// Holder names this process among those that share the Store. New releases leases that an
	// earlier process with the same name left. "": a random name.
	Holder string

	// Node is this process among those that share the Store. Its sessions are executed only
	// during its terms. nil: no other process uses the Store.
	Node Node

	Retry Retry // retries of deliveries

	// Mask returns a mask for the secrets that jails and runs of a session have or had, nil if
	// there are none. Data of runs is masked before it is stored. nil: no secrets exist.
	Mask func(ctx context.Context, session string, runs []Run) *redact.Mask

	Log *slog.Logger // nil: logging is disabled
}

// A Manager manages sessions and their runs. It is safe for concurrent use. New creates its
// parts; each uses only those created before it.
type Manager struct {
	*core
	*quarantine
	*notifier
	*localSessions
	*sessions
	*messages
	*deliveries
	*runs
	*claims
	*journal
	*checkpoints
}

// core holds what all parts of a Manager share.
type core struct {
	cfg    Config
	store  Store
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
}

// Now returns the time by the clock that all processes with the same store use.
func (co *core) Now() time.Time { return co.cfg.Node.Now() }

// localSessions are the sessions that this process uses. All changes of sessions and runs go
// through it.
type localSessions struct {
	*core
	quarantine *quarantine
	notifier   *notifier

	mu sync.Mutex
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	byID map[string]*localSession
	// +checklocks:mu
	supervised map[id.Run]string // sessions of the runs supervised by this process
}

// New returns a Manager that continues with the content of the store. Before it returns, it
// appends records to the chain that an earlier process with the same Holder left behind.
func New(ctx context.Context, cfg Config) (*Manager, error) {
	cfg.Holder = cmp.Or(cfg.Holder, "w-"+rand.Text())
	if cfg.Node == nil {
		cfg.Node = alone{}
	}
	cfg.TTL = cmp.Or(cfg.TTL, 24*time.Hour)
	cfg.Retry = cfg.Retry.orDefault()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	co := &core{cfg: cfg, store: ownEntries{cfg.Store, cfg.Holder}}
	qu := &quarantine{core: co}
	no := &notifier{core: co, waiters: map[string]*waiter{}}
	ls := &localSessions{core: co, quarantine: qu, notifier: no, byID: map[string]*localSession{}, supervised: map[id.Run]string{}}
	m := &Manager{
		core: co, quarantine: qu, notifier: no, localSessions: ls,
		sessions: &sessions{co, ls}, messages: &messages{co, qu, no, ls}, deliveries: &deliveries{co, ls}, runs: &runs{co, ls},
		claims: &claims{co, ls}, journal: &journal{co, qu, no, ls}, checkpoints: &checkpoints{co, qu, ls},
	}
	if err := m.store.Release(ctx, "", cfg.Holder); err != nil {
		return nil, fmt.Errorf("release the leases of an earlier process: %w", err)
	}
	for _, appendPending := range []func(context.Context) error{m.recoverOwnRecords, m.recoverAbandonedRecords} {
		if err := appendPending(ctx); err != nil {
			return nil, err
		}
	}
	m.ctx, m.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	m.wg.Go(m.dropLoop)
	m.wg.Go(m.cleanupLoop)
	return m, nil
}

// Holder returns the name of this process among those that share the Store.
func (co *core) Holder() string { return co.cfg.Holder }

var errClosed = fault.Newf(fault.Unavailable, "run", "", "the daemon is shutting down; the state is stored: repeat the request")

// Close releases all leases and stops all goroutines. It may be called twice.
func (m *Manager) Close() error {
	first := m.localSessions.close()
	m.cancel(errClosed)
	m.wg.Wait()
	if !first {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return m.store.Release(ctx, "", m.cfg.Holder)
}

// close refuses new changes. It returns false if it was called before.
func (ls *localSessions) close() bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	was := ls.closed
	ls.closed = true
	return !was
}

// A localSession is the in-memory state of a session that this process uses.
type localSession struct {
	id   string
	refs int // guarded by localSessions.mu

	mu sync.Mutex // serializes changes of the session. localSessions.mu may be locked while it is held
	// +checklocks:mu
	unrecorded []Record // stored records that are not yet in the chain
	// +checklocks:mu
	lease *lease // nil: this process holds no lease on the session
}

// find returns the state of a session, or nil if this process does not use it.
func (ls *localSessions) find(sid string) *localSession {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.byID[sid]
}

// ids returns the ids of all sessions that this process uses.
func (ls *localSessions) ids() []string {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return slices.Collect(maps.Keys(ls.byID))
}

// setSupervised records that this process supervises a run of a session.
func (ls *localSessions) setSupervised(rid id.Run, sid string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.supervised[rid] = sid
}

// unsetSupervised undoes setSupervised.
func (ls *localSessions) unsetSupervised(rid id.Run) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	delete(ls.supervised, rid)
}

// sessionOf returns the session of a run. For a supervised run it does not need the store.
func (ls *localSessions) sessionOf(ctx context.Context, rid id.Run) (string, error) {
	ls.mu.Lock()
	sid := ls.supervised[rid]
	ls.mu.Unlock()
	if sid != "" {
		return sid, nil
	}
	r, err := ls.store.Run(ctx, rid)
	return r.Session, err
}

// acquireLocal returns the state of a session with a new reference. The caller locks its mu,
// and calls releaseLocal at the end.
func (ls *localSessions) acquireLocal(sid string) (*localSession, error) {
	ls.mu.Lock()
	if ls.closed {
		ls.mu.Unlock()
		return nil, errClosed
	}
	l := ls.byID[sid]
	if l == nil {
		l = &localSession{id: sid}
		ls.byID[sid] = l
	}
	l.refs++
	ls.mu.Unlock()
	return l, nil
}

// releaseLocal unlocks l and drops a reference. It deletes l if it is unused and has no state.
//
// +checklocksrelease:l.mu
func (ls *localSessions) releaseLocal(l *localSession) {
	idle := l.lease == nil && len(l.unrecorded) == 0
	l.mu.Unlock()
	ls.mu.Lock()
	l.refs--
	if l.refs == 0 && idle {
		delete(ls.byID, l.id)
	}
	ls.mu.Unlock()
}

// attempts is how often a change is retried after a concurrent change of another process.
const attempts = 50

// change lets f change a session, and stores the result. After a concurrent change by another
// process, it calls f again. f must register the inverse of in-memory effects in
// transaction.undo.
func (ls *localSessions) change(ctx context.Context, sid string, f func(t *transaction) error) error {
	l, err := ls.acquireLocal(sid)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer ls.releaseLocal(l)
	return ls.changeIn(ctx, l, f)
}

// changeIn is like change, but for a locked session.
//
// +checklocks:l.mu
func (ls *localSessions) changeIn(ctx context.Context, l *localSession, f func(t *transaction) error) error {
	if _, err := ls.flushRecords(ctx, l); err != nil {
		return err
	}
	for n := 1; ; n++ {
		t := &transaction{localSessions: ls, ctx: ctx, local: l, now: ls.Now().UTC().Round(0), runs: map[id.Run]*Run{}}
		err := t.attempt(f)
		if errors.Is(err, errStale) && n < attempts && ctx.Err() == nil {
			continue
		}
		if len(t.endedRuns) > 0 && l.lease != nil {
			err = errors.Join(err, ls.releaseIdle(ctx, l))
		}
		return err
	}
}

// cleanupEvery is the interval for purging the quarantine and for appending records to the
// chain that other processes left behind.
const cleanupEvery = time.Minute

func (m *Manager) cleanupLoop() {
	tick := time.NewTicker(cleanupEvery)
	defer tick.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-tick.C:
		}
		if _, err := m.Purge(m.ctx); err != nil && m.ctx.Err() == nil {
			m.cfg.Log.Error("failed to purge the quarantine", "error", err)
		}
		m.retryRecords(m.ctx)
		if err := errors.Join(m.recoverUncertainRecords(m.ctx), m.recoverAbandonedRecords(m.ctx)); err != nil && m.ctx.Err() == nil {
			m.cfg.Log.Error("failed to append old records to the audit log", "error", err)
		}
	}
}
