package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/opencontainers/cgroups"
)

// Freezer returns the directory whose files freeze the cgroup.
func (c *Cgroup) Freezer() string {
	if c.unified != "" {
		return c.unified
	}
	return c.v1["freezer"]
}

// Born has start, called on this thread alone, start a process that is in the
// cgroup from its first moment in every hierarchy. In those of the first
// generation only a thread can lend that, so this one enters them meanwhile.
//
// It calls itself 0: a thread that moves itself alone has nobody to wait for, and
// since Linux 5.7 the kernel knows it by that. By its number it would wait for all
// processors, as for any other's move (see Hurry).
func (c *Cgroup) Born(attr *syscall.SysProcAttr, start func() error) (err error) {
	own, err := ownPaths()
	if err != nil {
		return err
	}
	self := []byte("0")
	for _, dir := range c.dirs {
		if dir == c.unified {
			continue
		}
		back, ok := c.own(own, dir)
		if !ok {
			return fmt.Errorf("cgroup %s: no way back from %s", c.path, dir)
		}
		// Whoever kills the cgroup while a thread of ours is in it kills us.
		defer func() { err = errors.Join(err, os.WriteFile(filepath.Join(back, "tasks"), self, 0)) }()
		if err := os.WriteFile(filepath.Join(dir, "tasks"), self, 0); err != nil {
			return fmt.Errorf("enter cgroup: %w", err)
		}
	}
	if c.unified == "" {
		return start()
	}
	dir, err := os.Open(c.unified)
	if err != nil {
		return err
	}
	defer dir.Close()
	attr.UseCgroupFD, attr.CgroupFD = true, int(dir.Fd())
	return start()
}

// FreezeSoon has every process of the cgroup stop when it next could run. Freeze
// waits for that.
func (c *Cgroup) FreezeSoon() error {
	file, value := "cgroup.freeze", "1"
	if c.unified == "" {
		file, value = "freezer.state", string(cgroups.Frozen)
	}
	if err := cgroups.WriteFile(c.Freezer(), file, value); err != nil {
		return fmt.Errorf("freeze cgroup %s: %w", c.path, err)
	}
	return nil
}

// Expel moves a process out of the cgroup, to where this process is, in the hierarchy
// by which the cgroup is frozen. In all others it stays: each move holds up the host's
// forks for a moment.
func (c *Cgroup) Expel(pid int) error {
	own, err := ownPaths()
	if err != nil {
		return err
	}
	back, ok := c.own(own, c.Freezer())
	if !ok {
		return fmt.Errorf("cgroup %s: no way back from %s", c.path, c.Freezer())
	}
	if err := os.WriteFile(filepath.Join(back, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
		return fmt.Errorf("take process %d out of cgroup %s: %w", pid, c.path, err)
	}
	return nil
}

// ownPaths returns this process's cgroups: by controller, "" for the second
// generation, the path below the hierarchy's root.
func ownPaths() (map[string]string, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("own cgroup: %w", err)
	}
	paths := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if parts := strings.SplitN(strings.TrimSpace(line), ":", 3); len(parts) == 3 {
			for controller := range strings.SplitSeq(parts[1], ",") {
				paths[controller] = parts[2]
			}
		}
	}
	return paths, nil
}

// own returns this process's cgroup in the hierarchy of which dir is one of the
// cgroup's directories.
func (c *Cgroup) own(paths map[string]string, dir string) (string, bool) {
	controller := ""
	for name, at := range c.v1 {
		if at == dir {
			controller = name
		}
	}
	path, ok := paths[controller]
	return filepath.Join(strings.TrimSuffix(dir, c.path), path), ok && (controller != "" || dir == c.unified)
}
