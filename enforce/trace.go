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

// A follower looks at what a call has done that was agreed to.
type follower interface {
	// follow lets the call of a thread go on, in the hands of this thread, and
	// looks at what comes of it.
	follow(w *watch, c notify.Call, p *process) error
}

// tracers are threads that hold others for the moment in which what they did is
// looked at. A process is in the hands of a thread, not of all of ours, so each
// does one such thing from its beginning to its end.
type tracers struct {
	idle chan chan<- func()
	quit chan struct{}
	wg   sync.WaitGroup

	mu sync.Mutex
	// +checklocks:mu
	stepping map[int]notify.Call // threads whose next call is allowed without a decision
}

// keptTracers is how many idle threads are kept.
const keptTracers = 4

func newTracers() *tracers {
	return &tracers{idle: make(chan chan<- func(), keptTracers), quit: make(chan struct{}), stepping: map[int]notify.Call{}}
}

func (t *tracers) close() {
	close(t.quit)
	t.wg.Wait()
}

// run runs f on a thread of its own.
func (t *tracers) run(f func()) {
	var to chan<- func()
	select {
	case to = <-t.idle:
	default:
		to = t.begin()
	}
	finished := make(chan struct{})
	to <- func() { defer close(finished); f() }
	<-finished
}

func (t *tracers) begin() chan<- func() {
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
				return nil // there are enough
			}
		}
	})
	return work
}

// goOn lets a call go on and looks at what comes of it.
func (t *tracers) goOn(w *watch, c notify.Call, p *process, f follower) (err error) {
	t.run(func() { err = f.follow(w, c, p) })
	return err
}

// again tells whether a call is one that was agreed to, and is made anew in the
// hands of a tracer.
func (t *tracers) again(c notify.Call) bool {
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
		// A thread that was let go may be in the hands of the next tracer by now.
		if t.stepping[int(c.TID)].ID == c.ID {
			delete(t.stepping, int(c.TID))
		}
	}
}

