package egress_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The tests run in a network and a mount namespace of their own, which is their
// host: nothing of the machine is touched, and nothing leaves it.
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
