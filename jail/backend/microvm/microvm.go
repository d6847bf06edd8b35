// Package microvm isolates jails in virtual machines, each with a kernel of its own.
//
// A machine is a process of QEMU with its machine type microvm: a processor, memory, disks and a
// port, and no devices of a personal computer. It boots a kernel of Debian's with an initial file
// system that this package makes. In it, package guest starts the jail's ordinary init, with the
// same limits, namespaces and filters as on a host, so two walls separate the jail from the host.
//
// The daemon reaches the guest only through the port. Everything that comes from it is untrusted.
// The host never mounts a file system that a guest has written, because its drivers trust their
// disks.
package microvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/host/netns"
	"glasshouse/host/probe"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
	"glasshouse/jail/rootfs"
)

// Config contains the paths of the backend. CgroupPrefix, Cache, Templates, Base and Guest are
// required.
type Config struct {
	QEMU         string       // path of QEMU; default: qemu-system-x86_64, looked up in PATH
	Firecracker  string       // path of Firecracker, which runs the machines instead of QEMU if it is set
	Kernels      []string     // directories with boot/vmlinuz-* and lib/modules/*; the first that has a suitable kernel is used
	Emulate      bool         // without KVM, emulate the processor, which is many times slower
	CgroupPrefix string       // one path element, unique to this daemon
	Cache        string       // initial file systems, and disks of root filesystems
	Templates    string       // formatted volumes that are copied
	Base         string       // lowest layer of every jail, created if missing
	NetnsDir     string       // directory of named network namespaces; default: /run/netns
	Transit      netip.Prefix // addresses of jails with full network; default: netns.Pool
	Log          *slog.Logger // default: discard

	Guest func() (path string, err error) // returns the path of glasshouse-guest
}

// A Backend runs jails in virtual machines. It implements jail.Backend.
type Backend struct {
	cfg   Config
	vmm   vmm
	other vmm // runs no machines, but an earlier daemon may have used it
	tree  func() (*cgroup.Tree, error)
	base  func() error
	kvm   func() error

	double bool // the program is a test double of Firecracker, which works without KVM

	hurry   cgroup.FastMoves
	modules sync.Map // results of findModules by directory

	views       views
	networks    base.Networks
	taps        base.ProbeResult // whether machines can have a network device
	fullNetwork base.ProbeResult // whether jails can have a network link

	rams      rams
	templates templates
	live      sync.Map // instances that are open, by the id of their jail
	readers   readers

	readerIdle time.Duration // after its last use, a reader ends
}

var (
	_ jail.Backend    = (*Backend)(nil)
	_ jail.Usable     = (*Backend)(nil)
	_ jail.FileServer = (*Backend)(nil)
	_ jail.Comparer   = (*Backend)(nil)
)

// New returns a backend. It does no I/O. Probe reports whether the backend works on this host.
func New(cfg Config) *Backend {
	cfg.QEMU = cmp.Or(cfg.QEMU, "qemu-system-x86_64")
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	b := &Backend{
		cfg:      cfg,
		networks: base.Networks{Dir: cmp.Or(cfg.NetnsDir, "/run/netns"), Pool: cfg.Transit, Tap: true},
		tree:     sync.OnceValues(func() (*cgroup.Tree, error) { return cgroup.New(cfg.CgroupPrefix) }),
		base:     sync.OnceValue(func() error { return rootfs.Base(cfg.Base) }),
		kvm:      sync.OnceValue(func() error { return probe.KVM(context.Background()) }),

		readerIdle: time.Minute,
	}
	b.vmm, b.other = qemu{b}, firecracker{b, &programVersion{}}
	if cfg.Firecracker != "" {
		b.vmm, b.other = b.other, b.vmm
	}
	return b
}

// Probe implements jail.Backend.
func (b *Backend) Probe(context.Context) error { return b.Usable() }

// Usable implements jail.Usable.
func (b *Backend) Usable() error {
	const op = "microvm.Probe"
	if runtime.GOARCH != "amd64" {
		return fault.Cannot(op, "virtual machines are supported on amd64 only", "use the backend oci")
	}
	if os.Geteuid() != 0 {
		return fault.Cannot(op, "virtual machines need a daemon that runs as root", "run the daemon as root")
	}
	if err := b.vmm.usable(); err != nil {
		return err
	}
	if _, err := b.kernel(); err != nil {
		return err
	}
	if err := b.kvm(); err != nil && !b.cfg.Emulate {
		return &fault.Error{Op: op, Kind: fault.Unsupported, Err: fmt.Errorf("virtual machines need KVM: %s", base.Reason(err)),
			Remedy: cmp.Or(fault.RemedyOf(err), "use a host with KVM") + "; or set microvm.emulate, which is many times slower"}
	}
	if err := b.taps.Of(netns.ProbeTap); err != nil {
		return err
	}
	_, err := b.tree()
	return err
}

