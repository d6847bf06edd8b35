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

	"glasshouse/event"
	"glasshouse/id"
	"glasshouse/observe"
)

// A watch is one jail's. One goroutine reads the sandbox's points, all others
// only ask it for something. It implements observe.Watch.
type watch struct {
	source *Source
	target observe.Target // its Selection is the first one; selection is the present one
	sink   observe.Sink
	pidfd  int // of the sandbox
	bell   int // an eventfd: the goroutine is to look around
	book   *book
	done   chan struct{} // closed when the goroutine has ended

	making sync.Mutex // held while sessions are made or removed; before mu
	// +checklocks:making
	selection event.Selection
	// +checklocks:making
	closed bool

	mu       sync.Mutex // guards what follows
	changed  sync.Cond
	queue    []*session      // to be read when the present one ends
	coming   bool            // another one is on its way
	stop     stop            // what to do when nothing is left to read
	drains   []chan struct{} // asked for
	throttle uint64
	trouble  error

	final    atomic.Uint32 // points dropped when the session was removed
	seen     atomic.Uint64
	lost     atomic.Uint64
	muteFrom atomic.Int64 // monotonic
	muteTo   atomic.Int64
}

type stop int

const (
	goOn   stop = iota
	atEnd       // when the session has ended
	atOnce      // when nothing is there to read
)

// A session is one connection of the sandbox to us.
type session struct {
	conn    *conn
	choice  *choice
	dropped uint32 // points so far
	gap     string // why something is missing before it
	began   int64  // wall time before it was made

	residents chan []resident // one answer; nil is none
}

var _ observe.Watch = (*watch)(nil)

// name is what runsc knows the jail by.
func (w *watch) name() id.Jail { return cmp.Or(w.target.Body, w.target.Jail) }

// establish makes a session, which may replace one that is there. The caller holds making.
//
// +checklocks:w.making
func (w *watch) establish(ctx context.Context, replace bool) (*session, error) {
	ps, err := w.source.known(ctx)
	if err != nil {
		return nil, err
	}
	c, err := newChoice(w.selection.Defaults(event.Selection{}), ps, inherited+doorName)
	if err != nil {
		return nil, err
	}
	d, err := openDoor(w.target.Dir)
	if err != nil {
		return nil, fmt.Errorf("make a socket for gVisor: %w", err)
	}
	defer w.shut(d)
	s := &session{choice: c, began: time.Now().UnixNano(), residents: make(chan []resident, 1)}
	if s.conn, err = w.source.runsc.create(ctx, w.name(), d, c.session, replace); err != nil {
		return nil, err
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), answerTime)
		defer cancel()
		all, err := w.source.runsc.residents(ctx, w.name())
		if err != nil && !w.dead(0) {
			w.fail(fmt.Errorf("list the processes that were there: %w", err))
		}
		s.residents <- all
	}()
	return s, nil
}

// shut closes the socket on which a session was made.
func (w *watch) shut(d io.Closer) {
	if err := d.Close(); err != nil {
		w.fail(err)
	}
}

// run reads session after session.
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

// next waits for the session to read next, or returns nil when the watch ends.
// Lost says that there was one, which has ended.
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

// recover is called when a session has ended without our doing: either the
// sandbox has, or somebody has removed it.
func (w *watch) recover() {
	w.book.clock.read()
	if w.dead(2 * time.Second) {
		w.book.end()
		w.publish()
		return
	}
	w.book.forget()
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	if !w.making.TryLock() {
		return // somebody makes another one, or ends the watch
	}
	defer w.making.Unlock()
	if w.closed { // +checklocksforce: TryLock, which the analyzer does not know, locked making
		return
	}
	s, err := w.establish(ctx, true)
	if err != nil {
		w.gap(-1, "gVisor's trace session was ended by somebody else, and there is no other")
		w.fail(fmt.Errorf("the trace session is gone: %w", err))
		return
	}
	s.gap = "gVisor's trace session was ended by somebody else"
	w.mu.Lock()
	w.queue = append(w.queue, s)
	w.mu.Unlock()
}

// dead reports whether the sandbox has ended, or ends soon.
func (w *watch) dead(soon time.Duration) bool {
	for end := time.Now().Add(soon); ; {
		left := max(0, time.Until(end))
		if ready, _ := wait(int(left.Milliseconds()), w.pidfd); ready || left == 0 {
			return ready
		}
	}
}

// grace is how long the detail of a call may come after the call. gVisor writes
// it at once; only a machine that is very busy, or a full socket, comes between.
const grace = 100 * time.Millisecond

