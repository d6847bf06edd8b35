package govern

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"glasshouse/chain"
	"glasshouse/egress"
	"glasshouse/id"
	"glasshouse/internal/text"
	"glasshouse/policy"
)

// A Decided is the body of a decision in the chain.
type Decided struct {
	Action     string            `json:"action"`
	Resource   string            `json:"resource"`
	Attributes map[string]string `json:"attributes,omitempty"`
	Effect     policy.Effect     `json:"effect"` // of the rule
	Allowed    bool              `json:"allowed"`
	Tag        Tag               `json:"tag"`
	Rule       policy.Rule       `json:"rule"`
	Reason     string            `json:"reason,omitempty"`
	By         string            `json:"by,omitempty"`
	Instead    string            `json:"instead,omitempty"`
	Cut        bool              `json:"cut,omitempty"` // the resource was longer
}

// maxResource is how much of a resource, or of an attribute, an entry holds.
const maxResource = 16 << 10

func (k *Kernel) decided(ctx context.Context, q policy.Question, v Verdict, parent int64) chain.Entry {
	d := Decided{
		Action: q.Action, Resource: q.Resource, Attributes: q.Attributes,
		Effect: v.Decision.Effect, Allowed: v.Allow, Tag: v.Tag,
		Rule: v.Decision.Rule, Reason: v.Decision.Reason, By: v.By, Instead: v.Instead,
	}.masked(k.mask(context.WithoutCancel(ctx), q.Subject))
	if len(d.Resource) > maxResource {
		d.Resource, d.Cut = text.Prefix(d.Resource, maxResource), true
	}
	return entry(chain.Decided, q.Subject, parent, d)
}

// entry makes an entry of the chain.
func entry(kind chain.Kind, who policy.Subject, parent int64, body any) chain.Entry {
	return chain.Entry{Kind: kind, Jail: who.Jail, Session: who.Session, Run: who.Run, Agent: who.Agent, Parent: parent, Body: bodyOf(body)}
}

func bodyOf(body any) json.RawMessage {
	b, err := json.Marshal(body)
	if err != nil {
		return json.RawMessage(`{"unreadable":true}`) // bodies are structs of ours; that it happened is kept
	}
	return b
}

// notes are entries that nobody waits for, recorded in the order in which they
// came. If they cannot be recorded the log of the daemon says so, and new ones
// are still tried: the disk may have room again.
type notes struct {
	queue chan note
	wg    sync.WaitGroup

	mu sync.RWMutex
	// +checklocks:mu
	closed bool
}

// A note is an entry whose body is written when it is recorded: whoever notes something
// does not wait for that either, and leaves it as it is.
type note struct {
	chain.Entry
	body func() any // nil: the entry has it

	// settled is closed when all that came before is recorded, or could not be; such
	// a note is no entry itself. nil: it is one.
	settled chan struct{}
}

func (n note) entry() chain.Entry {
	e := n.Entry
	if n.body != nil {
		e.Body = bodyOf(n.body())
	}
	return e
}

// noteRoom is how many notes may wait before those who note wait, too.
const noteRoom = 4096

// noteBatch is how many are recorded together.
const noteBatch = 512

func (n *notes) start(k *Kernel) {
	n.queue = make(chan note, noteRoom)
	n.wg.Go(func() {
		for e := range n.queue {
			some, settled := n.gather(e)
			for i, err := range k.cfg.Chain.AppendAll(context.Background(), some) {
				if e := some[i]; err != nil {
					k.cfg.Log.Error("not recorded in the chain", "kind", e.Kind, "jail", e.Jail, "body", string(e.Body), "err", err)
				}
			}
			if settled != nil {
				close(settled)
			}
		}
	})
}

// gather takes what waits, beginning with e: it is recorded together. It ends with the
// first that somebody waits for.
func (n *notes) gather(e note) (some []chain.Entry, settled chan struct{}) {
	for e.settled == nil {
		if some = append(some, e.entry()); len(some) == noteBatch {
			return some, nil
		}
		select {
		case next, ok := <-n.queue:
			if !ok {
				return some, nil
			}
			e = next
		default:
			return some, nil
		}
	}
	return some, e.settled
}

func (n *notes) stop() {
	n.mu.Lock()
	was := n.closed
	n.closed = true
	n.mu.Unlock()
	if !was {
		close(n.queue)
	}
	n.wg.Wait()
}

func (n *notes) add(e note) bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.closed {
		return false
	}
	n.queue <- e
	return true
}

// Note has something recorded that has happened, soon.
func (k *Kernel) Note(kind chain.Kind, who policy.Subject, parent int64, body any) {
	if !k.notes.add(note{Entry: entry(kind, who, parent, body)}) {
		k.cfg.Log.Error("not recorded in the chain: the kernel is closed", "kind", kind, "jail", who.Jail)
	}
}

// Settle waits until what was noted before is recorded: who reads the chain then finds
// it there.
func (k *Kernel) Settle(ctx context.Context) error {
	n := note{settled: make(chan struct{})}
	if !k.notes.add(n) {
		return nil // the kernel is closed, and waits itself
	}
	select {
	case <-n.settled:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// recorder records what a jail's proxy carried and refused.
type recorder struct {
	k       *Kernel
	jid     id.Jail
	serving *serving // nil: it is of no capability's jail
	secrets []string // of a capability without a jail
}

// Record implements egress.Recorder.
func (r recorder) Record(rec egress.Record) {
	rec.Jail = "" // the entry says it
	who := policy.Subject{Jail: r.jid}
	rec = maskRecord(r.k.mask(context.Background(), who, r.secrets...), rec)
	rec.Path = text.Prefix(rec.Path, maxResource)
	parent := int64(0)
	if r.serving != nil {
		parent = r.serving.at(rec.At)
	}
	r.k.Note(chain.Egress, who, parent, rec)
}

// Line is the decision as the audit trail is printed. It is always one line, whatever
// the agent wrote.
func (d Decided) Line() string {
	tag := string(d.Tag)
	if d.Tag == Whitelisted {
		tag = "AUTONOMOUS - whitelisted"
	}
	return fmt.Sprintf("%s: %s [%s]", text.Visible(d.Action), text.Visible(d.Resource), tag)
}

// Said records what an agent says that it does, and what the rules say of it. It asks
// nobody, and waits for nothing.
func (k *Kernel) Said(q policy.Question) Verdict {
	q.Subject.Agent = k.agentOf(q.Subject)
	v := Verdict{Decision: k.decide(q, false), Tag: Denied}
	if v.Decision.Effect == policy.Allow {
		v.Allow, v.Tag = true, Autonomous
		if v.Decision.Listed {
			v.Tag = Whitelisted
		}
	}
	if e := k.decided(context.Background(), q, v, 0); !k.notes.add(note{Entry: e}) {
		k.cfg.Log.Error("not recorded in the chain: the kernel is closed", "kind", e.Kind, "jail", e.Jail)
	}
	return v
}
