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

// A workerConfig specifies where and how a worker is started.
type workerConfig struct {
	netns  string         // path of the network namespace
	cgroup *cgroup.Cgroup // started in, as the root of its cgroup namespace; nil: the daemon's

	// critical protects the worker from the OOM killer and gives a hanging worker more time,
	// because the jail depends on it.
	critical bool

	filter *NotifyFilter // or nil
}

var environ = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}

// logName is CRIU's own log, in the directory of images.
const logName = "criu.log"

// work runs one request on w, or on a new worker if w is nil. step is called for each
// notification with its name and the pid of the worker.
func (t *Tool) work(ctx context.Context, w *Worker, at workerConfig, req *rpc.CriuReq, dir string, step func(name string, worker int) error) (*rpc.CriuResp, error) {
	if w == nil {
		var err error
		w, err = t.startWorker(at)
		if err != nil {
			return nil, fmt.Errorf("criu: %w", err)
		}
	}
	resp, err := w.exchange(ctx, req, step)
	t.saveCache(fmt.Sprintf("/proc/%d", w.cmd.Process.Pid))
	patience := time.Duration(0)
	if err != nil {
		patience = 5 * time.Second
		if at.critical {
			patience = 2 * time.Minute
		}
	}
	if err := errors.Join(err, w.wait(patience)); err != nil {
		messages := logErrors(dir)
		err = fmt.Errorf("criu: %w%s", err, messages)
		if w.stuck.Load() {
			return nil, errors.Join(errStuck(), err)
		}
		for _, k := range knownErrors {
			if strings.Contains(messages, k.says) {
				return nil, errors.Join(&fault.Error{Op: "criu.work", Kind: k.kind, Err: errors.New(k.means), Remedy: k.remedy}, err)
			}
		}
		return nil, err
	}
	return resp, nil
}

// A Worker is a CRIU process that was started in advance for one Dump or Restore, because
// starting it takes as long as the operation itself.
type Worker struct{ *worker }

// ToDump starts a worker for the Dump of a jail with the given network namespace.
func (t *Tool) ToDump(netns string) (*Worker, error) {
	return t.startWorker(workerConfig{netns: netns, critical: true})
}

// ToRestore starts a worker for a Restore into the given network namespace and cgroup. If
// asking is not nil the restored processes inherit its seccomp filter.
func (t *Tool) ToRestore(netns string, cg *cgroup.Cgroup, asking *NotifyFilter) (*Worker, error) {
	return t.startWorker(workerConfig{netns: netns, cgroup: cg, filter: asking})
}

// Close stops an unused worker.
func (w *Worker) Close() error {
	err := w.wait(time.Second)
	if l := w.Listener(); l != nil {
		l.Close()
	}
	return err
}

