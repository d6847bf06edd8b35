// Package bwrap isolates jails with bubblewrap, for hosts where nobody is root.
//
// Bubblewrap makes namespaces and mounts but neither stacks layers nor knows
// other ids than one. So a stage of our own comes before it: the same
// executable, started again in a user namespace whose root it is, mounts the
// overlay and becomes bwrap, which does the rest and becomes the jail's init. All
// mounts are in namespaces of their own: when the jail's processes are gone, so
// is everything it had on the host but its files.
//
// What root in a jail is outside depends on who runs the daemon:
//
//   - root: the first id of the jail's range, as with package oci. Layers are
//     shown through id maps, the disk is a volume of fixed size, limits are held
//     by cgroups.
//   - a user with subordinate ids (/etc/subuid): that user; the other ids of the
//     jail are the subordinate ones.
//   - any other user: that user. The jail has a single id, root's. Files of other
//     owners show as nobody's and can be read if anybody can.
//
// In the latter two a process that broke out of its jail would have the user's
// own powers: nothing but the namespaces and the system call filter stand
// between. A user who has root should prefer the oci backend.
package bwrap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/host/disk"
	"glasshouse/host/overlay"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/rootfs"
)

// Config says where things are kept. CgroupPrefix, Base and, for root,
// Templates are needed.
type Config struct {
	Path         string       // of bwrap; default: looked up in PATH
	CgroupPrefix string       // one path element, this daemon's alone
	Templates    string       // formatted volumes to copy
	Base         string       // the lowest layer of every jail, made if missing
	Log          *slog.Logger // default: discard
}

// A Backend makes jails with bubblewrap. It implements jail.Backend and
// jail.Remover. The program it is part of must call Stage first of all.
type Backend struct {
	cfg  Config
	ids  func() (identity, error)
	tree func() (*cgroup.Tree, error)
	base func() error

	hurry cgroup.Hurry
}

var (
	_ jail.Backend = (*Backend)(nil)
	_ jail.Remover = (*Backend)(nil)
)

// New returns a backend. It touches nothing; whether it can work, Probe tells.
func New(cfg Config) *Backend {
	if cfg.Path == "" {
		cfg.Path = "bwrap"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	b := &Backend{cfg: cfg, ids: sync.OnceValues(ownIdentity)}
	b.tree = sync.OnceValues(func() (*cgroup.Tree, error) { return ownCgroups(cfg.CgroupPrefix) })
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
	return b.tryNamespaces(ctx, path, who)
}

// checkVersion refuses a bwrap that lacks options we need: 0.7.0 was the last to
// add one.
func checkVersion(ctx context.Context, path string) error {
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return fmt.Errorf("bwrap --version: %w", err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(out), "bubblewrap %d.%d", &major, &minor); err != nil {
		return fault.Cannot("bwrap.Probe", fmt.Sprintf("%s is not bubblewrap: it says %.80q", path, out), "install the package bubblewrap")
	}
	if major == 0 && minor < 7 {
		return fault.Cannot("bwrap.Probe", strings.TrimSpace(string(out))+" is too old", "install bubblewrap 0.7 or newer")
	}
	return nil
}

// Lacks implements jail.Backend.
func (b *Backend) Lacks() map[string]string {
	lacks := map[string]string{
		"network": "bubblewrap gives a jail no way out but the host's own network, with everything that listens there; use the backend oci",
	}
	who, err := b.ids()
	if err != nil {
		return lacks
	}
	if who.Kind != asRoot {
		lacks["disk"] = "without root there are no volumes and no quotas: the jail can fill the filesystem its files are on"
	}
	tree, err := b.tree()
	if err == nil {
		for _, what := range []string{"cpu", "memory", "pids", "freeze"} {
			if why, ok := tree.Lacks()[what]; ok {
				lacks[what] = why
			}
		}
	} else {
		why := reason(err)
		lacks["cpu"], lacks["memory"], lacks["pids"], lacks["freeze"] = why, why, why, why
	}
	if why, ok := lacks["pids"]; ok {
		delete(lacks, "pids")
		if more := who.uncountable(); more != "" {
			lacks["pids"] = why + "; " + more
		}
	}
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
func (b *Backend) check(p jail.Plan) error {
	const op = "bwrap.Create"
	if err := checkPlace(p, op); err != nil {
		return err
	}
	if p.Runtime != "" {
		return fault.Fieldf(op, "runtime", "bubblewrap is its own runtime; %s is one of the backend oci", p.Runtime)
	}
	if p.Network != jail.Isolated {
		return &fault.Error{Op: op, On: string(p.ID), Kind: fault.Unsupported, Field: "network", Err: errors.New(b.Lacks()["network"])}
	}
	if p.IDs.First == 0 || p.IDs.Count < 2 || p.IDs.First+p.IDs.Count < p.IDs.First {
		return fault.Newf(fault.Invalid, op, string(p.ID), "no range of ids: %+v", p.IDs)
	}
	return p.CheckTargets()
}

// checkPlace refuses names that do not come from us: everything on the host is
// found, and removed, by them.
func checkPlace(p jail.Plan, op string) error {
	if !id.Valid('j', string(p.ID)) {
		return fault.Newf(fault.Invalid, op, string(p.ID), "not a jail's name")
	}
	if !filepath.IsAbs(p.Dir) || filepath.Clean(p.Dir) != p.Dir || filepath.Base(p.Dir) != string(p.ID) {
		return fault.Newf(fault.Invalid, op, string(p.ID), "%q is not a jail's directory", p.Dir)
	}
	return nil
}

// layout is where a jail's parts lie under its directory.
type layout struct{ dir string }

func (l layout) image() string   { return filepath.Join(l.dir, "disk.img") } // as root
func (l layout) volume() string  { return filepath.Join(l.dir, "rootfs") }   // disk.img mounted, as root
func (l layout) upper() string   { return filepath.Join(l.volume(), "upper") }
func (l layout) work() string    { return filepath.Join(l.volume(), "work") }
func (l layout) wsUpper() string { return filepath.Join(l.volume(), "ws-upper") }
func (l layout) wsWork() string  { return filepath.Join(l.volume(), "ws-work") }
func (l layout) merged() string  { return filepath.Join(l.volume(), "merged") }

// staged are mountpoints of the stage's own mount namespace.
func (l layout) staged(name string) string { return filepath.Join(l.volume(), "lower", name) }
func (l layout) layer(i int) string        { return l.staged(fmt.Sprintf("layer-%d", i)) }
func (l layout) bind(i int) string         { return l.staged(fmt.Sprintf("bind-%d", i)) }
func (l layout) workspace() string         { return l.staged("workspace") }

func (l layout) control() string  { return filepath.Join(l.dir, "ctl") }
func (l layout) socket() string   { return filepath.Join(l.control(), "init.sock") }
func (l layout) identity() string { return filepath.Join(l.dir, "identity") }
func (l layout) record() string   { return filepath.Join(l.dir, "bwrap.json") }

// lower returns the jail's read-only layers, topmost first: its own, the plan's,
// and the mount points that every jail needs.
func (o *orders) lower() []string {
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
