package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/policy/chain"
)

// Chain stores the causal chain; it implements chain.Store.
type Chain struct {
	ChainReader
	s *Store

	mu sync.Mutex
	// +checklocks:mu
	claimed bool
	// conn is the PostgreSQL connection that holds the advisory lock of the claim, or
	// nil after it failed.
	// +checklocks:mu
	conn *sql.Conn
}

// Chain returns the database's chain.
func (s *Store) Chain() *Chain { return &s.chain }

// Claim gives the caller the exclusive right to append. On PostgreSQL the claim is an advisory
// lock, on SQLite a lock on a file next to the database; both end with the process.
func (c *Chain) Claim(ctx context.Context) (release func() error, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.claimed {
		return nil, errClaimed
	}
	var file *os.File
	switch {
	case c.s.postgres:
		err = c.lock(ctx)
	case c.s.path != "":
		file, err = lockBeside(c.s.path)
	}
	if err != nil {
		return nil, err
	}
	c.claimed = true
	return func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.claimed = false
		return errors.Join(c.unlock(), closeFile(file))
	}, nil
}

var errClaimed = &fault.Error{
	Op: "store.Claim", Kind: fault.Conflict, Err: errors.New("another daemon appends to the chain in this database"),
	Remedy: "stop the other daemon, or configure another database for this daemon",
}

func lockBeside(path string) (*os.File, error) {
	f, err := os.OpenFile(path+"-chain", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("claim the chain: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errClaimed
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func closeFile(f *os.File) error {
	if f == nil {
		return nil
	}
	return f.Close()
}

// lock takes the advisory lock on a dedicated connection. The caller holds c.mu.
//
// +checklocks:c.mu
func (c *Chain) lock(ctx context.Context) error {
	const idle = 8 // connections in the pool; all of them may be broken
	var err error
	for range idle {
		var conn *sql.Conn
		if conn, err = c.s.write.Conn(ctx); err != nil {
			break
		}
		if err = lockOn(ctx, conn); err == nil {
			c.conn = conn
			return nil
		}
		if dropped := drop(conn); !errors.Is(err, driver.ErrBadConn) {
			err = errors.Join(err, dropped)
			break
		}
	}
	return fmt.Errorf("claim the chain: %w", err)
}

// lockOn waits briefly for the lock, because the server releases the lock of a killed daemon
// with a delay.
func lockOn(ctx context.Context, conn *sql.Conn) error {
	for _, statement := range []string{
		"SET lock_timeout = '3s'",
		"SELECT pg_advisory_lock(" + claimLock + ")",
		"RESET lock_timeout",
	} {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == "55P03" { // lock_not_available
				return errClaimed
			}
			return err
		}
	}
	return nil
}

// Last returns the last entry. For the holder of the claim the result is reliable also after a
// failed Append: when the lock is acquired, the server has ended the transactions of the
// previous connection.
func (c *Chain) Last(ctx context.Context) (chain.Row, error) {
	c.mu.Lock()
	var err error
	if c.claimed && c.s.postgres && c.conn == nil {
		err = c.lock(ctx)
	}
	c.mu.Unlock()
	if err != nil {
		return chain.Row{}, err
	}
	return c.ChainReader.Last(ctx)
}

// unlock releases the lock and closes its connection. The caller holds c.mu.
//
// +checklocks:c.mu
func (c *Chain) unlock() error {
	if c.conn == nil {
		return nil
	}
	conn := c.conn
	c.conn = nil
	// If this fails, closing the connection releases the lock.
	_, _ = conn.ExecContext(context.Background(), "SELECT pg_advisory_unlock("+claimLock+")")
	return drop(conn)
}

// drop closes a connection instead of returning it to the pool.
func drop(conn *sql.Conn) error {
	err := conn.Raw(func(any) error { return driver.ErrBadConn })
	if errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) {
		return nil
	}
	return errors.Join(err, conn.Close())
}

const claimLock = "hashtextextended('glasshouse.chain.claim', 0)"

// Append adds rows in one transaction. On PostgreSQL it uses the connection with the lock, so
// that nothing is appended without the lock.
func (c *Chain) Append(ctx context.Context, last int64, rows []chain.Row, cp chain.Checkpoint) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.claimed {
		return fault.Newf(fault.Conflict, "store.Append", "", "the chain is not claimed")
	}
	if !c.s.postgres {
		err := appendIn(ctx, c.s.write, insertEach, last, rows, cp)
		if err == nil {
			c.s.committed()
		}
		return err
	}
	if c.conn == nil {
		if err := c.lock(ctx); err != nil {
			return err
		}
	}
	err := appendIn(ctx, c.conn, insertMany, last, rows, cp)
	if err != nil && c.conn.PingContext(context.WithoutCancel(ctx)) != nil {
		err = errors.Join(err, c.unlock()) // broken: the next transaction needs both again
	}
	return err
}

