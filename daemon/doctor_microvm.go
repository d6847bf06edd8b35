package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"glasshouse/api/wire"
	"glasshouse/host/probe"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/init/protocol"
	"glasshouse/jail/snapshot"
)

// TryMachines boots, snapshots, branches and rewinds jails in virtual machines, as a daemon with the
// configuration of d would, and returns what it found. It needs no running daemon and no network. d
// must not be open.
func (d *Daemon) TryMachines(ctx context.Context) (list []wire.Probe, err error) {
	c := NewConfig(os.Geteuid(), "")
	c.Data = filepath.Join(d.Config.Data, "doctor")
	c.Listen, c.Backend, c.Tools = "", "microvm", d.Config.Tools
	c.MicroVM = d.Config.MicroVM
	for _, dir := range d.Config.MicroVM.kernels(d.Config.Data) {
		if _, err := os.Stat(filepath.Join(dir, "boot")); err == nil && c.MicroVM.Kernel == "" {
			c.MicroVM.Kernel = dir
		}
	}
	c.Pool.Size, c.Snapshots.Copies, c.Log.Level = 0, 0, "error"
	c.Rootfs.Default = jail.Rootfs{Dir: filepath.Join(c.Data, "root")}
	// Both directories are passable for root in a jail, which is another user of the host.
	if err := errors.Join(os.MkdirAll(c.Data, 0o711), os.MkdirAll(filepath.Join(c.Rootfs.Default.Dir, "root"), 0o755)); err != nil {
		return nil, err
	}
	own := &Daemon{Config: c, Programs: d.Programs, Version: d.Version, LogTo: d.LogTo}
	if err := own.Open(ctx); err != nil {
		return nil, fmt.Errorf("prepare the attempt in %s: %w", c.Data, err)
	}
	t := trial{daemon: own}
	err = t.clear(ctx) // what an attempt has left that was killed
	if err == nil {
		err = t.run(ctx)
	}
	err = errors.Join(err, t.clear(context.WithoutCancel(ctx)), own.Close())
	if err == nil {
		err = os.RemoveAll(c.Data)
	}
	return t.list, err
}

// A trial tries virtual machines with a daemon of its own.
type trial struct {
	daemon *Daemon
	list   []wire.Probe
}

// clear deletes all jails and snapshots.
func (t *trial) clear(ctx context.Context) error {
	d := t.daemon
	jails, err := d.jails.List(ctx, jail.ListOptions{})
	for _, j := range jails {
		err = errors.Join(err, d.jails.Delete(ctx, j.ID))
	}
	snapshots, listErr := d.snapshots.List(ctx, snapshot.ListOptions{})
	err = errors.Join(err, listErr)
	for _, s := range snapshots {
		err = errors.Join(err, d.snapshots.Delete(ctx, s.ID))
	}
	return err
}

// step does one step, and adds its result with the time that it took. It reports whether the next
// step is possible.
func (t *trial) step(name string, do func() (detail string, err error)) bool {
	began := time.Now()
	detail, err := do()
	p := probeOf(name, err)
	p.Need = Required
	if err == nil {
		p.Detail = fmt.Sprintf("%.2f s", time.Since(began).Seconds())
		if detail != "" {
			p.Detail += ", " + detail
		}
	} else if p.Status == string(probe.Unknown) {
		p.Status = string(probe.Unsupported)
	}
	t.list = append(t.list, p)
	return err == nil
}

// Files of the first machine: on its disk, and in its memory.
const (
	diskMark   = "/root/mark"
	memoryMark = "/dev/shm/mark"
)

