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

	"glasshouse/autonomy"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy"
)

// machine is a host with jails on it.
type machine struct {
	mu      sync.Mutex
	limits  map[id.Jail]autonomy.Limits
	used    map[id.Jail]autonomy.Limits
	applied []string
	breaks  int // how often Apply fails
	record  []autonomy.Change
}

var begin = autonomy.Limits{CPU: 1000, Memory: 512, Disk: 1024, PIDs: 128}

func newMachine(jails ...id.Jail) *machine {
	m := &machine{limits: map[id.Jail]autonomy.Limits{}, used: map[id.Jail]autonomy.Limits{}}
	for _, j := range jails {
		m.limits[j] = begin
	}
	return m
}

func (m *machine) Limits(_ context.Context, j id.Jail) (autonomy.Limits, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, ok := m.limits[j]
	if !ok {
		return l, fault.Newf(fault.NotFound, "machine", string(j), "no such jail")
	}
	return l, nil
}

func (m *machine) Apply(_ context.Context, j id.Jail, l autonomy.Limits) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.breaks > 0 {
		m.breaks--
		return errors.New("cgroup is busy")
	}
	m.limits[j] = l
	m.applied = append(m.applied, fmt.Sprint(j, " ", l))
	return nil
}

func (m *machine) Usage(_ context.Context, j id.Jail) (autonomy.Limits, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used[j], nil
}

func (m *machine) uses(j id.Jail, l autonomy.Limits) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used[j] = l
}

func (m *machine) now(t testing.TB, j id.Jail, want autonomy.Limits) {
	t.Helper()
	if got, err := m.Limits(t.Context(), j); err != nil || got != want {
		t.Errorf("%s may use %v, %v; want %v", j, got, err, want)
	}
}

func (m *machine) Record(_ context.Context, c autonomy.Change) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.record = append(m.record, c)
	return int64(len(m.record)), nil
}

