// Package enforce applies a policy to the system calls of a jail. A seccomp filter
// (seccomp_unotify(2)) suspends each call that starts a program, changes a file or opens a
// connection, and a Judge decides it. The decision does not depend on what the agent or its
// harness reports.
//
// The daemon reads the arguments from the memory of the process and resolves them to files,
// command lines and addresses. A denied call fails with EPERM. A call that needs approval
// waits for it. The filter contains no policy, so the policy can change at any time.
//
// Memory and names can change after they were read (time-of-check-to-time-of-use). Therefore a
// program is verified again after execve and before its first instruction, a file is verified
// after it was opened and before the call returns, and the daemon itself makes the approved
// connections. A process whose call did something else than what was approved is killed and
// reported as a mismatch.
package enforce

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/internal/notify"
	"glasshouse/policy"
)

// A Judge decides questions. Judge may block until an approver answers. ctx ends when the
// answer is no longer needed. Every effect other than policy.Allow denies the call.
type Judge interface {
	Judge(ctx context.Context, q policy.Question) policy.Decision
}

// A Jail describes the jail whose calls are decided.
type Jail struct {
	Subject    policy.Subject
	Init       int    // pid of its init on the host; the calls of init are not decided
	Workspace  string // path in the jail that edits are relative to, or ""
	Listener   *notify.Listener
	Judge      Judge
	OnMismatch func(Mismatch) // called for each mismatch; may be nil
	Log        *slog.Logger   // nil discards
}

// A Mismatch reports a call that did something other than what was approved. The process that
// made the call was killed.
type Mismatch struct {
	PID      int             // pid on the host
	Approved policy.Question // what was approved
	Observed policy.Question // what happened
}

// Watch decides the calls of a jail until ctx ends or the jail ends, and then returns nil. The
// caller keeps ownership of the Listener. A call that is pending when Watch ends stays
// suspended until the next Watch. At most one Watch may run per jail.
//
// Watch does not wait for a traced thread that is frozen. The kernel detaches the thread when
// this process exits, and the thread repeats its call for the next Watch.
func Watch(ctx context.Context, j Jail) error {
	if j.Log == nil {
		j.Log = slog.New(slog.DiscardHandler)
	}
	if j.OnMismatch == nil {
		j.OnMismatch = func(Mismatch) {}
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &watch{Jail: j, ctx: ctx, waiting: map[int]*pendingCall{}, tracers: newTracers()}
	defer w.shutDown()
	defer cancel()
	j.Listener.Resume()
	stop := context.AfterFunc(ctx, j.Listener.Interrupt)
	defer stop()
	shaken := make(chan error, 1)
	w.wg.Go(func() { shaken <- w.restartWaiting() })
	select {
	case <-ctx.Done():
	case err := <-shaken:
		if err != nil {
			j.Log.Warn("calls received by an earlier daemon may wait forever", "jail", j.Subject.Jail, "err", err)
		}
	}
	for {
		c, err := j.Listener.Receive()
		switch {
		case ctx.Err() != nil && err != nil:
			w.drainTracers()
			return nil
		case errors.Is(err, notify.ErrGone):
			return nil
		case err != nil:
			return err
		}
		w.wg.Go(func() { w.decide(c) })
	}
}

// tracerTimeout limits the wait for traced threads at the end of a Watch. Tracing takes a
// moment unless the jail is frozen.
const tracerTimeout = time.Second

// drainTracers lets the traced calls finish, which includes their restarts. All other calls
// are left for the next Watch.
func (w *watch) drainTracers() {
	w.Listener.Resume()
	late := time.AfterFunc(tracerTimeout, w.Listener.Interrupt)
	defer late.Stop()
	go func() {
		w.wg.Wait()
		w.Listener.Interrupt()
	}()
	for {
		c, err := w.Listener.Receive()
		if err != nil {
			return
		}
		if w.tracers.isRestart(c) {
			w.Listener.Continue(c.ID) // an error means that it was interrupted and will be repeated
		}
	}
}

// shutDown waits for the goroutines of the watch and then stops the tracers.
func (w *watch) shutDown() {
	left := make(chan struct{})
	go func() {
		defer close(left)
		w.wg.Wait()
		w.tracers.close()
	}()
	select {
	case <-left:
	case <-time.After(tracerTimeout):
		w.Log.Warn("not waiting for a traced call because the jail is frozen", "jail", w.Subject.Jail)
	}
}

// watch is the state of one Watch call. It has at most one goroutine per thread of the jail,
// because a thread waits for one call at a time.
type watch struct {
	Jail
	ctx     context.Context
	wg      sync.WaitGroup
	tracers *tracers
	image   imagePrograms

	mu sync.Mutex
	// +checklocks:mu
	waiting map[int]*pendingCall // by thread
}

// A verdict is the response to a call.
type verdict struct {
	errno     unix.Errno // if not 0, the call fails with it
	done      bool       // the daemon made the call, which returns value
	value     int64
	inspector inspector // traces and checks the continued call; may be nil
}

var (
	proceed = verdict{}
	refused = verdict{errno: unix.EPERM}
)

// decide decides one call and responds to it.
func (w *watch) decide(c notify.Call) {
	p, err := w.caller(c)
	if err != nil {
		return // it has exited
	}
	defer p.close()
	if p.tgid == w.Init || w.tracers.isRestart(c) {
		w.answer(c, p, proceed)
		return
	}
	v, err := w.judge(c, p)
	if errors.Is(err, errInterrupted) {
		return
	}
	if err != nil {
		if !w.Listener.Valid(c.ID) {
			return
		}
		if errno, ok := errors.AsType[unix.Errno](err); ok {
			v = verdict{errno: errno}
		} else {
			w.Log.Error("denied a call whose arguments cannot be read", "jail", w.Subject.Jail, "pid", p.tgid, "call", c.Nr, "err", err)
			v = refused
		}
	}
	w.answer(c, p, v)
}

// answer sends the response to a call. ENOENT is not an error: the process was interrupted and
// will repeat the call, or it has exited.
func (w *watch) answer(c notify.Call, p *process, v verdict) {
	var err error
	settled := w.beginAnswer(p)
	switch {
	case v.errno != 0:
		err = w.Listener.Refuse(c.ID, v.errno)
	case v.done:
		err = w.Listener.Return(c.ID, v.value)
	case v.inspector != nil:
		err = w.tracers.inspect(w, c, p, v.inspector)
	default:
		err = w.Listener.Continue(c.ID)
	}
	settled(errors.Is(err, unix.ENOENT))
	if err != nil && !errors.Is(err, unix.ENOENT) && w.ctx.Err() == nil {
		w.Log.Error("failed to respond to a call", "jail", w.Subject.Jail, "pid", p.tgid, "call", c.Nr, "err", err)
	}
}

// judge resolves the arguments of a call and decides it.
func (w *watch) judge(c notify.Call, p *process) (verdict, error) {
	switch {
	case calls.exec[c.Nr]:
		return w.exec(c, p)
	case calls.connect[c.Nr]:
		return w.connect(c, p)
	case calls.forbidden[c.Nr]:
		return refused, nil
	}
	if e, ok := calls.edits[c.Nr]; ok {
		return w.edit(c, p, e)
	}
	return refused, nil
}