// run tries one thing after the other, until one does not work.
func (t *trial) run(ctx context.Context) error {
	d := t.daemon
	var source jail.Jail
	var taken snapshot.Snapshot
	var branches []jail.Jail
	create := func() (j jail.Jail, err error) {
		j, err = d.jails.Create(ctx, jail.Spec{Backend: "microvm", Limits: jail.Limits{MemoryMB: 64, DiskMB: 16}})
		if err == nil {
			j, err = d.jails.Start(ctx, j.ID)
		}
		return j, err
	}
	done := t.step("boot", func() (string, error) {
		var err error
		source, err = create()
		if err != nil {
			return "", err
		}
		version, err := t.read(ctx, source.ID, "/proc/sys/kernel/osrelease")
		return "Linux " + version, err
	}) && t.step("start from a template", func() (string, error) {
		j, err := create()
		if err != nil {
			return "", err
		}
		return "", errors.Join(t.differ(ctx, source.ID, j.ID), d.jails.Delete(ctx, j.ID))
	}) && t.step("snapshot", func() (string, error) {
		err := errors.Join(t.write(ctx, source.ID, diskMark, "before"), t.write(ctx, source.ID, memoryMark, "before"))
		if err != nil {
			return "", err
		}
		taken, err = d.snapshots.Take(ctx, source.ID, snapshot.TakeOptions{})
		return "", err
	}) && t.step("two branches", func() (string, error) {
		results, err := d.snapshots.Branch(ctx, taken.ID, 2, snapshot.Overrides{})
		if err != nil {
			return "", err
		}
		for _, r := range results {
			if r.Err != nil {
				return "", r.Err
			}
			branches = append(branches, r.Jail)
		}
		return "", nil
	}) && t.step("comparison", func() (string, error) {
		for _, b := range branches {
			if err := t.marked(ctx, b.ID, "before"); err != nil {
				return "", err
			}
		}
		return "", t.differ(ctx, source.ID, branches[0].ID, branches[1].ID)
	})
	if !done {
		return context.Cause(ctx)
	}
	t.step("rewind", func() (string, error) {
		err := errors.Join(t.write(ctx, source.ID, diskMark, "after"), t.write(ctx, source.ID, memoryMark, "after"))
		if err == nil {
			_, err = d.snapshots.Rewind(ctx, source.ID, taken.ID, jail.RewindOptions{})
		}
		if err != nil {
			return "", err
		}
		return "", t.marked(ctx, source.ID, "before")
	})
	return context.Cause(ctx)
}

// marked returns an error if a file of a jail has another content.
func (t *trial) marked(ctx context.Context, j id.Jail, want string) error {
	for _, name := range []string{diskMark, memoryMark} {
		got, err := t.read(ctx, j, name)
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%s of %s is %q, want %q", name, j, got, want)
		}
	}
	return nil
}

// maxLag is the largest acceptable difference of clocks. The time between the two readings counts, too.
const maxLag = 5 * time.Second

// differ returns an error if jails have the same random numbers, or one has a wrong clock or host name.
func (t *trial) differ(ctx context.Context, jails ...id.Jail) error {
	drawn := map[string]id.Jail{}
	for _, j := range jails {
		random, err := t.read(ctx, j, "/proc/sys/kernel/random/uuid")
		if err != nil {
			return err
		}
		if other, again := drawn[random]; again {
			return fmt.Errorf("%s and %s have drawn the same random number", other, j)
		}
		drawn[random] = j
		name, err := t.read(ctx, j, "/etc/hostname")
		if err != nil {
			return err
		}
		if name != string(j) {
			return fmt.Errorf("the host name of %s is %q", j, name)
		}
		if err := t.write(ctx, j, "/dev/shm/now", "now"); err != nil {
			return err
		}
		info, err := t.stat(ctx, j, "/dev/shm/now")
		if err != nil {
			return err
		}
		if lag := time.Since(info.MTime).Abs(); lag > maxLag {
			return fmt.Errorf("the clock of %s differs by %v from that of the host", j, lag)
		}
	}
	return nil
}

// with calls f with the files of a jail.
func (t *trial) with(ctx context.Context, j id.Jail, f func(jail.Files) error) error {
	files, err := t.daemon.jails.Files(ctx, j)
	if err != nil {
		return err
	}
	return errors.Join(f(files), files.Close())
}

func (t *trial) stat(ctx context.Context, j id.Jail, name string) (info protocol.FileInfo, err error) {
	err = t.with(ctx, j, func(f jail.Files) error {
		info, err = f.Stat(ctx, name)
		return err
	})
	return info, err
}

func (t *trial) write(ctx context.Context, j id.Jail, name, text string) error {
	return t.with(ctx, j, func(f jail.Files) error {
		_, err := f.Write(ctx, name, strings.NewReader(text), protocol.WriteOptions{})
		return err
	})
}

// read returns the content of a small file without its last newline.
func (t *trial) read(ctx context.Context, j id.Jail, name string) (text string, err error) {
	const most = 4 << 10
	err = t.with(ctx, j, func(f jail.Files) error {
		r, _, err := f.Read(ctx, name, 0, most)
		if err != nil {
			return err
		}
		data, err := io.ReadAll(r)
		text = strings.TrimSuffix(string(data), "\n")
		return errors.Join(err, r.Close())
	})
	if err != nil {
		return "", fmt.Errorf("read %s of %s: %w", name, j, err)
	}
	if text == "" {
		return "", fmt.Errorf("%s of %s is empty", name, j)
	}
	return text, nil
}
