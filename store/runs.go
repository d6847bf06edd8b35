package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/chain"
)

// Runs stores sessions and their runs; it implements run.Store.
type Runs struct{ s *Store }

// Runs returns the database's sessions and runs.
func (s *Store) Runs() Runs { return Runs{s} }

// Write applies a Change atomically.
func (rs Runs) Write(ctx context.Context, c *run.Change) error {
	// A retried transaction starts again from the caller's Change.
	done := *c
	err := rs.s.update(ctx, "runs."+c.ID, func(tx *sql.Tx) error {
		w := writer{ctx: ctx, tx: tx}
		done = *c
		return w.write(&done)
	})
	if unique(err) {
		return fault.New(fault.Conflict, "store.Runs.Write", c.ID, errors.New("the session already exists"))
	}
	if err != nil {
		return fmt.Errorf("write session %s: %w", c.ID, err)
	}
	*c = done
	return nil
}

// A writer is one transaction of Write.
type writer struct {
	ctx context.Context
	tx  *sql.Tx
}

func (w writer) exec(query string, args ...any) error {
	_, err := w.tx.ExecContext(w.ctx, query, args...)
	return err
}

// one executes a statement that must change exactly one row, which fails if the row was
// modified concurrently.
func (w writer) one(what, query string, args ...any) error {
	res, err := w.tx.ExecContext(w.ctx, query, args...)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		return errors.Join(fault.Newf(fault.Conflict, "store.Runs.Write", what, "modified concurrently; reload and retry"), err)
	}
	return nil
}

func (w writer) write(c *run.Change) error {
	for _, step := range []func(*run.Change) error{
		w.session, w.count, w.runs, w.journal, w.checkpoints, w.messages, w.rest,
	} {
		if err := step(c); err != nil {
			return err
		}
	}
	return nil
}

func (w writer) session(c *run.Change) error {
	s := c.Session
	if s == nil {
		return nil
	}
	doc, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode the session: %w", err)
	}
	if s.Version == 1 {
		return w.exec(`INSERT INTO sessions (id, state, siblings, created, version, holder, epoch, assignee, waiting, events, inbox, outbox, entry, document)
			VALUES ($1, $2, $3, $4, 1, '', 0, $6, 0, 0, 0, 0, 0, $5)`, s.ID, s.State, text(s.Group), s.Created.UnixNano(), doc, s.Recorder)
	}
	return w.one(s.ID, `UPDATE sessions SET state = $2, siblings = $3, version = $4, document = $5 WHERE id = $1 AND version = $4 - 1`,
		s.ID, s.State, text(s.Group), s.Version, doc)
}

// count assigns numbers to events and messages and verifies that the holder still has its
// claim.
func (w writer) count(c *run.Change) error {
	var in, out int
	for _, m := range c.Messages {
		if m.Dir == run.In {
			in++
		} else {
			out++
		}
	}
	var events, inbox, outbox, epoch int64
	var holder string
	err := w.tx.QueryRowContext(w.ctx, `UPDATE sessions SET events = events + $2, inbox = inbox + $3, outbox = outbox + $4
		WHERE id = $1 RETURNING events, inbox, outbox, holder, epoch`, c.ID, len(c.Events), in, out).Scan(&events, &inbox, &outbox, &holder, &epoch)
	if errors.Is(err, sql.ErrNoRows) {
		return fault.Newf(fault.NotFound, "store.Runs.Write", c.ID, "no such session")
	}
	if err != nil {
		return fmt.Errorf("number the events and messages: %w", err)
	}
	if c.Holder != "" && (holder != c.Holder || epoch != c.Epoch) {
		return fault.New(fault.Conflict, "store.Runs.Write", c.ID, run.ErrLost)
	}
	c.Events, c.Messages = append([]run.Event(nil), c.Events...), append([]run.Message(nil), c.Messages...)
	for i := range c.Events {
		c.Events[i].Seq = events - int64(len(c.Events)-1-i)
	}
	inbox, outbox = inbox-int64(in), outbox-int64(out)
	for i := range c.Messages {
		last := &outbox
		if c.Messages[i].Dir == run.In {
			last = &inbox
		}
		*last++
		c.Messages[i].Seq = *last
	}
	return nil
}

