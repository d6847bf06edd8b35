package microvm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"glasshouse/fault"
	"glasshouse/jail"
)

var _ jail.Checkpointer = (*Backend)(nil)

// The images of a machine.
const (
	memoryFile  = "memory"    // the whole memory, with holes for zeros
	devicesFile = "devices"   // the state of the processors and devices, as the monitor writes it
	notesFile   = "jail.json" // notes

	workspaceFile = "workspace" // the disk with the workspace, if the jail has one
)

// maxDevices limits the size of the state of devices. It is a few hundred KiB.
const maxDevices = 16 << 20

// notes describe the machine, which a restored one must equal.
type notes struct {
	MemoryMB int64  `json:"memory_mb"` // of the jail, as the next two
	MaxPIDs  int64  `json:"max_pids"`
	DiskMB   int64  `json:"disk_mb"`
	RAM      int64  `json:"ram"`              // bytes of the machine
	Layers   int    `json:"layers"`           // disks with read-only layers
	Mounts   int    `json:"mounts,omitempty"` // disks with mounts
	Monitor  string `json:"monitor"`          // name and version; the format of the state depends on them
	QEMU     string `json:"qemu,omitempty"`   // only the version, in snapshots from before there was Monitor
	Emulated bool   `json:"emulated"`
	Devices  int    `json:"devices"` // deviceList
}

// CanCheckpoint implements jail.Checkpointer.
func (b *Backend) CanCheckpoint(context.Context) error {
	if why, lacking := b.Lacks()["freeze"]; lacking {
		return fault.Cannot("microvm.CanCheckpoint", why, "mount the cgroup2 filesystem")
	}
	return b.Usable()
}

// Dumpable implements jail.Checkpointer. The state of a machine contains that of all processes.
func (b *Backend) Dumpable(ctx context.Context, p jail.Plan, i jail.Instance) error {
	if _, ok := i.(*instance); !ok {
		return fault.Newf(fault.Invalid, "microvm.Dumpable", string(p.ID), "not a jail of this backend")
	}
	return b.CanCheckpoint(ctx)
}

// Stabilize implements jail.Checkpointer.
func (b *Backend) Stabilize(context.Context, jail.Plan, jail.Instance) error { return nil }

// Dump implements jail.Checkpointer.
func (b *Backend) Dump(ctx context.Context, p jail.Plan, i jail.Instance, dir string) (err error) {
	inst, ok := i.(*instance)
	if !ok {
		return fault.Newf(fault.Invalid, "microvm.Dump", string(p.ID), "not a jail of this backend")
	}
	n := notes{
		MemoryMB: p.Limits.MemoryMB, MaxPIDs: p.Limits.MaxPIDs, DiskMB: p.Limits.DiskMB, RAM: ramSize(p),
		Layers: len(p.Lower), Mounts: len(p.Mounts), Emulated: b.emulates(),
		Devices: deviceList,
	}
	resume := inst.guest.suspend()
	defer resume()
	err = inst.whileFrozen(ctx, func(m monitor) error {
		n.Monitor = m.version()
		return m.save(ctx, inst.PID(), n.RAM, filepath.Join(dir, devicesFile), filepath.Join(dir, memoryFile))
	})
	if err == nil && p.Workspace != nil {
		err = linkDisk(layout{p.Dir}.workspace(), filepath.Join(dir, workspaceFile))
	}
	if err == nil {
		err = saveMounts(p, dir)
	}
	if err == nil {
		err = writeNotes(dir, n)
	}
	if err != nil {
		return fmt.Errorf("checkpoint jail %s: %w", p.ID, err)
	}
	return context.Cause(ctx)
}

func writeNotes(dir string, n notes) error {
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, notesFile), text, 0o600)
}

// monitorTime limits what the monitor does while the processors of its machine are stopped.
const monitorTime = 30 * time.Second

// saveState copies the state of the devices, which a monitor has written, to a new file.
func saveState(to string, state *os.File) error {
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.NewSectionReader(state, 0, maxDevices))
	if err == nil && n == maxDevices {
		err = errors.New("it is too large")
	}
	return errors.Join(err, f.Close())
}

// whileFrozen lets the monitor run while the processors of its machine stand still.
func (i *instance) whileFrozen(ctx context.Context, f func(m monitor) error) (err error) {
	if err := i.group.Thaw(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, i.group.Freeze(context.WithoutCancel(ctx))) }()
	return i.withMonitor(ctx, f)
}

