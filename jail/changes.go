package jail

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"glasshouse/fault"
	"glasshouse/id"
)

// A Change is one path that differs between a jail's writable layers and the layers below, or
// between two jails.
type Change struct {
	Path string      `json:"path"` // in the jail
	Kind string      `json:"kind"` // added, modified, deleted, metadata, renamed
	Type string      `json:"type"` // as in protocol.FileInfo; of a deletion, the previous type
	Size int64       `json:"size"`
	Mode fs.FileMode `json:"mode"`

	From string   `json:"from,omitempty"` // previous path of a renamed file
	What []string `json:"what,omitempty"` // what differs: content, mode, owner, times, xattrs

	Diff   string `json:"diff,omitempty"`    // unified diff, if requested
	NoDiff string `json:"no_diff,omitempty"` // reason for an empty Diff; DiffTruncated marks the end of a page
}

// DiffTruncated means that the response has reached its size limit. The diffs from this path on
// need another request with After set to the previous path.
const DiffTruncated = "later"

// ChangesOptions select changes.
type ChangesOptions struct {
	Workspace bool   // changes of the workspace instead of the root
	Below     string // only this path and paths below it; "" means all
	Text      bool   // add unified diffs of text files that follow After
	After     string // a path
}

// A Differ is a Backend that can list the file changes of a jail, live or not.
type Differ interface {
	// Changes returns the changes in the jail's writable and sealed layers, sorted by path.
	// The changes are those below the workspace's target if o.Workspace is set, and otherwise
	// those of the root.
	Changes(ctx context.Context, p Plan, o ChangesOptions) ([]Change, error)
}

// A Tree is the files of a jail, current or of a snapshot.
type Tree struct {
	Plan
	Writable bool // includes the writable layer; otherwise only sealed layers
}

// A Comparer is a Differ that can compare the files of two jails, live or not.
type Comparer interface {
	// Compare returns the changes that turn the tree from into the tree to, sorted by path.
	// Both have the same layers except for the sealed and writable ones.
	Compare(ctx context.Context, from, to Tree, o ChangesOptions) ([]Change, error)
}

// A Version is the current state of a jail or, if Snapshot is set, its state in a snapshot.
type Version struct {
	ID       id.Jail
	Snapshot *Jail
}

// comparisons compares the files of jails.
type comparisons struct{ registry *registry }

// Compare returns the differences between the files of two moments, of one jail or of two.
func (cm *comparisons) Compare(ctx context.Context, from, to Version, o ChangesOptions) ([]Change, error) {
	const op = "jail.Compare"
	unlock, err := cm.registry.lockAll(ctx, op, from, to)
	if err != nil {
		return nil, err
	}
	defer unlock()
	a, err := cm.registry.recordAt(from, op)
	if err != nil {
		return nil, err
	}
	b, err := cm.registry.recordAt(to, op)
	if err != nil {
		return nil, err
	}
	if err := comparable(a.Spec, b.Spec, o); err != nil {
		return nil, fault.New(fault.Conflict, op, string(from.ID)+" and "+string(to.ID), err)
	}
	if !slices.Equal(a.Lower, b.Lower) && !o.Workspace {
		return nil, fault.Newf(fault.Conflict, op, string(from.ID)+" and "+string(to.ID), "they have different root filesystems")
	}
	backend, err := cm.registry.backend(b.Spec)
	if err != nil {
		return nil, err
	}
	c, ok := backend.(Comparer)
	if !ok {
		return nil, fault.Cannot(op, "jails of the backend "+b.Spec.Backend+" cannot be compared", "create the jails with --backend oci")
	}
	changes, err := c.Compare(ctx, Tree{cm.registry.plan(a), from.Snapshot == nil}, Tree{cm.registry.plan(b), to.Snapshot == nil}, o)
	if o.Workspace {
		return changes, err
	}
	return slices.DeleteFunc(changes, func(ch Change) bool { return b.Spec.madeByDaemon(ch, "added") || a.Spec.madeByDaemon(ch, "deleted") }), err
}

// comparable returns the reason why the changes of two jails cannot be compared, or nil.
func comparable(a, b Spec, o ChangesOptions) error {
	switch {
	case a.Backend != b.Backend:
		return fmt.Errorf("one jail uses the backend %s and the other one %s", a.Backend, b.Backend)
	case !o.Workspace:
		return nil
	case a.Workspace == nil || b.Workspace == nil:
		return errors.New("they do not both have a workspace")
	case a.Workspace.Source != b.Workspace.Source:
		return errors.New("their workspaces have different source directories")
	}
	return nil
}

// Changes returns the changes of a jail in its root filesystem or its workspace.
func (cm *comparisons) Changes(ctx context.Context, jid id.Jail, o ChangesOptions) ([]Change, error) {
	const op = "jail.Changes"
	e, unlock, err := cm.registry.lock(ctx, jid, op)
	if err != nil {
		return nil, err
	}
	defer unlock()
	j := *e.jail.Load()
	b, err := cm.registry.backend(j.Spec)
	if err != nil {
		return nil, err
	}
	d, ok := b.(Differ)
	if !ok {
		return nil, &fault.Error{Op: op, On: string(jid), Kind: fault.Unsupported, Err: errors.New("this backend cannot list file changes")}
	}
	if o.Workspace && j.Spec.Workspace == nil {
		return nil, fault.Newf(fault.Conflict, op, string(jid), "the jail has no workspace")
	}
	changes, err := d.Changes(ctx, cm.registry.plan(j), o)
	if o.Workspace {
		return changes, err
	}
	return slices.DeleteFunc(changes, func(c Change) bool { return j.Spec.madeByDaemon(c, "added") }), err
}

// The notice that informs a jail that it is a branch, and its maximum size. A larger file was
// written by the jail itself.
const (
	noticeDir  = "/run/glasshouse"
	notice     = noticeDir + "/branch.json"
	noticeSize = 1 << 10
)

// madeByDaemon reports whether a change was made by the daemon and not by the jail: a
// directory that was created as the mount point of the workspace, a mount or secrets, or the
// notice of a branch.
func (s Spec) madeByDaemon(c Change, kind string) bool {
	if c.Path == notice && c.Type == "file" && c.Size <= noticeSize || (c.Path == noticeDir || c.Path == SecretsDir) && c.Type == "dir" {
		return true
	}
	if c.Kind != kind || c.Type != "dir" {
		return false
	}
	holds := func(target string) bool { return target == c.Path || strings.HasPrefix(target, c.Path+"/") }
	return s.Workspace != nil && holds(s.Workspace.Target) ||
		slices.ContainsFunc(s.Mounts, func(mt Mount) bool { return holds(mt.Target) })
}
