package jail_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

// quotaOf are the quotas of tokens on a single daemon.
type quotaOf map[id.Token]jail.Demand

func (q quotaOf) Share(_ context.Context, token id.Token, claim func(quota, others jail.Demand) (jail.Demand, error)) error {
	_, err := claim(q[token], jail.Demand{})
	return err
}

// limited sets the quotas of the Managers of a harness.
func (h *harness) limited(q jail.Quotas) { h.configure = func(c *jail.Config) { c.Quotas = q } }

// small is a jail of the token ann.
var small = jail.Spec{Creator: "ann", Limits: jail.Limits{MemoryMB: 64, DiskMB: 128}}

const mib = 1 << 20

func create(m *jail.Manager, s jail.Spec) (jail.Jail, error) {
	s.Start = true
	return m.Create(context.Background(), s)
}

// wantRefused fails the test unless err is about a limit of a quota.
func wantRefused(t *testing.T, err error, limit string) {
	t.Helper()
	if !errors.Is(err, fault.Exhausted) || !strings.Contains(err.Error(), limit) {
		t.Errorf("error = %v, want exhausted with %q", err, limit)
	}
}

func wantDemand(t *testing.T, m *jail.Manager, want jail.Demand) {
	t.Helper()
	if got := m.Demand("ann"); got != want {
		t.Errorf("demand = %+v, want %+v", got, want)
	}
}

func must[T any](got T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
}

