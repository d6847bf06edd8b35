package guest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"
	"glasshouse/observe"
	"glasshouse/observe/event"
)

// Config configures a Source.
type Config struct {
	Dir string       // {DATA}/jails
	Log *slog.Logger // default: discard
}

// A Source observes jails in virtual machines. It implements observe.Source.
type Source struct {
	cfg Config

	mu sync.Mutex
	// +checklocks:mu
	read map[string]uint64 // positions up to which watches that are released have read, by owner
}

var (
	_ observe.Source    = (*Source)(nil)
	_ observe.Collector = (*Source)(nil)
)

// New returns a source. It has no side effects.
func New(cfg Config) *Source {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Source{cfg: cfg, read: map[string]uint64{}}
}

// Name implements observe.Source.
func (s *Source) Name() string { return "guest" }

// Probe implements observe.Source. Whether events can be recorded depends on the kernel of the
// machine, and Attach reports it.
func (s *Source) Probe(context.Context) error { return nil }

// Close implements observe.Source.
func (s *Source) Close() error { return nil }

const (
	// readWait is how long the machine waits for events.
	readWait = 2 * time.Second

	// answerTime limits the time of a request in addition to that. It is much longer than the
	// machine needs, because an emulated processor on a busy host is slow.
	answerTime = 30 * time.Second

	// closeTime limits the end of the recording in a machine that runs on.
	closeTime = 10 * time.Second

	// anchorSlack is more than an event can be older than those before it.
	anchorSlack = int64(10 * time.Second)

	// unwrittenWait is the same while the log is being written, so that the machine gets room soon.
	unwrittenWait = 100 * time.Millisecond

	// retryTime is the interval between requests that fail, and between those that return nothing
	// too early.
	retryTime = 50 * time.Millisecond
)

const (
	endedReason  = "the virtual machine ended before it had sent its last events"
	absentReason = "the virtual machine ended while no daemon was running"
)

// Attach implements observe.Source. A frozen machine does not answer, so the recording in it starts
// or continues when it is thawed.
func (s *Source) Attach(ctx context.Context, t observe.Target, sink observe.Sink) (observe.Watch, error) {
	const op = "guest.Attach"
	if t.Events == nil {
		return nil, fault.Newf(fault.Unsupported, op, string(t.Jail), "the jail does not run in a virtual machine")
	}
	w := &watch{source: s, target: t, sink: sink, done: make(chan struct{}), changed: make(chan struct{}), selection: t.Selection}
	if err := w.writeMark(t.Selection); err != nil {
		return nil, err
	}
	if err := w.attach(ctx, false); err != nil && !errors.Is(err, fault.Conflict) {
		return nil, errors.Join(err, os.Remove(w.mark()))
	}
	w.ctx, w.cancel = context.WithCancel(context.WithoutCancel(ctx)) // it outlives the request that attaches
	go w.run()
	return w, nil
}

// mark returns the name of a file that exists while the recording of an instance is incomplete. It contains
// the selection.
func (w *watch) mark() string { return filepath.Join(w.target.Dir, markPrefix+string(w.instance())) }

const markPrefix = "recording-"

