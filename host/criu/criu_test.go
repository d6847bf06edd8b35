package criu

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"glasshouse/internal/thread"
)

// The check of the kernel ends with its thread, as with a daemon that is killed.
func TestCheckEndsWithItsThread(t *testing.T) {
	program := filepath.Join(t.TempDir(), "criu")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexec sleep 60\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	var cmd *exec.Cmd
	if err := thread.Alone(func() error {
		cmd = New(program, "").check(t.Context())
		return cmd.Start()
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
}
