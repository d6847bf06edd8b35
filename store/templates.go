package store

import (
	"context"
	"encoding/json"
	"fmt"

	"glasshouse/e2b/template"
)

// Templates stores the records of templates, their builds and their layers; it implements
// template.Store.
type Templates struct{ s *Store }

// Templates returns the database's templates.
func (s *Store) Templates() Templates { return Templates{s} }

// Templates returns every template.
func (ts Templates) Templates(ctx context.Context) ([]template.Template, error) {
	return documents[template.Template](ctx, ts.s.read, "read templates", "SELECT document FROM templates ORDER BY id")
}

// PutTemplate stores a new or changed template.
func (ts Templates) PutTemplate(ctx context.Context, t template.Template) error {
	doc, err := json.Marshal(t)
	if err == nil {
		_, err = ts.s.write.ExecContext(ctx, `
			INSERT INTO templates (id, team, name, document) VALUES ($1, $2, $3, $4)
			ON CONFLICT (id) DO UPDATE SET document = excluded.document`, t.ID, t.Team, t.Name, doc)
	}
	if err != nil {
		return fmt.Errorf("record template %s: %w", t.ID, err)
	}
	return nil
}

// DeleteTemplate deletes a template. A missing template is not an error.
func (ts Templates) DeleteTemplate(ctx context.Context, id string) error {
	if _, err := ts.s.write.ExecContext(ctx, "DELETE FROM templates WHERE id = $1", id); err != nil {
		return fmt.Errorf("delete template %s: %w", id, err)
	}
	return nil
}

// Builds returns every build of a template.
func (ts Templates) Builds(ctx context.Context) ([]template.Build, error) {
	return documents[template.Build](ctx, ts.s.read, "read builds", "SELECT document FROM template_builds ORDER BY id")
}

// PutBuild stores a new or changed build.
func (ts Templates) PutBuild(ctx context.Context, b template.Build) error {
	doc, err := json.Marshal(b)
	if err == nil {
		_, err = ts.s.write.ExecContext(ctx, `
			INSERT INTO template_builds (id, template, state, document) VALUES ($1, $2, $3, $4)
			ON CONFLICT (id) DO UPDATE SET state = excluded.state, document = excluded.document`, b.ID, b.Template, b.State, doc)
	}
	if err != nil {
		return fmt.Errorf("record build %s: %w", b.ID, err)
	}
	return nil
}

// DeleteBuild deletes a build. A missing build is not an error.
func (ts Templates) DeleteBuild(ctx context.Context, id string) error {
	if _, err := ts.s.write.ExecContext(ctx, "DELETE FROM template_builds WHERE id = $1", id); err != nil {
		return fmt.Errorf("delete build %s: %w", id, err)
	}
	return nil
}

// Layers returns every layer.
func (ts Templates) Layers(ctx context.Context) ([]template.Layer, error) {
	return documents[template.Layer](ctx, ts.s.read, "read layers", "SELECT document FROM template_layers ORDER BY key")
}

// PutLayer stores a new or changed layer.
func (ts Templates) PutLayer(ctx context.Context, l template.Layer) error {
	doc, err := json.Marshal(l)
	if err == nil {
		_, err = ts.s.write.ExecContext(ctx, `
			INSERT INTO template_layers (key, team, document) VALUES ($1, $2, $3)
			ON CONFLICT (key) DO UPDATE SET document = excluded.document`, l.Key, l.Team, doc)
	}
	if err != nil {
		return fmt.Errorf("record layer %s: %w", l.Key, err)
	}
	return nil
}

// DeleteLayer deletes a layer. A missing layer is not an error.
func (ts Templates) DeleteLayer(ctx context.Context, key string) error {
	if _, err := ts.s.write.ExecContext(ctx, "DELETE FROM template_layers WHERE key = $1", key); err != nil {
		return fmt.Errorf("delete layer %s: %w", key, err)
	}
	return nil
}
