package store

import (
	"context"
	"encoding/json"
	"fmt"

	"glasshouse/e2b"
)

// Sandboxes stores the record of every sandbox; it implements e2b.Store.
type Sandboxes struct{ s *Store }

// Sandboxes returns the database's sandboxes.
func (s *Store) Sandboxes() Sandboxes { return Sandboxes{s} }

// Put stores a new or changed record.
func (ss Sandboxes) Put(ctx context.Context, b e2b.Sandbox) error {
	doc, err := json.Marshal(b)
	if err == nil {
		_, err = ss.s.write.ExecContext(ctx, `
			INSERT INTO sandboxes (id, team, state, document) VALUES ($1, $2, $3, $4)
			ON CONFLICT (id) DO UPDATE SET state = excluded.state, document = excluded.document`, b.ID, b.Team, b.State, doc)
	}
	if err != nil {
		return fmt.Errorf("record sandbox %s: %w", b.ID, err)
	}
	return nil
}

// All returns every sandbox.
func (ss Sandboxes) All(ctx context.Context) ([]e2b.Sandbox, error) {
	rows, err := ss.s.read.QueryContext(ctx, "SELECT document FROM sandboxes ORDER BY id")
	if err != nil {
		return nil, fmt.Errorf("read sandboxes: %w", err)
	}
	defer rows.Close()
	var list []e2b.Sandbox
	for rows.Next() {
		var doc []byte
		var b e2b.Sandbox
		if err := rows.Scan(&doc); err != nil {
			return nil, fmt.Errorf("read sandboxes: %w", err)
		}
		if err := json.Unmarshal(doc, &b); err != nil {
			return nil, fmt.Errorf("read sandboxes: %w", err)
		}
		list = append(list, b)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read sandboxes: %w", err)
	}
	return list, nil
}

// Delete deletes a sandbox. A missing sandbox is not an error.
func (ss Sandboxes) Delete(ctx context.Context, sandbox string) error {
	if _, err := ss.s.write.ExecContext(ctx, "DELETE FROM sandboxes WHERE id = $1", sandbox); err != nil {
		return fmt.Errorf("delete sandbox %s: %w", sandbox, err)
	}
	return nil
}
