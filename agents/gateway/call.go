package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"glasshouse/agents/autonomy"
	"glasshouse/agents/run"
	"glasshouse/capability/budget"
	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/capability/skill"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/policy"
)

// A ToolUse is an agent's request to use a tool. Requests with the same key are one use.
type ToolUse struct {
	Key   string          `json:"key"`
	Tool  string          `json:"tool"`
	Input json.RawMessage `json:"input"`
}

// A ToolOutcome is the outcome of a Use.
type ToolOutcome struct {
	State  run.StepState   `json:"state"`
	Output json.RawMessage `json:"output,omitempty"`
	Error  *Problem        `json:"error,omitempty"`
}

// A Problem is the error of a tool, as reported to an agent.
type Problem struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
}

// toolCalls executes the tool and model calls of agents as steps of their runs.
type toolCalls struct {
	*core
	supervisions *supervisions
	decisions    *decisions
	watcher      *watcher
	tools        []builtinTool
}

// Tools returns the tools of a caller: the built-in ones, and the capabilities of its skills.
func (tc *toolCalls) Tools(ctx context.Context, c Caller) ([]Tool, error) {
	var all []Tool
	for _, tool := range tc.tools {
		if c.Jail == "" && tool.inJail() {
			continue // it needs a jail
		}
		if tool.Kind == kindClient || !tc.isAvailable(tool) {
			continue
		}
		all = append(all, tool.Tool)
	}
	caps, err := tc.capabilities(ctx, c)
	if err != nil {
		return nil, err
	}
	for _, i := range caps {
		t := Tool{Name: skill.ToolName(i.ID), Description: i.Description, Kind: "capability", InputSchema: json.RawMessage(`{"type":"object"}`)}
		if i.Input != nil {
			if s, err := i.Input.JSONSchema(); err == nil {
				t.InputSchema = s
			}
		}
		all = append(all, t)
	}
	return all, nil
}

// isAvailable reports whether the gateway has the component that a tool needs.
func (tc *toolCalls) isAvailable(tool builtinTool) bool {
	switch tool.Name {
	case "coordinate_sibling", "sibling_requests", "reply_sibling":
		return tc.services.Broker != nil
	case "request_resources":
		return tc.services.Resources != nil
	case "create_task":
		return tc.cfg.Tasks != nil
	}
	return true
}

// Skills returns the names of the skills of a caller's agent.
func (tc *toolCalls) Skills(ctx context.Context, c Caller) ([]string, error) {
	if c.Run == "" {
		return nil, nil
	}
	r, err := tc.cfg.Runs.Get(ctx, c.Run)
	if err != nil {
		return nil, err
	}
	a, err := tc.agentOf(r.Agent)
	if err != nil {
		return nil, err
	}
	return a.Skills, nil
}

// capabilities returns the capabilities that an agent may see: its memory and those of its
// skills, or all if it has no skills.
func (tc *toolCalls) capabilities(ctx context.Context, c Caller) ([]*engine.Installed, error) {
	all := tc.cfg.Caps.Approved()
	skills, err := tc.Skills(ctx, c)
	if err != nil || len(skills) == 0 {
		return all, err
	}
	allowed := map[string]bool{}
	for _, name := range skills {
		_, ids, err := tc.cfg.Caps.Skill(name)
		if err != nil {
			return nil, err
		}
		for _, i := range ids {
			allowed[i] = true
		}
	}
	return slices.DeleteFunc(all, func(i *engine.Installed) bool {
		return !allowed[i.ID] && !strings.HasPrefix(i.ID, "memory.")
	}), nil
}

