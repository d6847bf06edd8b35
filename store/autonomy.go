package store

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"glasshouse/agents/autonomy"
	"glasshouse/fault"
	"glasshouse/id"
)

// Autonomy stores peer requests, resource grants and tasks; it implements
// autonomy.RequestStore, ResourceStore and TaskStore.
type Autonomy struct{ s *Store }

// Autonomy returns the database's view for package autonomy.
func (s *Store) Autonomy() Autonomy { return Autonomy{s} }

// lastNumber returns the highest n of a table. The transaction must have exclusive access.
func lastNumber(ctx context.Context, tx *sql.Tx, table string) (int64, error) {
	var n sql.NullInt64
	err := tx.QueryRowContext(ctx, "SELECT max(n) FROM "+table).Scan(&n)
	if err != nil {
		return n.Int64, fmt.Errorf("read the last number in %s: %w", table, err)
	}
	return n.Int64, nil
}

// page returns the first documents of a table that match the conditions.
func page[T any](ctx context.Context, from querier, table string, w where, order string, limit int) ([]T, error) {
	w.args = append(w.args, limit)
	query := "SELECT document FROM " + table + w.String() + " ORDER BY " + order + " LIMIT $" + strconv.Itoa(len(w.args))
	return documents[T](ctx, from, "read "+table, query, w.args...)
}

