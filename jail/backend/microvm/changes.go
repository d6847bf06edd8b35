package microvm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/host/overlay"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/guest/wire"
)

// Limits of a comparison in a machine.
const (
	changesTime = time.Minute
	maxChanges  = 32 << 20 // bytes of the list
)

// Changes implements jail.Differ. The agent of a running jail compares its layers. Those of another
// jail are compared by a reader.
func (b *Backend) Changes(ctx context.Context, p jail.Plan, o jail.ChangesOptions) (changes []jail.Change, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("list the changes of jail %s: %w", p.ID, err)
		}
	}()
	if err := b.check(p, "microvm.Changes"); err != nil {
		return nil, err
	}
	i := b.liveInstance(p.ID)
	if i == nil {
		reader, done, err := b.useReader(ctx, p, false)
		if err != nil {
			return nil, err
		}
		changes, err := reader.changes(ctx, o, false)
		return changes, errors.Join(err, done())
	}
	frozen, err := i.group.Frozen()
	if err != nil {
		return nil, err
	}
	if frozen {
		return b.compare(ctx, nil, jail.Tree{Plan: p, Writable: true}, o)
	}
	changes, err = i.changes(ctx, o, false)
	if errors.Is(err, fault.TooLarge) { // another machine has the memory of the jail for that
		return nil, &fault.Error{Op: "microvm.Changes", On: string(p.ID), Kind: fault.TooLarge, Err: err, Remedy: "pause or stop the jail"}
	}
	return changes, err
}

// Compare implements jail.Comparer. A reader that has the disks of both jails compares them.
func (b *Backend) Compare(ctx context.Context, from, to jail.Tree, o jail.ChangesOptions) ([]jail.Change, error) {
	if err := errors.Join(b.check(from.Plan, "microvm.Compare"), b.check(to.Plan, "microvm.Compare")); err != nil {
		return nil, err
	}
	changes, err := b.compare(ctx, &from, to, o)
	if err != nil {
		return nil, fmt.Errorf("compare the files of jails %s and %s: %w", from.ID, to.ID, err)
	}
	return changes, nil
}

// liveInstance returns the instance of a jail that has not ended, or nil.
func (b *Backend) liveInstance(jid id.Jail) *instance {
	i, ok := b.live.Load(jid)
	if !ok || i.(*instance).ended() {
		return nil
	}
	return i.(*instance)
}

// compare lists the changes from one tree to another one or, without the first, all changes in that.
// It starts a reader, and ends it.
func (b *Backend) compare(ctx context.Context, from *jail.Tree, to jail.Tree, o jail.ChangesOptions) (changes []jail.Change, err error) {
	if from != nil && from.Writable {
		if err := b.endReader(ctx, from.Plan); err != nil { // it may write to the disk
			return nil, err
		}
	}
	r, unlock, err := b.readers.lock(ctx, to.ID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := b.endLocked(ctx, to.Plan, r); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.endLocked(context.WithoutCancel(ctx), to.Plan, r)) }()
	q := readerPlan(to.Plan, nil)
	if err := makeDir(q.Dir); err != nil {
		return nil, err
	}
	if err := shareWorkspace(ctx, to.Plan, q); err != nil {
		return nil, err
	}
	s := sides{backend: b}
	q.Sealed, err = s.add(ctx, to, filepath.Join(q.Dir, "now.img"))
	if err != nil {
		return nil, err
	}
	how := &reading{}
	if from != nil {
		other := q
		other.Dir, other.Limits = filepath.Join(q.Dir, "other"), from.Limits
		other.Sealed, err = s.add(ctx, *from, filepath.Join(q.Dir, "was.img"))
		if err == nil {
			err = makeDir(other.Dir)
		}
		if err == nil {
			err = b.makeVolume(ctx, other)
		}
		if err != nil {
			return nil, err
		}
		how.other = &other
	}
	if err := b.launchReader(ctx, q, r, false, how); err != nil {
		return nil, err
	}
	changes, err = r.inst.changes(ctx, o, how.other != nil)
	return changes, errors.Join(err, s.check())
}

// sides are the disks of a comparison.
type sides struct {
	backend *Backend
	frozen  []*instance // whose disks are read where they are
}

// add returns the images of a tree that nothing changes. It copies the writable layer of a jail that
// runs to the file copied.
func (s *sides) add(ctx context.Context, t jail.Tree, copied string) ([]string, error) {
	if !t.Writable {
		return t.Sealed, nil
	}
	i := s.backend.liveInstance(t.ID)
	if i == nil {
		return s.backend.images(t.Plan)
	}
	frozen, err := i.group.Frozen()
	if err != nil {
		return nil, err
	}
	if frozen {
		s.frozen = append(s.frozen, i)
		return s.backend.images(t.Plan)
	}
	if err := i.copyVolume(ctx, copied); err != nil {
		return nil, err
	}
	return append([]string{copied}, t.Sealed...), nil
}

