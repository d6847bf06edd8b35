package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// Config configures a Member.
type Config struct {
	Store         Store
	ID, Name      string // see Node
	Version, Host string
	Addr          string
	Front         bool
	Lease         time.Duration // 0: DefaultLease

	// Clock measures durations, and includes the time in which the host was suspended. nil:
	// CLOCK_BOOTTIME.
	Clock func() time.Duration

	// Facts describes this host. nil: nothing is known.
	Facts func() Facts

	// Renewed is called after each renewal, but not after the first Join. nil: nothing is called.
	Renewed func()
	Log     *slog.Logger // nil: logging is disabled
}

// DefaultLease is the duration of a lease. A node stops at two thirds of it.
const DefaultLease = 30 * time.Second

// ErrSuspended is the cause of a term's end if the lease could not be renewed in time.
var ErrSuspended = errors.New("the lease of this daemon could not be renewed")

// ErrLost is the cause of a term's end if another process has the lease, or if this node was
// declared lost.
var ErrLost = errors.New("this daemon lost its lease")

// ErrClosed is the cause of a term's end if the Member was closed.
var ErrClosed = errors.New("the daemon is shutting down")

// A Member is the membership of this daemon. It is safe for concurrent use.
type Member struct {
	cfg    Config
	cancel context.CancelFunc
	wg     sync.WaitGroup
	nonce  string // of the last renewal; used by renewLoop alone
	next   string // of the renewal or join in progress, which may have been stored

	mu sync.Mutex
	// +checklocks:mu
	term context.Context // done while the daemon must not act
	// +checklocks:mu
	end context.CancelCauseFunc
	// +checklocks:mu
	epoch int64
	// +checklocks:mu
	deadline time.Duration // by Clock: when the term ends without a renewal
	// +checklocks:mu
	known, read time.Time // the last known time of the database, and when it was read
}

// Join gives this daemon a lease. If another host has the lease of the same node, which is
// that of a copied data directory or of the previous boot, Join waits for its expiry, and
// returns fault.Conflict if the other host renews it.
func Join(ctx context.Context, cfg Config) (*Member, error) {
	cfg.Lease = cmp.Or(cfg.Lease, DefaultLease)
	if cfg.Clock == nil {
		cfg.Clock = bootTime
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	term, end := context.WithCancelCause(context.Background())
	m := &Member{cfg: cfg, term: term, end: end}
	if err := m.waitAndJoin(ctx); err != nil {
		end(err)
		return nil, err
	}
	ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	m.wg.Go(func() { m.renewLoop(ctx) })
	m.wg.Go(func() { m.expireLoop(ctx) })
	return m, nil
}

func bootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // since Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}

// waitAndJoin joins, and waits for the expiry of a lease of another host.
func (m *Member) waitAndJoin(ctx context.Context) error {
	other := ""
	for {
		got, err := m.join(ctx, false)
		if err != nil || got.Nonce == m.nonce {
			return err
		}
		if other != "" && other != got.Nonce {
			return &fault.Error{Op: "fleet.Join", On: m.cfg.ID, Kind: fault.Conflict,
				Err:    errors.New("a daemon on another host uses a copy of this data directory and renews its lease"),
				Remedy: "stop that daemon, or start this one on an empty data directory"}
		}
		if other == "" {
			m.cfg.Log.Warn("another host has the lease of this data directory; waiting for its expiry", "until", got.Until)
		}
		other = got.Nonce
		select {
		case <-time.After(min(max(got.Until.Sub(got.Now), 0)+10*time.Millisecond, time.Second)):
		case <-ctx.Done():
			return fmt.Errorf("wait for the lease of another host: %w", context.Cause(ctx))
		}
	}
}

// join tries to get the lease. It succeeded if the result has the nonce of this process.
func (m *Member) join(ctx context.Context, again bool) (Node, error) {
	m.chooseNonce()
	sent := m.cfg.Clock()
	got, err := m.cfg.Store.Join(ctx, Node{ID: m.cfg.ID, Name: m.cfg.Name, Version: m.cfg.Version, Addr: m.cfg.Addr, Front: m.cfg.Front, Host: m.cfg.Host, Nonce: m.next, Facts: m.facts()}, again, m.cfg.Lease)
	if err != nil {
		return got, fmt.Errorf("join the daemons that share the database: %w", err)
	}
	if got.Nonce == m.next {
		m.stored(sent, got.Now, got.Epoch)
	}
	return got, nil
}

// chooseNonce chooses the next nonce, unless that of an earlier attempt may have been stored.
func (m *Member) chooseNonce() {
	if m.next == "" {
		m.next = rand.Text()
	}
}

// stored notes that a request sent at a time has stored the next nonce, and extended the lease.
// now is the clock of the database.
func (m *Member) stored(sent time.Duration, now time.Time, epoch int64) {
	m.nonce, m.next = m.next, ""
	m.extend(sent, now, epoch)
}

// extend records a renewal that was sent at a time. It begins a new term if the previous
// one has ended, or had another epoch.
func (m *Member) extend(sent time.Duration, now time.Time, epoch int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known, m.read = now, time.Now()
	if m.term.Err() != nil || m.epoch != epoch {
		m.end(ErrLost)
		m.term, m.end = context.WithCancelCause(context.Background())
	}
	m.epoch, m.deadline = epoch, sent+m.cfg.Lease*2/3
}

// Term returns a context that is done while this daemon must not act as the owner of its
// sessions, and the epoch to which its writes must refer. A context that is done stays so;
// when the daemon may act again, Term returns another one.
func (m *Member) Term() (context.Context, int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire()
	return m.term, m.epoch
}

// Valid returns for how long this daemon may act without a further renewal.
func (m *Member) Valid() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire()
	if m.term.Err() != nil {
		return 0
	}
	return m.deadline - m.cfg.Clock()
}

