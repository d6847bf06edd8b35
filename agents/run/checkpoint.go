package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"glasshouse/capability/budget"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/chain"
)

// A Checkpoint is the state of a run at one moment, from which it can be resumed.
type Checkpoint struct {
	ID      id.Checkpoint `json:"id"`
	Session string        `json:"session"`
	Run     id.Run        `json:"run"`
	N       int64         `json:"n"` // number among the checkpoints of its run, from 1
	At      time.Time     `json:"at"`
	Reason  string        `json:"reason,omitempty"`
	Auto    bool          `json:"auto,omitempty"` // taken automatically, and deleted when there are newer ones

	State    json.RawMessage `json:"state,omitempty"`    // provided by the agent
	Memory   json.RawMessage `json:"memory,omitempty"`   // working memory of the agent; opaque to this package
	Snapshot id.Snapshot     `json:"snapshot,omitempty"` // snapshot of the jail

	Steps   int64        `json:"steps"`             // value of Run.Steps
	Pending []string     `json:"pending,omitempty"` // keys of the steps that were in flight
	Journal string       `json:"journal,omitempty"` // value of Run.StepLogDigest
	Inbox   int64        `json:"inbox"`             // Seq of the last message that the agent has read
	Budget  budget.State `json:"budget"`

	Digest    string `json:"digest"`            // digest of the other fields, except Auto, Encrypted and Entry
	Encrypted bool   `json:"wrapped,omitempty"` // State and Memory are encrypted, as in the Store
	Entry     int64  `json:"entry,omitempty"`   // entry of the causal chain that records it; 0: in the chain of another daemon

	Recorder string `json:"recorder,omitempty"` // the Holder of the chain with Entry
}

// maxState is the size limit of an agent's state and of its memory, in bytes.
const maxState = 4 << 20

// A CheckpointRequest asks for a checkpoint.
type CheckpointRequest struct {
	Reason string
	By     string
	State  json.RawMessage // nil: that of the last checkpoint
	Memory json.RawMessage
	Inbox  int64
	Auto   bool

	// Snapshot takes a snapshot of the run's jail. While it runs, no step of the run begins or
	// ends. nil: the checkpoint has no snapshot.
	Snapshot func(ctx context.Context) (id.Snapshot, error)
}

// checkpoints stores checkpoints of runs and resumes runs from them.
type checkpoints struct {
	*core
	quarantine *quarantine
	local      *localSessions
}

// TakeCheckpoint takes a checkpoint of an unfinished run. When it returns, the checkpoint is
// stored and recorded in the audit log.
func (cs *checkpoints) TakeCheckpoint(ctx context.Context, rid id.Run, q CheckpointRequest) (Checkpoint, error) {
	const op = "run.TakeCheckpoint"
	if err := checkJSON(op, "state", q.State, maxState); err != nil {
		return Checkpoint{}, err
	}
	if err := checkJSON(op, "memory", q.Memory, maxState); err != nil {
		return Checkpoint{}, err
	}
	if q.Inbox < 0 {
		return Checkpoint{}, fault.Fieldf(op, "inbox", "must not be negative")
	}
	q.Reason = clip(q.Reason, maxReason)
	if q.Snapshot == nil {
		return cs.checkpoint(ctx, rid, q, "")
	}
	return cs.checkpointWithSnapshot(ctx, rid, q)
}

// checkpointWithSnapshot takes a checkpoint with a snapshot. It blocks the steps of the run
// meanwhile.
func (cs *checkpoints) checkpointWithSnapshot(ctx context.Context, rid id.Run, q CheckpointRequest) (_ Checkpoint, err error) {
	taken := make(chan struct{})
	var at *localRun
	var l *localSession
	err = cs.local.changeClaimed(ctx, rid, func(t *transaction, r *Run, w *localRun) error {
		if r.State.Ended() {
			return fault.Newf(fault.Conflict, "run.TakeCheckpoint", string(rid), "run is %s", r.State)
		}
		at, l, w.snapshotDone = w, t.local, taken
		return nil
	})
	if at == nil {
		return Checkpoint{}, err
	}
	defer func() { err = errors.Join(err, cs.resumeSteps(ctx, l.id, at, taken)) }()
	if err != nil {
		return Checkpoint{}, err
	}
	sid, err := q.Snapshot(ctx)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("snapshot the jail of run %s: %w", rid, err)
	}
	return cs.checkpoint(ctx, rid, q, sid)
}

// resumeSteps unblocks the steps of a run after a snapshot. It releases the lease on the
// session if nothing else needs it.
func (cs *checkpoints) resumeSteps(ctx context.Context, sid string, w *localRun, taken chan struct{}) error {
	defer close(taken)
	l, err := cs.local.acquireLocal(sid)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer cs.local.releaseLocal(l)
	w.snapshotDone = nil
	if l.lease == nil {
		return nil
	}
	return cs.local.releaseIdle(ctx, l)
}

