package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"glasshouse/budget"
	"glasshouse/chain"
	"glasshouse/fault"
	"glasshouse/id"
)

// A Checkpoint is a run as it was at one moment, and what it takes to go on from
// there.
type Checkpoint struct {
	ID      id.Checkpoint `json:"id"`
	Session string        `json:"session"`
	Run     id.Run        `json:"run"`
	N       int64         `json:"n"` // of its run: 1 for the first, and one more for each
	At      time.Time     `json:"at"`
	Reason  string        `json:"reason,omitempty"`
	Auto    bool          `json:"auto,omitempty"` // nobody asked for it: it is forgotten when there are newer ones

	State    json.RawMessage `json:"state,omitempty"`    // the agent's own
	Memory   json.RawMessage `json:"memory,omitempty"`   // of its working memory; nothing here reads it
	Snapshot id.Snapshot     `json:"snapshot,omitempty"` // of its jail

	Steps   int64        `json:"steps"`             // position of the journal
	Pending []string     `json:"pending,omitempty"` // keys of the steps that were in flight
	Journal string       `json:"journal,omitempty"` // digest of the steps that had ended
	Inbox   int64        `json:"inbox"`             // Seq of the last message that the agent had read
	Budget  budget.State `json:"budget"`

	Digest  string `json:"digest"`            // of all above
	Wrapped bool   `json:"wrapped,omitempty"` // State and Memory are sealed, as they are in the Store
	Entry   int64  `json:"entry,omitempty"`   // of the causal chain, in which it is recorded; 0: of another daemon's

	Recorder string `json:"recorder,omitempty"` // the Holder whose chain that is
}

// maxState is the most bytes of an agent's state, and of its memory.
const maxState = 4 << 20

// A CheckpointRequest asks for a checkpoint.
type CheckpointRequest struct {
	Reason string
	By     string
	State  json.RawMessage // nil: that of the last checkpoint
	Memory json.RawMessage
	Inbox  int64
	Auto   bool

	// Snapshot makes a snapshot of the run's jail. While it does no step of the
	// run begins or ends. nil: there is none.
	Snapshot func(ctx context.Context) (id.Snapshot, error)
}

// TakeCheckpoint takes a checkpoint of a run that has not ended. When it returns the
// checkpoint is kept and recorded.
func (m *Manager) TakeCheckpoint(ctx context.Context, rid id.Run, q CheckpointRequest) (Checkpoint, error) {
	const op = "run.TakeCheckpoint"
	if err := checkJSON(op, "state", q.State, maxState); err != nil {
		return Checkpoint{}, err
	}
	if err := checkJSON(op, "memory", q.Memory, maxState); err != nil {
		return Checkpoint{}, err
	}
	if q.Inbox < 0 {
		return Checkpoint{}, fault.Fieldf(op, "inbox", "is less than 0")
	}
	q.Reason = clip(q.Reason, maxReason)
	if q.Snapshot == nil {
		return m.checkpoint(ctx, rid, q, "")
	}
	return m.still(ctx, rid, q)
}

// still takes a checkpoint with a snapshot, while the run's journal stands still.
func (m *Manager) still(ctx context.Context, rid id.Run, q CheckpointRequest) (_ Checkpoint, err error) {
	stands := make(chan struct{})
	var at *atWork
	var l *live
	err = m.work(ctx, rid, func(t *turn, r *Run, w *atWork) error {
		if r.State.Ended() {
			return fault.Newf(fault.Conflict, "run.TakeCheckpoint", string(rid), "it is %s", r.State)
		}
		at, l, w.still = w, t.live, stands
		return nil
	})
	if at == nil {
		return Checkpoint{}, err
	}
	defer func() { err = errors.Join(err, m.goOn(ctx, l.id, at, stands)) }()
	if err != nil {
		return Checkpoint{}, err
	}
	sid, err := q.Snapshot(ctx)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("snapshot the jail of run %s: %w", rid, err)
	}
	return m.checkpoint(ctx, rid, q, sid)
}

// goOn lets the journal of a run go on. Who had no claim on its session before has
// none after.
func (m *Manager) goOn(ctx context.Context, sid string, w *atWork, stands chan struct{}) error {
	defer close(stands)
	l, err := m.enter(sid)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer m.leave(l)
	w.still = nil
	if l.claim == nil {
		return nil
	}
	return m.releaseIdle(ctx, l)
}

func (m *Manager) checkpoint(ctx context.Context, rid id.Run, q CheckpointRequest, snapshot id.Snapshot) (Checkpoint, error) {
	var c *Checkpoint
	_, err := m.moved(ctx, rid, func(t *turn, r *Run) error {
		if r.State.Ended() {
			return fault.Newf(fault.Conflict, "run.TakeCheckpoint", string(rid), "it is %s", r.State)
		}
		if err := t.checkpoint(r, q, snapshot); err != nil {
			return err
		}
		c = &t.c.Checkpoints[0]
		return nil
	})
	if err != nil {
		return Checkpoint{}, err
	}
	got := *c
	return got, m.unwrap(&got)
}