// emulates reports whether the processor of the machines is emulated.
func (b *Backend) emulates() bool { return b.kvm() != nil }

const writableMounts = "writable_mounts"

// Lacks implements jail.Backend.
func (b *Backend) Lacks() map[string]string {
	lacks := map[string]string{
		writableMounts: "a virtual machine does not share directories with its host; use a workspace",
		"enforcement":  "the policy does not decide about system calls in virtual machines yet; use the backend oci",
	}
	if tree, err := b.tree(); err == nil {
		maps.Copy(lacks, base.Lacks(tree))
		delete(lacks, "pids") // the guest's kernel limits them
	}
	if err := b.fullNetwork.Of(netns.ProbeFull); err != nil {
		lacks["network"] = base.Reason(err)
	}
	return lacks
}

// check returns an error for a plan that this backend cannot execute.
func (b *Backend) check(p jail.Plan, op string) error {
	if err := errors.Join(base.CheckPaths(p, op), base.CheckIDs(p, op), b.checkMonitor(p, op)); err != nil {
		return err
	}
	cannot := func(why string) error { return fault.Cannot(op, why, "use the backend oci") }
	maxDisks := b.vmm.maxDisks()
	switch lacks := b.Lacks(); {
	case len(p.Lower) == 0:
		return fault.Newf(fault.Invalid, op, string(p.ID), "the jail has no root filesystem")
	case len(p.Lower)+len(p.Mounts) > maxDisks:
		return cannot(fmt.Sprintf("a virtual machine can have at most %d layers and mounts, and this one needs %d", maxDisks, len(p.Lower)+len(p.Mounts)))
	case p.Network != jail.Isolated && lacks["network"] != "":
		return fault.Cannot(op, lacks["network"], "use the network mode isolated")
	case slices.ContainsFunc(p.Mounts, func(m jail.Mount) bool { return m.Write }):
		return cannot(lacks[writableMounts])
	case p.Enforce:
		return cannot(lacks["enforcement"])
	}
	return nil
}

// checkMonitor returns an error if the jail has a disk of the other monitor.
func (b *Backend) checkMonitor(p jail.Plan, op string) error {
	_, err := os.Lstat(b.other.volume(layout{p.Dir}))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return fault.Cannot(op, fmt.Sprintf("the jail has a disk of %s, and the daemon is configured to use %s", b.other.name(), b.vmm.name()),
		fmt.Sprintf("configure the daemon to use %s, and import the files of a snapshot if you want to change", b.other.name()))
}

// Mount implements jail.Backend. The host's kernel must not mount a file system that a guest has
// written. ServeFiles gives access to the files.
func (b *Backend) Mount(context.Context, jail.Plan) (string, func() error, error) {
	return "", nil, fault.Cannot("microvm.Mount", "the host does not mount the files of virtual machines", "use glasshouse cp")
}

// A layout contains the paths of a jail's resources in its directory.
type layout struct{ dir string }

// workspace is the disk with the workspace at the last start of the jail.
func (l layout) workspace() string { return filepath.Join(l.dir, "workspace.img") }

// workspaceFiles has the files of the workspace while they are copied.
func (l layout) workspaceFiles() string { return l.workspace() + ".files" }

// secrets exists while the jail may have secrets.
func (l layout) secrets() string { return filepath.Join(l.dir, "secrets") }

func (l layout) record() string { return filepath.Join(l.dir, "machine.json") }

// identity exists for a moment, while the layer with the host name is made.
func (l layout) identity() string { return filepath.Join(l.dir, "identity") }

// sockets is only for the daemon.
func (l layout) sockets() string { return filepath.Join(l.dir, "ctl") }
func (l layout) init() string    { return filepath.Join(l.sockets(), "init.sock") } // of this package, to the guest's init
func (l layout) port() string    { return filepath.Join(l.sockets(), "port.sock") } // of QEMU
func (l layout) monitor() string { return filepath.Join(l.sockets(), "qmp.sock") }  // of QEMU

// bootTime limits the boot of a machine and the start of its jail.
const bootTime = 30 * time.Second

// patience returns a time limit for a guest: six times as long if its processor is emulated.
func (b *Backend) patience(limit time.Duration) time.Duration {
	if b.emulates() {
		return 6 * limit
	}
	return limit
}
