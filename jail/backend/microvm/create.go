package microvm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/host/netns"
	"glasshouse/internal/dirs"
	"glasshouse/internal/procstat"
	"glasshouse/internal/text"
	"glasshouse/internal/undo"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
	"glasshouse/jail/guest/wire"
)

// A record describes a machine for a later daemon.
type record struct {
	procstat.Identity
}

// Create implements jail.Backend.
func (b *Backend) Create(ctx context.Context, p jail.Plan) (jail.Instance, error) {
	const op = "microvm.Create"
	if err := b.check(p, op); err != nil {
		return nil, err
	}
	i, err := b.create(ctx, p, op, nil)
	if err != nil {
		return nil, fmt.Errorf("create jail %s: %w", p.ID, err)
	}
	return i, nil
}

// create starts a machine from a template or, if the template is damaged, boots it.
func (b *Backend) create(ctx context.Context, p jail.Plan, op string, r *reading) (*instance, error) {
	i, err := b.launch(ctx, p, op, nil, r)
	if e, ok := errors.AsType[*templateError](err); ok && ctx.Err() == nil {
		b.cfg.Log.Warn("the template of a virtual machine cannot be restored, and a new one is made", "err", err)
		if err := e.template.remove(); err != nil {
			return nil, err
		}
		return b.launch(ctx, p, op, nil, r)
	}
	return i, err
}

// A templateError is the failure to restore a machine from a template.
type templateError struct {
	template template
	error
}

func (e *templateError) Unwrap() error { return e.error }

// launch starts a machine, which boots or, with a source, is restored. It serves files if r is set.
func (b *Backend) launch(ctx context.Context, p jail.Plan, op string, from *source, r *reading) (_ *instance, err error) {
	defer b.hurry.Begin()()
	var u undo.Stack
	defer func() {
		if err != nil {
			err = errors.Join(err, u.Run())
		}
	}()
	defer fault.Recover(&err)
	l := layout{p.Dir}
	tree, err := b.tree()
	if err != nil {
		return nil, err
	}
	if r == nil {
		if err := b.endReader(ctx, p); err != nil {
			return nil, err
		}
	}
	if err := base.CheckAlone(tree, p, op); err != nil {
		return nil, err
	}
	if err := base.RemoveSealedVolume(p, b.volume(p)); err != nil {
		return nil, err
	}
	for _, name := range []string{b.volume(p), l.workspace()} {
		if _, err := os.Lstat(name); errors.Is(err, fs.ErrNotExist) {
			u.Push("remove the disk", func() error { return os.RemoveAll(name) })
		}
	}
	u.Push("end the machine", func() error { return b.release(context.WithoutCancel(ctx), p) })
	if err := b.makeVolume(ctx, p); err != nil {
		return nil, err
	}
	if r == nil {
		if err := prepareWorkspace(ctx, p, from); err != nil {
			return nil, err
		}
	}
	if _, err := b.networks.Create(ctx, p); err != nil {
		return nil, err
	}
	if err := dirs.Empty(l.sockets()); err != nil {
		return nil, err
	}
	if err := os.Chmod(l.sockets(), 0o700); err != nil {
		return nil, err
	}
	mounts, err := b.makeMounts(ctx, p, from, op)
	if err != nil {
		return nil, err
	}
	t := template{done: func() {}}
	if from == nil {
		t, from, err = b.template(ctx, p, r)
		if err != nil {
			return nil, err
		}
	}
	defer t.done()
	m, setup, err := b.newMachine(ctx, p, from, r)
	if err != nil {
		return nil, err
	}
	defer m.close()
	setup.Mounts = mounts
	group, err := tree.Create(string(p.ID), cgroup.Limits{
		CPUShares: p.Limits.CPUShares, MemoryBytes: ramSize(p) + machineMemory, PIDs: machineTasks,
	})
	if err != nil {
		return nil, err
	}
	made, err := b.start(m, p, group, r != nil)
	if err != nil {
		return nil, err
	}
	output := made.output
	defer output.Close()
	who, err := procstat.Identify(made.pid)
	if err != nil {
		return nil, fmt.Errorf("the monitor exited at once%s", lastLines(base.OutputText(output)))
	}
	if err := base.WriteRecord(l.record(), record{who}); err != nil {
		return nil, err
	}
	i, err := b.open(p, who, group)
	if err != nil {
		return nil, fmt.Errorf("%w%s", err, lastLines(base.OutputText(output)))
	}
	u.Push("close the instance", i.Close)
	if from != nil {
		err = i.await(ctx, "restored", func(ctx context.Context) error { return i.load(ctx, m, from) })
		if err != nil && from.boots && !made.wasKilled(i.ended()) {
			err = &templateError{t, err}
		}
	}
	if err == nil && (from == nil || from.boots) {
		err = i.await(ctx, "booted", func(ctx context.Context) error {
			if from == nil {
				if err := b.vmm.start(ctx, i, m, nil); err != nil {
					return err
				}
			}
			if t.make {
				if err := t.save(ctx, i); err != nil {
					b.cfg.Log.Warn("the next virtual machine boots, too", "err", err)
				}
			}
			t.done()
			return i.setUp(ctx, setup)
		})
		if from != nil && r == nil && errors.Is(err, fault.Unavailable) && !made.wasKilled(i.ended()) { // its kernel does not run; that of a reader may have a damaged disk
			err = &templateError{t, err}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("start the virtual machine: %w%s", err, lastLines(base.OutputText(output)))
	}
	u.Keep()
	return i, nil
}

// lastLines returns the end of the output of a machine, which is untrusted, for an error message.
func lastLines(output string) string {
	const most = 2000
	if output == "" {
		return ""
	}
	return "\nend of its console:\n" + text.ForTerminal(text.Suffix(output, most))
}

// open returns the instance of a machine that runs.
func (b *Backend) open(p jail.Plan, who procstat.Identity, group *cgroup.Cgroup) (*instance, error) {
	l := layout{p.Dir}
	pidfd, err := base.OpenProcess(who.PID)
	if err != nil {
		return nil, fmt.Errorf("the virtual machine has ended: %w", err)
	}
	// The pidfd is open, so the pid cannot be reused without this check noticing it.
	if now, err := procstat.Identify(who.PID); err != nil || now != who {
		return nil, errors.Join(fmt.Errorf("the virtual machine, process %d, has ended", who.PID), pidfd.Close())
	}
	guest, err := openLink(func(ctx context.Context) (net.Conn, error) { return b.vmm.dial(ctx, l) }, l.init())
	if err != nil {
		return nil, errors.Join(err, pidfd.Close())
	}
	i := &instance{Init: base.Watch(p, l.init(), who.PID, pidfd), backend: b, plan: p, group: group, guest: guest}
	b.live.Store(p.ID, i)
	return i, nil
}

// await does what a starting machine is waited for. It fails early if the machine ends.
func (i *instance) await(ctx context.Context, what string, do func(ctx context.Context) error) error {
	patience := i.backend.patience(bootTime)
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("it has not %s within %v", what, patience))
	defer cancel()
	ctx, ended := context.WithCancelCause(ctx)
	defer ended(nil)
	go func() {
		select {
		case <-i.Done():
			ended(errors.New("it ended"))
		case <-ctx.Done():
		}
	}()
	if err := do(ctx); err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return nil
}

