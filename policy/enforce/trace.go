package enforce

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"glasshouse/internal/notify"
	"glasshouse/internal/thread"
	"glasshouse/policy"
)

// An inspector checks the result of an approved call.
type inspector interface {
	// inspect continues the call of a thread under ptrace(2) on the current thread and checks
	// its result.
	inspect(w *watch, c notify.Call, p *process) error
}

// tracers are OS threads that trace threads of the jail while a call is checked. A tracee
// belongs to one tracer thread and not to the whole process (ptrace(2)), so each tracer
// handles one call from its start to its end.
type tracers struct {
	idle chan chan<- func()
	quit chan struct{}
	wg   sync.WaitGroup

	mu sync.Mutex
	// +checklocks:mu
	stepping map[int]notify.Call // threads whose next call is allowed without a decision
}

// maxIdleTracers is the number of idle tracer threads that are kept.
const maxIdleTracers = 4

func newTracers() *tracers {
	return &tracers{idle: make(chan chan<- func(), maxIdleTracers), quit: make(chan struct{}), stepping: map[int]notify.Call{}}
}

func (t *tracers) close() {
	close(t.quit)
	t.wg.Wait()
}

// run runs f on a locked OS thread and waits for it.
func (t *tracers) run(f func()) {
	var to chan<- func()
	select {
	case to = <-t.idle:
	default:
		to = t.start()
	}
	finished := make(chan struct{})
	to <- func() { defer close(finished); f() }
	<-finished
}

func (t *tracers) start() chan<- func() {
	work := make(chan func())
	t.wg.Add(1)
	go thread.Alone(func() error {
		defer t.wg.Done()
		for {
			select {
			case f := <-work:
				f()
			case <-t.quit:
				return nil
			}
			select {
			case t.idle <- work:
			default:
				return nil // enough threads are idle
			}
		}
	})
	return work
}

// inspect continues a call on a tracer thread and checks its result.
func (t *tracers) inspect(w *watch, c notify.Call, p *process, f inspector) (err error) {
	t.run(func() { err = f.inspect(w, c, p) })
	return err
}

// isRestart reports whether a call is an approved one that a traced thread repeats.
func (t *tracers) isRestart(c notify.Call) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	was, ok := t.stepping[int(c.TID)]
	return ok && was.Nr == c.Nr && was.Args == c.Args
}

func (t *tracers) expect(c notify.Call) (forget func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stepping[int(c.TID)] = c
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		// Another tracer may already trace the thread after it was detached.
		if t.stepping[int(c.TID)].ID == c.ID {
			delete(t.stepping, int(c.TID))
		}
	}
}

// A traced is a thread that the current thread traces.
type traced struct {
	tid    int
	exited bool // it has ended
}

const (
	ptraceSeize          = 0x4206
	ptraceInterrupt      = 0x4207
	ptraceGetSyscallInfo = 0x420e
	eventExec            = 4
	eventStop            = 128
)

