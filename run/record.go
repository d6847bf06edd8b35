package run

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"glasshouse/chain"
	"glasshouse/fault"
	"glasshouse/id"
)

// A Record is what the causal chain is owed for a change, until it is paid.
type Record struct {
	ID         string          `json:"id"` // in the entry's body, to be known again
	Holder     string          `json:"holder"`
	At         time.Time       `json:"at"`
	Kind       chain.Kind      `json:"kind"`
	Parent     int64           `json:"parent,omitempty"`
	Session    string          `json:"session"`
	Run        id.Run          `json:"run,omitempty"`
	Jail       id.Jail         `json:"jail,omitempty"`
	By         string          `json:"by,omitempty"`
	Checkpoint id.Checkpoint   `json:"checkpoint,omitempty"`
	Body       json.RawMessage `json:"body"`

	entry int64 // in the chain; 0: not there, as far as is known
}

// page is how many records are read at once.
const page = 200

// record has the chain owe an entry for the change.
func (t *turn) record(r Record, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("write entry %s: %w", r.Kind, err)
	}
	if text, err = recordable(text); err != nil {
		return fmt.Errorf("write entry %s: %w", r.Kind, err)
	}
	r.By = actor(r.By)
	r.ID, r.Holder, r.At, r.Session = rand.Text(), t.cfg.Holder, t.now, t.live.id
	r.Body = slices.Concat([]byte(`{"record":"`+r.ID+`"`), []byte(","), text[1:])
	if string(text) == "{}" {
		r.Body = []byte(`{"record":"` + r.ID + `"}`)
	}
	t.c.Records = append(t.c.Records, r)
	return nil
}

// recordable is a body as the chain takes it: what was kept must not fail to be
// recorded. A number that its JSON cannot have makes it a text; of one that is too
// large there is the digest.
func recordable(text []byte) ([]byte, error) {
	if len(text) > chain.MaxBody/2 {
		return json.Marshal(map[string]any{"digest": digest(text), "bytes": len(text)})
	}
	if _, err := chain.Canonical(text); err != nil {
		return json.Marshal(map[string]string{"json": string(text)})
	}
	return text, nil
}

// pay records in the chain what is owed to it, and returns the numbers of the
// entries. What was done and cannot be recorded stops all that would follow in the
// session. The caller holds l.mu.
//
// +checklocks:l.mu
func (m *Manager) pay(ctx context.Context, l *live) (map[string]int64, error) {
	if len(l.owed) == 0 {
		return nil, nil
	}
	entries := map[string]int64{}
	for len(l.owed) > 0 {
		r := &l.owed[0]
		if err := m.payOne(ctx, r); err != nil {
			return entries, &fault.Error{Op: "run", On: l.id, Kind: fault.Unavailable,
				Err:    fmt.Errorf("it is kept, and not recorded yet: %w", err),
				Remedy: "nothing else happens in the session until it is; ask how it stands before asking again"}
		}
		entries[r.ID] = r.entry
		l.owed = l.owed[1:]
	}
	return entries, nil
}

func (m *Manager) payOne(ctx context.Context, r *Record) error {
	if r.entry == 0 {
		parent := r.Parent
		if r.Holder != m.cfg.Holder { // that is an entry of another's chain
			parent = 0
		}
		e, err := m.cfg.Chain.Append(ctx, chain.Entry{
			Kind: r.Kind, Parent: parent, Session: r.Session, Run: string(r.Run), Jail: r.Jail, Agent: r.By, Body: r.Body,
		})
		if err != nil {
			return err
		}
		r.entry = e.Seq
	}
	entry := r.entry
	if r.Holder != m.cfg.Holder { // who reads it looks for it in the other's chain
		entry = 0
	}
	return m.store.Paid(ctx, *r, entry)
}

// settleOwn pays what a process of the same name, which is no more, left owed.
func (m *Manager) settleOwn(ctx context.Context) error {
	for {
		owed, err := m.store.Owed(ctx, m.cfg.Holder, page)
		if err != nil || len(owed) == 0 {
			return err
		}
		if err := m.settle(ctx, owed); err != nil {
			return err
		}
	}
}

// settleOthers pays what others have not paid for so long that they never will.
func (m *Manager) settleOthers(ctx context.Context) error {
	for {
		now := time.Now()
		owed, err := m.store.TakeOwed(ctx, m.cfg.Holder, now.Add(-debtAge), now, page)
		if err != nil || len(owed) == 0 {
			return err
		}
		if err := m.settle(ctx, owed); err != nil {
			return err
		}
	}
}

func (m *Manager) settle(ctx context.Context, owed []Record) error {
	for _, r := range owed {
		var err error
		if r.entry, err = m.recorded(ctx, r); err == nil {
			err = m.payOne(ctx, &r)
		}
		if err != nil {
			return fmt.Errorf("record what was done before: %w", err)
		}
	}
	return nil
}

// settleUnsure pays what is owed here and not known to be: of a write that failed nobody
// could say whether it was carried out.
func (m *Manager) settleUnsure(ctx context.Context) error {
	owed, err := m.store.Owed(ctx, m.cfg.Holder, page)
	if err != nil {
		return err
	}
	before := time.Now().Add(-debtAge)
	owed = slices.DeleteFunc(owed, func(r Record) bool { return r.At.After(before) || m.knowsOf(r) })
	return m.settle(ctx, owed)
}

// knowsOf reports whether a debt is known here, and paid with what else happens in its
// session.
func (m *Manager) knowsOf(r Record) bool {
	m.mu.Lock()
	l := m.live[r.Session]
	m.mu.Unlock()
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.owed, func(o Record) bool { return o.ID == r.ID })
}

// payAgain tries anew to pay what could not be paid when it was owed.
func (m *Manager) payAgain(ctx context.Context) {
	m.mu.Lock()
	all := slices.Collect(maps.Keys(m.live))
	m.mu.Unlock()
	for _, sid := range all {
		l, err := m.enter(sid)
		if err != nil {
			return
		}
		l.mu.Lock()
		if _, err := m.pay(ctx, l); err != nil {
			m.cfg.Log.Error("what was done is still not recorded", "session", sid, "error", err)
		}
		m.leave(l)
	}
}

// debtAge is after how long a record is another's to pay: longer than the chain
// takes to say that it cannot.
const debtAge = 2 * time.Minute

// recorded is the number of the entry that a record has in the chain already, or 0:
// whoever owed it may have been killed after he paid and before he noted it.
func (m *Manager) recorded(ctx context.Context, r Record) (int64, error) {
	q := chain.Query{Session: r.Session, Run: string(r.Run), Kinds: []chain.Kind{r.Kind}, From: r.At.Add(-time.Minute)}
	for {
		list, err := m.cfg.Chain.Entries(ctx, q)
		if err != nil || len(list) == 0 {
			return 0, err
		}
		for _, e := range list {
			var body struct{ Record string }
			if json.Unmarshal(e.Body, &body) == nil && body.Record == r.ID {
				return e.Seq, nil
			}
		}
		q.After = list[len(list)-1].Seq
	}
}