func (w writer) runs(c *run.Change) error {
	for i := range c.Runs {
		r := &c.Runs[i]
		doc, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("encode run %s: %w", r.ID, err)
		}
		var due sql.NullInt64
		if !r.NextRunAt.IsZero() && (r.State == run.Scheduled || r.Why == run.ForSchedule) {
			due = sql.NullInt64{Int64: r.NextRunAt.UnixNano(), Valid: true}
		}
		waiting := 0
		if r.NeedsSupervisor() {
			waiting = 1
		}
		if r.Version == 1 {
			err = w.exec(`INSERT INTO runs (id, session, parent, state, key, due, created, version, entry, waiting, document)
				VALUES ($1, $2, $3, $4, $5, $6, $7, 1, 0, $8, $9)`, r.ID, c.ID, r.Parent, r.State, r.Key, due, r.Created.UnixNano(), waiting, doc)
		} else {
			err = w.one(string(r.ID), `UPDATE runs SET state = $2, due = $3, version = $4, waiting = $5, document = $6
				WHERE id = $1 AND version = $4 - 1`, r.ID, r.State, due, r.Version, waiting, doc)
		}
		if err != nil {
			return fmt.Errorf("store run %s: %w", r.ID, err)
		}
	}
	if len(c.Runs) == 0 {
		return nil
	}
	if err := w.exec(`UPDATE sessions SET waiting = 1 - waiting
		WHERE id = $1 AND waiting <> (SELECT COUNT(*) FROM (SELECT 1 FROM runs WHERE session = $1 AND waiting = 1 LIMIT 1) any_run)`, c.ID); err != nil {
		return fmt.Errorf("update whether runs of session %s wait: %w", c.ID, err)
	}
	return nil
}

func (w writer) journal(c *run.Change) error {
	if p := c.Copy; p != nil {
		if err := w.exec(`INSERT INTO run_steps (run, key, n, kind, name, state, document)
			SELECT $1, key, n, kind, name, state, document FROM run_steps WHERE run = $2 AND n <= $3`, p.To, p.From, p.UpTo); err != nil {
			return fmt.Errorf("copy the steps of run %s: %w", p.From, err)
		}
	}
	for i := range c.Steps {
		s := &c.Steps[i]
		doc, err := json.Marshal(s)
		if err != nil {
			return fmt.Errorf("encode step %s of run %s: %w", s.Key, s.Run, err)
		}
		if err := w.exec(`INSERT INTO run_steps (run, key, n, kind, name, state, document) VALUES ($1, $2, $3, $4, $5, $6, $7)
			ON CONFLICT (run, key) DO UPDATE SET state = excluded.state, document = excluded.document`,
			s.Run, s.Key, s.N, s.Kind, text(s.Name), s.State, doc); err != nil {
			return fmt.Errorf("store step %s of run %s: %w", s.Key, s.Run, err)
		}
	}
	return nil
}

func (w writer) checkpoints(c *run.Change) error {
	for _, p := range c.Checkpoints {
		state, memory := string(p.State), string(p.Memory)
		p.State, p.Memory = nil, nil
		doc, err := json.Marshal(p)
		if err != nil {
			return fmt.Errorf("encode checkpoint %s: %w", p.ID, err)
		}
		if err := w.exec(`INSERT INTO run_checkpoints (id, run, n, entry, document, state, memory) VALUES ($1, $2, $3, 0, $4, $5, $6)`,
			p.ID, p.Run, p.N, doc, state, memory); err != nil {
			return fmt.Errorf("store checkpoint %s: %w", p.ID, err)
		}
	}
	for _, cid := range c.DeletedCheckpoints {
		if err := w.exec("DELETE FROM run_checkpoints WHERE id = $1", cid); err != nil {
			return fmt.Errorf("delete checkpoint %s: %w", cid, err)
		}
	}
	return nil
}

