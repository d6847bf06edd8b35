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

	"glasshouse/autonomy"
	"glasshouse/budget"
	"glasshouse/engine"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/manifest"
	"glasshouse/policy"
	"glasshouse/run"
	"glasshouse/skill"
)

// A Use is one use of a tool that an agent asks for. The same key twice is one use.
type Use struct {
	Key   string          `json:"key"`
	Tool  string          `json:"tool"`
	Input json.RawMessage `json:"input"`
}

// A Used is what came of it.
type Used struct {
	State  run.StepState   `json:"state"`
	Output json.RawMessage `json:"output,omitempty"`
	Error  *Problem        `json:"error,omitempty"`
}

// A Problem is why something was not done, as an agent reads it.
type Problem struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
}

// Tools are those of an agent: the gateway's own, and the capabilities of its skills.
func (g *Gateway) Tools(ctx context.Context, c Caller) ([]Tool, error) {
	var all []Tool
	for _, w := range builtinTools {
		if c.Jail == "" && w.inJail() {
			continue // there is nowhere to do it
		}
		if w.Kind == kindClient || !g.isAvailable(w) {
			continue
		}
		all = append(all, w.Tool)
	}
	caps, err := g.capabilities(ctx, c)
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

// isAvailable reports whether what a tool needs is there.
func (g *Gateway) isAvailable(w builtinTool) bool {
	switch w.Name {
	case "coordinate_sibling", "sibling_requests", "reply_sibling":
		return g.cfg.Broker != nil
	case "request_resources":
		return g.cfg.Resources != nil
	case "create_task":
		return g.cfg.Tasks != nil
	}
	return true
}

// Skills returns the names of the skills that an agent was given, or none.
func (g *Gateway) Skills(ctx context.Context, c Caller) ([]string, error) {
	if c.Run == "" {
		return nil, nil
	}
	r, err := g.cfg.Runs.Get(ctx, c.Run)
	if err != nil {
		return nil, err
	}
	a, err := g.agentOf(r.Agent)
	if err != nil {
		return nil, err
	}
	return a.Skills, nil
}

// capabilities are those that an agent is told of: of its skills, or, if it has none,
// all; and its memory.
func (g *Gateway) capabilities(ctx context.Context, c Caller) ([]*engine.Installed, error) {
	all := g.cfg.Caps.Approved()
	skills, err := g.Skills(ctx, c)
	if err != nil || len(skills) == 0 {
		return all, err
	}
	taught := map[string]bool{}
	for _, name := range skills {
		_, ids, err := g.cfg.Caps.Skill(name)
		if err != nil {
			return nil, err
		}
		for _, i := range ids {
			taught[i] = true
		}
	}
	return slices.DeleteFunc(all, func(i *engine.Installed) bool {
		return !taught[i.ID] && !strings.HasPrefix(i.ID, "memory.")
	}), nil
}

// Call uses a tool for an agent, once for each key, and waits until it is done. The use
// goes on when the agent hangs up: it asks again with the same key.
func (g *Gateway) Call(ctx context.Context, c Caller, u Use) (Used, error) {
	r, err := g.activeRun(ctx, c)
	if err != nil {
		return Used{}, err
	}
	kind, name := run.Tool, u.Tool
	w := findTool(u.Tool)
	if w != nil && w.inJail() && c.Jail == "" {
		return Used{}, &fault.Error{Op: "gateway.Call", On: u.Tool, Kind: fault.Unsupported, Err: errors.New("the agent is in no jail, and there is nowhere to do it"), Remedy: "use a capability, or have the agent spawned in a jail"}
	}
	if w == nil {
		kind = run.Capability
		if name, err = skill.CapabilityID(u.Tool); err != nil {
			name = u.Tool
		}
	}
	label, err := g.dataClass(ctx, r.ID)
	if err != nil {
		return Used{}, err
	}
	if u.Key, err = g.journalKey(ctx, r, u.Key); err != nil {
		return Used{}, err
	}
	step, fresh, err := g.cfg.Runs.Begin(ctx, r.ID, run.StepRequest{Key: u.Key, Kind: kind, Name: name, Input: u.Input, Label: label, Worst: reservation(kind)})
	if err != nil {
		return Used{}, err
	}
	if step.State == run.Begun && !step.Busy {
		begun := step // what is waited for below is another's
		g.wg.Go(func() { g.executeStep(r, c, w, begun, u.Input, !fresh) })
	}
	if step.State == run.Begun {
		if step, err = g.cfg.Runs.Wait(ctx, r.ID, u.Key); err != nil {
			return Used{}, err
		}
	}
	return usedOf(step), nil
}

// reservation is what a step may cost. A capability reserves for itself.
func reservation(kind run.StepKind) budget.Amounts {
	if kind == run.Capability {
		return budget.Amounts{}
	}
	return nil
}

func findTool(name string) *builtinTool {
	if i := slices.IndexFunc(builtinTools, func(w builtinTool) bool { return w.Name == name }); i >= 0 {
		return &builtinTools[i]
	}
	return nil
}

// usedOf is a step that has ended, as an agent reads it.
func usedOf(s run.Step) Used {
	u := Used{State: s.State, Output: s.Output}
	if s.State == run.StepDone {
		return u
	}
	u.Output, u.Error = nil, &Problem{Kind: "failed", Message: string(s.Output)}
	if err := json.Unmarshal(s.Output, u.Error); err != nil {
		u.Error.Message = string(s.Output)
	}
	return u
}

// executeStep does what a step says, and ends it. It is not the agent's to break off.
func (g *Gateway) executeStep(r run.Run, c Caller, w *builtinTool, step run.Step, input json.RawMessage, again bool) {
	ctx := g.ctx
	waits := w != nil && w.waitsForPeer || autonomy.WaitsOnly(step.Name, input)
	defer g.activityOf(r.ID).begin(step.Name, waits)()
	out, err := g.runTool(ctx, r, c, w, step, input, again)
	if ctx.Err() != nil { // the next daemon looks what came of it
		return
	}
	if _, ok := errors.AsType[notStartedError](err); ok || err != nil && g.wasRewound(ctx, r) {
		g.dropStep(ctx, r.ID, step.Key, err)
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
	was := step
	was.State, was.Output, was.Ended = o.State, o.Output, time.Now()
	if err := g.checkForLoop(ctx, r, c, was); errors.Is(err, fault.Denied) {
		o.State, o.Output = run.StepRefused, problemJSON(err)
	} else if err != nil && ctx.Err() == nil {
		g.cfg.Log.Warn("nobody looks whether an agent got lost", "run", r.ID, "step", step.Key, "err", err)
	}
	if o.State == run.StepDone {
		o.Output = g.addNotices(r.ID, o.Output)
	}
	if ctx.Err() != nil {
		return
	}
	err = g.endStep(ctx, r.ID, step.Key, o)
	if errors.Is(err, fault.TooLarge) {
		o = run.Outcome{State: run.StepFailed, Output: problemJSON(fault.Newf(fault.TooLarge, "gateway.Call", step.Name, "what came out is too large; ask for less")), Used: o.Used}
		err = g.endStep(ctx, r.ID, step.Key, o)
	}
	if err != nil && ctx.Err() == nil {
		g.dropStep(ctx, r.ID, step.Key, err)
	}
}

// An notStartedError is the error of what was not begun, for it could not be kept before that it
// would be.
type notStartedError struct{ error }

func (u notStartedError) Unwrap() error { return u.error }

// wasRewound reports whether a run was taken back since it was read: what goes on in its jail
// now is looked for by whoever asks again.
func (g *Gateway) wasRewound(ctx context.Context, r run.Run) bool {
	now, err := g.cfg.Runs.Get(ctx, r.ID)
	return err == nil && len(now.Rewound) > len(r.Rewound)
}

// dropStep leaves a step to whoever asks for it again.
func (g *Gateway) dropStep(ctx context.Context, rid id.Run, key string, cause error) {
	g.cfg.Log.Error("a step is not recorded as ended; it will be looked at again", "run", rid, "step", key, "err", cause)
	if err := g.cfg.Runs.Drop(ctx, rid, key); err != nil {
		g.cfg.Log.Error("a step is not let go of", "run", rid, "step", key, "err", err)
	}
}

// endStep keeps what came of a step.
func (g *Gateway) endStep(ctx context.Context, rid id.Run, key string, o run.Outcome) error {
	return persist(ctx, func() error {
		_, err := g.cfg.Runs.End(ctx, rid, key, o)
		return err
	})
}

// persistTimeout is how long it is tried to keep what was done, with a database that is away.
const persistTimeout = time.Minute

// persist keeps something that is so already, again and again if need be.
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

type toolResult struct {
	text  json.RawMessage
	label manifest.Label
}

func (g *Gateway) runTool(ctx context.Context, r run.Run, c Caller, w *builtinTool, step run.Step, input json.RawMessage, again bool) (toolResult, error) {
	if w == nil {
		return g.callCapability(ctx, r, c, step, input)
	}
	d := &invocation{caller: c, key: string(r.ID) + "/" + step.Key, input: input, ref: step.Ref, retry: again, saveRef: func(ctx context.Context, ref string) error {
		if err := g.cfg.Runs.Mark(ctx, r.ID, step.Key, ref); err != nil {
			return notStartedError{err}
		}
		return nil
	}}
	if w.question != nil && step.Ref == "" { // what has a ref was allowed
		q, err := w.question(input)
		if err != nil {
			return toolResult{}, err
		}
		q.Subject = c.subject()
		var about json.RawMessage
		if w.preview != nil && g.cfg.Kernel.Decide(q).Effect == policy.Ask {
			about = w.preview(g, ctx, d)
		}
		v, err := g.evaluate(ctx, r, govern.Ask{Question: q, Context: about})
		if err != nil {
			return toolResult{}, err
		}
		d.entry = v.Entry
	}
	v, err := w.do(g, ctx, d)
	if err != nil {
		return toolResult{}, err
	}
	text, err := json.Marshal(v)
	return toolResult{text: text}, err
}

// callCapability calls a capability for an agent. Of one that was cut off nobody knows
// how far it came; it is made again with the key it had, unless it has effects.
func (g *Gateway) callCapability(ctx context.Context, r run.Run, c Caller, step run.Step, input json.RawMessage) (toolResult, error) {
	if step.Ref != "" {
		return toolResult{}, &fault.Error{Op: "gateway.Call", On: step.Name, Kind: fault.Unavailable,
			Err:    errors.New("the daemon was killed while it was called, and nobody knows what it has done"),
			Remedy: "look what it has done before you call it again"}
	}
	b, err := g.cfg.Runs.Budget(ctx, r.ID)
	if err != nil {
		return toolResult{}, notStartedError{err}
	}
	req := govern.Request{
		Capability: step.Name, Input: input, Who: c.subject(), Budget: b, Key: string(r.ID) + "/" + step.Key,
		Parent: r.Entry, Labels: labels(step.Label),
	}
	if g.hasEffects(step.Name) {
		req.Before = func(ctx context.Context) error { // not sooner: while a person is asked nothing is done yet
			if err := g.cfg.Runs.Mark(ctx, r.ID, step.Key, "called"); err != nil {
				return notStartedError{err}
			}
			return nil
		}
	}
	var out govern.Outcome
	err = g.withApproval(ctx, r, policy.Question{Subject: c.subject(), Action: policy.ActionCall, Resource: step.Name}, func() error {
		out, err = g.cfg.Kernel.Call(ctx, req)
		return err
	})
	if _, kerr := g.cfg.Runs.Keep(ctx, r.ID); kerr != nil && ctx.Err() == nil {
		g.cfg.Log.Warn("what a call took of a budget is not kept yet", "run", r.ID, "err", kerr)
	}
	return toolResult{out.Output, out.Label}, err
}

func labels(l manifest.Label) []manifest.Label {
	if l == "" {
		return nil
	}
	return []manifest.Label{l}
}

// hasEffects reports whether to call a capability twice is not to call it once.
func (g *Gateway) hasEffects(name string) bool {
	for _, i := range g.cfg.Caps.Approved() {
		if i.ID == name {
			return len(i.Effects) > 0 && i.Runtime.Type != manifest.Builtin
		}
	}
	return false
}

// A taint is the label of what a run has seen until a step of its journal.
type taint struct {
	mu sync.Mutex
	// +checklocks:mu
	label manifest.Label // "": public
	// +checklocks:mu
	upTo int64 // N of the last step that is in it for good
}

// dataClass is the label of all that a run has seen: what it says may be made of that. What
// was looked at before is not read again.
func (g *Gateway) dataClass(ctx context.Context, rid id.Run) (manifest.Label, error) {
	a := g.supervisionOf(rid)
	t := &taint{}
	if a != nil {
		t = &a.taint
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	underWay := false // what a step still brings is not in its label
	for f := (run.StepFilter{Run: rid, After: t.upTo, Limit: 1000}); ; {
		steps, err := g.cfg.Runs.Steps(ctx, f)
		if err != nil {
			return "", err
		}
		for _, s := range steps {
			f.After = s.N
			if s.Label != "" {
				t.label = manifest.Join(t.label, s.Label)
			}
			if underWay = underWay || s.State == run.Begun; !underWay {
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

// evaluate decides a question of a run, and returns what allows it.
func (g *Gateway) evaluate(ctx context.Context, r run.Run, a govern.Ask) (govern.Verdict, error) {
	var v govern.Verdict
	a.Parent = r.Entry
	err := g.withApproval(ctx, r, a.Question, func() (err error) {
		v, err = g.cfg.Kernel.Judge(ctx, a)
		return err
	})
	if err != nil {
		return v, err
	}
	return v, denialError(a.Question, v)
}

// denialError is the error of a question that was not answered with yes.
func denialError(q policy.Question, v govern.Verdict) error {
	if v.Allow && v.Instead == "" {
		return nil
	}
	why := v.Decision.Reason
	if v.Allow {
		why = "something else was allowed in its place: " + v.Instead
	}
	return &fault.Error{Op: "gateway.Call", On: q.Resource, Kind: fault.Denied, Err: errors.New(why), Remedy: v.Decision.Remedy}
}

// withApproval does what may have to wait for a person. If it does the run has a checkpoint
// before, and is paused until there is an answer.
func (g *Gateway) withApproval(ctx context.Context, r run.Run, q policy.Question, do func() error) error {
	if g.cfg.Kernel.Decide(q).Effect != policy.Ask {
		return do()
	}
	return g.pausedForApproval(ctx, r, q, do)
}

// pausedForApproval does what has to wait for a person.
func (g *Gateway) pausedForApproval(ctx context.Context, r run.Run, q policy.Question, do func() error) error {
	return g.pausedFor(ctx, r, fmt.Sprintf("a person is asked: %s %s", q.Action, q.Resource), do)
}

func (g *Gateway) pausedFor(ctx context.Context, r run.Run, reason string, do func() error) error {
	if _, err := g.checkpoint(ctx, r.ID, "before a person is asked", "gateway", nil); err != nil {
		g.cfg.Log.Warn("no checkpoint before a person is asked", "run", r.ID, "err", err)
	}
	paused, err := g.cfg.Runs.Move(ctx, r.ID, run.Move{To: run.Paused, Why: run.ForApproval, Reason: reason, By: "gateway"})
	if err != nil && !errors.Is(err, fault.Conflict) { // it may be paused for another question
		return notStartedError{err}
	}
	asked := do()
	if err == nil && ctx.Err() == nil {
		merr := persist(ctx, func() error {
			_, err := g.cfg.Runs.Move(ctx, r.ID, run.Move{To: run.Active, By: "gateway", Version: paused.Version})
			return err
		})
		if merr != nil && !errors.Is(merr, fault.Conflict) && ctx.Err() == nil {
			g.cfg.Log.Error("a run has its answer, and still waits", "run", r.ID, "err", merr)
		}
	}
	return asked
}

// Beat takes an agent's heartbeat, and says whether it is to stop.
func (g *Gateway) Beat(ctx context.Context, c Caller) (run.Run, bool, error) {
	r, err := g.activeRun(ctx, c)
	if err != nil {
		return run.Run{}, false, err
	}
	g.activityOf(r.ID).recordHeartbeat()
	g.mu.Lock()
	if a := g.supervisions[r.ID]; a != nil {
		select {
		case a.heartbeat <- struct{}{}:
		default:
		}
	}
	g.mu.Unlock()
	r, err = g.cfg.Runs.Beat(ctx, r.ID)
	return r, r.State.Ended(), err
}
