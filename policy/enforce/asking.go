package enforce

import (
	"context"
	"errors"
	"time"

	"glasshouse/internal/notify"
	"glasshouse/policy"
)

// A pendingCall is a system call that waits for a decision. If its process is interrupted,
// frozen or checkpointed meanwhile, the process repeats the call, and the repeated call waits
// for the same decision.
type pendingCall struct {
	nr          int32
	args        [6]uint64
	ctx         context.Context // ends when the answer is no longer needed
	cancel      context.CancelFunc
	questions   map[string]*question
	exitWatched bool          // a goroutine waits for the exit of the process
	answering   chan struct{} // closed when the delivery of the answer is complete; nil unless in progress
}

type question struct {
	done    chan struct{} // closed when the answer is set
	allowed bool          // valid after done is closed
}

// pollInterval is the interval of the check that a call is still pending.
const pollInterval = 100 * time.Millisecond

// errInterrupted means that a call is no longer pending.
var errInterrupted = errors.New("the call was interrupted")

// allowed asks the judge the questions in order and reports whether all are allowed. It blocks
// as long as the judge does.
func (w *watch) allowed(c notify.Call, p *process, qs ...policy.Question) (bool, error) {
	for _, q := range qs {
		if ok, err := w.ask(c, p, q); err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

// ask asks the judge one question, or joins the question if it is already pending.
func (w *watch) ask(c notify.Call, p *process, q policy.Question) (bool, error) {
	a, pending, err := w.joinQuestion(c, p, q)
	if err != nil {
		return false, err
	}
	tick := time.NewTimer(pollInterval)
	defer tick.Stop()
	for {
		select {
		case <-pending.done:
			return pending.allowed, nil
		case <-a.ctx.Done():
			return false, errInterrupted
		case <-tick.C:
			w.watchExit(a, p)
			if !w.Listener.Valid(c.ID) {
				return false, errInterrupted
			}
			tick.Reset(pollInterval)
		}
	}
}

// joinQuestion returns the pending question or starts it. An interrupted call starts no
// question, because its repetition has already been answered.
func (w *watch) joinQuestion(c notify.Call, p *process, q policy.Question) (*pendingCall, *question, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.waiting[p.tid]
	for a != nil && a.answering != nil {
		settling := a.answering
		w.mu.Unlock()
		select {
		case <-settling:
		case <-w.ctx.Done():
		}
		w.mu.Lock()
		a = w.waiting[p.tid]
		if w.ctx.Err() != nil {
			break
		}
	}
	if a != nil && (a.nr != c.Nr || a.args != c.Args || a.ctx.Err() != nil) {
		a.cancel() // the thread now makes another call
		a = nil
	}
	text := q.Action + "\x00" + q.Resource
	if (a == nil || a.questions[text] == nil) && !w.Listener.Valid(c.ID) {
		return nil, nil, errInterrupted
	}
	if a == nil {
		a = &pendingCall{nr: c.Nr, args: c.Args, questions: map[string]*question{}}
		a.ctx, a.cancel = context.WithCancel(w.ctx)
		w.waiting[p.tid] = a
	}
	p.pending = a
	pending := a.questions[text]
	if pending == nil {
		pending = &question{done: make(chan struct{})}
		a.questions[text] = pending
		ctx := withCaller(a.ctx, p.tgid)
		w.wg.Go(func() {
			d := w.Judge.Judge(ctx, q)
			if a.ctx.Err() == nil {
				pending.allowed = d.Effect == policy.Allow
				close(pending.done)
			}
		})
	}
	return a, pending, nil
}

// watchExit cancels a pendingCall when its process exits.
func (w *watch) watchExit(a *pendingCall, p *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.exitWatched {
		return
	}
	a.exitWatched = true
	life, err := p.exitWaiter()
	if err != nil { // it has ended
		a.cancel()
		if w.waiting[p.tid] == a {
			delete(w.waiting, p.tid)
		}
		return
	}
	tid := p.tid
	stop := context.AfterFunc(a.ctx, life.close)
	w.wg.Go(func() {
		defer stop()
		defer life.close()
		life.wait()
		w.drop(tid, a)
	})
}

// beginAnswer marks a call as being answered. The caller then calls settled with keep set if
// the answer could not be delivered: the answer is then kept for the repeated call. Other
// calls of the thread wait until settled is called.
func (w *watch) beginAnswer(p *process) (settled func(keep bool)) {
	a := p.pending
	if a == nil {
		return func(bool) {}
	}
	settling := make(chan struct{})
	w.mu.Lock()
	a.answering = settling
	w.mu.Unlock()
	return func(keep bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		defer close(settling)
		if a.answering == settling {
			a.answering = nil
		}
		if keep && a.ctx.Err() == nil {
			return
		}
		a.cancel()
		if w.waiting[p.tid] == a {
			delete(w.waiting, p.tid)
		}
	}
}

func (w *watch) drop(tid int, a *pendingCall) {
	a.cancel()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting[tid] == a {
		delete(w.waiting, tid)
	}
}
