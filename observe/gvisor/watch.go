package gvisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/id"
	"glasshouse/observe"
	"glasshouse/observe/event"
)

// A watch observes one jail. One goroutine reads the points of the sandbox; other goroutines
// send requests to it. It implements observe.Watch.
type watch struct {
	source *Source
	target observe.Target // its Selection is the initial one; selection is the current one
	sink   observe.Sink
	pidfd  int // pidfd of the sandbox process
	bell   int // an eventfd that wakes the goroutine
	book   *book
	done   chan struct{} // closed when the goroutine has ended

	making sync.Mutex // held while sessions are created or removed; locked before mu
	// +checklocks:making
	selection event.Selection
	// +checklocks:making
	closed bool

	mu       sync.Mutex // guards the fields below
	changed  sync.Cond
	queue    []*session // sessions to read after the current one
	coming   bool       // another session is being created
	stop     stop       // what to do when the queue is empty
	drains   []*drain   // requests, oldest first
	throttle uint64
	trouble  error

	final    atomic.Uint32 // points dropped when the session was removed
	seen     atomic.Uint64
	lost     atomic.Uint64
	muteFrom atomic.Int64 // monotonic time
	muteTo   atomic.Int64
}

type stop int

const (
	goOn   stop = iota
	atEnd       // when the session has ended
	atOnce      // when no point is available
)

// A session is one connection from the sandbox.
type session struct {
	conn    *conn
	choice  *choice
	dropped uint32 // dropped points so far
	gap     string // why events before it are missing
	began   int64  // wall time before it was created

	residents []resident
}

var _ observe.Watch = (*watch)(nil)

// name returns the container ID of the jail in runsc.
func (w *watch) name() id.Jail { return cmp.Or(w.target.Instance, w.target.Jail) }

// establish creates a session, which may replace an existing one. The caller holds making.
//
// +checklocks:w.making
func (w *watch) establish(ctx context.Context, replace bool) (*session, error) {
	ps, err := w.source.known(ctx)
	if err != nil {
		return nil, err
	}
	c, err := newChoice(w.selection.Defaults(event.Selection{}), ps, inherited+endpointName)
	if err != nil {
		return nil, err
	}
	d, err := openEndpoint(w.target.Dir)
	if err != nil {
		return nil, fmt.Errorf("create a socket for gVisor: %w", err)
	}
	defer w.shut(d)
	s := &session{choice: c, began: time.Now().UnixNano()}
	s.conn, err = w.source.runsc.create(ctx, w.name(), d, c.session, replace)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// shut closes the connection of a session.
func (w *watch) shut(d io.Closer) {
	if err := d.Close(); err != nil {
		w.fail(err)
	}
}

// run reads the sessions in order.
func (w *watch) run() {
	defer close(w.done)
	for s := w.next(false); s != nil; s = w.next(true) {
		w.read(s)
		if err := s.conn.Close(); err != nil {
			w.fail(err)
		}
		w.publish()
	}
	w.answer()
}

// next waits for the next session, or returns nil when the watch ends. lost is set if a
// session has ended.
func (w *watch) next(lost bool) *session {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		switch {
		case len(w.queue) > 0:
			s := w.queue[0]
			w.queue = w.queue[1:]
			return s
		case w.stop != goOn:
			return nil
		case w.coming:
			w.changed.Wait()
		case lost:
			lost = false
			w.mu.Unlock()
			w.recover()
			w.mu.Lock()
		default:
			w.answerLocked()
			w.changed.Wait()
		}
	}
}

// recover is called when a session ends unexpectedly: the sandbox has ended, or another
// process removed the session.
func (w *watch) recover() {
	w.book.clock.read()
	// An exiting process closes its descriptors before its pidfd becomes readable (do_exit in
	// kernel/exit.c), so the end of the session can precede the end of the sandbox.
	if w.dead(2 * time.Second) {
		w.book.end()
		w.publish()
		return
	}
	w.book.forget()
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	if !w.making.TryLock() {
		return // another goroutine is creating a session or closing the watch
	}
	defer w.making.Unlock()
	if w.closed { // +checklocksforce: TryLock, which the analyzer does not know, locked making
		return
	}
	s, err := w.establish(ctx, true)
	if err != nil {
		w.gap(-1, "another process ended gVisor's trace session, and a new one could not be created")
		w.fail(fmt.Errorf("the trace session has ended: %w", err))
		return
	}
	s.gap = "another process ended gVisor's trace session"
	w.mu.Lock()
	w.queue = append(w.queue, s)
	w.mu.Unlock()
}

// dead reports whether the sandbox has ended or is about to end.
func (w *watch) dead(soon time.Duration) bool {
	for end := time.Now().Add(soon); ; {
		left := max(0, time.Until(end))
		if ready, _ := wait(int(left.Milliseconds()), w.pidfd); ready || left == 0 {
			return ready
		}
	}
}

