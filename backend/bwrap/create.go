package bwrap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/internal/dirs"
	"glasshouse/internal/undo"
	"glasshouse/jail"
	"glasshouse/jailinit/control"
	"glasshouse/rootfs"
)

// answerTime is how long an init may take to answer: it has to be loaded, and
// the machine may be busy.
const answerTime = 15 * time.Second

// Create implements jail.Backend. An empty Plan.Lower means the host's own tree.
func (b *Backend) Create(ctx context.Context, p jail.Plan) (_ jail.Instance, err error) {
	if err := b.check(p); err != nil {
		return nil, err
	}
	defer b.hurry.Begin()() // its first process will be moved
	var u undo.Stack
	defer func() {
		if err != nil {
			err = fmt.Errorf("create jail %s: %w", p.ID, errors.Join(err, u.Run()))
		}
	}()
	defer fault.Recover(&err)
	o, err := b.orders(p)
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
	u.Push("end it", func() error { return b.Clean(context.WithoutCancel(ctx), p) })
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
	u.Push("let go of it", i.Close)
	if err := r.write(l.record()); err != nil {
		return nil, err
	}
	if err := i.answer(ctx); err != nil {
		return nil, err
	}
	if err := o.sealControl(); err != nil {
		return nil, err
	}
	if p.Enforce {
		if err := i.enforce(ctx); err != nil {
			return nil, err
		}
	}
	u.Keep()
	return i, nil
}

// orders tells a stage everything about p.
func (b *Backend) orders(p jail.Plan) (orders, error) {
	who, err := b.ids()
	if err != nil {
		return orders{}, err
	}
	o := orders{Base: b.cfg.Base, Templates: b.cfg.Templates, Plan: p, Identity: who}
	if o.Plan.Hostname == "" {
		o.Plan.Hostname = string(p.ID)
	}
	if !b.groupCounts() && who.uncountable() == "" {
		o.Processes = p.Limits.MaxPIDs
	}
	return o, nil
}

// sharedLayers makes the layers that are not this jail's alone.
func (b *Backend) sharedLayers(o *orders) error {
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

// prepare makes the directories and read-only layers that are this jail's own.
func (b *Backend) prepare(o orders) error {
	l := layout{o.Plan.Dir}
	// A record says that a jail has been made; this one has not been yet.
	if err := os.RemoveAll(l.record()); err != nil {
		return err
	}
	if err := dirs.Make(l.volume()); err != nil {
		return err
	}
	if err := o.makeControl(); err != nil {
		return err
	}
	return rootfs.Identity(l.identity(), o.Plan.Hostname, "")
}

// makeControl makes the directory of init's socket, which is the jail's until
// init has made the socket. The jail gets a copy of init: as a user, who is the
// jail's root, the original would be its to change.
func (o *orders) makeControl() error {
	dir := layout{o.Plan.Dir}.control()
	if err := dirs.Empty(dir); err != nil {
		return err
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

// sealControl takes the directory of init's socket away from the jail: it can
// neither put another socket there, or a link to one of the host's, for the
// daemon to talk to, nor fill the host's disk through it. Without root the jail's
// root is the directory's owner, whatever we do; the daemon's side of the
// conversation trusts nothing it finds there.
func (o *orders) sealControl() error {
	if o.Identity.Kind != asRoot {
		return nil
	}
	l := layout{o.Plan.Dir}
	if err := os.Lchown(l.control(), 0, 0); err != nil {
		return err
	}
	st, err := os.Lstat(l.socket())
	if err != nil {
		return err
	}
	if st.Mode().Type() != fs.ModeSocket {
		return fault.Newf(fault.Denied, "bwrap.Create", l.socket(), "what init made is no socket")
	}
	return errors.Join(os.Lchown(l.socket(), 0, 0), os.Chmod(l.socket(), 0o600))
}

// groupCounts reports whether a cgroup holds the jail's number of processes.
func (b *Backend) groupCounts() bool {
	tree, err := b.tree()
	return err == nil && tree.Lacks()["pids"] == ""
}

// makeCgroup makes the jail's cgroup, or returns nil where we may not.
func (b *Backend) makeCgroup(p jail.Plan) (*cgroup.Cgroup, error) {
	tree, err := b.tree()
	if err != nil {
		return nil, nil
	}
	return tree.Create(string(p.ID), groupLimits(p.Limits))
}

// start starts the stages and bwrap and returns when the jail's init is about to
// run.
func (b *Backend) start(ctx context.Context, o orders, group *cgroup.Cgroup) (record, error) {
	s, err := b.startStage(stageLaunch, o)
	if err != nil {
		return record{}, err
	}
	defer s.end()
	ready, err := s.next(ctx)
	if err != nil {
		return record{}, err
	}
	if group != nil {
		if err := group.AddPID(ready.Ready); err != nil {
			return record{}, err
		}
	}
	if err := s.proceed(); err != nil {
		return record{}, err
	}
	started, err := s.next(ctx)
	if err != nil {
		return record{}, err
	}
	r, err := newRecord(started.Child, ready.Ready)
	if err != nil {
		return record{}, fmt.Errorf("init ended at once: %w%s", err, s.complaint())
	}
	return r, nil
}

// answer waits until init answers, or is gone.
func (i *instance) answer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	ctx, gone := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer gone(nil)
	watch.Go(func() {
		select {
		case <-i.done:
			gone(errors.New("init ended at once"))
		case <-ctx.Done():
		}
	})
	if _, err := control.Dial(i.layout.socket()).WaitReady(ctx); err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return nil
}
