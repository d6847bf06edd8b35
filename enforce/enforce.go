// Package enforce holds a policy below whoever runs in a jail: programs that are
// started, files that are changed and connections that are made are decided by
// the machine's kernel and a Judge, whatever the agent and its harness say that
// they do.
//
// A seccomp filter stops each such call and asks the daemon. What was asked is
// read from the process, resolved to what it really means, and judged; a call
// that is refused fails with EPERM, one about which a person is asked waits. The
// filter itself knows no policy, so that it can change at any time.
//
// Memory and names can change after they were read. So a program is looked at
// again when it is in place and before its first instruction; a file when it is
// open and before the call returns; and what was agreed to be connected is
// connected here. What has become something else than was agreed to is ended, and
// told as a lie.
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

// A Judge decides. It may wait for a person; ctx ends when nobody waits for the
// answer any more. Whatever is not policy.Allow is refused.
type Judge interface {
	Judge(ctx context.Context, q policy.Question) policy.Decision
}

// A Jail is whose calls are decided.
type Jail struct {
	Subject   policy.Subject
	Init      int    // the host's number of its init, whose own calls are not decided
	Workspace string // the path, in the jail, that edits are relative to; or ""
	Listener  *notify.Listener
	Judge     Judge
	Lied      func(Lie)    // is told of each; nil: nobody is
	Log       *slog.Logger // nil: nowhere
}

// A Lie is a call that did something else than what was asked for. Who made it
// was killed.
type Lie struct {
	PID   int             // the host's
	Asked policy.Question // what was agreed to
	Done  policy.Question // what came to be
}

// Watch decides the calls of a jail until ctx ends or the jail does, and returns
// nil then. The Listener stays the caller's; what waits when Watch ends waits for
// the next Watch. There is one at a time.
//
// A thread that is frozen in the hands of a tracer stays there until it thaws.
// Watch does not wait for that: the kernel takes it out of them when this process
// ends, and what it was about to do it asks the next Watch.
func Watch(ctx context.Context, j Jail) error {
	if j.Log == nil {
		j.Log = slog.New(slog.DiscardHandler)
	}
	if j.Lied == nil {
		j.Lied = func(Lie) {}
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &watch{Jail: j, ctx: ctx, waiting: map[int]*asking{}, tracers: newTracers()}
	defer w.leave()
	defer cancel()
	j.Listener.Resume()
	stop := context.AfterFunc(ctx, j.Listener.Interrupt)
	defer stop()
	shaken := make(chan error, 1)
	w.wg.Go(func() { shaken <- w.shake() })
	select {
	case <-ctx.Done():
	case err := <-shaken:
		if err != nil {
			j.Log.Warn("calls that an earlier daemon had taken up may wait for ever", "jail", j.Subject.Jail, "err", err)
		}
	}
	for {
		c, err := j.Listener.Receive()
		switch {
		case ctx.Err() != nil && err != nil:
			w.finish()
			return nil
		case errors.Is(err, notify.ErrGone):
			return nil
		case err != nil:
			return err
		}
		w.wg.Go(func() { w.decide(c) })
	}
}

// inHand is how long what is in the hands of a tracer may take at the end. It
// takes a moment, unless the jail is frozen.
const inHand = time.Second

// finish sees to its end what is in the hands of a tracer, and asks once more. All
// else that comes waits for the next Watch, which has it ask again.
func (w *watch) finish() {
	w.Listener.Resume()
	late := time.AfterFunc(inHand, w.Listener.Interrupt)
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
		if w.tracers.again(c) {
			w.Listener.Continue(c.ID) // or it has been interrupted, and comes again
		}
	}
}

// leave waits until nobody waits for an answer and, then, nobody traces.
func (w *watch) leave() {
	left := make(chan struct{})
	go func() {
		defer close(left)
		w.wg.Wait()
		w.tracers.close()
	}()
	select {
	case <-left:
	case <-time.After(inHand):
		w.Log.Warn("a jail is frozen while one of its calls is looked at: nobody waits for it", "jail", w.Subject.Jail)
	}
}

// watch is one Watch. There are at most as many goroutines as threads in the
// jail: each waits for one call.
type watch struct {
	Jail
	ctx     context.Context
	wg      sync.WaitGroup
	tracers *tracers
	twins   twins

	mu sync.Mutex
	// +checklocks:mu
	waiting map[int]*asking // by thread
}

// A verdict is what becomes of a call.
type verdict struct {
	errno  unix.Errno // it fails, if not 0
	made   bool       // it was made here, and returns value
	value  int64
	follow follower // is shown what becomes of a call that goes on; nil: nobody looks
}

var (
	goOn    = verdict{}
	refused = verdict{errno: unix.EPERM}
)

// decide answers one call.
func (w *watch) decide(c notify.Call) {
	p, err := w.caller(c)
	if err != nil {
		return // it has ended
	}
	defer p.close()
	if p.tgid == w.Init || w.tracers.again(c) {
		w.answer(c, p, goOn)
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
			w.Log.Error("a call is refused that cannot be read", "jail", w.Subject.Jail, "pid", p.tgid, "call", c.Nr, "err", err)
			v = refused
		}
	}
	w.answer(c, p, v)
}

// answer gives a call its verdict. That nobody waits for it is no error: who
// made it was interrupted, and makes it again, or has ended.
func (w *watch) answer(c notify.Call, p *process, v verdict) {
	var err error
	settled := w.settle(p)
	switch {
	case v.errno != 0:
		err = w.Listener.Refuse(c.ID, v.errno)
	case v.made:
		err = w.Listener.Return(c.ID, v.value)
	case v.follow != nil:
		err = w.tracers.goOn(w, c, p, v.follow)
	default:
		err = w.Listener.Continue(c.ID)
	}
	settled(errors.Is(err, unix.ENOENT))
	if err != nil && !errors.Is(err, unix.ENOENT) && w.ctx.Err() == nil {
		w.Log.Error("a call was not answered", "jail", w.Subject.Jail, "pid", p.tgid, "call", c.Nr, "err", err)
	}
}

// judge finds out what a call means and decides it.
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
