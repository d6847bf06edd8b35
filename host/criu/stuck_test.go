package criu

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const stuckRole = "GLASSHOUSE_CRIU_STUCK"

func init() {
	if os.Getenv(stuckRole) != "" {
		runtime.LockOSThread() // main runs on the first thread
	}
}

// runWaiter is one of two processes: a zombie whose exit is not reported because another
// thread of it lives, and a process that waits for it.
func runWaiter(role string) int {
	if role == "dead" {
		unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
	}
	child := exec.Command("/proc/self/exe")
	child.Env = append(os.Environ(), stuckRole+"=dead")
	err := child.Start()
	if err == nil {
		err = os.WriteFile("/proc/thread-self/comm", []byte(os.Args[1]), 0)
	}
	if err == nil {
		_, err = unix.Wait4(child.Process.Pid, nil, 0, nil)
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// startWaiter starts a process of that name that waits for a zombie whose exit is not
// reported.
func startWaiter(t *testing.T, name string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", name)
	cmd.Env = append(os.Environ(), stuckRole+"=waiting")
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		cmd.Wait()
	})
	return cmd
}

func TestStuckCRIUIsKilled(t *testing.T) {
	cmd := startWaiter(t, "criu")
	ended := make(chan struct{})
	go func() { cmd.Process.Wait(); close(ended) }()
	w := NewWatch(cmd.Process.Pid)
	var first time.Time
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		done, err := w.KillIfStuck()
		if err != nil {
			t.Fatal(err)
		}
		if first.IsZero() && w.zombie != 0 {
			first = time.Now()
		}
		if done {
			break
		}
		if time.Now().After(end) {
			t.Fatal("KillIfStuck did not kill the process")
		}
	}
	if took := time.Since(first); took < stuckAfter-time.Second/10 {
		t.Errorf("killed %v after the process became a zombie, want at least %v", took, stuckAfter)
	}
	<-ended
}

func TestOnlyCRIUIsKilled(t *testing.T) {
	cmd := startWaiter(t, "other")
	time.Sleep(200 * time.Millisecond) // let it reach wait4
	for pid, what := range map[int]string{cmd.Process.Pid: "another program", os.Getpid(): "a process that does not wait", 1 << 29: "no process"} {
		w := NewWatch(pid)
		w.zombie, w.since = w.zombieChild(), time.Now().Add(-time.Hour)
		if ended, err := w.KillIfStuck(); ended || err != nil && !errors.Is(err, os.ErrNotExist) || w.zombie != 0 {
			t.Errorf("%s: KillIfStuck = %v, %v with zombie %d, want false and 0", what, ended, err, w.zombie)
		}
	}
}
