package gateway

import (
	"context"
	"path"
	"slices"
	"strings"
	"time"

	"glasshouse/agents/run"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/policy"
)

// Decide evaluates a question of an agent's harness. It blocks while an approval is pending.
func (g *Gateway) Decide(ctx context.Context, c Caller, q policy.Question) (govern.Verdict, error) {
	q.Resource = c.resourceName(q)
	v, err := g.decide(ctx, c, q)
	if err == nil && v.Instead == "" {
		g.rememberDecision(c.Jail, q, v)
	}
	return v, err
}

// decide evaluates a question of a caller, with or without a run. It returns fault.Denied unless
// the action of a run is allowed.
func (g *Gateway) decide(ctx context.Context, c Caller, q policy.Question) (govern.Verdict, error) {
	q.Subject = c.subject()
	if c.Run == "" {
		return g.cfg.Policy.Evaluate(ctx, govern.Ask{Question: q})
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

// A pendingApproval is a question that waits for an approval. It outlives the request of the
// caller: a snapshot breaks the connections of the jail's processes, and a restored process
// repeats its request.
type pendingApproval struct {
	done    chan struct{}
	cancel  context.CancelFunc
	verdict govern.Verdict // like err, valid after done is closed
	err     error

	hasWaiter bool // a caller waits, or has received the verdict; guarded by Gateway.mu
}

// An approvalKey identifies the subject of a pending approval.
type approvalKey struct {
	run                       id.Run
	action, resource, context string
}

// reconnectTimeout is how long a pending approval waits for its caller to reconnect.
const reconnectTimeout = 15 * time.Second

// evaluateShared evaluates a question of a run. If it needs an approval, a repeated request
// joins the pending one. Each approval is received by one caller only, since an action that is
// allowed once must not happen twice.
func (g *Gateway) evaluateShared(ctx context.Context, r run.Run, a govern.Ask) (govern.Verdict, error) {
	if g.cfg.Policy.Decide(a.Question).Effect != policy.Ask {
		return g.cfg.Policy.Evaluate(ctx, a)
	}
	key := approvalKey{r.ID, a.Action, a.Resource, string(a.Context)}
	p := g.joinApproval(key, r, a)
	select {
	case <-p.done:
		g.dropApproval(key, p, true)
		return p.verdict, p.err
	case <-ctx.Done():
		g.mu.Lock()
		p.hasWaiter = false
		g.mu.Unlock()
		time.AfterFunc(reconnectTimeout, func() { g.dropApproval(key, p, false) })
		return govern.Verdict{}, context.Cause(ctx)
	}
}

// joinApproval returns a pending approval without a waiting caller, or a new one.
func (g *Gateway) joinApproval(key approvalKey, r run.Run, a govern.Ask) *pendingApproval {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.pendingApprovals[key] {
		if !p.hasWaiter {
			p.hasWaiter = true
			return p
		}
	}
	p := &pendingApproval{done: make(chan struct{}), hasWaiter: true}
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(g.ctx)
	g.pendingApprovals[key] = append(g.pendingApprovals[key], p)
	g.wg.Go(func() {
		defer close(p.done)
		p.err = g.pausedForApproval(ctx, r, a.Question, func() (err error) {
			p.verdict, err = g.cfg.Policy.Evaluate(ctx, a)
			return err
		})
	})
	return p
}

// dropApproval removes an approval whose verdict was received, or for which no caller has
// reconnected.
func (g *Gateway) dropApproval(key approvalKey, p *pendingApproval, hadWaiter bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.hasWaiter != hadWaiter {
		return // a caller has reconnected
	}
	p.cancel()
	rest := slices.DeleteFunc(g.pendingApprovals[key], func(o *pendingApproval) bool { return o == p })
	g.pendingApprovals[key] = rest
	if len(rest) == 0 {
		delete(g.pendingApprovals, key)
	}
}

// resourceName returns the resource of a question. Files in the workspace get their relative
// name; policies match either form.
func (c Caller) resourceName(q policy.Question) string {
	if q.Action == policy.ActionRun || !path.IsAbs(q.Resource) || c.Workspace == "" {
		return q.Resource
	}
	if rel, ok := strings.CutPrefix(path.Clean(q.Resource), strings.TrimRight(c.Workspace, "/")+"/"); ok {
		return rel
	}
	return q.Resource
}

// A harnessDecision is a decision that was sent to a harness and whose action the harness has
// not reported yet.
type harnessDecision struct {
	action, resource string
	verdict          govern.Verdict
}

// maxHarnessDecisions limits the stored decisions of one jail. Some harnesses never report
// actions.
const maxHarnessDecisions = 64

// rememberDecision stores a decision until the harness reports the action.
func (g *Gateway) rememberDecision(j id.Jail, q policy.Question, v govern.Verdict) {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := append(g.harnessDecisions[j], harnessDecision{q.Action, q.Resource, v})
	g.harnessDecisions[j] = all[max(0, len(all)-maxHarnessDecisions):]
}

// takeDecision removes and returns the stored decision about a question.
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

// RecordsToolUse reports whether the gateway itself evaluates and records the use of a harness tool.
// That holds for tools that the harness implements by calling the gateway.
func RecordsToolUse(tool string) bool { return tool == policy.ActionCoordinate || tool == actionTask }

// RecordAction records an action that an agent's harness reports. If the harness has asked before, the
// decision is already in the audit log.
func (g *Gateway) RecordAction(_ context.Context, c Caller, q policy.Question) govern.Verdict {
	q.Subject, q.Resource = c.subject(), c.resourceName(q)
	if v, ok := g.takeDecision(c.Jail, q); ok {
		return v
	}
	return g.cfg.Policy.RecordAction(q)
}
