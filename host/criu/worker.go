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
	"sync/atomic"
	"syscall"
	"time"

	"github.com/checkpoint-restore/go-criu/v8/rpc"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
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

	asking *Asking // or nil
}

var environ = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}

// logName is CRIU's own log, in the directory of images.
const logName = "criu.log"

// work has w, or if that is nil a worker started for it, do one request in the
// given place. It is told of the steps on the way, and which process the worker
// is.
func (t *Tool) work(ctx context.Context, w *Worker, at place, req *rpc.CriuReq, dir string, step func(name string, worker int) error) (*rpc.CriuResp, error) {
	if w == nil {
		var err error
		if w, err = t.begin(at); err != nil {
			return nil, fmt.Errorf("criu: %w", err)
		}
	}
	resp, err := w.talk(ctx, req, step)
	t.learn(fmt.Sprintf("/proc/%d", w.cmd.Process.Pid))
	patience := time.Duration(0)
	if err != nil {
		patience = 5 * time.Second
		if at.precious {
			patience = 2 * time.Minute
		}
	}
	if err := errors.Join(err, w.end(patience)); err != nil {
		said := complaint(dir)
		err = fmt.Errorf("criu: %w%s", err, said)
		if w.stuck.Load() {
			return nil, errors.Join(errStuck(), err)
		}
		for _, k := range known {
			if strings.Contains(said, k.says) {
				return nil, errors.Join(&fault.Error{Op: "snapshot", Kind: k.kind, Err: errors.New(k.means), Remedy: k.remedy}, err)
			}
		}
		return nil, err
	}
	return resp, nil
}

// A Worker is a CRIU that was started ahead of need, for one Dump or Restore: to
// be loaded takes it as long as what it then does.
type Worker struct{ *worker }

// ToDump starts a worker for the Dump of a jail with the given network.
func (t *Tool) ToDump(netns string) (*Worker, error) {
	return t.begin(place{netns: netns, precious: true})
}

// ToRestore starts a worker for a Restore into the given network and cgroup.
// If asking is not nil all that it makes asks.
func (t *Tool) ToRestore(netns string, cg *cgroup.Cgroup, asking *Asking) (*Worker, error) {
	return t.begin(place{netns: netns, cgroup: cg, asking: asking})
}

// Close ends a worker that was not needed.
func (w *Worker) Close() error {
	err := w.end(time.Second)
	if l := w.Listener(); l != nil {
		l.Close()
	}
	return err
}

// begin starts a worker in the given place.
func (t *Tool) begin(at place) (*Worker, error) {
	var w *worker
	err := thread.Alone(func() (err error) {
		if err := at.enter(t); err != nil {
			return err
		}
		w, err = t.start(at)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Worker{w}, nil
}

// Bring shows the mount on dir, with those below it, to a worker that was started
// before they were made.
func (w *Worker) Bring(dir string) error {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", w.cmd.Process.Pid))
	if err != nil {
		return err
	}
	defer ns.Close()
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return &os.PathError{Op: "open_tree", Path: dir, Err: err}
	}
	defer unix.Close(tree)
	return thread.Alone(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("enter the worker's mounts: %w", err)
		}
		if err := unix.MoveMount(tree, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return &os.PathError{Op: "move_mount", Path: dir, Err: err}
		}
		return nil
	})
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
	cmd   *exec.Cmd
	sock  *os.File
	ended chan struct{} // closed when the process has
	err   error         // of waiting for it, once it has ended
	asked *answering    // answers what it asks, or nil
	stuck atomic.Bool   // it was killed because it waited for ever
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
	var asked *answering
	if at.asking != nil {
		start := begin
		begin = func() (err error) {
			asked, err = startAsking(cmd, at.asking, start)
			return err
		}
	}
	if err := begin(); err != nil {
		ours.Close()
		return nil, fmt.Errorf("start %s: %w", t.path, err)
	}
	if at.precious {
		protect(cmd.Process.Pid)
	}
	w := &worker{cmd: cmd, sock: ours, ended: make(chan struct{}), asked: asked}
	go func() {
		if killed(cmd.Process.Pid) {
			// Its helpers are of its process group, which is ours to name as long as
			// nobody has waited for it.
			unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		}
		w.err = cmd.Wait()
		close(w.ended)
		// What it has begun may have the socket's other end open for long.
		ours.SetReadDeadline(time.Now())
	}()
	if at.precious {
		go w.unstick()
	}
	return w, nil
}

// killed waits for the end of a child, which is left to be waited for, and reports
// whether it was a violent one.
func killed(pid int) bool {
	const exited = 1 // CLD_EXITED
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return err == nil && info.Code != exited
		}
	}
}

// protect has the kernel take memory from others first. Without the power to say
// so, the process stays as it is.
func protect(pid int) {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("-1000"), 0)
}

// read reads one message, also the last one of a worker that has ended.
func (w *worker) read(buf []byte) (int, error) {
	n, err := w.sock.Read(buf)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	select {
	case <-w.ended:
	default:
		return n, err
	}
	raw, rawErr := w.sock.SyscallConn()
	if rawErr != nil {
		return 0, rawErr
	}
	rawErr = raw.Control(func(fd uintptr) { n, err = unix.Read(int(fd), buf) }) // does not block
	if rawErr == nil && err == unix.EAGAIN {
		err = errors.New("it was killed")
	}
	return max(n, 0), errors.Join(rawErr, err)
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
		n, err := w.read(buf)
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
			w.read(buf)
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
	<-w.ended
	var status *exec.ExitError
	if w.err != nil && !errors.As(w.err, &status) {
		return w.err
	}
	return nil // what it had to say it has said
}

// known is what CRIU says of things that it cannot write down, and what it means. What
// is fault.Unavailable passes by itself.
var known = []struct {
	says          string
	kind          fault.Kind
	means, remedy string
}{
	{"Unsupported proto", fault.Unsupported, "a program holds a socket of a kind that cannot be written down, as ping does", "end the program and try again"},
	{"In-flight connection", fault.Unavailable, "a program was called by another and has not answered yet", "try again"},
	{"ctty inheritance", fault.Unsupported, "a program has its terminal open a second time", "end what reads the terminal, such as a pager or an editor, and try again"},
	{"Can't dump ghost file", fault.Unsupported, "a program has a deleted file of more than 1 GiB open", "end the program and try again"},
	{"External socket is used", fault.Unsupported, "a program is connected to a socket outside of the jail", "end the program and try again"},
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
