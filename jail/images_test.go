package jail_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/observe/event"
)

// preDumpBackend is a scripted backend that supports pre-dumps, and whose instances list their
// processes.
type preDumpBackend struct{ *newScript }

func (p preDumpBackend) PreDump(context.Context, jail.Plan, jail.Instance, string) (bool, error) {
	return true, p.step("predump")
}
func (p preDumpBackend) MergeImages(string) error { return p.step("merge") }

func (p preDumpBackend) Create(ctx context.Context, plan jail.Plan) (jail.Instance, error) {
	return withProcessList(p.newScript.Create(ctx, plan))
}

func (p preDumpBackend) Restore(ctx context.Context, plan jail.Plan, dir string) (jail.Instance, error) {
	return withProcessList(p.newScript.Restore(ctx, plan, dir))
}

type listingInstance struct{ *scriptedInstance }

func withProcessList(i jail.Instance, err error) (jail.Instance, error) {
	if err != nil {
		return nil, err
	}
	return listingInstance{i.(*scriptedInstance)}, nil
}

func (l listingInstance) Processes(context.Context) ([]jail.Process, error) {
	return []jail.Process{{PID: l.pid, Comm: "init"}}, l.s.step("processes")
}

// preDumpManager opens a Manager on a preDumpBackend.
func (h *harness) preDumpManager() (*jail.Manager, *newScript) {
	h.Helper()
	s := h.newScript()
	m := h.open(h.config(preDumpBackend{s}))
	h.Cleanup(func() {
		s.mu.Lock()
		clear(s.fails)
		s.mu.Unlock()
	})
	return m, s
}

// Memory is pre-dumped only if that shortens the pause. The images are merged in any case, even if
// the jail is stopped.
func TestPreDumpConditions(t *testing.T) {
	const preDumped, merged, plain = "predump, dump, merge", "dump, merge", "dump"
	for _, c := range []struct {
		name   string
		o      jail.CheckpointOptions
		paused bool
		want   string
	}{
		{"copied", jail.CheckpointOptions{Layering: jail.Copied}, false, preDumped},
		{"chosen", jail.CheckpointOptions{}, false, preDumped},
		{"paused", jail.CheckpointOptions{Layering: jail.Copied}, true, merged},
		{"stacked", jail.CheckpointOptions{Layering: jail.Stacked}, false, "dump, merge, merge"},
		{"stopped", jail.CheckpointOptions{Stop: true}, false, "dump, merge, merge"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHarness(t)
			m, s := h.preDumpManager()
			j := h.running(m)
			if c.paused {
				if _, err := m.Pause(t.Context(), j.ID); err != nil {
					t.Fatal(err)
				}
			}
			dir := t.TempDir()
			c.o.Snapshot, c.o.Images, c.o.Layer = id.NewSnapshot(), dir, filepath.Join(dir, "layer")
			s.takeCalls()
			made, err := m.Checkpoint(t.Context(), j.ID, c.o)
			if err != nil {
				t.Fatal(err)
			}
			got := slices.DeleteFunc(s.takeCalls(), func(op string) bool { return op != "predump" && op != "dump" && op != "merge" })
			wantCalls(t, c.name, got, c.want)
			if len(made.Processes) != 1 || made.Processes[0].Comm != "init" || made.ProcessesErr != nil {
				t.Errorf("checkpoint processes = %v, %v; want init", made.Processes, made.ProcessesErr)
			}
		})
	}
	t.Run("fails", func(t *testing.T) { // a failed pre-dump only makes the pause longer
		h := newHarness(t)
		m, s := h.preDumpManager()
		j := h.running(m)
		s.fail("predump", failureModes["error"])
		s.fail("processes", failureModes["error"])
		made, err := h.checkpoint(m, j.ID, jail.Copied)
		if err != nil || !errors.Is(made.ProcessesErr, errScripted) {
			t.Errorf("Checkpoint = %v, error of the process list %v; want nil and %v", err, made.ProcessesErr, errScripted)
		}
		if _, err := m.Processes(t.Context(), j.ID); !errors.Is(err, errScripted) {
			t.Errorf("Processes = %v, want %v", err, errScripted)
		}
		s.fail("merge", failureModes["error"])
		if _, err := h.checkpoint(m, j.ID, jail.Copied); !errors.Is(err, errScripted) {
			t.Errorf("Checkpoint that cannot be merged = %v, want %v", err, errScripted)
		}
		if got := h.sh(m, j.ID, "echo fine"); got != "fine" {
			t.Errorf("output = %q, want fine", got)
		}
	})
}

