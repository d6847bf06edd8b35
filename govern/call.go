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

	"glasshouse/approval"
	"glasshouse/budget"
	"glasshouse/chain"
	"glasshouse/engine"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/manifest"
	"glasshouse/policy"
	"glasshouse/rtfs/form"
	"glasshouse/schema"
)

// Capabilities is where capabilities are found that may be called.
// *registry.Registry is one.
type Capabilities interface {
	Resolve(ref string) (*engine.Installed, error)
}

// A Request is one call of a capability.
type Request struct {
	Capability string          // "places.search", or with a version: "places.search@1.0.0"
	Input      json.RawMessage // none is null
	Who        policy.Subject
	Operator   bool             // a person with the right to it calls: no jail's rules apply
	Labels     []manifest.Label // of what is in the input; none is public
	Budget     *budget.Budget   // that it draws from; nil: none
	Timeout    time.Duration    // 0: the capability's own, which it cannot exceed
	Key        string           // the idempotency key, which the capability is told
	Parent     int64            // the entry of the chain that it comes from
	Patient    context.Context  // of Ask

	// Before is called when the call is allowed, right before it is made; an error
	// ends it. nil: nothing is.
	Before func(ctx context.Context) error

	value  form.Value // in place of Input: of a capability that calls another
	inside bool       // so that value counts, which may be nil
	depth  int

	secrets []string // of the capabilities that call it, which may pass their values on
}

// maxDepth is how deep capabilities may call each other.
const maxDepth = 16

// An Outcome is what became of a call.
type Outcome struct {
	ID         id.Call         `json:"id"`
	Capability string          `json:"capability"`
	Version    string          `json:"version,omitempty"`
	Digest     string          `json:"digest,omitempty"`
	Who        policy.Subject  `json:"who,omitzero"`
	State      CallState       `json:"state"`
	Output     json.RawMessage `json:"output,omitempty"`
	Label      manifest.Label  `json:"label,omitempty"` // of the output
	Error      *CallError      `json:"error,omitempty"`
	Usage      Usage           `json:"usage"`
	Warm       bool            `json:"warm,omitempty"`    // a sandbox was there already
	Sandbox    string          `json:"sandbox,omitempty"` // the jail that served it; what that did is in the chain under its name
	Warning    string          `json:"warning,omitempty"` // why it is not the version that the caller expects
	Log        string          `json:"log,omitempty"`
	Budget     *budget.Report  `json:"budget,omitempty"`
	Began      time.Time       `json:"began"`
	Entry      int64           `json:"entry,omitempty"` // of the chain, in which its beginning is recorded

	value form.Value
}

// A CallState is how far a call has come.
type CallState string

const (
	CallRunning CallState = "running"
	CallDone    CallState = "done"
	CallFailed  CallState = "failed"  // the capability did
	CallRefused CallState = "refused" // it was not made
)

// A CallError says why there is no output.
type CallError struct {
	Kind   string `json:"kind"` // an engine.Kind; of a refusal the step that refused it
	Reason string `json:"reason"`
	Remedy string `json:"remedy,omitempty"`
}

// Usage is what a call took, and in StepsUS where the time went.
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

// StepTimes is how many microseconds each step took.
type StepTimes map[string]int64

// MarshalJSON writes what is in every record of a call, without reflection.
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
		b = strconv.AppendInt(append(strconv.AppendQuote(b, name), ':'), t[name], 10) // names are words of ours
	}
	return append(b, '}'), nil
}

// A call is one call on its way.
type call struct {
	k      *Kernel
	req    Request
	out    Outcome
	cap    *engine.Installed
	input  form.Value
	hold   *budget.Hold
	parent int64 // the entry that what it does comes from
	result engine.Result

	mu    sync.Mutex
	label manifest.Label // of the input, and of what came of calls since. guarded by mu once it runs
}

// Call makes a call: it is resolved, its input is checked, it is decided, paid for,
// made, its output is checked, and all of that is recorded. Each step can refuse it;
// what comes behind is then not done. The error is that of the step, and the outcome
// says the same.
func (k *Kernel) Call(ctx context.Context, req Request) (Outcome, error) {
	c := &call{k: k, req: req, parent: req.Parent}
	c.out = Outcome{
		ID: id.NewCall(), Capability: req.Capability, Who: req.Who, State: CallRefused,
		Began: time.Now().UTC(), Usage: Usage{StepsUS: make(StepTimes, 8)},
	}
	defer func() {
		if c.hold != nil {
			c.hold.Release() // of what was not spent
		}
	}()
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"resolve", c.resolve}, // which version, which engine
		{"input", c.check},     // as its schema and its data classes want it
		{"decide", c.decide},   // by the rules and, if they say so, by a person
		{"secrets", c.secrets}, // it needs are there
		{"budget", c.reserve},  // holds what it can cost at worst
		{"run", c.run},         // in a sandbox, warm or new
		{"output", c.accept},   // as its schema wants it
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

