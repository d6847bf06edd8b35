package govern

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"sync"

	"glasshouse/approval"
	"glasshouse/engine"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/manifest"
	"glasshouse/policy"
	"glasshouse/schema"
)

// Serve has the kernel make calls of capabilities, by engines. It is called once,
// before the first call.
func (k *Kernel) Serve(caps Capabilities, engines map[manifest.Runtime]engine.Engine) {
	k.caps, k.engines = caps, engines
}

// A CallRecord is the body of what the chain says of a call. What is labelled as
// personal or secret is in it by its digest alone.
type CallRecord struct {
	Call    id.Call         `json:"call"`
	Version string          `json:"version,omitempty"`
	Digest  string          `json:"digest,omitempty"` // of the capability
	Runtime string          `json:"runtime,omitempty"`
	Sandbox string          `json:"sandbox,omitempty"` // the jail that served it
	Warning string          `json:"warning,omitempty"` // why it is not the version that the caller expects
	Input   Shown           `json:"input"`
	Output  *Shown          `json:"output,omitempty"`
	State   CallState       `json:"state"`
	Error   *CallError      `json:"error,omitempty"`
	Usage   *Usage          `json:"usage,omitempty"`
	Replay  json.RawMessage `json:"replay,omitempty"` // what it takes to make it again and compare
}

// Shown is a value in the chain.
type Shown struct {
	SHA256 string          `json:"sha256"` // of its JSON
	Bytes  int             `json:"bytes"`
	Label  manifest.Label  `json:"label"`
	Value  json.RawMessage `json:"value,omitempty"` // unless it is long, personal or secret
}

func show(text []byte, label manifest.Label) Shown {
	sum := sha256.Sum256(text)
	s := Shown{SHA256: hex.EncodeToString(sum[:]), Bytes: len(text), Label: label}
	if len(text) <= maxResource && manifest.Redacted.Covers(label) {
		s.Value = text
	}
	return s
}

// record is what the chain says of the call. Its output and its errors are masked already.
func (c *call) record(ctx context.Context, ended bool) CallRecord {
	r := CallRecord{Call: c.out.ID, Version: c.out.Version, Digest: c.out.Digest, Warning: c.out.Warning, State: CallRunning}
	if c.cap != nil {
		r.Runtime = string(c.cap.Runtime.Type)
	}
	label := c.labelled()
	for _, l := range c.req.Labels {
		label = label.Join(l) // it may not have come to where they are looked at
	}
	text := []byte(c.req.Input)
	if c.req.inside {
		text, _ = schema.ToJSON(c.req.value)
	}
	m := c.mask(ctx)
	text, changed, _ := m.JSON(text)
	r.Input = show(text, label)
	if !ended {
		return r
	}
	r.State, r.Error, r.Usage, r.Sandbox = c.out.State, c.out.Error, &c.out.Usage, c.out.Sandbox
	if c.out.State == CallDone {
		out := show(c.out.Output, c.out.Label)
		r.Output = &out
		_, secret, _ := m.JSON(c.result.Replay)
		if r.Input.Value != nil && out.Value != nil && !changed && !secret {
			r.Replay = c.result.Replay // a masked call cannot be replayed
		}
	}
	return r
}

// free reports whether the rules allow what a pure call is, so that no decision has
// to be recorded beside the call itself.
func (k *Kernel) free(a Ask) bool {
	if a.Operator {
		return true
	}
	a.Subject.Agent = k.agentOf(a.Subject)
	return k.decide(a.Question, false).Effect == policy.Allow
}

// called remembers the last calls, for those who ask what became of theirs.
type called struct {
	mu sync.Mutex
	// +checklocks:mu
	last []Outcome
	// +checklocks:mu
	next int // where the following one goes, once last is full
}

// lastCalls is how many calls are remembered. All are in the chain.
const lastCalls = 4096

func (l *called) add(o Outcome) {
	o.value = nil
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.last) < lastCalls {
		l.last = append(l.last, o)
		return
	}
	l.last[l.next] = o
	l.next = (l.next + 1) % lastCalls
}

// Called returns what became of a call, of those that were last.
func (k *Kernel) Called(cid id.Call) (Outcome, error) {
	k.calls.mu.Lock()
	defer k.calls.mu.Unlock()
	i := slices.IndexFunc(k.calls.last, func(o Outcome) bool { return o.ID == cid })
	if i < 0 {
		return Outcome{}, &fault.Error{Op: "govern.Called", On: string(cid), Kind: fault.NotFound,
			Err: errNoCall, Remedy: "look for it in the chain: glasshouse audit ls --kind call.ended"}
	}
	return k.calls.last[i], nil
}

var errNoCall = fault.Newf(fault.NotFound, "govern.Called", "", "no call of that name is remembered")

// operator is the decision about what a person calls who may.
func operator(q policy.Question) policy.Decision {
	return policy.Decision{
		Effect: policy.Allow,
		Rule:   policy.Rule{Action: q.Action, Pattern: "*", Effect: policy.Allow, File: "operator"},
		Reason: "a person with the right to it calls",
	}
}

// asking makes of a decision one that a person is asked about, unless it denies.
func asking(d policy.Decision, q policy.Question, why string) policy.Decision {
	if d.Effect == policy.Deny {
		return d
	}
	return policy.Decision{
		Effect: policy.Ask,
		Rule:   policy.Rule{Action: q.Action, Pattern: q.Resource, Effect: policy.Ask, File: "manifest"},
		Reason: why,
		Remedy: "wait for the answer",
	}
}

// tierOf is what it takes to allow a question.
func (k *Kernel) tierOf(a Ask) approval.Tier {
	if a.Tier == approval.Elevated {
		return approval.Elevated
	}
	return k.tier(a.Question)
}

// Replay makes a recorded call again, and compares. It is for what a pure engine has
// made.
func (k *Kernel) Replay(ctx context.Context, rec CallRecord, cap *engine.Installed) (same bool, output json.RawMessage, err error) {
	const op = "govern.Replay"
	if rec.Replay == nil || rec.Output == nil {
		return false, nil, fault.Newf(fault.Invalid, op, string(rec.Call), "what it takes to make the call again is not recorded")
	}
	if cap.Digest != rec.Digest {
		return false, nil, fault.Newf(fault.Conflict, op, string(rec.Call), "the capability that is installed is not the one that was called")
	}
	again, ok := k.engines[cap.Runtime.Type].(Replayer)
	if !ok {
		return false, nil, fault.Newf(fault.Unsupported, op, string(rec.Call), "what runs on %s cannot be made again", cap.Runtime.Type)
	}
	input, err := cap.Input.FromJSON(rec.Input.Value)
	if err != nil {
		return false, nil, err
	}
	v, err := again.Replay(ctx, &engine.Call{ID: string(rec.Call), Capability: cap, Input: input}, rec.Replay)
	if err != nil {
		return false, nil, err
	}
	if output, err = schema.ToJSON(v); err != nil {
		return false, nil, err
	}
	return show(output, rec.Output.Label).SHA256 == rec.Output.SHA256, output, nil
}

// A Replayer is an engine that can make a call again, with what it called in its turn
// answered from the record.
type Replayer interface {
	Replay(ctx context.Context, c *engine.Call, record json.RawMessage) (any, error)
}
