// Package oci isolates jails with an OCI runtime: runc, crun, or gVisor's runsc,
// through its command line.
//
// The runtime does one thing: it starts a jail's init in fresh namespaces. All
// that is to be shared or limited is made beforehand, by the packages below
// host, and handed over by name: a volume of fixed size that holds the writable
// layer, a root filesystem whose owners are shifted into the jail's range of
// ids, a network namespace, a cgroup with its limits set. Once init answers, the
// runtime's command line is not needed any more: commands go through init's
// socket, liveness through a descriptor of the process, freezing and killing
// through the cgroup.
//
// What a jail consists of on the host is named after it or lies under its
// directory, so Clean needs no memory of what Create did.
package oci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/host/criu"
	"glasshouse/host/disk"
	"glasshouse/host/netns"
	"glasshouse/host/overlay"
	"glasshouse/jail"
	"glasshouse/rootfs"
)

// Config says which runtime and where things are kept. Runtime, CgroupPrefix,
// RunDir, Templates and Base are needed.
type Config struct {
	Runtime      string       // runc, crun or runsc
	Path         string       // of its binary; default: Runtime, looked up in PATH
	CgroupPrefix string       // one path element, this daemon's alone
	RunDir       string       // what the runtimes note about their containers
	Templates    string       // formatted volumes to copy
	Base         string       // the lowest layer of every jail, made if missing
	CRIU         string       // of its binary; default: criu, looked up in PATH
	NetnsDir     string       // of named network namespaces; default: /run/netns
	Transit      netip.Prefix // addresses of jails with full network; default: netns.Pool
	Log          *slog.Logger // default: discard
}

// A Backend makes jails with one runtime. It implements jail.Backend.
type Backend struct {
	cfg    Config
	kind   kind
	path   string
	hybrid string // where the second generation of cgroups is, beside the first
	hidden string // a mount the runtime must not see
	log    *slog.Logger
	tree   func() (*cgroup.Tree, error)
	base   func() error
	criu   *criu.Tool

	released func() string // the date of the runtime's release, if it is gVisor's

	wired       verdict // whether jails can have a network with a wire
	checkpoints verdict // whether CRIU works
	tracks      verdict // whether it knows which memory was written to
	digests     sync.Map
	lazyFrom    int64
	servers     sync.Mutex // held while a server of memory is looked for, and started
	hurry       cgroup.Hurry

	// trace, if set, is told of each step of Create how long it took.
	trace func(step string, took time.Duration)
}

var _ jail.Backend = (*Backend)(nil)

// New returns a backend. It touches nothing; whether it can work, Probe tells.
func New(cfg Config) *Backend {
	if cfg.Path == "" {
		cfg.Path = cfg.Runtime
	}
	if cfg.NetnsDir == "" {
		cfg.NetnsDir = "/run/netns"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	b := &Backend{
		cfg:      cfg,
		lazyFrom: lazyFrom,
		kind:     kinds[cfg.Runtime],
		path:     cfg.Path,
		log:      cfg.Log,
		tree:     sync.OnceValues(func() (*cgroup.Tree, error) { return cgroup.New(cfg.CgroupPrefix) }),
	}
	b.criu = criu.New(cmp.Or(cfg.CRIU, "criu"), cfg.RunDir)
	b.released = sync.OnceValue(func() string { return sentryDate(b.path) })
	b.base = sync.OnceValue(func() error { return rootfs.Base(cfg.Base) })
	if isCgroup2(unifiedMount) {
		b.hybrid = unifiedMount
	}
	if b.kind.hide {
		b.hidden = b.hybrid
	}
	return b
}

// unifiedMount is where hosts with both generations of cgroups have the second.
const unifiedMount = "/sys/fs/cgroup/unified"

func isCgroup2(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// Probe implements jail.Backend.
func (b *Backend) Probe(ctx context.Context) error {
	const op = "oci.Probe"
	if b.kind.name == "" {
		return fault.Cannot(op, fmt.Sprintf("there is no runtime %q", b.cfg.Runtime), "use runc, crun or runsc")
	}
	if os.Geteuid() != 0 {
		return fault.Cannot(op, "making namespaces, mounts and cgroups for others needs root", "run the daemon as root, or use the backend bwrap")
	}
	if _, err := b.version(ctx); err != nil {
		return err
	}
	for _, probe := range []func() error{cgroup.Probe, disk.Probe, b.stacks, netns.Probe} {
		if err := probe(); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	return nil
}

// stacks tries overlays where jails are: the daemon's own files can be an overlay.
func (b *Backend) stacks() error { return overlay.ProbeIn(filepath.Dir(b.cfg.Base)) }

// Lacks implements jail.Backend.
func (b *Backend) Lacks() map[string]string {
	lacks := map[string]string{}
	if t, err := b.tree(); err == nil {
		for _, what := range []string{"cpu", "memory", "pids", "freeze"} {
			if why, ok := t.Lacks()[what]; ok {
				lacks[what] = why
			}
		}
	}
	if err := b.wired.of(netns.ProbeFull); err != nil {
		lacks["network"] = reason(err)
	}
	maps.Copy(lacks, b.kind.lacks)
	return lacks
}

// reason is err without the words that only say where it came from.
func reason(err error) string {
	if e, ok := errors.AsType[*fault.Error](err); ok && e.Err != nil {
		err = e.Err
	}
	return err.Error()
}

// check refuses a plan that makes no sense, before anything is done for it.
func (b *Backend) check(p jail.Plan, op string) error {
	if err := checkPlace(p, op); err != nil {
		return err
	}
	switch {
	case p.Runtime != "" && p.Runtime != b.kind.name:
		return fault.Fieldf(op, "runtime", "this backend is %s, not %s", b.kind.name, p.Runtime)
	case p.IDs.First == 0 || p.IDs.Count < 2 || p.IDs.First+p.IDs.Count < p.IDs.First:
		return fault.Newf(fault.Invalid, op, string(p.ID), "no range of ids: %+v", p.IDs)
	case p.Enforce && b.kind.sentry:
		return fault.Cannot(op, b.kind.lacks["enforcement"], "use runc or crun")
	case len(p.Lower) == 0:
		return fault.Newf(fault.Invalid, op, string(p.ID), "no lower layer")
	}
	if p.Network != jail.Isolated {
		if err := b.wired.of(netns.ProbeFull); err != nil {
			return fmt.Errorf("%s: network: %w", op, err)
		}
	}
	return p.CheckTargets()
}