// resolve finds what is called.
func (c *call) resolve(context.Context) error {
	if c.req.depth > maxDepth {
		return fault.Newf(fault.Exhausted, "govern.Call", c.req.Capability, "capabilities call each other more than %d deep", maxDepth)
	}
	if c.k.caps == nil {
		return fault.Cannot("call", "no capabilities are installed here", "use a daemon that was started by glasshouse serve")
	}
	found, err := c.k.caps.Resolve(c.req.Capability)
	if err != nil {
		return err
	}
	c.cap = found
	c.out.Capability, c.out.Version, c.out.Digest = found.ID, found.Version, found.Digest
	c.out.Warning = found.Warning
	if c.k.engines[found.Runtime.Type] == nil {
		return fault.Cannot("call "+found.ID, fmt.Sprintf("there is no engine for the runtime %s here", found.Runtime.Type), "see glasshouse doctor")
	}
	return nil
}

// check reads the input, and looks whether it is what the capability takes.
func (c *call) check(context.Context) error {
	c.input = c.req.value
	if !c.req.inside {
		text := c.req.Input
		if len(text) == 0 {
			text = json.RawMessage("null")
		}
		var err error
		if c.input, err = c.cap.Input.FromJSON(text); err != nil {
			return fault.New(fault.Invalid, "govern.Call", c.cap.ID, fmt.Errorf("the input: %w", err))
		}
	}
	if c.cap.Input != nil {
		if err := c.cap.Input.Check(c.input); err != nil {
			return fault.New(fault.Invalid, "govern.Call", c.cap.ID, fmt.Errorf("the input: %w", err))
		}
	}
	c.label = manifest.Public
	for _, l := range c.req.Labels {
		c.label = c.label.Join(l)
	}
	if takes := joined(c.cap.DataClasses.Input); !takes.Covers(c.label) {
		return &fault.Error{Op: "govern.Call", On: c.cap.ID, Kind: fault.Denied,
			Err:    fmt.Errorf("the input is %s, and the capability takes %s at most", c.label, takes),
			Remedy: "have a capability lower the label that is declared and approved for it"}
	}
	return nil
}

func joined(labels []manifest.Label) manifest.Label {
	all := manifest.Public
	for _, l := range labels {
		all = all.Join(l)
	}
	return all
}

// pure reports whether nothing of the call leaves this process, so that its record
// need not be on the disk before it is made.
func (c *call) pure() bool {
	return c.cap.Runtime.Type == manifest.RTFS && len(c.cap.Effects) == 0
}

// decide has the rules decide. An operator's call they allow; what a capability wants
// to be asked about each time is asked all the same.
func (c *call) decide(ctx context.Context) error {
	q := policy.Question{Subject: c.req.Who, Action: policy.ActionCall, Resource: c.cap.ID}
	if !c.pure() {
		q.Attributes = map[string]string{"version": c.cap.Version, "effects": strings.Join(c.cap.Effects, " "), "call": string(c.out.ID)}
	}
	a := Ask{Question: q, Parent: c.req.Parent, Operator: c.req.Operator, Patient: c.req.Patient}
	if c.cap.Approval.PerUse {
		a.Always, a.Context = "the capability is to be asked about each time", c.shown()
	} else if c.pure() && c.k.free(a) {
		return nil
	}
	a.Tier = c.tier()
	v, err := c.k.Judge(ctx, a)
	if err != nil {
		return err
	}
	c.parent = v.Entry
	if v.Allow && v.Instead == "" {
		return nil
	}
	why := v.Decision.Reason
	if v.Allow {
		why = "another capability was allowed in its place: " + v.Instead
	}
	return &fault.Error{Op: "govern.Call", On: c.cap.ID, Kind: fault.Denied, Err: errors.New(why), Remedy: v.Decision.Remedy}
}

// tier is what it takes to allow the call, where somebody is asked.
func (c *call) tier() approval.Tier {
	if c.cap.EffectiveTier() == manifest.Elevated {
		return approval.Elevated
	}
	return approval.Standard
}

// shown is what a person sees of a call who is asked about it.
func (c *call) shown() json.RawMessage {
	text, err := schema.ToJSON(c.input)
	if err != nil {
		return nil
	}
	text, _, _ = c.mask(context.Background()).JSON(text)
	b, _ := json.Marshal(map[string]any{"input": json.RawMessage(text), "label": c.label, "effects": c.cap.Effects})
	return b
}

// secrets looks whether there is everything that the capability is to be given.
func (c *call) secrets(context.Context) error {
	if len(c.cap.Secrets) == 0 {
		return nil
	}
	if c.k.cfg.Secrets == nil {
		return fault.Cannot("call "+c.cap.ID, "it needs secrets, and none are kept here", "use a daemon that was started by glasshouse serve")
	}
	if missing := c.k.cfg.Secrets.Missing(c.cap.ID, c.cap.Secrets); len(missing) > 0 {
		return &fault.Error{Op: "govern.Call", On: c.cap.ID, Kind: fault.Conflict,
			Err:    fmt.Errorf("it needs secrets that are not there, or not granted to it: %s", strings.Join(missing, ", ")),
			Remedy: fmt.Sprintf("glasshouse secret set %s, and grant it to the capability", missing[0])}
	}
	return nil
}

