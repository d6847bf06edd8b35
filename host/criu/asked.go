package criu

import (
	"os/exec"
	"sync"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/seccomp"

	filters "glasshouse/host/seccomp"
	"glasshouse/internal/notify"
)

// Asking is for processes of which a seccomp filter asks somebody else about their
// calls. Such a filter cannot be made again from an image: it would have nobody
// who listens, and every call would fail. So the one in the image is emptied, and
// CRIU is started with another one on it, which all that it makes inherit.
type Asking struct {
	Init   string // the host's path of the glasshouse-init binary, which installs it
	Filter []byte
}

// answering answers what CRIU itself asks about: go on.
type answering struct {
	listener *notify.Listener
	done     chan struct{}
	once     sync.Once
}

func answerAll(l *notify.Listener) *answering {
	a := &answering{listener: l, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		for {
			c, err := l.Receive()
			if err != nil {
				return
			}
			l.Continue(c.ID) // who does not wait any more needs no answer
		}
	}()
	return a
}

// stop ends it. What was asked meanwhile waits.
func (a *answering) stop() {
	a.once.Do(func() {
		a.listener.Interrupt()
		<-a.done
		a.listener.Resume()
	})
}

// Listener returns what the processes ask on that the worker has made, which is
// the caller's from then on, or nil.
func (w *Worker) Listener() *notify.Listener {
	a := w.asked
	if a == nil {
		return nil
	}
	w.asked = nil
	a.stop()
	return a.listener
}

// startAsking starts a worker that asks.
func startAsking(cmd *exec.Cmd, asking *Asking, begin func() error) (*answering, error) {
	path, err := exec.LookPath(cmd.Path)
	if err != nil {
		return nil, err
	}
	s, err := notify.Prepare()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	cmd.Args = append([]string{asking.Init, "asked", path}, cmd.Args[1:]...)
	cmd.Path, cmd.Err = asking.Init, nil
	cmd.ExtraFiles = append(cmd.ExtraFiles, s.Theirs())
	if err := begin(); err != nil {
		return nil, err
	}
	l, err := s.Filter(cmd.Process.Pid, asking.Filter)
	if err == nil {
		a := answerAll(l)
		if err = s.GoOn(); err == nil {
			return a, nil
		}
		a.stop()
		l.Close()
	}
	cmd.Process.Kill()
	cmd.Wait()
	return nil, err
}

// emptied empties the filters that ask.
func emptied(m *seccomp.SeccompEntry) error {
	for _, f := range m.SeccompFilters {
		if filters.IsNotify(f.Filter) {
			f.Filter = filters.Allowing()
		}
	}
	return nil
}
