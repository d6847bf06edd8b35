package netns_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"glasshouse/host/netns"
)

// The tests run in their own network and mount namespaces, so that they change no rule, link or
// setting of the machine and detect all leaks.
func TestMain(m *testing.M) {
	const inside = "GLASSHOUSE_NETNS_TEST"
	if os.Geteuid() != 0 {
		fmt.Println("skipped: making networks needs root")
		os.Exit(0)
	}
	if os.Getenv(inside) != "" {
		victim()
		if path := os.Getenv(awayMode); path != "" {
			if err := lockWhileAway(path); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			os.Exit(0)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			fmt.Println("make mounts private:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
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

// victim creates and cleans networks in an endless loop if this is the victim process of
// TestKillAtRandomTimes.
func victim() {
	path := os.Getenv("GLASSHOUSE_NETNS_VICTIM")
	for path != "" {
		_, err := netns.Create(context.Background(), "victim", netns.Options{Path: path, Reach: netns.Full})
		if err = errors.Join(err, netns.Clean("victim", path)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
}
