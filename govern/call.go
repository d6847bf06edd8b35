package govern

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"glasshouse/capability/budget"
	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/schema"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy"
	"glasshouse/policy/approval"
	"glasshouse/policy/chain"
)

// Capabilities resolves references to installed capabilities. *registry.Registry implements
// it.
type Capabilities interface {
	Resolve(ref string) (*engine.Installed, error)
}

// A Request is one call of a capability.
type Request struct {
	Capability      string          // "places.search", or with a version: "places.search@1.0.0"
	Input           json.RawMessage // empty: null
	Who             policy.Subject
	Operator        bool             // an authorized person calls; no jail policy applies
	Labels          []manifest.Label // data classes of the input; empty: public
	Budget          *budget.Budget   // charged for the call; nil: none
	Timeout         time.Duration    // at most the capability's own; 0: the capability's own
	Key             string           // idempotency key, passed to the capability
	Parent          int64            // the audit log entry that caused the call
	ApprovalContext context.Context  // see Ask

	// Before is called after the call is allowed and before it is made. An error ends the
	// call. May be nil.
	Before func(ctx context.Context) error

	value  form.Value // replaces Input in nested calls
	nested bool       // value is set, possibly to nil
	depth  int

	secrets []string // secrets of the calling capabilities, which may pass on their values
}

// maxDepth is the maximum depth of nested calls.
const maxDepth = 16

// An Outcome is the state and result of a call.
type Outcome struct {
	ID         id.Call         `json:"id"`
	Capability string          `json:"capability"`
	Version    string          `json:"version,omitempty"`
	Digest     string          `json:"digest,omitempty"`
	Who        policy.Subject  `json:"who,omitzero"`
	State      CallState       `json:"state"`
	Output     json.RawMessage `json:"output,omitempty"`
	Label      manifest.Label  `json:"label,omitempty"` // data class of the output
	Error      *CallError      `json:"error,omitempty"`
	Usage      Usage           `json:"usage"`
	Warm       bool            `json:"warm,omitempty"`      // an existing sandbox was used
	Sandbox    string          `json:"sandbox,omitempty"`   // the jail that ran the call; its audit log entries carry this name
	Isolation  string          `json:"isolation,omitempty"` // what isolated that jail: runc, crun, runsc (gVisor) or bwrap
	Warning    string          `json:"warning,omitempty"`   // why the version differs from the expected one
	Log        string          `json:"log,omitempty"`
	Budget     *budget.Report  `json:"budget,omitempty"`
	Began      time.Time       `json:"began"`
	Entry      int64           `json:"entry,omitempty"` // the audit log entry of the start of the call

	value form.Value
}

// A CallState is the state of a call.
type CallState string

const (
	CallRunning CallState = "running"
	CallDone    CallState = "done"
	CallFailed  CallState = "failed"  // the capability failed
	CallRefused CallState = "refused" // a step before the call refused it
)

// A CallError is the reason of a missing output.
type CallError struct {
	Kind   string `json:"kind"` // an engine.Kind, or the step that refused the call
	Reason string `json:"reason"`
	Remedy string `json:"remedy,omitempty"`
}

// Usage is the resource usage of a call. StepsUS holds the duration of each step.
type Usage struct {
	WallMS       float64   `json:"wall_ms"`
	CPUMS        float64   `json:"sandbox_cpu_ms"`
	MemoryPeak   int64     `json:"memory_peak_bytes,omitempty"`
	NetworkOut   int64     `json:"network_egress_bytes"`
	NetworkIn    int64     `json:"network_ingress_bytes,omitempty"`
	StorageWrite int64     `json:"storage_write_bytes"`
	Steps        int64     `json:"steps,omitempty"`
	StepsUS      StepTimes `json:"steps_us"`
}

// StepTimes holds the duration of each step in microseconds.
type StepTimes map[string]int64

// MarshalJSON avoids reflection, since every call record contains a StepTimes.
func (t StepTimes) MarshalJSON() ([]byte, error) {
	var room [16]string
	names := room[:0]
	for name := range t {
		names = append(names, name)
	}
	slices.Sort(names)
	b := make([]byte, 1, 16*len(t)+2)
	b[0] = '{'
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(append(strconv.AppendQuote(b, name), ':'), t[name], 10) // step names are constants, so Go quoting is valid JSON
	}
	return append(b, '}'), nil
}

