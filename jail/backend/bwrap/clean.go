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

// Clean implements jail.Backend. All resources except files end with the processes and the
// cgroup of the jail.
func (b *Backend) Clean(ctx context.Context, p jail.Plan) error {
	if err := checkPaths(p, "bwrap.Clean"); err != nil {
		return err
	}
	l := layout{p.Dir}
	steps := []func() error{
		// Destroy the cgroup first, because a frozen process cannot be killed individually.
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
		return nil // no cgroup was created
	}
	return tree.Destroy(ctx, string(p.ID))
}

// patience is how long the release of a disk may take.
const patience = 5 * time.Second

// releaseVolume waits until the kernel has released the jail's disk, which happens when the
// last mount namespace with it has ended.
func releaseVolume(ctx context.Context, l layout) error {
	if !exists(l.image()) {
		return nil
	}
	for begin := time.Now(); ; {
		devices, err := disk.Leftovers(l.dir)
		if err != nil || len(devices) == 0 {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if time.Since(begin) > patience {
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

// Mount implements jail.Backend. A process that exists only for this purpose mounts the files
// in its mount namespace. They are accessed through its /proc/PID/root.
func (b *Backend) Mount(ctx context.Context, p jail.Plan) (dir string, unmount func() error, err error) {
	const op = "bwrap.Mount"
	if err := checkPaths(p, op); err != nil {
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
	o, err := b.newRequest(p)
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
		return errors.Join(s.close(), releaseVolume(context.Background(), l))
	}
	r, err := s.next(ctx)
	if err != nil {
		s.cmd.Process.Kill()
		s.close()
		return "", nil, errors.Join(err, releaseVolume(context.Background(), l))
	}
	return filepath.Join(fmt.Sprintf("/proc/%d/root", s.cmd.Process.Pid), r.Dir), unmount, nil
}

// Remove implements jail.Remover. Without root the daemon cannot remove the files of the
// jail's other users or unreadable directories, but root in the jail can.
func (b *Backend) Remove(ctx context.Context, p jail.Plan) error {
	if err := checkPaths(p, "bwrap.Remove"); err != nil {
		return err
	}
	o, err := b.newRequest(p)
	if err != nil {
		return err
	}
	if err := b.removeDir(ctx, o); err != nil {
		return fmt.Errorf("remove files of %s: %w", p.ID, err)
	}
	return nil
}

func (b *Backend) removeDir(ctx context.Context, o stageRequest) error {
	if !exists(o.Plan.Dir) {
		return nil
	}
	if o.Identity.Kind == asRoot || os.RemoveAll(o.Plan.Dir) == nil {
		return os.RemoveAll(o.Plan.Dir)
	}
	return b.run(ctx, stageRemove, o)
}

// removeVolume removes the writable layers of a jail whose creation failed.
func (b *Backend) removeVolume(ctx context.Context, o stageRequest) error {
	l := layout{o.Plan.Dir}
	if err := os.RemoveAll(l.image()); err != nil {
		return fmt.Errorf("remove the disk: %w", err)
	}
	o.Plan.Dir = l.volume()
	return b.removeDir(ctx, o)
}
