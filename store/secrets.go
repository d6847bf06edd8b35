package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"glasshouse/id"
	"glasshouse/policy/secret"
)

// Secrets stores sealed secrets and their grants; it implements secret.Store.
type Secrets struct{ s *Store }

// Secrets returns the database's secrets.
func (s *Store) Secrets() Secrets { return Secrets{s} }

// Secrets returns every secret, by name.
func (ss Secrets) Secrets(ctx context.Context) ([]secret.Record, error) {
	rows, err := ss.s.read.QueryContext(ctx, "SELECT name, provider, path, sealed, created, updated, used, own FROM secrets ORDER BY name")
	if err != nil {
		return nil, fmt.Errorf("read secrets: %w", err)
	}
	defer rows.Close()
	var list []secret.Record
	for rows.Next() {
		var r secret.Record
		var created, updated int64
		var used sql.NullInt64
		var own string
		if err := rows.Scan(&r.Name, &r.Provider, &r.Path, &r.Sealed, &created, &updated, &used, &own); err != nil {
			return nil, fmt.Errorf("read secrets: %w", err)
		}
		if own != "" {
			if err := json.Unmarshal([]byte(own), &r.Owned); err != nil {
				return nil, fmt.Errorf("read the owner of secret %s: %w", r.Name, err)
			}
		}
		r.Created, r.Updated, r.Used = time.Unix(0, created).UTC(), time.Unix(0, updated).UTC(), instant(used)
		list = append(list, r)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read secrets: %w", err)
	}
	return list, nil
}

// change runs a transaction, after which other daemons read the secrets again.
func (ss Secrets) change(ctx context.Context, f func(tx *sql.Tx) error) error {
	return ss.s.update(ctx, "secrets", func(tx *sql.Tx) error {
		if err := nextVersion(ctx, tx, "secrets"); err != nil {
			return err
		}
		return f(tx)
	})
}

// Version returns a number that changes with the secrets and grants.
func (ss Secrets) Version(ctx context.Context) (int64, error) { return ss.s.version(ctx, "secrets") }

// Used stores the time of the last use of a secret.
func (ss Secrets) Used(ctx context.Context, name string, at time.Time) error {
	if _, err := ss.s.write.ExecContext(ctx, "UPDATE secrets SET used = $1 WHERE name = $2", at.UnixNano(), name); err != nil {
		return fmt.Errorf("record the use of secret %s: %w", name, err)
	}
	return nil
}

// PutSecret stores a new or changed secret.
func (ss Secrets) PutSecret(ctx context.Context, r secret.Record) error {
	var own []byte
	if r.Owned != nil {
		var err error
		own, err = json.Marshal(r.Owned)
		if err != nil {
			return fmt.Errorf("record the owner of secret %s: %w", r.Name, err)
		}
	}
	err := ss.change(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `
			INSERT INTO secrets (name, provider, path, sealed, created, updated, used, own) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
			ON CONFLICT (name) DO UPDATE SET provider = excluded.provider, path = excluded.path, sealed = excluded.sealed,
				created = excluded.created, updated = excluded.updated, used = excluded.used, own = excluded.own`,
			r.Name, r.Provider, r.Path, r.Sealed, r.Created.UnixNano(), r.Updated.UnixNano(), nanos(r.Used), string(own))
		return err
	})
	if err != nil {
		return fmt.Errorf("record secret %s: %w", r.Name, err)
	}
	return nil
}

// Reseal replaces the sealed values of secrets, by name, atomically.
func (ss Secrets) Reseal(ctx context.Context, sealed map[string]string) error {
	err := ss.change(ctx, func(tx *sql.Tx) error {
		for name, s := range sealed {
			if _, err := tx.ExecContext(ctx, "UPDATE secrets SET sealed = $1 WHERE name = $2", s, name); err != nil {
				return fmt.Errorf("store the value of secret %s: %w", name, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("reseal secrets: %w", err)
	}
	return nil
}

// DeleteSecret deletes a secret and its grants.
func (ss Secrets) DeleteSecret(ctx context.Context, name string) error {
	err := ss.change(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "DELETE FROM secret_grants WHERE secret = $1", name); err != nil {
			return fmt.Errorf("delete the grants of the secret: %w", err)
		}
		_, err := tx.ExecContext(ctx, "DELETE FROM secrets WHERE name = $1", name)
		return err
	})
	if err != nil {
		return fmt.Errorf("delete secret %s: %w", name, err)
	}
	return nil
}

// Grants returns every grant, oldest first.
func (ss Secrets) Grants(ctx context.Context) ([]secret.Grant, error) {
	rows, err := ss.s.read.QueryContext(ctx, "SELECT document FROM secret_grants ORDER BY created, id")
	if err != nil {
		return nil, fmt.Errorf("read grants of secrets: %w", err)
	}
	defer rows.Close()
	var list []secret.Grant
	for rows.Next() {
		var doc []byte
		var g secret.Grant
		if err := rows.Scan(&doc); err != nil {
			return nil, fmt.Errorf("read grants of secrets: %w", err)
		}
		if err := json.Unmarshal(doc, &g); err != nil {
			return nil, fmt.Errorf("read grants of secrets: %w", err)
		}
		list = append(list, g)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read grants of secrets: %w", err)
	}
	return list, nil
}

// PutGrant stores a grant.
func (ss Secrets) PutGrant(ctx context.Context, g secret.Grant) error {
	doc, err := json.Marshal(g)
	if err == nil {
		err = ss.change(ctx, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO secret_grants (id, secret, jail, created, document) VALUES ($1, $2, $3, $4, $5)",
				g.ID, g.Secret, g.To.Jail, g.Created.UnixNano(), doc)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("record grant %s: %w", g.ID, err)
	}
	return nil
}

// DeleteGrants deletes grants atomically.
func (ss Secrets) DeleteGrants(ctx context.Context, ids []id.Grant) error {
	err := ss.change(ctx, func(tx *sql.Tx) error {
		for _, gid := range ids {
			if _, err := tx.ExecContext(ctx, "DELETE FROM secret_grants WHERE id = $1", gid); err != nil {
				return fmt.Errorf("delete grant %s: %w", gid, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("delete grants of secrets: %w", err)
	}
	return nil
}
