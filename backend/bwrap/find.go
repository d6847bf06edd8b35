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

// findProcesses returns the processes that keep a jail alive or are about to
// make it: its stages, bwrap, and its init. With init all others of the jail end.
func findProcesses(p jail.Plan) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && pid != os.Getpid() && isOf(pid, p) {
			found = append(found, pid)
		}
	}
	return found, nil
}

// isOf reports whether a process is a stage, the bwrap or the init of jail p.
func isOf(pid int, p jail.Plan) bool {
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(cmdline) == 0 {
		return false // gone, a zombie, or the kernel's
	}
	args := strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
	switch {
	case args[0] == stageName && len(args) == 3 && args[2] == p.Dir:
		return true
	case args[0] == monitorName(p):
		return true
	}
	return isInit(pid, p)
}

// isInit reports whether a process is the first of its pid namespace and sees
// the jail's control directory, which nobody can pretend who cannot mount.
func isInit(pid int, p jail.Plan) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if pids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			if fields := strings.Fields(pids); len(fields) < 2 || fields[len(fields)-1] != "1" {
				return false
			}
		}
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return false
	}
	own := []byte("/" + string(p.ID) + "/" + filepath.Base(layout{p.Dir}.control()) + " /.glasshouse ")
	return bytes.Contains(mounts, own)
}

// killAll kills what findProcesses finds until it finds nothing: while one is
// looked at, another may start.
func killAll(ctx context.Context, p jail.Plan) error {
	for {
		pids, err := findProcesses(p)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if err := killOne(ctx, pid, p); err != nil {
				return fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
	}
}

func killOne(ctx context.Context, pid int, p jail.Plan) error {
	f, err := openPID(pid)
	if err != nil {
		return nil // gone
	}
	defer f.Close()
	if !isOf(pid, p) { // held now, its number cannot become another's
		return nil
	}
	return killHeld(ctx, f)
}

// killHeld kills a process and waits until it is gone.
func killHeld(ctx context.Context, pidfd *os.File) error {
	err := unix.PidfdSendSignal(int(pidfd.Fd()), unix.SIGKILL, nil, 0)
	if err == unix.ESRCH {
		return nil
	}
	if err != nil {
		return err
	}
	return awaitExit(ctx, pidfd)
}

// awaitExit waits until a process has ended. For the first of a pid namespace
// that is when every other in it has.
func awaitExit(ctx context.Context, pidfd *os.File) error {
	for !exited(int(pidfd.Fd()), 20*time.Millisecond) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// openPID returns a descriptor of a process.
func openPID(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("pidfd of %d", pid)), nil
}

// exited reports whether the process behind a pidfd has ended, or does so within
// the time given.
func exited(pidfd int, within time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, int(within.Milliseconds()))
	return err == nil && n > 0 && fds[0].Revents&unix.POLLIN != 0
}

// A record is what a later daemon needs to know a jail's init again: a pid alone
// may have become another process's.
type record struct {
	PID     int    `json:"pid"`
	Start   uint64 `json:"start"` // clock ticks after boot
	Boot    string `json:"boot"`
	Monitor int    `json:"monitor"` // bwrap outside, init's parent
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
		return record{}, fmt.Errorf("%s is damaged: %w", name, errors.Join(err, fs.ErrInvalid))
	}
	return r, nil
}

// startTime returns when a process began, in clock ticks after boot.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	s, err := parseStat(b)
	return s.start, err
}

// A stat is what of a /proc/PID/stat is used here, in clock ticks.
type stat struct {
	cpu   uint64 // its own and that of the children it has waited for
	start uint64 // after boot
}

// parseStat reads fields 14 to 17 and 22. The second is the program's name in
// parentheses, which may hold anything.
func parseStat(b []byte) (stat, error) {
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 20 {
		return stat{}, fmt.Errorf("%.80q is no /proc/PID/stat", b)
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
