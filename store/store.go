// Package store keeps persistent data in one SQL database: SQLite in a file, or PostgreSQL by
// URL.
//
// Each owner of data has a file here and a method on Store that returns its view. Both
// databases run the same statements, which use only text, 64-bit integers and JSON documents
// in text columns. Times are nanoseconds since 1970.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"glasshouse/fault"
	"glasshouse/id"
)

// A Store is an open database. It is safe for concurrent use.
type Store struct {
	read, write *sql.DB // two pools on one SQLite file, one on PostgreSQL
	postgres    bool
	process     string   // distinguishes this process's claims from those of one that died
	path        string   // path of the SQLite file, or ""
	file        *os.File // the SQLite file, or nil
	commits     atomic.Int64
	anchor      *sql.Conn // keeps a database in memory alive; else nil
	chain       Chain
}

// Open opens the database that where names, and brings its schema up to date. A postgres://
// URL is PostgreSQL, anything else the path of a SQLite file, and the empty string a SQLite
// database in memory that ends with the Store.
func Open(ctx context.Context, where string) (*Store, error) {
	s := &Store{process: string(id.NewToken())}
	if err := s.connect(where); err != nil {
		return nil, err
	}
	s.chain = Chain{ChainReader: ChainReader{s.read}, s: s}
	if err := s.migrateWhenFree(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open database: %w", err), s.Close())
	}
	s.spare()
	return s, nil
}

// migrateWhenFree waits for other processes that open a new SQLite file: while one enables the
// write-ahead log, the others fail immediately, regardless of their busy timeout.
func (s *Store) migrateWhenFree(ctx context.Context) error {
	const patience = 10 * time.Second
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := s.migrate(ctx, migrations)
		e, ok := errors.AsType[*sqlite.Error](err)
		if !ok || e.Code()&0xff != sqlite3.SQLITE_BUSY || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
	}
}

func (s *Store) connect(where string) error {
	scheme, _, isURL := strings.Cut(where, "://")
	switch {
	case isURL && (scheme == "postgres" || scheme == "postgresql"):
		return s.connectPostgres(where)
	case isURL:
		return fault.Fieldf("store.Open", "db", "%s:// is not a supported database; want postgres:// or the path of a SQLite file", scheme)
	case where == "":
		return s.connectMemory()
	}
	return s.connectSQLite(where)
}

// connectMemory creates a database that exists as long as a connection to it is open. An idle
// connection keeps it open, because the others are closed when their context is cancelled.
func (s *Store) connectMemory() error {
	db, err := sql.Open("sqlite", sqliteDSN("/"+s.process, false)+"&vfs=memdb")
	if err != nil {
		return fmt.Errorf("open a database in memory: %w", err)
	}
	db.SetMaxOpenConns(2)
	s.read, s.write = db, db
	s.anchor, err = db.Conn(context.Background())
	if err != nil {
		return errors.Join(fmt.Errorf("connect to the database in memory: %w", err), db.Close())
	}
	return nil
}

func (s *Store) connectPostgres(where string) error {
	cfg, err := pgx.ParseConfig(where)
	if err != nil {
		return fault.Fieldf("store.Open", "db", "not a PostgreSQL URL: %v", redact(err))
	}
	// Others wait for the locks of a transaction whose daemon hangs, or whose machine is paused.
	if _, set := cfg.RuntimeParams[idleLimit]; !set {
		cfg.RuntimeParams[idleLimit] = "10s"
	}
	db := stdlib.OpenDB(*cfg)
	db.SetMaxOpenConns(max(8, 2*runtime.NumCPU()))
	db.SetMaxIdleConns(4)
	s.read, s.write, s.postgres = db, db, true
	return nil
}

// redact removes the password of a malformed URL from an error: pgx repeats the whole URL.
func redact(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return errors.New("cannot be parsed")
}

// idleLimit is the setting of PostgreSQL that ends transactions which wait for their client.
const idleLimit = "idle_in_transaction_session_timeout"

func (s *Store) connectSQLite(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("resolve the path %s: %w", path, err)
	}
	s.path = path
	// SQLite creates the file with the umask's mode, and its journal with the file's mode. The
	// database may contain secrets in environments of jails, so only the owner may read it.
	// The file stays open: closing any descriptor of a file releases all POSIX locks of the
	// process on it (fcntl(2)).
	if s.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	if s.write, err = sql.Open("sqlite", sqliteDSN(path, false)); err != nil {
		return errors.Join(err, s.file.Close())
	}
	s.write.SetMaxOpenConns(1) // SQLite has one writer; queue here, not in busy loops
	if s.read, err = sql.Open("sqlite", sqliteDSN(path, true)); err != nil {
		return errors.Join(err, s.write.Close(), s.file.Close())
	}
	s.read.SetMaxOpenConns(max(4, runtime.NumCPU()))
	s.read.SetMaxIdleConns(4)
	return nil
}

