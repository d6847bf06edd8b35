package snapshot_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

// undo goes back and returns what the jail then has in a file that each command extends.
func (h *harness) undo(j id.Jail, o snapshot.UndoOptions) string {
	h.t.Helper()
	if _, err := h.keeper.Undo(h.t.Context(), j, o); err != nil {
		h.t.Fatal(err)
	}
	return h.sh(j, "cat /root/f 2>/dev/null || true")
}

// A jail goes back snapshot by snapshot, and forward again.
func TestUndoSteps(t *testing.T) {
	w := newWatched(t)
	j := w.running(policy(jail.Snapshots{Every: time.Hour})) // with a policy it is known whether the jail has changed
	w.background(j, "exec sleep 1000")
	w.waitSleeping(j, "sleep 1000")
	w.take(j, jail.Copied)
	var last snapshot.Snapshot
	command := func(text string) {
		t.Helper()
		w.sh(j, "echo "+text+" >> /root/f")
		last = w.take(j, jail.Copied)
	}
	command("a")
	command("b")
	command("c")
	one := snapshot.UndoOptions{Steps: 1}
	var got []string
	for range 2 {
		got = append(got, w.undo(j, one))
	}
	if want := "a\nb\n a\n"; strings.Join(got, " ") != want {
		t.Errorf("two steps back, the file has %q, want %q", got, want)
	}
	if n := len(w.list(j, snapshot.Before)); n != 0 {
		t.Errorf("%d snapshots were taken before going back, want none, because nothing had changed", n)
	}
	command("d")
	if got := w.undo(j, snapshot.UndoOptions{Steps: 2}); got != "" {
		t.Errorf("two steps back from a and d, the file has %q, want none", got)
	}
	if _, err := w.harness.keeper.Rewind(t.Context(), j, last.ID, jail.RewindOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := w.sh(j, "cat /root/f"); got != "a\nd\n" {
		t.Errorf("forward again, the file has %q, want a and d", got)
	}
	if _, err := w.harness.keeper.Undo(t.Context(), j, snapshot.UndoOptions{Steps: 9}); !errors.Is(err, fault.NotFound) {
		t.Errorf("nine steps back: got error %v, want %v", err, fault.NotFound)
	}
	if _, err := w.harness.keeper.Undo(t.Context(), j, snapshot.UndoOptions{}); !errors.Is(err, fault.Invalid) {
		t.Errorf("no step back: got error %v, want %v", err, fault.Invalid)
	}
}

// Changes since the newest snapshot are saved, except with Discard.
func TestUndoSavesChanges(t *testing.T) {
	w := newWatched(t)
	j := w.running()
	if _, err := w.harness.keeper.Undo(t.Context(), j, snapshot.UndoOptions{Steps: 1}); !errors.Is(err, fault.NotFound) {
		t.Errorf("without a snapshot: got error %v, want %v", err, fault.NotFound)
	}
	w.sh(j, "echo a > /root/f")
	w.take(j, jail.Copied)
	w.sh(j, "echo b > /root/f")
	if got := w.undo(j, snapshot.UndoOptions{Steps: 1}); got != "a\n" {
		t.Errorf("after undo the file has %q, want a", got)
	}
	saved := w.list(j, snapshot.Before)
	if len(saved) != 1 || saved[0].Trigger != "undo" {
		t.Fatalf("snapshots before undo: %+v, want one", saved)
	}
	if got := w.sh(w.branch(saved[0].ID, 1)[0], "cat /root/f"); got != "b\n" {
		t.Errorf("the saved state has %q, want b", got)
	}
	w.sh(j, "echo c > /root/f")
	if got := w.undo(j, snapshot.UndoOptions{Steps: 1, Discard: true}); got != "a\n" {
		t.Errorf("after undo the file has %q, want a", got)
	}
	if n := len(w.list(j, snapshot.Before)); n != 1 {
		t.Errorf("%d snapshots before undo, want still one", n)
	}
}

// Removed snapshots are skipped.
func TestUndoAfterRemoval(t *testing.T) {
	w := newWatched(t)
	j := w.running()
	var taken []snapshot.Snapshot
	for _, c := range []string{"a", "b", "c"} {
		w.sh(j, "echo "+c+" > /root/f")
		taken = append(taken, w.take(j, jail.Copied))
	}
	w.sh(j, "echo d > /root/f")
	for _, n := range []int{1, 2} {
		if err := w.harness.keeper.Delete(t.Context(), taken[n].ID); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.undo(j, snapshot.UndoOptions{Steps: 1}); got != "a\n" {
		t.Errorf("after undo the file has %q, want a", got)
	}
}
