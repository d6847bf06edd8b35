package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/opencontainers/cgroups"
)

// unifiedDir creates a cgroup v2 cgroup. It is removed after the test with the cgroup below it.
func unifiedDir(t *testing.T) string {
	t.Helper()
	root := mountpoint
	if cgroups.IsCgroup2HybridMode() {
		root += "/unified"
	}
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
		t.Skip("no cgroup2 hierarchy is mounted")
	}
	dir, err := os.MkdirTemp(root, "glasshouse-test-")
	if os.IsPermission(err) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cgroups.RemovePath(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func sleeperIn(t *testing.T, dir string) int {
	t.Helper()
	cmd := exec.Command("sleep", "300")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if err := cgroups.WriteCgroupProc(dir, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

func TestDelegatedMovesDaemonToChildCgroup(t *testing.T) {
	dir := unifiedDir(t)
	pid := sleeperIn(t, dir)
	for range 2 {
		if err := evacuate(dir); err != nil {
			t.Fatal(err)
		}
	}
	if pids, err := cgroups.GetPids(dir); err != nil || len(pids) != 0 {
		t.Errorf("processes of the delegated cgroup: %v, %v", pids, err)
	}
	if pids, err := cgroups.GetPids(filepath.Join(dir, "daemon")); err != nil || len(pids) != 1 || pids[0] != pid {
		t.Errorf("processes of the child cgroup: %v, %v, want %d", pids, err, pid)
	}
}

func TestDelegatedBaseIsNearestEmptyCgroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	dir := unifiedDir(t)
	session := filepath.Join(dir, "session")
	if err := os.Mkdir(session, 0o755); err != nil {
		t.Fatal(err)
	}
	sleeperIn(t, session)
	root, name := filepath.Dir(dir), "/"+filepath.Base(dir)
	if base, err := delegatedBase(root, name+"/session"); err != nil || base != name {
		t.Errorf("with processes in session, the base is %q, %v, want %q", base, err, name)
	}
}

func TestUnwritableCgroupIsNotDelegated(t *testing.T) {
	if base, err := delegatedBase(t.TempDir(), "/absent"); err == nil {
		t.Errorf("delegatedBase of an unwritable cgroup = %q", base)
	}
}
