package jailinit

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/internal/procstat"
)

// parseSignal accepts "TERM", "SIGTERM" and "15". Signal 0 tests whether a process exists
// (kill(2)).
func parseSignal(s string) (unix.Signal, error) {
	if n, err := strconv.Atoi(s); err == nil && n >= 0 && n <= 64 {
		return unix.Signal(n), nil
	}
	name := strings.ToUpper(s)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if sig := unix.SignalNum(name); sig != 0 {
		return sig, nil
	}
	return 0, fault.Fieldf("exec.Signal", "signal", "%q is not a signal", s)
}

// signalName returns the name of a signal without "SIG", such as "KILL".
func signalName(sig unix.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return strings.TrimPrefix(name, "SIG")
	}
	return strconv.Itoa(int(sig))
}

// kill signals the command's main process, or its process group. On a terminal, signals that
// have a key go to the foreground process group, as the key would send them.
func (p *process) kill(sig unix.Signal, group bool) error {
	p.in.pids.Lock()
	defer p.in.pids.Unlock()
	if p.in.byPID[p.pid] != p {
		return fault.Newf(fault.Conflict, "exec.Signal", string(p.id), "the command has ended")
	}
	if !group {
		return unix.Kill(p.pid, sig)
	}
	foreground := p.foreground()
	if foreground > 0 && (sig == unix.SIGINT || sig == unix.SIGQUIT || sig == unix.SIGTSTP) {
		return unix.Kill(-foreground, sig)
	}
	if foreground > 0 && foreground != p.pid {
		unix.Kill(-foreground, sig) // an error means that it has ended
	}
	return unix.Kill(-p.pid, sig)
}

// foreground returns the foreground process group of the terminal, or 0.
func (p *process) foreground() (group int) {
	if p.tty == nil {
		return 0
	}
	raw, err := p.tty.SyscallConn()
	if err != nil {
		return 0
	}
	raw.Control(func(fd uintptr) { group, _ = unix.IoctlGetInt(int(fd), unix.TIOCGPGRP) })
	return max(group, 0)
}

// timeOut kills the command's process group and all other processes of its session, because
// the jobs of a shell have groups of their own.
func (p *process) timeOut() {
	p.in.forks <- struct{}{}
	defer func() { <-p.in.forks }()
	p.in.pids.Lock()
	defer p.in.pids.Unlock()
	if p.in.byPID[p.pid] != p {
		return
	}
	p.mu.Lock()
	p.status.TimedOut = true
	p.mu.Unlock()

	// The main process is killed first, so that it does not observe the end of its children.
	// It is not reaped meanwhile, so the session id cannot be reused. Processes that are
	// forked during one round are found in the next.
	for range 10 {
		unix.Kill(-p.pid, unix.SIGKILL)
		found := 0
		for _, s := range processes() {
			if s.session == p.pid && s.pid != p.pid && !s.zombie && unix.Kill(s.pid, unix.SIGKILL) == nil {
				found++
			}
		}
		if found == 0 {
			return
		}
	}
}

// signalAll signals every process of the jail except for init and returns their number.
func (in *Init) signalAll(sig unix.Signal) (left int, err error) {
	in.pids.Lock()
	defer in.pids.Unlock()
	self := os.Getpid()
	if self == 1 && sig != 0 {
		if err := unix.Kill(-1, sig); err != nil && err != unix.ESRCH {
			return 0, os.NewSyscallError("kill", err)
		}
	}
	all := processes()
	ours := descendants(all, self)
	for _, s := range all {
		if s.zombie || !ours[s.pid] {
			continue
		}
		if self != 1 && sig != 0 {
			unix.Kill(s.pid, sig)
		}
		left++
	}
	return left, nil
}

// descendants returns the descendants of pid. For PID 1 these are all processes, including
// those that entered the pid namespace from outside and have no parent in it.
func descendants(all []stat, pid int) map[int]bool {
	found := map[int]bool{}
	for {
		before := len(found)
		for _, s := range all {
			if s.pid != pid && (pid == 1 || s.parent == pid || found[s.parent]) {
				found[s.pid] = true
			}
		}
		if len(found) == before {
			return found
		}
	}
}

// stat is the part of /proc/PID/stat that is needed.
type stat struct {
	pid, parent, session int
	zombie               bool
}

// processes returns all processes in /proc, or none without /proc.
func processes() []stat {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var all []stat
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if s, err := procstat.Read(pid); err == nil {
			all = append(all, stat{pid: pid, parent: s.Parent, session: s.Session, zombie: s.Exited()})
		}
	}
	return all
}