func newResources(t testing.TB, s autonomy.ResourceStore, m *machine, change func(*autonomy.ResourceConfig)) *autonomy.Resources {
	t.Helper()
	cfg := autonomy.ResourceConfig{
		Applier: m, Sampler: m, Host: "here", Record: m.Record,
		Ceilings: autonomy.Ceilings{Capacity: autonomy.Limits{CPU: 8000, Memory: 16384}, Alone: autonomy.Limits{CPU: 4000, Memory: 4096}},
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

func TestWhatEachLevelIsGivenWithoutAPerson(t *testing.T) {
	tests := []struct {
		level policy.Level
		want  autonomy.Limits
		code  string // of the refusal, where there is nobody to ask; "": it is given
	}{
		{policy.Guided, autonomy.Limits{Memory: 513}, "person"},
		{policy.Guided, autonomy.Limits{Memory: 512}, ""}, // what it has
		{policy.Guided, autonomy.Limits{Memory: 256}, ""}, // less
		{0, autonomy.Limits{Memory: 513}, "person"},
		{9, autonomy.Limits{Memory: 513}, "person"},
		{policy.Intelligent, autonomy.Limits{Memory: 768, CPU: 1500}, ""},
		{policy.Intelligent, autonomy.Limits{Memory: 769}, "person"},
		{policy.Full, autonomy.Limits{CPU: 4000, Memory: 4096}, ""},
		{policy.Full, autonomy.Limits{Memory: 4097}, "person"},
		{policy.Full, autonomy.Limits{CPU: 8001}, "capacity"},
	}
	for _, tt := range tests {
		m := newMachine("j-a")
		r := newResources(t, openAll(t, ""), m, nil)
		c, err := r.Ask(t.Context(), atLevel(tt.level, "j-a"), tt.want)
		if err != nil {
			t.Fatal(err)
		}
		code := ""
		if c.Refusal != nil {
			code = c.Refusal.Code
		}
		if code != tt.code || (code == "") != (c.Verdict == autonomy.Applied) {
			t.Errorf("level %d asks for %v: %s %+v, want %q", tt.level, tt.want, c.Verdict, c.Refusal, tt.code)
		}
		if code != "" {
			m.now(t, "j-a", begin)
		}
	}
}

func TestTheSeedsRequestIsAppliedLiveAndRecordedBefore(t *testing.T) {
	m := newMachine("j-a")
	r := newResources(t, openAll(t, ""), m, func(cfg *autonomy.ResourceConfig) {
		cfg.Record = func(ctx context.Context, c autonomy.Change) (int64, error) {
			if len(m.applied) != 0 {
				t.Error("it was in force before it was recorded")
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
	m.now(t, "j-a", autonomy.Limits{CPU: 2000, Memory: 4096, Disk: 1024, PIDs: 128})
	list, err := r.History(t.Context(), autonomy.ChangeFilter{Jail: "j-a"})
	if err != nil || len(list) != 1 || list[0].To != c.To || list[0].Want != want || list[0].N != 1 {
		t.Errorf("history: %+v, %v", list, err)
	}
}

func TestTwoStepsAreNoMoreThanOne(t *testing.T) {
	m := newMachine("j-a")
	r := newResources(t, openAll(t, ""), m, nil)
	two := atLevel(policy.Intelligent, "j-a")
	for i, tt := range []struct {
		mb int64
		ok bool
	}{{700, true}, {768, true}, {1100, false}, {768, true}} {
		c, err := r.Ask(t.Context(), two, autonomy.Limits{Memory: tt.mb})
		if err != nil || (c.Verdict == autonomy.Applied) != tt.ok {
			t.Errorf("step %d, %d MB: %s %+v, %v", i, tt.mb, c.Verdict, c.Refusal, err)
		}
	}
}

func TestAPersonIsAskedForMore(t *testing.T) {
	m := newMachine("j-a")
	allow := true
	var asked []string
	r := newResources(t, openAll(t, ""), m, func(cfg *autonomy.ResourceConfig) {
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
	c, err = r.Ask(t.Context(), one, autonomy.Limits{Memory: 2048}) // to keep it is to ask again
	if err != nil || c.Verdict != autonomy.NotGiven || c.Refusal.Code != "person" || c.Refusal.Reason != "not today" || c.By != "anna" {
		t.Errorf("Ask = %+v, %v", c, err)
	}
	c, err = r.Ask(t.Context(), one, autonomy.Limits{Memory: 1024})
	if err != nil || c.Verdict != autonomy.Applied || len(asked) != 2 {
		t.Errorf("to give something back: %+v, %v", c, err)
	}
	c, err = r.Ask(t.Context(), one, autonomy.Limits{Memory: 1 << 20})
	if err != nil || c.Refusal == nil || c.Refusal.Code != "capacity" || len(asked) != 2 {
		t.Errorf("a person is asked for what the host has not: %+v, %v", c, err)
	}
}

func TestWhatIsInUseIsNotGivenBack(t *testing.T) {
	m := newMachine("j-a")
	r := newResources(t, openAll(t, ""), m, nil)
	if c, err := r.Ask(t.Context(), atLevel(policy.Full, "j-a"), autonomy.Limits{CPU: 2000, Memory: 2048, PIDs: 256, Disk: 4096}); err != nil || c.Refusal != nil {
		t.Fatalf("Ask = %+v, %v, want it applied", c, err)
	}
	m.uses("j-a", autonomy.Limits{Memory: 1300, PIDs: 200})
	for want, ok := range map[autonomy.Limits]bool{{Memory: 1299}: false, {PIDs: 199}: false, {Disk: 2048}: false, {Memory: 1300, PIDs: 200}: true, {CPU: 1000}: true} {
		c, err := r.Ask(t.Context(), atLevel(policy.Guided, "j-a"), want)
		if err != nil || (c.Refusal == nil) != ok || !ok && c.Refusal.Code != "in-use" {
			t.Errorf("%v: %+v, %v", want, c.Refusal, err)
		}
	}
}

func TestPoolsAreNotExceeded(t *testing.T) {
	pools := func(cfg *autonomy.ResourceConfig) {
		cfg.Ceilings.Host = autonomy.Limits{CPU: 8000, Memory: 3000}
		cfg.Ceilings.Group = autonomy.Limits{CPU: 8000, Memory: 2000}
	}
	m := newMachine("j-a", "j-b", "j-c", "j-d")
	r := newResources(t, openAll(t, ""), m, pools)
	gets := func(j id.Jail, group string, mb int64, code string) {
		t.Helper()
		who := atLevel(policy.Full, j)
		who.Group = group
		c, err := r.Ask(t.Context(), who, autonomy.Limits{Memory: mb})
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Refusal; (got == nil) != (code == "") || got != nil && (got.Code != code || got.RetryAfter <= 0) {
			t.Errorf("%s asks for %d: %+v, want %q", j, mb, got, code)
		}
	}
	gets("j-a", "red", 512+1500, "")
	gets("j-b", "red", 512+600, "pool") // of the group
	gets("j-b", "red", 512+500, "")
	gets("j-c", "blue", 512+1001, "pool") // of the host
	gets("j-c", "blue", 512+1000, "")
	gets("j-a", "red", 512+1400, "")
	gets("j-b", "red", 512+600, "")
	if err := r.End(t.Context(), "j-a"); err != nil {
		t.Fatal(err)
	}
	gets("j-d", "red", 512+1400, "")
}

func TestManyAtOnceDoNotExceedThePool(t *testing.T) {
	var jails []id.Jail
	for i := range 40 {
		jails = append(jails, id.Jail(fmt.Sprint("j-", i)))
	}
	m := newMachine(jails...)
	r := newResources(t, openAll(t, ""), m, func(cfg *autonomy.ResourceConfig) {
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
	given := 0
	for _, l := range m.limits {
		given += int(l.Memory - 512)
	}
	if given != 1000 {
		t.Errorf("%d MB are given out of a pool of 1000", given)
	}
}

func TestWhatGrantsComeDownTo(t *testing.T) {
	now := time.Unix(1e9, 0)
	g := autonomy.Grant{Base: begin, Held: autonomy.Limits{CPU: 4000, Memory: 4096, Disk: 4096, PIDs: 512}, Until: now.Add(time.Hour)}
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
		{"it is needed", g, autonomy.Limits{Memory: 3000}, 0, g.Held},
		{"it was needed a moment ago", g, autonomy.Limits{}, 4 * time.Minute, g.Held},
		{"it was not needed for long", g, autonomy.Limits{Memory: 400}, 5 * time.Minute, down},
		{"the lease is over", over, autonomy.Limits{}, 0, down},
		{"the lease is over, and the memory is used", over, autonomy.Limits{Memory: 800, PIDs: 200}, 0, autonomy.Limits{CPU: 1000, Memory: 900, Disk: 4096, PIDs: 225}},
		{"all of it is used", over, autonomy.Limits{CPU: 4000, Memory: 4000, PIDs: 500}, 0, autonomy.Limits{CPU: 1000, Memory: 4096, Disk: 4096, PIDs: 512}},
		{"it gave some of its own back", lower, autonomy.Limits{}, time.Hour, lower.Held},
	}
	for _, tt := range tests {
		got, why := autonomy.StepDown(tt.g, tt.used, now.Add(-tt.idle), now, 5*time.Minute)
		if got != tt.want || (why == "") != (tt.want == tt.g.Held) {
			t.Errorf("%s: %v because %q, want %v", tt.name, got, why, tt.want)
		}
	}
}

func TestWhatIsNotNeededIsTakenBack(t *testing.T) {
	scenario(t, func(t *testing.T) {
		m := newMachine("j-a", "j-b")
		r := newResources(t, openAll(t, ""), m, nil)
		for _, j := range []id.Jail{"j-a", "j-b"} {
			if _, err := r.Ask(t.Context(), atLevel(policy.Full, j), autonomy.Limits{CPU: 4000, Memory: 4096}); err != nil {
				t.Fatal(err)
			}
		}
		big := autonomy.Limits{CPU: 4000, Memory: 4096, Disk: 1024, PIDs: 128}
		m.uses("j-b", autonomy.Limits{CPU: 3000, Memory: 2000})
		time.Sleep(6 * time.Minute)
		m.now(t, "j-a", begin)
		m.now(t, "j-b", big)
		time.Sleep(25 * time.Minute) // the lease is over; its memory is in use
		m.now(t, "j-b", autonomy.Limits{CPU: 1000, Memory: 2250, Disk: 1024, PIDs: 128})
		m.uses("j-b", autonomy.Limits{Memory: 100})
		time.Sleep(time.Minute)
		m.now(t, "j-b", begin)
		left, err := r.Granted(t.Context())
		if err != nil || len(left) != 0 {
			t.Errorf("%+v is left, %v", left, err)
		}
		list, err := r.History(t.Context(), autonomy.ChangeFilter{Jail: "j-b"})
		var why []string
		for _, c := range list {
			why = append(why, c.Why)
		}
		if want := []string{"asked", "the lease is over", "the lease is over"}; err != nil || !slices.Equal(why, want) {
			t.Errorf("history: %q, %v", why, err)
		}
	})
}

func TestWhatCannotBePutInForceIsNotGiven(t *testing.T) {
	m := newMachine("j-a")
	m.breaks = 1
	s := openAll(t, "")
	r := newResources(t, s, m, nil)
	if c, err := r.Ask(t.Context(), atLevel(policy.Full, "j-a"), autonomy.Limits{CPU: 2000}); err == nil || c.Verdict != autonomy.Broken {
		t.Errorf("Ask = %+v, %v", c, err)
	}
	m.now(t, "j-a", begin)
	if left, err := s.Grants(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("%+v is given, %v", left, err)
	}
	list, err := r.History(t.Context(), autonomy.ChangeFilter{})
	if err != nil || len(list) != 1 || list[0].Verdict != autonomy.Broken || !strings.Contains(list[0].Why, "busy") {
		t.Errorf("history: %+v, %v", list, err)
	}
	mute := newResources(t, s, m, func(cfg *autonomy.ResourceConfig) {
		cfg.Record = func(context.Context, autonomy.Change) (int64, error) { return 0, errors.New("disk full") }
	})
	if _, err := mute.Ask(t.Context(), atLevel(policy.Full, "j-a"), autonomy.Limits{CPU: 2000}); err == nil {
		t.Error("what cannot be recorded is given")
	}
	m.now(t, "j-a", begin)
	if left, err := s.Grants(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("%+v is given, %v", left, err)
	}
}

// TestADaemonThatIsKilledInBetween leaves a grant that was kept and is not in
// force, or not known to be.
func TestADaemonThatIsKilledInBetween(t *testing.T) {
	s := openAll(t, "")
	m := newMachine("j-a", "j-elsewhere")
	held := autonomy.Limits{CPU: 2000, Memory: 1024, Disk: 1024, PIDs: 128}
	err := s.ChangeGrants(t.Context(), func([]autonomy.Grant) ([]autonomy.Grant, []autonomy.Change, error) {
		g := autonomy.Grant{Jail: "j-a", Host: "here", Base: begin, Held: held, Until: time.Now().Add(time.Hour)}
		other := g
		other.Jail, other.Host = "j-elsewhere", "there"
		return []autonomy.Grant{g, other}, nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r := newResources(t, s, m, nil)
		m.now(t, "j-a", held)
		m.now(t, "j-elsewhere", begin) // another host's
		list, err := r.History(t.Context(), autonomy.ChangeFilter{})
		if err != nil || len(list) != 1 || list[0].Why != "restart" || list[0].To != held {
			t.Errorf("history: %+v, %v", list, err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// What it comes back to is what it began with, and not what it had then.
	r := newResources(t, s, m, nil)
	if c, err := r.Ask(t.Context(), atLevel(policy.Intelligent, "j-a"), autonomy.Limits{Memory: 1500}); err != nil || c.Verdict != autonomy.NotGiven {
		t.Errorf("Ask = %+v, %v", c, err)
	}
}

func TestWhoAsksWithoutEndIsToldToWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine("j-a")
		r := newResources(t, openAll(t, ""), m, nil)
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
			t.Errorf("%d were told to wait, and %d are in the history, %v", rates, len(list), err)
		}
	})
}

// TestAJailKeepsWhatItBeganWith: a request is for at least so much, and gives back no more
// than what was lent.
func TestAJailKeepsWhatItBeganWith(t *testing.T) {
	m := newMachine("j-a")
	r := newResources(t, openAll(t, ""), m, nil)
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
