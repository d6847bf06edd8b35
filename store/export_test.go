package store

import (
	"context"
	"database/sql"
	"slices"
)

// MigrateFurther applies one more migration than the binary has.
func (s *Store) MigrateFurther(ctx context.Context, text string) error {
	needs, err := needsOf(text)
	if err != nil {
		return err
	}
	next := migration{version: int64(len(migrations) + 1), name: "further", sql: text, needs: needs}
	return s.migrate(ctx, append(slices.Clone(migrations), next))
}

// Migrations yields the text of each migration by its name.
func Migrations(yield func(version int64, name, text string) bool) {
	for _, m := range migrations {
		if !yield(m.version, m.name, m.sql) {
			return
		}
	}
}

// Statements exports statements.
func Statements(text string) func(yield func(string) bool) { return statements(text) }

// Exec executes a statement.
func (s *Store) Exec(ctx context.Context, text string) (sql.Result, error) {
	return s.write.ExecContext(ctx, text)
}

// Update exports update.
func (s *Store) Update(ctx context.Context, f func(tx *sql.Tx) error) error {
	return s.update(ctx, "test", f)
}
