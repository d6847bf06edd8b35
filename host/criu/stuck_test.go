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

// wait is one of two processes: one that has ended, which nobody is told as long as
// another of its threads lives, and one that waits for it.
func wait(role string) int {
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

// waiting starts a process of that name that waits for one that has ended, and is not told.
func waiting(t *testing.T, name string) *exec.Cmd {
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

func TestACRIUThatWaitsForTheDeadIsEnded(t *testing.T) {
	cmd := waiting(t, "criu")
	ended := make(chan struct{})
	go func() { cmd.Process.Wait(); close(ended) }()
	w := NewWatch(cmd.Process.Pid)
	var first time.Time
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		done, err := w.End()
		if err != nil {
			t.Fatal(err)
		}
		if first.IsZero() && w.dead != 0 {
			first = time.Now()
		}
		if done {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it is not ended")
		}
	}
	if took := time.Since(first); took < stuckAfter-time.Second/10 {
		t.Errorf("it was ended %v after its process was dead, want %v at least", took, stuckAfter)
	}
	<-ended
}

func TestOnlyACRIUIsEnded(t *testing.T) {
	cmd := waiting(t, "other")
	time.Sleep(200 * time.Millisecond) // perhaps it waits already
	for pid, what := range map[int]string{cmd.Process.Pid: "another program", os.Getpid(): "one that waits for nothing", 1 << 29: "none"} {
		w := NewWatch(pid)
		w.dead, w.since = w.waitsForDead(), time.Now().Add(-time.Hour)
		if ended, err := w.End(); ended || err != nil && !errors.Is(err, os.ErrNotExist) || w.dead != 0 {
			t.Errorf("%s: End = %v, %v, of a wait for %d", what, ended, err, w.dead)
		}
	}
}
