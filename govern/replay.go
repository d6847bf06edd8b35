package govern

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/capability/schema"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy"
	"glasshouse/policy/approval"
)

// Serve sets the capabilities and the engines that run them. It must be called once, before
// the first call.
func (k *Engine) Serve(caps Capabilities, engines map[manifest.Runtime]engine.Engine) {
	k.caps, k.engines = caps, engines
}

// A CallRecord is the body of an audit log entry about a call. Personal and secret values are
// recorded only as digests.
type CallRecord struct {
	Call    id.Call `json:"call"`
	Version string  `json:"version,omitempty"`
	Digest  string  `json:"digest,omitempty"` // digest of the capability
	Runtime string  `json:"runtime,omitempty"`
	Sandbox string  `json:"sandbox,omitempty"` // the jail that ran the call

	Isolation string          `json:"isolation,omitempty"` // what isolated that jail
	Warning   string          `json:"warning,omitempty"`   // why the version differs from the expected one
	Input     RecordedValue   `json:"input"`
	Output    *RecordedValue  `json:"output,omitempty"`
	State     CallState       `json:"state"`
	Error     *CallError      `json:"error,omitempty"`
	Usage     *Usage          `json:"usage,omitempty"`
	Replay    json.RawMessage `json:"replay,omitempty"` // engine data for Replay
}

// RecordedValue is a value in the audit log.
type RecordedValue struct {
	SHA256 string          `json:"sha256"` // SHA-256 hash of the JSON text
	Bytes  int             `json:"bytes"`
	Label  manifest.Label  `json:"label"`
	Value  json.RawMessage `json:"value,omitempty"` // omitted if long, personal or secret
}

func newShown(text []byte, label manifest.Label) RecordedValue {
	sum := sha256.Sum256(text)
	s := RecordedValue{SHA256: hex.EncodeToString(sum[:]), Bytes: len(text), Label: label}
	if len(text) <= maxResource && manifest.Redacted.Covers(label) {
		s.Value = text
	}
	return s
}

// record returns the audit log record of the call. Output and errors are already masked.
func (c *call) record(ctx context.Context, ended bool) CallRecord {
	r := CallRecord{Call: c.out.ID, Version: c.out.Version, Digest: c.out.Digest, Warning: c.out.Warning, State: CallRunning}
	if c.cap != nil {
		r.Runtime = string(c.cap.Runtime.Type)
	}
	label := c.currentLabel()
	for _, l := range c.req.Labels {
		label = label.Join(l) // the call may have failed before checkInput joined them
	}
	text := []byte(c.req.Input)
	if c.req.nested {
		text, _ = schema.ToJSON(c.req.value)
	}
	m := c.mask(ctx)
	text, changed, _ := m.JSON(text)
	r.Input = newShown(text, label)
	if !ended {
		return r
	}
	r.State, r.Error, r.Usage, r.Sandbox, r.Isolation = c.out.State, c.out.Error, &c.out.Usage, c.out.Sandbox, c.out.Isolation
	if c.out.State == CallDone {
		out := newShown(c.out.Output, c.out.Label)
		r.Output = &out
		_, secret, _ := m.JSON(c.result.Replay)
		if r.Input.Value != nil && out.Value != nil && !changed && !secret {
			r.Replay = c.result.Replay // a masked call cannot be replayed
		}
	}
	return r
}

// allowedByRules reports whether the policy allows a pure call. If so, no separate decision is
// recorded.
func (k *Engine) allowedByRules(a Ask) bool {
	if a.Operator {
		return true
	}
	a.Subject.Agent = k.agentOf(a.Subject)
	return k.evaluate(a.Question, unlistedByPolicy).Effect == policy.Allow
}

// recentCalls is a ring buffer of the outcomes of the last calls.
type recentCalls struct {
	mu sync.Mutex
	// +checklocks:mu
	outcomes []Outcome
	// +checklocks:mu
	next int // index of the next write, once outcomes is full
}

