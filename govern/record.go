package govern

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"glasshouse/id"
	"glasshouse/internal/text"
	"glasshouse/policy"
	"glasshouse/policy/chain"
	"glasshouse/policy/egress"
)

// A DecisionRecord is the body of an audit log entry about a decision.
type DecisionRecord struct {
	Action     string            `json:"action"`
	Resource   string            `json:"resource"`
	Attributes map[string]string `json:"attributes,omitempty"`
	Effect     policy.Effect     `json:"effect"` // effect of the rule
	Allowed    bool              `json:"allowed"`
	Tag        Tag               `json:"tag"`
	Rule       policy.Rule       `json:"rule"`
	Reason     string            `json:"reason,omitempty"`
	By         string            `json:"by,omitempty"`
	Instead    string            `json:"instead,omitempty"`
	Cut        bool              `json:"cut,omitempty"` // the resource was truncated
}

// maxResource is the maximum length of a resource or attribute in an entry, in bytes.
const maxResource = 16 << 10

func (k *Engine) decisionEntry(ctx context.Context, q policy.Question, v Verdict, parent int64) chain.Entry {
	d := DecisionRecord{
		Action: q.Action, Resource: q.Resource, Attributes: q.Attributes,
		Effect: v.Decision.Effect, Allowed: v.Allow, Tag: v.Tag,
		Rule: v.Decision.Rule, Reason: v.Decision.Reason, By: v.By, Instead: v.Instead,
	}.masked(k.mask(context.WithoutCancel(ctx), q.Subject))
	if len(d.Resource) > maxResource {
		d.Resource, d.Cut = text.Prefix(d.Resource, maxResource), true
	}
	return entry(chain.Decided, q.Subject, parent, d)
}

// entry returns an audit log entry.
func entry(kind chain.Kind, who policy.Subject, parent int64, body any) chain.Entry {
	return chain.Entry{Kind: kind, Jail: who.Jail, Session: who.Session, Run: who.Run, Agent: who.Agent, Parent: parent, Body: bodyOf(body)}
}

func bodyOf(body any) json.RawMessage {
	b, err := json.Marshal(body)
	if err != nil {
		return json.RawMessage(`{"unreadable":true}`) // not reached: bodies are plain structs; the entry itself must not be lost
	}
	return b
}

// noteQueue records audit log entries asynchronously, in order. Entries that cannot be
// recorded are logged and dropped; later entries are still tried, since the disk may have
// space again.
type noteQueue struct {
	queue chan note
	wg    sync.WaitGroup

	mu sync.RWMutex
	// +checklocks:mu
	closed bool
}

// A note is a queued entry. Its body may be encoded when it is recorded; the caller of add
// must not change it.
type note struct {
	chain.Entry
	body func() any // nil: Entry.Body is set

	// flushed is closed when all earlier notes are recorded or have failed. A note with
	// flushed set is not an entry. May be nil.
	flushed chan struct{}
}

func (n note) entry() chain.Entry {
	e := n.Entry
	if n.body != nil {
		e.Body = bodyOf(n.body())
	}
	return e
}

// maxQueuedNotes is the capacity of the queue. If it is full, add blocks.
const maxQueuedNotes = 4096

// maxNoteBatch is the maximum number of entries recorded in one transaction.
const maxNoteBatch = 512

func (n *noteQueue) start(k *Engine) {
	n.queue = make(chan note, maxQueuedNotes)
	n.wg.Go(func() {
		for e := range n.queue {
			batch, flushed := n.collectBatch(e)
			for i, err := range k.cfg.Chain.AppendAll(context.Background(), batch) {
				if e := batch[i]; err != nil {
					k.cfg.Log.Error("could not record an audit log entry", "kind", e.Kind, "jail", e.Jail, "body", string(e.Body), "err", err)
				}
			}
			if flushed != nil {
				close(flushed)
			}
		}
	})
}

// collectBatch collects queued entries beginning with e. It stops at a note with flushed set.
func (n *noteQueue) collectBatch(e note) (batch []chain.Entry, flushed chan struct{}) {
	for e.flushed == nil {
		batch = append(batch, e.entry())
		if len(batch) == maxNoteBatch {
			return batch, nil
		}
		select {
		case next, ok := <-n.queue:
			if !ok {
				return batch, nil
			}
			e = next
		default:
			return batch, nil
		}
	}
	return batch, e.flushed
}

func (n *noteQueue) stop() {
	n.mu.Lock()
	alreadyClosed := n.closed
	n.closed = true
	n.mu.Unlock()
	if !alreadyClosed {
		close(n.queue)
	}
	n.wg.Wait()
}

func (n *noteQueue) add(e note) bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.closed {
		return false
	}
	n.queue <- e
	return true
}

// Note records an event asynchronously. It blocks only while the queue is full.
func (k *Engine) Note(kind chain.Kind, who policy.Subject, parent int64, body any) {
	if !k.notes.add(note{Entry: entry(kind, who, parent, body)}) {
		k.cfg.Log.Error("could not record an audit log entry: the policy engine is closed", "kind", kind, "jail", who.Jail)
	}
}

// Flush blocks until all earlier notes are recorded, so that they can be read from the audit
// log.
func (k *Engine) Flush(ctx context.Context) error {
	n := note{flushed: make(chan struct{})}
	if !k.notes.add(n) {
		return nil // Close waits for the queue itself
	}
	select {
	case <-n.flushed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// recorder records the requests that a jail's proxy forwarded or refused.
type recorder struct {
	k       *Engine
	jid     id.Jail
	served  *servedCalls // nil: not the jail of a capability
	secrets []string     // names of a capability's secrets, if it has no jail
}

// Record implements egress.Recorder.
func (r recorder) Record(rec egress.Record) {
	rec.Jail = "" // the entry has the jail
	who := policy.Subject{Jail: r.jid}
	rec = maskRecord(r.k.mask(context.Background(), who, r.secrets...), rec)
	rec.Path = text.Prefix(rec.Path, maxResource)
	parent := int64(0)
	if r.served != nil {
		parent = r.served.entryAt(rec.At)
	}
	r.k.Note(chain.Egress, who, parent, rec)
}

// Line returns the decision as a line of the audit trail. Control characters are escaped, so
// the result is always one line.
func (d DecisionRecord) Line() string {
	tag := string(d.Tag)
	if d.Tag == Whitelisted {
		tag = "AUTONOMOUS - whitelisted"
	}
	return fmt.Sprintf("%s: %s [%s]", text.Visible(d.Action), text.Visible(d.Resource), tag)
}

// RecordAction records an action that an agent announces, with the decision of the rules. It requests
// no approval and does not wait for the entry to be recorded.
func (k *Engine) RecordAction(q policy.Question) Verdict {
	q.Subject.Agent = k.agentOf(q.Subject)
	v := Verdict{Decision: k.evaluate(q, unlistedByPolicy), Tag: Denied}
	if v.Decision.Effect == policy.Allow {
		v.Allow, v.Tag = true, Autonomous
		if v.Decision.Listed {
			v.Tag = Whitelisted
		}
	}
	if e := k.decisionEntry(context.Background(), q, v, 0); !k.notes.add(note{Entry: e}) {
		k.cfg.Log.Error("could not record an audit log entry: the policy engine is closed", "kind", e.Kind, "jail", e.Jail)
	}
	return v
}
