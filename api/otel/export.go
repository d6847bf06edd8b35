package otel

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"strconv"
	"sync"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
)

// Daemon is the part of the API that is exported. *client.Client implements it.
type Daemon interface {
	Jails(ctx context.Context, f client.JailFilter) iter.Seq2[wire.Jail, error]
	Events(ctx context.Context, j id.Jail, q client.EventQuery) iter.Seq2[client.Record, error]
	Processes(ctx context.Context, j id.Jail, at string, all bool) (wire.Processes, error)
	Chain(ctx context.Context, query url.Values) iter.Seq2[wire.ChainEntry, error]
	ChainEntry(ctx context.Context, seq int64) (wire.ChainEntry, error)
	RunActions(ctx context.Context, r id.Run) iter.Seq2[wire.RunAction, error]
}

// Cursor maps the name of each stream to its exported position.
type Cursor map[string]uint64

// An Exporter reads the events and audit log of a daemon and sends them.
type Exporter struct {
	Daemon Daemon
	Send   func(context.Context, *Batch) error // such as (*Sender).Send

	Jails  []id.Jail // none: all jails, and entries without a jail
	Run    id.Run    // only audit log entries of this run
	Filter string    // event filter, as in docs/reference/events.md
	From   time.Time
	To     time.Time
	Follow bool

	Cursor Cursor             // initial position; updated after each batch
	Keep   func(Cursor) error // called after each batch; may be nil

	Every time.Duration // flush and poll interval; 0: one second
}

// item is a record and its position in a stream.
type item struct {
	signals Signals
	stream  string
	at      uint64 // 0: no position
}

// Export sends all existing records and, if Follow is set, new ones until ctx ends. It sends
// the records that it has already read before it returns.
func (x *Exporter) Export(ctx context.Context) error {
	if x.Every <= 0 {
		x.Every = time.Second
	}
	if x.Cursor == nil {
		x.Cursor = Cursor{}
	}
	begin := Cursor{} // start of the readers; x.Cursor advances meanwhile
	for k, v := range x.Cursor {
		begin[k] = v
	}
	reading, stop := context.WithCancelCause(ctx)
	r := &reader{Exporter: x, begin: begin, items: make(chan item, 256), seen: map[id.Jail]bool{}, stop: stop}
	r.read(reading)
	err := x.drain(ctx, r)
	stop(nil)
	for range r.items { // drain, so that no reader blocks
	}
	if err == nil && r.err != nil && ctx.Err() == nil {
		err = r.err
	}
	return err
}

// grace is the time limit for the last batch after ctx has ended.
const grace = 10 * time.Second

// drain sends the read records until the readers have ended.
func (x *Exporter) drain(ctx context.Context, r *reader) error {
	tick := time.NewTicker(x.Every)
	defer tick.Stop()
	batch, moved := &Batch{}, Cursor{}
	flush := func() error {
		if spans, records := batch.Count(); spans+records == 0 {
			return nil
		}
		err := x.Send(ctx, batch)
		if err != nil && ctx.Err() != nil {
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
			defer cancel()
			err = x.Send(last, batch)
		}
		if err != nil {
			return err
		}
		for k, v := range moved {
			x.Cursor[k] = v
		}
		batch, moved = &Batch{}, Cursor{}
		if x.Keep == nil {
			return nil
		}
		return x.Keep(x.Cursor)
	}
	for {
		select {
		case it, ok := <-r.items:
			if !ok {
				return flush()
			}
			batch.Add(it.signals)
			if it.at > 0 {
				moved[it.stream] = it.at
			}
			if batch.Full() {
				if err := flush(); err != nil {
					return err
				}
			}
		case <-tick.C:
			if err := flush(); err != nil {
				return err
			}
		}
	}
}

// reader reads the streams concurrently.
type reader struct {
	*Exporter
	begin Cursor
	items chan item // closed when all streams have ended
	stop  context.CancelCauseFunc
	wg    sync.WaitGroup

	mu sync.Mutex
	// +checklocks:mu
	seen map[id.Jail]bool
	err  error // the first error; guarded by mu until items is closed
}

func (r *reader) read(ctx context.Context) {
	r.wg.Go(func() { r.fail(r.all(ctx)) })
	go func() {
		r.wg.Wait()
		close(r.items)
	}()
}

func (r *reader) fail(err error) {
	if err == nil {
		return
	}
	r.mu.Lock()
	if r.err == nil {
		r.err = err
	}
	r.mu.Unlock()
	r.stop(err)
}

