package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// Change is like Set, but for a cgroup with processes. It returns a fault.Conflict and changes
// nothing if the memory limit is below the usage after reclaim. It never causes a process to be
// killed.
func (c *Cgroup) Change(l Limits) error {
	if c.lacks["memory"] == "" && l.MemoryBytes > 0 {
		if err := c.shrink(l.MemoryBytes); err != nil {
			return err
		}
	}
	return c.Set(l)
}

// shrink reclaims memory until the processes use at most limit bytes, if possible.
//
// With cgroup v1 the kernel reclaims and rejects the limit if that is not enough. With cgroup
// v2 it would kill processes instead, so shrink lowers memory.high first, which only reclaims.
func (c *Cgroup) shrink(limit int64) error {
	if !c.v2 {
		return c.shrinkFirst(limit)
	}
	if has, err := c.number("memory.max"); err != nil || has <= limit {
		return err
	}
	// The kernel reclaims before this write returns (memory_high_write in mm/memcontrol.c), so
	// memory.current shows the result.
	if err := c.write("memory.high", strconv.FormatInt(limit, 10)); err != nil {
		return fmt.Errorf("reclaim memory: %w", err)
	}
	used, err := c.number("memory.current")
	if err == nil && used <= limit {
		// memory.high stays low until the new limit holds, which throttles the processes.
		err = c.write("memory.max", strconv.FormatInt(limit, 10))
	} else if err == nil {
		err = c.inUse(limit, used)
	}
	return errors.Join(err, c.write("memory.high", "max"))
}

func (c *Cgroup) shrinkFirst(limit int64) error {
	dir := c.v1["memory"]
	has, err := numberIn(dir, "memory.limit_in_bytes")
	if err != nil || has <= limit {
		return err
	}
	err = cgroups.WriteFile(dir, "memory.limit_in_bytes", strconv.FormatInt(limit, 10))
	// EBUSY: too little could be reclaimed (mem_cgroup_resize_max in mm/memcontrol.c).
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	used, err := numberIn(dir, "memory.usage_in_bytes")
	return errors.Join(err, c.inUse(limit, used))
}

func (c *Cgroup) inUse(limit, used int64) error {
	return &fault.Error{Op: "cgroup.Change", On: c.path, Kind: fault.Conflict,
		Err:    fmt.Errorf("cannot reduce the memory limit to %d MiB: %d MiB are in use", limit>>20, (used+1<<20-1)>>20),
		Remedy: "end processes in the jail, or choose a higher limit"}
}

// number reads a number of bytes. The value max exceeds all others.
func (c *Cgroup) number(file string) (int64, error) { return numberIn(c.unified, file) }

func numberIn(dir, file string) (int64, error) {
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(string(b))
	if text == "max" {
		return 1<<63 - 1, nil
	}
	return strconv.ParseInt(text, 10, 64)
}