func (cs *checkpoints) checkpoint(ctx context.Context, rid id.Run, q CheckpointRequest, snapshot id.Snapshot) (Checkpoint, error) {
	var c *Checkpoint
	_, err := cs.local.changeRun(ctx, rid, func(t *transaction, r *Run) error {
		if r.State.Ended() {
			return fault.Newf(fault.Conflict, "run.TakeCheckpoint", string(rid), "run is %s", r.State)
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
	return got, cs.quarantine.unsealCheckpoint(&got)
}

func (t *transaction) checkpoint(r *Run, q CheckpointRequest, snapshot id.Snapshot) error {
	c := Checkpoint{
		ID: id.NewCheckpoint(), Session: r.Session, Run: r.ID, N: r.Checkpoints + 1, At: t.now, Reason: q.Reason, Auto: q.Auto,
		State: q.State, Memory: q.Memory, Snapshot: snapshot, Steps: r.Steps, Journal: r.StepLogDigest, Inbox: q.Inbox, Budget: r.Budget,
		Recorder: t.cfg.Holder,
	}
	if w := t.current().run(r.ID); w != nil {
		c.Budget = w.budget.State()
	}
	if c.State == nil && r.Checkpoint != "" {
		last, err := t.store.Checkpoint(t.ctx, r.Checkpoint)
		if err == nil {
			err = t.quarantine.unsealCheckpoint(&last)
		}
		if err != nil {
			return fmt.Errorf("load checkpoint %s: %w", r.Checkpoint, err)
		}
		c.State, c.Inbox = last.State, max(c.Inbox, last.Inbox)
	}
	var err error
	c.Pending, err = t.pending(r.ID)
	if err != nil {
		return fmt.Errorf("list the pending steps of run %s: %w", r.ID, err)
	}
	c.Digest, err = c.sum()
	if err != nil {
		return err
	}
	r.Checkpoint, r.Checkpoints = c.ID, c.N
	t.markChanged(r)
	body := map[string]any{"checkpoint": c.ID, "n": c.N, "digest": c.Digest, "steps": c.Steps, "pending": len(c.Pending), "inbox": c.Inbox, "state": r.State}
	if snapshot != "" {
		body["snapshot"] = snapshot
	}
	if q.Reason != "" {
		body["reason"] = q.Reason
	}
	if err := t.quarantine.sealCheckpoint(&c); err != nil {
		return err
	}
	t.c.Checkpoints = []Checkpoint{c}
	if err := t.event(r.ID, CheckpointTaken, body); err != nil {
		return err
	}
	return t.record(Record{Kind: chain.CheckpointTaken, Run: r.ID, Parent: r.Entry, Jail: r.Jail, By: q.By, Checkpoint: c.ID}, body)
}

func (c *lease) run(rid id.Run) *localRun {
	if c == nil {
		return nil
	}
	return c.runs[rid]
}

// pending returns the keys of the steps in flight.
func (t *transaction) pending(rid id.Run) ([]string, error) {
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

// sum returns the digest of a checkpoint with plain State and Memory. The digest does not
// cover Entry, which is set later, and Auto, which only affects the retention.
func (c Checkpoint) sum() (string, error) {
	c.Digest, c.Entry, c.Auto = "", 0, false
	text, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("encode a checkpoint for its digest: %w", err)
	}
	return digest(text), nil
}

// sealCheckpoint encrypts State and Memory, which may contain personal data, if there is a
// key.
func (qu *quarantine) sealCheckpoint(c *Checkpoint) error {
	if qu.cfg.Key == nil {
		return nil
	}
	for name, text := range map[string]*json.RawMessage{"state": &c.State, "memory": &c.Memory} {
		if len(*text) == 0 {
			continue
		}
		sealed, err := qu.encrypt(string(c.ID)+"/"+name, *text)
		if err != nil {
			return err
		}
		*text = json.RawMessage(`{"age":"` + sealed + `"}`)
	}
	c.Encrypted = true
	return nil
}

// unsealCheckpoint is the inverse of sealCheckpoint.
func (qu *quarantine) unsealCheckpoint(c *Checkpoint) error {
	if !c.Encrypted {
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
		plain, err := qu.decrypt(string(c.ID)+"/"+name, sealed.Age)
		if err != nil {
			return err
		}
		*text = json.RawMessage(plain)
	}
	c.Encrypted = false
	return nil
}

// Checkpoint returns a checkpoint with State and Memory in plain text. It verifies the digest.
func (cs *checkpoints) Checkpoint(ctx context.Context, cid id.Checkpoint) (Checkpoint, error) {
	c, err := cs.store.Checkpoint(ctx, cid)
	if err != nil {
		return Checkpoint{}, err
	}
	if err := cs.quarantine.unsealCheckpoint(&c); err != nil {
		return Checkpoint{}, err
	}
	if sum, err := c.sum(); err != nil || sum != c.Digest {
		return Checkpoint{}, errors.Join(fault.Newf(fault.Unavailable, "run.Checkpoint", string(cid), "digest mismatch: the checkpoint was modified"), err)
	}
	return c, nil
}

// DeleteCheckpoint deletes a checkpoint that was taken automatically and is not the last of its run. Its
// entry in the audit log stays.
func (cs *checkpoints) DeleteCheckpoint(ctx context.Context, c Checkpoint) error {
	_, err := cs.local.changeRun(ctx, c.Run, func(t *transaction, r *Run) error {
		if !c.Auto || c.ID == r.Checkpoint {
			return fault.Newf(fault.Conflict, "run.DeleteCheckpoint", string(c.ID), "only automatic checkpoints other than the last can be deleted")
		}
		t.markChanged(r) // conflicts with a concurrent Resume
		t.c.DeletedCheckpoints = append(t.c.DeletedCheckpoints, c.ID)
		return nil
	})
	return err
}

// Checkpoints lists the checkpoints of a run with numbers greater than after, in order and
// without State and Memory.
func (cs *checkpoints) Checkpoints(ctx context.Context, rid id.Run, after int64, limit int) ([]Checkpoint, error) {
	return cs.store.Checkpoints(ctx, rid, after, pageLimit(limit))
}