// maxRecentCalls is the size of recentCalls. The audit log has all calls.
const maxRecentCalls = 4096

func (l *recentCalls) add(o Outcome) {
	o.value = nil
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.outcomes) < maxRecentCalls {
		l.outcomes = append(l.outcomes, o)
		return
	}
	l.outcomes[l.next] = o
	l.next = (l.next + 1) % maxRecentCalls
}

// RecentCall returns the outcome of a recent call. Older calls are only in the audit log.
func (k *Engine) RecentCall(cid id.Call) (Outcome, error) {
	k.recent.mu.Lock()
	defer k.recent.mu.Unlock()
	i := slices.IndexFunc(k.recent.outcomes, func(o Outcome) bool { return o.ID == cid })
	if i < 0 {
		return Outcome{}, &fault.Error{Op: "govern.RecentCall", On: string(cid), Kind: fault.NotFound,
			Err: errNoCall, Remedy: "search the audit log: glasshouse audit ls --kind call.ended"}
	}
	return k.recent.outcomes[i], nil
}

var errNoCall = fault.Newf(fault.NotFound, "govern.RecentCall", "", "the call is unknown or too old")

// operatorDecision returns the decision about a call by an authorized person.
func operatorDecision(q policy.Question) policy.Decision {
	return policy.Decision{
		Effect: policy.Allow,
		Rule:   policy.Rule{Action: q.Action, Pattern: "*", Effect: policy.Allow, File: "operator"},
		Reason: "called by an authorized person",
	}
}

// alwaysAsk turns a decision into one that needs approval, unless it denies.
func alwaysAsk(d policy.Decision, q policy.Question, why string) policy.Decision {
	if d.Effect == policy.Deny {
		return d
	}
	return policy.Decision{
		Effect: policy.Ask,
		Rule:   policy.Rule{Action: q.Action, Pattern: q.Resource, Effect: policy.Ask, File: "manifest"},
		Reason: why,
		Remedy: "wait for the approval",
	}
}

// tierOf returns the approval tier for a question.
func (k *Engine) tierOf(a Ask) approval.Tier {
	if a.Tier == approval.Elevated {
		return approval.Elevated
	}
	return k.tier(a.Question)
}

// Replay repeats a recorded call of a pure engine and compares the outputs.
func (k *Engine) Replay(ctx context.Context, rec CallRecord, cap *engine.Installed) (same bool, output json.RawMessage, err error) {
	const op = "govern.Replay"
	if rec.Replay == nil || rec.Output == nil {
		return false, nil, fault.Newf(fault.Invalid, op, string(rec.Call), "the record has no replay data")
	}
	if cap.Digest != rec.Digest {
		return false, nil, fault.Newf(fault.Conflict, op, string(rec.Call), "the installed capability differs from the one that was called")
	}
	again, ok := k.engines[cap.Runtime.Type].(Replayer)
	if !ok {
		return false, nil, fault.Newf(fault.Unsupported, op, string(rec.Call), "calls on the runtime %s cannot be replayed", cap.Runtime.Type)
	}
	input, err := cap.Input.FromJSON(rec.Input.Value)
	if err != nil {
		return false, nil, fmt.Errorf("decode the recorded input: %w", err)
	}
	v, err := again.Replay(ctx, &engine.Call{ID: string(rec.Call), Capability: cap, Input: input}, rec.Replay)
	if err != nil {
		return false, nil, err
	}
	output, err = schema.ToJSON(v)
	if err != nil {
		return false, nil, fmt.Errorf("encode the output of the replay: %w", err)
	}
	return newShown(output, rec.Output.Label).SHA256 == rec.Output.SHA256, output, nil
}

// A Replayer is an engine that can repeat a call. Nested calls are answered from the record.
type Replayer interface {
	Replay(ctx context.Context, c *engine.Call, record json.RawMessage) (any, error)
}
