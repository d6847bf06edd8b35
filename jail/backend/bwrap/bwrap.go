// Package bwrap isolates jails with bubblewrap, for hosts on which the user has no root.
//
// Bubblewrap creates namespaces and mounts, but it neither mounts overlays nor maps more than
// one id. So the daemon first starts its own executable as a stage process in a user namespace
// in which it is root. The stage mounts the overlay and executes bwrap, which does the rest
// and starts the jail's init. All mounts are in separate namespaces: when the jail's processes
// have exited, only its files remain on the host.
//
// The user that runs the daemon determines the ids of a jail on the host:
//
//   - root: the jail's range of ids, as in package oci. Layers are idmapped, the disk is a
//     volume of fixed size, and cgroups enforce limits.
//   - a user with subordinate ids (/etc/subuid): root in the jail is that user, and the other
//     ids of the jail are the subordinate ones.
//   - any other user: the jail has a single id, root, which is that user. Files of other owners
//     have the overflow id and can be read if they are world-readable.
//
// In the last two cases a process that escapes from its jail has the powers of the user. Only
// the namespaces and the system call filter prevent an escape. A user who has root should
// prefer the oci backend.
package bwrap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/host/disk"
	"glasshouse/host/overlay"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
	"glasshouse/jail/rootfs"
)

// Config contains the paths of the backend. CgroupPrefix, Base and, for root, Templates are
// required.
type Config struct {
	Path         string       // path of bwrap; default: looked up in PATH
	CgroupPrefix string       // one path element, unique to this daemon
	Templates    string       // formatted volumes that are copied
	Base         string       // lowest layer of every jail, created if missing
	Log          *slog.Logger // default: discard
}

// A Backend creates jails with bubblewrap. It implements jail.Backend and jail.Remover. The
// program must call Stage before anything else.
type Backend struct {
	cfg  Config
	ids  func() (identity, error)
	tree func() (*cgroup.Tree, error)
	base func() error

	hurry cgroup.FastMoves
}

var (
	_ jail.Backend = (*Backend)(nil)
	_ jail.Remover = (*Backend)(nil)
)

