package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// Events is the state of a cgroup and its descendants (cgroup.events).
type Events struct {
	Populated bool // some process is in it
	Frozen    bool // every process in it is frozen
}

// Events returns the cgroup v2 state of the cgroup. A cgroup that does not exist is empty and
// not frozen.
func (c *Cgroup) Events() (Events, error) {
	b, err := os.ReadFile(filepath.Join(c.unified, "cgroup.events"))
	if c.unified == "" || err != nil && gone(err) {
		return Events{}, nil
	}
	if err != nil {
		return Events{}, fmt.Errorf("read the events of cgroup %s: %w", c.path, err)
	}
	return parseEvents(string(b)), nil
}

func parseEvents(s string) (e Events) {
	for line := range strings.Lines(s) {
		switch strings.TrimSpace(line) {
		case "populated 1":
			e.Populated = true
		case "frozen 1":
			e.Frozen = true
		}
	}
	return e
}

// Wait waits until the cgroup v2 state satisfies until, or returns the cause of ctx. A removed
// cgroup counts as empty.
func (c *Cgroup) Wait(ctx context.Context, until func(Events) bool) error {
	f, err := os.Open(filepath.Join(c.unified, "cgroup.events"))
	if err != nil && gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("watch cgroup %s: %w", c.path, err)
	}
	defer f.Close()

	buf := make([]byte, 256)
	for timeout := 1; ; timeout = min(2*timeout, 20) {
		n, err := unix.Pread(int(f.Fd()), buf, 0) // reading also arms the poll
		if err == unix.ENODEV {
			return nil
		}
		if err != nil {
			return fmt.Errorf("watch cgroup %s: %w", c.path, err)
		}
		if until(parseEvents(string(buf[:n]))) {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// The kernel limits notifications to one per ten milliseconds
		// (CGROUP_FILE_NOTIFY_MIN_INTV in kernel/cgroup/cgroup.c). The timeout covers that and
		// ctx.
		fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLPRI}}
		if _, err := unix.Poll(fds, timeout); err != nil && err != unix.EINTR {
			return fmt.Errorf("watch cgroup %s: %w", c.path, err)
		}
	}
}

// Freeze freezes all processes of the cgroup and returns when all have stopped. If ctx ends
// first they are thawed.
func (c *Cgroup) Freeze(ctx context.Context) error {
	if why := c.lacks["freeze"]; why != "" {
		return fault.Cannot("cgroup.Freeze", why, "mount the cgroup2 filesystem")
	}
	if c.unified == "" {
		if err := c.manager.Freeze(cgroups.Frozen); err != nil {
			return fmt.Errorf("freeze cgroup %s: %w", c.path, err)
		}
		return nil
	}
	// A process that is in the cgroup in v1 only would continue to run.
	if err := c.gather(ctx); err != nil {
		return err
	}
	if err := c.write("cgroup.freeze", "1"); err != nil {
		return fmt.Errorf("freeze the cgroup: %w", err)
	}
	if err := c.Wait(ctx, func(e Events) bool { return e.Frozen }); err != nil {
		return errors.Join(fmt.Errorf("freeze cgroup %s: %w", c.path, err), c.write("cgroup.freeze", "0"))
	}
	return nil
}

// Thaw thaws the processes of the cgroup.
func (c *Cgroup) Thaw(ctx context.Context) error {
	if err := c.thawFirst(); err != nil {
		return err
	}
	if c.unified == "" {
		return nil
	}
	if err := c.write("cgroup.freeze", "0"); err != nil {
		return fmt.Errorf("thaw the cgroup: %w", err)
	}
	if err := c.Wait(ctx, func(e Events) bool { return !e.Frozen }); err != nil {
		return fmt.Errorf("thaw cgroup %s: %w", c.path, err)
	}
	return nil
}

// Frozen reports whether the cgroup is frozen.
func (c *Cgroup) Frozen() (bool, error) {
	if c.unified != "" {
		e, err := c.Events()
		if err != nil || e.Frozen || c.v2 {
			return e.Frozen, err
		}
	}
	if c.v1["freezer"] == "" {
		return false, nil
	}
	state, err := c.manager.GetFreezerState()
	if err != nil {
		return false, fmt.Errorf("read the state of cgroup %s: %w", c.path, err)
	}
	return state == cgroups.Frozen, nil
}

