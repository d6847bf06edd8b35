package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/store/storetest"
)

func TestFullDiskIsReportedAsNotWritable(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a tmpfs needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=4m,mode=700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	st, err := storetest.Open(t, filepath.Join(dir, "db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	if _, err := st.InstanceID(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(writable(dir), st.Writable(t.Context())); err != nil {
		t.Fatalf("with space left: %v", err)
	}

	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 8<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk takes all: %v", err)
	}
	if err := writable(dir); !fault.DiskFull(err) {
		t.Errorf("writable = %v, want that the disk is full", err)
	}
	// SQLite overwrites existing WAL frames before it needs more disk space.
	var full error
	for range 2000 {
		full = st.Writable(t.Context())
		if full != nil {
			break
		}
	}
	if !fault.DiskFull(full) {
		t.Errorf("Writable = %v, want that the disk is full", full)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(writable(dir), st.Writable(t.Context())); err != nil {
		t.Errorf("with space again: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".ready-*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestOneCheckOfReadinessServesManyRequests(t *testing.T) {
	checks, broken := 0, errors.New("broken")
	r := newReadiness(func(context.Context) error { checks++; return broken })
	gone, cancel := context.WithCancel(t.Context())
	for range 3 {
		if err := r.now(gone); err != broken {
			t.Errorf("now = %v, want what the check returned", err)
		}
	}
	if checks != 1 {
		t.Errorf("%d checks, want 1", checks)
	}
	r.busy <- struct{}{} // a check is in progress
	cancel()
	if err := r.now(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("now of a caller that is gone = %v", err)
	}
}
