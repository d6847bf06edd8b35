package microvm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/host/disk"
	"glasshouse/internal/dirs"
	"glasshouse/internal/procstat"
	"glasshouse/internal/text"
	"glasshouse/internal/undo"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
	"glasshouse/jail/guest/wire"
	"glasshouse/jail/rootfs"
)

// A record describes a machine for a later daemon.
type record struct {
	procstat.Identity
}

// Create implements jail.Backend.
func (b *Backend) Create(ctx context.Context, p jail.Plan) (_ jail.Instance, err error) {
	const op = "microvm.Create"
	if err := b.check(p, op); err != nil {
		return nil, err
	}
	if p.Hostname == "" {
		p.Hostname = string(p.ID)
	}
	defer b.hurry.Begin()()
	var u undo.Stack
	defer func() {
		if err != nil {
			err = fmt.Errorf("create jail %s: %w", p.ID, errors.Join(err, u.Run()))
		}
	}()
	defer fault.Recover(&err)
	l := layout{p.Dir}
	tree, err := b.tree()
	if err != nil {
		return nil, err
	}
	if err := base.CheckAlone(tree, p, op); err != nil {
		return nil, err
	}
	if _, err := os.Lstat(l.volume()); errors.Is(err, fs.ErrNotExist) {
		u.Push("remove the volume", func() error { return os.RemoveAll(l.volume()) })
	}
	u.Push("end the machine", func() error { return b.Clean(context.WithoutCancel(ctx), p) })
	if err := disk.Create(ctx, l.volume(), p.Limits.DiskMB, b.cfg.Templates); err != nil {
		return nil, err
	}
	if err := dirs.Empty(l.sockets()); err != nil {
		return nil, err
	}
	if err := os.Chmod(l.sockets(), 0o700); err != nil {
		return nil, err
	}
	m, setup, err := b.newMachine(ctx, p)
	if err != nil {
		return nil, err
	}
	defer m.close()
	if err := b.describe(&setup, p); err != nil {
		return nil, err
	}
	group, err := tree.Create(string(p.ID), cgroup.Limits{
		CPUShares: p.Limits.CPUShares, MemoryBytes: p.Limits.MemoryMB<<20 + guestMemory + machineMemory, PIDs: machineTasks,
	})
	if err != nil {
		return nil, err
	}
	cmd, output, err := b.start(m, p, group)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	who, err := procstat.Identify(cmd.Process.Pid)
	if err != nil {
		return nil, fmt.Errorf("QEMU exited at once%s", lastLines(base.OutputText(output)))
	}
	if err := base.WriteRecord(l.record(), record{who}); err != nil {
		return nil, err
	}
	i, err := b.open(p, who, group)
	if err != nil {
		return nil, fmt.Errorf("%w%s", err, lastLines(base.OutputText(output)))
	}
	u.Push("close the instance", i.Close)
	if err := i.bootAndSetUp(ctx, setup, b.bootTime()); err != nil {
		return nil, fmt.Errorf("start the virtual machine: %w%s", err, lastLines(base.OutputText(output)))
	}
	u.Keep()
	return i, nil
}

// describe adds the layers to a setup that are no disks.
func (b *Backend) describe(s *wire.Setup, p jail.Plan) error {
	if err := b.base(); err != nil {
		return err
	}
	identity := filepath.Join(p.Dir, "identity")
	defer os.RemoveAll(identity)
	if err := rootfs.Identity(identity, p.Hostname, ""); err != nil {
		return err
	}
	var err, baseErr error
	s.Identity, err = inline(identity)
	s.Base, baseErr = inline(b.cfg.Base)
	return errors.Join(err, baseErr)
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
	guest, err := openLink(l.port(), l.init())
	if err != nil {
		return nil, errors.Join(err, pidfd.Close())
	}
	return &instance{Init: base.Watch(p, l.init(), who.PID, pidfd), backend: b, plan: p, group: group, guest: guest}, nil
}

// bootAndSetUp waits until the guest has booted, and starts its jail.
func (i *instance) bootAndSetUp(ctx context.Context, s wire.Setup, patience time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("it has not booted within %v", patience))
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
	s.Clock = time.Now()
	var none struct{}
	if err := i.guest.call(ctx, wire.SetupPath, s, &none); err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return i.WaitReady(ctx)
}

// Open implements jail.Backend.
func (b *Backend) Open(_ context.Context, p jail.Plan) (jail.Instance, error) {
	const op = "microvm.Open"
	if err := base.CheckPaths(p, op); err != nil {
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
	return i, nil
}

// Clean implements jail.Backend.
func (b *Backend) Clean(ctx context.Context, p jail.Plan) error {
	if err := base.CheckPaths(p, "microvm.Clean"); err != nil {
		return err
	}
	tree, err := b.tree()
	if err != nil {
		return err
	}
	if err := tree.Destroy(ctx, string(p.ID)); err != nil {
		return fmt.Errorf("clean jail %s: %w", p.ID, err)
	}
	l := layout{p.Dir}
	return errors.Join(os.RemoveAll(l.sockets()), os.RemoveAll(l.record()), os.RemoveAll(filepath.Join(p.Dir, "identity")))
}