// Now returns the time by the clock of the database, as measured by the last renewal. Changes of
// the clock of this host do not affect it.
func (m *Member) Now() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.known.Add(time.Since(m.read)) // by the monotonic clock
}

// expire ends the term if it was not renewed in time.
//
// +checklocks:m.mu
func (m *Member) expire() {
	if m.term.Err() == nil && m.cfg.Clock() >= m.deadline {
		m.cfg.Log.Error("the lease could not be renewed; the runs of this daemon are suspended", "node", m.cfg.ID)
		m.end(ErrSuspended)
	}
}

// expireLoop ends terms. Timers of Go do not count the time in which the host was suspended,
// so it compares clocks.
func (m *Member) expireLoop(ctx context.Context) {
	tick := time.NewTicker(m.cfg.Lease / 60)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			m.mu.Lock()
			m.expire()
			m.mu.Unlock()
		}
	}
}

func (m *Member) renewLoop(ctx context.Context) {
	tick := time.NewTicker(m.cfg.Lease / 6)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := m.renew(ctx); err != nil && ctx.Err() == nil {
				m.cfg.Log.Warn("could not renew the lease of this daemon", "node", m.cfg.ID, "err", err)
			}
		}
	}
}

func (m *Member) facts() Facts {
	if m.cfg.Facts == nil {
		return Facts{}
	}
	return m.cfg.Facts()
}

// renew renews the lease, or joins again after the node was declared lost. Then it looks for
// other nodes that are lost.
func (m *Member) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Lease/6)
	defer cancel()
	m.chooseNonce()
	m.mu.Lock()
	epoch := m.epoch
	m.mu.Unlock()
	sent := m.cfg.Clock()
	got, err := m.cfg.Store.Renew(ctx, m.cfg.ID, epoch, m.nonce, m.next, m.cfg.Lease, m.facts())
	if err != nil {
		return err
	}
	if !got.Now.IsZero() {
		m.stored(sent, got.Now, epoch)
	} else {
		m.mu.Lock()
		m.end(ErrLost)
		m.mu.Unlock()
		got, err := m.join(ctx, true)
		if err != nil {
			return err
		}
		if got.Nonce != m.nonce {
			return fault.Newf(fault.Conflict, "fleet.renew", m.cfg.ID, "another daemon uses a copy of this data directory and has its lease")
		}
		m.cfg.Log.Warn("this daemon was declared lost and has a new lease; other daemons may have continued its runs", "epoch", got.Epoch)
	}
	if m.cfg.Renewed != nil {
		m.cfg.Renewed()
	}
	if !got.Lost { // the transaction below waits for those of all other nodes
		return nil
	}
	lost, err := m.cfg.Store.DeclareLost(ctx)
	if err != nil {
		return fmt.Errorf("look for lost daemons: %w", err)
	}
	if len(lost) > 0 {
		m.cfg.Log.Warn("daemons are lost; their runs are continued by others", "nodes", lost)
	}
	return nil
}

// Close ends the term. The lease remains until it expires, so that a daemon that starts again in
// time finds its sessions.
func (m *Member) Close() error {
	m.cancel()
	m.wg.Wait()
	m.mu.Lock()
	epoch, valid := m.epoch, m.term.Err() == nil
	m.end(ErrClosed)
	m.mu.Unlock()
	if !valid {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), m.cfg.Lease/6)
	defer cancel()
	return m.cfg.Store.Leave(ctx, m.cfg.ID, epoch, m.nonce)
}
