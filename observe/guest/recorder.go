package guest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/observe"
	"glasshouse/observe/event"
)

const (
	// bufferSize is the size of the buffer. 16 MiB are about 50 000 system calls.
	bufferSize = 16 << 20

	// goneAfter is the time without a request after which the daemon counts as dead. The jail is not
	// throttled then.
	goneAfter = 5 * time.Second

	// A read waits until some events can be sent together: gatherCount events, or those of gatherTime.
	gatherCount = 200
	gatherTime  = 20 * time.Millisecond

	// settleTime limits the wait for the daemon before the machine is frozen or switched off.
	settleTime = 8 * time.Second

	maxBegins = 1 << 16
)

// A Recorder records the events of the jail in its machine, on behalf of the daemon. It implements
// observe.Sink for the source of these events, and is safe for concurrent use.
type Recorder struct {
	source observe.Source
	failed error // why the source does not work

	attaching sync.Mutex // held while the recording starts or ends; locked before mu

	mu sync.Mutex
	// +checklocks:mu
	target *observe.Target // nil before the jail exists
	// +checklocks:mu
	watch observe.Watch
	// +checklocks:mu
	buf *buffer
	// +checklocks:mu
	lost [len(sources)]int64 // events that did not fit into the buffer, by type; unknown if negative
	// +checklocks:mu
	line []byte

	// +checklocks:mu
	owner string
	// +checklocks:mu
	anchor anchor
	// +checklocks:mu
	delivered uint64 // position of the last event that a daemon has appended to its log

	// +checklocks:mu
	state string
	// +checklocks:mu
	seen string // the last state that the daemon has received
	// +checklocks:mu
	reads int // reads in progress
	// +checklocks:mu
	lastRead time.Time
	// +checklocks:mu
	changed chan struct{} // closed at a change
	// +checklocks:mu
	wakeAt uint64 // position at which a read is woken
	// +checklocks:mu
	hurry uint64 // position up to which events are sent without delay, because a request waits for them

	// +checklocks:mu
	clock hostClock
	// +checklocks:mu
	lastNS int64 // time of the last event
	// +checklocks:mu
	begins map[begin]int64 // start times of processes on the host's clock
}

// A begin identifies a process or thread by its start time on the machine's clock.
type begin struct {
	tid int32
	ns  int64
}

// NewRecorder returns a recorder with a source, and loads the programs of that. It takes a second with
// an emulated processor, so it is done before the machine becomes a template.
func NewRecorder(source observe.Source) (*Recorder, error) {
	buf, err := newBuffer(bufferSize)
	if err != nil {
		return nil, err
	}
	return &Recorder{source: source, failed: source.Probe(context.Background()), buf: buf, changed: make(chan struct{}), begins: map[begin]int64{}}, nil
}

// SetTarget sets the jail. Its Freeze and Thaw work in addition to those of the daemon.
func (r *Recorder) SetTarget(t observe.Target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target = &t
}

// SetClock sets the clock of the host, after the machine was frozen or restored.
func (r *Recorder) SetClock(now int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clock = hostClock{}
	r.clock.adjust(now)
}

// A hostClock converts the clock of the machine to that of the host.
type hostClock struct {
	offset  int64
	recent  [4]int64 // offsets that requests of the daemon have shown. Each is too low by the time of its way.
	entries int
}

// adjust takes account of the host's clock in a request.
func (c *hostClock) adjust(now int64) {
	if now == 0 {
		return
	}
	c.recent[c.entries%len(c.recent)] = now - observe.Now()
	c.entries++
	c.offset = slices.Max(c.recent[:min(c.entries, len(c.recent))])
}

// Append implements observe.Sink.
func (r *Recorder) Append(e *event.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reportLost()
	c := *e
	c.Seq = 0
	// The offset of the clock can decrease between two events.
	c.NS = max(c.NS+r.clock.offset, r.lastNS)
	r.lastNS = c.NS
	if c.Begin != 0 {
		c.Begin = r.beginOf(&c)
	}
	if c.Type == event.Gap && c.Lost != 0 {
		if i := slices.Index(sources[:], c.Source); i >= 0 && !r.put(&c) {
			r.count(i, c.Lost)
		}
		return
	}
	if !r.put(&c) {
		r.count(slices.Index(sources[:], c.Type), 1)
	}
}

// beginOf returns the start time of a process on the host's clock. It is the same in each event of the
// process, although the offset of the clocks changes.
//
// +checklocks:r.mu
func (r *Recorder) beginOf(e *event.Event) int64 {
	key := begin{e.HostPID, e.Begin}
	ns, ok := r.begins[key]
	if !ok {
		if len(r.begins) >= maxBegins { // the ends of processes were lost
			clear(r.begins)
		}
		ns = e.Begin + r.clock.offset
		r.begins[key] = ns
	}
	if e.Op == event.OpExit {
		delete(r.begins, key)
	}
	return ns
}