// A call is a call in progress.
type call struct {
	k           *Engine
	req         Request
	out         Outcome
	cap         *engine.Installed
	input       form.Value
	reservation *budget.Reservation
	parent      int64 // the audit log entry that caused the next one
	result      engine.Result

	mu    sync.Mutex
	label manifest.Label // label of the input and of the results of nested calls; guarded by mu once the call runs
}

// Call resolves a capability, checks the input, applies the policy, reserves the budget, runs
// the capability and checks its output. Every call is recorded in the audit log. A step that
// fails ends the call; its error is returned and is also in the Outcome. If all steps succeed
// and the end of the call cannot be recorded, the failure is logged and the error is nil: a
// caller that gets an error may repeat the call, and its effects would happen twice.
func (k *Engine) Call(ctx context.Context, req Request) (Outcome, error) {
	c := &call{k: k, req: req, parent: req.Parent}
	c.out = Outcome{
		ID: id.NewCall(), Capability: req.Capability, Who: req.Who, State: CallRefused,
		Began: time.Now().UTC(), Usage: Usage{StepsUS: make(StepTimes, 8)},
	}
	defer func() {
		if c.reservation != nil {
			c.reservation.Release() // releases the unspent part
		}
	}()
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"resolve", c.resolve},      // version and engine
		{"input", c.checkInput},     // schema and data classes
		{"decide", c.checkPolicy},   // policy and, if required, approval
		{"secrets", c.checkSecrets}, // exist and are granted
		{"budget", c.reserve},       // reserves the worst-case cost
		{"run", c.run},              // in a warm or new sandbox
		{"output", c.checkOutput},   // schema
	} {
		began := time.Now()
		err := step.do(ctx)
		c.out.Usage.StepsUS[step.name] = time.Since(began).Microseconds()
		if err != nil {
			return c.end(ctx, step.name, err)
		}
	}
	c.out.State = CallDone
	return c.end(ctx, "", nil)
}

// resolve finds the capability and checks that an engine supports it.
func (c *call) resolve(context.Context) error {
	if c.req.depth > maxDepth {
		return fault.Newf(fault.Exhausted, "govern.Call", c.req.Capability, "nested calls exceed the maximum depth of %d", maxDepth)
	}
	if c.k.caps == nil {
		return fault.Cannot("call", "no capabilities are installed", "use a daemon that was started by glasshouse serve")
	}
	found, err := c.k.caps.Resolve(c.req.Capability)
	if err != nil {
		return err
	}
	c.cap = found
	c.out.Capability, c.out.Version, c.out.Digest = found.ID, found.Version, found.Digest
	c.out.Warning = found.Warning
	if c.k.engines[found.Runtime.Type] == nil {
		return fault.Cannot("call "+found.ID, fmt.Sprintf("no engine for the runtime %s is available", found.Runtime.Type), "run glasshouse doctor")
	}
	return nil
}

// checkInput parses the input and checks it against the schema and the accepted data classes.
func (c *call) checkInput(context.Context) error {
	c.input = c.req.value
	if !c.req.nested {
		text := c.req.Input
		if len(text) == 0 {
			text = json.RawMessage("null")
		}
		var err error
		c.input, err = c.cap.Input.FromJSON(text)
		if err != nil {
			return fault.New(fault.Invalid, "govern.Call", c.cap.ID, fmt.Errorf("input: %w", err))
		}
	}
	if c.cap.Input != nil {
		if err := c.cap.Input.Check(c.input); err != nil {
			return fault.New(fault.Invalid, "govern.Call", c.cap.ID, fmt.Errorf("input: %w", err))
		}
	}
	c.label = manifest.Public
	for _, l := range c.req.Labels {
		c.label = c.label.Join(l)
	}
	if takes := joinLabels(c.cap.DataClasses.Input); !takes.Covers(c.label) {
		return &fault.Error{Op: "govern.Call", On: c.cap.ID, Kind: fault.Denied,
			Err:    fmt.Errorf("the input has the data class %s; the capability accepts at most %s", c.label, takes),
			Remedy: "lower the data class with an approved declassifier capability"}
	}
	return nil
}

