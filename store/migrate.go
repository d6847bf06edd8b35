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
	"glasshouse/fleet"
)

//go:embed migrations
var files embed.FS

// A migration is one forward step of the schema. Its file is immutable after its release;
// later migrations correct its mistakes.
//
// Daemons of two successive versions use one database during an update. So a migration only adds
// what older programs ignore: tables, indexes, and columns with a default. One that removes or
// changes something is written a version later than the program that does not need it, and its
// first line is "-- contract: N": programs with a schema version below N cannot use the database
// afterwards.
type migration struct {
	version int64
	name    string
	sql     string
	needs   int64 // N of a contract, or 0
}

// contract begins the first line of a migration that older programs do not support.
const contract = "-- contract: "

// needsOf returns what the first line of a migration says.
func needsOf(text string) (int64, error) {
	line, _, _ := strings.Cut(text, "\n")
	number, ok := strings.CutPrefix(line, contract)
	if !ok {
		return 0, nil
	}
	return strconv.ParseInt(number, 10, 64)
}

// Schema is the schema version of this program.
func Schema() int64 { return migrations[len(migrations)-1].version }

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
		needs, err := needsOf(string(text))
		if err != nil || needs >= version {
			panic(fmt.Sprintf("migration %s has a wrong contract", name))
		}
		ms = append(ms, migration{version, rest, string(text), needs})
	}
	return ms
}

// migrate applies the missing migrations, each in a transaction under a lock, so that two
// processes can start simultaneously. An empty database gets all in one transaction. A newer schema
// is left unchanged, and refused if it is not for programs with ms.
func (s *Store) migrate(ctx context.Context, ms []migration) error {
	for {
		done, err := s.migrateNext(ctx, ms)
		if err != nil || done {
			return err
		}
	}
}

func (s *Store) migrateNext(ctx context.Context, ms []migration) (done bool, err error) {
	err = s.update(ctx, "migrate", func(tx *sql.Tx) error {
		have, err := schemaVersion(ctx, tx)
		if err != nil {
			return err
		}
		newest := ms[len(ms)-1].version
		if have >= newest {
			done = true
			return supports(ctx, tx, newest, have)
		}
		if have > 0 {
			return applyMigration(ctx, tx, ms[have])
		}
		for _, m := range ms {
			if err := applyMigration(ctx, tx, m); err != nil {
				return err
			}
		}
		return nil
	})
	return done, err
}

func applyMigration(ctx context.Context, tx *sql.Tx, m migration) error {
	if m.needs > 0 {
		if err := allSupport(ctx, tx, m); err != nil {
			return err
		}
	}
	for stmt := range statements(m.sql) {
		if _, err := tx.ExecContext(ctx, stmt); err != nil {
			return fmt.Errorf("migration %d, %s: %w", m.version, m.name, err)
		}
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO schema_version (version, name, applied) VALUES ($1, $2, $3)", m.version, m.name, time.Now().UnixNano())
	if err != nil {
		return fmt.Errorf("record migration %d: %w", m.version, err)
	}
	if m.needs > 0 {
		_, err = tx.ExecContext(ctx, "UPDATE schema_version SET needs = $1 WHERE version = $2", m.needs, m.version)
	}
	if err != nil {
		return fmt.Errorf("record what migration %d needs: %w", m.version, err)
	}
	return nil
}

// supports returns fault.Unsupported if programs with the schema version newest cannot use the schema
// version have.
func supports(ctx context.Context, tx *sql.Tx, newest, have int64) error {
	if have == newest {
		return nil
	}
	var needs int64
	if err := tx.QueryRowContext(ctx, "SELECT MAX(needs) FROM schema_version").Scan(&needs); err != nil {
		return fmt.Errorf("read what the schema needs: %w", err)
	}
	if needs <= newest {
		return nil
	}
	return &fault.Error{
		Op: "store.Open", Kind: fault.Unsupported,
		Err:    fmt.Errorf("the database has schema version %d, which supports programs of version %d and newer, but this glasshouse has version %d", have, needs, newest),
		Remedy: "run the newer glasshouse that wrote it, or another database",
	}
}

// allSupport returns fault.Conflict if a node of the fleet cannot use the database after a migration.
func allSupport(ctx context.Context, tx *sql.Tx, m migration) error {
	var name, version string
	err := tx.QueryRowContext(ctx, "SELECT name, version FROM nodes WHERE state <> $1 AND schema < $2 ORDER BY id LIMIT 1", fleet.Gone, m.needs).Scan(&name, &version)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the versions of the nodes: %w", err)
	}
	return &fault.Error{
		Op: "store.Open", Kind: fault.Conflict, On: name,
		Err:    fmt.Errorf("node %s runs version %s, which cannot use the database after migration %d, %s", name, version, m.version, m.name),
		Remedy: "update that node to the version before this one first, or remove it: glasshouse node rm",
	}
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
