package api

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/jail"
)

// rates measures all jails once per second while there is a reader.
type rates struct {
	closing    context.Context // canceled when the daemon stops
	jails      Manager
	recordings *recordings
	log        *slog.Logger

	mu      sync.Mutex
	lookers int
	stop    context.CancelFunc
	done    chan struct{}
	fresh   chan struct{} // closed at the next tick
	tick    uint64
	gone    uint64 // the last tick at which a jail was removed
	rows    []row  // sorted by creation time
	known   bool   // rows are at most one tick old
}

// row is a jail, with the tick of its last change.
type row struct {
	wire.JailRow
	changed uint64
}

const rateEvery = time.Second

// enter registers a reader. The channel is closed when rows are available; since returns the
// channel for the next tick.
func (x *rates) enter() (fresh <-chan struct{}, leave func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.lookers++
	if x.lookers == 1 {
		ctx, cancel := context.WithCancel(x.closing)
		x.stop, x.done, x.fresh = cancel, make(chan struct{}), make(chan struct{})
		go x.run(ctx, x.done)
	} else if x.known {
		now := make(chan struct{})
		close(now)
		return now, x.leave
	}
	return x.fresh, x.leave
}

func (x *rates) leave() {
	x.mu.Lock()
	x.lookers--
	last, done := x.lookers == 0, x.done
	if last {
		x.stop()
		x.rows, x.known = nil, false
	}
	x.mu.Unlock()
	if last {
		<-done
	}
}

// since returns the rows that changed after a tick. It returns all rows if tick is 0 or a jail
// was removed.
func (x *rates) since(tick uint64) (wire.FeedJailsEvent, uint64, <-chan struct{}) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := wire.FeedJailsEvent{All: tick == 0 || x.gone > tick, Jails: []wire.JailRow{}}
	for i := range x.rows {
		if e.All || x.rows[i].changed > tick {
			e.Jails = append(e.Jails, x.rows[i].JailRow)
		}
	}
	return e, x.tick, x.fresh
}

func (x *rates) run(ctx context.Context, done chan struct{}) {
	defer close(done)
	m := meter{jails: x.jails, recordings: x.recordings, last: map[id.Jail]reading{}}
	tick := time.NewTicker(rateEvery)
	defer tick.Stop()
	for {
		if rows, err := m.read(ctx); err == nil {
			x.put(ctx, rows)
		} else if ctx.Err() == nil {
			x.log.Warn("cannot measure jails", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// put replaces the rows.
func (x *rates) put(ctx context.Context, rows []wire.JailRow) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if ctx.Err() != nil {
		return // another goroutine measures, or there is no reader
	}
	x.tick++
	before := make(map[id.Jail]row, len(x.rows))
	for _, r := range x.rows {
		before[r.ID] = r
	}
	x.rows = slices.Grow(x.rows[:0:0], len(rows))
	for _, r := range rows {
		was, there := before[r.ID]
		if !there || was.JailRow != r {
			was = row{r, x.tick}
		}
		x.rows = append(x.rows, was)
		delete(before, r.ID)
	}
	if len(before) > 0 {
		x.gone = x.tick
	}
	x.known = true
	close(x.fresh)
	x.fresh = make(chan struct{})
}

// A meter converts counters of jails to rates per second.
type meter struct {
	jails      Manager
	recordings *recordings

	last map[id.Jail]reading
}

type reading struct {
	at     time.Time
	cpu    time.Duration
	rx, tx int64
	events uint64
}

// readTime is the timeout for measuring one jail.
const readTime = time.Second

func (m *meter) read(ctx context.Context) ([]wire.JailRow, error) {
	jails, err := m.jails.List(ctx, jail.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the jails: %w", err)
	}
	rows := make([]wire.JailRow, len(jails))
	now := make(map[id.Jail]reading, len(jails))
	for i, j := range jails {
		rows[i] = wire.JailRow{
			ID: j.ID, Name: j.Spec.Name, State: string(j.State), Backend: j.Spec.Backend, Runtime: j.Spec.Runtime, MemoryLimit: j.Spec.Limits.MemoryMB << 20,
		}
		if j.State == jail.Running || j.State == jail.Paused {
			now[j.ID] = m.measure(ctx, &rows[i])
		}
	}
	m.last = now
	return rows, ctx.Err()
}

// measure sets the usage of a jail. Values that cannot be read are zero, because the jail may
// have stopped.
func (m *meter) measure(ctx context.Context, row *wire.JailRow) reading {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	now := reading{at: time.Now()}
	if st, err := m.jails.Stats(ctx, row.ID); err == nil {
		row.MemoryBytes, row.PIDs = st.MemoryBytes, st.PIDs
		now.cpu, now.rx, now.tx = st.CPU, st.RxBytes, st.TxBytes
	}
	if l, err := m.recordings.log(ctx, row.ID); err == nil {
		now.events = l.Last()
		for _, n := range l.Stats().Lost {
			row.Gaps += n // dropped because the queue was full
		}
	}
	if m.recordings.observed != nil {
		for _, source := range m.recordings.observed.Status(row.ID) {
			row.Gaps += int64(source.Lost) // lost by the source
		}
	}
	was, known := m.last[row.ID]
	seconds := now.at.Sub(was.at).Seconds()
	if !known || seconds <= 0 {
		return now
	}
	per := func(n int64) float64 { return max(0, float64(n)/seconds) } // counters of a rewound jail may decrease
	row.CPU = rounded(per(int64(now.cpu-was.cpu)) / float64(time.Second))
	row.RxBytes, row.TxBytes = int64(per(now.rx-was.rx)), int64(per(now.tx-was.tx))
	row.Events = rounded(per(int64(now.events - was.events)))
	return now
}

// rounded rounds to three decimal places.
func rounded(x float64) float64 { return float64(int64(x*1000+0.5)) / 1000 }
