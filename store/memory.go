package store

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"glasshouse/capability/memory"
	"glasshouse/fault"
)

// Memory stores the memory of agents; it implements memory.Store.
type Memory struct{ s *Store }

// Memory returns the database's memory.
func (s *Store) Memory() Memory { return Memory{s} }

// Get returns an entry.
func (ms Memory) Get(ctx context.Context, s memory.Scope, key string) (memory.Entry, error) {
	e, err := entryOf(ms.s.read.QueryRowContext(ctx, "SELECT document FROM memory WHERE scope = $1 AND key = $2", text(string(s)), text(key)))
	if err == nil && e == nil {
		err = fault.Newf(fault.NotFound, "store.Memory.Get", key, "no entry with this key")
	}
	if err != nil {
		return memory.Entry{}, fmt.Errorf("read memory: %w", err)
	}
	return *e, nil
}

// entryOf reads an entry. It returns nil if the entry does not exist.
func entryOf(row *sql.Row) (*memory.Entry, error) {
	var doc []byte
	if err := row.Scan(&doc); errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	e := new(memory.Entry)
	return e, json.Unmarshal(doc, e)
}

// All returns the entries of a scope, read in one transaction.
func (ms Memory) All(ctx context.Context, s memory.Scope) ([]memory.Entry, memory.Usage, error) {
	var all []memory.Entry
	var u memory.Usage
	rows, err := ms.s.read.QueryContext(ctx, `
		SELECT s.version, s.entries, s.bytes, m.document FROM memory_scopes s LEFT JOIN memory m ON m.scope = s.scope WHERE s.scope = $1`, text(string(s)))
	if err != nil {
		return nil, u, fmt.Errorf("read memory: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var doc sql.NullString
		if err := rows.Scan(&u.Version, &u.Entries, &u.Bytes, &doc); err != nil {
			return nil, u, fmt.Errorf("read memory: %w", err)
		}
		if !doc.Valid {
			continue // no entries
		}
		var e memory.Entry
		if err := json.Unmarshal([]byte(doc.String), &e); err != nil {
			return nil, u, fmt.Errorf("read memory: %w", err)
		}
		all = append(all, e)
	}
	if err := rows.Err(); err != nil {
		return nil, u, fmt.Errorf("read memory: %w", err)
	}
	return all, u, nil
}

// update runs f with exclusive access to the scope.
func (ms Memory) update(ctx context.Context, s memory.Scope, f func(tx *sql.Tx) error) error {
	return ms.s.update(ctx, "memory "+string(s), f)
}

// Change implements memory.Store.
func (ms Memory) Change(ctx context.Context, s memory.Scope, key string, f func(old *memory.Entry, rest memory.Usage) (*memory.Entry, error)) error {
	err := ms.update(ctx, s, func(tx *sql.Tx) error {
		var u memory.Usage
		row := tx.QueryRowContext(ctx, "SELECT version, entries, bytes FROM memory_scopes WHERE scope = $1", text(string(s)))
		if err := row.Scan(&u.Version, &u.Entries, &u.Bytes); err != nil && !errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("read the usage of the scope: %w", err)
		}
		old, err := entryOf(tx.QueryRowContext(ctx, "SELECT document FROM memory WHERE scope = $1 AND key = $2", text(string(s)), text(key)))
		if err != nil {
			return fmt.Errorf("read the entry: %w", err)
		}
		if old != nil {
			u.Entries--
			u.Bytes -= old.Bytes()
		}
		e, err := f(old, u)
		if err != nil || e == old {
			return err
		}
		if e == nil {
			_, err = tx.ExecContext(ctx, "DELETE FROM memory WHERE scope = $1 AND key = $2", text(string(s)), text(key))
		} else {
			u.Version, u.Entries, u.Bytes = e.Version, u.Entries+1, u.Bytes+e.Bytes()
			err = putEntry(ctx, tx, s, *e)
		}
		if err != nil {
			return err
		}
		return putUsage(ctx, tx, s, u)
	})
	if err != nil {
		return fmt.Errorf("change memory: %w", err)
	}
	return nil
}

func putEntry(ctx context.Context, tx *sql.Tx, s memory.Scope, e memory.Entry) error {
	var doc bytes.Buffer
	enc := json.NewEncoder(&doc)
	enc.SetEscapeHTML(false) // escaping would change the length that was counted
	err := enc.Encode(e)
	if err == nil {
		_, err = tx.ExecContext(ctx, `INSERT INTO memory (scope, key, document) VALUES ($1, $2, $3)
			ON CONFLICT (scope, key) DO UPDATE SET document = excluded.document`, text(string(s)), text(e.Key), doc.String())
	}
	if err != nil {
		return fmt.Errorf("store the entry: %w", err)
	}
	return nil
}

func putUsage(ctx context.Context, tx *sql.Tx, s memory.Scope, u memory.Usage) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO memory_scopes (scope, version, entries, bytes) VALUES ($1, $2, $3, $4)
		ON CONFLICT (scope) DO UPDATE SET version = excluded.version, entries = excluded.entries, bytes = excluded.bytes`,
		text(string(s)), u.Version, u.Entries, u.Bytes)
	if err != nil {
		return fmt.Errorf("store the usage of the scope: %w", err)
	}
	return nil
}

// Replace implements memory.Store.
func (ms Memory) Replace(ctx context.Context, s memory.Scope, entries []memory.Entry, version int64) error {
	err := ms.update(ctx, s, func(tx *sql.Tx) error {
		u := memory.Usage{Version: version, Entries: int64(len(entries))}
		var had int64
		row := tx.QueryRowContext(ctx, "SELECT version FROM memory_scopes WHERE scope = $1", text(string(s)))
		if err := row.Scan(&had); err != nil && !errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("read the version of the scope: %w", err)
		}
		u.Version = max(u.Version, had)
		if _, err := tx.ExecContext(ctx, "DELETE FROM memory WHERE scope = $1", text(string(s))); err != nil {
			return fmt.Errorf("delete the entries of the scope: %w", err)
		}
		for _, e := range entries {
			u.Bytes += e.Bytes()
			if err := putEntry(ctx, tx, s, e); err != nil {
				return err
			}
		}
		return putUsage(ctx, tx, s, u)
	})
	if err != nil {
		return fmt.Errorf("replace memory: %w", err)
	}
	return nil
}

// Delete deletes all entries of a scope.
func (ms Memory) Delete(ctx context.Context, s memory.Scope) error {
	err := ms.update(ctx, s, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM memory WHERE scope = $1", text(string(s)))
		if err == nil {
			_, err = tx.ExecContext(ctx, "DELETE FROM memory_scopes WHERE scope = $1", text(string(s)))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("delete memory: %w", err)
	}
	return nil
}