func (w *watch) writeMark(s event.Selection) error {
	data, err := json.Marshal(s)
	if err == nil {
		err = os.WriteFile(w.mark(), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("mark the recording of %s: %w", w.target.Jail, err)
	}
	return nil
}

// Collect implements observe.Collector. The events of a machine that ended without a daemon are lost.
func (s *Source) Collect(jail id.Jail, sink observe.Sink) error {
	names, err := filepath.Glob(filepath.Join(s.cfg.Dir, string(jail), markPrefix+"*"))
	for _, name := range names {
		var selection event.Selection // everything, if a power failure has damaged the file
		data, readErr := os.ReadFile(name)
		json.Unmarshal(data, &selection)
		gap(sink, selection, absentReason)
		err = errors.Join(err, readErr, os.Remove(name))
	}
	return err
}

// gap records that an unknown number of events is missing.
func gap(sink observe.Sink, s event.Selection, reason string) {
	s = s.Defaults(event.Selection{})
	for _, of := range sources {
		if of == event.Syscall && s.Syscalls == "off" && len(s.Allow) == 0 || of == event.File && s.Files == "off" {
			continue
		}
		sink.Append(&event.Event{Type: event.Gap, TS: time.Now().UnixMilli(), NS: observe.Now(), FD: -1, Source: of, Lost: -1, Reason: reason})
	}
}

// A watch reads the events of one instance of a jail. It implements observe.Watch.
type watch struct {
	source *Source
	target observe.Target
	sink   observe.Sink
	ctx    context.Context // of the reader
	cancel context.CancelFunc
	done   chan struct{} // closed when the reader has ended

	mu sync.Mutex
	// +checklocks:mu
	attached bool
	// +checklocks:mu
	selection event.Selection
	// +checklocks:mu
	unapplied bool // the machine does not have the selection yet
	// +checklocks:mu
	after uint64 // position of the last event that was appended
	// +checklocks:mu
	unwritten []anchor // of events that the log has not written yet, oldest first
	// +checklocks:mu
	written anchor
	// +checklocks:mu
	state string // of the machine after the last event
	// +checklocks:mu
	changed chan struct{} // closed when after or state changes
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	seen, lost, throttled uint64
	// +checklocks:mu
	trouble string // why recording in the machine has stopped
	// +checklocks:mu
	failures int // consecutive failed requests. One fails each time that the machine is frozen.
	// +checklocks:mu
	failure string // why the last request has failed

	event event.Event // of the reader
}

func (w *watch) instance() id.Jail { return cmp.Or(w.target.Instance, w.target.Jail) }

// owner identifies the log and the instance. Each restored machine is a new instance.
func (w *watch) owner() string { return fmt.Sprintf("%s/%s", w.target.Jail, w.instance()) }

// request sends a request to the machine. If the machine is frozen, it waits or returns
// fault.Conflict. It returns fault.NotFound if the machine has ended.
func (w *watch) request(ctx context.Context, q request, wait bool) (answer, error) {
	q.Now = observe.Now()
	body, err := json.Marshal(q)
	if err != nil {
		return answer{}, err
	}
	stream, err := w.target.Events(ctx, body, wait)
	if err != nil {
		return answer{}, err
	}
	defer stream.Close()
	a, err := readAnswer(stream)
	if err == nil && a.Err != "" {
		err = &fault.Error{Op: "guest." + q.Op, On: string(w.target.Jail), Kind: kindOf(a.Kind),
			Err: errors.New(text.ForTerminal(text.Clip(a.Err, 1000))), Remedy: text.ForTerminal(text.Clip(a.Remedy, 300))}
	}
	return a, err
}

// kindOf returns the kind of an error of the machine. Two kinds have a meaning that the machine does not
// decide about.
func kindOf(k fault.Kind) fault.Kind {
	if k == fault.Unsupported {
		return k
	}
	return fault.Unavailable
}

// attach starts or continues the recording in the machine.
func (w *watch) attach(ctx context.Context, wait bool) error {
	w.mu.Lock()
	selection := w.selection
	w.mu.Unlock()
	if !wait {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, answerTime)
		defer cancel()
	}
	now := anchor{Seq: w.sink.Last(), NS: observe.Now()}
	a, err := w.request(ctx, request{Op: opAttach, Owner: w.owner(), Resumed: w.target.Resumed, Selection: &selection, Written: now}, wait)
	if err != nil {
		return err
	}
	after, written := a.Delivered, anchor{a.Delivered, now.Seq, now.NS}
	if known, ok := w.source.forget(w.owner()); a.Owned && ok { // the log need not be written yet
		after, written = known, a.Anchor
	} else if a.Owned {
		n, err := w.count(a.Anchor)
		if err != nil {
			return err
		}
		after = a.Anchor.Position + n
		written = anchor{after, now.Seq, min(now.NS, a.Anchor.NS)}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	// A later selection is applied by the next read.
	w.attached, w.after, w.written = true, min(after, a.Last), written
	w.notify()
	return nil
}

// forget returns and removes the position up to which a released watch has read.
func (s *Source) forget(owner string) (position uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	position, ok = s.read[owner]
	delete(s.read, owner)
	return position, ok
}

// count returns the number of events of the machine that the log has after an anchor.
func (w *watch) count(a anchor) (n uint64, err error) {
	for _, of := range append([]event.Type{event.Gap}, sources[:]...) {
		err := w.sink.Kept(a.NS-anchorSlack, of, func(e *event.Event) {
			if e.Seq > a.Seq && e.Flags&event.Guest != 0 {
				n++
			}
		})
		if err != nil {
			return 0, fmt.Errorf("read the log of %s: %w", w.target.Jail, err)
		}
	}
	return n, nil
}

// run reads until the watch is closed or the machine has ended.
func (w *watch) run() {
	defer close(w.done)
	for w.ctx.Err() == nil {
		began := time.Now()
		n, over, err := w.round()
		if over {
			return
		}
		if err != nil && w.ctx.Err() == nil {
			w.fail(err)
		}
		if err != nil || n == 0 && time.Since(began) < retryTime/5 {
			select {
			case <-time.After(retryTime):
			case <-w.ctx.Done():
			}
		}
	}
}

// round attaches or reads once. It returns the number of events, and whether no other ones follow.
func (w *watch) round() (n int, over bool, err error) {
	w.mu.Lock()
	attached := w.attached
	w.mu.Unlock()
	if attached {
		n, over, err = w.read()
	} else {
		err = w.attach(w.ctx, true)
	}
	return n, over || errors.Is(err, fault.NotFound), err
}

func (w *watch) read() (n int, over bool, err error) {
	q := request{Op: opRead, WaitMS: readWait.Milliseconds()}
	w.mu.Lock()
	w.confirm()
	q.After, q.Written, q.Seen = w.after, w.written, w.state
	if w.unapplied {
		q.Selection = new(w.selection)
	}
	if len(w.unwritten) > 0 {
		q.WaitMS = unwrittenWait.Milliseconds()
	}
	w.mu.Unlock()
	q.Full = !w.sink.HasRoom()
	if q.Full {
		q.WaitMS = retryTime.Milliseconds()
	}
	if q.Seen == ended {
		q.WaitMS = 0 // only to confirm it
	}
	a, err := w.request(w.ctx, q, true)
	if err != nil {
		return 0, q.Seen == ended, err
	}
	if q.Full && a.Events > 0 || q.After+uint64(a.Events) > a.Last {
		return 0, false, errMalformed
	}
	lost := w.append(a)

	w.mu.Lock()
	defer w.mu.Unlock()
	w.after += uint64(a.Events)
	w.seen += uint64(a.Events)
	w.lost += lost
	w.throttled, w.trouble = a.Throttled, text.ForTerminal(text.Clip(a.Trouble, 1000))
	w.failures, w.failure = 0, ""
	w.state = a.State
	if len(a.lines) > batchSize/2 {
		w.sink.FlushSoon()
	}
	if a.Events > 0 {
		w.unwritten = append(w.unwritten, anchor{w.after, w.sink.Last(), w.event.NS})
	}
	if q.Selection != nil && reflect.DeepEqual(*q.Selection, w.selection) {
		w.unapplied = false
	}
	w.notify()
	return a.Events, q.Seen == ended && a.State == ended, nil
}

// append appends the events of an answer to the log. It returns the number of events that they report as
// missing.
func (w *watch) append(a answer) (lost uint64) {
	now := observe.Now()
	wall := time.Now().UnixNano() - now
	rest := a.lines
	for range a.Events {
		n := 0
		for rest[n] != '\n' {
			n++
		}
		if !parseEvent(rest[:n], &w.event, now, wall) {
			w.source.cfg.Log.Debug("a virtual machine sent an event that is not valid", "jail", w.target.Jail)
		}
		if w.event.Type == event.Gap {
			lost += uint64(max(w.event.Lost, 0))
		}
		w.sink.Append(&w.event)
		rest = rest[n+1:]
	}
	return lost
}

// confirm determines up to which position the log is written.
//
// +checklocks:w.mu
func (w *watch) confirm() {
	written := w.sink.Written()
	for len(w.unwritten) > 0 && w.unwritten[0].Seq <= written {
		w.written, w.unwritten = w.unwritten[0], w.unwritten[1:]
	}
}

// +checklocks:w.mu
func (w *watch) notify() {
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *watch) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures++
	if w.failures > 1 && w.failure != err.Error() {
		w.failure = err.Error()
		w.source.cfg.Log.Warn("cannot read the events of a virtual machine", "jail", w.target.Jail, "err", err)
	}
}