func (w writer) messages(c *run.Change) error {
	for _, m := range c.Messages {
		doc, err := json.Marshal(m)
		if err != nil {
			return fmt.Errorf("encode message %s: %w", m.ID, err)
		}
		if err := w.exec(`INSERT INTO session_messages (session, dir, seq, id, key, document) VALUES ($1, $2, $3, $4, $5, $6)`,
			c.ID, m.Dir, m.Seq, m.ID, m.Key, doc); err != nil {
			return fmt.Errorf("store message %s: %w", m.ID, err)
		}
	}
	for _, d := range c.Deliveries {
		doc, err := json.Marshal(d)
		if err != nil {
			return fmt.Errorf("encode delivery %s: %w", d.ID, err)
		}
		if err := w.exec(`INSERT INTO deliveries (id, message, receiver, state, due, document) VALUES ($1, $2, $3, $4, $5, $6)
			ON CONFLICT (id) DO UPDATE SET state = excluded.state, due = excluded.due, document = excluded.document, taker = ''`,
			text(d.ID), d.Message, text(d.To), d.State, d.Next.UnixNano(), doc); err != nil {
			return fmt.Errorf("store delivery %s: %w", d.ID, err)
		}
	}
	return nil
}

// rest inserts the documents that are only ever added.
func (w writer) rest(c *run.Change) error {
	for _, q := range c.Sealed {
		doc, err := json.Marshal(q)
		if err != nil {
			return fmt.Errorf("encode quarantined data: %w", err)
		}
		if err := w.exec("INSERT INTO quarantine (handle, expires, document) VALUES ($1, $2, $3)", q.Handle, q.Expires.UnixNano(), doc); err != nil {
			return fmt.Errorf("store quarantined data: %w", err)
		}
	}
	for _, e := range c.Events {
		doc, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("encode event %d: %w", e.Seq, err)
		}
		if err := w.exec("INSERT INTO session_events (session, seq, document) VALUES ($1, $2, $3)", c.ID, e.Seq, doc); err != nil {
			return fmt.Errorf("store event %d: %w", e.Seq, err)
		}
	}
	for i, r := range c.Records {
		doc, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("encode audit log record %s: %w", r.ID, err)
		}
		if err := w.exec("INSERT INTO run_records (id, holder, taken, at, place, document) VALUES ($1, $2, $3, $3, $4, $5)",
			r.ID, r.Holder, r.At.UnixNano(), i, doc); err != nil {
			return fmt.Errorf("store audit log record %s: %w", r.ID, err)
		}
	}
	return nil
}

// single returns the only element of a list, or fault.NotFound.
func single[T any](list []T, err error, op, what string) (T, error) {
	if err == nil && len(list) == 0 {
		err = fault.Newf(fault.NotFound, "store.Runs."+op, what, "not found")
	}
	if err != nil {
		var none T
		return none, err
	}
	return list[0], nil
}

