package store

import (
	"context"
	"database/sql"
	"slices"
)

// PretendNewer marks the database as written by a later glasshouse.
func (s *Store) PretendNewer(ctx context.Context) error {
	_, err := s.write.ExecContext(ctx, "INSERT INTO schema_version (version, name, applied) VALUES ($1, 'later', 0)", len(migrations)+1)
	return err
}

// MigrateFurther applies one more migration than the binary has.
func (s *Store) MigrateFurther(ctx context.Context, text string) error {
	next := migration{version: int64(len(migrations) + 1), name: "further", sql: text}
	return s.migrate(ctx, append(slices.Clone(migrations), next))
}

// Exec executes a statement.
func (s *Store) Exec(ctx context.Context, text string) (sql.Result, error) {
	return s.write.ExecContext(ctx, text)
}

// Update exports update.
func (s *Store) Update(ctx context.Context, f func(tx *sql.Tx) error) error {
	return s.update(ctx, "test", f)
}