// Call uses a tool for an agent, once for each key, and blocks until the tool has ended. The
// tool is not cancelled with ctx: an agent that lost its connection repeats the request with
// the same key.
func (tc *toolCalls) Call(ctx context.Context, c Caller, u ToolUse) (ToolOutcome, error) {
	r, err := tc.activeRun(ctx, c)
	if err != nil {
		return ToolOutcome{}, err
	}
	kind, name := run.Tool, u.Tool
	tool := tc.findTool(u.Tool)
	if tool != nil && tool.inJail() && c.Jail == "" {
		return ToolOutcome{}, &fault.Error{Op: "gateway.Call", On: u.Tool, Kind: fault.Unsupported, Err: errors.New("the tool needs a jail, and the agent runs outside of one"), Remedy: "use a capability, or run the agent in a jail"}
	}
	if tool == nil {
		kind = run.Capability
		name, err = skill.CapabilityID(u.Tool)
		if err != nil {
			name = u.Tool
		}
	}
	label, err := tc.dataClass(ctx, r.ID)
	if err != nil {
		return ToolOutcome{}, err
	}
	u.Key, err = tc.journalKey(ctx, r, u.Key, tool != nil && tool.inJail())
	if err != nil {
		return ToolOutcome{}, err
	}
	step, fresh, err := tc.cfg.Runs.Begin(ctx, r.ID, run.StepRequest{Key: u.Key, Kind: kind, Name: name, Input: u.Input, Label: label, Worst: reservation(kind)})
	if err != nil {
		return ToolOutcome{}, err
	}
	if step.State == run.Begun && !step.Busy {
		begun := step // copy: step is overwritten below
		tc.wg.Go(func() { tc.executeStep(r, c, tool, begun, u.Input, !fresh) })
	}
	if step.State == run.Begun {
		step, err = tc.cfg.Runs.Wait(ctx, r.ID, u.Key)
		if err != nil {
			return ToolOutcome{}, err
		}
	}
	return usedOf(step), nil
}

// reservation is the budget to reserve for a step. A capability call reserves its own budget.
func reservation(kind run.StepKind) budget.Amounts {
	if kind == run.Capability {
		return budget.Amounts{}
	}
	return nil
}

// findTool returns a built-in tool, or nil if there is no tool with this name.
func (tc *toolCalls) findTool(name string) *builtinTool {
	if i := slices.IndexFunc(tc.tools, func(tool builtinTool) bool { return tool.Name == name }); i >= 0 {
		return &tc.tools[i]
	}
	return nil
}

// usedOf converts an ended step to the outcome that an agent reads.
func usedOf(s run.Step) ToolOutcome {
	u := ToolOutcome{State: s.State, Output: s.Output}
	if s.State == run.StepDone {
		return u
	}
	u.Output, u.Error = nil, &Problem{Kind: "failed", Message: string(s.Output)}
	if err := json.Unmarshal(s.Output, u.Error); err != nil {
		u.Error.Message = string(s.Output)
	}
	return u
}

// executeStep runs the tool of a step and ends the step. It does not depend on the agent's
// connection.
func (tc *toolCalls) executeStep(r run.Run, c Caller, tool *builtinTool, step run.Step, input json.RawMessage, retry bool) {
	ctx := tc.ctx
	waits := tool != nil && tool.waitsForPeer || autonomy.WaitsOnly(step.Name, input)
	defer tc.supervisions.activityOf(r.ID).begin(step.Name, waits)()
	out, err := tc.runTool(ctx, r, c, tool, step, input, retry)
	if ctx.Err() != nil { // the next daemon finds out how it ended
		return
	}
	if _, ok := errors.AsType[notStartedError](err); ok || err != nil && tc.wasRewound(ctx, r) {
		tc.dropStep(ctx, r.ID, step.Key, err)
		return
	}
	o := run.Outcome{State: run.StepDone, Output: out.text, Label: out.label}
	if err != nil {
		o.State, o.Output = run.StepFailed, problemJSON(err)
		if errors.Is(err, fault.Denied) || errors.Is(err, fault.Exhausted) {
			o.State = run.StepRefused
		}
	}
	if step.Kind == run.Capability {
		o.Used = budget.Amounts{}
	}
	ended := step
	ended.State, ended.Output, ended.Ended = o.State, o.Output, tc.cfg.Runs.Now()
	if err := tc.checkForLoop(ctx, r, c, ended); errors.Is(err, fault.Denied) {
		o.State, o.Output = run.StepRefused, problemJSON(err)
	} else if err != nil && ctx.Err() == nil {
		tc.cfg.Log.Warn("loop detection failed for a step", "run", r.ID, "step", step.Key, "err", err)
	}
	if o.State == run.StepDone {
		o.Output = tc.addNotices(r.ID, o.Output)
	}
	if ctx.Err() != nil {
		return
	}
	err = tc.endStep(ctx, r.ID, step.Key, o)
	if errors.Is(err, fault.TooLarge) {
		o = run.Outcome{State: run.StepFailed, Output: problemJSON(fault.Newf(fault.TooLarge, "gateway.Call", step.Name, "the output is too large; request less")), Used: o.Used}
		err = tc.endStep(ctx, r.ID, step.Key, o)
	}
	if err != nil && ctx.Err() == nil {
		tc.dropStep(ctx, r.ID, step.Key, err)
	}
}

