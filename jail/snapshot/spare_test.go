package snapshot_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

// A brokenRecord is a record store that fails with a full disk for unused spares.
type brokenRecord struct {
	jail.Store
	full atomic.Bool
}

func (b *brokenRecord) Put(ctx context.Context, j jail.Jail) error {
	if j.State == jail.Creating && b.full.Load() {
		return fault.New(fault.Exhausted, "store", "", unix.ENOSPC)
	}
	return b.Store.Put(ctx, j)
}

func TestFailedRewindRemovesSpare(t *testing.T) {
	h := newHarness(t)
	broken := &brokenRecord{}
	h.tune = func(c *jail.Config, _ *snapshot.Config) {
		broken.Store = c.Store
		c.Store = broken
	}
	h.reopen()
	j := h.running()
	h.sh(j, "echo one > /root/a")
	s := h.take(j, jail.Copied)
	if err := h.keeper.FillSpares(t.Context(), s.ID, 1); err != nil {
		t.Fatal(err)
	}
	dirs := func() int {
		entries, err := os.ReadDir(filepath.Join(h.dir, "jails"))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	if n := dirs(); n != 2 {
		t.Fatalf("%d directories of a jail and a spare", n)
	}
	broken.full.Store(true)
	if _, err := h.keeper.Rewind(t.Context(), j, s.ID, jail.RewindOptions{}); !errors.Is(err, fault.Exhausted) {
		t.Errorf("Rewind = %v, want exhausted", err)
	}
	broken.full.Store(false)
	if n := dirs(); n != 1 {
		t.Errorf("%d directories remain of a jail and a spare after the failed rewind", n)
	}
	if n := h.jails.Copies(s.ID); n != 0 {
		t.Errorf("%d spares exist", n)
	}
	h.sh(j, "test $(cat /root/a) = one; echo two > /root/a")
	if _, err := h.keeper.Rewind(t.Context(), j, s.ID, jail.RewindOptions{}); err != nil {
		t.Fatal(err)
	}
	h.sh(j, "test $(cat /root/a) = one")
}
