package ptrace

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/internal/procstat"
)

func procPath(tid int, name string) string { return "/proc/" + strconv.Itoa(tid) + "/" + name }

// procMax bounds the bytes read of a file. The kernel limits the arguments of a new program,
// but a privileged process can later set other addresses and lengths (PR_SET_MM, prctl(2)).
const procMax = 8 << 20

// readProc reads a file of a task below /proc with a minimum of system calls.
func readProc(tid int, name string, buf []byte) ([]byte, error) {
	fd, err := unix.Open(procPath(tid, name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	for n := 0; ; {
		if n == len(buf) {
			buf = append(buf, make([]byte, len(buf)+1024)...)
		}
		got, err := unix.Read(fd, buf[n:])
		if err != nil {
			return nil, err
		}
		if got == 0 || n+got >= procMax {
			return buf[:n+got], nil
		}
		n += got
	}
}

// readLink returns the target of a link below /proc/TID. The kernel generates it without
// accessing a file system of the jail, which might block forever.
func readLink(tid int, name string) (string, error) {
	var buf [pathMax]byte
	n, err := unix.Readlink(procPath(tid, name), buf[:])
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// A status contains the used fields of /proc/TID/status.
type status struct {
	tgid, ppid int // host PIDs
	tracer     int
	state      byte
	uid, gid   uint32 // host IDs
	pids       []int32
	tgids      []int32 // its PIDs in each PID namespace, from the host's inwards
	peak       int64   // peak resident set size in bytes; 0 at the end
}

func readStatus(tid int) (status, error) {
	var buf [2048]byte
	b, err := readProc(tid, "status", buf[:])
	if err != nil {
		return status{}, err
	}
	return parseStatus(b)
}

func parseStatus(b []byte) (status, error) {
	var s status
	seen := 0
	// A process cannot forge a line with its name, because the kernel escapes line breaks in it
	// (proc_task_name in fs/proc/array.c).
	for line := range bytes.Lines(b) {
		name, rest, _ := bytes.Cut(line, []byte(":"))
		fields := func() []string { return strings.Fields(string(rest)) }
		number := func(i int) int64 {
			if f := fields(); i < len(f) {
				n, _ := strconv.ParseInt(f[i], 10, 64)
				return n
			}
			return 0
		}
		switch string(name) {
		case "State":
			if f := fields(); len(f) > 0 {
				s.state = f[0][0]
			}
		case "Tgid":
			s.tgid = int(number(0))
			seen++
		case "PPid":
			s.ppid = int(number(0))
		case "TracerPid":
			s.tracer = int(number(0))
		case "Uid":
			s.uid = uint32(number(0))
		case "Gid":
			s.gid = uint32(number(0))
		case "NSpid":
			for i := range fields() {
				s.pids = append(s.pids, int32(number(i)))
			}
		case "NStgid":
			for i := range fields() {
				s.tgids = append(s.tgids, int32(number(i)))
			}
		case "VmHWM":
			s.peak = number(0) << 10
		}
	}
	if seen == 0 {
		return s, fmt.Errorf("%.80q is not a /proc/PID/status", b)
	}
	return s, nil
}

// inside returns the PID at a depth of PID namespaces, or 0.
func inside(numbers []int32, level int) int32 {
	if level < len(numbers) {
		return numbers[level]
	}
	return 0
}

// readStat reads the stat file of a process, given the TID of any of its tasks, or with the
// name "task/TID/stat" that of one task.
func readStat(tid int, name string) (procstat.Stat, error) {
	var buf [512]byte
	b, err := readProc(tid, name, buf[:])
	if err != nil {
		return procstat.Stat{}, err
	}
	return procstat.Parse(b)
}

// CPU clocks of another process, by PID (clock_getcpuclockid(3)).
const (
	clockAll  = 0 // user and system time, sampled
	clockUser = 1 // user time, sampled
	clockRun  = 2 // scheduled time, exact
)

// processTimes returns the CPU time of a process. The kernel counts the sum exactly, but only
// samples how it is divided into user and system time.
func processTimes(pid int) (user, system int64) {
	clock := func(which int32) int64 {
		var ts unix.Timespec
		if unix.ClockGettime(int32(^pid)<<3|which, &ts) != nil {
			return 0
		}
		return ts.Nano()
	}
	all, user := clock(clockAll), clock(clockUser)
	return divide(clock(clockRun), user, all-user)
}

// threadTimes is like processTimes, but for one task.
func threadTimes(tid int) (user, system int64) {
	task := "task/" + strconv.Itoa(tid) + "/"
	st, err := readStat(tid, task+"stat")
	if err != nil {
		return 0, 0
	}
	user, system = int64(procstat.Duration(st.User)), int64(procstat.Duration(st.System))
	var buf [64]byte
	if b, err := readProc(tid, task+"schedstat", buf[:]); err == nil {
		run, _, _ := strings.Cut(string(b), " ")
		if n, err := strconv.ParseInt(run, 10, 64); err == nil && n > 0 {
			return divide(n, user, system)
		}
	}
	return user, system
}

// divide splits sum in the ratio of user to system.
func divide(sum, user, system int64) (int64, int64) {
	switch {
	case user+system <= 0:
		return sum, 0
	case system <= 0:
		return sum, 0
	}
	mine := int64(float64(sum) * (float64(user) / float64(user+system)))
	return mine, sum - mine
}

// An idMap maps IDs of a user namespace to host IDs.
type idMap []idRange

type idRange struct{ inside, outside, count uint32 }

// readIDMap reads a process's uid_map or gid_map.
func readIDMap(pid int, name string) (idMap, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err != nil {
		return nil, err
	}
	var m idMap
	for line := range strings.Lines(string(b)) {
		var r idRange
		if _, err := fmt.Sscan(line, &r.inside, &r.outside, &r.count); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		m = append(m, r)
	}
	return m, nil
}

// in returns the ID inside of a host ID, or the overflow ID.
func (m idMap) in(id uint32) uint32 {
	for _, r := range m {
		if id-r.outside < r.count {
			return r.inside + (id - r.outside)
		}
	}
	const nobody = 65534
	return nobody
}

// A clock provides both timestamps of an event.
type clock struct {
	at   time.Time
	mono int64 // CLOCK_MONOTONIC at that time
	boot int64 // CLOCK_BOOTTIME minus CLOCK_MONOTONIC
}

func newClock() clock {
	var mono, boot unix.Timespec
	unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot)
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono)
	return clock{time.Now(), mono.Nano(), max(boot.Nano()-mono.Nano(), 0)}
}

// now returns milliseconds since the Unix epoch and monotonic nanoseconds. It uses Go's clock,
// which needs no system call.
func (c *clock) now() (ms, ns int64) {
	now := time.Now()
	return now.UnixMilli(), c.mono + int64(now.Sub(c.at))
}

// began returns the start time of a process, given in ticks since boot.
func (c *clock) began(ticks uint64) int64 { return int64(procstat.Duration(ticks)) - c.boot }