func ptrace(request uintptr, tid int, addr, data uintptr) error {
	_, _, e := unix.Syscall6(unix.SYS_PTRACE, request, uintptr(tid), addr, data, 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

// seize attaches to a thread without stopping it (PTRACE_SEIZE).
func seize(tid int, options uintptr) (*traced, error) {
	if err := ptrace(ptraceSeize, tid, 0, options); err != nil {
		return nil, err
	}
	return &traced{tid: tid}, nil
}

// wait waits until the thread stops. It returns the ptrace event, or the signal that is about
// to be delivered.
func (t *traced) wait() (event int, signal syscall.Signal, err error) {
	for {
		var ws unix.WaitStatus
		// After an execve by a thread that is not the leader, the thread takes the leader's
		// tid (ptrace(2), "execve(2) under ptrace"). So wait for any tracee: this thread has
		// only one.
		tid, err := unix.Wait4(-1, &ws, unix.WALL|unix.WNOTHREAD, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			t.exited = true
			return 0, 0, err
		case !ws.Stopped():
			t.exited = true
			if tid != t.tid {
				t.exited = false
				continue
			}
			return 0, 0, unix.ESRCH
		}
		t.tid = tid
		return int(ws) >> 16, ws.StopSignal(), nil
	}
}

// detach detaches from the thread and delivers the given signal. The exit of a killed tracee
// must be waited for by its tracer. Until then its parent is not notified (ptrace(2)).
func (t *traced) detach(signal syscall.Signal) {
	for !t.exited && ptrace(unix.PTRACE_DETACH, t.tid, 0, uintptr(signal)) != nil {
		t.wait()
	}
}

// release detaches from a thread in any state.
func (t *traced) release() {
	if ptrace(ptraceInterrupt, t.tid, 0, 0) != nil {
		t.detach(0)
		return
	}
	event, signal, err := t.wait()
	if err != nil {
		return
	}
	if event != 0 {
		signal = 0
	}
	t.detach(signal)
}

// inspect lets the kernel execute the program and verifies it before its first instruction.
func (g *program) inspect(w *watch, c notify.Call, p *process) error {
	if !w.Listener.Valid(c.ID) {
		return unix.ENOENT // it was interrupted: the answer is for the repeated call
	}
	t, err := seize(p.tid, unix.PTRACE_O_TRACEEXEC)
	if err != nil { // already traced, by an observer or by CRIU
		if err := w.Listener.Continue(c.ID); err != nil {
			return err
		}
		g.verifyLater(w, p)
		return nil
	}
	if err := w.Listener.Continue(c.ID); err != nil {
		t.release()
		return err
	}
	// If execve fails the thread stops when it returns from the call.
	if err := ptrace(ptraceInterrupt, t.tid, 0, 0); err != nil {
		t.detach(0)
		return nil
	}
	event, signal, err := t.wait()
	if err != nil {
		return nil // it has ended
	}
	if event == eventExec {
		g.verify(w, p)
	}
	if event != 0 {
		signal = 0
	}
	t.detach(signal)
	return nil
}

// verifyLater verifies a program that could not be traced. It polls until the program has
// started.
func (g *program) verifyLater(w *watch, p *process) {
	var before unix.Stat_t
	unix.Stat(fmt.Sprintf("/proc/%d/exe", p.tgid), &before)
	for range 100 {
		time.Sleep(500 * time.Microsecond)
		if g.matches(p) {
			return
		}
		var now unix.Stat_t
		if unix.Stat(fmt.Sprintf("/proc/%d/exe", p.tgid), &now) != nil {
			return
		}
		if now.Ino != before.Ino || now.Dev != before.Dev {
			g.verify(w, p)
			return
		}
	}
}

// matches reports whether a process runs the approved program.
func (g *program) matches(p *process) bool {
	var st unix.Stat_t
	if unix.Stat(fmt.Sprintf("/proc/%d/exe", p.tgid), &st) != nil || st.Dev != g.exe.Dev || st.Ino != g.exe.Ino {
		return false
	}
	have, err := readProc(p.tgid, "cmdline")
	want := strings.Join(g.argv, "\x00")
	return err == nil && (have == want+"\x00" || !g.complete && strings.HasPrefix(have, want))
}

// verify compares the program that a process is about to run with the approved one. It kills
// the process unless the policy allows that program as well.
func (g *program) verify(w *watch, p *process) {
	if g.matches(p) {
		return
	}
	have, err := readProc(p.tgid, "cmdline")
	exe := &target{fd: -1}
	if err == nil {
		exe.fd, err = unix.Open(fmt.Sprintf("/proc/%d/exe", p.tgid), unix.O_PATH|unix.O_CLOEXEC, 0)
	}
	if err == nil {
		err = exe.load()
	}
	defer exe.close()
	if err != nil {
		return // it has ended
	}
	argv := strings.Split(strings.TrimSuffix(have, "\x00"), "\x00")
	actual, now := &program{}, &process{tid: p.tgid, tgid: p.tgid, root: -1}
	defer now.close()
	if w.addQuestions(now, actual, exe, exe.path, argv) == nil && w.wouldAllow(actual.questions) {
		return
	}
	w.killMismatch(p, g.questions[0], policy.Question{Subject: w.Subject, Action: policy.ActionRun, Resource: commandLine(argv),
		Attributes: map[string]string{"observed": "true", "argv0": argv[0], "exe": exe.path}})
}

// inspect traces the repeated call and checks its result before it returns. The pending
// notification is not answered: PTRACE_INTERRUPT makes the thread repeat the call.
func (d *approvedEdit) inspect(w *watch, c notify.Call, p *process) error {
	defer d.close()
	if !w.Listener.Valid(c.ID) {
		return unix.ENOENT
	}
	t, err := seize(p.tid, unix.PTRACE_O_TRACESYSGOOD)
	if err != nil {
		return w.Listener.Continue(c.ID)
	}
	forget := w.tracers.expect(c)
	detach := func(signal syscall.Signal) {
		forget() // before the thread can make the same call with other data in memory
		t.detach(signal)
	}
	defer forget()
	if err := ptrace(ptraceInterrupt, t.tid, 0, 0); err != nil {
		detach(0)
		return nil
	}
	const entered, left = 1, 2
	for state := 0; ; {
		event, signal, err := t.wait()
		if err != nil {
			return nil
		}
		switch {
		case signal == unix.SIGTRAP|0x80:
			info, err := t.syscallInfo()
			switch {
			case err != nil, state == 0 && (info.op != entered || int32(info.nr) != c.Nr || info.args != c.Args):
				detach(0) // the call has completed, and this is another one, which will be judged
				return nil
			case state == 0:
				state = entered
			case info.op == left:
				// -ERESTARTSYS, -ERESTARTNOINTR or -ERESTARTNOHAND (include/linux/errno.h):
				// the call was interrupted and is repeated.
				if again := -info.value; again == 512 || again == 513 || again == 514 {
					state = 0
					break
				}
				if what, differs := d.differs(w, c, p, info.value); differs {
					asked := policy.Question{Subject: w.Subject, Action: policy.ActionRead}
					if len(d.questions) > 0 {
						asked = d.questions[len(d.questions)-1]
					}
					w.killMismatch(p, asked, what)
				}
				detach(0)
				return nil
			}
		case event == 0: // a signal arrived; its handler may make other calls
			detach(signal)
			if state == 0 {
				return unix.ENOENT // the call was not made yet
			}
			return nil
		case event != eventStop:
			detach(0)
			return nil
		}
		if err := ptrace(unix.PTRACE_SYSCALL, t.tid, 0, 0); err != nil {
			detach(0)
			return nil
		}
	}
}

// callInfo is the beginning of struct ptrace_syscall_info (PTRACE_GET_SYSCALL_INFO, since
// Linux 5.3).
type callInfo struct {
	op    byte
	_     [3]byte
	arch  uint32
	ip    uint64
	sp    uint64
	nr    uint64
	args  [6]uint64
	value int64
}

// syscallInfo returns the position of a stopped thread within a system call.
func (t *traced) syscallInfo() (info callInfo, err error) {
	var raw [11]uint64 // 88 bytes
	_, _, e := unix.Syscall6(unix.SYS_PTRACE, ptraceGetSyscallInfo, uintptr(t.tid), unsafe.Sizeof(raw), uintptr(unsafe.Pointer(&raw)), 0, 0)
	if e != 0 {
		return info, e
	}
	info.op, info.nr, info.args, info.value = byte(raw[0]), raw[3], [6]uint64(raw[4:10]), int64(raw[3])
	runtime.KeepAlive(&raw)
	return info, nil
}

// judgeTimeout limits a decision for which no approval can be requested.
const judgeTimeout = 2 * time.Second

// wouldAllow reports whether all questions are allowed without an approval.
func (w *watch) wouldAllow(qs []policy.Question) bool {
	ctx, cancel := context.WithTimeout(w.ctx, judgeTimeout)
	defer cancel()
	for _, q := range qs {
		if w.Judge.Judge(ctx, q).Effect != policy.Allow {
			return false
		}
	}
	return true
}

// killMismatch kills a process that did something other than what was approved, and reports
// it.
func (w *watch) killMismatch(p *process, asked, did policy.Question) {
	err := unix.Kill(p.tgid, unix.SIGKILL)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		w.Log.Error("failed to kill a process after a mismatch", "jail", w.Subject.Jail, "pid", p.tgid, "err", err)
	}
	w.OnMismatch(Mismatch{PID: p.tgid, Approved: asked, Observed: did})
}

// restartWaiting interrupts every thread that waits for the response of an earlier daemon, so
// that the thread repeats its call.
func (w *watch) restartWaiting() error {
	pids, err := jailProcesses(w.Init)
	if err != nil {
		return fmt.Errorf("list the processes of the jail: %w", err)
	}
	w.tracers.run(func() {
		for _, pid := range pids {
			for _, tid := range waitingThreads(pid) {
				if t, err := seize(tid, 0); err == nil {
					t.release()
				}
			}
		}
	})
	return nil
}
