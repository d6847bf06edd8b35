package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/cgroups"
)

// Freezer returns the directory whose files freeze the cgroup.
func (c *Cgroup) Freezer() string {
	if c.unified != "" {
		return c.unified
	}
	return c.v1["freezer"]
}

// First returns the cgroup's directories in the hierarchies of the first
// generation.
func (c *Cgroup) First() []string {
	var dirs []string
	for _, dir := range c.dirs {
		if dir != c.unified {
			dirs = append(dirs, dir)
		}
	}
	return dirs
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

// Expel moves a process out of the cgroup to where this process is, in every
// hierarchy.
func (c *Cgroup) Expel(pid int) error {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return fmt.Errorf("own cgroup: %w", err)
	}
	var errs []error
	for line := range strings.Lines(string(b)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		dir := c.unified
		if controller, _, _ := strings.Cut(parts[1], ","); controller != "" {
			dir = c.v1[controller]
		}
		if dir == "" {
			continue // not a hierarchy of ours
		}
		own := filepath.Join(strings.TrimSuffix(dir, c.path), parts[2], "cgroup.procs")
		errs = append(errs, os.WriteFile(own, []byte(strconv.Itoa(pid)), 0))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("take process %d out of cgroup %s: %w", pid, c.path, err)
	}
	return nil
}
