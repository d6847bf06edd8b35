package bwrap

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"glasshouse/internal/procstat"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
)

// findProcesses returns the identifiable processes of a jail: its stages, the outer bwrap, and
// all processes inside.
func findProcesses(p jail.Plan) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list the processes of the host: %w", err)
	}
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && pid != os.Getpid() && belongsTo(pid, p) {
			found = append(found, pid)
		}
	}
	return found, nil
}

// belongsTo reports whether a process is a stage, the bwrap or an inner process of jail p.
func belongsTo(pid int, p jail.Plan) bool {
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return false
	}
	args := strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
	switch {
	case args[0] == stageName && len(args) == 3 && args[2] == p.Dir:
		return true
	case args[0] == monitorName(p):
		return true
	}
	return isInside(pid, p)
}

// isInside reports whether a process is in a pid namespace and has the jail's control
// directory mounted. A process that cannot mount cannot fake this.
func isInside(pid int, p jail.Plan) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if pids, ok := strings.CutPrefix(line, "NSpid:"); ok && len(strings.Fields(pids)) < 2 {
			return false
		}
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return false
	}
	own := []byte("/" + string(p.ID) + "/" + filepath.Base(layout{p.Dir}.control()) + " /.glasshouse ")
	return bytes.Contains(mounts, own)
}

// killAll kills every process of a jail, in any phase of its creation.
//
// While killAll scans /proc, a process can start its successor and exit, and the scan can miss
// both. This can happen twice: launch starts enter and exits, and enter, as bwrap, starts the
// jail's init and exits if its report is not read. So a jail without a record of its init has
// ended when three consecutive scans find nothing.
func killAll(ctx context.Context, p jail.Plan) error {
	looks := 3
	r, err := readRecord(p)
	if err == nil {
		looks = 1
		if err := killRecorded(ctx, r); err != nil {
			return fmt.Errorf("kill init %d: %w", r.PID, err)
		}
	}
	for empty := 0; empty < looks; empty++ {
		pids, err := findProcesses(p)
		if err != nil {
			return err
		}
		for _, pid := range pids {
			empty = -1
			if err := killOne(ctx, pid, p); err != nil {
				return fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
	}
	return nil
}

// killRecorded kills the init of a record and waits until it has exited. The other processes
// of the jail end before it. A dying init can no longer be identified by isInside.
func killRecorded(ctx context.Context, r record) error {
	f, err := base.OpenProcess(r.PID)
	if err != nil {
		return nil // the process has exited
	}
	defer f.Close()
	now, err := procstat.Identify(r.PID)
	if err != nil || now != r.Identity {
		return nil // the pid was reused
	}
	return base.KillProcess(ctx, f)
}

func killOne(ctx context.Context, pid int, p jail.Plan) error {
	f, err := base.OpenProcess(pid)
	if err != nil {
		return nil // the process has exited
	}
	defer f.Close()
	if !belongsTo(pid, p) { // the pid cannot be reused while the pidfd is open and the process exists
		return nil
	}
	return base.KillProcess(ctx, f)
}

// A record describes a jail's init for a later daemon.
type record struct {
	procstat.Identity
	Monitor int `json:"monitor"` // the outer bwrap, init's parent
}

func readRecord(p jail.Plan) (r record, err error) {
	name := layout{p.Dir}.record()
	if err := base.ReadRecord(name, &r); err != nil {
		return record{}, err
	}
	if r.PID < 2 {
		return record{}, fmt.Errorf("%s is corrupt: pid %d", name, r.PID)
	}
	return r, nil
}
