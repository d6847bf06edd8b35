package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"glasshouse/policy/chain/witness"
)

// Witness stores what this node has seen of the audit logs of others; it implements witness.Store.
type Witness struct{ s *Store }

// Witness returns what was seen of other audit logs.
func (s *Store) Witness() Witness { return Witness{s} }

// Seen returns what was seen, by node.
func (ws Witness) Seen(ctx context.Context) ([]witness.Seen, error) {
	rows, err := ws.s.read.QueryContext(ctx, "SELECT node, key, checkpoint, entries, seen, conflict FROM witnessed ORDER BY node")
	if err != nil {
		return nil, fmt.Errorf("read what was seen of other audit logs: %w", err)
	}
	defer rows.Close()
	var list []witness.Seen
	for rows.Next() {
		var s witness.Seen
		var at int64
		var conflict string
		if err := rows.Scan(&s.Node, &s.Key, &s.Checkpoint, &s.Entries, &at, &conflict); err != nil {
			return nil, fmt.Errorf("read what was seen of other audit logs: %w", err)
		}
		s.At = time.Unix(0, at).UTC()
		if conflict != "" {
			if err := json.Unmarshal([]byte(conflict), &s.Conflict); err != nil {
				return nil, fmt.Errorf("read what was seen of the audit log of node %s: %w", s.Node, err)
			}
		}
		list = append(list, s)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read what was seen of other audit logs: %w", err)
	}
	return list, nil
}

// PutSeen replaces what was seen of a log.
func (ws Witness) PutSeen(ctx context.Context, s witness.Seen) error {
	conflict := ""
	if s.Conflict != nil {
		data, err := json.Marshal(s.Conflict)
		if err != nil {
			return fmt.Errorf("encode a conflict of the audit log of node %s: %w", s.Node, err)
		}
		conflict = string(data)
	}
	_, err := ws.s.write.ExecContext(ctx, `INSERT INTO witnessed (node, key, checkpoint, entries, seen, conflict) VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (node) DO UPDATE SET key = excluded.key, checkpoint = excluded.checkpoint, entries = excluded.entries, seen = excluded.seen, conflict = excluded.conflict`,
		s.Node, s.Key, s.Checkpoint, s.Entries, s.At.UnixNano(), conflict)
	if err != nil {
		return fmt.Errorf("store what was seen of the audit log of node %s: %w", s.Node, err)
	}
	return nil
}