// A drain is a request to read all points that the sandbox has written.
type drain struct {
	done  chan struct{}
	empty int64 // monotonic time at which the socket was empty after the request; 0 if it was not
}

// How long the reader waits for the detail point of a call, after which it records the call
// without it. gVisor writes the point immediately, but a busy host may not run its thread for a
// while; then the call must not lose its details. A drain does not wait that long: the thread may be
// frozen.
const (
	detailTime = 10 * time.Second
	drainGrace = 100 * time.Millisecond
)

// read records the points of a session until it ends.
func (w *watch) read(s *session) {
	b := w.book
	b.choice = s.choice
	b.clock.read()
	if s.gap != "" {
		w.gap(-1, s.gap)
	}
	b.residents(s.residents, s.began)
	for {
		asked, hurry := w.asked()
		n, err := s.conn.receive()
		if err != nil {
			w.ended(s, err)
			return
		}
		if n > 0 {
			w.take(s, n)
			w.makeRoom(s)
		} else {
			b.clock.read()
		}
		patience := detailTime
		if hurry {
			patience = drainGrace
		}
		if len(b.held) > 0 {
			b.settleBefore(b.clock.now() - patience.Nanoseconds())
			w.publish()
		}
		if n == slotCount {
			continue
		}
		if w.settled(asked) == atOnce && len(b.held) == 0 {
			return
		}
		if n > 0 {
			// More points are likely to arrive soon. Polling is cheaper for the jail, because it
			// does not have to wake this thread.
			time.Sleep(lull)
			continue
		}
		if err := w.wait(s.conn, patience); err != nil {
			w.ended(s, err)
			return
		}
	}
}

// lull is the polling interval. The socket buffer has room for the points of many intervals.
const lull = 200 * time.Microsecond

// asked returns the number of drain requests, and whether a request waits for the reader.
func (w *watch) asked() (drains int, hurry bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.drains), len(w.drains) > 0 || w.stop != goOn
}

// settled is called when the socket is empty. It completes those of the first drain requests for
// which all calls have been recorded, and reports whether to stop.
func (w *watch) settled(drains int) stop {
	now, oldest := w.book.clock.now(), w.book.oldest()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range w.drains[:drains] {
		if d.empty == 0 {
			d.empty = now
		}
	}
	for len(w.drains) > 0 && w.drains[0].empty != 0 && w.drains[0].empty < oldest {
		close(w.drains[0].done)
		w.drains = w.drains[1:]
	}
	return w.stop
}

// wait waits for points or a request, or until the detail point of a call is overdue.
func (w *watch) wait(c *conn, patience time.Duration) error {
	ms := -1
	if len(w.book.held) > 0 {
		ms = int(patience.Milliseconds()) + 1
	}
	if _, err := wait(ms, c.fd, w.bell); err != nil {
		return fmt.Errorf("wait for points: %w", err)
	}
	var rung [8]byte
	unix.Read(w.bell, rung[:]) // does not block; it fails if the eventfd was not signalled
	return nil
}

// kick wakes the goroutine. The caller holds mu.
func (w *watch) kick() {
	w.changed.Broadcast()
	unix.Write(w.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// take records n messages. Points dropped before the last of them are reported in a gap before
// the first.
func (w *watch) take(s *session, n int) {
	w.book.clock.read()
	slots := &s.conn.slots
	for i := n - 1; i >= 0; i-- {
		b, _ := slots.message(i)
		if _, dropped, _, err := header(b); err == nil {
			w.dropped(s, dropped)
			break
		}
	}
	var p point
	bad := 0
	for i := range n {
		b, complete := slots.message(i)
		k, _, payload, err := header(b)
		if err == nil && complete {
			err = p.parse(k, payload)
		}
		if err != nil || !complete {
			bad++
		} else {
			w.book.point(&p)
		}
		slots.release(i)
	}
	w.publish()
	if bad > 0 {
		w.gap(int64(bad), "points from gVisor could not be decoded")
		w.fail(errMalformed)
	}
}

// dropped records the total number of dropped points of a session.
func (w *watch) dropped(s *session, now uint32) {
	if n := now - s.dropped; n > 0 && n < math.MaxInt32 {
		s.dropped = now
		w.gap(int64(n), "gVisor dropped points; the number counts points, and a call has two or three")
	}
}

// gap records lost events. Only the goroutine may call it.
func (w *watch) gap(lost int64, why string) {
	w.book.gap(lost, why)
	w.publish()
}

// publish makes the state of the book visible to other goroutines.
func (w *watch) publish() {
	w.seen.Store(w.book.records)
	w.lost.Store(w.book.lost)
}

// ended is called when a session has ended.
func (w *watch) ended(s *session, err error) {
	w.book.clock.read()
	if n := w.final.Swap(0); n != 0 {
		w.dropped(s, n)
	}
	w.book.settleAll()
	if errors.Is(err, io.EOF) {
		return
	}
	w.fail(fmt.Errorf("read gVisor's points: %w", err))
}

// makeRoom throttles the jail while the log has no room: gVisor waits for the reader, and the
// jail waits for gVisor.
func (w *watch) makeRoom(s *session) {
	if !s.choice.throttle || w.sink.HasRoom() {
		return
	}
	w.mu.Lock()
	w.throttle++
	w.mu.Unlock()
	for !w.sink.HasRoom() && !w.stopping() {
		time.Sleep(time.Millisecond)
	}
}

func (w *watch) stopping() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stop != goOn
}

func (w *watch) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.trouble == nil || w.trouble.Error() != err.Error() {
		w.source.log.Warn("watching a gVisor jail", "jail", w.target.Jail, "err", err)
	}
	w.trouble = err
}

