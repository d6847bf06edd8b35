package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"glasshouse/fault"
)

//go:embed migrations
var files embed.FS

// A migration is one forward step of the schema. Its file is immutable after its release;
// later migrations correct its mistakes.
type migration struct {
	version int64
	name    string
	sql     string
}

// migrations are the files migrations/0001_name.sql and following, in order.
var migrations = mustRead(files)

func mustRead(fsys fs.FS) []migration {
	names, err := fs.Glob(fsys, "migrations/*.sql")
	if err != nil || len(names) == 0 {
		panic(fmt.Sprintf("migrations are missing from the binary: %v", err))
	}
	slices.Sort(names)
	var ms []migration
	for i, name := range names {
		base := strings.TrimSuffix(strings.TrimPrefix(name, "migrations/"), ".sql")
		number, rest, _ := strings.Cut(base, "_")
		version, err := strconv.ParseInt(number, 10, 64)
		if err != nil || version != int64(i+1) {
			panic(fmt.Sprintf("migration %s is out of order", name))
		}
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			panic(err)
		}
		ms = append(ms, migration{version, rest, string(text)})
	}
	return ms
}

// migrate applies the missing migrations, each in a transaction under a lock, so that two
// processes can start simultaneously. A schema newer than ms is refused and left unchanged.
func (s *Store) migrate(ctx context.Context, ms []migration) error {
	for {
		done, err := s.migrateOne(ctx, ms)
		if err != nil || done {
			return err
		}
	}
}

func (s *Store) migrateOne(ctx context.Context, ms []migration) (done bool, err error) {
	err = s.update(ctx, "migrate", func(tx *sql.Tx) error {
		have, err := schemaVersion(ctx, tx)
		if err != nil {
			return err
		}
		newest := ms[len(ms)-1].version
		if have > newest {
			return &fault.Error{
				Op: "store.Open", Kind: fault.Unsupported,
				Err:    fmt.Errorf("the database has schema version %d but this glasshouse supports versions up to %d", have, newest),
				Remedy: "run the newer glasshouse that wrote it, or another database",
			}
		}
		if have == newest {
			done = true
			return nil
		}
		m := ms[have]
		for stmt := range statements(m.sql) {
			if _, err := tx.ExecContext(ctx, stmt); err != nil {
				return fmt.Errorf("migration %d, %s: %w", m.version, m.name, err)
			}
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO schema_version (version, name, applied) VALUES ($1, $2, $3)",
			m.version, m.name, time.Now().UnixNano())
		if err != nil {
			return fmt.Errorf("record migration %d: %w", m.version, err)
		}
		return nil
	})
	return done, err
}

func schemaVersion(ctx context.Context, tx *sql.Tx) (int64, error) {
	_, err := tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS schema_version (
		version BIGINT PRIMARY KEY, name TEXT NOT NULL, applied BIGINT NOT NULL)`)
	if err != nil {
		return 0, fmt.Errorf("create the table of schema versions: %w", err)
	}
	var have int64
	err = tx.QueryRowContext(ctx, "SELECT version FROM schema_version ORDER BY version DESC LIMIT 1").Scan(&have)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return have, fmt.Errorf("read the schema version: %w", err)
	}
	return have, nil
}

// statements yields the statements of a migration. They end in a semicolon at
// the end of a line; whole lines starting with -- are comments.
func statements(text string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		var b strings.Builder
		for line := range strings.Lines(text) {
			if trimmed := strings.TrimSpace(line); trimmed == "" || strings.HasPrefix(trimmed, "--") {
				continue
			}
			b.WriteString(line)
			if !strings.HasSuffix(strings.TrimSpace(line), ";") {
				continue
			}
			if !yield(b.String()) {
				return
			}
			b.Reset()
		}
		if rest := strings.TrimSpace(b.String()); rest != "" {
			yield(rest)
		}
	}
}
