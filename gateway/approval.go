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
	q.Resource = c.resourceName(q)
	v, err := g.decide(ctx, c, q)
	if err == nil && v.Instead == "" {
		g.rememberDecision(c.Jail, q, v)
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
	v, err := g.evaluateShared(ctx, r, govern.Ask{Question: q, Parent: r.Entry})
	if err != nil {
		return v, err
	}
	return v, denialError(q, v)
}

// An pendingApproval is a question that a person is asked. It goes on when whoever asked hangs up,
// who does as soon as the jail is written down: a process that goes on in another body
// has none of its connections any more, and asks again.
type pendingApproval struct {
	done   chan struct{}
	cancel context.CancelFunc
	verdict      govern.Verdict // valid after done, as err
	err    error

	hasWaiter bool // somebody waits for it, or has waited until its end. guarded by Gateway.mu
}

// A approvalKey is what an inquiry is about.
type approvalKey struct {
	run                       id.Run
	action, resource, context string
}

// reconnectTimeout is how long an inquiry waits for whoever asked to come back.
const reconnectTimeout = 15 * time.Second

// evaluateShared decides a question of a run. Each inquiry is heard by one who asks: what is allowed
// once is not allowed twice.
func (g *Gateway) evaluateShared(ctx context.Context, r run.Run, a govern.Ask) (govern.Verdict, error) {
	if g.cfg.Kernel.Decide(a.Question).Effect != policy.Ask {
		return g.cfg.Kernel.Judge(ctx, a)
	}
	m := approvalKey{r.ID, a.Action, a.Resource, string(a.Context)}
	p := g.joinApproval(m, r, a)
	select {
	case <-p.done:
		g.dropApproval(m, p, true)
		return p.verdict, p.err
	case <-ctx.Done():
		g.mu.Lock()
		p.hasWaiter = false
		g.mu.Unlock()
		time.AfterFunc(reconnectTimeout, func() { g.dropApproval(m, p, false) })
		return govern.Verdict{}, context.Cause(ctx)
	}
}

// joinApproval returns an inquiry that nobody waits for any more, or a new one.
func (g *Gateway) joinApproval(m approvalKey, r run.Run, a govern.Ask) *pendingApproval {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.pendingApprovals[m] {
		if !p.hasWaiter {
			p.hasWaiter = true
			return p
		}
	}
	p := &pendingApproval{done: make(chan struct{}), hasWaiter: true}
	var own context.Context
	own, p.cancel = context.WithCancel(g.ctx)
	g.pendingApprovals[m] = append(g.pendingApprovals[m], p)
	g.wg.Go(func() {
		defer close(p.done)
		p.err = g.pausedForApproval(own, r, a.Question, func() (err error) {
			p.verdict, err = g.cfg.Kernel.Judge(own, a)
			return err
		})
	})
	return p
}

// dropApproval ends an inquiry that was heard to its end, or that nobody has come back for.
func (g *Gateway) dropApproval(m approvalKey, p *pendingApproval, heard bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.hasWaiter != heard {
		return // somebody has come back
	}
	p.cancel()
	rest := slices.DeleteFunc(g.pendingApprovals[m], func(o *pendingApproval) bool { return o == p })
	if g.pendingApprovals[m] = rest; len(rest) == 0 {
		delete(g.pendingApprovals, m)
	}
}

// resourceName is what a question is about, with a file of the workspace named as people name
// it: rules know both names.
func (c Caller) resourceName(q policy.Question) string {
	if q.Action == policy.ActionRun || !path.IsAbs(q.Resource) || c.Workspace == "" {
		return q.Resource
	}
	if rel, ok := strings.CutPrefix(path.Clean(q.Resource), strings.TrimRight(c.Workspace, "/")+"/"); ok {
		return rel
	}
	return q.Resource
}

// An harnessDecision is what a harness was told that it may do, and has not said yet that it does.
type harnessDecision struct {
	action, resource string
	verdict                govern.Verdict
}

// maxHarnessDecisions bounds those of one jail: harnesses that never say what they do are none.
const maxHarnessDecisions = 64

func (g *Gateway) rememberDecision(j id.Jail, q policy.Question, v govern.Verdict) {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := append(g.harnessDecisions[j], harnessDecision{q.Action, q.Resource, v})
	g.harnessDecisions[j] = all[max(0, len(all)-maxHarnessDecisions):]
}

// takeDecision takes the answer to a question back.
func (g *Gateway) takeDecision(j id.Jail, q policy.Question) (govern.Verdict, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, a := range g.harnessDecisions[j] {
		if a.action == q.Action && a.resource == q.Resource {
			g.harnessDecisions[j] = slices.Delete(g.harnessDecisions[j], i, i+1)
			return a.verdict, true
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
	q.Subject, q.Resource = c.subject(), c.resourceName(q)
	if v, ok := g.takeDecision(c.Jail, q); ok {
		return v
	}
	return g.cfg.Kernel.Said(q)
}