func (t *turn) checkpoint(r *Run, q CheckpointRequest, snapshot id.Snapshot) error {
	c := Checkpoint{
		ID: id.NewCheckpoint(), Session: r.Session, Run: r.ID, N: r.Checkpoints + 1, At: t.now, Reason: q.Reason, Auto: q.Auto,
		State: q.State, Memory: q.Memory, Snapshot: snapshot, Steps: r.Steps, Journal: r.Journal, Inbox: q.Inbox, Budget: r.Budget,
		Recorder: t.cfg.Holder,
	}
	if w := t.current().atWork(r.ID); w != nil {
		c.Budget = w.budget.State()
	}
	if c.State == nil && r.Checkpoint != "" {
		last, err := t.store.Checkpoint(t.ctx, r.Checkpoint)
		if err == nil {
			err = t.unwrap(&last)
		}
		if err != nil {
			return err
		}
		c.State, c.Inbox = last.State, max(c.Inbox, last.Inbox)
	}
	var err error
	if c.Pending, err = t.pending(r.ID); err != nil {
		return err
	}
	if c.Digest, err = c.sum(); err != nil {
		return err
	}
	r.Checkpoint, r.Checkpoints = c.ID, c.N
	t.touch(r)
	body := map[string]any{"checkpoint": c.ID, "n": c.N, "digest": c.Digest, "steps": c.Steps, "pending": len(c.Pending), "inbox": c.Inbox, "state": r.State}
	if snapshot != "" {
		body["snapshot"] = snapshot
	}
	if q.Reason != "" {
		body["reason"] = q.Reason
	}
	if err := t.wrap(&c); err != nil {
		return err
	}
	t.c.Checkpoints = []Checkpoint{c}
	if err := t.event(r.ID, CheckpointTaken, body); err != nil {
		return err
	}
	return t.record(Record{Kind: chain.CheckpointTaken, Run: r.ID, Parent: r.Entry, Jail: r.Jail, By: q.By, Checkpoint: c.ID}, body)
}

func (c *claim) atWork(rid id.Run) *atWork {
	if c == nil {
		return nil
	}
	return c.runs[rid]
}

// pending is the keys of the steps in flight.
func (t *turn) pending(rid id.Run) ([]string, error) {
	var keys []string
	f := StepFilter{Run: rid, State: Begun, Limit: page}
	for {
		list, err := t.store.Steps(t.ctx, f)
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			keys = append(keys, s.Key)
			f.After = s.N
		}
		if len(list) < page {
			return keys, nil
		}
	}
}

// sum is the digest of a checkpoint whose State and Memory are as they were given. How
// long it is kept is no part of it.
func (c Checkpoint) sum() (string, error) {
	c.Digest, c.Entry, c.Auto = "", 0, false
	text, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("digest of a checkpoint: %w", err)
	}
	return digest(text), nil
}

// wrap seals what an agent may have written that is personal.
func (m *Manager) wrap(c *Checkpoint) error {
	if m.cfg.Key == nil {
		return nil
	}
	for name, text := range map[string]*json.RawMessage{"state": &c.State, "memory": &c.Memory} {
		if len(*text) == 0 {
			continue
		}
		sealed, err := m.encrypt(string(c.ID)+"/"+name, *text)
		if err != nil {
			return err
		}
		*text = json.RawMessage(`{"age":"` + sealed + `"}`)
	}
	c.Wrapped = true
	return nil
}

// unwrap is the inverse of wrap.
func (m *Manager) unwrap(c *Checkpoint) error {
	if !c.Wrapped {
		return nil
	}
	for name, text := range map[string]*json.RawMessage{"state": &c.State, "memory": &c.Memory} {
		var sealed struct{ Age string }
		if len(*text) == 0 {
			continue
		}
		if err := json.Unmarshal(*text, &sealed); err != nil {
			return fmt.Errorf("read checkpoint %s: %w", c.ID, err)
		}
		plain, err := m.decrypt(string(c.ID)+"/"+name, sealed.Age)
		if err != nil {
			return err
		}
		*text = json.RawMessage(plain)
	}
	c.Wrapped = false
	return nil
}

// Checkpoint returns a checkpoint, whole.
func (m *Manager) Checkpoint(ctx context.Context, cid id.Checkpoint) (Checkpoint, error) {
	c, err := m.store.Checkpoint(ctx, cid)
	if err != nil {
		return Checkpoint{}, err
	}
	if err := m.unwrap(&c); err != nil {
		return Checkpoint{}, err
	}
	if sum, err := c.sum(); err != nil || sum != c.Digest {
		return Checkpoint{}, errors.Join(fault.Newf(fault.Unavailable, "run.Checkpoint", string(cid), "it is not as it was written"), err)
	}
	return c, nil
}

// Forget forgets a checkpoint that nobody asked for and that is not the last of its run.
// That it was taken stays in the chain.
func (m *Manager) Forget(ctx context.Context, c Checkpoint) error {
	_, err := m.moved(ctx, c.Run, func(t *turn, r *Run) error {
		if !c.Auto || c.ID == r.Checkpoint {
			return fault.Newf(fault.Conflict, "run.Forget", string(c.ID), "it is the run's last, or somebody asked for it")
		}
		t.touch(r) // that nobody goes on from it meanwhile
		t.c.Forgotten = append(t.c.Forgotten, c.ID)
		return nil
	})
	return err
}

// Checkpoints lists the checkpoints of a run after the one of a number, in their
// order, without State and Memory.
func (m *Manager) Checkpoints(ctx context.Context, rid id.Run, after int64, limit int) ([]Checkpoint, error) {
	return m.store.Checkpoints(ctx, rid, after, pageOf(limit))
}