// sqliteDSN lets the write-ahead log grow to 16 MB before a checkpoint: index pages are
// rewritten often and need to be copied only once.
func sqliteDSN(path string, readOnly bool) string {
	q := url.Values{"_txlock": {"immediate"}, "_pragma": {
		"busy_timeout(10000)", "foreign_keys(1)", "journal_mode(wal)", "synchronous(full)", "wal_autocheckpoint(4000)",
	}}
	if readOnly {
		q = url.Values{"_pragma": {"busy_timeout(10000)", "query_only(1)"}}
	}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String()
}

// Writable reports whether a transaction can be committed, as the audit log requires. It
// commits a transaction without changes.
func (s *Store) Writable(ctx context.Context) error {
	err := s.update(ctx, "house", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE house SET name = name")
		return err
	})
	if err != nil {
		return fault.New(fault.Unavailable, "store.Writable", "", err)
	}
	return nil
}

// Close closes the database. It may be called twice.
func (s *Store) Close() error {
	if s.anchor != nil {
		s.anchor.Close() // may already be closed
	}
	err := errors.Join(s.write.Close(), s.read.Close())
	if s.file != nil {
		s.file.Close() // may already be closed; nothing was written through it
	}
	return err
}

// A beginner is a database or one of its connections.
type beginner interface {
	BeginTx(context.Context, *sql.TxOptions) (*sql.Tx, error)
}

// transact runs f in a transaction of db that is committed if f returns nil.
func transact(ctx context.Context, db beginner, f func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin a transaction: %w", err)
	}
	defer tx.Rollback() // no effect after Commit
	err = f(tx)
	if err == nil {
		err = tx.Commit()
		if err != nil {
			err = fmt.Errorf("commit the transaction: %w", err)
		}
	}
	// Package sql rolls the transaction back when its context ends. Later calls do not tell why.
	if ctx.Err() != nil && errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("the transaction was rolled back: %w", context.Cause(ctx))
	}
	return err
}

// update runs f in a transaction that is committed if f returns nil. On PostgreSQL, updates with
// the same name are serialized; SQLite serializes all updates.
func (s *Store) update(ctx context.Context, name string, f func(tx *sql.Tx) error) error {
	err := transact(ctx, s.write, func(tx *sql.Tx) error {
		if s.postgres {
			if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", "glasshouse."+name); err != nil {
				return fmt.Errorf("lock %s in the database: %w", name, err)
			}
		}
		return f(tx)
	})
	if err == nil {
		s.committed()
	}
	return err
}

// version returns a number that changes with the data of a name.
func (s *Store) version(ctx context.Context, name string) (n int64, err error) {
	if err := s.read.QueryRowContext(ctx, "SELECT n FROM versions WHERE name = $1", name).Scan(&n); err != nil {
		return 0, fmt.Errorf("read the version of the %s: %w", name, err)
	}
	return n, nil
}

// nextVersion makes the other daemons read the data of a name again.
func nextVersion(ctx context.Context, tx *sql.Tx, name string) error {
	if _, err := tx.ExecContext(ctx, "UPDATE versions SET n = n + 1 WHERE name = $1", name); err != nil {
		return fmt.Errorf("change the version of the %s: %w", name, err)
	}
	return nil
}

// changesRows reports whether a statement has changed rows.
func changesRows(result sql.Result, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}

// unique reports whether err is a violated unique constraint.
func unique(err error) bool {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE || e.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY
	}
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == "23505"
}

func nanos(t *time.Time) sql.NullInt64 {
	if t == nil {
		return sql.NullInt64{}
	}
	return sql.NullInt64{Int64: t.UnixNano(), Valid: true}
}

func instant(n sql.NullInt64) *time.Time {
	if !n.Valid {
		return nil
	}
	t := time.Unix(0, n.Int64).UTC()
	return &t
}

// text makes an untrusted string valid for a text column of both databases: PostgreSQL accepts
// neither NUL nor invalid UTF-8.
func text(s string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "\uFFFD"), "\uFFFD")
}

func number(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