// startWorker starts a worker with the configuration at.
func (t *Tool) startWorker(at workerConfig) (*Worker, error) {
	var w *worker
	err := thread.Alone(func() (err error) {
		if err := at.enterNamespaces(t); err != nil {
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

// AttachMount attaches a copy of the mount tree at dir to the mount namespace of a worker that was
// started before the mount was created.
func (w *Worker) AttachMount(dir string) error {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", w.cmd.Process.Pid))
	if err != nil {
		return fmt.Errorf("find the worker's mounts: %w", err)
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

// enterNamespaces moves this thread to the namespaces of the worker.
func (at workerConfig) enterNamespaces(t *Tool) error {
	ns, err := os.Open(at.netns) // before a tmpfs may hide /run
	if err != nil {
		return fmt.Errorf("enter network: %w", err)
	}
	defer ns.Close()
	if err := t.unshareMounts(); err != nil {
		return err
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network: %w", err)
	}
	return nil
}

// A worker is a CRIU process and the socket to it.
type worker struct {
	cmd       *exec.Cmd
	sock      *os.File
	exited    chan struct{} // closed when the process has exited
	err       error         // error of cmd.Wait; valid after exited is closed
	continuer *continuer    // answers its seccomp notifications, or nil
	stuck     atomic.Bool   // it was killed because it was stuck
}

// start starts a worker. The worker survives the death of this process: a worker that finishes
// leaves the processes of the jail as they were, whereas processes must recover by themselves
// from a worker that dies.
func (t *Tool) start(at workerConfig) (*worker, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "criu worker")
	defer theirs.Close()
	if err := unix.SetNonblock(pair[0], true); err != nil {
		unix.Close(pair[0])
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	ours := os.NewFile(uintptr(pair[0]), "criu") // after SetNonblock, so that it has deadlines

	cmd := exec.Command(t.path, "swrk", "3")
	cmd.Dir = "/"
	cmd.Env = environ
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	begin := cmd.Start
	if at.cgroup != nil {
		cmd.SysProcAttr.Unshareflags = unix.CLONE_NEWCGROUP
		begin = func() error { return at.cgroup.StartIn(cmd.SysProcAttr, cmd.Start) }
	}
	var asked *continuer
	if at.filter != nil {
		start := begin
		begin = func() (err error) {
			asked, err = startWithFilter(cmd, at.filter, start)
			return err
		}
	}
	if err := begin(); err != nil {
		ours.Close()
		return nil, fmt.Errorf("start %s: %w", t.path, err)
	}
	if at.critical {
		protect(cmd.Process.Pid)
	}
	w := &worker{cmd: cmd, sock: ours, exited: make(chan struct{}), continuer: asked}
	go func() {
		if killed(cmd.Process.Pid) {
			// Kill its helpers, which are in its process group. The group id cannot be reused
			// before the worker was waited for.
			unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		}
		w.err = cmd.Wait()
		close(w.exited)
		// Its child processes may keep the other end of the socket open.
		ours.SetReadDeadline(time.Now())
	}()
	if at.critical {
		go w.killIfStuck()
	}
	return w, nil
}

// killed waits until a child has exited or was killed, without reaping it, and reports whether
// it was killed by a signal.
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

// protect exempts a process from the OOM killer. Without the privilege it does nothing.
func protect(pid int) {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("-1000"), 0)
}

// read reads one message, including the last message of a worker that has exited.
func (w *worker) read(buf []byte) (int, error) {
	n, err := w.sock.Read(buf)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	select {
	case <-w.exited:
	default:
		return n, err
	}
	raw, rawErr := w.sock.SyscallConn()
	if rawErr != nil {
		return 0, rawErr
	}
	rawErr = raw.Control(func(fd uintptr) { n, err = unix.Read(int(fd), buf) }) // does not block
	if rawErr == nil && err == unix.EAGAIN {
		err = errors.New("worker was killed")
	}
	return max(n, 0), errors.Join(rawErr, err)
}

// maxMessage is far above the size of a response.
const maxMessage = 64 << 10

// exchange sends the request and answers notifications until the worker sends its response.
func (w *worker) exchange(ctx context.Context, req *rpc.CriuReq, step func(string, int) error) (*rpc.CriuResp, error) {
	stop := context.AfterFunc(ctx, func() { w.sock.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, maxMessage)
	for {
		b, err := req.MarshalVT()
		if err != nil {
			return nil, fmt.Errorf("encode the request: %w", err)
		}
		if _, err := w.sock.Write(b); err != nil {
			return nil, errors.Join(context.Cause(ctx), err)
		}
		n, err := w.read(buf)
		if err != nil {
			err = fmt.Errorf("worker closed the connection: %w", err)
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				err = fmt.Errorf("%w; its processes wait: %s", err, waits(w.cmd.Process.Pid))
			}
			return nil, errors.Join(context.Cause(ctx), err)
		}
		resp := &rpc.CriuResp{}
		if err := resp.UnmarshalVT(buf[:n]); err != nil {
			return nil, fmt.Errorf("decode the worker's response: %w", err)
		}
		if resp.GetType() != rpc.CriuReqType_NOTIFY {
			if !resp.GetSuccess() {
				return nil, fmt.Errorf("%s failed%s", strings.ToLower(typeName(resp)), errno(resp))
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
			w.sock.Write(b) // the worker then undoes its changes
			w.read(buf)
			return nil, failed
		}
	}
}

func typeName(r *rpc.CriuResp) string { return r.GetType().String() }

func errno(r *rpc.CriuResp) string {
	if n := r.GetCrErrno(); n != 0 {
		return ": " + unix.Errno(n).Error()
	}
	return ""
}

// wait waits until the worker has exited. If patience is not 0 the worker is killed after that
// time.
func (w *worker) wait(patience time.Duration) error {
	w.sock.Close()
	if patience > 0 {
		kill := time.AfterFunc(patience, func() { w.cmd.Process.Kill() })
		defer kill.Stop()
	}
	<-w.exited
	var status *exec.ExitError
	if w.err != nil && !errors.As(w.err, &status) {
		return fmt.Errorf("wait for criu: %w", w.err)
	}
	return nil // its response reports failures
}

// knownErrors maps CRIU's messages about state that it cannot checkpoint to errors. A
// fault.Unavailable condition is temporary.
var knownErrors = []struct {
	says          string
	kind          fault.Kind
	means, remedy string
}{
	{"Unsupported proto", fault.Unsupported, "a program has a socket of a type that cannot be checkpointed, such as the raw socket of ping", "end the program and try again"},
	{"In-flight connection", fault.Unavailable, "a connection between programs has not been accepted yet", "try again"},
	{"ctty inheritance", fault.Unsupported, "a program has its terminal open a second time", "end the program that reads the terminal, such as a pager or an editor, and try again"},
	{"Can't dump ghost file", fault.Unsupported, "a program has a deleted file of more than 1 GiB open", "end the program and try again"},
	{"External socket is used", fault.Unsupported, "a program is connected to a socket outside of the jail", "end the program and try again"},
}

// logErrors returns the errors in CRIU's log in dir. It ignores the failure to raise
// RLIMIT_NOFILE, which is harmless.
func logErrors(dir string) string {
	b, err := os.ReadFile(dir + "/" + logName)
	if err != nil {
		return ""
	}
	var messages []string
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		_, text, is := strings.Cut(lines.Text(), "Error (")
		if !is || strings.Contains(text, "RLIMIT_NOFILE") {
			continue
		}
		if _, after, ok := strings.Cut(text, "): "); ok {
			text = after
		}
		messages = append(messages, text)
		if len(messages) == 6 {
			break
		}
	}
	if len(messages) == 0 {
		return ""
	}
	return ": " + strings.Join(messages, "; ")
}