func joinLabels(labels []manifest.Label) manifest.Label {
	all := manifest.Public
	for _, l := range labels {
		all = all.Join(l)
	}
	return all
}

// pure reports whether the call has no effect outside of this process. The audit log entry of
// a pure call need not be on disk before the call.
func (c *call) pure() bool {
	return c.cap.Runtime.Type == manifest.RTFS && len(c.cap.Effects) == 0
}

// checkPolicy evaluates the policy. Calls by an operator are allowed, except that a capability
// with per-use approval always needs one.
func (c *call) checkPolicy(ctx context.Context) error {
	q := policy.Question{Subject: c.req.Who, Action: policy.ActionCall, Resource: c.cap.ID}
	if !c.pure() {
		q.Attributes = map[string]string{"version": c.cap.Version, "effects": strings.Join(c.cap.Effects, " "), "call": string(c.out.ID)}
	}
	a := Ask{Question: q, Parent: c.req.Parent, Operator: c.req.Operator, ApprovalContext: c.req.ApprovalContext}
	if c.cap.Approval.PerUse {
		a.AskReason, a.Context = "the capability requires approval for each use", c.approvalContext()
	} else if c.pure() && c.k.allowedByRules(a) {
		return nil
	}
	a.Tier = c.tier()
	v, err := c.k.Evaluate(ctx, a)
	if err != nil {
		return err
	}
	c.parent = v.Entry
	if v.Allow && v.Instead == "" {
		return nil
	}
	why := v.Decision.Reason
	if v.Allow {
		why = "another capability was approved instead: " + v.Instead
	}
	return &fault.Error{Op: "govern.Call", On: c.cap.ID, Kind: fault.Denied, Err: errors.New(why), Remedy: v.Decision.Remedy}
}

// tier returns the approval tier of the capability.
func (c *call) tier() approval.Tier {
	if c.cap.EffectiveTier() == manifest.Elevated {
		return approval.Elevated
	}
	return approval.Standard
}

// approvalContext returns the details of the call that an approval request shows: input, label and
// effects.
func (c *call) approvalContext() json.RawMessage {
	text, err := schema.ToJSON(c.input)
	if err != nil {
		return nil
	}
	text, _, _ = c.mask(context.Background()).JSON(text)
	b, _ := json.Marshal(map[string]any{"input": json.RawMessage(text), "label": c.label, "effects": c.cap.Effects})
	return b
}

// checkSecrets checks that all secrets of the capability exist and are granted to it.
func (c *call) checkSecrets(context.Context) error {
	if len(c.cap.Secrets) == 0 {
		return nil
	}
	if c.k.cfg.Secrets == nil {
		return fault.Cannot("call "+c.cap.ID, "the capability needs secrets, and no secret store is configured", "use a daemon that was started by glasshouse serve")
	}
	if missing := c.k.cfg.Secrets.Missing(c.cap.ID, c.cap.Secrets); len(missing) > 0 {
		return &fault.Error{Op: "govern.Call", On: c.cap.ID, Kind: fault.Conflict,
			Err:    fmt.Errorf("secrets are missing or not granted to the capability: %s", strings.Join(missing, ", ")),
			Remedy: fmt.Sprintf("run glasshouse secret set %s, and grant the secret to the capability", missing[0])}
	}
	return nil
}

// reserve reserves the worst-case cost of the call in the budget.
func (c *call) reserve(context.Context) (err error) {
	if c.req.Budget == nil {
		return nil
	}
	worst := budget.Amounts{budget.Steps: 1, budget.Wall: c.timeout().Milliseconds()}
	if n := c.cap.Resources.NetworkBytes; n > 0 {
		worst[budget.Network] = n
	}
	for name, e := range c.cap.Estimates {
		worst[budget.Dimension(name)] = e.Worst
	}
	c.reservation, err = c.req.Budget.Reserve(worst)
	if err != nil {
		r := c.req.Budget.Report()
		c.out.Budget = &r
	}
	return err
}

