package cgroup

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// KillAll ends the processes of all cgroups of the tree. It sends SIGTERM first and waits up to
// grace until each cgroup has only one process left: the first process of a pid namespace does
// not get that signal (pid_namespaces(7)), or ignores it.
func (t *Tree) KillAll(ctx context.Context, grace time.Duration) error {
	names, err := t.List()
	if err != nil {
		return err
	}
	var all []*Cgroup
	for _, name := range names {
		c, err := t.Open(name)
		if errors.Is(err, fault.NotFound) {
			continue // it was removed meanwhile
		}
		if err != nil {
			return err
		}
		all = append(all, c)
	}
	for _, c := range all {
		pids, err := c.PIDs()
		if err != nil {
			return err
		}
		for _, pid := range pids {
			unix.Kill(pid, unix.SIGTERM) // the process may have exited meanwhile
		}
	}
	for end := time.Now().Add(grace); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		left := 0
		for _, c := range all {
			pids, err := c.PIDs()
			if err != nil {
				return err
			}
			left = max(left, len(pids))
		}
		if left <= 1 {
			break
		}
	}
	var errs []error
	for _, c := range all {
		errs = append(errs, c.Kill(ctx))
	}
	return errors.Join(errs...)
}
