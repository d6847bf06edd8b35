package criu

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/checkpoint-restore/go-criu/v8/rpc"
	"golang.org/x/sys/unix"

	"glasshouse/host/cgroup"
	"glasshouse/internal/thread"
)

// A place is where a worker is started.
type place struct {
	netns  string         // path of the network namespace
	cgroup *cgroup.Cgroup // to be born in, as the root of its cgroup namespace; nil: in ours

	// precious says that others depend on the worker's life: the kernel is to
	// look for memory elsewhere, and a worker that hangs gets more time.
	precious bool
}

var environ = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}

// logName is CRIU's own log, in the directory of images.
const logName = "criu.log"

// work has a worker do one request in the given place. It is told of the steps
// on the way, and which process the worker is.
func (t *Tool) work(ctx context.Context, at place, req *rpc.CriuReq, dir string, step func(name string, worker int) error) (*rpc.CriuResp, error) {
	var resp *rpc.CriuResp
	err := thread.Alone(func() error {
		if err := at.enter(t); err != nil {
			return err
		}
		defer t.learn()
		w, err := t.start(at)
		if err != nil {
			return err
		}
		resp, err = w.talk(ctx, req, step)
		patience := time.Duration(0)
		if err != nil {
			patience = 5 * time.Second
			if at.precious {
				patience = 2 * time.Minute
			}
		}
		return errors.Join(err, w.end(patience))
	})
	if err != nil {
		return nil, fmt.Errorf("criu: %w%s", err, complaint(dir))
	}
	return resp, nil
}

// enter takes this thread to the place.
func (at place) enter(t *Tool) error {
	ns, err := os.Open(at.netns) // as long as /run is to be seen
	if err != nil {
		return fmt.Errorf("enter network: %w", err)
	}
	defer ns.Close()
	if err := t.ownMounts(); err != nil {
		return err
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network: %w", err)
	}
	return nil
}

// A worker is one CRIU process and the socket to it.
type worker struct {
	cmd  *exec.Cmd
	sock *os.File
}

// start starts a worker. It is not killed when this process dies: a worker that
// ends in the middle of its work leaves the jail's processes to recover by
// themselves, one that goes on leaves them as they were.
func (t *Tool) start(at place) (*worker, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	if err := unix.SetNonblock(pair[0], true); err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "criu"), os.NewFile(uintptr(pair[1]), "criu worker")
	defer theirs.Close()

	cmd := exec.Command(t.path, "swrk", "3")
	cmd.Dir = "/"
	cmd.Env = environ
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	begin := cmd.Start
	if at.cgroup != nil {
		cmd.SysProcAttr.Unshareflags = unix.CLONE_NEWCGROUP
		begin = func() error { return at.cgroup.Born(cmd.SysProcAttr, cmd.Start) }
	}
	if err := begin(); err != nil {
		ours.Close()
		return nil, fmt.Errorf("start %s: %w", t.path, err)
	}
	if at.precious {
		// Without the power to, it stays what it is.
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", cmd.Process.Pid), []byte("-1000"), 0)
	}
	return &worker{cmd, ours}, nil
}

// maxMessage is far above what the worker says at a time.
const maxMessage = 64 << 10

// talk sends the request and answers the worker's notes until it is done.
func (w *worker) talk(ctx context.Context, req *rpc.CriuReq, step func(string, int) error) (*rpc.CriuResp, error) {
	stop := context.AfterFunc(ctx, func() { w.sock.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, maxMessage)
	for {
		b, err := req.MarshalVT()
		if err != nil {
			return nil, err
		}
		if _, err := w.sock.Write(b); err != nil {
			return nil, errors.Join(context.Cause(ctx), err)
		}
		n, err := w.sock.Read(buf)
		if err != nil {
			return nil, errors.Join(context.Cause(ctx), fmt.Errorf("the worker hung up: %w", err))
		}
		resp := &rpc.CriuResp{}
		if err := resp.UnmarshalVT(buf[:n]); err != nil {
			return nil, fmt.Errorf("the worker's answer: %w", err)
		}
		if resp.GetType() != rpc.CriuReqType_NOTIFY {
			if !resp.GetSuccess() {
				return nil, fmt.Errorf("%s failed%s", strings.ToLower(req0(resp)), errno(resp))
			}
			return resp, nil
		}
		ok := true
		var failed error
		if step != nil {
			failed = step(resp.GetNotify().GetScript(), w.cmd.Process.Pid)
			ok = failed == nil
		}
		kind := rpc.CriuReqType_NOTIFY
		req = &rpc.CriuReq{Type: &kind, NotifySuccess: &ok}
		if failed != nil {
			b, _ := req.MarshalVT()
			w.sock.Write(b) // so that it undoes what it did
			w.sock.Read(buf)
			return nil, failed
		}
	}
}

func req0(r *rpc.CriuResp) string { return r.GetType().String() }

func errno(r *rpc.CriuResp) string {
	if n := r.GetCrErrno(); n != 0 {
		return ": " + unix.Errno(n).Error()
	}
	return ""
}

// end waits for the worker. If patience is not 0 it is killed after that.
func (w *worker) end(patience time.Duration) error {
	w.sock.Close()
	if patience > 0 {
		kill := time.AfterFunc(patience, func() { w.cmd.Process.Kill() })
		defer kill.Stop()
	}
	var status *exec.ExitError
	if err := w.cmd.Wait(); err != nil && !errors.As(err, &status) {
		return err
	}
	return nil // what it had to say it has said
}

// complaint returns the errors in CRIU's log of the operation in dir. That it
// could not raise a limit of its own is not one.
func complaint(dir string) string {
	b, err := os.ReadFile(dir + "/" + logName)
	if err != nil {
		return ""
	}
	var said []string
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		_, text, is := strings.Cut(lines.Text(), "Error (")
		if !is || strings.Contains(text, "RLIMIT_NOFILE") {
			continue
		}
		if _, after, ok := strings.Cut(text, "): "); ok {
			text = after
		}
		if said = append(said, text); len(said) == 6 {
			break
		}
	}
	if len(said) == 0 {
		return ""
	}
	return ": " + strings.Join(said, "; ")
}
