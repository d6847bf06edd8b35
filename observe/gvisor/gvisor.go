// Package gvisor watches jails that gVisor isolates. Their processes make no
// calls of the host's kernel, so what is seen of them is what gVisor's own kernel
// tells: its trace points, which it writes to a socket.
//
// A trace session is made in the sandbox when a jail is attached, by runsc's
// command line, and is the jail's until the watch is closed. Every call comes as
// two bare points, entered and returned, in which nothing is text; those that
// read, write, open, close, connect and run programs come with a third that says
// the path, the address or the arguments. The task that makes a call writes its
// points before the call is over, so the record is in the order of what happened
// in each thread, and a jail can be held: gVisor waits for a reader that is slow
// if it is told to.
//
// What gVisor does not tell is not in the records. Calls that seccomp refuses
// leave no trace, and neither do those it has no number for, which it refuses too.
// The paths of calls that change names (unlink, rename, mkdir, chmod and the like)
// are not known, nor is whether an open made its file unless it had O_EXCL, nor
// where a symbolic link led, which in newer releases is also true of programs. Paths are read when the call returns: a thread that
// changes the memory meanwhile changes the record. Text that is not UTF-8 is not
// told at all: such paths and arguments are missing, and their records Unresolved.
// There is no host's pid to a process, no processor time and no memory of its own.
package gvisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/observe"
)

// Config says where runsc is and where it keeps what it knows of its containers.
type Config struct {
	Path string       // default: runsc, looked up in PATH
	Root string       // as backend/oci uses it: the directory runsc below its RunDir
	Log  *slog.Logger // default: discard
}

// A Source watches jails through gVisor's trace points. It implements
// observe.Source.
type Source struct {
	runsc runsc
	log   *slog.Logger

	mu     sync.Mutex
	points points // once known
}

var _ observe.Source = (*Source)(nil)

// New returns a source. It touches nothing.
func New(cfg Config) *Source {
	if cfg.Path == "" {
		cfg.Path = "runsc"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Source{runsc: runsc{cfg.Path, cfg.Root}, log: cfg.Log}
}

// Name implements observe.Source.
func (s *Source) Name() string { return "gvisor" }

// Probe implements observe.Source.
func (s *Source) Probe(ctx context.Context) error {
	if unix.Geteuid() != 0 {
		return fault.Cannot("gvisor.Probe", "talking to gVisor's kernel needs root", "run the daemon as root")
	}
	_, err := s.known(ctx)
	return err
}

// known returns the points that there are, asking only once.
func (s *Source) known(ctx context.Context) (points, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.points == nil {
		ps, err := s.runsc.metadata(ctx)
		if err != nil {
			return nil, err
		}
		s.points = ps
	}
	return s.points, nil
}

// Close implements observe.Source.
func (s *Source) Close() error { return nil }

// Attach implements observe.Source. It waits for the sandbox's answer, which a
// frozen one does not give.
func (s *Source) Attach(ctx context.Context, t observe.Target, sink observe.Sink) (observe.Watch, error) {
	const op = "gvisor.Attach"
	if t.Runtime != "runsc" {
		return nil, fault.Newf(fault.Unsupported, op, string(t.Jail), "the jail is not gVisor's")
	}
	pidfd, err := unix.PidfdOpen(t.PID, 0)
	if err != nil {
		return nil, fault.New(fault.NotFound, op, string(t.Jail), fmt.Errorf("open process %d: %w", t.PID, err))
	}
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(pidfd)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	w := &watch{source: s, target: t, sink: sink, pidfd: pidfd, bell: bell, done: make(chan struct{})}
	w.changed.L = &w.mu
	w.book = newBook(t.Jail, sink, w.muted)
	w.book.clock.read()
	w.making.Lock()
	w.selection = t.Selection
	first, err := w.establish(ctx, false)
	if errors.Is(err, errExists) {
		first, err = w.takeOver(ctx)
	}
	w.making.Unlock()
	if err != nil {
		unix.Close(pidfd)
		unix.Close(bell)
		return nil, fmt.Errorf("watch jail %s: %w", t.Jail, err)
	}
	if t.Again && first.gap == "" {
		first.gap = "nobody watched"
	}
	w.queue = []*session{first}
	go w.run()
	return w, nil
}

// takeOver replaces the session of a daemon that has ended. The caller holds making.
//
// +checklocks:w.making
func (w *watch) takeOver(ctx context.Context) (*session, error) {
	dropped, err := w.source.runsc.dropped(ctx, w.name())
	if err != nil {
		return nil, err
	}
	next, err := w.establish(ctx, true)
	if err != nil {
		return nil, err
	}
	next.gap = fmt.Sprintf("no daemon was there to read; gVisor counted %d points that nobody took, and what was on its way was lost as well", dropped)
	return next, nil
}

// answerTime is how long a sandbox may take to answer runsc when nobody waits
// who could say how long.
const answerTime = 15 * time.Second