// New returns a backend. It does no I/O. Probe reports whether the backend works on this host.
func New(cfg Config) *Backend {
	if cfg.Path == "" {
		cfg.Path = "bwrap"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	b := &Backend{cfg: cfg, ids: sync.OnceValues(currentIdentity)}
	b.tree = sync.OnceValues(func() (*cgroup.Tree, error) { return newCgroupTree(cfg.CgroupPrefix) })
	b.base = sync.OnceValue(func() error { return rootfs.Base(cfg.Base) })
	return b
}

// Probe implements jail.Backend.
func (b *Backend) Probe(ctx context.Context) error {
	const op = "bwrap.Probe"
	path, err := exec.LookPath(b.cfg.Path)
	if err != nil {
		return fault.Cannot(op, "bwrap is not installed", "install the package bubblewrap")
	}
	if err := checkVersion(ctx, path); err != nil {
		return err
	}
	who, err := b.ids()
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if who.Kind == asRoot {
		if err := disk.Probe(); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		if err := overlay.ProbeIn(filepath.Dir(b.cfg.Base)); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	return b.probeNamespaces(ctx, path, who)
}

// checkVersion returns an error if bwrap lacks required options. The last of them was added in
// 0.7.0.
func checkVersion(ctx context.Context, path string) error {
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return fmt.Errorf("bwrap --version: %w", err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(out), "bubblewrap %d.%d", &major, &minor); err != nil {
		return fault.Cannot("bwrap.Probe", fmt.Sprintf("%s is not bubblewrap: its version is %.80q", path, out), "install the package bubblewrap")
	}
	if major == 0 && minor < 7 {
		return fault.Cannot("bwrap.Probe", strings.TrimSpace(string(out))+" is too old", "install bubblewrap 0.7 or newer")
	}
	return nil
}

// Lacks implements jail.Backend.
func (b *Backend) Lacks() map[string]string {
	lacks := map[string]string{
		"network": "bubblewrap can only give a jail the host's own network, with all its listeners; use the backend oci",
	}
	who, err := b.ids()
	if err != nil {
		return lacks
	}
	if who.Kind != asRoot {
		lacks["disk"] = "without root the backend has no volumes and no quotas: the jail can fill the filesystem that contains its files"
	}
	tree, err := b.tree()
	if err == nil {
		maps.Copy(lacks, base.Lacks(tree))
	} else {
		why := base.Reason(err)
		lacks["cpu"], lacks["memory"], lacks["pids"], lacks["freeze"] = why, why, why, why
	}
	if why, ok := lacks["pids"]; ok {
		delete(lacks, "pids")
		if more := who.whyNoPIDLimit(); more != "" {
			lacks["pids"] = why + "; " + more
		}
	}
	return lacks
}

// check validates a plan before anything is created.
func (b *Backend) check(p jail.Plan) error {
	const op = "bwrap.Create"
	if err := checkPaths(p, op); err != nil {
		return err
	}
	if p.Runtime != "" {
		return fault.Fieldf(op, "runtime", "bubblewrap is its own runtime; %s is one of the backend oci", p.Runtime)
	}
	if p.Network != jail.Isolated {
		return &fault.Error{Op: op, On: string(p.ID), Kind: fault.Unsupported, Field: "network", Err: errors.New(b.Lacks()["network"])}
	}
	if err := base.CheckIDs(p, op); err != nil {
		return err
	}
	return p.CheckTargets()
}

// checkPaths is like base.CheckPaths, but also requires that the directories are named after the
// jail, because isInside identifies the processes of a jail by that name.
func checkPaths(p jail.Plan, op string) error {
	if err := base.CheckPaths(p, op); err != nil {
		return err
	}
	if filepath.Base(p.Dir) != string(p.ID) {
		return fault.Newf(fault.Invalid, op, string(p.ID), "%q is not a valid jail directory", p.Dir)
	}
	return nil
}

// A layout contains the paths of a jail's resources in its directory.
type layout struct{ dir string }

func (l layout) image() string   { return filepath.Join(l.dir, "disk.img") } // only if the daemon runs as root
func (l layout) volume() string  { return filepath.Join(l.dir, "rootfs") }   // mount point of disk.img if the daemon runs as root
func (l layout) upper() string   { return filepath.Join(l.volume(), "upper") }
func (l layout) work() string    { return filepath.Join(l.volume(), "work") }
func (l layout) wsUpper() string { return filepath.Join(l.volume(), "ws-upper") }
func (l layout) wsWork() string  { return filepath.Join(l.volume(), "ws-work") }
func (l layout) merged() string  { return filepath.Join(l.volume(), "merged") }

// staged returns a mount point in the mount namespace of the stage.
func (l layout) staged(name string) string { return filepath.Join(l.volume(), "lower", name) }
func (l layout) layer(i int) string        { return l.staged(fmt.Sprintf("layer-%d", i)) }
func (l layout) bind(i int) string         { return l.staged(fmt.Sprintf("bind-%d", i)) }
func (l layout) workspace() string         { return l.staged("workspace") }

func (l layout) control() string  { return filepath.Join(l.dir, "ctl") }
func (l layout) socket() string   { return filepath.Join(l.control(), "init.sock") }
func (l layout) identity() string { return filepath.Join(l.dir, "identity") }
func (l layout) record() string   { return filepath.Join(l.dir, "bwrap.json") }

// lower returns the jail's read-only layers, topmost first: the identity layer, the layers of
// the plan, and the base layer with mount points.
func (o *stageRequest) lower() []string {
	layers := []string{layout{o.Plan.Dir}.identity()}
	if o.Host != "" {
		layers = append(layers, o.Host)
	}
	return append(append(layers, o.Plan.Lower...), o.Base)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
