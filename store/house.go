package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// House returns the name of the data directory whose records the database
// keeps. If it has none yet, it takes the one given.
func (s *Store) House(ctx context.Context, name string) (string, error) {
	var have string
	err := s.update(ctx, "house", func(tx *sql.Tx) error {
		err := tx.QueryRowContext(ctx, "SELECT name FROM house").Scan(&have)
		if !errors.Is(err, sql.ErrNoRows) || name == "" {
			return ignoreNoRows(err)
		}
		have = name
		_, err = tx.ExecContext(ctx, "INSERT INTO house (name) VALUES ($1)", name)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("whose database this is: %w", err)
	}
	return have, nil
}

func ignoreNoRows(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	return err
}
