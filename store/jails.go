package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

// Jails stores the records of jails; it implements jail.Store.
type Jails struct{ s *Store }

// Jails returns the database's jails.
func (s *Store) Jails() Jails { return Jails{s} }

// Put stores a new or changed record. If another jail has the same range of host ids, the error is
// fault.Conflict.
func (js Jails) Put(ctx context.Context, j jail.Jail) error {
	doc, err := json.Marshal(j)
	if err != nil {
		return fmt.Errorf("record jail %s: %w", j.ID, err)
	}
	first := sql.NullInt64{Int64: int64(j.IDs.First), Valid: j.IDs.Count > 0}
	_, err = js.s.write.ExecContext(ctx, `
		INSERT INTO jails (id, name, state, created, first_id, document) VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (id) DO UPDATE SET name = excluded.name, state = excluded.state, created = excluded.created,
			first_id = excluded.first_id, document = excluded.document`,
		j.ID, text(j.Spec.Name), j.State, j.Created.UnixNano(), first, doc)
	if unique(err) {
		return fault.Newf(fault.Conflict, "store.Put", string(j.ID), "another jail has the host ids from %d on", j.IDs.First)
	}
	if err != nil {
		return fmt.Errorf("record jail %s: %w", j.ID, err)
	}
	return nil
}

// Get returns the record of a jail, or fault.NotFound.
func (js Jails) Get(ctx context.Context, jid id.Jail) (jail.Jail, error) {
	list, err := js.query(ctx, "SELECT document FROM jails WHERE id = $1", jid)
	if err != nil {
		return jail.Jail{}, err
	}
	if len(list) == 0 {
		return jail.Jail{}, fault.Newf(fault.NotFound, "store.Get", string(jid), "no such jail")
	}
	return list[0], nil
}

// All returns every jail, oldest first.
func (js Jails) All(ctx context.Context) ([]jail.Jail, error) {
	return js.query(ctx, "SELECT document FROM jails ORDER BY created, id")
}

// Delete deletes a record. A missing record is not an error.
func (js Jails) Delete(ctx context.Context, jid id.Jail) error {
	if _, err := js.s.write.ExecContext(ctx, "DELETE FROM jails WHERE id = $1", jid); err != nil {
		return fmt.Errorf("delete jail %s: %w", jid, err)
	}
	return nil
}

func (js Jails) query(ctx context.Context, query string, args ...any) ([]jail.Jail, error) {
	rows, err := js.s.read.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read jails: %w", err)
	}
	defer rows.Close()
	var list []jail.Jail
	for rows.Next() {
		var doc []byte
		if err := rows.Scan(&doc); err != nil {
			return nil, fmt.Errorf("read jails: %w", err)
		}
		var j jail.Jail
		if err := json.Unmarshal(doc, &j); err != nil {
			return nil, fmt.Errorf("read jails: %w", err)
		}
		list = append(list, j)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read jails: %w", err)
	}
	return list, nil
}
