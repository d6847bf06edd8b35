package snapshot_test

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

// TestPreDumpOfLargeJail needs a kernel that tracks written memory pages.
func TestPreDumpOfLargeJail(t *testing.T) {
	if out, err := exec.Command(criu(), "check", "--feature", "mem_dirty_track").CombinedOutput(); err != nil {
		t.Skipf("the kernel does not track written memory: %s", out)
	}
	said := &lockedBuffer{}
	h := newNetworkHarness(t, func(c *jail.Config, _ *snapshot.Config) {
		c.Log = slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	j := h.running(func(s *jail.Spec) { s.Limits.MemoryMB = 1024 })
	h.background(j, `exec bash -c '
		old=$(head -c 90000000 /dev/zero | tr "\0" x); n=0
		while :; do
			n=$((n+1)); new=$(head -c 1000000 /dev/zero | tr "\0" $((n%10))); echo "${#old} ${#new}" > /tmp/sizes
			if test -e /tmp/go; then rm /tmp/go; echo "$old" | tr -d "x\n" | wc -c > /tmp/wrong; fi
			echo $n > /tmp/count
		done'`)
	h.eventually(j, "cat /tmp/sizes", "90000000 1000000")
	s := h.take(j, jail.Copied)
	if !strings.Contains(said.String(), "memory of a jail pre-dumped") || strings.Contains(said.String(), "cannot pre-dump") {
		t.Errorf("the memory was not pre-dumped:\n%s", said)
	}
	host := newHost(t) // an exported archive contains the complete memory
	host.root = "/"
	again, err := host.keeper.Import(t.Context(), strings.NewReader(string(h.export(s.ID))), snapshot.ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	host.branch(again.ID, 1)
	for _, k := range append(h.branch(s.ID, 2), j) {
		h.checkCounting(k, 3)
		h.sh(k, ": > /tmp/go")
		h.eventually(k, "cat /tmp/wrong", "0")
		h.eventually(k, "cat /tmp/sizes", "90000000 1000000")
	}
}

// TestSnapshotWhenPreDumpFails uses a CRIU that reports a feature which it then rejects.
func TestSnapshotWhenPreDumpFails(t *testing.T) {
	real, err := exec.LookPath(criu())
	if err != nil {
		t.Skip(err)
	}
	tool := filepath.Join(t.TempDir(), "criu")
	script := fmt.Sprintf("#!/bin/sh\ncase \"$1 $2\" in 'check --feature') exit 0;; esac\nexec %s \"$@\"\n", real)
	if err := os.WriteFile(tool, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if exec.Command(real, "check", "--feature", "mem_dirty_track").Run() == nil {
		t.Skip("this kernel supports the feature")
	}
	said := &lockedBuffer{}
	h := newHarness(t)
	h.root, h.criu = "/", tool
	h.tune = func(c *jail.Config, _ *snapshot.Config) { c.Log = slog.New(slog.NewTextHandler(said, nil)) }
	h.reopen()
	j := h.running(func(s *jail.Spec) { s.Limits.MemoryMB = 1024 })
	h.background(j, `exec bash -c 'old=$(head -c 90000000 /dev/zero | tr "\0" x); while :; do n=$((n+1)); echo "${#old}" > /tmp/sizes; echo $n > /tmp/count; sleep 0.01; done'`)
	h.eventually(j, "cat /tmp/sizes", "90000000")
	s := h.take(j, jail.Copied)
	if !strings.Contains(said.String(), "cannot pre-dump the memory of a jail") {
		t.Errorf("the failed pre-dump was not logged: %s", said)
	}
	for _, k := range append(h.branch(s.ID, 1), j) {
		h.checkCounting(k, 3)
	}
}
