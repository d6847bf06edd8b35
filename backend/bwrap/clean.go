package bwrap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"glasshouse/fault"
	"glasshouse/host/disk"
	"glasshouse/internal/dirs"
	"glasshouse/jail"
)

// Clean implements jail.Backend. All that a jail has beside files ends with its
// processes and its cgroup.
func (b *Backend) Clean(ctx context.Context, p jail.Plan) error {
	if err := checkPlace(p, "bwrap.Clean"); err != nil {
		return err
	}
	l := layout{p.Dir}
	steps := []func() error{
		// A frozen process cannot be killed one by one.
		func() error { return b.destroyCgroup(ctx, p) },
		func() error { return killAll(ctx, p) },
		func() error { return b.destroyCgroup(ctx, p) },
		func() error { return releaseVolume(ctx, l) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("clean jail %s: %w", p.ID, err)
		}
	}
	var errs []error
	for _, name := range []string{l.control(), l.identity(), l.record()} {
		errs = append(errs, os.RemoveAll(name))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("clean jail %s: %w", p.ID, err)
	}
	return nil
}

func (b *Backend) destroyCgroup(ctx context.Context, p jail.Plan) error {
	tree, err := b.tree()
	if err != nil {
		return nil // none was made
	}
	return tree.Destroy(ctx, string(p.ID))
}

// releaseVolume waits until the kernel has let go of the jail's disk, which it
// does when the last mount namespace is gone that had it.
func releaseVolume(ctx context.Context, l layout) error {
	if !exists(l.image()) {
		return nil
	}
	for patience := 1000; ; patience-- {
		devices, err := disk.Leftovers(l.dir)
		if err != nil || len(devices) == 0 {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if patience == 0 {
			return fault.Newf(fault.Conflict, "bwrap.Clean", l.image(), "still in use through %v", devices)
		}
		for _, d := range devices {
			if err := disk.Detach(d); err != nil {
				return err
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Mount implements jail.Backend. The files are mounted in a namespace of a
// process that is there only for them, and seen through it.
func (b *Backend) Mount(ctx context.Context, p jail.Plan) (dir string, unmount func() error, err error) {
	const op = "bwrap.Mount"
	if err := checkPlace(p, op); err != nil {
		return "", nil, err
	}
	l := layout{p.Dir}
	if !exists(l.volume()) {
		return "", nil, fault.Newf(fault.NotFound, op, string(p.ID), "the jail has no files yet")
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("mount files of %s: %w", p.ID, err)
		}
	}()
	o, err := b.orders(p)
	if err != nil {
		return "", nil, err
	}
	o.Plan.Workspace, o.Plan.Mounts = nil, nil
	if err := errors.Join(b.sharedLayers(&o), dirs.Make(l.identity())); err != nil {
		return "", nil, err
	}
	s, err := b.startStage(stageHold, o)
	if err != nil {
		return "", nil, err
	}
	unmount = func() error {
		return errors.Join(s.end(), releaseVolume(context.Background(), l))
	}
	r, err := s.next(ctx)
	if err != nil {
		s.cmd.Process.Kill()
		s.end()
		return "", nil, errors.Join(err, releaseVolume(context.Background(), l))
	}
	return filepath.Join(fmt.Sprintf("/proc/%d/root", s.cmd.Process.Pid), r.Dir), unmount, nil
}

// Remove implements jail.Remover. Without root the files of a jail's other users
// are not the daemon's to remove, nor those that were made unreadable; the jail's
// root can.
func (b *Backend) Remove(ctx context.Context, p jail.Plan) error {
	if err := checkPlace(p, "bwrap.Remove"); err != nil {
		return err
	}
	o, err := b.orders(p)
	if err != nil {
		return err
	}
	if err := b.removeDir(ctx, o); err != nil {
		return fmt.Errorf("remove files of %s: %w", p.ID, err)
	}
	return nil
}

func (b *Backend) removeDir(ctx context.Context, o orders) error {
	if !exists(o.Plan.Dir) {
		return nil
	}
	if o.Identity.Kind == asRoot || os.RemoveAll(o.Plan.Dir) == nil {
		return os.RemoveAll(o.Plan.Dir)
	}
	return b.run(ctx, stageRemove, o)
}

// removeVolume removes the writable layers of a jail that was not made.
func (b *Backend) removeVolume(ctx context.Context, o orders) error {
	l := layout{o.Plan.Dir}
	if err := os.RemoveAll(l.image()); err != nil {
		return err
	}
	o.Plan.Dir = l.volume()
	return b.removeDir(ctx, o)
}
