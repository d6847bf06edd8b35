package jail_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

// hostIDs has host ids for a limited number of jails.
type hostIDs struct {
	left  atomic.Int32 // ranges that More can return
	first atomic.Uint32
	keep  func([]jail.IDRange) ([]jail.IDRange, error) // nil: all
	kept  [][]jail.IDRange
}

func (h *hostIDs) Keep(_ context.Context, used []jail.IDRange) ([]jail.IDRange, error) {
	h.kept = append(h.kept, used)
	if h.keep == nil {
		return used, nil
	}
	return h.keep(used)
}

func (h *hostIDs) More(context.Context) (jail.IDRange, error) {
	if h.left.Add(-1) < 0 {
		return jail.IDRange{}, fault.Newf(fault.Exhausted, "ids", "", "no ranges left")
	}
	return jail.IDRange{First: 0x30000000 + (h.first.Add(1)-1)*65536, Count: 65536}, nil
}

func TestHostIDExhaustion(t *testing.T) {
	h := newHarness(t)
	ids := &hostIDs{}
	ids.left.Store(2)
	h.configure = func(c *jail.Config) { c.IDs = ids }
	m, s := h.scripted()
	img, of := h.image(m)
	second, err := m.Create(t.Context(), jail.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	for name, op := range map[string]func() error{
		"Create":             func() error { _, err := m.Create(t.Context(), jail.Spec{}); return err },
		"Branch":             func() error { _, err := branch(m, t.Context(), img, false); return err },
		"Rewind":             func() error { _, err := m.Rewind(t.Context(), of, img, jail.RewindOptions{}); return err },
		"stacked Checkpoint": func() error { _, err := h.checkpoint(m, of, jail.Stacked); return err },
	} {
		if err := op(); !errors.Is(err, fault.Exhausted) {
			t.Errorf("%s without host ids = %v, want exhausted", name, err)
		}
		h.wantJails(of, second.ID)
		if got := h.sh(m, of, "echo fine"); got != "fine" {
			t.Errorf("output after %s = %q, want fine", name, got)
		}
	}
	if err := m.Delete(t.Context(), second.ID); err != nil {
		t.Fatal(err)
	}
	if b, err := branch(m, t.Context(), img, false); err != nil || b.IDs != second.IDs {
		t.Errorf("ids of the branch = %v, %v; want %v of the deleted jail", b.IDs, err, second.IDs)
	}
	s.fail("create", nil)
}

// Another daemon may have claimed the host ids of a jail while this one did not run.
func TestLostHostIDsAreReplacedAtStart(t *testing.T) {
	h := newHarness(t)
	ids := &hostIDs{}
	ids.left.Store(10)
	h.configure = func(c *jail.Config) { c.IDs = ids }
	m := h.manager()
	lost, kept := h.running(m), h.running(m)
	for _, j := range []jail.Jail{lost, kept} {
		if _, err := m.Stop(t.Context(), j.ID, jail.StopOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	m.Close()
	if last := ids.kept[len(ids.kept)-1]; !slices.Contains(last, lost.IDs) || !slices.Contains(last, kept.IDs) {
		t.Errorf("Close: kept ids = %v, want those of both jails", last)
	}
	ids.keep = func(used []jail.IDRange) ([]jail.IDRange, error) {
		return slices.DeleteFunc(slices.Clone(used), func(r jail.IDRange) bool { return r == lost.IDs }), nil
	}
	m = h.manager()
	got, err := m.Start(t.Context(), lost.ID)
	if err != nil || got.IDs == lost.IDs || got.IDs == kept.IDs || got.IDs.Count != 65536 {
		t.Errorf("ids of the jail that lost %v = %v, %v; want others", lost.IDs, got.IDs, err)
	}
	if got, err := m.Start(t.Context(), kept.ID); err != nil || got.IDs != kept.IDs {
		t.Errorf("ids of the other jail = %v, %v; want %v", got.IDs, err, kept.IDs)
	}
	if _, err := m.Stop(t.Context(), lost.ID, jail.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	if again, err := m.Start(t.Context(), lost.ID); err != nil || again.IDs != got.IDs {
		t.Errorf("ids after a restart = %v, %v; want %v", again.IDs, err, got.IDs)
	}
}

func TestOpenFailsWithoutHostIDs(t *testing.T) {
	h := newHarness(t)
	cfg := h.config(h.backend)
	cfg.IDs = &hostIDs{keep: func([]jail.IDRange) ([]jail.IDRange, error) { return nil, errScripted }}
	m := jail.NewManager(cfg)
	if err := m.Open(t.Context()); !errors.Is(err, errScripted) {
		t.Errorf("Open = %v, want %v", err, errScripted)
	}
	if err := m.Close(); !errors.Is(err, errScripted) {
		t.Errorf("Close = %v, want %v", err, errScripted)
	}
	if err := jail.NewManager(cfg).Close(); err != nil {
		t.Errorf("Close before Open = %v, want nil", err)
	}
}

// A jail whose backend is no longer configured is not changed.
func TestJailOfUnconfiguredBackendIsNotTouched(t *testing.T) {
	h := newHarness(t)
	first := h.manager()
	j := h.running(first)
	first.Close()
	h.configure = func(c *jail.Config) { c.Runtimes[0].Runtime, c.Runtime = "other", "other" }
	m := jail.NewManager(h.config(h.backend))
	if err := m.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if got, err := m.Get(t.Context(), j.ID); err != nil || got.State != jail.Running {
		t.Errorf("state = %s, %v; want running as recorded", got.State, err)
	}
	for name, op := range map[string]func() error{
		"Stop":   func() error { _, err := m.Stop(t.Context(), j.ID, jail.StopOptions{}); return err },
		"Delete": func() error { return m.Delete(t.Context(), j.ID) },
	} {
		if err := op(); !errors.Is(err, fault.Invalid) || fault.FieldOf(err) != "runtime" || !strings.Contains(err.Error(), "oci/other") {
			t.Errorf("%s = %v, want invalid runtime that names oci/other", name, err)
		}
	}
	if !alive(h.pid(j.ID)) {
		t.Error("init has ended, want it running")
	}
	h.configure = nil
}

// A failure of Open may be temporary and does not prove that the jail has ended.
func TestJailThatCannotBeOpenedIsNotTouched(t *testing.T) {
	for _, op := range []string{"open", "thaw"} {
		t.Run(op, func(t *testing.T) {
			h := newHarness(t)
			m, s := h.scripted()
			j := h.running(m)
			m.Close()
			s.fail(op, failureModes["error"])
			second := h.scriptedManager(s)
			if got, err := second.Get(t.Context(), j.ID); err != nil || got.State != jail.Running {
				t.Errorf("state = %s, %v; want running as recorded", got.State, err)
			}
			if _, _, err := second.Exec(t.Context(), j.ID, jail.ExecRequest{Cmd: "true"}, nil); !errors.Is(err, fault.Conflict) {
				t.Errorf("Exec = %v, want conflict", err)
			}
			second.Close()
			s.fail(op, nil)
			third := h.scriptedManager(s)
			if got := h.sh(third, j.ID, "echo fine"); got != "fine" {
				t.Errorf("output after the next restart = %q, want fine", got)
			}
		})
	}
}

func TestHostRestartIsRecordedAsReason(t *testing.T) {
	h := newHarness(t)
	first := h.manager()
	j := h.running(first)
	first.Close()
	syscall.Kill(h.pid(j.ID), syscall.SIGKILL)
	for alive(h.pid(j.ID)) {
		time.Sleep(time.Millisecond)
	}
	h.configure = func(c *jail.Config) { c.Boot = "boot-2" }
	m := h.manager()
	if got, err := m.Get(t.Context(), j.ID); err != nil || got.State != jail.Stopped || got.Reason != "the host restarted" {
		t.Errorf("state %s, reason %q, %v; want stopped, the host restarted", got.State, got.Reason, err)
	}
}

// witnessBackend is a backend whose instances know why they ended.
type witnessBackend struct{ *processBackend }

type witness struct{ jail.Instance }

func (witness) ExitReason() string { return "its memory server has ended" }

func (d witnessBackend) Create(ctx context.Context, p jail.Plan) (jail.Instance, error) {
	i, err := d.processBackend.Create(ctx, p)
	return witness{i}, err
}

func TestInitExitReason(t *testing.T) {
	for _, c := range []struct {
		name    string
		counts  func(jail.Plan) jail.Stats
		backend func(*processBackend) jail.Backend
		want    string
		oom     bool
	}{
		{"unknown", nil, func(b *processBackend) jail.Backend { return b }, "its init ended unexpectedly", false},
		{"memory", func(jail.Plan) jail.Stats { return jail.Stats{OOMKills: 1} }, func(b *processBackend) jail.Backend { return b },
			"its init ended unexpectedly; the jail ran out of memory", true},
		{"witness", nil, func(b *processBackend) jail.Backend { return witnessBackend{b} }, "its memory server has ended", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHarness(t)
			h.backend.counts = c.counts
			ended := make(chan jail.Jail, 1)
			h.configure = func(cfg *jail.Config) { cfg.Enforcer = failureEnforcer{scriptedEnforcer{&newScript{}}, ended} }
			m := h.open(h.config(c.backend(h.backend)))
			j := h.running(m)
			syscall.Kill(h.pid(j.ID), syscall.SIGKILL)
			select {
			case got := <-ended:
				if got.Reason != c.want || got.OutOfMemory() != c.oom {
					t.Errorf("reason = %q, out of memory %v; want %q, %v", got.Reason, got.OutOfMemory(), c.want, c.oom)
				}
			case <-time.After(time.Minute):
				t.Fatal("timeout: the jail is not failed")
			}
		})
	}
}

// failureEnforcer is an Enforcer that sends jails whose state becomes Failed to a channel.
type failureEnforcer struct {
	scriptedEnforcer
	failed chan<- jail.Jail
}

func (e failureEnforcer) StateChanged(j jail.Jail, _ jail.State) {
	if j.State == jail.Failed {
		e.failed <- j
	}
}

func TestBackendsAreProbed(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	got := m.Backends(t.Context())
	if len(got) != 1 || !got[0].Usable || got[0].Name != "oci" || got[0].Runtime != "bare" || got[0].Lacks["network"] == "" {
		t.Errorf("Backends = %+v, want oci with bare, usable without a network", got)
	}
	h.backend.probeErr = fault.Cannot("probe", "no kernel", "install one")
	if got := m.Backends(t.Context())[0]; got.Usable || !strings.Contains(got.Reason, "no kernel") || got.Remedy != "install one" || got.Lacks != nil {
		t.Errorf("Backends = %+v, want it unusable with reason and remedy", got)
	}
}

// A jail is refused before its root filesystem is made, which takes long.
func TestUnusableBackendIsRefused(t *testing.T) {
	h := newHarness(t)
	h.backend.probeErr = fault.Cannot("probe", "no kernel", "install one")
	m, _ := h.scripted()
	if _, err := m.Create(t.Context(), jail.Spec{Rootfs: jail.Rootfs{Dir: "/missing"}}); !errors.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "no kernel") {
		t.Errorf("Create with an unusable backend = %v, want the reason", err)
	}
	if n := h.backend.creates.Load(); n > 0 {
		t.Errorf("the backend was asked %d times to create the jail", n)
	}
}

func TestUnsupportedBackendFeaturesAreRefused(t *testing.T) {
	mount := t.TempDir()
	for _, c := range []struct {
		lacks string
		spec  jail.Spec
		field string
	}{
		{"network", jail.Spec{Network: jail.Bridged}, "network"},
		{"network", jail.Spec{Network: jail.Proxied}, "network"},
		{"enforcement", jail.Spec{Enforce: true}, "enforce"},
		{"mounts", jail.Spec{GrantedMounts: []string{mount}, Mounts: []jail.Mount{{Source: mount, Target: "/mnt"}}}, "mounts"},
	} {
		h := newHarness(t)
		h.backend.lacks = map[string]string{c.lacks: "not on this host"}
		m, _ := h.scripted()
		_, err := m.Create(t.Context(), c.spec)
		if !errors.Is(err, fault.Unsupported) || fault.FieldOf(err) != c.field || !strings.Contains(err.Error(), "not on this host") {
			t.Errorf("Create without %s = %v, want unsupported %s", c.lacks, err, c.field)
		}
		h.wantJails()
		h.backend.lacks = map[string]string{}
		if _, err := m.Create(t.Context(), c.spec); err != nil {
			t.Errorf("Create with %s = %v, want nil", c.lacks, err)
		}
	}
	h := newHarness(t)
	h.backend.lacks = map[string]string{"freeze": "no freezer", "memory": "no memory controller"}
	m := h.manager()
	j := h.running(m)
	if _, err := m.Pause(t.Context(), j.ID); !errors.Is(err, fault.Unsupported) {
		t.Errorf("Pause = %v, want unsupported", err)
	}
	if _, err := m.Limit(t.Context(), j.ID, jail.LimitChange{Limits: jail.Limits{MemoryMB: 64}}); !errors.Is(err, fault.Unsupported) || fault.FieldOf(err) != "limits.memory_mb" {
		t.Errorf("Limit of the memory = %v, want unsupported limits.memory_mb", err)
	}
	if got, err := m.Limit(t.Context(), j.ID, jail.LimitChange{Limits: jail.Limits{MaxPIDs: 64}}); err != nil || got.Spec.Limits.MaxPIDs != 64 {
		t.Errorf("Limit of the processes = %+v, %v; want 64", got.Spec.Limits, err)
	}
}

// If the record cannot be written, the limits do not change.
func TestLimitIsUnchangedOnStoreError(t *testing.T) {
	for n, in := range []jail.Limits{{MemoryMB: 1024}, {MemoryMB: 64}} {
		h := newHarness(t)
		b := h.recordLimits()
		m, s := h.scripted()
		j := h.running(m)
		s.store.failAfter(0)
		if _, err := m.Limit(t.Context(), j.ID, jail.LimitChange{Limits: in}); !errors.Is(err, errScripted) {
			t.Errorf("Limit(%+v) = %v, want %v", in, err, errScripted)
		}
		if got, err := m.Get(t.Context(), j.ID); err != nil || got.Spec.Limits != jail.DefaultLimits {
			t.Errorf("limits = %+v, %v; want the default", got.Spec.Limits, err)
		}
		if b.calls != n { // a raise is recorded first, a reduction is applied first
			t.Errorf("backend calls = %d, want %d", b.calls, n)
		}
	}
}

func TestListFiltersAndRejectsUnknownPage(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	ctx := t.Context()
	made := map[string]id.Jail{}
	for _, name := range []string{"a", "b"} {
		j, err := m.Create(ctx, jail.Spec{Name: name, Labels: map[string]string{"of": name}, Start: name == "a"})
		if err != nil {
			t.Fatal(err)
		}
		made[name] = j.ID
	}
	for _, c := range []struct {
		o    jail.ListOptions
		want []string
	}{
		{jail.ListOptions{}, []string{"a", "b"}},
		{jail.ListOptions{Name: "a"}, []string{"a"}},
		{jail.ListOptions{State: jail.Created}, []string{"b"}},
		{jail.ListOptions{State: jail.Paused}, nil},
		{jail.ListOptions{Label: map[string]string{"of": "b"}}, []string{"b"}},
		{jail.ListOptions{Label: map[string]string{"of": "b", "and": "c"}}, nil},
		{jail.ListOptions{Limit: 1}, []string{"a"}},
		{jail.ListOptions{After: made["a"]}, []string{"b"}},
		{jail.ListOptions{After: made["b"]}, nil},
	} {
		all, err := m.List(ctx, c.o)
		var got []string
		for _, j := range all {
			got = append(got, j.Spec.Name)
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("List(%+v) = %q, %v; want %q", c.o, got, err, c.want)
		}
	}
	if _, err := m.List(ctx, jail.ListOptions{After: id.NewJail()}); !errors.Is(err, fault.Invalid) || fault.FieldOf(err) != "after" {
		t.Errorf("List after an unknown jail = %v, want invalid after", err)
	}
	if got := m.Digests(); !slices.Equal(got, []string{"dir:/"}) {
		t.Errorf("Digests = %q, want dir:/ once", got)
	}
	if st, err := m.Stats(ctx, made["b"]); err != nil || st.DiskLimit != jail.DefaultLimits.DiskMB<<20 {
		t.Errorf("Stats = %+v, %v; want the limit of the disk", st, err)
	}
	if _, err := m.Stop(ctx, made["a"], jail.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	if st, err := m.Stats(ctx, made["a"]); err != nil || st.DiskLimit != jail.DefaultLimits.DiskMB<<20 {
		t.Errorf("Stats of a stopped jail = %+v, %v; want the limit of the disk", st, err)
	}
	if got, err := m.Processes(ctx, made["a"]); err != nil || got != nil {
		t.Errorf("Processes of a stopped jail = %v, %v; want none", got, err)
	}
}

// Snapshots stay when their jail is deleted, even after a restart of the daemon.
func TestSnapshotsOutliveJail(t *testing.T) {
	h := newHarness(t)
	m, _ := h.scripted()
	j := h.running(m)
	keep := filepath.Join(h.dir, "jails", string(j.ID), "snapshots", "s-1")
	mustMkdir(t, keep)
	if err := m.Delete(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	m.Close()
	h.manager()
	for dir, want := range map[string][]string{filepath.Dir(keep): {"s-1"}, filepath.Dir(filepath.Dir(keep)): {"snapshots"}} {
		entries, err := os.ReadDir(dir)
		var got []string
		for _, e := range entries {
			got = append(got, e.Name())
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("entries of %s = %q, %v; want %q", dir, got, err, want)
		}
	}
}

func TestRestackOnlyStoppedJails(t *testing.T) {
	h := newHarness(t)
	m, s := h.scripted()
	j := h.running(m)
	if _, err := m.Stop(t.Context(), j.ID, jail.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	made, err := h.checkpoint(m, j.ID, "")
	if err != nil {
		t.Fatal(err)
	}
	layer := made.Jail.Sealed
	if got := slices.Collect(maps.Keys(m.Sealed())); !slices.Equal(got, layer) {
		t.Errorf("Sealed = %q, want %q", got, layer)
	}
	restack := func(from, to []string, want bool, on ...string) {
		t.Helper()
		if done, err := m.ReplaceLayers(t.Context(), j.ID, from, to); err != nil || done != want {
			t.Errorf("Restack = %v, %v; want %v", done, err, want)
		}
		if got, err := m.Get(t.Context(), j.ID); err != nil || !slices.Equal(got.Sealed, on) {
			t.Errorf("sealed layers = %q, %v; want %q", got.Sealed, err, on)
		}
	}
	restack([]string{"/other"}, []string{"/new"}, false, layer...)
	s.store.failAfter(0)
	if _, err := m.ReplaceLayers(t.Context(), j.ID, layer, []string{"/new"}); !errors.Is(err, errScripted) {
		t.Errorf("Restack = %v, want %v", err, errScripted)
	}
	restack(layer, []string{"/new"}, true, "/new")
	if _, err := m.Start(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	restack([]string{"/new"}, layer, false, "/new")
}
