package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/approval"
)

// Approvals stores approval requests; it implements approval.Store.
type Approvals struct{ s *Store }

// Approvals returns the database's approvals.
func (s *Store) Approvals() Approvals { return Approvals{s} }

// Save stores a new or changed request and its notices, atomically.
func (as Approvals) Save(ctx context.Context, r approval.Request, notices []approval.Notice) error {
	doc, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("record approval %s: %w", r.ID, err)
	}
	unfinished := 0
	if r.Unfinished() {
		unfinished = 1
	}
	err = as.s.update(ctx, "approvals", func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `
			INSERT INTO approvals (id, jail, state, unfinished, created, document) VALUES ($1, $2, $3, $4, $5, $6)
			ON CONFLICT (id) DO UPDATE SET jail = excluded.jail, state = excluded.state, unfinished = excluded.unfinished,
				created = excluded.created, document = excluded.document`,
			r.ID, r.Question.Subject.Jail, r.State, unfinished, r.Created.UnixNano(), doc); err != nil {
			return fmt.Errorf("store the request: %w", err)
		}
		for _, n := range notices {
			if err := putNotice(ctx, tx, n); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("record approval %s: %w", r.ID, err)
	}
	return nil
}

// Get returns a request.
func (as Approvals) Get(ctx context.Context, aid id.Approval) (approval.Request, error) {
	var doc []byte
	err := as.s.read.QueryRowContext(ctx, "SELECT document FROM approvals WHERE id = $1", aid).Scan(&doc)
	if errors.Is(err, sql.ErrNoRows) {
		return approval.Request{}, fault.Newf(fault.NotFound, "store.Approvals.Get", string(aid), "no such approval")
	}
	var r approval.Request
	if err == nil {
		err = json.Unmarshal(doc, &r)
	}
	if err != nil {
		return approval.Request{}, fmt.Errorf("read approval %s: %w", aid, err)
	}
	return r, nil
}

// Unfinished returns the requests that still need processing, oldest first.
func (as Approvals) Unfinished(ctx context.Context) ([]approval.Request, error) {
	return documents[approval.Request](ctx, as.s.read, "read approvals",
		"SELECT document FROM approvals WHERE unfinished = 1 ORDER BY created, id")
}

// List returns requests, newest first.
func (as Approvals) List(ctx context.Context, f approval.Filter) ([]approval.Request, error) {
	if f.Limit <= 0 {
		f.Limit = 100
	}
	return documents[approval.Request](ctx, as.s.read, "read approvals", `
		SELECT document FROM approvals WHERE ($1 = '' OR jail = $1) AND ($2 = '' OR state = $2)
		ORDER BY created DESC, id DESC LIMIT $3`, string(f.Jail), string(f.State), f.Limit)
}

// Notices returns the notices that are pending or have failed, oldest first.
func (as Approvals) Notices(ctx context.Context) ([]approval.Notice, error) {
	return documents[approval.Notice](ctx, as.s.read, "read notices", "SELECT document FROM approval_notices ORDER BY created, id")
}

// PutNotice stores a new or changed notice.
func (as Approvals) PutNotice(ctx context.Context, n approval.Notice) error {
	return putNotice(ctx, as.s.write, n)
}

// DeleteNotice deletes a notice. A missing notice is not an error.
func (as Approvals) DeleteNotice(ctx context.Context, nid string) error {
	if _, err := as.s.write.ExecContext(ctx, "DELETE FROM approval_notices WHERE id = $1", nid); err != nil {
		return fmt.Errorf("delete notice %s: %w", nid, err)
	}
	return nil
}

// PutLink stores a new or changed link.
func (as Approvals) PutLink(ctx context.Context, l approval.Link) error {
	doc, err := json.Marshal(l)
	if err == nil {
		_, err = as.s.write.ExecContext(ctx, `
			INSERT INTO approval_links (hash, expires, document) VALUES ($1, $2, $3)
			ON CONFLICT (hash) DO UPDATE SET expires = excluded.expires, document = excluded.document`,
			l.Hash, l.Expires.UnixNano(), doc)
	}
	if err != nil {
		return fmt.Errorf("record a link to approval %s: %w", l.Approval, err)
	}
	return nil
}

// GetLink returns the link whose token has that hash.
func (as Approvals) GetLink(ctx context.Context, hash string) (approval.Link, error) {
	list, err := documents[approval.Link](ctx, as.s.read, "read a link", "SELECT document FROM approval_links WHERE hash = $1", hash)
	if err == nil && len(list) == 0 {
		err = fault.Newf(fault.NotFound, "store.Approvals.GetLink", "", "no such link")
	}
	if err != nil {
		return approval.Link{}, err
	}
	return list[0], nil
}

// Forget deletes links that expired before now, and finished requests and notices older than old.
// Recipients have received them by that time or never will.
func (as Approvals) Forget(ctx context.Context, now, old time.Time) error {
	for _, d := range []struct {
		query  string
		before time.Time
	}{
		{"DELETE FROM approval_links WHERE expires < $1", now},
		{"DELETE FROM approval_notices WHERE created < $1", old},
		{"DELETE FROM approvals WHERE unfinished = 0 AND created < $1", old},
	} {
		if _, err := as.s.write.ExecContext(ctx, d.query, d.before.UnixNano()); err != nil {
			return fmt.Errorf("delete old approvals: %w", err)
		}
	}
	return nil
}

// execer is a database or a transaction.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func putNotice(ctx context.Context, to execer, n approval.Notice) error {
	doc, err := json.Marshal(n)
	if err == nil {
		_, err = to.ExecContext(ctx, `
			INSERT INTO approval_notices (id, created, document) VALUES ($1, $2, $3)
			ON CONFLICT (id) DO UPDATE SET created = excluded.created, document = excluded.document`,
			n.ID, n.Created.UnixNano(), doc)
	}
	if err != nil {
		return fmt.Errorf("record notice %s: %w", n.ID, err)
	}
	return nil
}

// querier is a database or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// documents returns the JSON documents of a query.
func documents[T any](ctx context.Context, db querier, doing, query string, args ...any) ([]T, error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	defer rows.Close()
	var list []T
	for rows.Next() {
		var doc []byte
		var t T
		if err := rows.Scan(&doc); err != nil {
			return nil, fmt.Errorf("%s: %w", doing, err)
		}
		if err := json.Unmarshal(doc, &t); err != nil {
			return nil, fmt.Errorf("%s: %w", doing, err)
		}
		list = append(list, t)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	return list, nil
}