// await waits until the events up to a position are appended.
func (w *watch) await(ctx context.Context, position uint64) error {
	for {
		w.mu.Lock()
		done, changed := w.after >= position, w.changed
		w.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-w.done:
			return fault.Newf(fault.Unavailable, "guest.Drain", string(w.target.Jail), "the virtual machine has not sent all events")
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// complete reports whether the machine makes no more events before it is thawed, and all are appended.
func (w *watch) complete() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.attached && w.state != running
}

// Drain implements observe.Watch. A machine sends all its events before it is frozen.
func (w *watch) Drain(ctx context.Context) error {
	a, err := w.request(ctx, request{Op: opDrain}, false)
	for err != nil && !errors.Is(err, fault.NotFound) && !errors.Is(err, fault.Conflict) && w.attaches(ctx) {
		a, err = w.request(ctx, request{Op: opDrain}, false)
	}
	switch {
	case errors.Is(err, fault.NotFound):
		select {
		case <-w.done: // it reads what the machine has sent before it ended
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	case errors.Is(err, fault.Conflict):
		w.mu.Lock()
		attached := w.attached
		w.mu.Unlock()
		if attached && !w.complete() {
			return fault.Newf(fault.Unavailable, "guest.Drain", string(w.target.Jail), "the virtual machine was frozen before it had sent all events")
		}
		return nil
	case err != nil:
		return err
	}
	return w.await(ctx, a.Last)
}

// attaches waits for a restored machine that was just thawed. It returns false if the watch was attached
// before.
func (w *watch) attaches(ctx context.Context) bool {
	w.mu.Lock()
	attached, changed := w.attached, w.changed
	w.mu.Unlock()
	if attached {
		return false
	}
	select {
	case <-changed:
		return true
	case <-w.done:
	case <-ctx.Done():
	}
	return false
}

// Select implements observe.Watch. A frozen machine gets the selection when it is thawed.
func (w *watch) Select(sel event.Selection) error {
	w.mu.Lock()
	w.selection, w.unapplied = sel, true
	w.mu.Unlock()
	if err := w.writeMark(sel); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(w.ctx, answerTime)
	defer cancel()
	_, err := w.request(ctx, request{Op: opSelect, Selection: &sel}, false)
	if errors.Is(err, fault.Conflict) || errors.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("change the selection of jail %s: %w", w.target.Jail, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unapplied = !reflect.DeepEqual(sel, w.selection)
	return nil
}

// Mute implements observe.Watch. A checkpoint of a machine executes nothing in its processes, so there
// is nothing to mark.
func (w *watch) Mute(bool) error { return nil }

// Status implements observe.Watch.
func (w *watch) Status() observe.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return observe.Status{Seen: w.seen, Lost: w.lost, Throttled: w.throttled, Err: cmp.Or(w.trouble, w.failure)}
}

// Release implements observe.Watch. The machine records on.
func (w *watch) Release() error {
	if w.finish() {
		w.source.mu.Lock()
		defer w.source.mu.Unlock()
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.attached {
			w.source.read[w.owner()] = w.after
		}
	}
	return nil
}

// finish ends the reader. Only the first call returns true.
func (w *watch) finish() bool {
	w.mu.Lock()
	first := !w.closed
	w.closed = true
	w.mu.Unlock()
	w.cancel()
	<-w.done
	return first
}

// Close implements observe.Watch.
func (w *watch) Close() error {
	w.mu.Lock()
	closed := w.closed
	w.mu.Unlock()
	if closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(w.ctx, closeTime)
	defer cancel()
	a, err := w.request(ctx, request{Op: opDetach}, false)
	for errors.Is(err, fault.Unavailable) && ctx.Err() == nil { // the machine is about to end, or is slow
		time.Sleep(retryTime)
		a, err = w.request(ctx, request{Op: opDetach}, false)
	}
	detached := err == nil
	switch {
	case detached:
		err = w.await(ctx, a.Last)
	case errors.Is(err, fault.NotFound):
		select { // until the events that have arrived are appended
		case <-w.done:
			err = nil
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	case errors.Is(err, fault.Conflict):
		err = nil
	}
	frozen := !detached && err == nil
	if !w.finish() {
		return nil
	}
	if frozen && !w.complete() {
		w.mu.Lock()
		selection, attached := w.selection, w.attached
		w.mu.Unlock()
		if attached {
			gap(w.sink, selection, endedReason)
		}
	}
	if rmErr := os.Remove(w.mark()); !errors.Is(rmErr, os.ErrNotExist) {
		err = errors.Join(err, rmErr)
	}
	return err
}