// A notStartedError reports that an action was not started, because its record could not be
// stored first.
type notStartedError struct{ error }

func (u notStartedError) Unwrap() error { return u.error }

// wasRewound reports whether a run was rewound after r was read. The outcome of the step then
// belongs to the old state of the jail, and a repeated request runs it again.
func (tc *toolCalls) wasRewound(ctx context.Context, r run.Run) bool {
	now, err := tc.cfg.Runs.Get(ctx, r.ID)
	return err == nil && len(now.Rewound) > len(r.Rewound)
}

// dropStep leaves a step open, so that a repeated request takes it over.
func (tc *toolCalls) dropStep(ctx context.Context, rid id.Run, key string, cause error) {
	tc.cfg.Log.Error("a step has no recorded outcome; a repeated request takes it over", "run", rid, "step", key, "err", cause)
	if err := tc.cfg.Runs.AbandonStep(ctx, rid, key); err != nil {
		tc.cfg.Log.Error("could not release a step", "run", rid, "step", key, "err", err)
	}
}

// endStep stores the outcome of a step.
func (tc *toolCalls) endStep(ctx context.Context, rid id.Run, key string, o run.Outcome) error {
	return persist(ctx, func() error {
		_, err := tc.cfg.Runs.End(ctx, rid, key, o)
		return err
	})
}

// persistTimeout limits how long persist retries.
const persistTimeout = time.Minute

