package ptrace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/observe"
	"glasshouse/observe/event"
)

// A Watch observes one jail with a thread that traces all its processes. Other goroutines send
// orders to the thread.
type Watch struct {
	target observe.Target
	log    *slog.Logger
	forget func()

	orders chan order
	tr     *tracer       // used only by the thread
	tid    int           // TID of the thread
	gone   chan struct{} // closed when the thread has detached from the jail
	once   sync.Once

	seen, throttled atomic.Uint64
	err             atomic.Pointer[string]
}

// An order is executed by the tracing thread between two stops.
type order struct {
	do   func()
	done chan struct{}
}

var errGone = errors.New("the jail is no longer watched")

func attach(ctx context.Context, t observe.Target, sink observe.Sink, log *slog.Logger, oldStyle bool) (*Watch, error) {
	const op = "ptrace.Attach"
	if err := hangBell(); err != nil {
		return nil, fmt.Errorf("%s: install the signal handler: %w", op, err)
	}
	w := &Watch{target: t, log: log, forget: func() {}, orders: make(chan order, 1), gone: make(chan struct{})}
	tr, err := newTracer(w, sink)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	tr.oldStyle = oldStyle
	w.tr = tr
	seized := make(chan error, 1)
	onOwnThread(func() {
		defer close(w.gone)
		w.tid = unix.Gettid()
		if err := tr.begin(ctx); err != nil {
			tr.letAllGo()
			seized <- err
			return
		}
		seized <- nil
		tr.run()
	})
	if err := <-seized; err != nil {
		<-w.gone
		w.awaitThread()
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return w, nil
}

// give makes the tracing thread execute do and waits for it.
func (w *Watch) give(ctx context.Context, do func()) error {
	o := order{do, make(chan struct{})}
	select {
	case w.orders <- o:
	case <-w.gone:
		return errGone
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	// A signal just before the thread starts to wait has no effect, so it is repeated.
	again := time.NewTicker(2 * time.Millisecond)
	defer again.Stop()
	for {
		ring(w.tid)
		select {
		case <-o.done:
			return nil
		case <-w.gone:
			return errGone
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-again.C:
		}
	}
}

// Select changes which events are recorded.
func (w *Watch) Select(s event.Selection) error {
	var err error
	if gone := w.give(context.Background(), func() { err = w.tr.choose(context.Background(), s) }); gone != nil {
		return fmt.Errorf("ptrace.Select: %w", gone)
	}
	return err
}

// Mute marks events. Tools such as CRIU cannot dump traced processes: the watch must be
// released before a dump and attached again afterwards.
func (w *Watch) Mute(on bool) error {
	if err := w.give(context.Background(), func() { w.tr.muted = on }); err != nil {
		return fmt.Errorf("ptrace.Mute: %w", err)
	}
	return nil
}

// Drain records everything that has happened in the jail and was not processed yet.
func (w *Watch) Drain(ctx context.Context) error {
	var err error
	if gone := w.give(ctx, func() { err = w.tr.drain(ctx) }); gone != nil {
		err = gone
	}
	if err != nil {
		return fmt.Errorf("ptrace.Drain: %w", err)
	}
	return nil
}

func (w *Watch) Status() observe.Status {
	s := observe.Status{Seen: w.seen.Load(), Throttled: w.throttled.Load()}
	if err := w.err.Load(); err != nil {
		s.Err = *err
	}
	return s
}

// Close detaches from the jail's processes. Nothing is left on the host, so it is equal to
// Release.
func (w *Watch) Close() error { return w.Release() }

// Release detaches from the jail's processes. Nothing is recorded without a daemon. The next
// Attach records a gap.
func (w *Watch) Release() error {
	w.once.Do(func() {
		w.give(context.Background(), func() { // no effect if the thread has ended already
			w.tr.drain(context.Background())
			w.tr.letAllGo()
		})
		<-w.gone
		w.awaitThread()
		w.forget()
	})
	return nil
}

// awaitThread waits for the end of the thread. The kernel then has detached the tasks that
// could not be stopped.
func (w *Watch) awaitThread() {
	for unix.Tgkill(unix.Getpid(), w.tid, 0) == nil {
		time.Sleep(time.Millisecond)
	}
}
