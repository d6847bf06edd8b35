package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sort"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/internal/procstat"
)

// keepIdentity tests the credentials of the process.
func keepIdentity([]string) (func(bool) error, error) {
	unix.Umask(0o027)
	signal.Ignore(syscall.SIGUSR2)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 333, Max: 444}); err != nil {
		return nil, err
	}
	if err := unix.Setrlimit(unix.RLIMIT_STACK, &unix.Rlimit{Cur: 4 << 20, Max: 16 << 20}); err != nil {
		return nil, err
	}
	if err := os.Chdir("/var/tmp"); err != nil {
		return nil, err
	}
	before, err := identity()
	if err != nil {
		return nil, err
	}
	return func(bool) error {
		after, err := identity()
		if err != nil {
			return err
		}
		return same(before, after)
	}, nil
}

func identity() (string, error) {
	var b strings.Builder
	cwd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return "", err
	}
	sid, err := unix.Getsid(0)
	if err != nil {
		return "", err
	}
	umask := unix.Umask(0)
	unix.Umask(umask)
	nice, _ := unix.Getpriority(unix.PRIO_PROCESS, 0)
	fmt.Fprintf(&b, "pid %d parent %d group %d session %d\ncwd %s\nexe %s\numask %o\nnice %d\n",
		os.Getpid(), os.Getppid(), unix.Getpgrp(), sid, cwd, exe, umask, nice)
	for _, name := range []string{"cmdline", "environ", "setgroups", "cgroup", "limits", "oom_score_adj", "comm"} {
		text, err := os.ReadFile("/proc/self/" + name)
		fmt.Fprintf(&b, "%s %q %v\n", name, text, err)
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(status)) {
		name, _, _ := strings.Cut(line, ":")
		switch name {
		case "Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "Seccomp_filters", "SigIgn", "SigCgt", "Cpus_allowed", "THP_enabled",
			"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb":
			b.WriteString(line)
		}
	}
	return b.String(), nil
}

// keepMounts tests mount points and their options.
func keepMounts([]string) (func(bool) error, error) {
	before, err := mounts()
	if err != nil {
		return nil, err
	}
	return func(bool) error {
		after, err := mounts()
		if err != nil {
			return err
		}
		return same(before, after)
	}, nil
}

// mounts lists mount points with their flags and types, sorted because their order is
// irrelevant.
func mounts() (string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	var all []string
	for line := range strings.Lines(string(b)) {
		front, back, _ := strings.Cut(line, " - ")
		f, kind := strings.Fields(front), strings.Fields(back)
		if len(f) < 6 || len(kind) < 1 {
			return "", fmt.Errorf("the mount has the unexpected entry %q", line)
		}
		// A masked file is a device of any file system that has devices.
		all = append(all, f[4]+" "+f[5]+" "+strings.Replace(kind[0], "devtmpfs", "tmpfs", 1))
	}
	sort.Strings(all)
	return strings.Join(all, "\n"), nil
}

// keepMemory tests memory mappings: a pattern, changes of a private file mapping, and protected
// pages.
func keepMemory([]string) (func(bool) error, error) {
	const size = 16 << 20
	held := make([]byte, size)
	for i := range held {
		held[i] = byte(i * 7 >> 3)
	}
	if err := os.WriteFile(keepDir+"/mapped", []byte(strings.Repeat("file", 4096)), 0o644); err != nil {
		return nil, err
	}
	f, err := os.Open(keepDir + "/mapped")
	if err != nil {
		return nil, err
	}
	private, err := unix.Mmap(int(f.Fd()), 0, 16384, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	copy(private, "mine")
	sealed, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, err
	}
	copy(sealed, "sealed")
	if err := unix.Mprotect(sealed, unix.PROT_READ); err != nil {
		return nil, err
	}
	return func(bool) error {
		for i := range held {
			if held[i] != byte(i*7>>3) {
				return fmt.Errorf("byte %d of the heap has changed", i)
			}
		}
		_, readErr := unix.Pread(int(f.Fd()), sealed[:1], 0) // into read-only memory
		return errors.Join(
			want("a private mapping's beginning", string(private[:8]), "minefile"),
			want("a private mapping's end", string(private[16380:]), "file"),
			want("memory that is only read", string(sealed[:6]), "sealed"),
			want("writing to it", readErr, error(unix.EFAULT)),
		)
	}, nil
}

