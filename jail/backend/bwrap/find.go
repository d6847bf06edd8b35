package bwrap

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/internal/atomicfile"
	"glasshouse/jail"
)

// findProcesses returns the identifiable processes of a jail: its stages, the outer bwrap, and
// all processes inside.
func findProcesses(p jail.Plan) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
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
	r, err := readRecord(layout{p.Dir}.record())
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
	f, err := openPID(r.PID)
	if err != nil {
		return nil // gone
	}
	defer f.Close()
	now, err := newRecord(r.PID, r.Monitor)
	if err != nil || now != r {
		return nil // the pid was reused
	}
	return killPidfd(ctx, f)
}

func killOne(ctx context.Context, pid int, p jail.Plan) error {
	f, err := openPID(pid)
	if err != nil {
		return nil // gone
	}
	defer f.Close()
	if !belongsTo(pid, p) { // the pid cannot be reused while the pidfd is open and the process exists
		return nil
	}
	return killPidfd(ctx, f)
}

// killPidfd kills a process and waits until it has exited.
func killPidfd(ctx context.Context, pidfd *os.File) error {
	err := unix.PidfdSendSignal(int(pidfd.Fd()), unix.SIGKILL, nil, 0)
	if err == unix.ESRCH {
		return nil
	}
	if err != nil {
		return err
	}
	return awaitExit(ctx, pidfd)
}

// awaitExit waits until a process has exited. The first process of a pid namespace exits after
// all others in it (pid_namespaces(7)).
func awaitExit(ctx context.Context, pidfd *os.File) error {
	for !exited(int(pidfd.Fd()), 20*time.Millisecond) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// openPID returns a pidfd of a process.
func openPID(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("pidfd of %d", pid)), nil
}

// exited reports whether the process of a pidfd has exited or exits within the given time.
func exited(pidfd int, within time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, int(within.Milliseconds()))
	return err == nil && n > 0 && fds[0].Revents&unix.POLLIN != 0
}

// A record identifies a jail's init for a later daemon. A pid alone may have been reused.
type record struct {
	PID     int    `json:"pid"`
	Start   uint64 `json:"start"` // clock ticks after boot
	Boot    string `json:"boot"`
	Monitor int    `json:"monitor"` // the outer bwrap, init's parent
}

func newRecord(pid, monitor int) (record, error) {
	start, err := startTime(pid)
	if err != nil {
		return record{}, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return record{}, err
	}
	return record{PID: pid, Start: start, Boot: strings.TrimSpace(string(boot)), Monitor: monitor}, nil
}

func (r record) write(name string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return atomicfile.Write(name, b, 0o600)
}

func readRecord(name string) (record, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return record{}, err
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil || r.PID < 2 {
		return record{}, fmt.Errorf("%s is corrupt: %w", name, errors.Join(err, fs.ErrInvalid))
	}
	return r, nil
}

// startTime returns the start time of a process in clock ticks after boot.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	s, err := parseStat(b)
	return s.start, err
}

// A stat contains the used fields of /proc/PID/stat, in clock ticks.
type stat struct {
	cpu   uint64 // of the process and the children it has waited for
	start uint64 // after boot
}

// parseStat reads fields 14 to 17 and 22 (proc(5)). The second field is the program name in
// parentheses, which may contain any characters.
func parseStat(b []byte) (stat, error) {
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 20 {
		return stat{}, fmt.Errorf("%.80q is not a valid /proc/PID/stat", b)
	}
	var s stat
	for _, f := range fields[11:15] {
		n, err := strconv.ParseUint(string(f), 10, 64)
		if err != nil {
			return stat{}, err
		}
		s.cpu += n
	}
	var err error
	s.start, err = strconv.ParseUint(string(fields[19]), 10, 64)
	return s, err
}
