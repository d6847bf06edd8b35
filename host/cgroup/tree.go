// Package cgroup manages the control groups of jails: limits, resource usage, freezing and
// killing all processes of a jail at the same time.
//
// Where all controllers are in cgroup v2, a jail has one directory. Where they are in cgroup
// v1, each hierarchy has a directory of the same name for the jail's limits. If cgroup v2 is
// mounted as well (a hybrid host), the jail also has a directory there, which identifies it
// for observers and freezes and kills it without the races of v1. Only hosts without cgroup v2
// use v1 for that.
//
// The package starts no goroutines and keeps no state: a cgroup is identified by its name.
package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

const mountpoint = "/sys/fs/cgroup"

// A Tree is a directory of cgroups one level below the root of each hierarchy or below a
// delegated cgroup. It is safe for concurrent use.
type Tree struct {
	prefix  string            // its path below each root
	unified string            // mount point of cgroup v2, "" if it is not mounted
	v2      bool              // cgroup v2 has the controllers
	roots   map[string]string // controller to the root of its hierarchy, cgroup v1 only
	lacks   map[string]string
}

// New returns the tree of the given name, one path element. It creates nothing. It returns
// fault.Unsupported if the host has no writable cgroups.
func New(prefix string) (*Tree, error) {
	if !plain(prefix) {
		return nil, fault.Newf(fault.Invalid, "cgroup.New", prefix, "not a plain name")
	}
	t := &Tree{prefix: prefix, lacks: map[string]string{}}
	switch {
	case cgroups.IsCgroup2UnifiedMode():
		t.unified, t.v2 = mountpoint, true
	case cgroups.IsCgroup2HybridMode():
		t.unified = mountpoint + "/unified"
	}
	if !t.v2 {
		if err := t.findHierarchies(); err != nil {
			return nil, err
		}
	}
	for _, root := range t.hierarchies() {
		// access(2) also fails, even for root, on a read-only mount (EROFS), which containers
		// often have.
		if err := unix.Access(root, unix.W_OK); err != nil {
			return nil, fault.Cannot("cgroup.New", fmt.Sprintf("%s is not writable: %v", root, err),
				"run the daemon as root, outside containers or in one with the host's cgroups mounted read-write")
		}
	}
	return t, t.findLacks()
}

// Probe returns nil if this process can create cgroups.
func Probe() error {
	_, err := New("glasshouse-probe")
	return err
}

// plain reports whether s is a valid name of a cgroup directory.
func plain(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\n")
}

// findHierarchies finds the hierarchies in which the library creates cgroups.
func (t *Tree) findHierarchies() error {
	m, err := t.manager("x")
	if err != nil {
		return fault.Cannot("cgroup.New", "no cgroups: "+err.Error(), "mount the cgroup2 filesystem on "+mountpoint)
	}
	t.roots = map[string]string{}
	for controller, path := range m.GetPaths() {
		if controller != "" {
			t.roots[controller] = strings.TrimSuffix(path, filepath.Join("/", t.prefix, "x"))
		}
	}
	if len(t.roots) == 0 {
		return fault.Cannot("cgroup.New", "no cgroup hierarchy is mounted", "mount the cgroup2 filesystem on "+mountpoint)
	}
	return nil
}

// hierarchies returns the roots of all hierarchies, each once.
func (t *Tree) hierarchies() []string {
	var roots []string
	for _, root := range t.roots {
		roots = append(roots, root)
	}
	if t.unified != "" {
		roots = append(roots, t.unified)
	}
	slices.Sort(roots)
	return slices.Compact(roots)
}

