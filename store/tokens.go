package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/access"
)

// Tokens stores bearer tokens; it implements access.Store.
type Tokens struct{ s *Store }

// Tokens returns the database's tokens.
func (s *Store) Tokens() Tokens { return Tokens{s} }

const tokenColumns = "id, name, role, hash, created, expires, max_jails, max_memory, max_disk"

// Add stores a token, or returns fault.Conflict if its id or hash exists.
func (ts Tokens) Add(ctx context.Context, t access.Token) error {
	_, err := ts.s.write.ExecContext(ctx, "INSERT INTO tokens ("+tokenColumns+") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
		t.ID, text(t.Name), t.Role, t.Hash, t.Created.UnixNano(), nanos(t.Expires), t.Quota.Jails, t.Quota.Memory, t.Quota.Disk)
	if unique(err) {
		return fault.Newf(fault.Conflict, "store.Add", string(t.ID), "the token already exists")
	}
	if err != nil {
		return fmt.Errorf("store token %s: %w", t.ID, err)
	}
	return nil
}

// ByHash returns the token with this hash, or fault.NotFound.
func (ts Tokens) ByHash(ctx context.Context, hash string) (access.Token, error) {
	return tokenOf("store.ByHash", "", ts.s.read.QueryRowContext(ctx, "SELECT "+tokenColumns+" FROM tokens WHERE hash = $1", hash))
}

// ByID returns a token, or fault.NotFound.
func (ts Tokens) ByID(ctx context.Context, t id.Token) (access.Token, error) {
	return tokenOf("store.ByID", t, ts.s.read.QueryRowContext(ctx, "SELECT "+tokenColumns+" FROM tokens WHERE id = $1", text(string(t))))
}

// SetQuota changes the quota of a token, or returns fault.NotFound.
func (ts Tokens) SetQuota(ctx context.Context, t id.Token, c access.QuotaChange) (access.Token, error) {
	return tokenOf("store.SetQuota", t, ts.s.write.QueryRowContext(ctx, `UPDATE tokens SET max_jails = COALESCE($2, max_jails),
		max_memory = COALESCE($3, max_memory), max_disk = COALESCE($4, max_disk) WHERE id = $1 RETURNING `+tokenColumns, text(string(t)), c.Jails, c.Memory, c.Disk))
}

// tokenOf reads the only row of a result.
func tokenOf(op string, tid id.Token, row *sql.Row) (access.Token, error) {
	t, err := scanToken(row)
	if errors.Is(err, sql.ErrNoRows) {
		return access.Token{}, fault.Newf(fault.NotFound, op, string(tid), "no such token")
	}
	if err != nil {
		return t, fmt.Errorf("read a token: %w", err)
	}
	return t, nil
}

// List returns every token, oldest first.
func (ts Tokens) List(ctx context.Context) ([]access.Token, error) {
	rows, err := ts.s.read.QueryContext(ctx, "SELECT "+tokenColumns+" FROM tokens ORDER BY created, id")
	if err != nil {
		return nil, fmt.Errorf("read tokens: %w", err)
	}
	defer rows.Close()
	var list []access.Token
	for rows.Next() {
		t, err := scanToken(rows)
		if err != nil {
			return nil, fmt.Errorf("read tokens: %w", err)
		}
		list = append(list, t)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read tokens: %w", err)
	}
	return list, nil
}

// Delete deletes a token, or returns fault.NotFound.
func (ts Tokens) Delete(ctx context.Context, t id.Token) error {
	res, err := ts.s.write.ExecContext(ctx, "DELETE FROM tokens WHERE id = $1", text(string(t)))
	if err != nil {
		return fmt.Errorf("delete token %s: %w", t, err)
	}
	if n, err := res.RowsAffected(); err == nil && n == 0 {
		return fault.Newf(fault.NotFound, "store.Delete", string(t), "no such token")
	}
	return nil
}

func scanToken(row interface{ Scan(...any) error }) (access.Token, error) {
	var t access.Token
	var created int64
	var expires sql.NullInt64
	if err := row.Scan(&t.ID, &t.Name, &t.Role, &t.Hash, &created, &expires, &t.Quota.Jails, &t.Quota.Memory, &t.Quota.Disk); err != nil {
		return access.Token{}, err
	}
	t.Created, t.Expires = time.Unix(0, created).UTC(), instant(expires)
	return t, nil
}
