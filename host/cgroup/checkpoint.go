package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
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

// StartIn calls start on this thread to start a process that is in the cgroup from its beginning,
// in every hierarchy. In cgroup v1 a child inherits the cgroup of the forking thread, so this
// thread enters the cgroup meanwhile.
//
// The thread writes 0 as its own id: since Linux 5.7 the kernel then does not take
// cgroup_threadgroup_rwsem (cgroup_procs_write_start in kernel/cgroup/cgroup.c). With its number
// it would wait for a grace period, as for the move of any other thread (see FastMoves).
func (c *Cgroup) StartIn(attr *syscall.SysProcAttr, start func() error) (err error) {
	runtime.LockOSThread() // otherwise the goroutine could leave the thread behind in the cgroup
	left := true
	defer func() {
		if left { // otherwise the thread ends with the goroutine
			runtime.UnlockOSThread()
		}
	}()
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
			return fmt.Errorf("cgroup %s: this process has no cgroup in the hierarchy of %s", c.path, dir)
		}
		// Leave the cgroup again: killing the cgroup while this thread is in it would kill the
		// daemon.
		defer func() {
			failure := os.WriteFile(filepath.Join(back, "tasks"), self, 0)
			left = left && failure == nil
			err = errors.Join(err, failure)
		}()
		if err := os.WriteFile(filepath.Join(dir, "tasks"), self, 0); err != nil {
			return fmt.Errorf("enter cgroup: %w", err)
		}
	}
	if c.unified == "" {
		return start()
	}
	dir, err := os.Open(c.unified)
	if err != nil {
		return fmt.Errorf("enter cgroup: %w", err)
	}
	defer dir.Close()
	// CLONE_INTO_CGROUP of clone3(2), since Linux 5.7. It exists only for cgroup v2.
	attr.UseCgroupFD, attr.CgroupFD = true, int(dir.Fd())
	return start()
}

// FreezeSoon starts to freeze the processes of the cgroup without waiting. Freeze waits.
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

// MoveOut moves a process to the cgroup of this process, in the hierarchy that freezes the
// cgroup. It stays in all others, because each move delays forks on the host for a moment.
func (c *Cgroup) MoveOut(pid int) error {
	own, err := ownPaths()
	if err != nil {
		return err
	}
	back, ok := c.own(own, c.Freezer())
	if !ok {
		return fmt.Errorf("cgroup %s: this process has no cgroup in the hierarchy of %s", c.path, c.Freezer())
	}
	if err := os.WriteFile(filepath.Join(back, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
		return fmt.Errorf("move process %d out of cgroup %s: %w", pid, c.path, err)
	}
	return nil
}

// ownPaths returns this process's cgroups: controller ("" for cgroup v2) to path below the
// root of the hierarchy.
func ownPaths() (map[string]string, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("read this process's cgroup: %w", err)
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

// own returns this process's cgroup in the hierarchy that contains dir.
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