// reserve holds what the call can cost at worst, of the budget that it draws from.
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
	if c.hold, err = c.req.Budget.Reserve(worst); err != nil {
		r := c.req.Budget.Report()
		c.out.Budget = &r
	}
	return err
}

// defaultTimeout is for capabilities that say nothing of it.
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

// late is the reason of a call that was ended at the end of its time.
func (c *call) late() string {
	t, own := c.timeout(), c.cap.Resources.Timeout
	switch {
	case t == own:
		return fmt.Sprintf("it took longer than %v, the :timeout-ms of its manifest", t)
	case t == c.req.Timeout:
		return fmt.Sprintf("it took longer than the %v that its caller gave it", t)
	}
	return fmt.Sprintf("it took longer than %v, the default of :timeout-ms", t)
}

// run has the engine make the call. That it begins is recorded before, unless nothing
// of it leaves this process.
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
		Label: c.labelled(), Entry: c.out.Entry, Host: host{c},
	})
	if f, ok := errors.AsType[*engine.Failure](err); ok {
		c.result.Usage, c.result.Log = f.Usage, f.Log
		if f.Kind == engine.TimedOut && context.Cause(ctx) == errTimeout {
			late := *f // the engine knows only that the context has ended
			late.Reason, err = c.late(), &late
		}
	}
	c.result.Log = c.mask(ctx).Clipped(c.result.Log)
	if c.result.Usage.Wall == 0 {
		c.result.Usage.Wall = time.Since(began)
	}
	for name, took := range c.result.Times {
		c.out.Usage.StepsUS["run."+name] = took.Microseconds()
	}
	c.spend()
	return err
}

var errTimeout = fault.Newf(fault.Timeout, "govern.Call", "", "it took longer than it may")

// spend counts what the call took.
func (c *call) spend() {
	u := c.result.Usage
	o := &c.out.Usage
	o.WallMS, o.CPUMS = float64(u.Wall.Microseconds())/1000, float64(u.CPU.Microseconds())/1000
	o.MemoryPeak, o.NetworkOut, o.NetworkIn, o.StorageWrite, o.Steps = u.MemoryPeak, u.NetworkOut, u.NetworkIn, u.StorageWrite, u.Steps
	c.out.Warm, c.out.Sandbox, c.out.Log = c.result.Warm, c.result.Jail, c.result.Log
	if c.hold == nil {
		return
	}
	c.hold.Commit(budget.Amounts{
		budget.Steps: 1, budget.Wall: u.Wall.Milliseconds(), budget.CPU: u.CPU.Milliseconds(),
		budget.Network: u.NetworkOut + u.NetworkIn, budget.Storage: u.StorageWrite,
	})
	r := c.req.Budget.Report()
	c.out.Budget = &r
}

// accept looks whether what came out is what the capability said, and labels it. Only
// a capability of which that was declared and approved may lower a label.
func (c *call) accept(ctx context.Context) error {
	if c.cap.Output != nil {
		if err := c.cap.Output.Check(c.result.Output); err != nil {
			return &engine.Failure{Kind: engine.Garbled, Reason: "the output is not what the manifest says: " + err.Error()}
		}
	}
	text, err := schema.ToJSON(c.result.Output)
	if err != nil {
		return &engine.Failure{Kind: engine.Garbled, Reason: "the output cannot be written: " + err.Error()}
	}
	c.out.Output, c.out.value = text, c.result.Output
	c.out.Label = joined(c.cap.DataClasses.Output).Join(c.result.Label)
	if !c.cap.DataClasses.Declassifies {
		c.out.Label = c.out.Label.Join(c.labelled())
	}
	return c.maskOutput(c.mask(ctx))
}

// end records how the call ended.
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
		if !c.k.notes.add(note{Entry: e, body: func() any { return c.record(ctx, true) }}) && err == nil {
			err = fault.Newf(fault.Unavailable, "govern.Call", c.cap.ID, "the kernel is closed")
		}
		c.k.calls.add(c.out)
		return c.out, err
	}
	e.Body = bodyOf(c.record(ctx, true))
	if ended, cerr := c.k.cfg.Chain.Append(context.WithoutCancel(ctx), e); cerr != nil {
		err = errors.Join(err, fmt.Errorf("record the end of the call: %w", cerr))
	} else if c.out.Entry == 0 {
		c.out.Entry = ended.Seq
	}
	c.k.calls.add(c.out)
	return c.out, err
}

// host is how a capability calls others: as its caller, with what it was given to
// spend, and with the label that its own input has.
type host struct{ c *call }

func (h host) Call(ctx context.Context, name string, input form.Value) (form.Value, error) {
	out, err := h.call(ctx, Request{Capability: name, value: input, inside: true})
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
	r.Labels, r.Parent, r.depth = []manifest.Label{c.labelled()}, c.parent, c.req.depth+1
	out, err := c.k.Call(ctx, r)
	if err == nil {
		c.mu.Lock()
		c.label = c.label.Join(out.Label) // what comes of it is of that class, too
		c.mu.Unlock()
	}
	return out, err
}

// labelled is the label of what the capability has seen.
func (c *call) labelled() manifest.Label {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.label
}
