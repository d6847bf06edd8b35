package run

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/chain"
)

// A Record is a pending entry of the causal chain. It is stored with the change that it
// describes, and deleted after it was appended to the chain.
type Record struct {
	ID         string          `json:"id"` // repeated in the body of the entry, to detect duplicates
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

	entry int64 // number in the chain; 0: not known to be appended
}

// page is how many objects are read per query.
const page = 200

// record adds a record to the change.
func (t *transaction) record(r Record, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode entry %s: %w", r.Kind, err)
	}
	text, err = recordable(text)
	if err != nil {
		return fmt.Errorf("encode entry %s: %w", r.Kind, err)
	}
	r.By = actor(r.By)
	r.ID, r.Holder, r.At, r.Session = rand.Text(), t.cfg.Holder, t.now, t.local.id
	r.Body = slices.Concat([]byte(`{"record":"`+r.ID+`"`), []byte(","), text[1:])
	if string(text) == "{}" {
		r.Body = []byte(`{"record":"` + r.ID + `"}`)
	}
	t.c.Records = append(t.c.Records, r)
	return nil
}

// recordable returns a body that the chain accepts, because a stored change must not fail to
// be recorded. A body that has no canonical JSON form, for example because of a number, is
// stored as a string. A body that is too large is replaced with its digest.
func recordable(text []byte) ([]byte, error) {
	if len(text) > chain.MaxBody/2 {
		return json.Marshal(map[string]any{"digest": digest(text), "bytes": len(text)})
	}
	if _, err := chain.Canonical(text); err != nil {
		return json.Marshal(map[string]string{"json": string(text)})
	}
	return text, nil
}

// flushRecords appends the pending records of a session to the chain, and returns the numbers
// of the entries by record ID. While it fails, every further change of the session fails. The
// caller holds l.mu.
//
// +checklocks:l.mu
func (ls *localSessions) flushRecords(ctx context.Context, l *localSession) (map[string]int64, error) {
	if len(l.unrecorded) == 0 {
		return nil, nil
	}
	entries := map[string]int64{}
	for len(l.unrecorded) > 0 {
		r := &l.unrecorded[0]
		if err := ls.flushRecord(ctx, r); err != nil {
			return entries, &fault.Error{Op: "run.flushRecords", On: l.id, Kind: fault.Unavailable,
				Err:    fmt.Errorf("the change is stored, but not yet in the audit log: %w", err),
				Remedy: "check the state of the session before you retry; it accepts no changes until the audit log works again"}
		}
		entries[r.ID] = r.entry
		l.unrecorded = l.unrecorded[1:]
	}
	return entries, nil
}

func (ls *localSessions) flushRecord(ctx context.Context, r *Record) error {
	if r.entry == 0 {
		parent := r.Parent
		if r.Holder != ls.cfg.Holder { // the parent is an entry of another chain
			parent = 0
		}
		e, err := ls.cfg.Chain.Append(ctx, chain.Entry{
			Kind: r.Kind, Parent: parent, Session: r.Session, Run: string(r.Run), Jail: r.Jail, Agent: r.By, Body: r.Body,
		})
		if err != nil {
			return fmt.Errorf("append entry %s: %w", r.Kind, err)
		}
		r.entry = e.Seq
	}
	entry := r.entry
	if r.Holder != ls.cfg.Holder { // readers look for the entry in the chain of r.Holder
		entry = 0
	}
	if err := ls.store.MarkRecorded(ctx, *r, entry); err != nil {
		return fmt.Errorf("mark entry %s as appended: %w", r.Kind, err)
	}
	return nil
}

// recoverOwnRecords appends the records that an earlier process with the same Holder left
// behind.
func (ls *localSessions) recoverOwnRecords(ctx context.Context) error {
	for {
		pending, err := ls.store.PendingRecords(ctx, ls.cfg.Holder, page)
		if err != nil || len(pending) == 0 {
			return err
		}
		if err := ls.recoverRecords(ctx, pending); err != nil {
			return err
		}
	}
}

// recoverAbandonedRecords takes over and appends records that other processes have not
// appended for abandonedAfter.
func (ls *localSessions) recoverAbandonedRecords(ctx context.Context) error {
	for {
		now := ls.Now()
		pending, err := ls.store.TakePendingRecords(ctx, ls.cfg.Holder, now.Add(-abandonedAfter), now, page)
		if err != nil || len(pending) == 0 {
			return err
		}
		if err := ls.recoverRecords(ctx, pending); err != nil {
			return err
		}
	}
}

func (ls *localSessions) recoverRecords(ctx context.Context, pending []Record) error {
	for _, r := range pending {
		var err error
		r.entry, err = ls.findEntry(ctx, r)
		if err == nil {
			err = ls.flushRecord(ctx, &r)
		}
		if err != nil {
			return fmt.Errorf("append a pending record to the audit log: %w", err)
		}
	}
	return nil
}

// recoverUncertainRecords appends stored records of this Holder that are not queued in memory.
// They come from writes that failed without a known result.
func (ls *localSessions) recoverUncertainRecords(ctx context.Context) error {
	pending, err := ls.store.PendingRecords(ctx, ls.cfg.Holder, page)
	if err != nil {
		return err
	}
	before := ls.Now().Add(-abandonedAfter)
	pending = slices.DeleteFunc(pending, func(r Record) bool { return r.At.After(before) || ls.isQueued(r) })
	return ls.recoverRecords(ctx, pending)
}

// isQueued reports whether a record is queued in memory, and appended with the next change of
// its session.
func (ls *localSessions) isQueued(r Record) bool {
	l := ls.find(r.Session)
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.unrecorded, func(o Record) bool { return o.ID == r.ID })
}

// retryRecords appends queued records again after an earlier failure.
func (ls *localSessions) retryRecords(ctx context.Context) {
	for _, sid := range ls.ids() {
		l, err := ls.acquireLocal(sid)
		if err != nil {
			return
		}
		l.mu.Lock()
		if _, err := ls.flushRecords(ctx, l); err != nil {
			ls.cfg.Log.Error("failed to append pending records to the audit log", "session", sid, "error", err)
		}
		ls.releaseLocal(l)
	}
}

// abandonedAfter is the age at which another process may append a record. It is longer than
// the chain takes to report a failure.
const abandonedAfter = 2 * time.Minute

// findEntry returns the number of the chain entry of a record, or 0. A process may have been
// killed after it appended the record and before it deleted it.
func (ls *localSessions) findEntry(ctx context.Context, r Record) (int64, error) {
	q := chain.Query{Session: r.Session, Run: string(r.Run), Kinds: []chain.Kind{r.Kind}, From: r.At.Add(-time.Minute)}
	for {
		list, err := ls.cfg.Chain.Entries(ctx, q)
		if err != nil {
			return 0, fmt.Errorf("look for entry %s in the audit log: %w", r.Kind, err)
		}
		if len(list) == 0 {
			return 0, nil
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
