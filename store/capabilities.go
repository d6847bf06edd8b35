package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"glasshouse/capability/registry"
)

// Capabilities stores registered capabilities; it implements registry.Store.
type Capabilities struct{ s *Store }

// Capabilities returns the database's capabilities.
func (s *Store) Capabilities() Capabilities { return Capabilities{s} }

// Capabilities returns all versions.
func (cs Capabilities) Capabilities(ctx context.Context) ([]registry.Record, error) {
	return documents[registry.Record](ctx, cs.s.read, "read capabilities", "SELECT document FROM capabilities ORDER BY id, version")
}

// Skills returns all skills.
func (cs Capabilities) Skills(ctx context.Context) ([]registry.Skill, error) {
	return documents[registry.Skill](ctx, cs.s.read, "read skills", "SELECT document FROM skills ORDER BY name")
}

// Bundles returns all bundles.
func (cs Capabilities) Bundles(ctx context.Context) ([]registry.Bundle, error) {
	return documents[registry.Bundle](ctx, cs.s.read, "read bundles", "SELECT document FROM bundles ORDER BY name")
}

// Version returns a number that changes with the capabilities, the skills, the bundles and the
// trusted publishers.
func (cs Capabilities) Version(ctx context.Context) (int64, error) {
	return cs.s.version(ctx, "capabilities")
}

// Change adds and removes records atomically, unless another daemon has changed the store since it
// had a version.
func (cs Capabilities) Change(ctx context.Context, version int64, c registry.Change) error {
	return cs.s.update(ctx, "capabilities", func(tx *sql.Tx) error {
		current, err := changesRows(tx.ExecContext(ctx, "UPDATE versions SET n = n + 1 WHERE name = 'capabilities' AND n = $1", version))
		if err == nil && !current {
			err = registry.ErrChanged
		}
		if err != nil {
			return fmt.Errorf("change the version of the capabilities: %w", err)
		}
		for _, r := range c.Put {
			if err := putCapability(ctx, tx, r); err != nil {
				return err
			}
		}
		for _, r := range c.Gone {
			if _, err := tx.ExecContext(ctx, "DELETE FROM capabilities WHERE id = $1 AND version = $2", r.ID, r.Version); err != nil {
				return fmt.Errorf("delete capability %s: %w", r.ID, err)
			}
		}
		if c.Skill != nil {
			if err := putNamed(ctx, tx, "skills", c.Skill.Name, c.Skill); err != nil {
				return err
			}
		}
		if c.GoneSkill != "" {
			if err := deleteNamed(ctx, tx, "skills", c.GoneSkill); err != nil {
				return err
			}
		}
		switch {
		case c.Bundle == nil:
			return nil
		case c.Forget:
			return deleteNamed(ctx, tx, "bundles", c.Bundle.Name)
		}
		return putNamed(ctx, tx, "bundles", c.Bundle.Name, c.Bundle)
	})
}

func putCapability(ctx context.Context, to execer, r registry.Record) error {
	doc, err := json.Marshal(r)
	if err == nil {
		_, err = to.ExecContext(ctx, `
			INSERT INTO capabilities (id, version, document) VALUES ($1, $2, $3)
			ON CONFLICT (id, version) DO UPDATE SET document = excluded.document`, r.ID, r.Version, doc)
	}
	if err != nil {
		return fmt.Errorf("record capability %s: %w", r.ID, err)
	}
	return nil
}

// Trust returns the trusted publishers of the fleet as they were stored, or nil.
func (cs Capabilities) Trust(ctx context.Context) ([]byte, error) {
	list, err := documents[json.RawMessage](ctx, cs.s.read, "read the trusted publishers", "SELECT document FROM trust")
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return list[0], nil
}

// PutTrust replaces the trusted publishers, unless they are no longer was. It reports whether it
// has replaced them.
func (cs Capabilities) PutTrust(ctx context.Context, was, next []byte) (done bool, err error) {
	err = cs.s.update(ctx, "capabilities", func(tx *sql.Tx) error {
		query, args := "INSERT INTO trust (id, document) VALUES (1, $1) ON CONFLICT DO NOTHING", []any{string(next)}
		if was != nil {
			query, args = "UPDATE trust SET document = $1 WHERE document = $2", append(args, string(was))
		}
		done, err = changesRows(tx.ExecContext(ctx, query, args...))
		if err != nil || !done {
			return err
		}
		return nextVersion(ctx, tx, "capabilities")
	})
	if err != nil {
		return false, fmt.Errorf("store the trusted publishers: %w", err)
	}
	return done, nil
}

// putNamed stores a document in a table with names as keys.
func putNamed(ctx context.Context, to execer, table, name string, v any) error {
	doc, err := json.Marshal(v)
	if err == nil {
		_, err = to.ExecContext(ctx, `INSERT INTO `+table+` (name, document) VALUES ($1, $2)
			ON CONFLICT (name) DO UPDATE SET document = excluded.document`, name, doc)
	}
	if err != nil {
		return fmt.Errorf("record %s in %s: %w", name, table, err)
	}
	return nil
}

func deleteNamed(ctx context.Context, from execer, table, name string) error {
	if _, err := from.ExecContext(ctx, `DELETE FROM `+table+` WHERE name = $1`, name); err != nil {
		return fmt.Errorf("delete %s from %s: %w", name, table, err)
	}
	return nil
}
