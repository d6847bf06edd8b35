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
