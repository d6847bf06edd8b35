package gateway

import (
	"context"
	"path"
	"slices"
	"strings"
	"time"

	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/policy"
	"glasshouse/run"
)

// Decide decides what an agent's own harness asks, and waits while a person is asked.
func (g *Gateway) Decide(ctx context.Context, c Caller, q policy.Question) (govern.Verdict, error) {
	q.Resource = c.near(q)
	v, err := g.decide(ctx, c, q)
	if err == nil && v.Instead == "" {
		g.answered(c.Jail, q, v)
	}
	return v, err
}

func (g *Gateway) decide(ctx context.Context, c Caller, q policy.Question) (govern.Verdict, error) {
	q.Subject = c.subject()
	if c.Run == "" {
		return g.cfg.Kernel.Judge(ctx, govern.Ask{Question: q})
	}
	r, err := g.cfg.Runs.Get(ctx, c.Run)
	if err != nil {
		return govern.Verdict{}, err
	}
	v, err := g.inquire(ctx, r, govern.Ask{Question: q, Parent: r.Entry})
	if err != nil {
		return v, err
	}
	return v, refusal(q, v)
}

// An inquiry is a question that a person is asked. It goes on when whoever asked hangs up,
// who does as soon as the jail is written down: a process that goes on in another body
// has none of its connections any more, and asks again.
type inquiry struct {
	done   chan struct{}
	cancel context.CancelFunc
	v      govern.Verdict // valid after done, as err
	err    error

	heard bool // somebody waits for it, or has waited until its end. guarded by Gateway.mu
}

// A matter is what an inquiry is about.
type matter struct {
	run                       id.Run
	action, resource, context string
}

// askedAgain is how long an inquiry waits for whoever asked to come back.
const askedAgain = 15 * time.Second

// inquire decides a question of a run. Each inquiry is heard by one who asks: what is allowed
// once is not allowed twice.
func (g *Gateway) inquire(ctx context.Context, r run.Run, a govern.Ask) (govern.Verdict, error) {
	if g.cfg.Kernel.Decide(a.Question).Effect != policy.Ask {
		return g.cfg.Kernel.Judge(ctx, a)
	}
	m := matter{r.ID, a.Action, a.Resource, string(a.Context)}
	p := g.hear(m, r, a)
	select {
	case <-p.done:
		g.forget(m, p, true)
		return p.v, p.err
	case <-ctx.Done():
		g.mu.Lock()
		p.heard = false
		g.mu.Unlock()
		time.AfterFunc(askedAgain, func() { g.forget(m, p, false) })
		return govern.Verdict{}, context.Cause(ctx)
	}
}

// hear returns an inquiry that nobody waits for any more, or a new one.
func (g *Gateway) hear(m matter, r run.Run, a govern.Ask) *inquiry {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.inquiries[m] {
		if !p.heard {
			p.heard = true
			return p
		}
	}
	p := &inquiry{done: make(chan struct{}), heard: true}
	var own context.Context
	own, p.cancel = context.WithCancel(g.ctx)
	g.inquiries[m] = append(g.inquiries[m], p)
	g.wg.Go(func() {
		defer close(p.done)
		p.err = g.waiting(own, r, a.Question, func() (err error) {
			p.v, err = g.cfg.Kernel.Judge(own, a)
			return err
		})
	})
	return p
}

// forget ends an inquiry that was heard to its end, or that nobody has come back for.
func (g *Gateway) forget(m matter, p *inquiry, heard bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.heard != heard {
		return // somebody has come back
	}
	p.cancel()
	rest := slices.DeleteFunc(g.inquiries[m], func(o *inquiry) bool { return o == p })
	if g.inquiries[m] = rest; len(rest) == 0 {
		delete(g.inquiries, m)
	}
}

// near is what a question is about, with a file of the workspace named as people name
// it: rules know both names.
func (c Caller) near(q policy.Question) string {
	if q.Action == policy.ActionRun || !path.IsAbs(q.Resource) || c.Workspace == "" {
		return q.Resource
	}
	if rel, ok := strings.CutPrefix(path.Clean(q.Resource), strings.TrimRight(c.Workspace, "/")+"/"); ok {
		return rel
	}
	return q.Resource
}

// An answer is what a harness was told that it may do, and has not said yet that it does.
type answer struct {
	action, resource string
	v                govern.Verdict
}

// maxAnswers bounds those of one jail: harnesses that never say what they do are none.
const maxAnswers = 64

func (g *Gateway) answered(j id.Jail, q policy.Question, v govern.Verdict) {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := append(g.answers[j], answer{q.Action, q.Resource, v})
	g.answers[j] = all[max(0, len(all)-maxAnswers):]
}

// heard takes the answer to a question back.
func (g *Gateway) heard(j id.Jail, q policy.Question) (govern.Verdict, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, a := range g.answers[j] {
		if a.action == q.Action && a.resource == q.Resource {
			g.answers[j] = slices.Delete(g.answers[j], i, i+1)
			return a.v, true
		}
	}
	return govern.Verdict{}, false
}

// Records reports whether the gateway itself decides about a tool of a harness, and records
// that, when the tool is used: it is one of those that the harness uses by calling the gateway.
func Records(tool string) bool { return tool == policy.ActionCoordinate || tool == actionTask }

// Said records what an agent's harness says that it does. What it has asked about is on
// record.
func (g *Gateway) Said(_ context.Context, c Caller, q policy.Question) govern.Verdict {
	q.Subject, q.Resource = c.subject(), c.near(q)
	if v, ok := g.heard(c.Jail, q); ok {
		return v
	}
	return g.cfg.Kernel.Said(q)
}