func TestConcurrentCreatesNeverExceedQuota(t *testing.T) {
	h := newHarness(t)
	h.limited(quotaOf{"ann": {Jails: 5}, "ben": {Memory: 200 * mib}})
	h.pool = jail.PoolConfig{Size: 2, TTL: time.Hour}
	m := h.manager()
	must(create(m, jail.Spec{Limits: small.Limits}))(t) // the pool has spares of the shape
	waitSpares(t, m, 2)
	var created atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			_, err := create(m, small)
			if err == nil {
				created.Add(1)
			} else {
				wantRefused(t, err, "quota of the token for jails is 5: 5 are used, and 1 more are requested")
			}
		})
	}
	wg.Wait()
	if created.Load() != 5 {
		t.Errorf("created jails = %d, want 5", created.Load())
	}
	wantDemand(t, m, jail.Demand{Jails: 5, Memory: 5 * 64 * mib, Disk: 5 * 128 * mib})
	other := small
	other.Creator = "ben" // the quota of another token
	for range 3 {
		must(create(m, other))(t)
	}
	_, err := create(m, other)
	wantRefused(t, err, "for memory (MiB) is 200: 192 are used, and 64 more")
	other.Creator = ""
	must(create(m, other))(t)

	// The next daemon counts the jails that exist.
	m.Close()
	m = h.manager()
	_, err = create(m, small)
	wantRefused(t, err, "for jails is 5")
	all := must(m.List(t.Context(), jail.ListOptions{}))(t)
	for _, j := range all {
		if j.Spec.Creator == "ann" {
			if err := m.Delete(t.Context(), j.ID); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	must(create(m, small))(t)
}

func TestStoppedJailKeepsDiskAndPlace(t *testing.T) {
	h := newHarness(t)
	h.limited(quotaOf{"ann": {Jails: 3, Memory: 64 * mib, Disk: 300 * mib}})
	m := h.manager()
	first := must(create(m, small))(t)
	_, err := create(m, small)
	wantRefused(t, err, "for memory (MiB) is 64")
	must(m.Stop(t.Context(), first.ID, jail.StopOptions{}))(t)
	wantDemand(t, m, jail.Demand{Jails: 1, Disk: 128 * mib})
	second := must(create(m, small))(t)
	_, err = m.Start(t.Context(), first.ID)
	wantRefused(t, err, "for memory (MiB) is 64")
	must(m.Stop(t.Context(), second.ID, jail.StopOptions{}))(t)
	_, err = create(m, small)
	wantRefused(t, err, "for disk (MiB) is 300")
	must(m.Start(t.Context(), first.ID))(t)
	wantDemand(t, m, jail.Demand{Jails: 2, Memory: 64 * mib, Disk: 256 * mib})
}

func TestFailedOperationsReturnTheirShare(t *testing.T) {
	h := newHarness(t)
	h.limited(quotaOf{"ann": {Jails: 1, Memory: 64 * mib}})
	m := h.manager()
	boom := errors.New("create refused")
	h.backend.fail.Store(&boom)
	if _, err := create(m, small); !errors.Is(err, boom) {
		t.Fatalf("Create = %v, want the backend's error", err)
	}
	wantDemand(t, m, jail.Demand{})
	h.backend.fail.Store(nil)
	j := must(create(m, small))(t)
	must(m.Stop(t.Context(), j.ID, jail.StopOptions{}))(t)
	h.backend.fail.Store(&boom)
	if _, err := m.Start(t.Context(), j.ID); !errors.Is(err, boom) {
		t.Fatalf("Start = %v, want the backend's error", err)
	}
	wantDemand(t, m, jail.Demand{Jails: 1, Disk: 128 * mib})
}

func TestRaisedLimitsAreWithinQuota(t *testing.T) {
	h := newHarness(t)
	quota := quotaOf{"ann": {Memory: 128 * mib, Disk: 128 * mib}}
	h.limited(quota)
	m := h.manager()
	j := must(create(m, small))(t)
	raise := func(l jail.LimitChange) error {
		_, err := m.Limit(t.Context(), j.ID, l)
		return err
	}
	wantRefused(t, raise(jail.LimitChange{Limits: jail.Limits{DiskMB: 129}}), "for disk (MiB) is 128: 128 are used, and 1 more")
	wantRefused(t, raise(jail.LimitChange{Limits: jail.Limits{MemoryMB: 129}, Temporary: true}), "for memory (MiB) is 128")
	if err := raise(jail.LimitChange{Limits: jail.Limits{MemoryMB: 128}}); err != nil {
		t.Error(err)
	}
	wantDemand(t, m, jail.Demand{Jails: 1, Memory: 128 * mib, Disk: 128 * mib})
	quota["ann"] = jail.Demand{Memory: 32 * mib} // lowered below the use
	if err := raise(jail.LimitChange{Limits: jail.Limits{MemoryMB: 64}}); err != nil {
		t.Errorf("lowering a limit over the quota = %v, want nil", err)
	}
	wantRefused(t, raise(jail.LimitChange{Limits: jail.Limits{MemoryMB: 65}}), "for memory (MiB) is 32")
}

func TestBranchesAndRewindsAreWithinQuota(t *testing.T) {
	h := newHarness(t)
	h.limited(quotaOf{"ann": {Jails: 3, Memory: 128 * mib}})
	m, s := h.scripted()
	of := must(create(m, small))(t)
	made := must(h.checkpoint(m, of.ID, jail.Copied))(t)
	must(branch(m, t.Context(), made.Image, true))(t) // copies belong to the daemon
	wantDemand(t, m, jail.Demand{Jails: 1, Memory: 64 * mib, Disk: 128 * mib})
	s.fail("restore", failureModes["error"])
	s.fail("thaw", failureModes["error"])
	if _, err := branch(m, t.Context(), made.Image, false); !errors.Is(err, errScripted) {
		t.Errorf("Branch = %v, want the backend's error", err)
	}
	s.fail("thaw", nil)
	if _, err := branch(m, t.Context(), made.Image, false); !errors.Is(err, errScripted) {
		t.Errorf("Branch without a copy = %v, want the backend's error", err)
	}
	s.fail("restore", nil)
	must(branch(m, t.Context(), made.Image, true))(t)
	second := must(branch(m, t.Context(), made.Image, false))(t)
	_, err := branch(m, t.Context(), made.Image, false)
	wantRefused(t, err, "for memory (MiB) is 128")
	must(m.Stop(t.Context(), second.ID, jail.StopOptions{}))(t)
	must(branch(m, t.Context(), made.Image, false))(t)
	_, err = m.Rewind(t.Context(), second.ID, made.Image, jail.RewindOptions{})
	wantRefused(t, err, "for memory (MiB) is 128")
	must(m.Rewind(t.Context(), of.ID, made.Image, jail.RewindOptions{}))(t)
	wantDemand(t, m, jail.Demand{Jails: 3, Memory: 128 * mib, Disk: 3 * 128 * mib})
	_, err = create(m, small)
	wantRefused(t, err, "for jails is 3")
}

// The demand of a token does not grow if one of its jails moves to another node.
func TestArrivingJailIsNotRefused(t *testing.T) {
	from, to := newHarness(t), newHarness(t)
	m, _ := from.scripted()
	j := must(create(m, small))(t)
	made := must(from.checkpoint(m, j.ID, jail.Copied))(t)
	to.limited(quotaOf{"ann": {Jails: 1}})
	there, _ := to.scripted()
	must(create(there, small))(t)
	arrived := must(there.Arrive(t.Context(), made.Image, jail.Arrival{State: jail.Running}, func(context.Context) error { return nil }))(t)
	if arrived.Spec.Creator != "ann" {
		t.Errorf("creator = %q, want ann", arrived.Spec.Creator)
	}
	wantDemand(t, there, jail.Demand{Jails: 2, Memory: 2 * 64 * mib, Disk: 2 * 128 * mib})
}

// If the demand cannot be shared with other daemons, nothing is created.
func TestUnsharedDemandIsReturned(t *testing.T) {
	h := newHarness(t)
	away := errors.New("the database is away")
	h.limited(failingQuotas{away})
	m := h.manager()
	if _, err := create(m, small); !errors.Is(err, away) {
		t.Errorf("Create = %v, want %v", err, away)
	}
	wantDemand(t, m, jail.Demand{})
	if n := h.backend.creates.Load(); n != 0 {
		t.Errorf("creates = %d, want 0", n)
	}
}

type failingQuotas struct{ err error }

func (q failingQuotas) Share(_ context.Context, _ id.Token, claim func(quota, others jail.Demand) (jail.Demand, error)) error {
	_, err := claim(jail.Demand{}, jail.Demand{})
	return errors.Join(err, q.err)
}