// thawFirst undoes a cgroup v1 freeze by this package or a runtime.
func (c *Cgroup) thawFirst() error {
	dir := c.v1["freezer"]
	if dir == "" || !exists(dir) {
		return nil
	}
	if err := c.manager.Freeze(cgroups.Thawed); err != nil && !gone(err) {
		return fmt.Errorf("thaw cgroup %s: %w", c.path, err)
	}
	return nil
}

func (c *Cgroup) write(file, value string) error {
	if err := cgroups.WriteFile(c.unified, file, value); err != nil {
		return fmt.Errorf("cgroup %s: %w", c.path, err)
	}
	return nil
}

// strays returns the processes that are in the cgroup in v1 but not in v2.
func (c *Cgroup) strays() ([]int, error) {
	if c.unified == "" || c.v2 {
		return nil, nil
	}
	in, err := cgroups.GetAllPids(c.unified)
	if err != nil && !gone(err) {
		return nil, fmt.Errorf("list the processes of cgroup %s: %w", c.path, err)
	}
	all, err := c.PIDs()
	return slices.DeleteFunc(all, func(pid int) bool { return slices.Contains(in, pid) }), err
}

// gather moves strays into the v2 cgroup until none is found, because they may fork while
// being moved.
func (c *Cgroup) gather(ctx context.Context) error {
	for {
		pids, err := c.strays()
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if err := c.JoinUnified(pid); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
		if ctx.Err() != nil {
			return fmt.Errorf("move the processes into cgroup %s: %w", c.path, context.Cause(ctx))
		}
	}
}

// Kill kills all processes of the cgroup and its descendants, even if frozen, and returns when
// they have exited. The cgroup is thawed afterwards.
func (c *Cgroup) Kill(ctx context.Context) error {
	for {
		left, err := c.Populated()
		if err != nil {
			return err
		}
		if !left {
			break
		}
		if ctx.Err() != nil {
			return fmt.Errorf("kill cgroup %s: %w", c.path, context.Cause(ctx))
		}
		if err := c.killOnce(); err != nil {
			return fmt.Errorf("kill cgroup %s: %w", c.path, err)
		}
		c.settle(ctx)
	}
	if c.unified != "" && exists(c.unified) {
		// A process that is moved to a frozen cgroup stops (cgroup-v2.rst), and Create reuses
		// an existing cgroup.
		if err := c.write("cgroup.freeze", "0"); err != nil && !gone(err) {
			return err
		}
	}
	return nil
}

// settle waits a moment for killed processes to exit.
func (c *Cgroup) settle(ctx context.Context) {
	if c.unified == "" {
		time.Sleep(2 * time.Millisecond)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	c.Wait(ctx, func(e Events) bool { return !e.Populated })
	if pids, _ := c.PIDs(); len(pids) > 0 {
		time.Sleep(2 * time.Millisecond)
	}
}

// killFile is the file that kills a whole cgroup. Tests remove it.
var killFile = "cgroup.kill"

// killOnce kills the current processes: with cgroup.kill if the kernel has it (Linux 5.14),
// otherwise one by one while they are frozen, so that none can fork.
func (c *Cgroup) killOnce() error {
	if c.unified != "" && c.write(killFile, "1") == nil {
		pids, err := c.strays()
		if err != nil {
			return err
		}
		return errors.Join(c.signal(pids), c.thawFirst())
	}
	if c.unified != "" {
		if err := c.write("cgroup.freeze", "1"); err != nil && !gone(err) {
			return err
		}
	} else if c.v1["freezer"] != "" {
		c.manager.Freeze(cgroups.Frozen) // best effort: processes that do not freeze are killed as well
	}
	pids, err := c.PIDs()
	if err != nil {
		return err
	}
	return errors.Join(c.signal(pids), c.thawFirst())
}

// signal kills processes. It opens a pidfd and then checks that the process is still in the
// cgroup, because its pid could have been reused.
func (c *Cgroup) signal(pids []int) error {
	held := map[int]int{}
	defer func() {
		for _, fd := range held {
			unix.Close(fd)
		}
	}()
	for _, pid := range pids {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			held[pid] = fd
		}
	}
	if len(held) == 0 {
		return nil
	}
	remaining, err := c.PIDs()
	if err != nil {
		return err
	}
	for _, pid := range remaining {
		fd, ok := held[pid]
		if !ok {
			continue
		}
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
			return fmt.Errorf("kill %d: %w", pid, err)
		}
	}
	return nil
}
