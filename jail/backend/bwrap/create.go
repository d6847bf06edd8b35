package bwrap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/internal/dirs"
	"glasshouse/internal/procstat"
	"glasshouse/internal/undo"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
	"glasshouse/jail/rootfs"
)

// Create implements jail.Backend. An empty Plan.Lower selects the host's own tree.
func (b *Backend) Create(ctx context.Context, p jail.Plan) (_ jail.Instance, err error) {
	if err := b.check(p); err != nil {
		return nil, err
	}
	defer b.hurry.Begin()() // its first process will be moved to another cgroup
	var u undo.Stack
	defer func() {
		if err != nil {
			err = fmt.Errorf("create jail %s: %w", p.ID, errors.Join(err, u.Run()))
		}
	}()
	defer fault.Recover(&err)
	o, err := b.newRequest(p)
	if err != nil {
		return nil, err
	}
	if o.Bwrap, err = exec.LookPath(b.cfg.Path); err != nil {
		return nil, fault.Cannot("bwrap.Create", "bwrap is not installed", "install the package bubblewrap")
	}
	if err := b.sharedLayers(&o); err != nil {
		return nil, err
	}
	l := layout{p.Dir}
	if !exists(l.volume()) {
		u.Push("remove its files", func() error { return b.removeVolume(context.Background(), o) })
	}
	u.Push("kill the jail", func() error { return b.Clean(context.WithoutCancel(ctx), p) })
	if err := b.prepare(o); err != nil {
		return nil, err
	}
	group, err := b.makeCgroup(p)
	if err != nil {
		return nil, err
	}
	r, err := b.start(ctx, o, group)
	if err != nil {
		return nil, err
	}
	i, err := b.newInstance(o, group, r)
	if err != nil {
		return nil, err
	}
	u.Push("close the instance", i.Close)
	if err := base.WriteRecord(l.record(), r); err != nil {
		return nil, err
	}
	if err := i.WaitReady(ctx); err != nil {
		return nil, err
	}
	if err := o.sealControl(); err != nil {
		return nil, err
	}
	if p.Enforce {
		if err := i.Enforce(ctx); err != nil {
			return nil, err
		}
	}
	u.Keep()
	return i, nil
}

// newRequest returns a stage request for p.
func (b *Backend) newRequest(p jail.Plan) (stageRequest, error) {
	who, err := b.ids()
	if err != nil {
		return stageRequest{}, fmt.Errorf("get the ids of the user: %w", err)
	}
	o := stageRequest{Base: b.cfg.Base, Templates: b.cfg.Templates, Plan: p, Identity: who}
	if o.Plan.Hostname == "" {
		o.Plan.Hostname = string(p.ID)
	}
	if !b.groupCounts() && who.whyNoPIDLimit() == "" {
		o.Processes = p.Limits.MaxPIDs
	}
	return o, nil
}

// sharedLayers creates the layers that jails share.
func (b *Backend) sharedLayers(o *stageRequest) error {
	if err := b.base(); err != nil {
		return err
	}
	if !hostTree(o.Plan) {
		return nil
	}
	var err error
	o.Host, err = makeHostTree(b.cfg.Base + "-host")
	return err
}

// prepare creates the directories and read-only layers of this jail.
func (b *Backend) prepare(o stageRequest) error {
	l := layout{o.Plan.Dir}
	// The existence of a record means that the jail was created, which is not yet the case.
	if err := os.RemoveAll(l.record()); err != nil {
		return fmt.Errorf("remove the earlier record: %w", err)
	}
	if err := dirs.Make(l.volume()); err != nil {
		return fmt.Errorf("make the directory of the volume: %w", err)
	}
	if err := o.makeControl(); err != nil {
		return err
	}
	return rootfs.Identity(l.identity(), o.Plan.Hostname, "")
}

// makeControl creates the directory of init's socket, which belongs to root in the jail until
// init has created the socket. The jail gets a copy of init: without root on the host, root in
// the jail could modify the original.
func (o *stageRequest) makeControl() error {
	dir := layout{o.Plan.Dir}.control()
	if err := dirs.Empty(dir); err != nil {
		return fmt.Errorf("empty the control directory: %w", err)
	}
	src, err := filepath.EvalSymlinks(o.Plan.Init)
	if err != nil {
		return fmt.Errorf("install init: %w", err)
	}
	if err := copyFile(src, filepath.Join(dir, "init"), 0o755); err != nil {
		return fmt.Errorf("install init: %w", err)
	}
	if o.Identity.Kind != asRoot {
		return os.Chmod(dir, 0o700)
	}
	first := int(o.Plan.IDs.First)
	return errors.Join(os.Chmod(dir, 0o711), os.Chown(dir, first, first))
}

// sealControl takes ownership of the directory of init's socket from the jail. Without root on the
// host, root in the jail always owns the directory. The daemon therefore trusts nothing that it
// finds there.
func (o *stageRequest) sealControl() error {
	if o.Identity.Kind != asRoot {
		return nil
	}
	return base.SealControl(layout{o.Plan.Dir}.socket(), "bwrap.Create")
}

// groupCounts reports whether a cgroup limits the jail's number of processes.
func (b *Backend) groupCounts() bool {
	tree, err := b.tree()
	return err == nil && tree.Lacks()["pids"] == ""
}

// makeCgroup creates the jail's cgroup, or returns nil if cgroups are not available.
func (b *Backend) makeCgroup(p jail.Plan) (*cgroup.Cgroup, error) {
	tree, err := b.tree()
	if err != nil {
		return nil, nil
	}
	return tree.Create(string(p.ID), groupLimits(p.Limits))
}

// start starts the stages and bwrap. It returns when the jail's init is about to run.
func (b *Backend) start(ctx context.Context, o stageRequest, group *cgroup.Cgroup) (record, error) {
	s, err := b.startStage(stageLaunch, o)
	if err != nil {
		return record{}, err
	}
	defer s.close()
	ready, err := s.next(ctx)
	if err != nil {
		return record{}, err
	}
	if group != nil {
		if err := group.AddPID(ready.Ready); err != nil {
			return record{}, err
		}
	}
	if err := s.startBwrap(); err != nil {
		return record{}, err
	}
	started, err := s.next(ctx)
	if err != nil {
		return record{}, err
	}
	r := record{Monitor: ready.Ready}
	r.Identity, err = procstat.Identify(started.Child)
	if err != nil {
		return record{}, fmt.Errorf("init exited immediately: %w%s", err, s.stderrText())
	}
	return r, nil
}
