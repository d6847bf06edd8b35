// Package base contains what the backends of this host have in common: the init process of a
// running jail, its control directory, its secrets, and the directories of the host that are
// mounted in it.
package base

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/host/seccomp"
	"glasshouse/internal/notify"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
)

// An Init is the init process of a running jail. Backends embed it in their instances.
type Init struct {
	plan   jail.Plan
	socket string
	pid    int
	pidfd  *os.File
	done   chan struct{}
	watch  sync.WaitGroup
	limits atomic.Pointer[jail.Limits] // current limits, if changed after the creation

	listening sync.Mutex
	// +checklocks:listening
	listener *notify.Listener // seccomp listener of the jail's commands, once known
}

// Watch returns the init of the jail p, the process of pidfd, which it owns. socket is the path of
// its control socket.
func Watch(p jail.Plan, socket string, pid int, pidfd *os.File) *Init {
	i := &Init{plan: p, socket: socket, pid: pid, pidfd: pidfd, done: make(chan struct{})}
	i.watch.Go(i.await)
	return i
}

// await closes done when init has exited. It returns without closing done if pidfd is closed.
func (i *Init) await() {
	conn, err := i.pidfd.SyscallConn()
	if err != nil {
		return
	}
	if err := conn.Read(func(fd uintptr) bool { return exited(int(fd), 0) }); err == nil {
		close(i.done)
	}
}

func (i *Init) Control() string       { return i.socket }
func (i *Init) PID() int              { return i.pid }
func (i *Init) Done() <-chan struct{} { return i.done }

// AnswerTime limits the wait for init to answer. Init must be loaded, and the host may be busy.
const AnswerTime = 15 * time.Second

// WaitReady waits until init answers or exits.
func (i *Init) WaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, AnswerTime)
	defer cancel()
	ctx, gone := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer gone(nil)
	watch.Go(func() {
		select {
		case <-i.done:
			gone(errors.New("init exited immediately"))
		case <-ctx.Done():
		}
	})
	if _, err := control.Dial(i.socket).WaitReady(ctx); err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return nil
}

// Enforce installs the notification filter in init of a jail that has run no command yet.
func (i *Init) Enforce(ctx context.Context) error {
	filter, err := seccomp.Notify(runtime.GOARCH)
	if err != nil {
		return err
	}
	fd, err := control.Dial(i.socket).Enforce(ctx, filter)
	if err != nil {
		return fmt.Errorf("install the notification filter: %w", err)
	}
	l, err := notify.Take(i.pid, fd)
	i.SetListener(l)
	if err != nil {
		return fmt.Errorf("take the notification listener of init: %w", err)
	}
	return nil
}

// SetListener sets the listener of a jail whose filter was installed by others. Init owns it.
func (i *Init) SetListener(l *notify.Listener) {
	i.listening.Lock()
	defer i.listening.Unlock()
	i.listener = l
}

// Listener implements jail.EnforcedInstance. After a restart of the daemon it gets the listener from
// init.
func (i *Init) Listener() (*notify.Listener, error) {
	i.listening.Lock()
	defer i.listening.Unlock()
	if !i.plan.Enforce {
		return nil, os.ErrNotExist
	}
	if i.listener == nil {
		l, err := notify.ListenerOf(i.pid)
		if err != nil {
			return nil, fmt.Errorf("get the notification listener of init: %w", err)
		}
		i.listener = l
	}
	return i.listener.Clone()
}

// Limits returns the current limits of the jail.
func (i *Init) Limits() jail.Limits {
	if l := i.limits.Load(); l != nil {
		return *l
	}
	return i.plan.Limits
}

// SetLimits notes that the jail's limits are l.
func (i *Init) SetLimits(l jail.Limits) { i.limits.Store(&l) }

// Kill kills init and waits until it has exited. When the first process of a pid namespace is
// killed the kernel kills all others, and the first exits after them (pid_namespaces(7)).
func (i *Init) Kill(ctx context.Context) error { return KillProcess(ctx, i.pidfd) }

// Close stops watching init, which continues to run. It may be called twice.
func (i *Init) Close() error {
	i.listening.Lock()
	if i.listener != nil {
		i.listener.Close()
		i.listener = nil
	}
	i.listening.Unlock()
	err := i.pidfd.Close()
	i.watch.Wait()
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// OpenProcess returns a pidfd that the Go runtime poller can wait for without a thread. It fails if
// the process has exited.
func OpenProcess(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	if exited(fd, 0) {
		unix.Close(fd)
		return nil, fmt.Errorf("open process %d: %w", pid, os.ErrProcessDone)
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("pidfd of %d", pid)), nil
}

// KillProcess kills the process of a pidfd and waits until it has exited.
func KillProcess(ctx context.Context, pidfd *os.File) error {
	err := unix.PidfdSendSignal(int(pidfd.Fd()), unix.SIGKILL, nil, 0)
	if err == unix.ESRCH {
		return nil
	}
	if err != nil {
		return fmt.Errorf("send SIGKILL: %w", err)
	}
	for !exited(int(pidfd.Fd()), 20*time.Millisecond) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// exited reports whether the process of a pidfd has exited or exits within the given time.
func exited(pidfd int, within time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, int(within.Milliseconds()))
	return err == nil && n > 0 && fds[0].Revents&unix.POLLIN != 0
}
