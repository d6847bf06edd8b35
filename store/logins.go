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

// Logins stores browser logins and login links; it implements access.LoginStore.
type Logins struct{ s *Store }

// Logins returns the database's logins.
func (s *Store) Logins() Logins { return Logins{s} }

// PutLink implements access.LoginStore.
func (ls Logins) PutLink(ctx context.Context, l access.Link) error {
	return ls.s.update(ctx, "logins", func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "DELETE FROM login_links WHERE expires <= $1", l.Created.UnixNano()); err != nil {
			return fmt.Errorf("delete expired login links: %w", err)
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO login_links (hash, role, name, created, expires) VALUES ($1, $2, $3, $4, $5)",
			l.Hash, l.Role, text(l.Name), l.Created.UnixNano(), l.Expires.UnixNano())
		if err != nil {
			return fmt.Errorf("store a login link: %w", err)
		}
		return nil
	})
}

// Redeem implements access.LoginStore.
func (ls Logins) Redeem(ctx context.Context, hash string, l access.Login) (access.Login, error) {
	err := ls.s.update(ctx, "logins", func(tx *sql.Tx) error {
		err := tx.QueryRowContext(ctx, "DELETE FROM login_links WHERE hash = $1 AND expires > $2 RETURNING role, name", hash, l.Created.UnixNano()).
			Scan(&l.Role, &l.Name)
		if errors.Is(err, sql.ErrNoRows) {
			return fault.Newf(fault.NotFound, "store.Redeem", "", "no such link")
		}
		if err != nil {
			return fmt.Errorf("redeem a login link: %w", err)
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO logins ("+loginColumns+") VALUES ($1, $2, $3, $4, $5, $6)",
			l.ID, l.Hash, l.Role, text(l.Name), l.Created.UnixNano(), l.Used.UnixNano())
		if err != nil {
			return fmt.Errorf("store login %s: %w", l.ID, err)
		}
		return nil
	})
	return l, err
}

const loginColumns = "id, hash, role, name, created, used"

// Login implements access.LoginStore.
func (ls Logins) Login(ctx context.Context, hash string) (access.Login, error) {
	l, err := scanLogin(ls.s.read.QueryRowContext(ctx, "SELECT "+loginColumns+" FROM logins WHERE hash = $1", hash))
	if errors.Is(err, sql.ErrNoRows) {
		return l, fault.Newf(fault.NotFound, "store.Login", "", "no such login")
	}
	if err != nil {
		return l, fmt.Errorf("read a login: %w", err)
	}
	return l, nil
}

// Logins implements access.LoginStore.
func (ls Logins) Logins(ctx context.Context) ([]access.Login, error) {
	rows, err := ls.s.read.QueryContext(ctx, "SELECT "+loginColumns+" FROM logins ORDER BY created, id")
	if err != nil {
		return nil, fmt.Errorf("read logins: %w", err)
	}
	defer rows.Close()
	var list []access.Login
	for rows.Next() {
		l, err := scanLogin(rows)
		if err != nil {
			return nil, fmt.Errorf("read logins: %w", err)
		}
		list = append(list, l)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read logins: %w", err)
	}
	return list, nil
}

// UseLogin implements access.LoginStore.
func (ls Logins) UseLogin(ctx context.Context, l id.Login, at time.Time) error {
	if _, err := ls.s.write.ExecContext(ctx, "UPDATE logins SET used = $2 WHERE id = $1", l, at.UnixNano()); err != nil {
		return fmt.Errorf("store the time of use of login %s: %w", l, err)
	}
	return nil
}

// DeleteLogin implements access.LoginStore.
func (ls Logins) DeleteLogin(ctx context.Context, l id.Login) error {
	err := ls.s.update(ctx, "logins", func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "DELETE FROM browsers WHERE login = $1", text(string(l))); err != nil {
			return fmt.Errorf("delete the browsers of the login: %w", err)
		}
		res, err := tx.ExecContext(ctx, "DELETE FROM logins WHERE id = $1", text(string(l)))
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err == nil && n == 0 {
			return fault.Newf(fault.NotFound, "store.DeleteLogin", string(l), "no such login")
		}
		return nil
	})
	if err != nil && !errors.Is(err, fault.NotFound) {
		return fmt.Errorf("delete login %s: %w", l, err)
	}
	return err
}

// DeleteLogins implements access.LoginStore.
func (ls Logins) DeleteLogins(ctx context.Context, unusedSince time.Time) error {
	if _, err := ls.s.write.ExecContext(ctx, "DELETE FROM logins WHERE used <= $1", unusedSince.UnixNano()); err != nil {
		return fmt.Errorf("delete unused logins: %w", err)
	}
	return nil
}

func scanLogin(row interface{ Scan(...any) error }) (access.Login, error) {
	var l access.Login
	var created, used int64
	if err := row.Scan(&l.ID, &l.Hash, &l.Role, &l.Name, &created, &used); err != nil {
		return access.Login{}, err
	}
	l.Created, l.Used = time.Unix(0, created).UTC(), time.Unix(0, used).UTC()
	return l, nil
}
