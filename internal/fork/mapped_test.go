package fork_test

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/internal/fork"
)

const victim = "GLASSHOUSE_FORK_VICTIM"

// TestMain starts processes with id mappings until it is killed, if this is the victim.
func TestMain(m *testing.M) {
	if os.Getenv(victim) == "" {
		os.Exit(m.Run())
	}
	failed := make(chan error)
	for range 8 {
		go func() {
			for {
				if err := runMapped(); err != nil {
					failed <- err
				}
			}
		}()
	}
	fmt.Println("started")
	fmt.Println(<-failed)
}

// runMapped runs a program in a user namespace.
func runMapped() error {
	cmd := exec.Command("true")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
	if err := fork.StartMapped(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// Children that wait for their id mappings end with their parent.
func TestMappedChildrenEndWithKilledParent(t *testing.T) {
	if err := runMapped(); err != nil {
		t.Skipf("user namespaces cannot be created: %v", err)
	}
	// Orphans become children of this process.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	rounds := 300
	if testing.Short() {
		rounds = 50
	}
	for round := range rounds {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), victim+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		group := cmd.Process.Pid
		lines := bufio.NewScanner(out)
		if !lines.Scan() || lines.Text() != "started" {
			t.Fatalf("the process printed %q, %v", lines.Text(), lines.Err())
		}
		time.Sleep(20*time.Millisecond + rand.N(20*time.Millisecond))
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		cmd.Wait() // fails, because the process was killed
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			_, err := unix.Wait4(-group, nil, unix.WNOHANG, nil)
			if errors.Is(err, unix.ECHILD) {
				break
			}
			if time.Now().After(end) {
				unix.Kill(-group, unix.SIGKILL)
				t.Fatalf("round %d: children of a killed process wait forever", round)
			}
		}
	}
}
