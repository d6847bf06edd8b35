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

// A Change is one path that the layers a jail wrote hold against what lies under
// them, or one of two jails against the other.
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
	// Changes returns what the jail's own layer and the sealed ones below it
	// changed, sorted by path: below the workspace's target if o says so, else
	// in the root.
	Changes(ctx context.Context, p Plan, o ChangesOptions) ([]Change, error)
}

// A Tree is the files of a jail: as they are, or as a snapshot has them.
type Tree struct {
	Plan
	Own bool // with the jail's own layer; else what lies in sealed ones alone
}

// A Comparer is a Differ that can tell the files of two jails apart, live or not.
type Comparer interface {
	// Compare returns what has to change to come from one tree to the other,
	// sorted by path. Both stand on the same layers but for the sealed ones.
	Compare(ctx context.Context, from, to Tree, o ChangesOptions) ([]Change, error)
}

// A Moment is a jail as it is now or, if Was is set, as it was in a snapshot.
type Moment struct {
	ID  id.Jail
	Was *Jail
}

// Compare returns what differs between the files of two moments, of one jail or
// of two.
func (m *Manager) Compare(ctx context.Context, from, to Moment, o ChangesOptions) ([]Change, error) {
	const op = "jail.Compare"
	unlock, err := m.lockAll(ctx, op, from, to)
	if err != nil {
		return nil, err
	}
	defer unlock()
	a, err := m.moment(from, op)
	if err != nil {
		return nil, err
	}
	b, err := m.moment(to, op)
	if err != nil {
		return nil, err
	}
	if err := comparable(a.Spec, b.Spec, o); err != nil {
		return nil, fault.New(fault.Conflict, op, string(from.ID)+" and "+string(to.ID), err)
	}
	if !slices.Equal(a.Lower, b.Lower) && !o.Workspace {
		return nil, fault.Newf(fault.Conflict, op, string(from.ID)+" and "+string(to.ID), "they do not stand on the same root filesystem")
	}
	backend, err := m.backend(b.Spec)
	if err != nil {
		return nil, err
	}
	c, ok := backend.(Comparer)
	if !ok {
		return nil, fault.Cannot(op, "jails of the backend "+b.Spec.Backend+" cannot be compared", "make jails with --backend oci")
	}
	changes, err := c.Compare(ctx, Tree{m.plan(a), from.Was == nil}, Tree{m.plan(b), to.Was == nil}, o)
	if o.Workspace {
		return changes, err
	}
	return slices.DeleteFunc(changes, func(ch Change) bool { return b.Spec.madePlace(ch, "added") || a.Spec.madePlace(ch, "deleted") }), err
}

// comparable returns why what two jails did to their files cannot be compared.
func comparable(a, b Spec, o ChangesOptions) error {
	switch {
	case a.Backend != b.Backend:
		return fmt.Errorf("one is of the backend %s and the other of %s", a.Backend, b.Backend)
	case !o.Workspace:
		return nil
	case a.Workspace == nil || b.Workspace == nil:
		return errors.New("they do not both have a workspace")
	case a.Workspace.Source != b.Workspace.Source:
		return errors.New("their workspaces are not on the same directory")
	}
	return nil
}

// moment returns a jail as it is or was.
func (m *Manager) moment(at Moment, op string) (Jail, error) {
	if at.Was != nil {
		return *at.Was, nil
	}
	c, err := m.find(at.ID, op)
	if err != nil {
		return Jail{}, err
	}
	return *c.jail.Load(), nil
}

// lockAll takes the turns of those moments that are now. Whoever takes several
// takes them in this order.
func (m *Manager) lockAll(ctx context.Context, op string, all ...Moment) (unlock func(), err error) {
	var ids []id.Jail
	for _, at := range all {
		if at.Was == nil {
			ids = append(ids, at.ID)
		}
	}
	slices.Sort(ids)
	var held []func()
	unlock = func() {
		for _, f := range held {
			f()
		}
	}
	for _, jid := range slices.Compact(ids) {
		_, one, err := m.lock(ctx, jid, op)
		if err != nil {
			unlock()
			return nil, err
		}
		held = append(held, one)
	}
	return unlock, nil
}

// Changes returns what a jail changed in its root filesystem or its workspace.
func (m *Manager) Changes(ctx context.Context, jid id.Jail, o ChangesOptions) ([]Change, error) {
	const op = "jail.Changes"
	c, unlock, err := m.lock(ctx, jid, op)
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
	return slices.DeleteFunc(changes, func(c Change) bool { return j.Spec.madePlace(c, "added") }), err
}

// Where a jail reads that it is a branch, and how long that is at most: more is the
// jail's own.
const (
	noticeDir  = "/run/glasshouse"
	notice     = noticeDir + "/branch.json"
	noticeSize = 1 << 10
)

// madePlace reports whether a change of that kind is a directory that was made for
// the workspace, a mount or secrets to be shown on, or is the notice of a branch: none
// of the jail's doing.
func (s Spec) madePlace(c Change, kind string) bool {
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