func (i *instance) withMonitor(ctx context.Context, f func(m monitor) error) error {
	ctx, cancel := context.WithTimeout(ctx, monitorTime)
	defer cancel()
	m, err := i.backend.vmm.control(ctx, layout{i.plan.Dir})
	if err != nil {
		return err
	}
	return errors.Join(f(m), m.close())
}

// Restore implements jail.Checkpointer.
func (b *Backend) Restore(ctx context.Context, p jail.Plan, dir string) (_ jail.Instance, err error) {
	const op = "microvm.Restore"
	if err := b.check(p, op); err != nil {
		return nil, err
	}
	n, err := readNotes(dir)
	if err != nil {
		return nil, fmt.Errorf("prepare the images in %s: %w", dir, err)
	}
	if err := b.fits(p, n, op); err != nil {
		return nil, err
	}
	ram, done, err := b.vmm.openMemory(filepath.Join(dir, memoryFile), n.RAM)
	if err != nil {
		return nil, err
	}
	defer done()
	state, err := readState(filepath.Join(dir, devicesFile))
	if err != nil {
		return nil, err
	}
	i, err := b.launch(ctx, p, op, &source{ram: ram, devices: state, monitor: n.Monitor, images: dir}, nil)
	if err != nil {
		return nil, fmt.Errorf("restore jail %s: %w", p.ID, err)
	}
	return i, nil
}

func readNotes(dir string) (n notes, err error) {
	text, err := os.ReadFile(filepath.Join(dir, notesFile))
	if err != nil {
		return n, err
	}
	if err := json.Unmarshal(text, &n); err != nil {
		return n, fmt.Errorf("decode %s: %w", notesFile, err)
	}
	if n.Monitor == "" && n.QEMU != "" {
		n.Monitor = qemu{}.name() + " " + n.QEMU
	}
	return n, nil
}

func readState(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	state, err := io.ReadAll(io.LimitReader(f, maxDevices))
	if err == nil && len(state) < 1<<10 {
		err = fmt.Errorf("%s has only %d bytes", name, len(state))
	}
	return state, err
}

// fits returns an error if the machine of a plan differs from that of a snapshot.
func (b *Backend) fits(p jail.Plan, n notes, op string) error {
	cannot := func(what string) error {
		return fault.Cannot(op, what, "export the files of the snapshot with --files-only, and import them")
	}
	switch {
	case n.RAM != ramSize(p), n.MemoryMB != p.Limits.MemoryMB, n.MaxPIDs != p.Limits.MaxPIDs, n.DiskMB != p.Limits.DiskMB:
		return fault.Cannot(op, fmt.Sprintf("the limits of a restored virtual machine cannot be changed: memory_mb is %d, max_pids is %d and disk_mb is %d", n.MemoryMB, n.MaxPIDs, n.DiskMB),
			"keep these limits of the snapshot")
	case n.Layers != len(p.Lower):
		return fault.Newf(fault.Invalid, op, string(p.ID), "the snapshot has %d layers below it, and the jail has %d", n.Layers, len(p.Lower))
	case n.Mounts != len(p.Mounts):
		return fault.Newf(fault.Invalid, op, string(p.ID), "the snapshot has %d mounts, and the jail has %d", n.Mounts, len(p.Mounts))
	case n.Devices != deviceList:
		return cannot("the snapshot is of another version of Glasshouse, whose machines have other devices")
	case n.Emulated != b.emulates():
		return cannot("a machine with an emulated processor cannot be continued with KVM, or the reverse")
	}
	return nil
}

// A source is what a machine is restored from.
type source struct {
	ram     *os.File
	devices []byte
	monitor string // name and version; "" is not checked
	images  string // directory with the disks of mounts and of the workspace
	boots   bool   // it is a template
}

// checkMonitor returns an error if the state is not that of this version of the monitor.
func (s *source) checkMonitor(version string) error {
	if s.monitor != "" && s.monitor != version {
		return fault.Cannot("microvm.Restore", fmt.Sprintf("the snapshot was taken with %s, and this is %s", s.monitor, version),
			"install that version, or export the files of the snapshot with --files-only and import them")
	}
	return nil
}

// load starts a restored machine. It is frozen afterwards, unless it was restored from a template.
func (i *instance) load(ctx context.Context, m *machine, from *source) error {
	if err := i.backend.vmm.start(ctx, i, m, from); err != nil {
		return err
	}
	if from.boots {
		return i.withMonitor(ctx, monitor.cont)
	}
	i.gate.set(true)
	return i.group.Freeze(ctx)
}
