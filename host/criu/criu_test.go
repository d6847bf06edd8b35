package criu

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/internal/thread"
)

// The check of the kernel ends with its thread, as with a daemon that is killed, and so do the
// processes that it has started.
func TestCheckEndsWithItsThread(t *testing.T) {
	program := filepath.Join(t.TempDir(), "criu")
	started := filepath.Join(t.TempDir(), "started")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nsleep 60 &\necho $! >"+started+".new\nmv "+started+".new "+started+"\nexec sleep 60\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(unix.SIGHUP) // as with nohup
	defer signal.Reset(unix.SIGHUP)
	var cmd *exec.Cmd
	var child int
	if err := thread.Alone(func() error {
		var done func()
		cmd, done = New(program, "").check(t.Context())
		t.Cleanup(done)
		if err := cmd.Start(); err != nil {
			return err
		}
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			text, err := os.ReadFile(started)
			if err == nil {
				child, err = strconv.Atoi(strings.TrimSpace(string(text)))
				return err
			}
			if time.Now().After(end) {
				return err
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the command succeeded, want it killed")
		}
	case <-time.After(10 * time.Second):
		t.Error("the command still runs")
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child))
		if err != nil || len(line) == 0 { // a zombie has no command line
			break
		}
		if time.Now().After(end) {
			t.Error("a process that the command started still runs")
			unix.Kill(child, unix.SIGKILL)
			break
		}
	}
}

// A check that ends does not make the command of another one ignore SIGHUP.
func TestConcurrentChecksDoNotIgnoreHangups(t *testing.T) {
	program := filepath.Join(t.TempDir(), "criu")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexec grep SigIgn /proc/self/status\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(unix.SIGHUP) // as with nohup
	defer signal.Reset(unix.SIGHUP)
	_, endFirst := New(program, "").check(t.Context())
	cmd, end := New(program, "").check(t.Context())
	defer end()
	endFirst()
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var ignored uint64
	if _, err := fmt.Sscanf(string(out), "SigIgn: %x", &ignored); err != nil || ignored&1 != 0 {
		t.Errorf("the command prints %q, %v, want SIGHUP not ignored", out, err)
	}
}