// A traced is a thread in the hands of this one.
type traced struct {
	tid  int
	gone bool // it has ended
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

// seize takes a thread, which goes on doing what it does.
func seize(tid int, options uintptr) (*traced, error) {
	if err := ptrace(ptraceSeize, tid, 0, options); err != nil {
		return nil, err
	}
	return &traced{tid: tid}, nil
}

// wait waits until the thread stops, and says why: an event of its tracer's, or
// a signal that it is about to get.
func (t *traced) wait() (event int, signal syscall.Signal, err error) {
	for {
		var ws unix.WaitStatus
		// Who begins a program with another thread than its first gets that one's
		// number: any is waited for. There is no other in the hands of this thread.
		tid, err := unix.Wait4(-1, &ws, unix.WALL|unix.WNOTHREAD, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			t.gone = true
			return 0, 0, err
		case !ws.Stopped():
			if t.gone = true; tid != t.tid {
				t.gone = false
				continue
			}
			return 0, 0, unix.ESRCH
		}
		t.tid = tid
		return int(ws) >> 16, ws.StopSignal(), nil
	}
}

// detach lets the thread go, with the signal that it was about to get. One that
// was killed has no other end than one that is seen: until then nobody else is
// told of it.
func (t *traced) detach(signal syscall.Signal) {
	for !t.gone && ptrace(unix.PTRACE_DETACH, t.tid, 0, uintptr(signal)) != nil {
		t.wait()
	}
}

// release lets a thread go wherever it is.
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

// follow has the kernel start the program and looks at it before its first
// instruction.
func (g *program) follow(w *watch, c notify.Call, p *process) error {
	if !w.Listener.Valid(c.ID) {
		return unix.ENOENT // it was interrupted: the answer is to the call that was made again
	}
	t, err := seize(p.tid, unix.PTRACE_O_TRACEEXEC)
	if err != nil { // an observer holds it, or whoever takes a snapshot
		if err := w.Listener.Continue(c.ID); err != nil {
			return err
		}
		g.lookLater(w, p)
		return nil
	}
	if err := w.Listener.Continue(c.ID); err != nil {
		t.release()
		return err
	}
	// If the program cannot be started the thread stops on its way back.
	if err := ptrace(ptraceInterrupt, t.tid, 0, 0); err != nil {
		t.detach(0)
		return nil
	}
	event, signal, err := t.wait()
	if err != nil {
		return nil // it has ended
	}
	if event == eventExec {
		g.look(w, p)
	}
	if event != 0 {
		signal = 0
	}
	t.detach(signal)
	return nil
}

// lookLater looks at a program that could not be held.
func (g *program) lookLater(w *watch, p *process) {
	var before unix.Stat_t
	unix.Stat(fmt.Sprintf("/proc/%d/exe", p.tgid), &before)
	for range 100 {
		time.Sleep(500 * time.Microsecond)
		if g.is(p) {
			return
		}
		var now unix.Stat_t
		if unix.Stat(fmt.Sprintf("/proc/%d/exe", p.tgid), &now) != nil {
			return
		}
		if now.Ino != before.Ino || now.Dev != before.Dev {
			g.look(w, p)
			return
		}
	}
}

// is tells whether a process runs what was agreed to.
func (g *program) is(p *process) bool {
	var st unix.Stat_t
	if unix.Stat(fmt.Sprintf("/proc/%d/exe", p.tgid), &st) != nil || st.Dev != g.exe.Dev || st.Ino != g.exe.Ino {
		return false
	}
	have, err := readProc(p.tgid, "cmdline")
	want := strings.Join(g.argv, "\x00")
	return err == nil && (have == want+"\x00" || !g.whole && strings.HasPrefix(have, want))
}

// look compares the program that a process is about to run with what was agreed
// to, and ends it if it is none that may run.
func (g *program) look(w *watch, p *process) {
	if g.is(p) {
		return
	}
	have, err := readProc(p.tgid, "cmdline")
	exe := &place{fd: -1}
	if err == nil {
		exe.fd, err = unix.Open(fmt.Sprintf("/proc/%d/exe", p.tgid), unix.O_PATH|unix.O_CLOEXEC, 0)
	}
	if err == nil {
		err = exe.look()
	}
	defer exe.close()
	if err != nil {
		return // it has ended
	}
	argv := strings.Split(strings.TrimSuffix(have, "\x00"), "\x00")
	actual, now := &program{}, &process{tid: p.tgid, tgid: p.tgid, root: -1}
	defer now.close()
	if w.name(now, actual, exe, exe.path, argv) == nil && w.wouldAllow(actual.asked) {
		return
	}
	w.lied(p, g.asked[0], policy.Question{Subject: w.Subject, Action: policy.ActionRun, Resource: commandLine(argv),
		Attributes: map[string]string{"observed": "true", "argv0": argv[0], "exe": exe.path}})
}

// follow has the call made in the hands of this thread, and looks at what it did
// before it returns. The answer that waits is not given: the thread is interrupted
// and makes the call again.
func (d *done) follow(w *watch, c notify.Call, p *process) error {
	defer d.close()
	if !w.Listener.Valid(c.ID) {
		return unix.ENOENT
	}
	t, err := seize(p.tid, unix.PTRACE_O_TRACESYSGOOD)
	if err != nil {
		return w.Listener.Continue(c.ID)
	}
	forget := w.tracers.expect(c)
	letGo := func(signal syscall.Signal) {
		forget() // before the thread can make the same call again, about something else
		t.detach(signal)
	}
	defer forget()
	if err := ptrace(ptraceInterrupt, t.tid, 0, 0); err != nil {
		letGo(0)
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
			info, err := t.call()
			switch {
			case err != nil, state == 0 && (info.op != entered || int32(info.nr) != c.Nr || info.args != c.Args):
				letGo(0) // the call was made meanwhile, and this is another, about which is asked
				return nil
			case state == 0:
				state = entered
			case info.op == left:
				// It was interrupted once more, and makes the call yet again.
				if again := -info.value; again == 512 || again == 513 || again == 514 {
					state = 0
					break
				}
				if what, differs := d.differs(w, c, p, info.value); differs {
					asked := policy.Question{Subject: w.Subject, Action: policy.ActionRead}
					if len(d.asked) > 0 {
						asked = d.asked[len(d.asked)-1]
					}
					w.lied(p, asked, what)
				}
				letGo(0)
				return nil
			}
		case event == 0: // a signal, which may lead the thread elsewhere
			letGo(signal)
			if state == 0 {
				return unix.ENOENT // the call was not made so far
			}
			return nil
		case event != eventStop:
			letGo(0)
			return nil
		}
		if err := ptrace(unix.PTRACE_SYSCALL, t.tid, 0, 0); err != nil {
			letGo(0)
			return nil
		}
	}
}

// callInfo is the beginning of the kernel's struct ptrace_syscall_info.
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

// call asks where in a call a stopped thread is.
func (t *traced) call() (info callInfo, err error) {
	var raw [11]uint64 // 88 bytes
	_, _, e := unix.Syscall6(unix.SYS_PTRACE, ptraceGetSyscallInfo, uintptr(t.tid), unsafe.Sizeof(raw), uintptr(unsafe.Pointer(&raw)), 0, 0)
	if e != 0 {
		return info, e
	}
	info.op, info.nr, info.args, info.value = byte(raw[0]), raw[3], [6]uint64(raw[4:10]), int64(raw[3])
	runtime.KeepAlive(&raw)
	return info, nil
}

// soon is how long a judge may take where nobody can be asked.
const soon = 2 * time.Second

// wouldAllow reports whether all of it may be without anybody being asked.
func (w *watch) wouldAllow(qs []policy.Question) bool {
	ctx, cancel := context.WithTimeout(w.ctx, soon)
	defer cancel()
	for _, q := range qs {
		if w.Judge.Judge(ctx, q).Effect != policy.Allow {
			return false
		}
	}
	return true
}

// lied ends a process that has something done which was not agreed to.
func (w *watch) lied(p *process, asked, did policy.Question) {
	err := unix.Kill(p.tgid, unix.SIGKILL)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		w.Log.Error("a process that lies was not ended", "jail", w.Subject.Jail, "pid", p.tgid, "err", err)
	}
	w.Lied(Lie{PID: p.tgid, Asked: asked, Done: did})
}

// shake has every thread make its call anew that waits for an answer nobody will
// give: it was taken up by a daemon that is no more.
func (w *watch) shake() error {
	pids, err := jailProcesses(w.Init)
	if err != nil {
		return err
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
