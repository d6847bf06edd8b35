package jail

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"glasshouse/fault"
	"glasshouse/id"
)

// A Change is one path that a jail's writable layer holds against what lies
// under it.
type Change struct {
	Path string      `json:"path"` // in the jail
	Kind string      `json:"kind"` // added, modified, deleted, metadata
	Type string      `json:"type"` // as in protocol.FileInfo; of a deletion, what it was
	Size int64       `json:"size"`
	Mode fs.FileMode `json:"mode"`
}

// A Differ is a Backend that can tell what a jail changed, live or not.
type Differ interface {
	// Changes returns what the jail's own layer changed, sorted by path:
	// below the workspace's target if workspace is set, else in the root.
	Changes(ctx context.Context, p Plan, workspace bool) ([]Change, error)
}

// Changes returns what a jail changed in its root filesystem, or, if workspace
// is set, in its workspace.
func (m *Manager) Changes(ctx context.Context, jid id.Jail, workspace bool) ([]Change, error) {
	const op = "jail.Changes"
	c, err := m.find(jid, op)
	if err != nil {
		return nil, err
	}
	unlock, err := c.lock(ctx, op)
	if err != nil {
		return nil, err
	}
	defer unlock()
	j := *c.jail.Load()
	b, err := m.backend(j.Spec)
	if err != nil {
		return nil, err
	}
	d, ok := b.(Differ)
	if !ok {
		return nil, &fault.Error{Op: op, On: string(jid), Kind: fault.Unsupported, Err: errors.New("this backend cannot tell what a jail changed")}
	}
	if workspace && j.Spec.Workspace == nil {
		return nil, fault.Newf(fault.Conflict, op, string(jid), "the jail has no workspace")
	}
	changes, err := d.Changes(ctx, m.plan(j), workspace)
	if workspace {
		return changes, err
	}
	return slices.DeleteFunc(changes, j.Spec.madePlace), err
}

// madePlace reports whether a change is a directory that was made for the
// workspace or a mount to be shown on, which is none of the jail's doing.
func (s Spec) madePlace(c Change) bool {
	if c.Kind != "added" || c.Type != "dir" {
		return false
	}
	holds := func(target string) bool { return target == c.Path || strings.HasPrefix(target, c.Path+"/") }
	return s.Workspace != nil && holds(s.Workspace.Target) ||
		slices.ContainsFunc(s.Mounts, func(mt Mount) bool { return holds(mt.Target) })
}
