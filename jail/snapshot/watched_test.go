package snapshot_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/eventlog"
	"glasshouse/observe/kernel"
)

// watched is a harness with kernel tracing of its jails and with command notifications, like a
// daemon.
type watched struct {
	*harness
	o      *observe.Observers
	keeper atomic.Pointer[snapshot.Manager]

	tuneKeeper func(*snapshot.Config) // may be nil
}

// A brokenStore is a store that can fail with a full disk.
type brokenStore struct {
	snapshot.Store
	full   atomic.Bool
	panics bool // panic instead of returning an error
}

func (b *brokenStore) Put(ctx context.Context, s snapshot.Snapshot) error {
	if b.full.Load() && b.panics {
		panic("the store is broken")
	}
	if b.full.Load() {
		return fault.New(fault.Exhausted, "store", "", unix.ENOSPC)
	}
	return b.Store.Put(ctx, s)
}

func newWatched(t *testing.T) *watched {
	t.Helper()
	w := &watched{}
	t.Cleanup(func() { w.close() })
	w.harness = newHarness(t)
	probe := kernel.New(kernel.Config{})
	err := errors.Join(probe.Probe(t.Context()), probe.Close())
	if errors.Is(err, fault.Unsupported) {
		t.Skip("needs the kernel's tracing: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.tune = w.watch
	w.begin()
	return w
}

// begin starts like a daemon after an earlier one ended.
func (w *watched) begin() {
	w.t.Helper()
	w.reopen()
	w.keeper.Store(w.harness.keeper)
}

func (w *watched) close() {
	if w.o != nil {
		if err := w.o.Close(); err != nil {
			w.t.Error(err)
		}
		w.o = nil
	}
}

func (w *watched) watch(c *jail.Config, k *snapshot.Config) {
	w.close()
	if w.tuneKeeper != nil {
		w.tuneKeeper(k)
	}
	w.o = observe.NewObservers(observe.Config{
		Dir: c.Dir, Policy: eventlog.Policy{Fsync: "none", SegmentMB: 64}, Kernel: kernel.New(kernel.Config{}),
		Exec: func(jid id.Jail, e *event.Event) {
			if k := w.keeper.Load(); k != nil {
				k.ProgramStarted(jid, e)
			}
		},
	})
	if err := w.o.Open(); err != nil {
		w.t.Fatal(err)
	}
	c.Observer = watcher{w.o}
	c.Commands = hook{w}
}

// hook forwards command notifications to the current keeper.
type hook struct{ w *watched }

func (c hook) Before(ctx context.Context, jid id.Jail, argv []string) {
	c.w.keeper.Load().Before(ctx, jid, argv)
}

func (c hook) After(ctx context.Context, jid id.Jail, argv []string) {
	c.w.keeper.Load().After(ctx, jid, argv)
}

// watcher adapts the observers to the interface of the jail manager.
type watcher struct{ o *observe.Observers }

func target(j jail.Jail, s jail.HostInfo) observe.Target {
	return observe.Target{
		Jail: j.ID, Runtime: j.Spec.Runtime, PID: s.PID, Cgroup: s.Cgroup, CgroupDir: s.CgroupDir, Resumed: s.Reattached, ProcessesRecorded: s.Restored,
		IDs: observe.IDMap{First: j.IDs.First, Count: j.IDs.Count}, Selection: j.Spec.Observe, Freeze: s.Freeze, Thaw: s.Thaw,
	}
}

func (w watcher) Attach(ctx context.Context, j jail.Jail, s jail.HostInfo) error {
	return w.o.Attach(ctx, target(j, s))
}

func (w watcher) Reattach(ctx context.Context, j jail.Jail, s jail.HostInfo) error {
	return w.o.Reattach(ctx, target(j, s))
}
func (w watcher) Select(_ context.Context, j jail.Jail) error {
	return w.o.Select(j.ID, j.Spec.Observe)
}
func (w watcher) Mute(ctx context.Context, jid id.Jail, on bool) error {
	return w.o.Mute(ctx, jid, on)
}

func (w watcher) Lineage(ctx context.Context, jid id.Jail, l jail.Lineage) (uint64, error) {
	return w.o.Lineage(ctx, jid, observe.Lineage(l))
}

func (w watcher) Mark(ctx context.Context, jid id.Jail) (jail.Marker, error) {
	m, err := w.o.Mark(ctx, jid)
	return jail.Marker{Seq: m.Seq, Private: m}, err
}

func (w watcher) Changed(ctx context.Context, jid id.Jail, since jail.Marker) (bool, error) {
	m, _ := since.Private.(observe.Mark)
	return w.o.Changed(ctx, jid, m)
}
func (w watcher) Detach(ctx context.Context, jid id.Jail) error { return w.o.Detach(ctx, jid) }
func (w watcher) CloseLog(jid id.Jail) error                    { return w.o.Forget(jid) }
