// Package oci isolates jails with an OCI runtime (runc, crun, or runsc of gVisor), which it
// runs as a command.
//
// The runtime only starts the jail's init in new namespaces. The packages below host prepare
// everything that is shared or limited, and the runtime gets it by name: a volume of fixed
// size with the writable layer, a root filesystem whose owners are mapped to the jail's range
// of ids, a network namespace, and a cgroup with limits. After init has answered, the runtime
// command is not needed: commands use the socket of init, liveness uses a pidfd, freezing and
// killing use the cgroup.
//
// All host resources of a jail are named after it or are in its directory, so Clean needs no
// state of Create.
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
	"glasshouse/jail/backend/base"
	"glasshouse/jail/rootfs"
)

// Config selects the runtime and the directories. Runtime, CgroupPrefix, RunDir, Templates and
// Base are required.
type Config struct {
	Runtime      string       // runc, crun or runsc
	Path         string       // path of the runtime; default: Runtime, looked up in PATH
	CgroupPrefix string       // one path element, unique to this daemon
	RunDir       string       // state of the runtimes
	Templates    string       // formatted volumes that are copied
	Base         string       // lowest layer of every jail, created if missing
	CRIU         string       // path of CRIU; default: criu, looked up in PATH
	NetnsDir     string       // directory of named network namespaces; default: /run/netns
	Transit      netip.Prefix // addresses of jails with full network; default: netns.Pool
	Log          *slog.Logger // default: discard
}

// A Backend creates jails with one runtime. It implements jail.Backend.
type Backend struct {
	cfg    Config
	kind   kind
	path   string
	hybrid string // mount point of cgroup v2 on a hybrid host, or ""
	hidden string // a mount that is hidden from the runtime, or ""
	log    *slog.Logger
	tree   func() (*cgroup.Tree, error)
	base   func() error
	criu   *criu.Tool

	networks base.Networks

	releaseDate func() string // release date of runsc

	fullNetwork   base.ProbeResult // whether jails can have a network link
	checkpoints   base.ProbeResult // whether CRIU works
	dirtyTracking base.ProbeResult // whether CRIU supports dirty page tracking
	digests       sync.Map
	lazyThreshold int64
	servers       sync.Mutex // held while a page server is looked up or started
	hurry         cgroup.FastMoves

	// trace, if set, is called with the duration of each step of Create.
	trace func(step string, took time.Duration)
}

var _ jail.Backend = (*Backend)(nil)

// New returns a backend. It does no I/O. Probe reports whether the backend works on this host.
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
		cfg:           cfg,
		lazyThreshold: lazyThreshold,
		kind:          kinds[cfg.Runtime],
		path:          cfg.Path,
		log:           cfg.Log,
		networks:      base.Networks{Dir: cfg.NetnsDir, Pool: cfg.Transit},
		tree:          sync.OnceValues(func() (*cgroup.Tree, error) { return cgroup.New(cfg.CgroupPrefix) }),
	}
	b.criu = criu.New(cmp.Or(cfg.CRIU, "criu"), cfg.RunDir)
	b.releaseDate = sync.OnceValue(func() string { return sentryDate(b.path) })
	b.base = sync.OnceValue(func() error { return rootfs.Base(cfg.Base) })
	if isCgroup2(unifiedMount) {
		b.hybrid = unifiedMount
	}
	if b.kind.hideHybrid {
		b.hidden = b.hybrid
	}
	return b
}

// unifiedMount is the mount point of cgroup v2 on hosts that also use cgroup v1.
const unifiedMount = "/sys/fs/cgroup/unified"

func isCgroup2(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// Probe implements jail.Backend.
func (b *Backend) Probe(ctx context.Context) error {
	const op = "oci.Probe"
	if b.kind.name == "" {
		return fault.Cannot(op, fmt.Sprintf("unknown runtime %q", b.cfg.Runtime), "use runc, crun or runsc")
	}
	if os.Geteuid() != 0 {
		return fault.Cannot(op, "creating namespaces, mounts and cgroups for other users needs root", "run the daemon as root, or use the backend bwrap")
	}
	if _, err := b.version(ctx); err != nil {
		return err
	}
	for _, probe := range []func() error{cgroup.Probe, disk.Probe, b.probeOverlay, netns.Probe} {
		if err := probe(); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	return nil
}

// probeOverlay checks overlayfs in the filesystem of the jails. The files of the daemon itself
// can be on an overlay.
func (b *Backend) probeOverlay() error { return overlay.ProbeIn(filepath.Dir(b.cfg.Base)) }

// Lacks implements jail.Backend.
func (b *Backend) Lacks() map[string]string {
	lacks := map[string]string{}
	if t, err := b.tree(); err == nil {
		lacks = base.Lacks(t)
	}
	if err := b.fullNetwork.Of(netns.ProbeFull); err != nil {
		lacks["network"] = base.Reason(err)
	}
	maps.Copy(lacks, b.kind.lacks)
	return lacks
}

// check validates a plan before anything is created.
func (b *Backend) check(p jail.Plan, op string) error {
	if err := errors.Join(base.CheckPaths(p, op), base.CheckIDs(p, op)); err != nil {
		return err
	}
	switch {
	case p.Runtime != "" && p.Runtime != b.kind.name:
		return fault.Fieldf(op, "runtime", "this backend is %s, not %s", b.kind.name, p.Runtime)
	case p.Enforce && b.kind.sentry:
		return fault.Cannot(op, b.kind.lacks["enforcement"], "use runc or crun")
	case len(p.Lower) == 0:
		return fault.Newf(fault.Invalid, op, string(p.ID), "the jail has no lower layer")
	}
	if p.Network != jail.Isolated {
		if err := b.fullNetwork.Of(netns.ProbeFull); err != nil {
			return fmt.Errorf("%s: check the network: %w", op, err)
		}
	}
	return p.CheckTargets()
}