// recorded returns documents with the audit log entry in the column next to them.
func recorded[T any](ctx context.Context, db *sql.DB, doing string, entry func(*T) *int64, query string, args ...any) ([]T, error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	defer rows.Close()
	var list []T
	for rows.Next() {
		var doc []byte
		var n int64
		var t T
		err := rows.Scan(&doc, &n)
		if err == nil {
			err = json.Unmarshal(doc, &t)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", doing, err)
		}
		*entry(&t) = n
		list = append(list, t)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	return list, nil
}

func sessionEntry(s *run.Session) *int64 { return &s.Entry }
func runEntry(r *run.Run) *int64         { return &r.Entry }

// newest returns the query for the newest rows of a table and their documents.
func (w *where) newest(table string, limit int) string {
	w.args = append(w.args, limit)
	return fmt.Sprintf("SELECT document, entry FROM %s%s ORDER BY created DESC, id DESC LIMIT $%d", table, w, len(w.args))
}

// Session returns a session.
func (rs Runs) Session(ctx context.Context, sid string) (run.Session, error) {
	list, err := recorded(ctx, rs.s.read, "read a session", sessionEntry, "SELECT document, entry FROM sessions WHERE id = $1", text(sid))
	return single(list, err, "Session", sid)
}

// Sessions returns sessions, newest first.
func (rs Runs) Sessions(ctx context.Context, f run.SessionFilter) ([]run.Session, error) {
	var q where
	if f.State != "" {
		q.add("state = ", f.State)
	}
	if f.Group != "" {
		q.add("siblings <> '' AND siblings = ", text(f.Group))
	}
	if f.After != "" {
		q.add("(created, id) < (SELECT created, id FROM sessions WHERE id = ", text(f.After))
		q.more(")")
	}
	return recorded(ctx, rs.s.read, "read sessions", sessionEntry, q.newest("sessions", f.Limit), q.args...)
}

// Run returns a run.
func (rs Runs) Run(ctx context.Context, rid id.Run) (run.Run, error) {
	list, err := recorded(ctx, rs.s.read, "read a run", runEntry, "SELECT document, entry FROM runs WHERE id = $1", text(string(rid)))
	return single(list, err, "Run", string(rid))
}

// RunOf returns the run with an idempotency key.
func (rs Runs) RunOf(ctx context.Context, sid, key string) (run.Run, error) {
	list, err := recorded(ctx, rs.s.read, "read a run", runEntry,
		"SELECT document, entry FROM runs WHERE session = $1 AND key = $2 AND key <> ''", sid, key)
	return single(list, err, "RunOf", key)
}

// Runs returns runs, newest first.
func (rs Runs) Runs(ctx context.Context, f run.Filter) ([]run.Run, error) {
	var q where
	if f.Session != "" {
		q.add("session = ", text(f.Session))
	}
	if f.Parent != "" {
		q.add("parent <> '' AND parent = ", text(string(f.Parent)))
	}
	if len(f.States) > 0 {
		in(&q, "state", f.States)
	}
	if f.After != "" {
		q.add("(created, id) < (SELECT created, id FROM runs WHERE id = ", text(string(f.After)))
		q.more(")")
	}
	return recorded(ctx, rs.s.read, "read runs", runEntry, q.newest("runs", f.Limit), q.args...)
}

// Due returns runs that are due, earliest first.
func (rs Runs) Due(ctx context.Context, now time.Time, limit int) ([]run.Run, error) {
	return recorded(ctx, rs.s.read, "read runs that are due", runEntry,
		"SELECT document, entry FROM runs WHERE due IS NOT NULL AND due <= $1 ORDER BY due, id LIMIT $2", now.UnixNano(), limit)
}

// Unclaimed returns runs that need a supervisor, oldest first: of sessions that holder has
// claimed, or that are unclaimed and not assigned to another node.
func (rs Runs) Unclaimed(ctx context.Context, holder string, after id.Run, limit int) ([]run.Run, error) {
	return recorded(ctx, rs.s.read, "read runs without a supervisor", runEntry, `
		SELECT r.document, r.entry FROM sessions s JOIN runs r ON r.session = s.id
		WHERE s.waiting = 1 AND r.waiting = 1 AND (s.holder = $1 OR s.holder = '' AND s.assignee IN ('', $1))
			AND ($2 = '' OR (r.created, r.id) > (SELECT created, id FROM runs WHERE id = $2))
		ORDER BY r.created, r.id LIMIT $3`, holder, string(after), limit)
}

// Step returns a step.
func (rs Runs) Step(ctx context.Context, rid id.Run, key string) (run.Step, error) {
	list, err := rs.steps(ctx, rid, "SELECT document FROM run_steps WHERE run = $1 AND key = $2", rid, text(key))
	return single(list, err, "Step", key)
}

// Steps returns steps, by N.
func (rs Runs) Steps(ctx context.Context, f run.StepFilter) ([]run.Step, error) {
	if f.State == run.Begun { // a literal, so that the partial index is used
		return rs.steps(ctx, f.Run, "SELECT document FROM run_steps WHERE run = $1 AND n > $2 AND state = 'begun' ORDER BY n LIMIT $3", f.Run, f.After, f.Limit)
	}
	return rs.steps(ctx, f.Run, "SELECT document FROM run_steps WHERE run = $1 AND n > $2 AND ($3 = '' OR state = $3) ORDER BY n LIMIT $4",
		f.Run, f.After, string(f.State), f.Limit)
}

// steps returns steps of a run. Copied steps contain the id of the original run.
func (rs Runs) steps(ctx context.Context, rid id.Run, query string, args ...any) ([]run.Step, error) {
	list, err := documents[run.Step](ctx, rs.s.read, "read steps", query, args...)
	for i := range list {
		list[i].Run = rid
	}
	return list, err
}

// Succeeded returns how often each capability succeeded in a run.
func (rs Runs) Succeeded(ctx context.Context, rid id.Run) (map[string]int64, error) {
	rows, err := rs.s.read.QueryContext(ctx, `SELECT name, COUNT(*) FROM run_steps
		WHERE run = $1 AND kind = 'capability' AND state = 'done' GROUP BY name`, rid)
	if err != nil {
		return nil, fmt.Errorf("count succeeded steps: %w", err)
	}
	defer rows.Close()
	done := map[string]int64{}
	for rows.Next() {
		var name string
		var n int64
		if err := rows.Scan(&name, &n); err != nil {
			return nil, fmt.Errorf("count succeeded steps: %w", err)
		}
		done[name] = n
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("count succeeded steps: %w", err)
	}
	return done, nil
}

// Checkpoint returns a complete checkpoint.
func (rs Runs) Checkpoint(ctx context.Context, cid id.Checkpoint) (run.Checkpoint, error) {
	var doc, state, memory []byte
	var c run.Checkpoint
	var entry int64
	err := rs.s.read.QueryRowContext(ctx, "SELECT document, state, memory, entry FROM run_checkpoints WHERE id = $1", text(string(cid))).
		Scan(&doc, &state, &memory, &entry)
	if errors.Is(err, sql.ErrNoRows) {
		return run.Checkpoint{}, fault.Newf(fault.NotFound, "store.Runs.Checkpoint", string(cid), "no such checkpoint")
	}
	if err == nil {
		err = json.Unmarshal(doc, &c)
	}
	if err != nil {
		return run.Checkpoint{}, fmt.Errorf("read checkpoint %s: %w", cid, err)
	}
	if c.Entry = entry; len(state) > 0 {
		c.State = state
	}
	if len(memory) > 0 {
		c.Memory = memory
	}
	return c, nil
}

// Checkpoints returns checkpoints of a run, by N, without State and Memory.
func (rs Runs) Checkpoints(ctx context.Context, rid id.Run, after int64, limit int) ([]run.Checkpoint, error) {
	return recorded(ctx, rs.s.read, "read checkpoints", func(c *run.Checkpoint) *int64 { return &c.Entry },
		"SELECT document, entry FROM run_checkpoints WHERE run = $1 AND n > $2 ORDER BY n LIMIT $3", rid, after, limit)
}

// Message returns a message.
func (rs Runs) Message(ctx context.Context, mid id.Message) (run.Message, error) {
	list, err := documents[run.Message](ctx, rs.s.read, "read a message", "SELECT document FROM session_messages WHERE id = $1", text(string(mid)))
	return single(list, err, "Message", string(mid))
}

// MessageOf returns the message with an idempotency key.
func (rs Runs) MessageOf(ctx context.Context, sid string, d run.Dir, key string) (run.Message, error) {
	list, err := documents[run.Message](ctx, rs.s.read, "read a message",
		"SELECT document FROM session_messages WHERE session = $1 AND dir = $2 AND key = $3 AND key <> ''", sid, d, key)
	return single(list, err, "MessageOf", key)
}

// Messages returns messages, by Seq.
func (rs Runs) Messages(ctx context.Context, sid string, d run.Dir, after int64, limit int) ([]run.Message, error) {
	return documents[run.Message](ctx, rs.s.read, "read messages",
		"SELECT document FROM session_messages WHERE session = $1 AND dir = $2 AND seq > $3 ORDER BY seq LIMIT $4", text(sid), d, after, limit)
}

// Events returns events, by Seq.
func (rs Runs) Events(ctx context.Context, sid string, after int64, limit int) ([]run.Event, error) {
	return documents[run.Event](ctx, rs.s.read, "read events",
		"SELECT document FROM session_events WHERE session = $1 AND seq > $2 ORDER BY seq LIMIT $3", text(sid), after, limit)
}

// Sealed returns the quarantined data of a handle.
func (rs Runs) Sealed(ctx context.Context, handle string) (run.Sealed, error) {
	list, err := documents[run.Sealed](ctx, rs.s.read, "read the quarantine", "SELECT document FROM quarantine WHERE handle = $1", text(handle))
	return single(list, err, "Sealed", handle)
}

// Purge deletes quarantined data that expired before a time, and returns the number of deleted
// rows.
func (rs Runs) Purge(ctx context.Context, before time.Time) (int64, error) {
	res, err := rs.s.write.ExecContext(ctx, "DELETE FROM quarantine WHERE expires <= $1", before.UnixNano())
	if err != nil {
		return 0, fmt.Errorf("purge the quarantine: %w", err)
	}
	return res.RowsAffected()
}

// TakeDeliveries returns the due deliveries to a connector, earliest first, and postpones
// them.
func (rs Runs) TakeDeliveries(ctx context.Context, to, holder string, now, until time.Time, limit int) ([]run.Delivery, error) {
	var due bool // a read-only check first: many connectors poll, and must not block writers
	err := rs.s.read.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM deliveries WHERE receiver = $1 AND state = 'pending' AND due <= $2)", text(to), now.UnixNano()).Scan(&due)
	if err != nil {
		return nil, fmt.Errorf("look for deliveries: %w", err)
	}
	if !due {
		return nil, nil
	}
	var taken []run.Delivery
	err = rs.s.update(ctx, "deliveries", func(tx *sql.Tx) error {
		var err error
		taken, err = listed[run.Delivery](ctx, tx,
			"SELECT document FROM deliveries WHERE receiver = $1 AND state = 'pending' AND due <= $2 ORDER BY due, id LIMIT $3", text(to), now.UnixNano(), limit)
		for _, d := range taken {
			if err == nil {
				_, err = tx.ExecContext(ctx, "UPDATE deliveries SET due = $2, taker = $3 WHERE id = $1", text(d.ID), until.UnixNano(), holder)
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("take deliveries: %w", err)
	}
	return taken, nil
}

// listed returns documents in a transaction.
func listed[T any](ctx context.Context, tx *sql.Tx, query string, args ...any) ([]T, error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []T
	for rows.Next() {
		var doc []byte
		var t T
		if err := rows.Scan(&doc); err != nil {
			return nil, err
		}
		if err := json.Unmarshal(doc, &t); err != nil {
			return nil, fmt.Errorf("decode a document: %w", err)
		}
		list = append(list, t)
	}
	return list, rows.Err()
}

// Deliveries returns the deliveries of a message.
func (rs Runs) Deliveries(ctx context.Context, mid id.Message) ([]run.Delivery, error) {
	return documents[run.Delivery](ctx, rs.s.read, "read deliveries", "SELECT document FROM deliveries WHERE message = $1 ORDER BY id", text(string(mid)))
}

// DeliveriesTo returns deliveries to a connector, by when they are due.
func (rs Runs) DeliveriesTo(ctx context.Context, f run.DeliveryFilter) ([]run.Delivery, error) {
	var q where
	q.add("receiver = ", text(f.To))
	if f.State != "" {
		q.add("state = ", f.State)
	}
	if f.After != "" {
		q.add("(due, id) > (SELECT due, id FROM deliveries WHERE id = ", text(f.After))
		q.more(")")
	}
	q.args = append(q.args, f.Limit)
	return documents[run.Delivery](ctx, rs.s.read, "read deliveries",
		fmt.Sprintf("SELECT document FROM deliveries%s ORDER BY due, id LIMIT $%d", q.String(), len(q.args)), q.args...)
}

// CountDeliveries counts the deliveries to a connector that are in a state.
func (rs Runs) CountDeliveries(ctx context.Context, to string, s run.DeliveryState) (int64, error) {
	var n int64
	if err := rs.s.read.QueryRowContext(ctx, "SELECT COUNT(*) FROM deliveries WHERE receiver = $1 AND state = $2", text(to), s).Scan(&n); err != nil {
		return 0, fmt.Errorf("count deliveries: %w", err)
	}
	return n, nil
}

// Claim gives a session to a holder, unless another has it. If epoch is not 0, the holder
// must be a node with a valid lease and this epoch.
func (rs Runs) Claim(ctx context.Context, sid, holder string, epoch int64) (bool, error) {
	q := `UPDATE sessions SET holder = $2, epoch = $3, assignee = CASE WHEN assignee = '' THEN $2 ELSE assignee END
		WHERE id = $1 AND holder IN ('', $2)`
	if epoch != 0 {
		q += " AND EXISTS (SELECT 1 FROM nodes WHERE id = $2 AND epoch = $3 AND state = 'up' AND until > " + rs.s.clock() + ")"
	}
	res, err := rs.s.write.ExecContext(ctx, q, sid, holder, epoch)
	if err != nil {
		return false, fmt.Errorf("claim session %s: %w", sid, err)
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

// Assign lets another node start the runs of a session. It returns false if that node is not up or the
// session is claimed.
func (rs Runs) Assign(ctx context.Context, sid, node string) (bool, error) {
	res, err := rs.s.write.ExecContext(ctx, `UPDATE sessions SET assignee = $2
		WHERE id = $1 AND holder = '' AND EXISTS (SELECT 1 FROM nodes WHERE id = $2 AND state = 'up')`, sid, node)
	if err != nil {
		return false, fmt.Errorf("assign session %s to node %s: %w", sid, node, err)
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

// Release ends a holder's claim on one session, or all, and then returns the deliveries that
// it took.
func (rs Runs) Release(ctx context.Context, sid, holder string) error {
	var q where
	q.add("holder = ", holder)
	if sid != "" {
		q.add("id = ", sid)
	}
	if _, err := rs.s.write.ExecContext(ctx, "UPDATE sessions SET holder = '', epoch = 0"+q.String(), q.args...); err != nil {
		return fmt.Errorf("release claims: %w", err)
	}
	if sid != "" {
		return nil
	}
	if _, err := rs.s.write.ExecContext(ctx, "UPDATE deliveries SET due = 0, taker = '' WHERE taker = $1 AND taker <> ''", holder); err != nil {
		return fmt.Errorf("return deliveries: %w", err)
	}
	return nil
}

// PendingRecords returns a holder's records that are not yet in the audit log, oldest first.
func (rs Runs) PendingRecords(ctx context.Context, holder string, limit int) ([]run.Record, error) {
	return documents[run.Record](ctx, rs.s.read, "read pending audit log records",
		"SELECT document FROM run_records WHERE holder = $1 ORDER BY at, place LIMIT $2", holder, limit)
}

// TakePendingRecords transfers to a holder the pending audit log records of others from before a time.
func (rs Runs) TakePendingRecords(ctx context.Context, holder string, before, now time.Time, limit int) ([]run.Record, error) {
	var taken []run.Record
	err := rs.s.update(ctx, "run_records", func(tx *sql.Tx) error {
		var err error
		taken, err = listed[run.Record](ctx, tx,
			"SELECT document FROM run_records WHERE holder <> $1 AND taken < $2 ORDER BY at, place LIMIT $3", holder, before.UnixNano(), limit)
		for _, r := range taken {
			if err == nil {
				_, err = tx.ExecContext(ctx, "UPDATE run_records SET holder = $2, taken = $3 WHERE id = $1", r.ID, holder, now.UnixNano())
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("take over pending audit log records: %w", err)
	}
	return taken, nil
}

// MarkRecorded deletes a pending record and stores its audit log entry number with its subject.
func (rs Runs) MarkRecorded(ctx context.Context, r run.Record, entry int64) error {
	err := rs.s.update(ctx, "runs."+r.Session, func(tx *sql.Tx) error {
		w := writer{ctx: ctx, tx: tx}
		if err := w.exec("DELETE FROM run_records WHERE id = $1", r.ID); err != nil {
			return fmt.Errorf("delete the pending record: %w", err)
		}
		switch r.Kind {
		case chain.SessionOpened:
			return w.exec("UPDATE sessions SET entry = $2 WHERE id = $1", r.Session, entry)
		case chain.RunStarted:
			return w.exec("UPDATE runs SET entry = $2 WHERE id = $1", r.Run, entry)
		case chain.CheckpointTaken:
			return w.exec("UPDATE run_checkpoints SET entry = $2 WHERE id = $1", r.Checkpoint, entry)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("mark %s as recorded: %w", r.Kind, err)
	}
	return nil
}