// A layer that is too large to copy is stacked, unless the caller requires a copy.
func TestTooLargeLayerIsStacked(t *testing.T) {
	tooLarge := func() error { return fault.Newf(fault.TooLarge, "script", "", "too large") }
	for _, op := range []string{"copy", "take"} {
		t.Run(op, func(t *testing.T) {
			h := newHarness(t)
			m, s := h.scripted()
			j := h.running(m)
			s.fail(op, tooLarge)
			if _, err := h.checkpoint(m, j.ID, jail.Copied); !errors.Is(err, fault.TooLarge) {
				t.Errorf("Checkpoint with layering copied = %v, want too large", err)
			}
			h.wantJails(j.ID)
			s.takeCalls()
			made, err := h.checkpoint(m, j.ID, "")
			if err != nil || made.Layering != jail.Stacked {
				t.Fatalf("layering = %q, %v; want stacked", made.Layering, err)
			}
			calls := s.takeCalls()
			if !slices.Contains(calls, "seal") || !slices.Contains(calls, "restore") {
				t.Errorf("calls = %q, want seal and restore", calls)
			}
			if op == "take" && !slices.Contains(calls, "end") {
				t.Errorf("calls = %q, want end", calls)
			}
			if got := h.sh(m, j.ID, "echo fine"); got != "fine" {
				t.Errorf("output = %q, want fine", got)
			}
			s.fail("end", failureModes["error"])
			if _, err := h.checkpoint(m, j.ID, ""); op == "take" && !errors.Is(err, errScripted) {
				t.Errorf("Checkpoint whose copy cannot be ended = %v, want %v", err, errScripted)
			}
			if got := h.sh(m, j.ID, "echo fine"); got != "fine" {
				t.Errorf("output = %q, want fine", got)
			}
		})
	}
}

// A rewind to a snapshot without memory stops the jail, and the jail uses the snapshot's
// layers.
func TestRewindToFilesOnlySnapshotStopsJail(t *testing.T) {
	h := newHarness(t)
	m, s := h.scripted()
	j := h.running(m)
	img := jail.Image{Snapshot: id.NewSnapshot(), Jail: j}
	img.Jail.Sealed = []string{"/sealed"}
	for _, op := range []string{"kill", "clean", "shed"} {
		s.fail(op, failureModes["error"])
		if _, err := m.Rewind(t.Context(), j.ID, img, jail.RewindOptions{}); err == nil {
			t.Errorf("Rewind when %s fails = nil, want an error", op)
		}
		s.fail(op, nil)
		if got, err := m.Get(t.Context(), j.ID); err != nil || len(got.Sealed) != 0 {
			t.Errorf("after a failed %s: sealed layers = %q, %v; want none", op, got.Sealed, err)
		}
	}
	got, err := m.Rewind(t.Context(), j.ID, img, jail.RewindOptions{})
	if err != nil || got.State != jail.Stopped || !slices.Equal(got.Sealed, img.Jail.Sealed) {
		t.Errorf("Rewind = %s on %q, %v; want stopped on %q", got.State, got.Sealed, err, img.Jail.Sealed)
	}
	h.wantNoInits()
	if got, err := m.Start(t.Context(), j.ID); err != nil || got.State != jail.Running {
		t.Errorf("Start = %s, %v; want running", got.State, err)
	}
}

func TestRewindToIncompatibleSnapshot(t *testing.T) {
	h := newHarness(t)
	m, _ := h.scripted()
	img, of := h.image(m)
	for name, change := range map[string]func(*jail.Jail){
		"backend": func(j *jail.Jail) { j.Spec.Backend = "bwrap" },
		"runtime": func(j *jail.Jail) { j.Spec.Runtime = "crun" },
		"rootfs":  func(j *jail.Jail) { j.Digest = "sha256:other" },
	} {
		other := img
		change(&other.Jail)
		if _, err := m.Rewind(t.Context(), of, other, jail.RewindOptions{}); !errors.Is(err, fault.Conflict) {
			t.Errorf("Rewind to another %s = %v, want conflict", name, err)
		}
	}
	keep := true
	if _, err := m.Rewind(t.Context(), of, img, jail.RewindOptions{KeepConnections: &keep}); err != nil {
		t.Errorf("Rewind of an isolated jail with its connections = %v, want nil", err)
	}
}

