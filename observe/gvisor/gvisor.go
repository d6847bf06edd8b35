// Package gvisor observes jails that run in gVisor. Their system calls are handled by gVisor's
// kernel and not by the host's, so the source uses gVisor's trace points
// (pkg/sentry/seccheck), which gVisor writes to a socket.
//
// Attach creates a trace session in the sandbox with the runsc command line. The session
// exists until the watch is closed. Every call produces two raw points without text, at entry
// and return. Read, write, open, close, connect and exec produce a third point with the path,
// address or arguments. The calling task writes its points before the call completes. Events
// are therefore ordered within each thread, and the jail can be throttled: gVisor can be
// configured to wait for a slow reader.
//
// Events lack what gVisor does not report. Calls that seccomp denies and calls with unknown
// numbers, which fail, have no points. The paths of calls that change names or attributes
// (unlink, rename, mkdir, chmod and similar) are unknown. Without O_EXCL it is unknown whether
// an open created its file. Targets of symbolic links are unknown, in newer releases also for
// programs. Paths are read when the call returns, so a concurrent thread that changes the
// memory changes the event. Text that is not UTF-8 is not reported: such paths and arguments
// are missing, and their events are Unresolved. Processes have no host PID, CPU time or memory
// usage.
package gvisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/observe"
	"glasshouse/observe/event"
)

// Config configures the path and the state directory of runsc.
type Config struct {
	Path string       // default: runsc, looked up in PATH
	Root string       // state directory as used by jail/backend/oci: the directory runsc below its RunDir
	Log  *slog.Logger // default: discard
}

// A Source observes jails through gVisor's trace points. It implements observe.Source.
type Source struct {
	runsc runsc
	log   *slog.Logger

	mu     sync.Mutex
	points points // cached result of known
}

var _ observe.Source = (*Source)(nil)

// New returns a source. It has no side effects.
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
		return fault.Cannot("gvisor.Probe", "connecting to gVisor's kernel needs root", "run the daemon as root")
	}
	_, err := s.known(ctx)
	return err
}

// known returns the available points. It runs runsc only once.
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

// Attach implements observe.Source. It blocks until the sandbox answers; a frozen sandbox does
// not answer.
func (s *Source) Attach(ctx context.Context, t observe.Target, sink observe.Sink) (observe.Watch, error) {
	const op = "gvisor.Attach"
	if t.Runtime != "runsc" {
		return nil, fault.Newf(fault.Unsupported, op, string(t.Jail), "the jail does not run in gVisor")
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
	if t.Resumed && first.gap == "" {
		first.gap = "not watched"
	}
	// The session exists before the processes are listed, so the start of each later process is
	// in its points (book.residents).
	first.residents, err = w.residents(ctx)
	if err != nil && !w.dead(0) {
		w.fail(fmt.Errorf("list the processes of the jail: %w", err))
	}
	w.queue = []*session{first}
	go w.run()
	return w, nil
}

// takeOver replaces the session of a daemon that has ended. The caller holds making.
//
// +checklocks:w.making
func (w *watch) takeOver(ctx context.Context) (*session, error) {
	// The sandbox discards this count together with the replaced session (deleteLocked in
	// pkg/sentry/seccheck/config.go).
	dropped, err := w.source.runsc.dropped(ctx, w.name())
	if err != nil {
		return nil, err
	}
	next, err := w.establish(ctx, true)
	if err != nil {
		return nil, err
	}
	next.gap = fmt.Sprintf("no daemon was running; gVisor dropped %d points, and points in transit were lost as well", dropped)
	return next, nil
}

// residents returns the processes of a jail at the start of its watch. A new jail has only
// its init, and the processes of a restored jail do not run yet. In a jail that kept running
// without a watch, processes may exit at any time: see runsc.residents. There the function
// asks gVisor only for process ids, and takes the rest from the jail's event log.
func (w *watch) residents(ctx context.Context) ([]resident, error) {
	if !w.target.Resumed {
		return w.source.runsc.residents(ctx, w.name())
	}
	pids, err := w.source.runsc.pids(ctx, w.name())
	if err != nil {
		return nil, err
	}
	recorded, err := recordedProcesses(w.sink)
	if err != nil {
		return nil, fmt.Errorf("read the event log: %w", err)
	}
	all := make([]resident, len(pids))
	for i, pid := range pids {
		all[i] = recorded[pid]
		all[i].Status.PID = pid
	}
	return all, nil
}

// recordedProcesses returns the processes whose start is in a log, but not their exit.
func recordedProcesses(log observe.Sink) (map[int32]resident, error) {
	all := map[int32]resident{}
	err := log.Kept(0, event.Proc, func(e *event.Event) {
		switch {
		case e.Flags&event.Thread != 0:
		case e.Op == event.OpExit:
			delete(all, e.PID)
		case e.Op == event.OpFork, e.Op == event.OpExec:
			r := all[e.PID]
			if e.Op == event.OpExec {
				r.Exe, r.Args, r.CWD = strings.Clone(e.Exe), slices.Clone(e.Argv), strings.Clone(e.Cwd)
			}
			r.recorded, r.begin = true, e.Begin
			r.Status.Comm, r.Status.PPID, r.Status.UID.Real, r.Status.GID.Real = strings.Clone(e.Comm), e.PPID, e.UID, e.GID
			all[e.PID] = r
		}
	})
	return all, err
}

// answerTime is the timeout of runsc for calls without a context.
const answerTime = 15 * time.Second