// setUp waits until the guest has booted, and starts its jail.
func (i *instance) setUp(ctx context.Context, s wire.Setup) error {
	var err error
	s.Resume, err = i.resume()
	if err != nil {
		return err
	}
	var none struct{}
	if err := i.guest.call(ctx, wire.SetupPath, s, &none); err != nil {
		return err
	}
	if s.Network.Connected {
		if err := netns.RaiseTap(i.backend.networks.Path(i.plan)); err != nil {
			return err
		}
	}
	return i.WaitReady(ctx)
}

// Open implements jail.Backend.
func (b *Backend) Open(ctx context.Context, p jail.Plan) (jail.Instance, error) {
	const op = "microvm.Open"
	if err := base.CheckPaths(p, op); err != nil {
		return nil, err
	}
	if err := b.checkMonitor(p, op); err != nil {
		return nil, err
	}
	var r record
	err := base.ReadRecord(layout{p.Dir}.record(), &r)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Newf(fault.NotFound, op, string(p.ID), "the virtual machine was not started")
	}
	if err != nil {
		return nil, fmt.Errorf("open jail %s: %w", p.ID, err)
	}
	tree, err := b.tree()
	if err != nil {
		return nil, err
	}
	group, err := tree.Open(string(p.ID))
	if err != nil {
		return nil, err // fault.NotFound if the jail has ended
	}
	i, err := b.open(p, r.Identity, group)
	if err != nil {
		return nil, fault.New(fault.NotFound, op, string(p.ID), err)
	}
	if err := i.completeFreeze(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open jail %s: %w", p.ID, err), i.Close())
	}
	return i, nil
}

// Clean implements jail.Backend.
func (b *Backend) Clean(ctx context.Context, p jail.Plan) error {
	if err := base.CheckPaths(p, "microvm.Clean"); err != nil {
		return err
	}
	return errors.Join(b.endReader(ctx, p), b.release(ctx, p))
}

// release ends a machine and removes what belongs to it, except its disk.
func (b *Backend) release(ctx context.Context, p jail.Plan) error {
	tree, err := b.tree()
	if err != nil {
		return err
	}
	if err := tree.Destroy(ctx, string(p.ID)); err != nil {
		return fmt.Errorf("clean jail %s: %w", p.ID, err)
	}
	if err := b.networks.Remove(p); err != nil {
		return fmt.Errorf("clean jail %s: %w", p.ID, err)
	}
	l := layout{p.Dir}
	return errors.Join(os.RemoveAll(l.sockets()), os.RemoveAll(l.record()), os.RemoveAll(l.secrets()), os.RemoveAll(l.identity()), removeMounts(p),
		os.RemoveAll(l.workspaceFiles()), os.RemoveAll(l.workspace()+partial))
}
