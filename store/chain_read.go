package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"glasshouse/fault"
	"glasshouse/policy/chain"
)

// A ChainReader reads the causal chain; it implements chain.Reader.
type ChainReader struct{ db *sql.DB }

// ReadChain opens the chain in a database read-only. It creates, changes and locks nothing and can
// be used while the daemon runs. The caller must close the ChainReader.
func ReadChain(ctx context.Context, where string) (*ChainReader, error) {
	db, err := openReadOnly(where)
	if err != nil {
		return nil, err
	}
	c := &ChainReader{db}
	if _, err := c.Last(ctx); err != nil {
		return nil, errors.Join(fault.New(fault.Invalid, "store.ReadChain", where, err), db.Close())
	}
	return c, nil
}

func openReadOnly(where string) (*sql.DB, error) {
	if strings.HasPrefix(where, "postgres://") || strings.HasPrefix(where, "postgresql://") {
		cfg, err := pgx.ParseConfig(where)
		if err != nil {
			return nil, fault.Fieldf("store.ReadChain", "db", "not a PostgreSQL URL: %v", redact(err))
		}
		cfg.RuntimeParams["default_transaction_read_only"] = "on"
		return stdlib.OpenDB(*cfg), nil
	}
	path, err := filepath.Abs(where)
	if err != nil {
		return nil, fmt.Errorf("resolve the path %s: %w", where, err)
	}
	if _, err := os.Stat(path); err != nil {
		return nil, fault.New(fault.NotFound, "store.ReadChain", "", err)
	}
	q := url.Values{"mode": {"ro"}, "_pragma": {"busy_timeout(10000)", "query_only(1)"}}
	return sql.Open("sqlite", (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String())
}

// Close closes the database of a ChainReader that ReadChain returned.
func (c *ChainReader) Close() error { return c.db.Close() }

// Last returns the last entry, or a row with Seq 0 if the chain is empty.
func (c *ChainReader) Last(ctx context.Context) (chain.Row, error) {
	rows, err := c.query(ctx, "SELECT "+readColumns+" FROM chain_entries ORDER BY seq DESC LIMIT 1")
	if err != nil || len(rows) == 0 {
		return chain.Row{}, err
	}
	return rows[0], nil
}

// Rows returns those of the given entries that exist.
func (c *ChainReader) Rows(ctx context.Context, seqs []int64) ([]chain.Row, error) {
	if len(seqs) == 0 {
		return nil, nil
	}
	var w where
	in(&w, "seq", seqs)
	return c.query(ctx, "SELECT "+readColumns+" FROM chain_entries"+w.String(), w.args...)
}

// Select returns the entries that match q, in its order.
func (c *ChainReader) Select(ctx context.Context, q chain.Query) ([]chain.Row, error) {
	var w where
	for _, f := range []struct{ column, value string }{
		{"session", q.Session}, {"run", q.Run}, {"jail", string(q.Jail)}, {"capability", q.Capability},
	} {
		if f.value != "" {
			w.add(f.column+" = ", text(f.value))
		}
	}
	if q.Parent > 0 {
		w.add("parent = ", q.Parent)
	}
	if q.Under > 0 {
		// UNION removes duplicates, so the recursion ends even if damaged rows form a cycle.
		w.add(`seq IN (WITH RECURSIVE under(seq) AS (SELECT e.seq FROM chain_entries e WHERE e.parent = `, q.Under)
		w.more(` UNION SELECT e.seq FROM chain_entries e JOIN under ON e.parent = under.seq) SELECT seq FROM under)`)
	}
	few := w.text != "" // these columns have indexes that yield rows in the order of seq
	timed := !q.From.IsZero() || !q.Until.IsZero()
	kind := "kind"
	if timed && !few {
		kind = "kind || ''" // an expression, so that the index on kind is not used: the one on time is more selective
	}
	if len(q.Kinds) > 0 {
		in(&w, kind, q.Kinds)
	}
	if !q.From.IsZero() {
		w.add("time >= ", q.From.UnixNano())
	}
	if !q.Until.IsZero() {
		w.add("time < ", q.Until.UnixNano())
	}
	beyond, order := "seq > ", ""
	if q.Newest {
		beyond, order = "seq < ", " DESC"
	}
	if q.After > 0 {
		w.add(beyond, q.After)
	}
	conditions, limit := w.String(), " LIMIT "+strconv.Itoa(q.Limit)
	if !few && (timed || len(q.Kinds) > 1) {
		// All matching rows must be sorted. Sort their numbers instead of complete rows; +seq keeps the
		// query planner from scanning the chain in order of seq.
		conditions = " WHERE seq IN (SELECT seq FROM chain_entries" + conditions + " ORDER BY +seq" + order + limit + ")"
	}
	return c.query(ctx, "SELECT "+readColumns+" FROM chain_entries"+conditions+" ORDER BY seq"+order+limit, w.args...)
}

// readColumns is entryColumns without nulls. No column is a plain text column: for each value of
// such a column the SQLite driver checks whether the column is declared as a time, which takes
// longer than reading it.
const readColumns = "seq, time, COALESCE(kind, ''), COALESCE(parent, 0), COALESCE(jail, ''), COALESCE(session, ''), " +
	"COALESCE(run, ''), COALESCE(capability, ''), COALESCE(line, ''), COALESCE(nodes, '')"

func (c *ChainReader) query(ctx context.Context, query string, args ...any) ([]chain.Row, error) {
	rows, err := c.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read chain entries: %w", err)
	}
	defer rows.Close()
	var list []chain.Row
	for rows.Next() {
		list = append(list, chain.Row{})
		r := &list[len(list)-1]
		if err := rows.Scan(&r.Seq, &r.Time, &r.Kind, &r.Parent, &r.Jail, &r.Session, &r.Run, &r.Capability, &r.Line, &r.Nodes); err != nil {
			return nil, fmt.Errorf("read a chain entry: %w", err)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read chain entries: %w", err)
	}
	return list, nil
}

// Checkpoints returns checkpoints larger than after, by size.
func (c *ChainReader) Checkpoints(ctx context.Context, after int64, limit int) ([]chain.Checkpoint, error) {
	return c.checkpoints(ctx, "SELECT size, note FROM chain_checkpoints WHERE size > $1 ORDER BY size LIMIT "+strconv.Itoa(limit), after)
}

// LastCheckpoint returns the largest checkpoint, or one with Size 0.
func (c *ChainReader) LastCheckpoint(ctx context.Context) (chain.Checkpoint, error) {
	list, err := c.checkpoints(ctx, "SELECT size, note FROM chain_checkpoints ORDER BY size DESC LIMIT 1")
	if err != nil || len(list) == 0 {
		return chain.Checkpoint{}, err
	}
	return list[0], nil
}

func (c *ChainReader) checkpoints(ctx context.Context, query string, args ...any) ([]chain.Checkpoint, error) {
	rows, err := c.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read checkpoints of the chain: %w", err)
	}
	defer rows.Close()
	var list []chain.Checkpoint
	for rows.Next() {
		var cp chain.Checkpoint
		if err := rows.Scan(&cp.Size, &cp.Note); err != nil {
			return nil, fmt.Errorf("read a checkpoint of the chain: %w", err)
		}
		list = append(list, cp)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read checkpoints of the chain: %w", err)
	}
	return list, nil
}

// where builds the conditions of a query.
type where struct {
	text string
	args []any
}

// add adds a condition, which ends before its argument.
func (w *where) add(condition string, arg any) {
	w.and(condition)
	w.arg(arg)
}

func (w *where) and(condition string) {
	if w.text != "" {
		w.text += " AND "
	}
	w.text += condition
}

func (w *where) arg(arg any) {
	w.args = append(w.args, arg)
	w.text += "$" + strconv.Itoa(len(w.args))
}

func (w *where) more(text string) { w.text += text }

func (w *where) String() string {
	if w.text == "" {
		return ""
	}
	return " WHERE " + w.text
}

// in adds the condition that a column has one of some values.
func in[T any](w *where, column string, values []T) {
	w.and(column + " IN (")
	for i, v := range values {
		if i > 0 {
			w.more(", ")
		}
		w.arg(v)
	}
	w.more(")")
}