// ChangeGroup runs f with exclusive access to a group and stores its changes.
func (a Autonomy) ChangeGroup(ctx context.Context, group string, f func(g *autonomy.Group) ([]autonomy.Request, error)) error {
	err := a.s.update(ctx, "autonomy.group."+group, func(tx *sql.Tx) error {
		g := autonomy.Group{Name: group}
		var before []byte
		err := tx.QueryRowContext(ctx, "SELECT history FROM autonomy_groups WHERE name = $1", group).Scan(&before)
		if err == nil {
			err = json.Unmarshal(before, &g.History)
		}
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("read the history of group %s: %w", group, err)
		}
		if g.Open, err = documents[autonomy.Request](ctx, tx, "read requests", openRequests+" AND family = $1 ORDER BY created, id", group); err != nil {
			return err
		}
		changed, err := f(&g)
		if err != nil {
			return err
		}
		for _, r := range changed {
			if err := putRequest(ctx, tx, group, r); err != nil {
				return err
			}
		}
		after, err := json.Marshal(g.History)
		if err != nil || bytes.Equal(before, after) {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO autonomy_groups (name, history) VALUES ($1, $2)
			ON CONFLICT (name) DO UPDATE SET history = excluded.history`, group, after)
		if err != nil {
			return fmt.Errorf("store the history of group %s: %w", group, err)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("change the requests of a group: %w", err)
	}
	return nil
}

const openRequests = "SELECT document FROM autonomy_requests WHERE unended = 1"

func putRequest(ctx context.Context, tx *sql.Tx, group string, r autonomy.Request) error {
	r.Action, r.Context, r.Answer, r.Why = text(r.Action), text(r.Context), text(r.Answer), text(r.Why)
	doc, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode request %s: %w", r.ID, err)
	}
	unended := 0
	if r.Open() {
		unended = 1
	}
	_, err = tx.ExecContext(ctx, `
		INSERT INTO autonomy_requests (id, family, asker, receiver, asked_as, state, unended, created, document) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
		ON CONFLICT (id) DO UPDATE SET state = excluded.state, unended = excluded.unended, document = excluded.document`,
		r.ID, group, r.From.Key(), r.To.Key(), text(r.Key), r.State, unended, r.Created.UnixNano(), doc)
	if unique(err) {
		return fault.New(fault.Conflict, "store.ChangeGroup", r.Key, err)
	}
	if err != nil {
		return fmt.Errorf("store request %s: %w", r.ID, err)
	}
	return nil
}

// OpenRequests returns the open requests, oldest first.
func (a Autonomy) OpenRequests(ctx context.Context, group string) ([]autonomy.Request, error) {
	if group == "" {
		return documents[autonomy.Request](ctx, a.s.read, "read requests", openRequests+" ORDER BY created, id")
	}
	return documents[autonomy.Request](ctx, a.s.read, "read requests", openRequests+" AND family = $1 ORDER BY created, id", group)
}

// Request returns a request.
func (a Autonomy) Request(ctx context.Context, q id.Request) (autonomy.Request, error) {
	return one[autonomy.Request](ctx, a.s.read, "store.Autonomy.Request", "request "+string(q), "SELECT document FROM autonomy_requests WHERE id = $1", q)
}

// RequestByKey returns the request that a caller made with an idempotency key.
func (a Autonomy) RequestByKey(ctx context.Context, asker, key string) (autonomy.Request, error) {
	return one[autonomy.Request](ctx, a.s.read, "store.Autonomy.RequestByKey", "request with this key",
		"SELECT document FROM autonomy_requests WHERE asker = $1 AND asked_as = $2 AND asked_as <> ''", asker, text(key))
}

// Requests lists requests, newest first.
func (a Autonomy) Requests(ctx context.Context, f autonomy.RequestFilter) ([]autonomy.Request, error) {
	var w where
	if f.Group != "" {
		w.add("family = ", f.Group)
	}
	if f.Member != "" {
		w.add("(asker = ", f.Member)
		w.more(" OR receiver = ")
		w.arg(f.Member)
		w.more(")")
	}
	if f.State != "" {
		w.add("state = ", f.State)
	}
	if f.Before != "" {
		w.add("(created, id) < (SELECT created, id FROM autonomy_requests WHERE id = ", f.Before)
		w.more(")")
	}
	return page[autonomy.Request](ctx, a.s.read, "autonomy_requests", w, "created DESC, id DESC", f.Limit)
}

// ChangeGrants runs f with exclusive access to all grants and stores its result.
func (a Autonomy) ChangeGrants(ctx context.Context, f func(all []autonomy.Grant) ([]autonomy.Grant, []autonomy.Change, error)) error {
	err := a.s.update(ctx, "autonomy.grants", func(tx *sql.Tx) error {
		all, err := documents[autonomy.Grant](ctx, tx, "read grants", "SELECT document FROM autonomy_grants ORDER BY jail")
		if err != nil {
			return err
		}
		grants, changes, err := f(all)
		if err != nil {
			return err
		}
		for _, g := range grants {
			if err := putGrant(ctx, tx, g); err != nil {
				return err
			}
		}
		n, err := lastNumber(ctx, tx, "autonomy_changes")
		for _, c := range changes {
			if err != nil {
				return err
			}
			n++
			err = addChange(ctx, tx, n, c)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("change resource grants: %w", err)
	}
	return nil
}

// putGrant stores a grant, or deletes a grant without additional limits.
func putGrant(ctx context.Context, tx *sql.Tx, g autonomy.Grant) error {
	if g.Held == g.Base && g.Applied {
		if _, err := tx.ExecContext(ctx, "DELETE FROM autonomy_grants WHERE jail = $1", g.Jail); err != nil {
			return fmt.Errorf("delete the grant of jail %s: %w", g.Jail, err)
		}
		return nil
	}
	doc, err := json.Marshal(g)
	if err == nil {
		_, err = tx.ExecContext(ctx, `INSERT INTO autonomy_grants (jail, document) VALUES ($1, $2)
			ON CONFLICT (jail) DO UPDATE SET document = excluded.document`, g.Jail, doc)
	}
	if err != nil {
		return fmt.Errorf("store the grant of jail %s: %w", g.Jail, err)
	}
	return nil
}

func addChange(ctx context.Context, tx *sql.Tx, n int64, c autonomy.Change) error {
	c.N, c.Why = n, text(c.Why)
	doc, err := json.Marshal(c)
	if err == nil {
		_, err = tx.ExecContext(ctx, "INSERT INTO autonomy_changes (n, jail, document) VALUES ($1, $2, $3)", n, c.Jail, doc)
	}
	if err != nil {
		return fmt.Errorf("store change %d of the grants: %w", n, err)
	}
	return nil
}

// Grants returns all grants.
func (a Autonomy) Grants(ctx context.Context) ([]autonomy.Grant, error) {
	return documents[autonomy.Grant](ctx, a.s.read, "read grants", "SELECT document FROM autonomy_grants ORDER BY jail")
}

// Changes lists the history of grants, oldest first.
func (a Autonomy) Changes(ctx context.Context, f autonomy.ChangeFilter) ([]autonomy.Change, error) {
	var w where
	w.add("n > ", f.After)
	if f.Jail != "" {
		w.add("jail = ", f.Jail)
	}
	return page[autonomy.Change](ctx, a.s.read, "autonomy_changes", w, "n", f.Limit)
}

// AddTask stores a new task.
func (a Autonomy) AddTask(ctx context.Context, t autonomy.Task) error {
	doc, err := json.Marshal(t)
	if err == nil {
		_, err = a.s.write.ExecContext(ctx, `
			INSERT INTO autonomy_tasks (id, jail, session, status, priority, written, created, document) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
			t.ID, t.Jail, t.Session, t.Status, t.Priority, written(t), t.Created.UnixNano(), doc)
	}
	if unique(err) {
		return fault.Newf(fault.Conflict, "store.AddTask", t.ID, "a task with this id already exists")
	}
	if err != nil {
		return fmt.Errorf("record task %s: %w", t.ID, err)
	}
	return nil
}

