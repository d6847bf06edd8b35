package daemon

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

// A copyWorld is a node that copies the snapshots of another one, "b".
type copyWorld struct {
	*testing.T
	*copies
	snapshotCopies // unused methods

	mu      sync.Mutex
	owner   string // "": the index has no snapshot
	down    bool
	exists  bool // at the other node
	opened  int
	release chan struct{} // Import waits for it; nil: not
	have    map[id.Snapshot]snapshot.Snapshot
	from    []jail.Jail
	jails   map[id.Jail]string // nodes of the jails of the fleet
	inUse   bool
}

func newCopyWorld(t *testing.T) *copyWorld {
	w := &copyWorld{T: t, owner: "b", exists: true, have: map[id.Snapshot]snapshot.Snapshot{}}
	w.copies = &copies{fleet: copyFleet{w}, snapshots: w, jails: copyJails{w}, log: slog.New(slog.DiscardHandler), copying: map[id.Snapshot]chan struct{}{}, used: map[id.Snapshot]time.Time{}}
	return w
}

type copyFleet struct{ w *copyWorld }

func (copyFleet) Self() string { return "a" }

func (f copyFleet) Owner(_ context.Context, k fleet.Key) (string, error) {
	if k.Kind == fleet.Jail {
		return f.w.jails[id.Jail(k.ID)], nil
	}
	return f.w.owner, nil
}

func (f copyFleet) Call(_ context.Context, node, path string, _, out any) error {
	if f.w.down || node != "b" || path != hasPath {
		return fault.Newf(fault.Unavailable, "call", node, "down")
	}
	*out.(*bool) = f.w.exists
	return nil
}

func (f copyFleet) Open(_ context.Context, node, path string, in any) (io.ReadCloser, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.w.opened++
	if f.w.down || node != "b" || path != snapshotPath {
		return nil, fault.Newf(fault.Unavailable, "open", node, "down")
	}
	return io.NopCloser(strings.NewReader(string(in.(id.Snapshot)))), nil
}

type copyJails struct{ w *copyWorld }

func (j copyJails) List(context.Context, jail.ListOptions) ([]jail.Jail, error) {
	return j.w.from, nil
}

func (w *copyWorld) Get(_ context.Context, s id.Snapshot) (snapshot.Snapshot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if one, ok := w.have[s]; ok {
		return one, nil
	}
	return snapshot.Snapshot{}, fault.Newf(fault.NotFound, "get", string(s), "no such snapshot")
}

