package store

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// smallDisk mounts a file system of a few megabytes.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a tmpfs needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "mode=700,size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func TestCommitsContinueOnFullDisk(t *testing.T) {
	dir := smallDisk(t, "256m")
	s, err := Open(t.Context(), filepath.Join(dir, "glasshouse.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if _, err := s.InstanceID(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, int64(disk.Bavail+1)*disk.Bsize), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	// Each commit adds at least a page to the write-ahead log: in total more than the checkpoint limit.
	for i := range 5000 {
		if err := s.Writable(t.Context()); err != nil {
			t.Fatalf("commit %d with a full disk: %v", i, err)
		}
	}
}

func TestPreallocationIsBounded(t *testing.T) {
	dir := smallDisk(t, "8m")
	s, err := Open(t.Context(), filepath.Join(dir, "glasshouse.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		t.Fatal(err)
	}
	if left := int64(disk.Bavail) * disk.Bsize; left < 4<<20 {
		t.Errorf("%d of 8 MiB are free with a new database, want at least half", left)
	}
}