// put adds an event to the buffer and reports whether it fits.
//
// +checklocks:r.mu
func (r *Recorder) put(e *event.Event) bool {
	r.line = append(e.AppendJSON(r.line[:0]), '\n')
	if len(r.line) > maxLine { // only arguments are that long
		e.Argv, e.Flags = nil, e.Flags|event.Cut
		r.line = append(e.AppendJSON(r.line[:0]), '\n')
	}
	if !r.buf.put(r.line) {
		return false
	}
	if r.buf.last >= r.wakeAt {
		r.wake()
	}
	return true
}

// +checklocks:r.mu
func (r *Recorder) count(i int, n int64) {
	if i < 0 {
		i = 0
	}
	if n < 0 || r.lost[i] < 0 {
		r.lost[i] = -1
		return
	}
	r.lost[i] += n
}

// reportLost records gaps for the events that did not fit, if there is room.
//
// +checklocks:r.mu
func (r *Recorder) reportLost() {
	for i, n := range r.lost {
		if n == 0 {
			continue
		}
		ns := max(observe.Now()+r.clock.offset, r.lastNS)
		if r.put(&event.Event{Type: event.Gap, NS: ns, FD: -1, Source: sources[i], Lost: n, Reason: "the buffer of the virtual machine was full"}) {
			r.lost[i], r.lastNS = 0, ns
		}
	}
}

// wake wakes all requests that wait for a change.
//
// +checklocks:r.mu
func (r *Recorder) wake() {
	close(r.changed)
	r.changed, r.wakeAt = make(chan struct{}), ^uint64(0)
}

// connected reports whether a daemon reads.
//
// +checklocks:r.mu
func (r *Recorder) connected() bool {
	return r.reads > 0 || !r.lastRead.IsZero() && time.Since(r.lastRead) < goneAfter
}

// HasRoom implements observe.Sink. Without a daemon the jail runs on, and events that do not fit are
// counted.
func (r *Recorder) HasRoom() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	// The source appends many events before it asks again.
	return r.buf.used() < len(r.buf.mem)/2 || !r.connected()
}

// Last implements observe.Sink.
func (r *Recorder) Last() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.last
}

// Written implements observe.Sink. The buffer exists as long as the machine.
func (r *Recorder) Written() uint64 { return r.Last() }

// FlushSoon implements observe.Sink.
func (r *Recorder) FlushSoon() {}

// Kept implements observe.Sink. No other recorder was here before.
func (r *Recorder) Kept(int64, event.Type, func(*event.Event)) error { return nil }

// ServeHTTP serves a request of the daemon.
func (r *Recorder) ServeHTTP(w http.ResponseWriter, hr *http.Request) {
	var q request
	err := json.NewDecoder(io.LimitReader(hr.Body, maxRequest)).Decode(&q)
	if err != nil {
		err = fault.New(fault.Invalid, "guest.events", hr.URL.Path, err)
	}
	var a answer
	if err == nil {
		err = fault.Catch(func() error {
			var err error
			a, err = r.serve(hr.Context(), q)
			return err
		})()
	}
	if err != nil {
		a = answer{header: header{Kind: fault.KindOf(err), Err: err.Error(), Remedy: fault.RemedyOf(err)}}
	}
	first, err := json.Marshal(a.header)
	if err != nil {
		panic(err) // strings and numbers
	}
	w.Write(append(first, '\n'))
	w.Write(a.lines)
}

func (r *Recorder) serve(ctx context.Context, q request) (a answer, err error) {
	r.mu.Lock()
	r.clock.adjust(q.Now)
	r.mu.Unlock()
	switch q.Op {
	case opAttach:
		return r.attach(ctx, q)
	case opSelect:
		return a, r.choose(q.Selection)
	case opRead:
		if q.Selection != nil {
			if err := r.choose(q.Selection); err != nil {
				return a, err
			}
		}
		return r.read(ctx, q), nil
	case opDrain:
		a.Last, err = r.drain(ctx)
		return a, err
	case opDetach:
		return r.detach(ctx)
	}
	return a, fault.Newf(fault.Invalid, "guest.events", q.Op, "no such operation")
}

