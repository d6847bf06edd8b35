package store

import (
	"context"
	"encoding/json"
	"fmt"

	"glasshouse/registry"
)

// Capabilities keeps what is registered; it is a registry.Store.
type Capabilities struct{ s *Store }

// Capabilities returns the database's capabilities.
func (s *Store) Capabilities() Capabilities { return Capabilities{s} }

// Capabilities returns all versions.
func (cs Capabilities) Capabilities(ctx context.Context) ([]registry.Record, error) {
	return documents[registry.Record](ctx, cs.s.read, "read capabilities", "SELECT document FROM capabilities ORDER BY id, version")
}

// PutCapability records a version, new or changed.
func (cs Capabilities) PutCapability(ctx context.Context, r registry.Record) error {
	doc, err := json.Marshal(r)
	if err == nil {
		_, err = cs.s.write.ExecContext(ctx, `
			INSERT INTO capabilities (id, version, document) VALUES ($1, $2, $3)
			ON CONFLICT (id, version) DO UPDATE SET document = excluded.document`, r.ID, r.Version, doc)
	}
	if err != nil {
		return fmt.Errorf("record capability %s: %w", r.ID, err)
	}
	return nil
}

// DeleteCapability forgets a version. One that is not there is forgotten already.
func (cs Capabilities) DeleteCapability(ctx context.Context, cid, version string) error {
	if _, err := cs.s.write.ExecContext(ctx, "DELETE FROM capabilities WHERE id = $1 AND version = $2", cid, version); err != nil {
		return fmt.Errorf("forget capability %s: %w", cid, err)
	}
	return nil
}

// Skills returns all skills.
func (cs Capabilities) Skills(ctx context.Context) ([]registry.Skill, error) {
	return documents[registry.Skill](ctx, cs.s.read, "read skills", "SELECT document FROM skills ORDER BY name")
}

// PutSkill records a skill, new or changed.
func (cs Capabilities) PutSkill(ctx context.Context, s registry.Skill) error {
	return cs.put(ctx, "skills", s.Name, s)
}

// DeleteSkill forgets a skill. One that is not there is forgotten already.
func (cs Capabilities) DeleteSkill(ctx context.Context, name string) error {
	return cs.remove(ctx, "skills", name)
}

// Bundles returns all bundles.
func (cs Capabilities) Bundles(ctx context.Context) ([]registry.Bundle, error) {
	return documents[registry.Bundle](ctx, cs.s.read, "read bundles", "SELECT document FROM bundles ORDER BY name")
}

// PutBundle records a bundle, new or changed.
func (cs Capabilities) PutBundle(ctx context.Context, b registry.Bundle) error {
	return cs.put(ctx, "bundles", b.Name, b)
}

// DeleteBundle forgets a bundle. One that is not there is forgotten already.
func (cs Capabilities) DeleteBundle(ctx context.Context, name string) error {
	return cs.remove(ctx, "bundles", name)
}

// put records a document in a table of names.
func (cs Capabilities) put(ctx context.Context, table, name string, v any) error {
	doc, err := json.Marshal(v)
	if err == nil {
		_, err = cs.s.write.ExecContext(ctx, `INSERT INTO `+table+` (name, document) VALUES ($1, $2)
			ON CONFLICT (name) DO UPDATE SET document = excluded.document`, name, doc)
	}
	if err != nil {
		return fmt.Errorf("record %s in %s: %w", name, table, err)
	}
	return nil
}

func (cs Capabilities) remove(ctx context.Context, table, name string) error {
	if _, err := cs.s.write.ExecContext(ctx, `DELETE FROM `+table+` WHERE name = $1`, name); err != nil {
		return fmt.Errorf("forget %s in %s: %w", name, table, err)
	}
	return nil
}
