// Package process reads information about processes from /proc: programs, directories,
// environments and sockets.
//
// Each process is read through one descriptor of its /proc directory, which never refers to
// another process when pids are reused. All sizes are limited, because processes can control
// the content.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/internal/procstat"
)

// A Process is one process of a cgroup.
type Process struct {
	PID   int       // in the namespace of the cgroup's first process
	PPID  int       // 0 if the parent is not in the list
	Began time.Time // approximate, because the clock can be set
	Start uint64    // start time in ticks since the host started
	Comm  string
	Exe   string
	Cwd   string
	Argv  []string
	Env   []string
	Cut   bool // argv, the environment or sockets are truncated

	Sockets []Socket // TCP and UDP sockets
}

// Limits for one process and for all processes of one list. Processes beyond the total limit are
// listed without argv and environment.
const (
	maxText  = 64 << 10 // bytes of argv, and again of the environment
	maxTexts = 16 << 20
	maxFDs   = 4096 // descriptors that are read
	maxAll   = 64 << 10
)

// Now returns the time since the host started, in ticks.
func Now() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return uint64(ts.Sec)*procstat.Hertz + uint64(ts.Nsec)*procstat.Hertz/1e9
}

// List returns the processes of pids, which are host pids, that are in the cgroup of the given
// path or below it. first is the first process of their pid namespace and determines the
// network namespace. Exited processes and zombies are omitted.
func List(pids []int, first int, cgroup string) ([]Process, error) {
	r := newReading(cgroup)
	inside := map[int]int{} // host pid to pid in the jail
	var all []Process
	var held [][]uint64
	for _, pid := range pids {
		p, parent, inodes, err := r.process(pid)
		if gone(err) || errors.Is(err, errStranger) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read process %d: %w", pid, err)
		}
		inside[pid] = p.PID
		p.PPID = parent
		all, held = append(all, p), append(held, inodes)
	}
	network, err := sockets(first, r.tables)
	if err != nil && !gone(err) {
		return nil, fmt.Errorf("read the sockets of process %d: %w", first, err)
	}
	for i := range all {
		all[i].PPID = inside[all[i].PPID]
		for _, inode := range held[i] {
			if s, ok := network[inode]; ok {
				all[i].Sockets = append(all[i].Sockets, s)
			}
		}
		all[i].Sockets = sorted(all[i].Sockets)
	}
	return all, nil
}

func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// errStranger means that a process is no longer alive or in the cgroup.
var errStranger = errors.New("not a process of the cgroup")

// A reading is one call of List.
type reading struct {
	cgroup string
	texts  int             // bytes that may still be read
	fds    int             // descriptors that may still be read
	tables map[string]bool // socket tables that contain sockets of the processes
	now    time.Time
	ticks  uint64
}

func newReading(cgroup string) *reading {
	return &reading{cgroup: cgroup, texts: maxTexts, fds: maxAll, tables: map[string]bool{}, now: time.Now(), ticks: Now()}
}

func (r *reading) process(pid int) (p Process, parent int, inodes []uint64, err error) {
	dir, err := openDir(pid)
	if err != nil {
		return p, 0, nil, err
	}
	defer dir.Close()
	// The pid may name another process by now. This check is made on the open directory, so it
	// holds for all files that are read from it.
	cg, err := read(dir, "cgroup", maxText)
	if err != nil {
		return p, 0, nil, err
	}
	if !within(string(cg), r.cgroup) {
		return p, 0, nil, errStranger
	}
	b, err := read(dir, "stat", maxText)
	if err != nil {
		return p, 0, nil, err
	}
	s, err := procstat.Parse(b)
	if err != nil {
		return p, 0, nil, fmt.Errorf("parse stat: %w", err)
	}
	if s.Exited() {
		return p, 0, nil, errStranger
	}
	b, err = read(dir, "status", maxText)
	if err != nil {
		return p, 0, nil, err
	}
	p = Process{PID: insidePID(b), Comm: s.Comm, Start: s.Start}
	p.Began = r.now.Add(procstat.Duration(s.Start) - procstat.Duration(r.ticks))
	p.Exe, _ = readlink(dir, "exe") // an exiting process has none
	p.Cwd, _ = readlink(dir, "cwd")
	var cutArgv, cutEnv bool
	if p.Argv, cutArgv, err = r.list(dir, "cmdline"); err != nil {
		return p, 0, nil, err
	}
	if p.Env, cutEnv, err = r.list(dir, "environ"); err != nil {
		return p, 0, nil, err
	}
	inodes, cutSockets, err := r.inodes(dir)
	p.Cut = cutArgv || cutEnv || cutSockets
	return p, s.Parent, inodes, err
}

func openDir(pid int) (*os.File, error) {
	name := fmt.Sprintf("/proc/%d", pid)
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

func openAt(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir.Name() + "/" + name, Err: err}
	}
	return os.NewFile(uintptr(fd), dir.Name()+"/"+name), nil
}

// read returns at most most bytes of a file, and one more byte if the file is longer.
func read(dir *os.File, name string, most int) ([]byte, error) {
	f, err := openAt(dir, name, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, int64(most)+1))
}

func readlink(dir *os.File, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(dir.Fd()), name, buf)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: dir.Name() + "/" + name, Err: err}
	}
	return string(buf[:n]), nil
}

// list reads a list of strings that end with a NUL.
func (r *reading) list(dir *os.File, name string) (all []string, cut bool, err error) {
	most := min(maxText, r.texts)
	b, err := read(dir, name, most)
	if err != nil {
		return nil, false, err
	}
	if cut = len(b) > most; cut {
		b = b[:most]
	}
	r.texts -= len(b)
	if b = bytes.TrimSuffix(b, []byte{0}); len(b) == 0 {
		return nil, cut, nil
	}
	return strings.Split(string(b), "\x00"), cut, nil
}

// within reports whether a /proc/PID/cgroup contains the cgroup or a descendant in any
// hierarchy.
func within(lines, cgroup string) bool {
	for line := range strings.Lines(lines) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) == 3 && (parts[2] == cgroup || strings.HasPrefix(parts[2], strings.TrimSuffix(cgroup, "/")+"/")) {
			return true
		}
	}
	return false
}

// Threads returns the number of threads of a process, or 0 if the process does not exist.
func Threads(pid int) int64 {
	s, err := procstat.Read(pid)
	if err != nil {
		return 0
	}
	return s.Threads
}

// insidePID returns the second pid in the NSpid line of /proc/PID/status (proc(5)): the pid in
// the first pid namespace below the host's. A process can be in another namespace below that.
func insidePID(status []byte) int {
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte("NSpid:")); ok {
			if fields := bytes.Fields(rest); len(fields) > 1 {
				pid, _ := strconv.Atoi(string(fields[1]))
				return pid
			}
		}
	}
	return 0
}