func written(t autonomy.Task) int {
	if t.Written {
		return 1
	}
	return 0
}

// Task returns a task.
func (a Autonomy) Task(ctx context.Context, tid string) (autonomy.Task, error) {
	return one[autonomy.Task](ctx, a.s.read, "store.Autonomy.Task", "task "+tid, "SELECT document FROM autonomy_tasks WHERE id = $1", text(tid))
}

// Tasks lists tasks, newest first.
func (a Autonomy) Tasks(ctx context.Context, f autonomy.TaskFilter) ([]autonomy.Task, error) {
	var w where
	if f.Jail != "" {
		w.add("jail = ", f.Jail)
	}
	if f.Session != "" {
		w.add("session = ", f.Session)
	}
	if f.Status != "" {
		w.add("status = ", f.Status)
	}
	if f.Priority != "" {
		w.add("priority = ", f.Priority)
	}
	if f.Unwritten {
		w.add("written = ", 0)
	}
	if f.Before != "" {
		w.add("(created, id) < (SELECT created, id FROM autonomy_tasks WHERE id = ", text(f.Before))
		w.more(")")
	}
	return page[autonomy.Task](ctx, a.s.read, "autonomy_tasks", w, "created DESC, id DESC", f.Limit)
}

// ChangeTask runs f with exclusive access to a task and stores the result.
func (a Autonomy) ChangeTask(ctx context.Context, tid string, f func(t *autonomy.Task) error) error {
	return a.s.update(ctx, "autonomy.task."+tid, func(tx *sql.Tx) error {
		t, err := one[autonomy.Task](ctx, tx, "store.Autonomy.ChangeTask", "task "+tid, "SELECT document FROM autonomy_tasks WHERE id = $1", text(tid))
		if err != nil {
			return err
		}
		if err := f(&t); err != nil {
			return err
		}
		doc, err := json.Marshal(t)
		if err == nil {
			_, err = tx.ExecContext(ctx, "UPDATE autonomy_tasks SET jail = $2, status = $3, written = $4, document = $5 WHERE id = $1", t.ID, t.Jail, t.Status, written(t), doc)
		}
		if err != nil {
			return fmt.Errorf("record task %s: %w", tid, err)
		}
		return nil
	})
}

// one returns the document of a query, or fault.NotFound.
func one[T any](ctx context.Context, from querier, op, what, query string, args ...any) (T, error) {
	list, err := documents[T](ctx, from, "read "+what, query, args...)
	if err == nil && len(list) == 0 {
		err = fault.Newf(fault.NotFound, op, "", "no such %s", what)
	}
	if err != nil {
		var none T
		return none, err
	}
	return list[0], nil
}
