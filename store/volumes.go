package store

import (
	"context"
	"encoding/json"
	"fmt"

	"glasshouse/e2b"
	"glasshouse/fault"
)

// Volumes stores the record of every sandbox volume; it implements e2b.VolumeStore.
type Volumes struct{ s *Store }

// Volumes returns the database's volumes.
func (s *Store) Volumes() Volumes { return Volumes{s} }

// Add stores a new volume. If its team has a volume of the same name, the error is
// fault.Conflict.
func (vs Volumes) Add(ctx context.Context, v e2b.Volume) error {
	doc, err := json.Marshal(v)
	if err == nil {
		_, err = vs.s.write.ExecContext(ctx, "INSERT INTO volumes (id, team, name, document) VALUES ($1, $2, $3, $4)", v.ID, v.Team, v.Name, doc)
	}
	if unique(err) {
		return fault.Newf(fault.Conflict, "store.Add", v.ID, "a volume named %q exists already", v.Name)
	}
	if err != nil {
		return fmt.Errorf("record volume %s: %w", v.ID, err)
	}
	return nil
}

// All returns every volume.
func (vs Volumes) All(ctx context.Context) ([]e2b.Volume, error) {
	rows, err := vs.s.read.QueryContext(ctx, "SELECT document FROM volumes ORDER BY id")
	if err != nil {
		return nil, fmt.Errorf("read volumes: %w", err)
	}
	defer rows.Close()
	var list []e2b.Volume
	for rows.Next() {
		var doc []byte
		var v e2b.Volume
		if err := rows.Scan(&doc); err != nil {
			return nil, fmt.Errorf("read volumes: %w", err)
		}
		if err := json.Unmarshal(doc, &v); err != nil {
			return nil, fmt.Errorf("read volumes: %w", err)
		}
		list = append(list, v)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read volumes: %w", err)
	}
	return list, nil
}

// Delete deletes a volume. A missing volume is not an error.
func (vs Volumes) Delete(ctx context.Context, volume string) error {
	if _, err := vs.s.write.ExecContext(ctx, "DELETE FROM volumes WHERE id = $1", volume); err != nil {
		return fmt.Errorf("delete volume %s: %w", volume, err)
	}
	return nil
}
