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

// PutCapability stores a new or changed version.
func (cs Capabilities) PutCapability(ctx context.Context, r registry.Record) error {
	return putCapability(ctx, cs.s.write, r)
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

// DeleteCapability deletes a version. A missing version is not an error.
func (cs Capabilities) DeleteCapability(ctx context.Context, cid, version string) error {
	return deleteCapability(ctx, cs.s.write, cid, version)
}

func deleteCapability(ctx context.Context, from execer, cid, version string) error {
	if _, err := from.ExecContext(ctx, "DELETE FROM capabilities WHERE id = $1 AND version = $2", cid, version); err != nil {
		return fmt.Errorf("delete capability %s: %w", cid, err)
	}
	return nil
}

// Skills returns all skills.
func (cs Capabilities) Skills(ctx context.Context) ([]registry.Skill, error) {
	return documents[registry.Skill](ctx, cs.s.read, "read skills", "SELECT document FROM skills ORDER BY name")
}

// PutSkill stores a new or changed skill.
func (cs Capabilities) PutSkill(ctx context.Context, s registry.Skill) error {
	return putNamed(ctx, cs.s.write, "skills", s.Name, s)
}

// DeleteSkill deletes a skill. A missing skill is not an error.
func (cs Capabilities) DeleteSkill(ctx context.Context, name string) error {
	return deleteNamed(ctx, cs.s.write, "skills", name)
}

// Bundles returns all bundles.
func (cs Capabilities) Bundles(ctx context.Context) ([]registry.Bundle, error) {
	return documents[registry.Bundle](ctx, cs.s.read, "read bundles", "SELECT document FROM bundles ORDER BY name")
}

// ChangeBundle stores a bundle with the records that are added and removed with it,
// atomically.
func (cs Capabilities) ChangeBundle(ctx context.Context, c registry.Change) error {
	return cs.s.update(ctx, "bundles", func(tx *sql.Tx) error {
		for _, r := range c.Put {
			if err := putCapability(ctx, tx, r); err != nil {
				return err
			}
		}
		for _, r := range c.Gone {
			if err := deleteCapability(ctx, tx, r.ID, r.Version); err != nil {
				return err
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
		if c.Forget {
			return deleteNamed(ctx, tx, "bundles", c.Bundle.Name)
		}
		return putNamed(ctx, tx, "bundles", c.Bundle.Name, c.Bundle)
	})
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
