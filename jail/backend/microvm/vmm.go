package microvm

import (
	"context"
	"net"
	"os"

	"glasshouse/jail"
)

// A vmm is a kind of virtual machine monitor, the program that runs a machine.
type vmm interface {
	// name is the name of the monitor.
	name() string
	// usable returns an error if the monitor cannot run on this host.
	usable() error
	// program returns the name or path of the program, and devices of the host that it opens besides those of viewFiles.
	program() (name string, devices []string)
	// maxDisks is the number of read-only disks that a machine can have besides a workspace.
	maxDisks() int
	// modules are the kernel modules that a guest needs besides those of modules.
	modules() []string

	// The next five add to a machine what it consists of: begin before the disks, and one of the last
	// two after them. A machine that is restored has the same disks, in the same order, as the one
	// that was saved. All machines have a network device, so one template serves all network modes. That of
	// an isolated jail is never connected.
	begin(m *machine, p jail.Plan) error
	addDisk(m *machine, p jail.Plan, name string, f *os.File) error     // read-only; m closes f
	addVolume(m *machine, p jail.Plan, name string, of jail.Plan) error // the writable layer of a jail
	addBoot(m *machine, p jail.Plan) error
	addSource(m *machine, p jail.Plan, from *source) error

	// openMemory opens the memory in a snapshot, for source.ram. The caller calls done when the monitor has opened it,
	// also more than once.
	openMemory(image string, size int64) (f *os.File, done func(), err error)
	// start configures a monitor that was started. A machine without a source boots then. One with a
	// source is loaded, and its processors do not run.
	start(ctx context.Context, i *instance, m *machine, from *source) error
	// dial connects to the port of the agent. The error errNotListening means that the agent may listen later.
	dial(ctx context.Context, l layout) (net.Conn, error)
	// control connects to a monitor that has a machine. The connection ends with ctx.
	control(ctx context.Context, l layout) (monitor, error)

	volumes
}

// A monitor is a connection to the monitor of a machine. A guest can have taken over the monitor, so
// answers are limited.
type monitor interface {
	close() error
	// version returns the name and the version of the monitor: a state can be loaded only by the same.
	version() string
	// paused reports whether the processors are stopped.
	paused() (bool, error)
	// stop stops the processors of a machine that is frozen next.
	stop() error
	// cont lets the processors run.
	cont() error
	// save stops the processors and writes the state of the devices and the memory to new files. The
	// daemon has disconnected from the guest: what it sends could otherwise reach the memory, but not
	// the state of the devices.
	save(ctx context.Context, pid int, size int64, devices, memory string) error
}

// volumes are operations on the writable layers of jails. Sealed layers have the format qcow2.
type volumes interface {
	// volume returns the name of the writable layer in a layout.
	volume(l layout) string
	// createVolume writes a writable layer to an empty file.
	createVolume(ctx context.Context, f *os.File, p jail.Plan) error
	// volumeSize returns the size of the disk.
	volumeSize(f *os.File) (int64, error)
	// sealVolume makes the writable layer of a stopped jail also the sealed layer to. The name of the
	// writable layer remains.
	sealVolume(ctx context.Context, p jail.Plan, to string) error
	// copyVolume writes the sealed layer of a writable layer to an empty file.
	copyVolume(ctx context.Context, to, from *os.File) error
	// clones reports whether copyVolume takes no time in a directory.
	clones(dir string) bool
}
