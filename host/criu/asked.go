package criu

import (
	"fmt"
	"os/exec"
	"sync"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/seccomp"

	filters "glasshouse/host/seccomp"
	"glasshouse/internal/notify"
)

// NotifyFilter describes the seccomp notification filter of restored processes. Such a filter cannot
// be restored from an image: it would have no listener, and every call would fail with ENOSYS
// (seccomp_unotify(2)). So the filter in the image is replaced by one that allows everything,
// and CRIU is started under a new filter, which the restored processes inherit.
type NotifyFilter struct {
	Init   string // path on the host of the glasshouse-init binary, which installs the filter
	Filter []byte
}

// A continuer allows the system calls of CRIU itself.
type continuer struct {
	listener *notify.Listener
	done     chan struct{}
	once     sync.Once
}

func continueAll(l *notify.Listener) *continuer {
	a := &continuer{listener: l, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		for {
			c, err := l.Receive()
			if err != nil {
				return
			}
			l.Continue(c.ID) // an error means that the call was interrupted
		}
	}()
	return a
}

// stop stops answering. Later calls stay pending.
func (a *continuer) stop() {
	a.once.Do(func() {
		a.listener.Interrupt()
		<-a.done
		a.listener.Resume()
	})
}

// Listener returns the listener for the calls of the restored processes, or nil. The caller
// owns it.
func (w *Worker) Listener() *notify.Listener {
	a := w.continuer
	if a == nil {
		return nil
	}
	w.continuer = nil
	a.stop()
	return a.listener
}

// startWithFilter starts a worker under the filter of asking. begin starts cmd.
func startWithFilter(cmd *exec.Cmd, asking *NotifyFilter, begin func() error) (*continuer, error) {
	path, err := exec.LookPath(cmd.Path)
	if err != nil {
		return nil, fmt.Errorf("find CRIU: %w", err)
	}
	s, err := notify.Prepare()
	if err != nil {
		return nil, fmt.Errorf("prepare the filter of system calls: %w", err)
	}
	defer s.Close()
	cmd.Args = append([]string{asking.Init, "asked", path}, cmd.Args[1:]...)
	cmd.Path, cmd.Err = asking.Init, nil
	cmd.ExtraFiles = append(cmd.ExtraFiles, s.ChildFile())
	if err := begin(); err != nil {
		return nil, err
	}
	l, err := s.Filter(cmd.Process.Pid, asking.Filter)
	if err == nil {
		// The execve of CRIU is already subject to the filter. Without a response to its
		// notification it would wait forever.
		a := continueAll(l)
		err = s.Exec()
		if err == nil {
			return a, nil
		}
		a.stop()
		l.Close()
	}
	cmd.Process.Kill()
	cmd.Wait()
	return nil, err
}

// clearNotifyFilters replaces notification filters by filters that allow everything.
func clearNotifyFilters(m *seccomp.SeccompEntry) error {
	for _, f := range m.SeccompFilters {
		if filters.IsNotify(f.Filter) {
			f.Filter = filters.Allowing()
		}
	}
	return nil
}
