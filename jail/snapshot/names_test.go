package snapshot_test

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"

	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

func TestNamesOfSnapshotsAreUnique(t *testing.T) {
	h := newHost(t)
	j, other := h.running(), h.running()
	first, err := h.keeper.Take(t.Context(), j, snapshot.TakeOptions{Name: "before"})
	if err != nil {
		t.Fatal(err)
	}
	h.reopen()
	_, err = h.keeper.Take(t.Context(), other, snapshot.TakeOptions{Name: "before"})
	if !errors.Is(err, fault.Conflict) || fault.FieldOf(err) != "name" || !strings.Contains(fault.RemedyOf(err), "snapshot rm "+string(first.ID)) {
		t.Errorf("the second snapshot with a name: %v, remedy %q; want a conflict about the first", err, fault.RemedyOf(err))
	}
	var wg sync.WaitGroup
	errs := make([]error, 2)
	wg.Go(func() { _, errs[0] = h.keeper.Take(t.Context(), j, snapshot.TakeOptions{Name: "race"}) })
	wg.Go(func() { _, errs[1] = h.keeper.Take(t.Context(), other, snapshot.TakeOptions{Name: "race"}) })
	wg.Wait()
	if (errs[0] == nil) == (errs[1] == nil) || !errors.Is(errors.Join(errs...), fault.Conflict) {
		t.Errorf("simultaneous snapshots with a name: %v; want one success and one conflict", errs)
	}

	// The archive of a snapshot can be imported while the original exists.
	got, err := h.keeper.Import(t.Context(), bytes.NewReader(h.export(first.ID)), snapshot.ImportOptions{})
	if err != nil || got.Name != "" {
		t.Errorf("import = name %q, %v; want no name", got.Name, err)
	}
	h.forget(got.ID)
	archive := h.export(first.ID)
	h.forget(first.ID)
	got, err = h.keeper.Import(t.Context(), bytes.NewReader(archive), snapshot.ImportOptions{})
	if err != nil || got.Name != "before" {
		t.Errorf("import = name %q, %v; want the name of the original", got.Name, err)
	}
}

func TestNamesOfBranchesAreUnique(t *testing.T) {
	h := newHarness(t)
	s := h.take(h.running(), "")
	o := snapshot.Overrides{Name: "try"}
	if _, err := h.keeper.Branch(t.Context(), s.ID, 2, o); err != nil {
		t.Fatal(err)
	}
	before := len(h.names())
	if _, err := h.keeper.Branch(t.Context(), s.ID, 3, o); !errors.Is(err, fault.Conflict) {
		t.Errorf("branches try-1 to try-3: %v, want a conflict", err)
	}
	if _, err := h.keeper.Restore(t.Context(), s.ID, snapshot.Overrides{Name: "try-1"}); !errors.Is(err, fault.Conflict) {
		t.Errorf("restore as try-1: %v, want a conflict", err)
	}
	if got := h.names(); len(got) != before {
		t.Errorf("jails %q after the conflicts, want %d", got, before)
	}
	if _, err := h.keeper.Restore(t.Context(), s.ID, o); err != nil {
		t.Errorf("restore as try: %v", err)
	}
}

// names returns the names of all jails.
func (h *harness) names() (names []string) {
	h.t.Helper()
	all, err := h.jails.List(h.t.Context(), jail.ListOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	for _, j := range all {
		names = append(names, j.Spec.Name)
	}
	return names
}