// rewireBackend is a scripted backend whose jails can keep their connections.
type rewireBackend struct{ *newScript }

func (r rewireBackend) CanMoveLink(jail.Plan) error { return r.step("can rewire") }
func (r rewireBackend) MoveLink(_ context.Context, _ jail.Plan, _ jail.Instance, _ jail.Plan, _ jail.Instance) (jail.MovedLink, error) {
	return r, r.step("rewire")
}
func (r rewireBackend) KeepConnections() (kept, closed int, err error) { return 1, 2, r.step("go on") }
func (r rewireBackend) Undo() error                                    { return r.step("undo") }
func (r rewireBackend) Close() error                                   { return r.step("close") }

func TestRewindKeepConnections(t *testing.T) {
	yes, no := true, false
	for _, c := range []struct {
		name  string
		keep  *bool
		spec  bool   // the jail's setting
		fails string // the operation that fails
		want  []string
		err   bool
	}{
		{"asked", &yes, false, "", []string{"can rewire", "rewire", "go on", "close"}, false},
		{"wished", nil, true, "", []string{"can rewire", "rewire", "go on", "close"}, false},
		{"not wished", nil, false, "", nil, false},
		{"refused", &no, true, "", nil, false},
		{"cannot, asked", &yes, false, "can rewire", []string{"can rewire"}, true},
		{"cannot, wished", nil, true, "can rewire", []string{"can rewire"}, false},
		{"rewire fails", &yes, false, "rewire", []string{"can rewire", "rewire"}, true},
		{"go on fails", &yes, false, "go on", []string{"can rewire", "rewire", "go on", "undo", "close"}, true},
		{"record fails", &yes, false, "put", []string{"can rewire", "rewire", "go on", "undo", "close"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHarness(t)
			h.backend.lacks = map[string]string{}
			s := h.newScript()
			cfg := h.config(rewireBackend{s})
			cfg.Store = &s.store
			m := h.open(cfg)
			j, err := m.Create(t.Context(), jail.Spec{Network: jail.Bridged, Start: true, Snapshots: jail.Snapshots{KeepConnections: c.spec}})
			if err != nil {
				t.Fatal(err)
			}
			made, err := h.checkpoint(m, j.ID, jail.Copied)
			if err != nil {
				t.Fatal(err)
			}
			s.takeCalls()
			switch c.fails {
			case "put": // the second Put; the first one records the new instance
				s.store.failAfter(1)
			default:
				s.fail(c.fails, failureModes["error"])
			}
			got, err := m.Rewind(t.Context(), j.ID, made.Image, jail.RewindOptions{KeepConnections: c.keep})
			if (err != nil) != c.err {
				t.Errorf("Rewind = %v, want error %v", err, c.err)
			}
			calls := slices.DeleteFunc(s.takeCalls(), func(op string) bool {
				return !slices.Contains([]string{"can rewire", "rewire", "go on", "undo", "close"}, op)
			})
			if !slices.Equal(calls, c.want) {
				t.Errorf("calls = %q, want %q", calls, c.want)
			}
			if kept := got.Link != nil && got.Link.Name == j.ID; err == nil && kept != slices.Contains(c.want, "rewire") {
				t.Errorf("Wire = %+v, want the previous link %v", got.Link, !kept)
			}
			if got := h.sh(m, j.ID, "echo fine"); got != "fine" {
				t.Errorf("output = %q, want fine", got)
			}
		})
	}
}