// check returns an error if a jail was thawed while its disk was read.
func (s *sides) check() error {
	for _, i := range s.frozen {
		if frozen, err := i.group.Frozen(); err != nil || !frozen {
			return errors.Join(err, fault.Newf(fault.Conflict, "microvm.Compare", string(i.plan.ID), "the jail has continued while its files were read"))
		}
	}
	return nil
}

// copyVolume copies the writable layer of a running jail to a new file. The processors of the machine
// are stopped meanwhile, so the file system is as after a power failure, with all files of before.
func (i *instance) copyVolume(ctx context.Context, to string) (err error) {
	c, err := i.backend.beginCopy(i.plan, to)
	if e, ok := errors.AsType[*fault.Error](err); ok && e.Kind == fault.TooLarge {
		return &fault.Error{Op: e.Op, On: e.On, Kind: fault.Conflict, Err: fmt.Errorf("the jail runs, and its disk is too large to be copied: %w", e.Err),
			Remedy: "pause or stop the jail, or compare a snapshot of it"}
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	var none struct{}
	syncCtx, cancel := context.WithTimeout(ctx, i.backend.patience(freezeTime))
	defer cancel()
	if err := i.guest.call(syncCtx, wire.SyncPath, none, &none); err != nil {
		return err
	}
	return i.withMonitor(ctx, func(m monitor) error {
		i.pauses.Lock()
		defer i.pauses.Unlock()
		paused, err := m.paused()
		if err == nil && !paused {
			paused, err = i.group.Frozen()
		}
		if err != nil {
			return err
		}
		if paused {
			return fault.Newf(fault.Conflict, "microvm.Compare", string(i.plan.ID), "the jail was paused meanwhile")
		}
		return i.whileStopped(ctx, m, func() error { return c.Copy(ctx) })
	})
}

// whileStopped runs f while the processors of a machine that runs do not.
func (i *instance) whileStopped(ctx context.Context, m monitor, f func() error) error {
	err := m.stop()
	if err == nil {
		err = i.group.Freeze(ctx) // Firecracker does not stop the processors
	}
	if err == nil {
		err = f()
	}
	return errors.Join(err, i.group.Thaw(context.WithoutCancel(ctx)), m.cont())
}

// changes asks the agent for changes, within a time limit.
func (i *instance) changes(ctx context.Context, o jail.ChangesOptions, other bool) ([]jail.Change, error) {
	limit := i.backend.patience(changesTime)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the files were not compared within %v", limit))
	defer cancel()
	changes, err := i.guest.changes(ctx, wire.Changes{Other: other, Workspace: o.Workspace, Below: o.Below, Text: o.Text, After: o.After})
	if err != nil {
		return nil, errors.Join(context.Cause(ctx), err)
	}
	return changes, nil
}

// changes returns a list of changes from the agent, sorted by path.
func (l *link) changes(ctx context.Context, q wire.Changes) ([]jail.Change, error) {
	var changes guestChanges
	if err := l.callUpTo(ctx, wire.ChangesPath, q, &changes, maxChanges); err != nil {
		return nil, err
	}
	slices.SortFunc(changes, func(a, b jail.Change) int { return strings.Compare(a.Path, b.Path) })
	return changes, nil
}

// guestChanges are changes that a guest has sent. Each is checked when it is decoded, because empty
// ones need a hundred times as much memory as the text.
type guestChanges []jail.Change

// UnmarshalJSON implements json.Unmarshaler.
func (cs *guestChanges) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return errors.Join(err, errors.New("the changes are no list"))
	}
	for d.More() {
		var c jail.Change
		if err := d.Decode(&c); err != nil {
			return err
		}
		if err := checkChange(c); err != nil {
			return fmt.Errorf("invalid change: %w", err)
		}
		*cs = append(*cs, c)
	}
	return nil
}

// checkChange checks a change that a guest has sent.
func checkChange(c jail.Change) error {
	const modes = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky
	from := c.From
	if c.Kind != "renamed" && from == "" {
		from = c.Path
	}
	for _, name := range []string{c.Path, from} {
		if !path.IsAbs(name) || path.Clean(name) != name || name == "/" || strings.Contains(name, "\x00") {
			return fmt.Errorf("path %.100q", name)
		}
	}
	for _, w := range []struct {
		word string
		of   []string
	}{
		{c.Kind, []string{"added", "modified", "deleted", "metadata", "renamed"}},
		{c.Type, []string{"file", "dir", "symlink", "fifo", "socket", "char", "block"}},
		{c.NoDiff, []string{"", overlay.Binary, overlay.TooLarge, overlay.Moving, overlay.Later}},
	} {
		if !slices.Contains(w.of, w.word) {
			return fmt.Errorf("%.40q is not one of %q", w.word, w.of)
		}
	}
	for _, what := range c.What {
		if !slices.Contains([]string{"content", "mode", "owner", "times", "xattrs"}, what) {
			return fmt.Errorf("%.40q differs", what)
		}
	}
	if len(c.What) > 5 || c.Size < 0 || c.Mode&^modes != 0 {
		return fmt.Errorf("%d differences, size %d, mode %o", len(c.What), c.Size, c.Mode)
	}
	return nil
}
