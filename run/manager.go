package run

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"sync"
	"time"

	"filippo.io/age"

	"glasshouse/chain"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/redact"
)

// A Chain is where what happens is recorded: chain.Chain.
type Chain interface {
	Append(ctx context.Context, e chain.Entry) (chain.Entry, error)
	Entries(ctx context.Context, q chain.Query) ([]chain.Entry, error)
}

// Config is what a Manager works with.
type Config struct {
	Store Store
	Chain Chain

	// Key seals what is personal. Managers of one Store have the same. nil: what
	// is labelled personal or secret is refused.
	Key *age.X25519Identity
	TTL time.Duration // how long what is sealed is kept; 0 is 24 hours

	// Holder names this process among those that share the Store. What claims a
	// process of this name had are its own to drop. "": a fresh name.
	Holder string
	Lease  time.Duration // how long a claim holds that nobody renews; 0 is 30 s

	Retry Retry // of deliveries

	// Mask returns a mask for the secrets that jails and runs of a session have or had,
	// nil if there are none. What runs write is masked before it is stored. nil: no
	// secrets exist.
	Mask func(ctx context.Context, session string, runs []Run) *redact.Mask

	// Told is told of each event that this Manager wrote, after it is kept. It
	// must neither wait nor call the Manager.
	Told func(Event)

	Log *slog.Logger // nil: nothing is logged
}

// A Manager is sessions and their runs. It is safe for concurrent use.
type Manager struct {
	cfg    Config
	store  Store
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu sync.Mutex
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	live map[string]*live // sessions in use on this host
	// +checklocks:mu
	waiters map[string]*waiter // for something to happen in a session
	// +checklocks:mu
	at map[id.Run]string // the sessions of runs that are supervised here
}

// New returns a Manager that goes on with what the store holds. What the chain was
// owed by a process of the same name is paid before.
func New(ctx context.Context, cfg Config) (*Manager, error) {
	cfg.Holder = cmp.Or(cfg.Holder, "w-"+rand.Text())
	cfg.Lease = cmp.Or(cfg.Lease, 30*time.Second)
	cfg.TTL = cmp.Or(cfg.TTL, 24*time.Hour)
	cfg.Retry = cfg.Retry.orDefault()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	m := &Manager{cfg: cfg, store: ownEntries{cfg.Store, cfg.Holder}, live: map[string]*live{}, waiters: map[string]*waiter{}, at: map[id.Run]string{}}
	if err := m.store.Release(ctx, "", cfg.Holder); err != nil {
		return nil, err
	}
	for _, settle := range []func(context.Context) error{m.settleOwn, m.settleOthers} {
		if err := settle(ctx); err != nil {
			return nil, err
		}
	}
	m.ctx, m.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	m.wg.Go(m.renewLoop)
	m.wg.Go(m.tidyLoop)
	return m, nil
}

// Holder is this process's name among those that share the Store.
func (m *Manager) Holder() string { return m.cfg.Holder }

var errClosed = fault.Newf(fault.Unavailable, "run", "", "the daemon is ending; what was begun is kept: ask again")

// Close gives up all claims and ends what runs. It may be called twice.
func (m *Manager) Close() error {
	m.mu.Lock()
	again := m.closed
	m.closed = true
	m.mu.Unlock()
	m.cancel(errClosed)
	m.wg.Wait()
	if again {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return m.store.Release(ctx, "", m.cfg.Holder)
}

// A live is a session that somebody is at in this process.
type live struct {
	id   string
	refs int // guarded by Manager.mu

	mu sync.Mutex // one writes of a session at a time. Manager.mu may be taken under it
	// +checklocks:mu
	owed []Record // to the chain: kept, and not recorded
	// +checklocks:mu
	claim *claim // nil: not claimed
}

// enter returns a session's live with a reference. The caller locks its mu, and calls leave
// at the end.
func (m *Manager) enter(sid string) (*live, error) {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, errClosed
	}
	l := m.live[sid]
	if l == nil {
		l = &live{id: sid}
		m.live[sid] = l
	}
	l.refs++
	m.mu.Unlock()
	return l, nil
}

// leave unlocks l, and forgets it if there is nothing to remember.
//
// +checklocksrelease:l.mu
func (m *Manager) leave(l *live) {
	idle := l.claim == nil && len(l.owed) == 0
	l.mu.Unlock()
	m.mu.Lock()
	l.refs--
	if l.refs == 0 && idle {
		delete(m.live, l.id)
	}
	m.mu.Unlock()
}

// attempts is how often a change is made anew because another process was faster.
const attempts = 50

// change has f make a change to a session, and writes it; as often as it takes when
// others change the same. What f reserves it must have undone.
func (m *Manager) change(ctx context.Context, sid string, f func(t *turn) error) error {
	l, err := m.enter(sid)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer m.leave(l)
	return m.changeIn(ctx, l, f)
}

// changeIn is change of a session that is locked.
//
// +checklocks:l.mu
func (m *Manager) changeIn(ctx context.Context, l *live, f func(t *turn) error) error {
	if _, err := m.pay(ctx, l); err != nil {
		return err
	}
	for n := 1; ; n++ {
		t := &turn{Manager: m, ctx: ctx, live: l, now: time.Now().UTC().Round(0), runs: map[id.Run]*Run{}}
		err := t.try(f)
		if errors.Is(err, errStale) && n < attempts && ctx.Err() == nil {
			continue
		}
		if len(t.ended) > 0 && l.claim != nil {
			err = errors.Join(err, m.releaseIdle(ctx, l))
		}
		return err
	}
}

// tidyEvery is how often is looked what of the quarantine is gone, and what the chain
// is owed by those who never will pay.
const tidyEvery = time.Minute

func (m *Manager) tidyLoop() {
	tick := time.NewTicker(tidyEvery)
	defer tick.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-tick.C:
		}
		if _, err := m.Purge(m.ctx); err != nil && m.ctx.Err() == nil {
			m.cfg.Log.Error("what is over in the quarantine cannot be forgotten", "error", err)
		}
		m.payAgain(m.ctx)
		if err := errors.Join(m.settleUnsure(m.ctx), m.settleOthers(m.ctx)); err != nil && m.ctx.Err() == nil {
			m.cfg.Log.Error("what was left unrecorded cannot be recorded", "error", err)
		}
	}
}
