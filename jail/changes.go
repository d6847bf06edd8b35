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
	Kind string      `json:"kind"` // added, modified, deleted, metadata, renamed
	Type string      `json:"type"` // as in protocol.FileInfo; of a deletion, what it was
	Size int64       `json:"size"`
	Mode fs.FileMode `json:"mode"`

	From string   `json:"from,omitempty"` // of a renamed file: where it was
	What []string `json:"what,omitempty"` // what differs: content, mode, owner, times, xattrs

	Diff   string `json:"diff,omitempty"`    // if asked for: the difference as unified text
	NoDiff string `json:"no_diff,omitempty"` // why a file has none; DiffLater ends what was compared
}

// DiffLater says that enough was compared for one answer: the texts from this
// path on are to be had by asking again, after the one before.
const DiffLater = "later"

// ChangesOptions say which changes are wanted.
type ChangesOptions struct {
	Workspace bool   // those of the workspace, not of the root
	Below     string // leaves out what is neither at this path nor below it; "" is all
	Text      bool   // with unified diffs of text files, from After on
	After     string // a path
}

// A Differ is a Backend that can tell what a jail changed, live or not.
type Differ interface {
	// Changes returns what the jail's own layer changed, sorted by path:
	// below the workspace's target if o says so, else in the root.
	Changes(ctx context.Context, p Plan, o ChangesOptions) ([]Change, error)
}

// Changes returns what a jail changed in its root filesystem or its workspace.
func (m *Manager) Changes(ctx context.Context, jid id.Jail, o ChangesOptions) ([]Change, error) {
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
	if o.Workspace && j.Spec.Workspace == nil {
		return nil, fault.Newf(fault.Conflict, op, string(jid), "the jail has no workspace")
	}
	changes, err := d.Changes(ctx, m.plan(j), o)
	if o.Workspace {
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