// defaultTimeout applies to capabilities without a timeout in the manifest.
const defaultTimeout = 30 * time.Second

func (c *call) timeout() time.Duration {
	t := c.cap.Resources.Timeout
	if t <= 0 {
		t = defaultTimeout
	}
	if c.req.Timeout > 0 {
		t = min(t, c.req.Timeout)
	}
	return t
}

// timeoutReason returns the error text of a call that reached its timeout.
func (c *call) timeoutReason() string {
	t, own := c.timeout(), c.cap.Resources.Timeout
	switch {
	case t == own:
		return fmt.Sprintf("timed out after %v, the :timeout-ms of the manifest", t)
	case t == c.req.Timeout:
		return fmt.Sprintf("timed out after %v, the timeout of the caller", t)
	}
	return fmt.Sprintf("timed out after %v, the default of :timeout-ms", t)
}

// run makes the engine execute the call. Unless the call is pure, its start is recorded first.
func (c *call) run(ctx context.Context) error {
	if c.req.Before != nil {
		if err := c.req.Before(ctx); err != nil {
			return err
		}
	}
	if !c.pure() {
		e := entry(chain.CallStarted, c.req.Who, c.parent, c.record(ctx, false))
		e.Capability = c.cap.ID
		e, err := c.k.cfg.Chain.Append(ctx, e)
		if err != nil {
			return fmt.Errorf("record the call: %w", err)
		}
		c.out.Entry, c.parent = e.Seq, e.Seq
	}
	ctx, stop := context.WithTimeoutCause(ctx, c.timeout(), errTimeout)
	defer stop()
	began := time.Now()
	var err error
	c.result, err = c.k.engines[c.cap.Runtime.Type].Call(ctx, &engine.Call{
		ID: string(c.out.ID), Capability: c.cap, Input: c.input, Jail: string(c.req.Who.Jail),
		Session: c.req.Who.Session, Run: c.req.Who.Run, Agent: c.req.Who.Agent, Key: c.req.Key,
		Label: c.currentLabel(), Entry: c.out.Entry, Host: host{c},
	})
	if f, ok := errors.AsType[*engine.Failure](err); ok {
		c.result.Usage, c.result.Log = f.Usage, f.Log
		if f.Kind == engine.TimedOut && context.Cause(ctx) == errTimeout {
			late := *f // the engine does not know which timeout ended the context
			late.Reason, err = c.timeoutReason(), &late
		}
	}
	c.result.Log = c.mask(ctx).Clipped(c.result.Log)
	if c.result.Usage.Wall == 0 {
		c.result.Usage.Wall = time.Since(began)
	}
	for name, took := range c.result.Times {
		c.out.Usage.StepsUS["run."+name] = took.Microseconds()
	}
	c.recordUsage()
	return err
}

var errTimeout = fault.Newf(fault.Timeout, "govern.Call", "", "the call timed out")

// recordUsage copies the engine's usage to the outcome and charges the budget.
func (c *call) recordUsage() {
	u := c.result.Usage
	o := &c.out.Usage
	o.WallMS, o.CPUMS = float64(u.Wall.Microseconds())/1000, float64(u.CPU.Microseconds())/1000
	o.MemoryPeak, o.NetworkOut, o.NetworkIn, o.StorageWrite, o.Steps = u.MemoryPeak, u.NetworkOut, u.NetworkIn, u.StorageWrite, u.Steps
	c.out.Warm, c.out.Sandbox, c.out.Isolation, c.out.Log = c.result.Warm, c.result.Jail, c.result.Isolation, c.result.Log
	if c.reservation == nil {
		return
	}
	c.reservation.Commit(budget.Amounts{
		budget.Steps: 1, budget.Wall: u.Wall.Milliseconds(), budget.CPU: u.CPU.Milliseconds(),
		budget.Network: u.NetworkOut + u.NetworkIn, budget.Storage: u.StorageWrite,
	})
	r := c.req.Budget.Report()
	c.out.Budget = &r
}

