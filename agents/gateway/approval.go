package gateway

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/policy"
)

// decisions evaluates the questions of agents. While an approval is pending, the run is paused.
type decisions struct {
	*core
	checkpoints *checkpoints

	mu sync.Mutex
	// +checklocks:mu
	harnessDecisions map[id.Jail][]harnessDecision // sent to harnesses, oldest first
	// +checklocks:mu
	pendingApprovals map[approvalKey][]*pendingApproval
}

// Decide evaluates a question of an agent's harness. It blocks while an approval is pending.
func (ds *decisions) Decide(ctx context.Context, c Caller, q policy.Question) (govern.Verdict, error) {
	q.Resource = c.resourceName(q)
	v, err := ds.decide(ctx, c, q)
	if err == nil && v.Instead == "" {
		ds.rememberDecision(c.Jail, q, v)
	}
	return v, err
}

// decide evaluates a question of a caller, with or without a run. It returns fault.Denied unless
// the action of a run is allowed.
func (ds *decisions) decide(ctx context.Context, c Caller, q policy.Question) (govern.Verdict, error) {
	q.Subject = c.subject()
	if c.Run == "" {
		return ds.cfg.Policy.Evaluate(ctx, govern.Ask{Question: q})
	}
	r, err := ds.cfg.Runs.Get(ctx, c.Run)
	if err != nil {
		return govern.Verdict{}, err
	}
	v, err := ds.evaluateShared(ctx, r, govern.Ask{Question: q, Parent: r.Entry})
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

	hasWaiter bool // a caller waits, or has received the verdict; guarded by decisions.mu
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
func (ds *decisions) evaluateShared(ctx context.Context, r run.Run, a govern.Ask) (govern.Verdict, error) {
	if ds.cfg.Policy.Decide(a.Question).Effect != policy.Ask {
		return ds.cfg.Policy.Evaluate(ctx, a)
	}
	key := approvalKey{r.ID, a.Action, a.Resource, string(a.Context)}
	p := ds.joinApproval(key, r, a)
	select {
	case <-p.done:
		ds.dropApproval(key, p, true)
		return p.verdict, p.err
	case <-ctx.Done():
		ds.mu.Lock()
		p.hasWaiter = false
		ds.mu.Unlock()
		time.AfterFunc(reconnectTimeout, func() { ds.dropApproval(key, p, false) })
		return govern.Verdict{}, context.Cause(ctx)
	}
}

// joinApproval returns a pending approval without a waiting caller, or a new one.
func (ds *decisions) joinApproval(key approvalKey, r run.Run, a govern.Ask) *pendingApproval {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	for _, p := range ds.pendingApprovals[key] {
		if !p.hasWaiter {
			p.hasWaiter = true
			return p
		}
	}
	p := &pendingApproval{done: make(chan struct{}), hasWaiter: true}
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(ds.ctx)
	ds.pendingApprovals[key] = append(ds.pendingApprovals[key], p)
	ds.wg.Go(func() {
		defer close(p.done)
		p.err = ds.pausedForApproval(ctx, r, a.Question, func() (err error) {
			p.verdict, err = ds.cfg.Policy.Evaluate(ctx, a)
			return err
		})
	})
	return p
}

// dropApproval removes an approval whose verdict was received, or for which no caller has
// reconnected.
func (ds *decisions) dropApproval(key approvalKey, p *pendingApproval, hadWaiter bool) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	if p.hasWaiter != hadWaiter {
		return // a caller has reconnected
	}
	p.cancel()
	rest := slices.DeleteFunc(ds.pendingApprovals[key], func(o *pendingApproval) bool { return o == p })
	ds.pendingApprovals[key] = rest
	if len(rest) == 0 {
		delete(ds.pendingApprovals, key)
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
func (ds *decisions) rememberDecision(j id.Jail, q policy.Question, v govern.Verdict) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	all := append(ds.harnessDecisions[j], harnessDecision{q.Action, q.Resource, v})
	ds.harnessDecisions[j] = all[max(0, len(all)-maxHarnessDecisions):]
}

// forget discards the stored decisions about a jail.
func (ds *decisions) forget(j id.Jail) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	delete(ds.harnessDecisions, j)
}

// takeDecision removes and returns the stored decision about a question.
func (ds *decisions) takeDecision(j id.Jail, q policy.Question) (govern.Verdict, bool) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	for i, a := range ds.harnessDecisions[j] {
		if a.action == q.Action && a.resource == q.Resource {
			ds.harnessDecisions[j] = slices.Delete(ds.harnessDecisions[j], i, i+1)
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
func (ds *decisions) RecordAction(_ context.Context, c Caller, q policy.Question) govern.Verdict {
	q.Subject, q.Resource = c.subject(), c.resourceName(q)
	if v, ok := ds.takeDecision(c.Jail, q); ok {
		return v
	}
	return ds.cfg.Policy.RecordAction(q)
}

// pausedForApproval calls do while the run is paused for an approval.
func (ds *decisions) pausedForApproval(ctx context.Context, r run.Run, q policy.Question, do func() error) error {
	return ds.pausedFor(ctx, r, fmt.Sprintf("waiting for approval: %s %s", q.Action, q.Resource), do)
}

// pausedFor takes a checkpoint of a run, pauses the run for an approval with the given reason,
// calls do, and resumes the run.
func (ds *decisions) pausedFor(ctx context.Context, r run.Run, reason string, do func() error) error {
	if _, err := ds.checkpoints.checkpoint(ctx, r.ID, "before an approval request", "gateway", nil); err != nil {
		ds.cfg.Log.Warn("could not take a checkpoint before an approval request", "run", r.ID, "err", err)
	}
	paused, err := ds.cfg.Runs.Move(ctx, r.ID, run.Move{To: run.Paused, Why: run.ForApproval, Reason: reason, By: "gateway"})
	if err != nil && !errors.Is(err, fault.Conflict) { // it may be paused for another approval
		return notStartedError{err}
	}
	doErr := do()
	if err == nil && ctx.Err() == nil {
		merr := persist(ctx, func() error {
			_, err := ds.cfg.Runs.Move(ctx, r.ID, run.Move{To: run.Active, By: "gateway", Version: paused.Version})
			return err
		})
		if merr != nil && !errors.Is(merr, fault.Conflict) && ctx.Err() == nil {
			ds.cfg.Log.Error("could not resume a run after its approval was answered", "run", r.ID, "err", merr)
		}
	}
	return doErr
}
