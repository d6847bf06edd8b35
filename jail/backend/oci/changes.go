package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"glasshouse/fault"
	"glasshouse/host/disk"
	"glasshouse/host/overlay"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
)

var (
	_ jail.Differ   = (*Backend)(nil)
	_ jail.Comparer = (*Backend)(nil)
)

// Changes implements jail.Differ.
func (b *Backend) Changes(ctx context.Context, p jail.Plan, o jail.ChangesOptions) (changes []jail.Change, err error) {
	v := &views{opened: map[string]*os.File{}}
	defer func() { err = v.close(p, err) }()
	layers, err := v.layers(jail.Tree{Plan: p, Writable: true}, o.Workspace)
	if err != nil {
		return nil, err
	}
	was, now := overlay.Stack{Base: b.lowerLayers(p, o.Workspace)}, overlay.Stack{Base: b.lowerLayers(p, o.Workspace), Layers: layers}
	// The identity layer is above the sealed layers and hides parts of them. It existed before
	// the jail ran, so it is no change.
	if id := identity(p); id != nil && !o.Workspace {
		now.Layers = append(append(layers[:1:1], id...), layers[1:]...)
		was.Layers = id
	}
	return v.compare(ctx, was, now, o)
}

// Compare implements jail.Comparer.
func (b *Backend) Compare(ctx context.Context, from, to jail.Tree, o jail.ChangesOptions) (changes []jail.Change, err error) {
	v := &views{opened: map[string]*os.File{}}
	defer func() { err = v.close(to.Plan, err) }()
	was, err := v.layers(from, o.Workspace)
	if err != nil {
		return nil, fmt.Errorf("open the layers of jail %s: %w", from.ID, err)
	}
	now, err := v.layers(to, o.Workspace)
	if err != nil {
		return nil, fmt.Errorf("open the layers of jail %s: %w", to.ID, err)
	}
	// The host creates a different identity layer for each jail. Compare both over the same
	// one, because the difference is not made by the jails.
	base := b.lowerLayers(to.Plan, o.Workspace)
	if !o.Workspace {
		id := identity(to.Plan)
		if id == nil {
			id = identity(from.Plan)
		}
		base = append(id, base...)
	}
	return v.compare(ctx, overlay.Stack{Layers: was, Base: base}, overlay.Stack{Layers: now, Base: base}, o)
}

// lowerLayers returns the layers below everything that a jail wrote.
func (b *Backend) lowerLayers(p jail.Plan, workspace bool) []string {
	if workspace {
		return []string{p.Workspace.Source}
	}
	return append(p.Lower[:len(p.Lower):len(p.Lower)], b.cfg.Base)
}

// identity returns the identity layer of the jail if the jail is live.
func identity(p jail.Plan) []string {
	at := layout{p.Dir}.identity()
	if _, err := os.Stat(at); err != nil {
		return nil
	}
	return []string{at}
}

// views are the open layers of a comparison. Sealed volumes are mounted detached, so that no
// mount remains after a crash.
type views struct {
	opened  map[string]*os.File // volumes, by image
	release []func() error
}

func (v *views) close(p jail.Plan, err error) error {
	errs := []error{err}
	for _, f := range v.opened {
		errs = append(errs, f.Close())
	}
	for _, f := range v.release {
		errs = append(errs, f())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("compare files of %s: %w", p.ID, err)
	}
	return nil
}

// layers returns the layers that a jail wrote, topmost first. The first is the jail's own
// layer if the tree includes it, even if it is empty.
func (v *views) layers(t jail.Tree, workspace bool) ([]string, error) {
	if err := base.CheckPaths(t.Plan, "oci.Compare"); err != nil {
		return nil, err
	}
	l := layout{t.Dir}
	part := l.upper()
	if workspace {
		part = l.wsUpper()
	}
	var all []string
	if t.Writable {
		volume, err := v.volume(t.Plan, l)
		if err != nil {
			return nil, err
		}
		all = append(all, filepath.Join(volume, filepath.Base(part)))
	}
	for _, img := range t.Sealed {
		at, err := v.open(img)
		if err != nil {
			return nil, err
		}
		all = append(all, filepath.Join(at, filepath.Base(part)))
	}
	return all, nil
}

// open returns a path at which a volume without writers can be read.
func (v *views) open(img string) (string, error) {
	if v.opened[img] == nil {
		dir, err := disk.OpenSealed(img)
		if err != nil {
			return "", err
		}
		v.opened[img] = dir
	}
	return fmt.Sprintf("/proc/self/fd/%d", v.opened[img].Fd()), nil
}

// volume returns a path at which the jail's own volume can be read. The volume of a live jail
// is mounted. Other volumes are opened or, if they need repair after a crash, mounted. A jail
// whose volume was sealed has no own volume.
func (v *views) volume(p jail.Plan, l layout) (string, error) {
	mounts, err := overlay.MountsBelow(l.volume())
	if err != nil {
		return "", err
	}
	if len(mounts) > 0 {
		return l.volume(), nil
	}
	if err := base.RemoveSealedVolume(p, l.image()); err != nil {
		return "", err
	}
	at, err := v.open(l.image())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return l.volume(), nil // empty or missing
	case !errors.Is(err, fault.Conflict):
		return at, err
	}
	v.release = append(v.release, func() error { return releaseVolume(l) })
	return l.volume(), disk.Mount(l.image(), l.volume())
}

func (v *views) compare(ctx context.Context, was, now overlay.Stack, o jail.ChangesOptions) ([]jail.Change, error) {
	was.Layers, now.Layers = existing(was.Layers), existing(now.Layers)
	found, err := overlay.Compare(ctx, was, now, overlay.DiffOptions{
		Owners: !o.Workspace, // a workspace's owner is root in the jail
		Below:  o.Below, Text: o.Text, After: o.After,
	})
	var changes []jail.Change
	for _, c := range found {
		changes = append(changes, jail.Change(c))
	}
	return changes, err
}

// existing returns the layers that exist. A jail that never started, or has no workspace,
// lacks some.
func existing(layers []string) []string {
	var all []string
	for _, l := range layers {
		if _, err := os.Lstat(l); err == nil {
			all = append(all, l)
		}
	}
	return all
}