func TestCopiesMatchLimitsAndCanBeDropped(t *testing.T) {
	h := newHarness(t)
	m, s := h.scripted()
	img, of := h.image(m)
	for range 2 {
		if _, err := branch(m, t.Context(), img, true); err != nil {
			t.Fatal(err)
		}
	}
	spec := img.Jail.Spec
	spec.Limits.MemoryMB = 64
	other, err := m.Branch(t.Context(), img, jail.BranchOptions{Spec: spec, Number: 1, Op: event.OpBranch, At: time.Unix(1e9, 0)})
	if err != nil || !other.Created.Equal(time.Unix(1e9, 0)) || other.Origin.Snapshot != img.Snapshot {
		t.Fatalf("Branch = %+v, %v; want a branch of the snapshot, created at the time of the request", other, err)
	}
	if n := m.Copies(img.Snapshot); n != 2 {
		t.Errorf("Copies = %d, want 2: the branch has other limits", n)
	}
	if _, err := branch(m, t.Context(), img, false); err != nil {
		t.Fatal(err)
	}
	if n := m.Copies(img.Snapshot); n != 1 {
		t.Errorf("Copies = %d, want 1", n)
	}
	s.fail("clean", failureModes["error"])
	if err := m.DropCopies(t.Context(), img.Snapshot); !errors.Is(err, errScripted) {
		t.Errorf("DropCopies = %v, want %v", err, errScripted)
	}
	if n := m.Copies(img.Snapshot); n != 0 {
		t.Errorf("Copies = %d, want 0, also if the removal failed", n)
	}
	s.fail("clean", nil)
	if err := m.DropCopies(t.Context(), img.Snapshot); err != nil {
		t.Errorf("DropCopies without copies = %v, want nil", err)
	}
	m.Close()
	m = h.scriptedManager(s) // removes the partly removed copy
	all, err := m.List(t.Context(), jail.ListOptions{})
	if err != nil || len(all) != 3 {
		t.Errorf("jails = %d, %v; want 3: the jail and two branches", len(all), err)
	}
	h.wantInstances(all)
	_ = of
}

// Unused spares are removed, and a spare that has ended is not handed out.
func TestPoolRemovesOldAndDeadSpares(t *testing.T) {
	h := newHarness(t)
	h.pool = jail.PoolConfig{Size: 1, TTL: time.Hour}
	h.scriptParts = true
	m, s := h.scripted()
	ctx := t.Context()
	first, err := m.Create(ctx, jail.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	waitSpares(t, m, 1)
	pool := m.Pool()
	if len(pool) != 1 || pool[0].Ready != 1 || pool[0].Backend != "oci" || pool[0].Network != "isolated" || pool[0].Digest != "dir:/" || time.Since(pool[0].Used) > time.Hour {
		t.Errorf("Pool = %+v, want one spare of the shape", pool)
	}
	// If a part fails the claim of a spare, the spare is removed.
	for _, op := range []string{"select", "adapt", "secrets", "show"} {
		waitSpares(t, m, 1)
		s.fail(op, func() error { s.fail(op, nil); return errScripted })
		if _, err := m.Create(ctx, jail.Spec{Name: "mine", Start: true}); !errors.Is(err, errScripted) {
			t.Errorf("Create from the pool when %s fails = %v, want %v", op, err, errScripted)
		}
	}
	waitSpares(t, m, 1)
	records, err := h.db.Jails().All(ctx)
	if err != nil || len(records) != 2 {
		t.Fatalf("records = %d, %v; want 2: the jail and the spare", len(records), err)
	}
	spare := records[slices.IndexFunc(records, func(j jail.Jail) bool { return j.ID != first.ID })]
	gone := make(chan struct{})
	s.fail("forget record", func() error { s.fail("forget record", nil); close(gone); return nil })
	if p, err := os.FindProcess(h.pid(spare.ID)); err != nil {
		t.Fatal(err)
	} else if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	<-gone
	got, err := m.Create(ctx, jail.Spec{Start: true})
	if err != nil || got.ID == spare.ID || got.State != jail.Running {
		t.Errorf("Create = %s in state %s, %v; want a running jail other than the dead spare", got.ID, got.State, err)
	}
	// Jails that cannot be pooled are created cold, and the pool does not learn their shape.
	for _, spec := range []jail.Spec{{Hostname: "own"}, {Trusted: true, Workspace: &jail.Workspace{Source: t.TempDir()}}} {
		if _, err := m.Create(ctx, spec); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(m.Pool()); n != 1 {
		t.Errorf("shapes in the pool = %d, want 1", n)
	}
	m.Close()
	h.pool.TTL = 20 * time.Millisecond
	m = h.scriptedManager(s)
	if _, err := m.Create(ctx, jail.Spec{}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); len(m.Pool()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("Pool = %+v, want no shapes after the TTL", m.Pool())
		}
	}
	waitSpares(t, m, 0)
}

// The pool learns at most eight shapes.
func TestPoolLimitsShapes(t *testing.T) {
	h := newHarness(t)
	h.pool = jail.PoolConfig{Size: 1, TTL: time.Hour}
	m := h.manager()
	for n := range 10 {
		if _, err := m.Create(t.Context(), jail.Spec{Limits: jail.Limits{MemoryMB: int64(64 + n)}}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(m.Pool()); n != 8 {
		t.Errorf("shapes in the pool = %d, want 8", n)
	}
	waitSpares(t, m, 8)
}