func (w *watch) answer() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answerLocked()
}

func (w *watch) answerLocked() {
	for _, d := range w.drains {
		close(d.done)
	}
	w.drains = nil
}

// Drain implements observe.Watch.
func (w *watch) Drain(ctx context.Context) error {
	d := &drain{done: make(chan struct{})}
	w.mu.Lock()
	w.drains = append(w.drains, d)
	w.kick()
	w.mu.Unlock()
	select {
	case <-d.done:
		return nil
	case <-w.done: // all points were read
		return nil
	case <-ctx.Done():
		return fmt.Errorf("drain the points of jail %s: %w", w.target.Jail, ctx.Err())
	}
}

// Select implements observe.Watch. gVisor cannot change a session, so it is replaced. Calls
// between the two sessions are lost and reported in a gap.
func (w *watch) Select(s event.Selection) error {
	w.making.Lock()
	defer w.making.Unlock()
	if w.closed || w.dead(0) {
		return nil
	}
	w.expect(true)
	defer w.expect(false)
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	before := w.selection
	w.selection = s
	next, err := w.establish(ctx, true)
	if err != nil {
		w.selection = before
		return fmt.Errorf("change the selection of jail %s: %w", w.target.Jail, err)
	}
	next.gap = "the selection was changed; concurrent calls may be missing"
	w.mu.Lock()
	w.queue = append(w.queue, next)
	w.mu.Unlock()
	return nil
}

// expect sets whether another session is about to be queued.
func (w *watch) expect(coming bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.coming = coming
	w.changed.Broadcast()
}

// Mute implements observe.Watch.
func (w *watch) Mute(on bool) error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}
	if !on {
		w.muteTo.Store(now.Nano())
		return nil
	}
	// Events before the end of the previous Mute must be recorded first.
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	if err := w.Drain(ctx); err != nil {
		return fmt.Errorf("record the events before muting: %w", err)
	}
	w.muteTo.Store(math.MaxInt64)
	w.muteFrom.Store(now.Nano())
	return nil
}

func (w *watch) muted(ns int64) bool {
	from := w.muteFrom.Load()
	return from != 0 && from <= ns && ns < w.muteTo.Load()
}

// Status implements observe.Watch.
func (w *watch) Status() observe.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := observe.Status{Seen: w.seen.Load(), Lost: w.lost.Load(), Throttled: w.throttle}
	if w.trouble != nil {
		s.Err = w.trouble.Error()
	}
	return s
}

// Close implements observe.Watch.
func (w *watch) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	err := w.Drain(ctx)
	return errors.Join(err, w.finish(atEnd, func() error {
		if w.dead(0) {
			return nil
		}
		n, err := w.source.runsc.dropped(ctx, w.name())
		if err == nil {
			w.final.Store(n)
			err = w.source.runsc.remove(ctx, w.name())
		}
		if err != nil && w.dead(time.Second) {
			return nil // the sandbox ended meanwhile
		}
		return err
	}))
}

// Release implements observe.Watch. gVisor drops and counts points without a reader.
func (w *watch) Release() error {
	return w.finish(atOnce, func() error { return nil })
}

// finish ends the watch. Only the first call has an effect.
func (w *watch) finish(how stop, remove func() error) error {
	w.making.Lock()
	defer w.making.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	w.mu.Lock()
	w.stop = how // set before the session ends, so that the end is expected
	w.mu.Unlock()
	err := remove()
	w.mu.Lock()
	if err != nil {
		w.stop = atOnce // no end will be reported
	}
	w.kick()
	w.mu.Unlock()
	<-w.done
	return errors.Join(err, unix.Close(w.pidfd), unix.Close(w.bell))
}
