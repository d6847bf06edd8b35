package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// InstanceID returns the instance id of the data directory that uses the database. If the
// database has none and id is not empty, InstanceID stores id.
func (s *Store) InstanceID(ctx context.Context, id string) (string, error) {
	var have string
	err := s.update(ctx, "house", func(tx *sql.Tx) error {
		err := tx.QueryRowContext(ctx, "SELECT name FROM house").Scan(&have)
		if !errors.Is(err, sql.ErrNoRows) || id == "" {
			return ignoreNoRows(err)
		}
		have = id
		_, err = tx.ExecContext(ctx, "INSERT INTO house (name) VALUES ($1)", id)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read the instance id: %w", err)
	}
	return have, nil
}

func ignoreNoRows(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	return err
}