// checkOutput checks the output against the schema and sets its label. Only an approved
// declassifier may lower a label.
func (c *call) checkOutput(ctx context.Context) error {
	if c.cap.Output != nil {
		if err := c.cap.Output.Check(c.result.Output); err != nil {
			return &engine.Failure{Kind: engine.Garbled, Reason: "the output does not match the schema of the manifest: " + err.Error()}
		}
	}
	text, err := schema.ToJSON(c.result.Output)
	if err != nil {
		return &engine.Failure{Kind: engine.Garbled, Reason: "the output cannot be converted to JSON: " + err.Error()}
	}
	c.out.Output, c.out.value = text, c.result.Output
	c.out.Label = joinLabels(c.cap.DataClasses.Output).Join(c.result.Label)
	if !c.cap.DataClasses.Declassifies {
		c.out.Label = c.out.Label.Join(c.currentLabel())
	}
	return c.maskOutput(c.mask(ctx))
}

// end records the end of the call and returns its outcome.
func (c *call) end(ctx context.Context, step string, err error) (Outcome, error) {
	if err != nil {
		err = maskError(c.mask(ctx), err)
		c.out.Output, c.out.value, c.out.Label = nil, nil, ""
		c.out.Error = &CallError{Kind: step, Reason: err.Error(), Remedy: fault.RemedyOf(err)}
		if f, ok := errors.AsType[*engine.Failure](err); ok {
			c.out.State = CallFailed
			c.out.Error.Kind, c.out.Error.Reason = string(f.Kind), f.Reason
		} else if step == "run" || step == "output" {
			c.out.State = CallFailed
		}
	}
	e := chain.Entry{
		Kind: chain.CallEnded, Jail: c.req.Who.Jail, Session: c.req.Who.Session, Run: c.req.Who.Run, Agent: c.req.Who.Agent,
		Parent: c.parent, Capability: c.out.Capability,
	}
	if c.cap != nil && c.pure() {
		if !c.k.notes.add(note{Entry: e, body: func() any { return c.record(ctx, true) }}) {
			c.k.cfg.Log.Error("could not record the end of a call: the policy engine is closed", "call", c.out.ID, "capability", c.cap.ID)
		}
		c.k.recent.add(c.out)
		return c.out, err
	}
	e.Body = bodyOf(c.record(ctx, true))
	ended, cerr := c.k.cfg.Chain.Append(context.WithoutCancel(ctx), e)
	switch {
	case cerr != nil && err != nil:
		err = errors.Join(err, fmt.Errorf("record the end of the call: %w", cerr))
	case cerr != nil:
		c.k.cfg.Log.Error("could not record the end of a call", "call", c.out.ID, "capability", c.cap.ID, "err", cerr)
	case c.out.Entry == 0:
		c.out.Entry = ended.Seq
	}
	c.k.recent.add(c.out)
	return c.out, err
}

// host makes nested calls for a capability: with the caller's identity, budget and label.
type host struct{ c *call }

func (h host) Call(ctx context.Context, name string, input form.Value) (form.Value, error) {
	out, err := h.call(ctx, Request{Capability: name, value: input, nested: true})
	return out.value, err
}

// CallJSON implements engine.Host.
func (h host) CallJSON(ctx context.Context, name string, input json.RawMessage) (json.RawMessage, error) {
	out, err := h.call(ctx, Request{Capability: name, Input: input})
	return out.Output, err
}

func (h host) call(ctx context.Context, r Request) (Outcome, error) {
	c := h.c
	r.Who, r.Operator, r.Budget = c.req.Who, c.req.Operator, c.req.Budget
	r.secrets = c.secretNames()
	r.Labels, r.Parent, r.depth = []manifest.Label{c.currentLabel()}, c.parent, c.req.depth+1
	out, err := c.k.Call(ctx, r)
	if err == nil {
		c.mu.Lock()
		c.label = c.label.Join(out.Label) // the capability's output may contain data of this class
		c.mu.Unlock()
	}
	return out, err
}

// currentLabel returns the label of all data that the capability has seen.
func (c *call) currentLabel() manifest.Label {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.label
}