// findLacks determines what cgroups on this host cannot do.
func (t *Tree) findLacks() error {
	have := func(controller string) bool { return t.roots[controller] != "" }
	if t.v2 {
		// A cgroup gets only controllers that its parent can enable (cgroup.subtree_control in
		// Documentation/admin-guide/cgroup-v2.rst), so the parent of the tree decides.
		b, err := os.ReadFile(filepath.Join(t.unified, filepath.Dir(t.prefix), "cgroup.controllers"))
		if err != nil {
			return fmt.Errorf("read the cgroup controllers: %w", err)
		}
		names := strings.Fields(string(b))
		have = func(controller string) bool { return slices.Contains(names, controller) }
	}
	for controller, remedy := range map[string]string{
		"cpu":    "use a kernel with CONFIG_FAIR_GROUP_SCHED",
		"memory": "boot with cgroup_enable=memory",
		"pids":   "use a kernel with CONFIG_CGROUP_PIDS",
	} {
		if !have(controller) {
			t.lacks[controller] = "the cgroup controller " + controller + " is not available; " + remedy
		}
	}
	if t.unified == "" {
		t.lacks["identity"] = "no cgroup2 hierarchy is mounted; mount one on " + mountpoint + "/unified"
	}
	if t.unified == "" && !have("freezer") {
		t.lacks["freeze"] = "neither cgroup2 nor the freezer controller is mounted"
	}
	if mem := t.roots["memory"]; mem != "" && !exists(mem+"/"+memsw) && swapOn() {
		t.lacks["swap"] = "memory limits do not bound swap; boot with swapaccount=1, or without swap"
	}
	return nil
}

const memsw = "memory.memsw.limit_in_bytes"

func swapOn() bool {
	b, err := os.ReadFile("/proc/swaps")
	return err == nil && strings.Count(string(b), "\n") > 1 // the first line is a header
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Lacks returns the features that this host's cgroups lack ("cpu", "memory", "pids", "freeze",
// "identity", "swap"), each with reason and remedy. Limits that need a missing feature are
// ignored.
func (t *Tree) Lacks() map[string]string { return t.lacks }

// Create creates the empty cgroup name with the given limits. It reuses an existing empty cgroup
// and returns a fault.Conflict if it has processes.
func (t *Tree) Create(name string, limits Limits) (_ *Cgroup, err error) {
	c, err := t.cgroup(name)
	if err != nil {
		return nil, err
	}
	if busy, err := c.Populated(); err != nil || busy {
		return nil, errors.Join(err, fault.Newf(fault.Conflict, "cgroup.Create", c.path, "the cgroup has processes"))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.remove(context.Background()))
		}
	}()
	// For the pid -1 the library creates the directories and moves no process.
	if err := c.manager.Apply(-1); err != nil {
		return nil, fmt.Errorf("make cgroup %s: %w", c.path, err)
	}
	return c, c.Set(limits)
}

// Open returns the cgroup name, or fault.NotFound if it is in no hierarchy.
func (t *Tree) Open(name string) (*Cgroup, error) {
	c, err := t.cgroup(name)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(c.dirs, exists) {
		return nil, fault.Newf(fault.NotFound, "cgroup.Open", c.path, "no such cgroup")
	}
	return c, nil
}

// Destroy kills the processes of the cgroup name and removes it from every hierarchy. It does
// nothing if the cgroup does not exist.
func (t *Tree) Destroy(ctx context.Context, name string) error {
	c, err := t.cgroup(name)
	if err != nil {
		return err
	}
	return c.Destroy(ctx)
}

// List returns the names of the cgroups that are in any hierarchy, sorted.
func (t *Tree) List() ([]string, error) {
	var names []string
	for _, root := range t.hierarchies() {
		entries, err := os.ReadDir(filepath.Join(root, t.prefix))
		if err != nil && !gone(err) {
			return nil, fmt.Errorf("list cgroups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Remove removes the tree itself, or returns a fault.Conflict if it is not empty.
func (t *Tree) Remove() error {
	var errs []error
	for _, root := range t.hierarchies() {
		path := filepath.Join(root, t.prefix)
		err := unix.Rmdir(path)
		if err == unix.EBUSY || err == unix.ENOTEMPTY {
			err = fault.Newf(fault.Conflict, "cgroup.Remove", path, "the cgroup is not empty")
		}
		if err != nil && err != unix.ENOENT {
			errs = append(errs, fmt.Errorf("remove %s: %w", path, err))
		}
	}
	return errors.Join(errs...)
}

// gone reports whether err means that a cgroup no longer exists.
func gone(err error) bool {
	// ENODEV: the cgroup was removed while its file was open (fs/kernfs/file.c).
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}
