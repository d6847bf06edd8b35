package autonomy_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/agents/autonomy"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy"
)

// fakeHost is a host with jails: an Applier, a Sampler and a recorder.
type fakeHost struct {
	mu       sync.Mutex
	limits   map[id.Jail]autonomy.Limits
	used     map[id.Jail]autonomy.Limits
	applied  []string
	failures int // number of calls of Apply that fail
	record   []autonomy.Change
}

var baseLimits = autonomy.Limits{CPU: 1000, Memory: 512, Disk: 1024, PIDs: 128}

func newFakeHost(jails ...id.Jail) *fakeHost {
	m := &fakeHost{limits: map[id.Jail]autonomy.Limits{}, used: map[id.Jail]autonomy.Limits{}}
	for _, j := range jails {
		m.limits[j] = baseLimits
	}
	return m
}

func (m *fakeHost) Limits(_ context.Context, j id.Jail) (autonomy.Limits, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, ok := m.limits[j]
	if !ok {
		return l, fault.Newf(fault.NotFound, "machine", string(j), "no such jail")
	}
	return l, nil
}

func (m *fakeHost) Apply(_ context.Context, j id.Jail, l autonomy.Limits) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failures > 0 {
		m.failures--
		return errors.New("cgroup is busy")
	}
	m.limits[j] = l
	m.applied = append(m.applied, fmt.Sprint(j, " ", l))
	return nil
}

func (m *fakeHost) Usage(_ context.Context, j id.Jail) (autonomy.Limits, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used[j], nil
}

func (m *fakeHost) setUsage(j id.Jail, l autonomy.Limits) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used[j] = l
}

func (m *fakeHost) wantLimits(t testing.TB, j id.Jail, want autonomy.Limits) {
	t.Helper()
	if got, err := m.Limits(t.Context(), j); err != nil || got != want {
		t.Errorf("limits of %s = %v, %v; want %v", j, got, err, want)
	}
}

func (m *fakeHost) Record(_ context.Context, c autonomy.Change) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.record = append(m.record, c)
	return int64(len(m.record)), nil
}