// read records what comes of a session until it ends.
func (w *watch) read(s *session) {
	b := w.book
	b.choice = s.choice
	b.clock.read()
	if s.gap != "" {
		w.gap(-1, s.gap)
	}
	b.residents(<-s.residents, s.began)
	for {
		asked := w.asked()
		n, err := s.conn.receive()
		if err != nil {
			w.ended(s, err)
			return
		}
		if n > 0 {
			w.take(s, n)
			w.makeRoom(s)
			if n < slotCount {
				// More come, likely: what they cost the jail is less if nobody
				// has to be woken for them.
				time.Sleep(lull)
			}
			continue
		}
		if b.waiting == 0 && w.settled(asked) == atOnce {
			return
		}
		if err := w.wait(s.conn); err != nil {
			w.ended(s, err)
			return
		}
	}
}

// lull is how long points may lie before they are taken. Room is for those of
// many times as long.
const lull = 200 * time.Microsecond

// asked are the drains that were asked for until now.
func (w *watch) asked() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.drains)
}

// settled answers the first drains and says whether to stop.
func (w *watch) settled(drains int) stop {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range w.drains[:drains] {
		close(d)
	}
	w.drains = w.drains[drains:]
	return w.stop
}

// wait waits for points, or until there is something else to do.
func (w *watch) wait(c *conn) error {
	ms := -1
	if w.book.waiting > 0 {
		ms = int(grace.Milliseconds())
	}
	ready, err := wait(ms, c.fd, w.bell)
	if err != nil {
		return err
	}
	if !ready && ms > 0 {
		w.book.clock.read()
		w.book.settleAll()
	}
	var rung [8]byte
	unix.Read(w.bell, rung[:]) // does not wait, and fails if it has not been rung
	return nil
}

// kick has the goroutine look around. Called with mu held.
func (w *watch) kick() {
	w.changed.Broadcast()
	unix.Write(w.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// take records n messages. What gVisor dropped before the last of them is said
// before the first.
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
		b, whole := slots.message(i)
		k, _, payload, err := header(b)
		if err == nil && whole {
			err = p.parse(k, payload)
		}
		if err != nil || !whole {
			bad++
		} else {
			w.book.point(&p)
		}
		slots.release(i)
	}
	w.publish()
	if bad > 0 {
		w.gap(int64(bad), "points that gVisor sent could not be read")
		w.fail(errMalformed)
	}
}

// dropped notes how many points of a session were dropped so far.
func (w *watch) dropped(s *session, now uint32) {
	if n := now - s.dropped; n > 0 && n < math.MaxInt32 {
		s.dropped = now
		w.gap(int64(n), "gVisor could not deliver them in time; counted in points, of which a call has two or three")
	}
}

// gap records that something is missing. Only the goroutine may call it.
func (w *watch) gap(lost int64, why string) {
	w.book.gap(lost, why)
	w.publish()
}

// publish tells others how far the book is.
func (w *watch) publish() {
	w.seen.Store(w.book.records)
	w.lost.Store(w.book.lost)
}

// ended is called when a session has.
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

// makeRoom holds the jail while the log has no room: gVisor waits for us, and
// the jail for gVisor.
func (w *watch) makeRoom(s *session) {
	if !s.choice.hold || w.sink.Room() {
		return
	}
	w.mu.Lock()
	w.throttle++
	w.mu.Unlock()
	for !w.sink.Room() && !w.stopping() {
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
		close(d)
	}
	w.drains = nil
}

// Drain implements observe.Watch.
func (w *watch) Drain(ctx context.Context) error {
	d := make(chan struct{})
	w.mu.Lock()
	w.drains = append(w.drains, d)
	w.kick()
	w.mu.Unlock()
	select {
	case <-d:
		return nil
	case <-w.done: // which has read all that there was
		return nil
	case <-ctx.Done():
		return fmt.Errorf("drain the points of jail %s: %w", w.target.Jail, ctx.Err())
	}
}

// Select implements observe.Watch. gVisor cannot change a session, so another
// one takes its place; calls made in between are in neither, which a gap says.
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
		return fmt.Errorf("change what is recorded of jail %s: %w", w.target.Jail, err)
	}
	next.gap = "what is recorded was changed; calls made at that moment may be missing"
	w.mu.Lock()
	w.queue = append(w.queue, next)
	w.mu.Unlock()
	return nil
}

// expect says whether another session is about to be queued.
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
		return err
	}
	if !on {
		w.muteTo.Store(now.Nano())
		return nil
	}
	// What was done while it was muted before has to be recorded by now.
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	if err := w.Drain(ctx); err != nil {
		return err
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
			return nil // it ended meanwhile
		}
		return err
	}))
}

// Release implements observe.Watch. gVisor drops and counts what nobody reads.
func (w *watch) Release() error {
	return w.finish(atOnce, func() error { return nil })
}

// finish ends the watch, once.
func (w *watch) finish(how stop, remove func() error) error {
	w.making.Lock()
	defer w.making.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	w.mu.Lock()
	w.stop = how // before the session's end, which is no accident then
	w.mu.Unlock()
	err := remove()
	w.mu.Lock()
	if err != nil {
		w.stop = atOnce // no end will come
	}
	w.kick()
	w.mu.Unlock()
	<-w.done
	return errors.Join(err, unix.Close(w.pidfd), unix.Close(w.bell))
}
