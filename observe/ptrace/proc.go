package ptrace

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func procPath(tid int, name string) string { return "/proc/" + strconv.Itoa(tid) + "/" + name }

// procMax bounds what is read of a file. The kernel lets a new program have no
// more arguments than that, but a process with the right can say later that they
// are elsewhere and longer.
const procMax = 8 << 20

// readProc reads a file of a task below /proc, with no more calls than needed.
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

// readLink returns what a link below /proc/TID is to. The kernel makes that up
// from what it knows: no file system of the jail is asked, which might never
// answer.
func readLink(tid int, name string) (string, error) {
	var buf [pathMax]byte
	n, err := unix.Readlink(procPath(tid, name), buf[:])
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// A status is what is used of /proc/TID/status.
type status struct {
	tgid, ppid int // as numbers of the host
	tracer     int
	state      byte
	uid, gid   uint32 // as ids of the host
	pids       []int32
	tgids      []int32 // its numbers in each pid namespace, from ours inwards
	peak       int64   // most memory held, in bytes; 0 at the end
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
		return s, fmt.Errorf("%.80q is no /proc/PID/status", b)
	}
	return s, nil
}

// inside returns the number at a depth of pid namespaces, or 0.
func inside(numbers []int32, level int) int32 {
	if level < len(numbers) {
		return numbers[level]
	}
	return 0
}

// A stat is what is used of a task's stat file.
type stat struct {
	comm         string
	state        byte
	user, system int64 // processor time in ticks
	start        int64 // ticks since the host's start
}

// readStat reads the stat file of a process by the number of any of its tasks,
// or with name "task/TID/stat" of a task alone.
func readStat(tid int, name string) (stat, error) {
	var buf [512]byte
	b, err := readProc(tid, name, buf[:])
	if err != nil {
		return stat{}, err
	}
	return parseStat(b)
}

func parseStat(b []byte) (stat, error) {
	open, shut := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || shut < open {
		return stat{}, fmt.Errorf("%.80q is no /proc/PID/stat", b)
	}
	f := strings.Fields(string(b[shut+1:])) // from the third field on
	if len(f) < 20 {
		return stat{}, fmt.Errorf("%.80q is no /proc/PID/stat", b)
	}
	s := stat{comm: string(b[open+1 : shut]), state: f[0][0]}
	for i, v := range map[int]*int64{11: &s.user, 12: &s.system, 19: &s.start} {
		n, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil {
			return stat{}, fmt.Errorf("field %d of /proc/PID/stat: %w", i+3, err)
		}
		*v = n
	}
	return s, nil
}

// tick is what the kernel counts processor time and starts in, as it tells us;
// it is the same on all architectures there are.
const tick = int64(time.Second / 100)

// Clocks of another process, by its number: clock_getcpuclockid(3).
const (
	clockAll  = 0 // in its own and the kernel's mode, by sampling
	clockUser = 1 // in its own
	clockRun  = 2 // exact
)

// processTimes returns the processor time that a process has used. The kernel
// knows the sum exactly and samples how it is divided.
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

// threadTimes is processTimes of a single task.
func threadTimes(tid int) (user, system int64) {
	task := "task/" + strconv.Itoa(tid) + "/"
	st, err := readStat(tid, task+"stat")
	if err != nil {
		return 0, 0
	}
	user, system = st.user*tick, st.system*tick
	var buf [64]byte
	if b, err := readProc(tid, task+"schedstat", buf[:]); err == nil {
		run, _, _ := strings.Cut(string(b), " ")
		if n, err := strconv.ParseInt(run, 10, 64); err == nil && n > 0 {
			return divide(n, user, system)
		}
	}
	return user, system
}

// divide splits sum as user and system are to each other.
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

// An idMap is how ids of a user namespace look from ours.
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

// in returns the id inside of one of ours, or the overflow id.
func (m idMap) in(id uint32) uint32 {
	for _, r := range m {
		if id-r.outside < r.count {
			return r.inside + (id - r.outside)
		}
	}
	const nobody = 65534
	return nobody
}

// A clock tells both times of a record.
type clock struct {
	at   time.Time
	mono int64 // the kernel's monotonic clock then
	boot int64 // how far the clock that counts from the start is ahead of it
}

func newClock() clock {
	var mono, boot unix.Timespec
	unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot)
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono)
	return clock{time.Now(), mono.Nano(), max(boot.Nano()-mono.Nano(), 0)}
}

// now returns milliseconds since 1970 and the kernel's monotonic nanoseconds.
// It asks Go's clock, which costs no call of the kernel.
func (c *clock) now() (ms, ns int64) {
	now := time.Now()
	return now.UnixMilli(), c.mono + int64(now.Sub(c.at))
}

// began returns when a process began that started so many ticks after the host.
func (c *clock) began(ticks int64) int64 { return ticks*tick - c.boot }