// attach starts the recording for an instance of the jail, or continues it.
func (r *Recorder) attach(ctx context.Context, q request) (a answer, err error) {
	const op = "guest.attach"
	if r.failed != nil {
		return a, r.failed
	}
	if q.Selection == nil || q.Owner == "" {
		return a, fault.Newf(fault.Invalid, op, q.Owner, "the request has no selection or owner")
	}
	r.attaching.Lock()
	defer r.attaching.Unlock()
	r.mu.Lock()
	t, watch, owned := r.target, r.watch, r.owner == q.Owner
	r.mu.Unlock()
	switch {
	case t == nil:
		return a, fault.Newf(fault.Conflict, op, q.Owner, "the jail is not set up")
	case watch != nil:
		if err := watch.Select(*q.Selection); err != nil {
			return a, err
		}
	default:
		next := *t
		next.Selection, next.Resumed = *q.Selection, q.Resumed
		watch, err = r.source.Attach(ctx, next, r)
		if err != nil {
			return a, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watch, r.lastRead = watch, time.Now() // the daemon is about to read
	if !owned {
		// The events up to there are in the log of the jail that the snapshot was taken of.
		r.owner, r.anchor = q.Owner, anchor{r.delivered, q.Written.Seq, q.Written.NS}
		r.buf.drop(r.delivered)
	}
	a.Owned, a.Anchor, a.Delivered, a.Last = owned, r.anchor, r.delivered, r.buf.last
	return a, nil
}

// current returns the watch of the jail.
func (r *Recorder) current() (observe.Watch, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watch == nil {
		return nil, fault.Newf(fault.Conflict, "guest.events", "", "the jail is not recorded")
	}
	return r.watch, nil
}

func (r *Recorder) choose(s *event.Selection) error {
	w, err := r.current()
	if err != nil {
		return err
	}
	if s == nil {
		return fault.Newf(fault.Invalid, "guest.select", "", "the request has no selection")
	}
	return w.Select(*s)
}

// +checklocks:r.mu
func (r *Recorder) endRead() { r.reads, r.lastRead = r.reads-1, time.Now() }

// read returns the events after a position. It waits until there are some, or until the state
// changes.
func (r *Recorder) read(ctx context.Context, q request) (a answer) {
	if w, err := r.current(); err == nil { // before r.mu is locked: the watch locks it
		st := w.Status()
		a.Throttled, a.Trouble = st.Throttled, st.Err
	}
	end := time.After(min(time.Duration(q.WaitMS)*time.Millisecond, time.Minute))
	var gathered <-chan time.Time
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads++
	defer r.endRead()
	if q.Written.Position >= r.anchor.Position {
		r.anchor = q.Written
		r.buf.drop(q.Written.Position)
	}
	r.delivered = min(max(r.delivered, q.After), r.buf.last)
	r.seen = q.Seen
	r.wake() // those that wait for the delivery, or for room
	over := q.WaitMS <= 0
	for {
		r.reportLost()
		more := !q.Full && r.buf.last > q.After
		done := r.state != q.Seen && r.buf.last <= q.After
		if over || done || more && (q.After < r.hurry || r.state != running || r.buf.last >= q.After+gatherCount) {
			break
		}
		r.wakeAt = q.After + 1
		if q.Full {
			r.wakeAt = ^uint64(0)
		}
		if more {
			r.wakeAt = q.After + gatherCount
			if gathered == nil {
				gathered = time.After(gatherTime)
			}
		}
		changed := r.changed
		r.mu.Unlock()
		select {
		case <-changed:
		case <-gathered:
			over = true
		case <-end:
			over = true
		case <-ctx.Done():
			over = true
		}
		r.mu.Lock()
	}
	if !q.Full {
		lines, n := r.buf.after(q.After, batchSize)
		a.lines, a.Events = slices.Clone(lines), n
	}
	a.Last = r.buf.last
	if q.After+uint64(a.Events) >= r.buf.last {
		a.State = r.state
	}
	return a
}

// drain waits until all events are in the buffer, and returns the position of the last one.
func (r *Recorder) drain(ctx context.Context) (uint64, error) {
	w, err := r.current()
	if err != nil {
		return 0, err
	}
	if err := w.Drain(ctx); err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.hasten()
	for r.lost != [len(sources)]int64{} { // there is no room for gaps before the daemon has written events
		changed := r.changed
		r.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		r.mu.Lock()
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		last = r.hasten()
	}
	return last, nil
}

func (r *Recorder) detach(context.Context) (a answer, err error) {
	r.attaching.Lock()
	defer r.attaching.Unlock()
	w, err := r.current()
	if err != nil {
		return a, err
	}
	err = w.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watch = nil
	a.Last = r.hasten()
	return a, err
}

// hasten makes a read return the events so far, and returns the position of the last one.
//
// +checklocks:r.mu
func (r *Recorder) hasten() uint64 {
	r.reportLost()
	r.hurry = r.buf.last
	r.wake()
	return r.buf.last
}

// Freeze is called when all processes of the jail are frozen. It waits until the daemon has all
// events.
func (r *Recorder) Freeze(ctx context.Context) error { return r.settle(ctx, frozen) }

// End is called when all processes of the jail have ended. It waits until the daemon has all events.
func (r *Recorder) End(ctx context.Context) error { return r.settle(ctx, ended) }

// Thaw is called before the processes of the jail are thawed.
func (r *Recorder) Thaw() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state, r.seen = running, running
	r.wake()
}

func (r *Recorder) settle(ctx context.Context, state string) error {
	w, err := r.current()
	if errors.Is(err, fault.Conflict) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	if err := w.Drain(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = state
	for {
		r.hasten()
		if r.seen == state && r.delivered >= r.buf.last && r.lost == [len(sources)]int64{} {
			return nil
		}
		if !r.connected() {
			return nil // the daemon is gone, and a later one reads the events if the machine still runs
		}
		changed := r.changed
		r.mu.Unlock()
		select {
		case <-changed:
		case <-time.After(goneAfter): // to notice that the daemon is gone
		case <-ctx.Done():
		}
		r.mu.Lock()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}
