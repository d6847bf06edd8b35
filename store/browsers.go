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
	"glasshouse/policy/approval"
)

// Browsers stores the browsers that receive push notifications; it implements
// approval.BrowserStore.
type Browsers struct{ s *Store }

// Browsers returns the database's browsers.
func (s *Store) Browsers() Browsers { return Browsers{s} }

// PushKey implements approval.BrowserStore.
func (bs Browsers) PushKey(ctx context.Context, private, public string) (kept, shown string, err error) {
	err = bs.s.update(ctx, "the push key", func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO push_key (one, private, public) VALUES (1, $1, $2) ON CONFLICT (one) DO NOTHING", private, public); err != nil {
			return err
		}
		return tx.QueryRowContext(ctx, "SELECT private, public FROM push_key WHERE one = 1").Scan(&kept, &shown)
	})
	if err != nil {
		return kept, shown, fmt.Errorf("store the Web Push key: %w", err)
	}
	return kept, shown, nil
}

// PutBrowser implements approval.BrowserStore.
func (bs Browsers) PutBrowser(ctx context.Context, b approval.Browser, most int) error {
	return bs.s.update(ctx, "browsers", func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "DELETE FROM browsers WHERE endpoint = $1 OR login NOT IN (SELECT id FROM logins)", text(b.Endpoint)); err != nil {
			return fmt.Errorf("delete earlier subscriptions of the browser: %w", err)
		}
		var n int
		if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM browsers WHERE login = $1", b.Login).Scan(&n); err != nil {
			return fmt.Errorf("count the browsers of login %s: %w", b.Login, err)
		}
		if n >= most {
			return fault.Newf(fault.Exhausted, "store.PutBrowser", "", "a login has at most %d browsers", most)
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO browsers (id, login, endpoint, p256dh, auth, created) VALUES ($1, $2, $3, $4, $5, $6)",
			b.ID, b.Login, text(b.Endpoint), text(b.Keys.P256dh), text(b.Keys.Auth), b.Created.UnixNano())
		if err != nil {
			return fmt.Errorf("store browser %s: %w", b.ID, err)
		}
		return nil
	})
}

const browserColumns = "b.id, b.login, b.endpoint, b.p256dh, b.auth, b.created, l.role, l.name, l.used"

// Browsers implements approval.BrowserStore.
func (bs Browsers) Browsers(ctx context.Context) ([]approval.Browser, error) {
	rows, err := bs.s.read.QueryContext(ctx, "SELECT "+browserColumns+" FROM browsers b JOIN logins l ON l.id = b.login ORDER BY b.created, b.id")
	if err != nil {
		return nil, fmt.Errorf("read browsers: %w", err)
	}
	defer rows.Close()
	var list []approval.Browser
	for rows.Next() {
		b, over, err := scanBrowser(rows)
		if err != nil {
			return nil, fmt.Errorf("read browsers: %w", err)
		}
		if !over {
			list = append(list, b)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read browsers: %w", err)
	}
	return list, nil
}

// Browser implements approval.BrowserStore.
func (bs Browsers) Browser(ctx context.Context, bid id.Browser) (approval.Browser, error) {
	b, over, err := scanBrowser(bs.s.read.QueryRowContext(ctx, "SELECT "+browserColumns+" FROM browsers b JOIN logins l ON l.id = b.login WHERE b.id = $1", text(string(bid))))
	if errors.Is(err, sql.ErrNoRows) || err == nil && over {
		return approval.Browser{}, fault.Newf(fault.NotFound, "store.Browser", string(bid), "no such browser")
	}
	if err != nil {
		return b, fmt.Errorf("read browser %s: %w", bid, err)
	}
	return b, nil
}

// DeleteBrowser implements approval.BrowserStore.
func (bs Browsers) DeleteBrowser(ctx context.Context, bid id.Browser) error {
	if _, err := bs.s.write.ExecContext(ctx, "DELETE FROM browsers WHERE id = $1", text(string(bid))); err != nil {
		return fmt.Errorf("delete browser %s: %w", bid, err)
	}
	return nil
}

// scanBrowser reads a browser, and whether its login has expired.
func scanBrowser(row interface{ Scan(...any) error }) (b approval.Browser, over bool, err error) {
	var created, used int64
	if err := row.Scan(&b.ID, &b.Login, &b.Endpoint, &b.Keys.P256dh, &b.Keys.Auth, &created, &b.Role, &b.Name, &used); err != nil {
		return approval.Browser{}, false, err
	}
	b.Created = time.Unix(0, created).UTC()
	l := access.Login{Used: time.Unix(0, used)}
	return b, !time.Now().Before(l.Expires()), nil
}
