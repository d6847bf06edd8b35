package snapshot_test

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/jail/snapshot"
)

func TestBranchesAreListedByNumber(t *testing.T) {
	h := newHarness(t)
	j := h.running()
	s := h.take(j, "")
	made := h.branch(s.ID, 6)
	if got := h.all(); !slices.Equal(got, append([]id.Jail{j}, made...)) {
		t.Errorf("List = %v, want %v", got, made)
	}
}

func TestListAfterDeletedSnapshot(t *testing.T) {
	h := newHarness(t)
	j := h.running()
	var taken []id.Snapshot
	for range 4 {
		taken = append(taken, h.take(j, "").ID)
	}
	page, err := h.keeper.List(t.Context(), snapshot.ListOptions{Limit: 2})
	if err != nil || len(page) != 2 {
		t.Fatal(page, err)
	}
	if err := h.keeper.Delete(t.Context(), taken[1]); err != nil {
		t.Fatal(err)
	}
	rest, err := h.keeper.List(t.Context(), snapshot.ListOptions{After: taken[1]})
	if err != nil {
		t.Fatal(err)
	}
	if len(rest) != 2 || rest[0].ID != taken[2] || rest[1].ID != taken[3] {
		t.Errorf("list after the second snapshot = %v", rest)
	}
	if _, err := h.keeper.List(t.Context(), snapshot.ListOptions{After: id.NewSnapshot()}); err == nil {
		t.Error("List after an unknown snapshot has no error")
	}
}

// TestNewerDaemonWithOlderInit takes a snapshot, restarts the daemon with another build of
// init, and creates branches.
func TestNewerDaemonWithOlderInit(t *testing.T) {
	h := newHarness(t)
	j := h.running()
	h.background(j, counter)
	at := h.checkCounting(j, 3)
	s := h.take(j, jail.Stacked)
	other := filepath.Join(h.dir, "init-of-another-build")
	in, err := os.Open(backendtest.Init(t))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(other, os.O_WRONLY|os.O_CREATE, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if _, err := out.WriteString("another build"); err != nil {
		t.Fatal(err)
	}
	out.Close()
	h.tune = func(c *jail.Config, _ *snapshot.Config) { c.Init = other }
	h.reopen() // also clears the image cache
	k := h.branch(s.ID, 1)[0]
	h.checkCounting(k, at)
	h.checkCounting(j, h.count(j))
}