// put passes an item to the sender. It blocks while the collector is slow; the daemon keeps
// the records on disk.
func (r *reader) put(ctx context.Context, it item) error {
	select {
	case r.items <- it:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// all reads the existing jails and then the audit log, whose entries announce new jails.
func (r *reader) all(ctx context.Context) error {
	jails := r.Jails
	if len(jails) == 0 && r.Run == "" {
		for j, err := range r.Daemon.Jails(ctx, client.JailFilter{}) {
			if err != nil {
				return fmt.Errorf("list the jails: %w", err)
			}
			jails = append(jails, j.ID)
		}
	}
	for _, j := range jails {
		r.jail(ctx, j)
	}
	if len(r.Jails) == 0 || r.Run != "" {
		return r.chain(ctx, "")
	}
	for _, j := range r.Jails {
		r.wg.Go(func() { r.fail(r.chain(ctx, j)) })
	}
	return nil
}

// jail starts to read the events of a jail, once.
func (r *reader) jail(ctx context.Context, j id.Jail) {
	r.mu.Lock()
	again := r.seen[j]
	r.seen[j] = true
	r.mu.Unlock()
	if again {
		return
	}
	r.wg.Go(func() {
		err := r.events(ctx, j)
		if errors.Is(err, fault.NotFound) {
			return // deleted with its event log; its audit log entries are still exported
		}
		r.fail(err)
	})
}

func (r *reader) events(ctx context.Context, j id.Jail) error {
	stream := "events/" + string(j)
	after := r.begin[stream]
	at := ""
	switch {
	case after > 0:
		at = strconv.FormatUint(after, 10)
	case !r.From.IsZero():
		at = r.From.Format(time.RFC3339Nano)
	}
	var alive wire.Processes
	if at != "" {
		var err error
		if alive, err = r.Daemon.Processes(ctx, j, at, false); err != nil {
			return fmt.Errorf("list the processes of jail %s: %w", j, err)
		}
	}
	m := NewEvents(j, alive.Items)
	q := client.EventQuery{Filter: r.Filter, Since: r.From, Until: r.To, After: after, Follow: r.Follow}
	for record, err := range r.Daemon.Events(ctx, j, q) {
		if err != nil {
			return fmt.Errorf("read the events of jail %s: %w", j, err)
		}
		s, err := m.Map(record.JSON)
		if err != nil {
			return fmt.Errorf("record %d of %s: %w", record.Seq, j, err)
		}
		if err := r.put(ctx, item{s, stream, record.Seq}); err != nil {
			return err
		}
	}
	return nil
}

// chain reads the entries of one jail, of all, or of one run.
func (r *reader) chain(ctx context.Context, j id.Jail) error {
	q := url.Values{"limit": {"500"}}
	for k, v := range map[string]string{"jail": string(j), "run": string(r.Run)} {
		if v != "" {
			q.Set(k, v)
		}
	}
	stream := "chain?jail=" + string(j) + "&run=" + string(r.Run)
	if !r.From.IsZero() {
		q.Set("from", r.From.Format(time.RFC3339Nano))
	}
	if !r.To.IsZero() {
		q.Set("until", r.To.Format(time.RFC3339Nano))
	}
	last := r.begin[stream]
	m := NewChain(func(seq int64) (wire.ChainEntry, error) { return r.Daemon.ChainEntry(ctx, seq) })
	for {
		if last > 0 {
			q.Set("after", strconv.FormatUint(last, 10))
		}
		for e, err := range r.Daemon.Chain(ctx, q) {
			if err == nil {
				err = r.entry(ctx, m, e, stream)
			}
			if r.Follow && errors.Is(err, fault.Unavailable) {
				break // such as a restart of the daemon
			}
			if err != nil {
				return fmt.Errorf("export the audit log: %w", err)
			}
			last = uint64(e.Seq)
		}
		if !r.Follow {
			return nil
		}
		select {
		case <-time.After(r.Every):
		case <-ctx.Done():
			return nil
		}
	}
}

// entry passes on an entry of the audit log, and the steps of a run if the entry ends one.
func (r *reader) entry(ctx context.Context, m *Chain, e wire.ChainEntry, stream string) error {
	if r.Follow && e.Kind == "jail.created" && len(r.Jails) == 0 && r.Run == "" {
		r.jail(ctx, id.Jail(e.Jail))
	}
	s, err := m.Map(e)
	if err != nil {
		return err
	}
	if e.Kind == "run.ended" && e.Run != "" {
		actions, err := client.Collect(r.Daemon.RunActions(ctx, id.Run(e.Run)))
		if err != nil && !errors.Is(err, fault.NotFound) {
			return fmt.Errorf("read the steps of run %s: %w", e.Run, err)
		}
		steps, err := m.Steps(e, actions)
		if err != nil {
			return err
		}
		s.Spans = append(s.Spans, steps.Spans...)
	}
	return r.put(ctx, item{s, stream, uint64(e.Seq)})
}
