// Command probe runs inside a jail under test for tasks that a shell cannot do: it makes single
// system calls and prints the result, allocates memory, forks up to the limit, and changes its
// user.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// commands by name. Each gets its arguments and returns an error.
var commands = map[string]func(args []string) error{
	"as":       as,
	"burn":     burn,
	"calls":    calls,
	"dial":     dial,
	"eat":      eat,
	"files":    files,
	"fork":     fork,
	"forks":    forks,
	"hold":     hold,
	"keep":     keep,
	"kill-all": killAll,
	"loopback": loopback,
	"part":     part,
	"powers":   powers,
	"reach":    reach,
	"signal":   sendSignals,
	"storm":    storm,
}

func main() {
	args := os.Args[1:]
	if filepath.Base(os.Args[0]) == "setuid-probe" {
		args = []string{"powers"}
	}
	if len(args) == 0 || commands[args[0]] == nil {
		fmt.Fprintln(os.Stderr, "usage: probe COMMAND …")
		os.Exit(2)
	}
	if err := commands[args[0]](args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "probe %s: %v\n", args[0], err)
		os.Exit(1)
	}
}

// as runs a command as another user and group, without supplementary groups.
func as(args []string) error {
	id, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	if err := syscall.Setgroups(nil); err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	if err := syscall.Setresgid(id, id, id); err != nil {
		return fmt.Errorf("setgid: %w", err)
	}
	if err := syscall.Setresuid(id, id, id); err != nil {
		return fmt.Errorf("setuid: %w", err)
	}
	path, err := exec.LookPath(args[1])
	if err != nil {
		return err
	}
	return syscall.Exec(path, args[1:], os.Environ())
}

// burn uses a number of milliseconds of processor time.
func burn(args []string) error {
	ms, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	for {
		var used syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
			return err
		}
		if time.Duration(used.Utime.Nano()+used.Stime.Nano()) > time.Duration(ms)*time.Millisecond {
			return nil
		}
	}
}

// eat allocates and touches megabytes of memory.
func eat(args []string) error {
	_, err := take(args)
	return err
}

func take(args []string) ([][]byte, error) {
	mb, err := strconv.Atoi(args[0])
	if err != nil {
		return nil, err
	}
	var held [][]byte
	for range mb {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		held = append(held, b)
	}
	fmt.Println("took", len(held), "MiB")
	return held, nil
}

// hold is like eat, but keeps the memory.
func hold(args []string) error {
	held, err := take(args)
	if err != nil {
		return err
	}
	time.Sleep(time.Hour)
	runtime.KeepAlive(held)
	return nil
}

// fork starts up to the given number of children, and keeps them.
func fork(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	for range n {
		exec.Command("/bin/sleep", "300").Start() // a failure is expected at the limit
	}
	time.Sleep(5 * time.Minute)
	return nil
}

// killAll sends SIGKILL to all processes that it may signal.
func killAll([]string) error {
	if err := unix.Kill(-1, unix.SIGKILL); err != nil && err != unix.ESRCH {
		return err
	}
	fmt.Println("killed")
	return nil
}

// loopback connects to itself.
func loopback([]string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			io.WriteString(c, "ok\n")
			c.Close()
		}
	}()
	c, err := net.DialTimeout("tcp", l.Addr().String(), 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = io.Copy(os.Stdout, c)
	return err
}

// dial connects by "tcp" or "unix" and prints the received data.
func dial(args []string) error {
	c, err := net.DialTimeout(args[0], args[1], 2*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Println("connected")
	return nil
}

// powers prints its user ids and capabilities.
func powers([]string) error {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	fmt.Printf("euid=%d\n", os.Geteuid())
	for line := range strings.Lines(string(status)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.HasPrefix(name, "Cap") {
			fmt.Printf("%s=%s\n", name, strings.TrimSpace(value))
		}
	}
	return nil
}

// calls makes each system call of the table, or only the named ones, and prints name=errno, 0
// for an allowed call.
func calls(names []string) error {
	for _, a := range attempts {
		if len(names) > 0 && !slices.Contains(names, a.name) {
			continue
		}
		fmt.Printf("%s=%d\n", a.name, a.try())
	}
	return nil
}
