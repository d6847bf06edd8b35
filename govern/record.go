package govern

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"glasshouse/chain"
	"glasshouse/egress"
	"glasshouse/id"
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

func decided(q policy.Question, v Verdict, parent int64) chain.Entry {
	d := Decided{
		Action: q.Action, Resource: q.Resource, Attributes: q.Attributes,
		Effect: v.Decision.Effect, Allowed: v.Allow, Tag: v.Tag,
		Rule: v.Decision.Rule, Reason: v.Decision.Reason, By: v.By, Instead: v.Instead,
	}
	if len(d.Resource) > maxResource {
		d.Resource, d.Cut = d.Resource[:maxResource], true
	}
	return entry(chain.Decided, q.Subject, parent, d)
}

// entry makes an entry of the chain.
func entry(kind chain.Kind, who policy.Subject, parent int64, body any) chain.Entry {
	b, err := json.Marshal(body)
	if err != nil {
		b = []byte(`{"unreadable":true}`) // bodies are structs of ours; that it happened is kept
	}
	return chain.Entry{Kind: kind, Jail: who.Jail, Session: who.Session, Run: who.Run, Agent: who.Agent, Parent: parent, Body: b}
}

// notes are entries that nobody waits for, recorded in the order in which they
// came. If they cannot be recorded the log of the daemon says so, and new ones
// are still tried: the disk may have room again.
type notes struct {
	queue chan chain.Entry
	wg    sync.WaitGroup

	mu     sync.RWMutex
	closed bool // guarded by mu
}

// noteRoom is how many notes may wait before those who note wait, too.
const noteRoom = 4096

func (n *notes) start(k *Kernel) {
	n.queue = make(chan chain.Entry, noteRoom)
	n.wg.Go(func() {
		for e := range n.queue {
			if _, err := k.cfg.Chain.Append(context.Background(), e); err != nil {
				k.cfg.Log.Error("not recorded in the chain", "kind", e.Kind, "jail", e.Jail, "body", string(e.Body), "err", err)
			}
		}
	})
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

func (n *notes) add(e chain.Entry) bool {
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
	if !k.notes.add(entry(kind, who, parent, body)) {
		k.cfg.Log.Error("not recorded in the chain: the kernel is closed", "kind", kind, "jail", who.Jail)
	}
}

// recorder records what a jail's proxy carried and refused.
type recorder struct {
	k   *Kernel
	jid id.Jail
}

// Record implements egress.Recorder.
func (r recorder) Record(rec egress.Record) {
	rec.Jail = "" // the entry says it
	if len(rec.Path) > maxResource {
		rec.Path = rec.Path[:maxResource]
	}
	r.k.Note(chain.Egress, policy.Subject{Jail: r.jid}, 0, rec)
}

// Line is the decision as the audit trail is printed.
func (d Decided) Line() string {
	tag := string(d.Tag)
	if d.Tag == Whitelisted {
		tag = "AUTONOMOUS - whitelisted"
	}
	return fmt.Sprintf("%s: %s [%s]", d.Action, d.Resource, tag)
}
