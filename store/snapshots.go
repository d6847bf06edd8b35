package store

import (
	"context"
	"encoding/json"
	"fmt"

	"glasshouse/id"
	"glasshouse/jail/snapshot"
)

// Snapshots stores the record of every snapshot; it implements snapshot.Store.
type Snapshots struct{ s *Store }

// Snapshots returns the database's snapshots.
func (s *Store) Snapshots() Snapshots { return Snapshots{s} }

// Put stores a new or changed snapshot.
func (ss Snapshots) Put(ctx context.Context, s snapshot.Snapshot) error {
	doc, err := json.Marshal(s)
	if err == nil {
		_, err = ss.s.write.ExecContext(ctx, `
			INSERT INTO snapshots (id, jail, created, document) VALUES ($1, $2, $3, $4)
			ON CONFLICT (id) DO UPDATE SET jail = excluded.jail, created = excluded.created, document = excluded.document`,
			s.ID, s.Jail.ID, s.Created.UnixNano(), doc)
	}
	if err != nil {
		return fmt.Errorf("record snapshot %s: %w", s.ID, err)
	}
	return nil
}

// All returns every snapshot, oldest first.
func (ss Snapshots) All(ctx context.Context) ([]snapshot.Snapshot, error) {
	rows, err := ss.s.read.QueryContext(ctx, "SELECT document FROM snapshots ORDER BY created, id")
	if err != nil {
		return nil, fmt.Errorf("read snapshots: %w", err)
	}
	defer rows.Close()
	var list []snapshot.Snapshot
	for rows.Next() {
		var doc []byte
		var s snapshot.Snapshot
		if err := rows.Scan(&doc); err != nil {
			return nil, fmt.Errorf("read snapshots: %w", err)
		}
		if err := json.Unmarshal(doc, &s); err != nil {
			return nil, fmt.Errorf("read snapshots: %w", err)
		}
		list = append(list, s)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read snapshots: %w", err)
	}
	return list, nil
}

// Delete deletes a snapshot. A missing snapshot is not an error.
func (ss Snapshots) Delete(ctx context.Context, sid id.Snapshot) error {
	if _, err := ss.s.write.ExecContext(ctx, "DELETE FROM snapshots WHERE id = $1", sid); err != nil {
		return fmt.Errorf("delete snapshot %s: %w", sid, err)
	}
	return nil
}
