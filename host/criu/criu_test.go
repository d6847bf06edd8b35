package criu

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"glasshouse/internal/thread"
)

// The check of the kernel ends with its thread, as with a daemon that is killed, and so do the
// processes that it has started, even if they are stopped and ignore signals.
func TestCheckEndsWithItsThread(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	program, started := filepath.Join(dir, "criu"), filepath.Join(dir, "started")
	script := "#!/bin/sh\ntrap '' HUP TERM\nsh -c ': >" + started + "; kill -STOP $$' &\nexec sleep 60\n"
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	var cmd *exec.Cmd
	if err := thread.Alone(func() error {
		cmd = New(program, "").check(t.Context())
		if err := cmd.Start(); err != nil {
			return err
		}
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			_, err := os.Stat(started)
			if err == nil && len(processesWith(t, started)) > 0 || time.Now().After(end) {
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
		left := processesWith(t, dir)
		if len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Errorf("%d processes that the command started still run", len(left))
			for _, p := range left {
				p.Kill()
			}
			break
		}
	}
}

// processesWith returns the processes whose command lines contain text.
func processesWith(t *testing.T, text string) []*os.Process {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var list []*os.Process
	for _, name := range lines {
		line, err := os.ReadFile(name)
		if err != nil || !bytes.Contains(line, []byte(text)) { // a zombie has no command line
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil {
			t.Fatal(err)
		}
		if p, err := os.FindProcess(pid); err == nil {
			list = append(list, p)
		}
	}
	return list
}