func (w *copyWorld) Import(_ context.Context, r io.Reader, o snapshot.ImportOptions) (snapshot.Snapshot, error) {
	if w.release != nil {
		<-w.release
	}
	data, err := io.ReadAll(r)
	if err != nil || !o.Copy || o.Trusted || o.Move {
		w.Errorf("Import with %+v, %v, want an untrusted copy", o, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	one := snapshot.Snapshot{ID: id.Snapshot(data), Reason: snapshot.Copied}
	w.have[one.ID] = one
	return one, nil
}

func (w *copyWorld) List(_ context.Context, o snapshot.ListOptions) (list []snapshot.Snapshot, _ error) {
	for _, s := range w.have {
		if (s.Reason == snapshot.Copied) == o.Copies {
			list = append(list, s)
		}
	}
	return list, nil
}

func (w *copyWorld) Delete(_ context.Context, s id.Snapshot) error {
	if w.inUse {
		return fault.Newf(fault.Conflict, "delete", string(s), "in use")
	}
	delete(w.have, s)
	return nil
}

const copied = id.Snapshot("s-aaaaaaaaaaaa")

func TestSnapshotIsCopiedOnce(t *testing.T) {
	w := newCopyWorld(t)
	w.release = make(chan struct{})
	errs := make(chan error)
	for range 20 {
		go func() { errs <- w.Fetch(t.Context(), copied) }()
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	time.Sleep(10 * time.Millisecond)
	if err := w.Fetch(ended, copied); err == nil {
		t.Error("Fetch with an ended context = nil, want an error while others copy")
	}
	close(w.release)
	for range 20 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if w.opened != 1 {
		t.Errorf("the snapshot was requested %d times, want once", w.opened)
	}
	// The copy can be used while the other node does not answer.
	w.down = true
	if err := w.Fetch(t.Context(), copied); err != nil {
		t.Errorf("Fetch of a copy of a node that is down = %v, want success", err)
	}
	if err := w.Fetch(t.Context(), "s-bbbbbbbbbbbb"); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Fetch from a node that is down = %v, want unavailable", err)
	}
}

func TestCopyOfDeletedSnapshotIsNotUsed(t *testing.T) {
	for name, change := range map[string]func(w *copyWorld){
		"the index has no snapshot":                   func(w *copyWorld) { w.owner = "" },
		"the index is wrong":                          func(w *copyWorld) { w.owner = "a" },
		"the index does not know of the deletion yet": func(w *copyWorld) { w.exists = false },
	} {
		w := newCopyWorld(t)
		if err := w.Fetch(t.Context(), copied); err != nil {
			t.Fatal(err)
		}
		change(w)
		if err := w.Fetch(t.Context(), copied); !errors.Is(err, fault.NotFound) || len(w.have) != 0 {
			t.Errorf("%s: Fetch = %v with %d copies, want not found and none", name, err, len(w.have))
		}
	}
}

func TestUnusedCopiesAreRemoved(t *testing.T) {
	w := newCopyWorld(t)
	if err := w.Fetch(t.Context(), copied); err != nil {
		t.Fatal(err)
	}
	sweep := func(what string, after time.Duration, want int) {
		t.Helper()
		if err := w.Sweep(t.Context(), time.Now().Add(after)); err != nil || len(w.have) != want {
			t.Errorf("%s: Sweep = %v with %d copies left, want %d", what, err, len(w.have), want)
		}
	}
	sweep("just used", 59*time.Minute, 1)
	w.from = []jail.Jail{{}, {Origin: &jail.Origin{Snapshot: copied}}}
	sweep("with a jail", 2*time.Hour, 1)
	w.from, w.inUse = nil, true
	sweep("in use", 2*time.Hour, 1)
	w.inUse = false
	sweep("after a restart", 3*time.Hour, 1) // nothing is known of its last use
	sweep("not used for an hour", 5*time.Hour, 0)

	if err := w.Fetch(t.Context(), copied); err != nil {
		t.Fatal(err)
	}
	w.owner, w.from = "", []jail.Jail{{Origin: &jail.Origin{Snapshot: copied}}}
	sweep("deleted at its node", 0, 0)
}

// A daemon that has left its fleet keeps only the copies that its jails need.
func TestCopiesAreRemovedOutsideOfFleet(t *testing.T) {
	w := newCopyWorld(t)
	w.have["s-own"] = snapshot.Snapshot{ID: "s-own", Reason: snapshot.Requested}
	if err := w.Fetch(t.Context(), copied); err != nil {
		t.Fatal(err)
	}
	w.fleet = nil
	w.from = []jail.Jail{{}, {Origin: &jail.Origin{Snapshot: copied}}}
	for _, want := range []int{2, 1} {
		if err := w.Leave(t.Context()); err != nil || len(w.have) != want {
			t.Errorf("Leave = %v, and %v are left, want %d", err, w.have, want)
		}
		w.from = nil
	}
	if _, ok := w.have["s-own"]; !ok {
		t.Error("a snapshot of the daemon itself was removed")
	}
}

// The automatic snapshots of a jail stay on its first node until the jail is deleted.
func TestAutomaticSnapshotsOfMovedJails(t *testing.T) {
	w := newCopyWorld(t)
	w.jails = map[id.Jail]string{"j-moved": "b"}
	w.from = []jail.Jail{{ID: "j-here"}}
	for s, one := range map[id.Snapshot]snapshot.Snapshot{
		"s-1": {Jail: jail.Jail{ID: "j-moved"}, Reason: snapshot.Periodic},
		"s-2": {Jail: jail.Jail{ID: "j-moved"}, Reason: snapshot.Requested},
		"s-3": {Jail: jail.Jail{ID: "j-here"}, Reason: snapshot.Before},
	} {
		one.ID = s
		w.have[s] = one
	}
	for _, want := range []int{3, 2} {
		if err := w.Sweep(t.Context(), time.Now()); err != nil || len(w.have) != want {
			t.Errorf("Sweep = %v, and %v are left, want %d", err, w.have, want)
		}
		delete(w.jails, "j-moved")
	}
	if _, ok := w.have["s-1"]; ok {
		t.Error("an automatic snapshot of a deleted jail is left")
	}
}
