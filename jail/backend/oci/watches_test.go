package oci

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// A watched file is found although its directory has a subdirectory with more files than are searched.
func TestWatchedPathsInLargeTrees(t *testing.T) {
	dir := t.TempDir()
	for i := range 400 {
		if err := os.MkdirAll(filepath.Join(dir, "many", fmt.Sprint(i/20)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "many", fmt.Sprint(i/20), fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{filepath.Join(dir, "src"), filepath.Join(dir, "watched")}
	if err := os.Mkdir(want[0], 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(want[1], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	inotify, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(inotify)
	for _, name := range want {
		if _, err := unix.InotifyAddWatch(inotify, name, unix.IN_MODIFY); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("sleep", "60") // its working directory is searched first
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	nodes := map[node]int{}
	for _, n := range readWatches(fmt.Sprintf("/proc/self/fdinfo/%d", inotify)) {
		nodes[n] = cmd.Process.Pid
	}
	if len(nodes) != len(want) {
		t.Fatalf("watched: %v, want %d files", nodes, len(want))
	}
	got, err := pathsOf(os.Getpid(), nodes, 100)
	slices.Sort(got)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("paths of watched files: %q, %v, want %q", got, err, want)
	}
	if err := os.Remove(want[1]); err != nil {
		t.Fatal(err)
	}
	if got, err := pathsOf(os.Getpid(), nodes, 1000); err == nil {
		t.Errorf("a deleted file has been found: %q", got)
	}
}
