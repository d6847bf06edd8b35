package enforce

import (
	"context"
	"errors"
	"time"

	"glasshouse/internal/notify"
	"glasshouse/policy"
)

// An asking is a call about which somebody may be thinking. The process that
// makes it may be interrupted meanwhile, frozen, or written down: then it makes
// the call anew, and that is still the same asking.
type asking struct {
	nr        int32
	args      [6]uint64
	ctx       context.Context // ends when nobody wants to know any more
	cancel    context.CancelFunc
	questions map[string]*question
	watched   bool          // who asks has been asking for so long that its life is watched
	settling  chan struct{} // closed when it is known whether the answer was taken; nil unless it is being given
}

type question struct {
	done    chan struct{} // closed when there is an answer
	allowed bool          // once done
}

// lookAgain is how often it is looked whether who asks is still there.
const lookAgain = 100 * time.Millisecond

// errInterrupted means that a call does not wait any more for its answer.
var errInterrupted = errors.New("the call was interrupted")

// allowed puts questions to the judge, one after the other, and reports whether
// all are allowed. It waits as long as the judge does.
func (w *watch) allowed(c notify.Call, p *process, qs ...policy.Question) (bool, error) {
	for _, q := range qs {
		if ok, err := w.ask(c, p, q); err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

// ask puts one question to the judge, unless it is being thought about already.
func (w *watch) ask(c notify.Call, p *process, q policy.Question) (bool, error) {
	a, pending, err := w.join(c, p, q)
	if err != nil {
		return false, err
	}
	tick := time.NewTimer(lookAgain)
	defer tick.Stop()
	for {
		select {
		case <-pending.done:
			return pending.allowed, nil
		case <-a.ctx.Done():
			return false, errInterrupted
		case <-tick.C:
			w.live(a, p)
			if !w.Listener.Valid(c.ID) {
				return false, errInterrupted
			}
			tick.Reset(lookAgain)
		}
	}
}

// join finds the question that is pending, or begins it. A call that was interrupted
// begins none: who made it has made it again, and that has been answered meanwhile.
func (w *watch) join(c notify.Call, p *process, q policy.Question) (*asking, *question, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.waiting[p.tid]
	for a != nil && a.settling != nil {
		settling := a.settling
		w.mu.Unlock()
		select {
		case <-settling:
		case <-w.ctx.Done():
		}
		w.mu.Lock()
		if a = w.waiting[p.tid]; w.ctx.Err() != nil {
			break
		}
	}
	if a != nil && (a.nr != c.Nr || a.args != c.Args || a.ctx.Err() != nil) {
		a.cancel() // the thread has gone on to something else
		a = nil
	}
	text := q.Action + "\x00" + q.Resource
	if (a == nil || a.questions[text] == nil) && !w.Listener.Valid(c.ID) {
		return nil, nil, errInterrupted
	}
	if a == nil {
		a = &asking{nr: c.Nr, args: c.Args, questions: map[string]*question{}}
		a.ctx, a.cancel = context.WithCancel(w.ctx)
		w.waiting[p.tid] = a
	}
	p.asking = a
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

// live ends an asking when its process does.
func (w *watch) live(a *asking, p *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.watched {
		return
	}
	a.watched = true
	life, err := p.life()
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

// settle says that a call is about to be answered. The caller says afterwards
// whether nobody took the answer: then it is the answer to the call that is made
// anew. Whatever the thread asks meanwhile waits for that.
func (w *watch) settle(p *process) (settled func(keep bool)) {
	a := p.asking
	if a == nil {
		return func(bool) {}
	}
	settling := make(chan struct{})
	w.mu.Lock()
	a.settling = settling
	w.mu.Unlock()
	return func(keep bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		defer close(settling)
		if a.settling == settling {
			a.settling = nil
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

func (w *watch) drop(tid int, a *asking) {
	a.cancel()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting[tid] == a {
		delete(w.waiting, tid)
	}
}