// persist stores the outcome of something that has already happened. It retries for up to
// persistTimeout while the store is unavailable.
func persist(ctx context.Context, keep func() error) error {
	end := time.Now().Add(persistTimeout)
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := keep()
		if kind := fault.KindOf(err); err == nil || ctx.Err() != nil || kind != "" && kind != fault.Unavailable || time.Now().After(end) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// problemJSON returns an error as a JSON Problem.
func problemJSON(err error) json.RawMessage {
	p := Problem{Kind: string(fault.KindOf(err)), Message: err.Error(), Remedy: fault.RemedyOf(err)}
	if k := engine.KindOf(err); k != "" {
		p.Kind = string(k)
	}
	if p.Kind == "" {
		p.Kind = "failed"
	}
	text, merr := json.Marshal(p)
	if merr != nil {
		return json.RawMessage(`{"kind":"failed"}`)
	}
	return text
}

// A toolResult is the output of a tool and its data classification.
type toolResult struct {
	text  json.RawMessage
	label manifest.Label
}

// runTool runs a built-in tool or a capability. retry reports that an earlier call may already
// have started it.
func (tc *toolCalls) runTool(ctx context.Context, r run.Run, c Caller, tool *builtinTool, step run.Step, input json.RawMessage, retry bool) (toolResult, error) {
	if tool == nil {
		return tc.callCapability(ctx, r, c, step, input)
	}
	inv := &invocation{caller: c, key: string(r.ID) + "/" + step.Key, input: input, ref: step.Ref, retry: retry}
	inv.saveRef = func(ctx context.Context, ref string) error {
		if err := tc.cfg.Runs.SetStepRef(ctx, r.ID, step.Key, ref); err != nil {
			return notStartedError{err}
		}
		inv.ref = ref
		return nil
	}
	if tool.question != nil && step.Ref == "" { // a step with a reference was allowed before
		q, err := tool.question(input)
		if err != nil {
			return toolResult{}, err
		}
		q.Subject = c.subject()
		var about json.RawMessage
		if tool.preview != nil && tc.cfg.Policy.Decide(q).Effect == policy.Ask {
			about = tool.preview(ctx, inv)
		}
		v, err := tc.evaluate(ctx, r, govern.Ask{Question: q, Context: about})
		if err != nil {
			return toolResult{}, err
		}
		inv.entry = v.Entry
	}
	v, err := tool.do(ctx, inv)
	for (tool.inJail() || tool.Kind == kindClient) && errors.Is(err, fault.Conflict) && tc.awaitJail(ctx, r.ID, c.Jail) {
		v, err = tool.do(ctx, inv)
	}
	if err != nil {
		return toolResult{}, err
	}
	text, err := json.Marshal(v)
	if err != nil {
		return toolResult{}, fmt.Errorf("encode the output of %s: %w", tool.Name, err)
	}
	return toolResult{text: text}, nil
}

// pausedInterval is how often awaitJail checks a jail.
const pausedInterval = 200 * time.Millisecond

// awaitJail waits while the jail of a tool is paused: by a person, or by this daemon until its
// supervisor resumes it, because the lease of the daemon had expired. It reports whether it waited and
// the tool can be tried again.
func (tc *toolCalls) awaitJail(ctx context.Context, rid id.Run, jid id.Jail) bool {
	for waited := false; ; waited = true {
		j, err := tc.cfg.Jails.Get(ctx, jid)
		if err != nil || j.State != jail.Paused && !waited {
			return false
		}
		// The jail of a run that has ended is resumed as well: the run is read after the jail.
		if r, err := tc.cfg.Runs.Get(ctx, rid); err == nil && r.State.Ended() {
			return false
		}
		if j.State != jail.Paused {
			return true
		}
		select {
		case <-time.After(pausedInterval):
		case <-ctx.Done():
			return false
		}
	}
}

// callCapability calls a capability for an agent. If a daemon was killed during an earlier
// call, the call is repeated with the same key. A capability with effects is not called again,
// since it is unknown whether the effects have happened.
func (tc *toolCalls) callCapability(ctx context.Context, r run.Run, c Caller, step run.Step, input json.RawMessage) (toolResult, error) {
	if step.Ref != "" {
		return toolResult{}, &fault.Error{Op: "gateway.Call", On: step.Name, Kind: fault.Unavailable,
			Err:    errors.New("the daemon was killed during the call; whether it had effects is unknown"),
			Remedy: "check whether the call had effects before you repeat it"}
	}
	b, err := tc.cfg.Runs.Budget(ctx, r.ID)
	if err != nil {
		return toolResult{}, notStartedError{err}
	}
	req := govern.Request{
		Capability: step.Name, Input: input, Who: c.subject(), Budget: b, Key: string(r.ID) + "/" + step.Key,
		Parent: r.Entry, Labels: labels(step.Label),
	}
	if tc.hasEffects(step.Name) {
		// The step is marked immediately before the call. While an approval is pending, nothing
		// has been called, and a restarted daemon may request the approval again.
		req.Before = func(ctx context.Context) error {
			if err := tc.cfg.Runs.SetStepRef(ctx, r.ID, step.Key, "called"); err != nil {
				return notStartedError{err}
			}
			return nil
		}
	}
	var out govern.Outcome
	err = tc.withApproval(ctx, r, policy.Question{Subject: c.subject(), Action: policy.ActionCall, Resource: step.Name}, func() error {
		out, err = tc.cfg.Policy.Call(ctx, req)
		return err
	})
	if _, kerr := tc.cfg.Runs.SaveBudget(ctx, r.ID); kerr != nil && ctx.Err() == nil {
		tc.cfg.Log.Warn("could not store the budget use of a call yet", "run", r.ID, "err", kerr)
	}
	return toolResult{out.Output, out.Label}, err
}

func labels(l manifest.Label) []manifest.Label {
	if l == "" {
		return nil
	}
	return []manifest.Label{l}
}

// hasEffects reports whether a capability must not be called twice.
func (tc *toolCalls) hasEffects(name string) bool {
	for _, i := range tc.cfg.Caps.Approved() {
		if i.ID == name {
			return len(i.Effects) > 0 && i.Runtime.Type != manifest.Builtin
		}
	}
	return false
}

// A taint is the data classification of everything that a run has read, up to a step of its
// journal.
type taint struct {
	mu sync.Mutex
	// +checklocks:mu
	label manifest.Label // empty: public
	// +checklocks:mu
	upTo int64 // N of the last step that label finally includes
}

// dataClass returns the classification of all data that a run has read. Anything that its agent
// sends may contain parts of that data. Steps that are already classified are not read again.
func (tc *toolCalls) dataClass(ctx context.Context, rid id.Run) (manifest.Label, error) {
	sup := tc.supervisions.of(rid)
	t := &taint{}
	if sup != nil {
		t = &sup.taint
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	inProgress := false // a step in progress may still change its classification
	for f := (run.StepFilter{Run: rid, After: t.upTo, Limit: 1000}); ; {
		steps, err := tc.cfg.Runs.Steps(ctx, f)
		if err != nil {
			return "", fmt.Errorf("classify the data of run %s: %w", rid, err)
		}
		for _, s := range steps {
			f.After = s.N
			if s.Label != "" {
				t.label = manifest.Join(t.label, s.Label)
			}
			inProgress = inProgress || s.State == run.Begun
			if !inProgress {
				t.upTo = s.N
			}
		}
		if len(steps) < f.Limit {
			break
		}
	}
	if t.label == manifest.Public {
		return "", nil
	}
	return t.label, nil
}

// evaluate evaluates a question of a run and waits for an approval if needed. It returns an
// error unless the action is allowed.
func (tc *toolCalls) evaluate(ctx context.Context, r run.Run, a govern.Ask) (govern.Verdict, error) {
	var v govern.Verdict
	a.Parent = r.Entry
	err := tc.withApproval(ctx, r, a.Question, func() (err error) {
		v, err = tc.cfg.Policy.Evaluate(ctx, a)
		return err
	})
	if err != nil {
		return v, err
	}
	return v, denialError(a.Question, v)
}

// denialError returns a fault.Denied error unless a verdict allows the action itself.
func denialError(q policy.Question, v govern.Verdict) error {
	if v.Allow && v.Instead == "" {
		return nil
	}
	why := v.Decision.Reason
	if v.Allow {
		why = "a different action was approved instead: " + v.Instead
	}
	return &fault.Error{Op: "gateway.Call", On: q.Resource, Kind: fault.Denied, Err: errors.New(why), Remedy: v.Decision.Remedy}
}

// withApproval calls do, which may wait for an approval. If the policy asks for one, a
// checkpoint is taken first, and the run is paused until do returns.
func (tc *toolCalls) withApproval(ctx context.Context, r run.Run, q policy.Question, do func() error) error {
	if tc.cfg.Policy.Decide(q).Effect != policy.Ask {
		return do()
	}
	return tc.decisions.pausedForApproval(ctx, r, q, do)
}
