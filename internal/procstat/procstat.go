// Package procstat reads /proc/PID/stat (proc_pid_stat(5)) and identifies processes for a later
// process of the same boot.
package procstat

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Hertz is the number of ticks per second in /proc (USER_HZ), the same on all supported
// architectures.
const Hertz = 100

// Duration converts ticks.
func Duration(ticks uint64) time.Duration { return time.Duration(ticks) * (time.Second / Hertz) }

// A Stat contains the used fields of the stat file of a process or thread. Times are in ticks.
type Stat struct {
	Comm         string
	State        byte // 'R', 'S', 'D', 'Z', …
	Parent       int
	Session      int
	User, System uint64 // CPU time
	Children     uint64 // CPU time of the children that it has waited for
	Threads      int64
	Start        uint64 // since the host started
}

// Exited reports whether the process has exited; its parent may not have waited for it.
func (s Stat) Exited() bool { return s.State == 'Z' || s.State == 'X' }

// Read reads the stat file of a process.
func Read(pid int) (Stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Stat{}, err
	}
	return Parse(b)
}

// Parse parses a stat file. Its second field is the program name in parentheses, which may contain
// any characters.
func Parse(b []byte) (Stat, error) {
	begin, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if begin < 0 || end < begin {
		return Stat{}, fmt.Errorf("%.80q is not a valid /proc/PID/stat", b)
	}
	const first = 3 // number of the first field after the name
	fields := bytes.Fields(b[end+1:])
	if len(fields) <= 22-first || len(fields[0]) != 1 {
		return Stat{}, fmt.Errorf("%.80q is not a valid /proc/PID/stat", b)
	}
	s := Stat{Comm: string(b[begin+1 : end]), State: fields[0][0]}
	var err error
	number := func(field int) uint64 {
		n, fieldErr := strconv.ParseUint(string(fields[field-first]), 10, 64)
		if fieldErr != nil && err == nil {
			err = fmt.Errorf("field %d of /proc/PID/stat: %w", field, fieldErr)
		}
		return n
	}
	s.Parent, s.Session = int(number(4)), int(number(6))
	s.User, s.System, s.Children = number(14), number(15), number(16)+number(17)
	s.Threads, s.Start = int64(number(20)), number(22)
	return s, err
}

// BootID returns the id of the current boot of the host.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

// An Identity identifies a process. A pid alone may have been reused.
type Identity struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // ticks since the host started
	Boot  string `json:"boot"`
}

// Identify returns the identity of the current process pid.
func Identify(pid int) (Identity, error) {
	s, err := Read(pid)
	if err != nil {
		return Identity{}, err
	}
	boot, err := BootID()
	return Identity{PID: pid, Start: s.Start, Boot: boot}, err
}