type inserter func(ctx context.Context, tx *sql.Tx, rows []chain.Row) error

func appendIn(ctx context.Context, db beginner, insert inserter, last int64, rows []chain.Row, cp chain.Checkpoint) error {
	err := transact(ctx, db, func(tx *sql.Tx) error { return appendRows(ctx, tx, insert, last, rows, cp) })
	if unique(err) {
		return fault.New(fault.Conflict, "store.Append", "", err)
	}
	return err
}

func appendRows(ctx context.Context, tx *sql.Tx, insert inserter, last int64, rows []chain.Row, cp chain.Checkpoint) error {
	var have sql.NullInt64
	if err := tx.QueryRowContext(ctx, "SELECT MAX(seq) FROM chain_entries").Scan(&have); err != nil {
		return fmt.Errorf("read the number of the last entry: %w", err)
	}
	if have.Int64 != last {
		return fault.Newf(fault.Conflict, "store.Append", "", "the last entry is %d, want %d", have.Int64, last)
	}
	if err := insert(ctx, tx, rows); err != nil {
		return fmt.Errorf("insert entries: %w", err)
	}
	if cp.Size == 0 {
		return nil
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO chain_checkpoints (size, note) VALUES ($1, $2)", cp.Size, cp.Note); err != nil {
		return fmt.Errorf("insert a checkpoint: %w", err)
	}
	return nil
}

// insertMany inserts many rows per statement, because on PostgreSQL each statement needs a round
// trip to the server.
func insertMany(ctx context.Context, tx *sql.Tx, rows []chain.Row) error {
	const many = 64
	for len(rows) > 0 {
		n := min(len(rows), many)
		if n < many { // few different statements, so that each is prepared once
			n = 1 << (bits.Len(uint(n)) - 1)
		}
		args := make([]any, 0, n*rowColumns)
		for i := range rows[:n] {
			args = appendArgs(args, &rows[i])
		}
		if _, err := tx.ExecContext(ctx, insertRows(n), args...); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// insertEach inserts one row per statement. On SQLite the time to prepare a statement grows more
// than linearly with its number of arguments.
func insertEach(ctx context.Context, tx *sql.Tx, rows []chain.Row) error {
	if len(rows) == 0 {
		return nil
	}
	stmt, err := tx.PrepareContext(ctx, insertRows(1))
	if err != nil {
		return err
	}
	defer stmt.Close()
	args := make([]any, 0, rowColumns)
	for i := range rows {
		if _, err := stmt.ExecContext(ctx, appendArgs(args, &rows[i])...); err != nil {
			return err
		}
	}
	return nil
}

func appendArgs(args []any, r *chain.Row) []any {
	return append(args, r.Seq, r.Time, r.Kind, sql.NullInt64{Int64: r.Parent, Valid: r.Parent != 0},
		orNull(r.Jail), orNull(r.Session), orNull(r.Run), orNull(r.Capability), r.Line, r.Nodes)
}

const (
	entryColumns = "seq, time, kind, parent, jail, session, run, capability, line, nodes"
	rowColumns   = 10
)

// insertRows returns the statement that inserts n rows.
func insertRows(n int) string {
	var b strings.Builder
	b.WriteString("INSERT INTO chain_entries (" + entryColumns + ") VALUES ")
	for i := range n * rowColumns {
		switch {
		case i == 0:
			b.WriteString("(")
		case i%rowColumns == 0:
			b.WriteString("), (")
		default:
			b.WriteString(", ")
		}
		b.WriteString("$" + strconv.Itoa(i+1))
	}
	b.WriteString(")")
	return b.String()
}

func orNull(s string) sql.NullString { return sql.NullString{String: s, Valid: s != ""} }
