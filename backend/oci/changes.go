package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"glasshouse/host/disk"
	"glasshouse/host/overlay"
	"glasshouse/jail"
)

var _ jail.Differ = (*Backend)(nil)

// Changes implements jail.Differ.
func (b *Backend) Changes(ctx context.Context, p jail.Plan, o jail.ChangesOptions) (changes []jail.Change, err error) {
	const op = "oci.Changes"
	if err := checkPlace(p, op); err != nil {
		return nil, err
	}
	l := layout{p.Dir}
	release, err := showVolume(l)
	if err != nil {
		return nil, fmt.Errorf("compare files of %s: %w", p.ID, err)
	}
	defer func() { err = errors.Join(err, release()) }()

	upper, lower := l.upper(), append(append([]string(nil), p.Lower...), b.cfg.Base)
	if _, err := os.Stat(l.identity()); err == nil {
		lower = append([]string{l.identity()}, lower...)
	}
	if o.Workspace {
		upper, lower = l.wsUpper(), []string{p.Workspace.Source}
	}
	found, err := overlay.Diff(ctx, upper, lower, overlay.DiffOptions{
		Owners: !o.Workspace, // a workspace's owner is root in the jail
		Below:  o.Below, Text: o.Text, After: o.After,
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // never started
	}
	for _, c := range found {
		changes = append(changes, jail.Change(c))
	}
	return changes, err
}

// showVolume mounts the volume of a jail that is not live, until release. A
// live jail's is mounted already, and stays.
func showVolume(l layout) (release func() error, err error) {
	mounts, err := overlay.MountsBelow(l.dir)
	if err != nil {
		return nil, err
	}
	if len(mounts) > 0 {
		return func() error { return nil }, nil
	}
	if err := disk.Mount(l.image(), l.volume()); err != nil {
		return nil, errors.Join(err, releaseVolume(l))
	}
	return func() error { return releaseVolume(l) }, nil
}
