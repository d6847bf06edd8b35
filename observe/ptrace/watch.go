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

	"glasshouse/event"
	"glasshouse/observe"
)

// A Watch is this source at one jail: a thread that traces all its processes.
// Whoever wants something of it gives it an order.
type Watch struct {
	target observe.Target
	log    *slog.Logger
	forget func()

	orders chan order
	tr     *tracer       // its thread's alone
	tid    int           // the thread
	gone   chan struct{} // closed when the thread has let go of the jail
	once   sync.Once

	seen, throttled atomic.Uint64
	err             atomic.Pointer[string]
}

// An order is carried out by the tracing thread between two stops.
type order struct {
	do   func()
	done chan struct{}
}

var errGone = errors.New("the jail is not watched any more")

func attach(ctx context.Context, t observe.Target, sink observe.Sink, log *slog.Logger, oldStyle bool) (*Watch, error) {
	const op = "ptrace.Attach"
	if err := hangBell(); err != nil {
		return nil, fmt.Errorf("%s: signal handler: %w", op, err)
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

// give has the tracing thread carry out do, and waits for it.
func (w *Watch) give(ctx context.Context, do func()) error {
	o := order{do, make(chan struct{})}
	select {
	case w.orders <- o:
	case <-w.gone:
		return errGone
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	// A bell that rings just before the thread waits is not heard.
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

// Select changes what is recorded from now on.
func (w *Watch) Select(s event.Selection) error {
	var err error
	if gone := w.give(context.Background(), func() { err = w.tr.choose(context.Background(), s) }); gone != nil {
		return fmt.Errorf("ptrace.Select: %w", gone)
	}
	return err
}

// Mute marks records. CRIU, for one, cannot dump processes that are traced: a
// jail has to be released for it, and attached again.
func (w *Watch) Mute(on bool) error {
	if err := w.give(context.Background(), func() { w.tr.muted = on }); err != nil {
		return fmt.Errorf("ptrace.Mute: %w", err)
	}
	return nil
}

// Drain records what has happened in the jail and was not looked at yet.
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

// Close lets the jail's processes go on unwatched. Nothing is left on the host,
// so it is the same as Release.
func (w *Watch) Close() error { return w.Release() }

// Release lets the jail's processes go on unwatched: nothing can record them
// without a daemon. The next Attach says so in the log.
func (w *Watch) Release() error {
	w.once.Do(func() {
		w.give(context.Background(), func() { // if it is gone already, so much the better
			w.tr.drain(context.Background())
			w.tr.letAllGo()
		})
		<-w.gone
		w.awaitThread()
		w.forget()
	})
	return nil
}

// awaitThread waits until the thread has ended. The kernel then has let go of
// what could not be stopped before.
func (w *Watch) awaitThread() {
	for unix.Tgkill(unix.Getpid(), w.tid, 0) == nil {
		time.Sleep(time.Millisecond)
	}
}