func newResources(t testing.TB, s autonomy.ResourceStore, m *fakeHost, change func(*autonomy.ResourceConfig)) *autonomy.Resources {
	t.Helper()
	cfg := autonomy.ResourceConfig{
		Applier: m, Sampler: m, Host: "here", Record: m.Record,
		Ceilings: autonomy.Ceilings{Capacity: autonomy.Limits{CPU: 8000, Memory: 16384}, WithoutApproval: autonomy.Limits{CPU: 4000, Memory: 4096}},
	}
	if change != nil {
		change(&cfg)
	}
	r, err := autonomy.NewResources(t.Context(), s, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func atLevel(l policy.Level, jail id.Jail) autonomy.Member {
	return autonomy.Member{Jail: jail, Name: string(jail), Group: "team", Level: l}
}

func TestResourcesWithoutApproval(t *testing.T) {
	tests := []struct {
		level policy.Level
		want  autonomy.Limits
		code  string // code of the refusal without an approver; "": applied
	}{
		{policy.Guided, autonomy.Limits{Memory: 513}, "person"},
		{policy.Guided, autonomy.Limits{Memory: 512}, ""}, // the current limit
		{policy.Guided, autonomy.Limits{Memory: 256}, ""}, // a lower limit
		{0, autonomy.Limits{Memory: 513}, "person"},
		{9, autonomy.Limits{Memory: 513}, "person"},
		{policy.Intelligent, autonomy.Limits{Memory: 768, CPU: 1500}, ""},
		{policy.Intelligent, autonomy.Limits{Memory: 769}, "person"},
		{policy.Full, autonomy.Limits{CPU: 4000, Memory: 4096}, ""},
		{policy.Full, autonomy.Limits{Memory: 4097}, "person"},
		{policy.Full, autonomy.Limits{CPU: 8001}, "capacity"},
	}
	for _, tt := range tests {
		m := newFakeHost("j-a")
		r := newResources(t, openAutonomyStore(t, ""), m, nil)
		c, err := r.Ask(t.Context(), atLevel(tt.level, "j-a"), tt.want)
		if err != nil {
			t.Fatal(err)
		}
		code := ""
		if c.Refusal != nil {
			code = c.Refusal.Code
		}
		if code != tt.code || (code == "") != (c.Verdict == autonomy.Applied) {
			t.Errorf("level %d, Ask(%v) = %s %+v, want code %q", tt.level, tt.want, c.Verdict, c.Refusal, tt.code)
		}
		if code != "" {
			m.wantLimits(t, "j-a", baseLimits)
		}
	}
}

func TestResourcesAreRecordedThenApplied(t *testing.T) {
	m := newFakeHost("j-a")
	r := newResources(t, openAutonomyStore(t, ""), m, func(cfg *autonomy.ResourceConfig) {
		cfg.Record = func(ctx context.Context, c autonomy.Change) (int64, error) {
			if len(m.applied) != 0 {
				t.Error("the limits were applied before they were recorded")
			}
			return m.Record(ctx, c)
		}
	})
	want, err := autonomy.ParseResources([]byte(`{"cpu":"2","memory":"4Gi"}`))
	if err != nil {
		t.Fatal(err)
	}
	c, err := r.Ask(t.Context(), atLevel(policy.Full, "j-a"), want)
	if err != nil || c.Verdict != autonomy.Applied || c.Entry != 1 || c.Until.Before(time.Now().Add(29*time.Minute)) {
		t.Errorf("Ask = %+v, %v", c, err)
	}
	m.wantLimits(t, "j-a", autonomy.Limits{CPU: 2000, Memory: 4096, Disk: 1024, PIDs: 128})
	list, err := r.History(t.Context(), autonomy.ChangeFilter{Jail: "j-a"})
	if err != nil || len(list) != 1 || list[0].To != c.To || list[0].Want != want || list[0].N != 1 {
		t.Errorf("History = %+v, %v", list, err)
	}
}

func TestRepeatedRequestsDoNotAccumulate(t *testing.T) {
	m := newFakeHost("j-a")
	r := newResources(t, openAutonomyStore(t, ""), m, nil)
	two := atLevel(policy.Intelligent, "j-a")
	for i, tt := range []struct {
		mb int64
		ok bool
	}{{700, true}, {768, true}, {1100, false}, {768, true}} {
		c, err := r.Ask(t.Context(), two, autonomy.Limits{Memory: tt.mb})
		if err != nil || (c.Verdict == autonomy.Applied) != tt.ok {
			t.Errorf("request %d for %d MB: %s %+v, %v", i, tt.mb, c.Verdict, c.Refusal, err)
		}
	}
}

func TestApprovalOfResources(t *testing.T) {
	m := newFakeHost("j-a")
	allow := true
	var asked []string
	r := newResources(t, openAutonomyStore(t, ""), m, func(cfg *autonomy.ResourceConfig) {
		cfg.Approve = func(_ context.Context, who autonomy.Member, have, want autonomy.Limits, reason string) (bool, string, string, error) {
			asked = append(asked, fmt.Sprint(have.Memory, " to ", want.Memory, ": ", reason))
			return allow, "anna", "not today", nil
		}
	})
	one := atLevel(policy.Guided, "j-a")
	c, err := r.Ask(t.Context(), one, autonomy.Limits{Memory: 2048})
	if err != nil || c.Verdict != autonomy.Applied || c.By != "anna" || c.Why != "approved" || len(asked) != 1 {
		t.Errorf("Ask = %+v, %v after %q", c, err, asked)
	}
	allow = false
	c, err = r.Ask(t.Context(), one, autonomy.Limits{Memory: 2048}) // renewal needs another approval
	if err != nil || c.Verdict != autonomy.Denied || c.Refusal.Code != "person" || c.Refusal.Reason != "not today" || c.By != "anna" {
		t.Errorf("Ask = %+v, %v", c, err)
	}
	c, err = r.Ask(t.Context(), one, autonomy.Limits{Memory: 1024})
	if err != nil || c.Verdict != autonomy.Applied || len(asked) != 2 {
		t.Errorf("Ask for less = %+v, %v; want it applied without approval", c, err)
	}
	c, err = r.Ask(t.Context(), one, autonomy.Limits{Memory: 1 << 20})
	if err != nil || c.Refusal == nil || c.Refusal.Code != "capacity" || len(asked) != 2 {
		t.Errorf("Ask beyond the capacity = %+v, %v; want it refused without approval", c, err)
	}
}

func TestResourcesInUseAreNotReturned(t *testing.T) {
	m := newFakeHost("j-a")
	r := newResources(t, openAutonomyStore(t, ""), m, nil)
	if c, err := r.Ask(t.Context(), atLevel(policy.Full, "j-a"), autonomy.Limits{CPU: 2000, Memory: 2048, PIDs: 256, Disk: 4096}); err != nil || c.Refusal != nil {
		t.Fatalf("Ask = %+v, %v, want it applied", c, err)
	}
	m.setUsage("j-a", autonomy.Limits{Memory: 1300, PIDs: 200})
	for want, ok := range map[autonomy.Limits]bool{{Memory: 1299}: false, {PIDs: 199}: false, {Disk: 2048}: false, {Memory: 1300, PIDs: 200}: true, {CPU: 1000}: true} {
		c, err := r.Ask(t.Context(), atLevel(policy.Guided, "j-a"), want)
		if err != nil || (c.Refusal == nil) != ok || !ok && c.Refusal.Code != "in-use" {
			t.Errorf("Ask(%v): refusal %+v, %v; want refused %v", want, c.Refusal, err, !ok)
		}
	}
}

func TestPools(t *testing.T) {
	pools := func(cfg *autonomy.ResourceConfig) {
		cfg.Ceilings.Host = autonomy.Limits{CPU: 8000, Memory: 3000}
		cfg.Ceilings.Group = autonomy.Limits{CPU: 8000, Memory: 2000}
	}
	m := newFakeHost("j-a", "j-b", "j-c", "j-d")
	r := newResources(t, openAutonomyStore(t, ""), m, pools)
	request := func(j id.Jail, group string, mb int64, code string) {
		t.Helper()
		who := atLevel(policy.Full, j)
		who.Group = group
		c, err := r.Ask(t.Context(), who, autonomy.Limits{Memory: mb})
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Refusal; (got == nil) != (code == "") || got != nil && (got.Code != code || got.RetryAfter <= 0) {
			t.Errorf("request of %s for %d MB: %+v, want code %q", j, mb, got, code)
		}
	}
	request("j-a", "red", 512+1500, "")
	request("j-b", "red", 512+600, "pool") // pool of the group
	request("j-b", "red", 512+500, "")
	request("j-c", "blue", 512+1001, "pool") // pool of the host
	request("j-c", "blue", 512+1000, "")
	request("j-a", "red", 512+1400, "")
	request("j-b", "red", 512+600, "")
	if err := r.End(t.Context(), "j-a"); err != nil {
		t.Fatal(err)
	}
	request("j-d", "red", 512+1400, "")
}

func TestConcurrentRequestsStayWithinThePool(t *testing.T) {
	var jails []id.Jail
	for i := range 40 {
		jails = append(jails, id.Jail(fmt.Sprint("j-", i)))
	}
	m := newFakeHost(jails...)
	r := newResources(t, openAutonomyStore(t, ""), m, func(cfg *autonomy.ResourceConfig) {
		cfg.Ceilings.Host = autonomy.Limits{CPU: 8000, Memory: 1000}
	})
	var wg sync.WaitGroup
	for _, j := range jails {
		wg.Go(func() {
			if _, err := r.Ask(t.Context(), atLevel(policy.Full, j), autonomy.Limits{Memory: 612}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	lent := 0
	for _, l := range m.limits {
		lent += int(l.Memory - 512)
	}
	if lent != 1000 {
		t.Errorf("%d MB lent from a pool of 1000", lent)
	}
}

func TestStepDown(t *testing.T) {
	now := time.Unix(1e9, 0)
	g := autonomy.Grant{Base: baseLimits, Held: autonomy.Limits{CPU: 4000, Memory: 4096, Disk: 4096, PIDs: 512}, Until: now.Add(time.Hour)}
	down := autonomy.Limits{CPU: 1000, Memory: 512, Disk: 4096, PIDs: 128}
	over, lower := g, g
	over.Until = now
	lower.Held, lower.Until = autonomy.Limits{CPU: 500, Memory: 256, Disk: 1024, PIDs: 64}, time.Time{}
	tests := []struct {
		name string
		g    autonomy.Grant
		used autonomy.Limits
		idle time.Duration
		want autonomy.Limits
	}{
		{"in use", g, autonomy.Limits{Memory: 3000}, 0, g.Held},
		{"recently in use", g, autonomy.Limits{}, 4 * time.Minute, g.Held},
		{"unused", g, autonomy.Limits{Memory: 400}, 5 * time.Minute, down},
		{"lease over", over, autonomy.Limits{}, 0, down},
		{"lease over with memory in use", over, autonomy.Limits{Memory: 800, PIDs: 200}, 0, autonomy.Limits{CPU: 1000, Memory: 900, Disk: 4096, PIDs: 225}},
		{"lease over with everything in use", over, autonomy.Limits{CPU: 4000, Memory: 4000, PIDs: 500}, 0, autonomy.Limits{CPU: 1000, Memory: 4096, Disk: 4096, PIDs: 512}},
		{"below its initial limits", lower, autonomy.Limits{}, time.Hour, lower.Held},
	}
	for _, tt := range tests {
		got, why := autonomy.StepDown(tt.g, tt.used, now.Add(-tt.idle), now, 5*time.Minute)
		if got != tt.want || (why == "") != (tt.want == tt.g.Held) {
			t.Errorf("%s: StepDown = %v, %q; want %v", tt.name, got, why, tt.want)
		}
	}
}

func TestUnusedResourcesAreReclaimed(t *testing.T) {
	scenario(t, func(t *testing.T) {
		m := newFakeHost("j-a", "j-b")
		r := newResources(t, openAutonomyStore(t, ""), m, nil)
		for _, j := range []id.Jail{"j-a", "j-b"} {
			if _, err := r.Ask(t.Context(), atLevel(policy.Full, j), autonomy.Limits{CPU: 4000, Memory: 4096}); err != nil {
				t.Fatal(err)
			}
		}
		big := autonomy.Limits{CPU: 4000, Memory: 4096, Disk: 1024, PIDs: 128}
		m.setUsage("j-b", autonomy.Limits{CPU: 3000, Memory: 2000})
		time.Sleep(6 * time.Minute)
		m.wantLimits(t, "j-a", baseLimits)
		m.wantLimits(t, "j-b", big)
		time.Sleep(25 * time.Minute) // the lease is over with memory in use
		m.wantLimits(t, "j-b", autonomy.Limits{CPU: 1000, Memory: 2250, Disk: 1024, PIDs: 128})
		m.setUsage("j-b", autonomy.Limits{Memory: 100})
		time.Sleep(time.Minute)
		m.wantLimits(t, "j-b", baseLimits)
		left, err := r.Granted(t.Context())
		if err != nil || len(left) != 0 {
			t.Errorf("Granted = %+v, %v; want none", left, err)
		}
		list, err := r.History(t.Context(), autonomy.ChangeFilter{Jail: "j-b"})
		var why []string
		for _, c := range list {
			why = append(why, c.Why)
		}
		if want := []string{"asked", "the lease is over", "the lease is over"}; err != nil || !slices.Equal(why, want) {
			t.Errorf("history = %q, %v; want %q", why, err, want)
		}
	})
}

func TestFailedApplyIsRolledBack(t *testing.T) {
	m := newFakeHost("j-a")
	m.failures = 1
	s := openAutonomyStore(t, "")
	r := newResources(t, s, m, nil)
	if c, err := r.Ask(t.Context(), atLevel(policy.Full, "j-a"), autonomy.Limits{CPU: 2000}); err == nil || c.Verdict != autonomy.ApplyFailed {
		t.Errorf("Ask = %+v, %v", c, err)
	}
	m.wantLimits(t, "j-a", baseLimits)
	if left, err := s.Grants(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("Grants = %+v, %v; want none", left, err)
	}
	list, err := r.History(t.Context(), autonomy.ChangeFilter{})
	if err != nil || len(list) != 1 || list[0].Verdict != autonomy.ApplyFailed || !strings.Contains(list[0].Why, "busy") {
		t.Errorf("History = %+v, %v", list, err)
	}
	unrecorded := newResources(t, s, m, func(cfg *autonomy.ResourceConfig) {
		cfg.Record = func(context.Context, autonomy.Change) (int64, error) { return 0, errors.New("disk full") }
	})
	if _, err := unrecorded.Ask(t.Context(), atLevel(policy.Full, "j-a"), autonomy.Limits{CPU: 2000}); err == nil {
		t.Error("Ask with a failing recorder: got no error")
	}
	m.wantLimits(t, "j-a", baseLimits)
	if left, err := s.Grants(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("Grants = %+v, %v; want none", left, err)
	}
}

// TestUnappliedGrantIsReapplied starts with the state after a crash: a grant that is stored
// and not applied, or not known to be.
func TestUnappliedGrantIsReapplied(t *testing.T) {
	s := openAutonomyStore(t, "")
	m := newFakeHost("j-a", "j-remote")
	held := autonomy.Limits{CPU: 2000, Memory: 1024, Disk: 1024, PIDs: 128}
	err := s.ChangeGrants(t.Context(), func([]autonomy.Grant) ([]autonomy.Grant, []autonomy.Change, error) {
		g := autonomy.Grant{Jail: "j-a", Host: "here", Base: baseLimits, Held: held, Until: time.Now().Add(time.Hour)}
		other := g
		other.Jail, other.Host = "j-remote", "there"
		return []autonomy.Grant{g, other}, nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r := newResources(t, s, m, nil)
		m.wantLimits(t, "j-a", held)
		m.wantLimits(t, "j-remote", baseLimits) // on another host
		list, err := r.History(t.Context(), autonomy.ChangeFilter{})
		if err != nil || len(list) != 1 || list[0].Why != "restart" || list[0].To != held {
			t.Errorf("History = %+v, %v", list, err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// The maximum is derived from the initial limits, not from the limits at the restart.
	r := newResources(t, s, m, nil)
	if c, err := r.Ask(t.Context(), atLevel(policy.Intelligent, "j-a"), autonomy.Limits{Memory: 1500}); err != nil || c.Verdict != autonomy.Denied {
		t.Errorf("Ask = %+v, %v", c, err)
	}
}

func TestResourceRequestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeHost("j-a")
		r := newResources(t, openAutonomyStore(t, ""), m, nil)
		one := atLevel(policy.Guided, "j-a")
		var rates int
		for range 30 {
			c, err := r.Ask(t.Context(), one, autonomy.Limits{Memory: 9999})
			if err != nil {
				t.Fatal(err)
			}
			if c.Refusal.Code == "rate" && c.Refusal.RetryAfter == 10*time.Second {
				rates++
			}
		}
		list, err := r.History(t.Context(), autonomy.ChangeFilter{})
		if err != nil || rates != 20 || len(list) != 10 {
			t.Errorf("%d rate refusals and %d history entries, %v; want 20 and 10", rates, len(list), err)
		}
	})
}

// A request below the initial limits returns only lent resources.
func TestJailKeepsItsBaseLimits(t *testing.T) {
	m := newFakeHost("j-a")
	r := newResources(t, openAutonomyStore(t, ""), m, nil)
	base, err := m.Limits(t.Context(), "j-a")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ want, has autonomy.Limits }{
		{autonomy.Limits{Memory: base.Memory / 2}, base},
		{autonomy.Limits{CPU: 1, Memory: 1, Disk: 1, PIDs: 1}, base},
		{autonomy.Limits{Memory: 2 * base.Memory}, autonomy.Limits{CPU: base.CPU, Memory: 2 * base.Memory, Disk: base.Disk, PIDs: base.PIDs}},
		{autonomy.Limits{Memory: 1}, base},
	} {
		c, err := r.Ask(t.Context(), atLevel(policy.Full, "j-a"), tt.want)
		if err != nil || c.Verdict != autonomy.Applied || c.To != tt.has || c.Want != tt.want {
			t.Errorf("Ask(%v) = %+v, %v, want %v applied", tt.want, c, err, tt.has)
		}
		if has, err := m.Limits(t.Context(), "j-a"); err != nil || has != tt.has {
			t.Errorf("limits after Ask(%v) = %v, %v, want %v", tt.want, has, err, tt.has)
		}
	}
}
