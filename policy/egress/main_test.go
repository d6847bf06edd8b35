package egress_test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain runs the tests in their own network and mount namespace, which plays the role of
// the host. The tests do not touch the machine's network.
func TestMain(m *testing.M) {
	const inside = "GLASSHOUSE_EGRESS_TEST"
	fuzzing := strings.Contains(strings.Join(os.Args, " "), "-test.fuzz")
	if os.Getenv(inside) != "" || os.Geteuid() != 0 || fuzzing {
		if os.Getenv(inside) != "" {
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				fmt.Println("make mounts private:", err)
				os.Exit(1)
			}
		}
		before := descriptors()
		code := m.Run()
		for range 3000 { // descriptors are closed asynchronously
			runtime.GC() // closes the pipes that package net keeps for splice(2)
			if len(descriptors()) <= len(before) {
				os.Exit(code)
			}
			time.Sleep(10 * time.Millisecond)
		}
		fmt.Printf("open sockets, pipes and namespaces: %q, want those from before the tests: %q\n", descriptors(), before)
		os.Exit(1)
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// descriptors lists the open descriptors that a test may have leaked.
func descriptors() (open []string) {
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, fd := range fds {
		to, _ := os.Readlink("/proc/self/fd/" + fd.Name())
		for _, kind := range []string{"socket:", "pipe:", "net:", "/"} {
			if !strings.HasPrefix(to, kind) {
				continue
			}
			if n, err := strconv.Atoi(fd.Name()); err == nil && kind == "socket:" {
				self, _ := unix.Getsockname(n)
				peer, _ := unix.Getpeername(n)
				to = fmt.Sprintf("%s %+v to %+v", to, self, peer)
			}
			open = append(open, to)
		}
	}
	return open
}