// keepThreads tests named threads that continue to count.
func keepThreads([]string) (func(bool) error, error) {
	const n = 8
	var counts [n]atomic.Int64
	ready := make(chan error, n)
	for i := range n {
		go func() {
			runtime.LockOSThread()
			name := append([]byte(fmt.Sprintf("thread-%d", i)), 0)
			ready <- unix.Prctl(unix.PR_SET_NAME, ptrOf(name), 0, 0, 0)
			for {
				counts[i].Add(1)
				time.Sleep(time.Millisecond)
			}
		}()
	}
	for range n {
		if err := <-ready; err != nil {
			return nil, err
		}
	}
	before, err := threads()
	if err != nil {
		return nil, err
	}
	return func(bool) error {
		after, err := threads()
		if err != nil {
			return err
		}
		for _, line := range strings.Split(before, "\n") {
			if !strings.Contains("\n"+after+"\n", "\n"+line+"\n") {
				return fmt.Errorf("thread %q is missing in %q", line, after)
			}
		}
		for i := range counts {
			was := counts[i].Load()
			err := within(10*time.Second, "a thread's next step", func() error {
				for counts[i].Load() == was {
					time.Sleep(time.Millisecond)
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// threads returns the ids and names of the named threads.
func threads() (string, error) {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return "", err
	}
	var all []string
	for _, t := range tasks {
		comm, err := os.ReadFile("/proc/self/task/" + t.Name() + "/comm")
		if err == nil && strings.HasPrefix(string(comm), "thread-") {
			all = append(all, t.Name()+" "+strings.TrimSpace(string(comm)))
		}
	}
	return strings.Join(all, "\n"), nil
}

// startPart starts an additional process of a keeper.
func startPart(change func(*exec.Cmd), args ...string) (*exec.Cmd, error) {
	cmd := exec.Command("/proc/self/exe", append([]string{"part"}, args...)...)
	cmd.Stderr = os.Stderr
	if change != nil {
		change(cmd)
	}
	return cmd, cmd.Start()
}

// keepChildren tests child processes: they continue, and can be reaped.
func keepChildren([]string) (func(bool) error, error) {
	var all []*exec.Cmd
	for range 5 {
		c, err := startPart(nil, "wait")
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return func(bool) error {
		for _, c := range all {
			if err := c.Process.Kill(); err != nil {
				return err
			}
			c.Wait()
			if c.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				return fmt.Errorf("child %d has exited: %v", c.Process.Pid, c.ProcessState)
			}
		}
		return nil
	}, nil
}

// keepZombie tests a child that has exited but was not reaped.
func keepZombie([]string) (func(bool) error, error) {
	c, err := startPart(nil, "exit")
	if err != nil {
		return nil, err
	}
	if err := untilState(c.Process.Pid, "Z"); err != nil {
		return nil, err
	}
	return func(bool) error {
		if err := untilState(c.Process.Pid, "Z"); err != nil {
			return err
		}
		c.Wait()
		return want("the exit code of a child that had ended", c.ProcessState.ExitCode(), 7)
	}, nil
}

// keepStopped tests a stopped child.
func keepStopped([]string) (func(bool) error, error) {
	c, err := startPart(nil, "wait")
	if err != nil {
		return nil, err
	}
	// kill(2), because os.Process.Signal uses a pidfd, and the init of a gVisor jail
	// refuses SIGSTOP by pidfd.
	if err := syscall.Kill(c.Process.Pid, syscall.SIGSTOP); err != nil {
		return nil, err
	}
	if err := untilState(c.Process.Pid, "T"); err != nil {
		return nil, err
	}
	return func(bool) error {
		if s := stateOf(c.Process.Pid); s != "T" {
			return fmt.Errorf("the stopped child is in state %s", s)
		}
		if err := c.Process.Signal(syscall.SIGCONT); err != nil {
			return err
		}
		if err := untilState(c.Process.Pid, "S"); err != nil {
			return err
		}
		c.Process.Kill()
		c.Wait()
		return nil
	}, nil
}

// stateOf returns the state letter of a process.
func stateOf(pid int) string {
	s, err := procstat.Read(pid)
	if err != nil {
		return ""
	}
	return string(s.State)
}

func untilState(pid int, state string) error {
	return within(10*time.Second, "process in state "+state, func() error {
		for stateOf(pid) != state {
			time.Sleep(time.Millisecond)
		}
		return nil
	})
}

// keepSession tests process groups and sessions.
func keepSession([]string) (func(bool) error, error) {
	leader, err := startPart(func(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }, "wait")
	if err != nil {
		return nil, err
	}
	group, err := startPart(func(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }, "wait")
	if err != nil {
		return nil, err
	}
	member, err := startPart(func(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: group.Process.Pid} }, "wait")
	if err != nil {
		return nil, err
	}
	return func(bool) error {
		sid, sidErr := unix.Getsid(leader.Process.Pid)
		one, oneErr := unix.Getpgid(group.Process.Pid)
		two, twoErr := unix.Getpgid(member.Process.Pid)
		err := errors.Join(sidErr, oneErr, twoErr,
			want("a session", sid, leader.Process.Pid), want("a leader's group", one, group.Process.Pid), want("a member's group", two, group.Process.Pid))
		if err != nil {
			return err
		}
		leader.Process.Kill()
		leader.Wait()
		if err := unix.Kill(-group.Process.Pid, unix.SIGKILL); err != nil {
			return err
		}
		group.Wait()
		member.Wait()
		return nil
	}, nil
}

// keepSleep tests a command that sleeps in the kernel.
func keepSleep([]string) (func(bool) error, error) {
	c := exec.Command("sleep", "2")
	if err := c.Start(); err != nil {
		return nil, err
	}
	return func(bool) error { return within(30*time.Second, "the end of a sleep", c.Wait) }, nil
}

// keepPidfd tests a pidfd.
func keepPidfd([]string) (func(bool) error, error) {
	c, err := startPart(nil, "wait")
	if err != nil {
		return nil, err
	}
	fd, err := unix.PidfdOpen(c.Process.Pid, 0)
	if err != nil {
		return nil, err
	}
	return func(bool) error {
		if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil {
			return err
		}
		c.Wait()
		return want("the signal", c.ProcessState.Sys().(syscall.WaitStatus).Signal(), syscall.SIGTERM)
	}, nil
}

// partCounter writes an increasing counter to a file forever.
func partCounter(args []string) error {
	f, err := os.OpenFile(args[0], os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		if _, err := f.WriteAt(fmt.Appendf(nil, "%012d\n", n), 0); err != nil {
			return err
		}
	}
}
