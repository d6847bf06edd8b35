package criu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"glasshouse/internal/thread"
)

// A server gives processes their memory when they touch it, and the rest of it
// when they do not. It outlives this process: theirs would never come.
type server struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// lazyLog is the server's log, in the directory of images.
const lazyLog = "lazy.log"

// serve starts a server of the images in dir and returns when it listens.
func (t *Tool) serve(ctx context.Context, dir string) (*server, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	s := &server{done: make(chan struct{})}
	err = thread.Alone(func() error {
		defer w.Close()
		if err := t.ownMounts(); err != nil {
			return err
		}
		s.cmd = exec.Command(t.path, "lazy-pages", "--images-dir", dir, "--work-dir", dir, "--log-file", lazyLog, "-v1", "--status-fd", strconv.Itoa(3))
		s.cmd.Dir = "/"
		s.cmd.Env = environ
		s.cmd.ExtraFiles = []*os.File{w}
		s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		return s.cmd.Start()
	})
	if err != nil {
		return nil, fmt.Errorf("start the server of memory: %w", err)
	}
	protect(s.cmd.Process.Pid)
	go func() {
		s.cmd.Wait()
		close(s.done)
	}()
	stop := context.AfterFunc(ctx, func() { r.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := io.ReadFull(r, make([]byte, 1)); err != nil {
		s.kill()
		return nil, errors.Join(context.Cause(ctx), fmt.Errorf("the server of memory did not begin: %w", err))
	}
	return s, nil
}

func (s *server) kill() {
	s.cmd.Process.Kill()
	<-s.done
}
