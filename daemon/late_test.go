package daemon

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/agents/autonomy"
	"glasshouse/agents/gateway"
	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/policy"
	"glasshouse/policy/chain"
	"glasshouse/store/storetest"
)

// governed contains the store, the audit log, the policy engine and the runs of a daemon.
type governed struct {
	*Daemon
	work *run.Manager
}

func newGoverned(t *testing.T) governed {
	t.Helper()
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	d := &Daemon{Config: Config{Data: dir}, log: log}
	var err error
	d.store, err = storetest.Open(t, filepath.Join(dir, "d.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.store.Close() })
	key, err := chain.LoadKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	d.chain, err = chain.Open(t.Context(), chain.Config{Store: d.store.Chain(), Key: key, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.chain.Close() })
	d.kernel = govern.New(govern.Config{Chain: d.chain, Dir: filepath.Join(dir, "ca")})
	t.Cleanup(func() { d.kernel.Close() })
	d.groups = &groups{log: log}
	t.Cleanup(func() { d.groups.Close() })
	runs, err := run.New(t.Context(), run.Config{Store: d.store.Runs(), Chain: d.chain})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { runs.Close() })
	return governed{d, runs}
}

// kinds returns the kinds of all audit log entries, oldest first.
func (g governed) kinds(t *testing.T) []chain.Kind {
	t.Helper()
	var all []chain.Kind
	for _, e := range g.entries(t) {
		all = append(all, e.Kind)
	}
	return all
}

func (g governed) entries(t *testing.T) []chain.Entry {
	t.Helper()
	if err := g.kernel.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, err := g.chain.Entries(t.Context(), chain.Query{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// listening is a fake jail manager that only opens listeners.
type listening struct {
	gateway.Jails
	asked chan id.Jail
}

func (l listening) Listen(_ context.Context, j id.Jail, _ string) (net.Listener, error) {
	return nil, fault.Newf(fault.Unavailable, "test", string(j), "no listener")
}

func (l listening) ListenTCP(_ context.Context, j id.Jail, port int) (net.Listener, error) {
	if port != gateway.EndpointPort {
		return nil, fault.Newf(fault.Invalid, "test", string(j), "port %d", port)
	}
	select {
	case l.asked <- j:
	default:
	}
	return nil, fault.Newf(fault.Unavailable, "test", string(j), "no listener")
}

// A spare starts without a session and gets one when a caller claims it.
func TestClaimedSpareGetsAgentEndpoint(t *testing.T) {
	d := newGoverned(t)
	jails := listening{asked: make(chan id.Jail, 1)}
	g := gateway.New(gateway.Config{Runs: d.work, Jails: jails, Policy: d.kernel})
	t.Cleanup(func() { g.Close() })

	spare := jail.Jail{ID: "j-aaaaaaaaaaaa", State: jail.Spare}
	g.JailStarted(spare)
	select {
	case j := <-jails.asked:
		t.Fatalf("the listener of %s is opened before the jail can be found", j)
	case <-time.After(50 * time.Millisecond):
	}
	mine := spare
	mine.State = jail.Running
	mine.Spec.Labels = map[string]string{gateway.LabelSession: "s"}
	g.JailStarted(mine)
	select {
	case j := <-jails.asked:
		if j != mine.ID {
			t.Errorf("the listener of %s is opened, want that of %s", j, mine.ID)
		}
	case <-time.After(10 * time.Second):
		t.Error("no listener is opened for a spare that was claimed for a session")
	}
	g.JailStopped(mine.ID)
}

func TestEnvironmentOfJailCommands(t *testing.T) {
	w := jailEnforcer{fences: newFences()}
	j := jail.Jail{ID: "j-aaaaaaaaaaaa", Spec: jail.Spec{Labels: map[string]string{gateway.LabelSession: "s"}}}
	if got := w.Env(j); len(got) != 1 || got["SANDBOX_ID"] != "j-aaaaaaaaaaaa" {
		t.Errorf("environment = %v, want SANDBOX_ID alone", got)
	}
	j.Spec.Network = jail.Proxied
	got := w.Env(j)
	for k, v := range govern.Env(j.Spec.Policy) {
		if got[k] != v {
			t.Errorf("%s = %q, want %q", k, got[k], v)
		}
	}
	if got["SANDBOX_ID"] != "j-aaaaaaaaaaaa" {
		t.Errorf("SANDBOX_ID = %q, want the jail's id", got["SANDBOX_ID"])
	}
	if got := w.Env(jail.Jail{ID: "j-b"}); len(got) != 0 {
		t.Errorf("environment of a jail that is nobody's = %v, want none", got)
	}
}

func TestAuditLogRecordsJailLifecycle(t *testing.T) {
	d := newGoverned(t)
	w := jailEnforcer{d.kernel, d.groups, newFences()}
	j := jail.Jail{ID: "j-aaaaaaaaaaaa", Spec: jail.Spec{Name: "web", Backend: "oci", Runtime: "runc", Network: jail.Bridged, Group: "crew"}}
	for _, move := range []struct{ from, to jail.State }{
		{jail.Creating, jail.Created}, {jail.Created, jail.Running}, {jail.Running, jail.Paused}, {jail.Paused, jail.Running},
		{jail.Running, jail.Stopped}, {jail.Stopped, jail.Deleting},
	} {
		j.State = move.to
		w.StateChanged(j, move.from)
	}
	j.State, j.Reason = jail.Failed, "init ended; the jail ran out of memory"
	w.StateChanged(j, jail.Running)
	want := []chain.Kind{chain.JailCreated, chain.JailStarted, chain.JailPaused, chain.JailResumed, chain.JailStopped, chain.JailDeleted, chain.JailFailed}
	got := d.kinds(t)
	if len(got) != len(want) {
		t.Fatalf("entries = %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("entry %d = %s, want %s", i, got[i], want[i])
		}
	}
	all := d.entries(t)
	for _, part := range []string{`"name":"web"`, `"runtime":"runc"`, `"network_group":"crew"`} {
		if !strings.Contains(string(all[0].Body), part) {
			t.Errorf("the first entry = %s, want %s in it", all[0].Body, part)
		}
	}
	if !strings.Contains(string(all[6].Body), "out of memory") {
		t.Errorf("the last entry = %s, want the reason in it", all[6].Body)
	}
}

// Their entries begin when they are claimed.
func TestSparesAreNotInTheAuditLog(t *testing.T) {
	d := newGoverned(t)
	w := jailEnforcer{d.kernel, d.groups, newFences()}
	for _, move := range []struct{ from, to jail.State }{{jail.Creating, jail.Spare}, {jail.Spare, jail.Deleting}, {jail.Creating, jail.Deleting}} {
		w.StateChanged(jail.Jail{ID: "j-aaaaaaaaaaaa", State: move.to}, move.from)
	}
	if got := d.kinds(t); len(got) != 0 {
		t.Errorf("entries of spares = %v, want none", got)
	}
	w.StateChanged(jail.Jail{ID: "j-bbbbbbbbbbbb", State: jail.Running}, jail.Spare)
	if got := d.kinds(t); len(got) != 2 || got[0] != chain.JailCreated || got[1] != chain.JailStarted {
		t.Errorf("entries of a spare that was claimed = %v, want created and started", got)
	}
}

func TestRequestsBetweenSiblingsAreRecorded(t *testing.T) {
	d := newGoverned(t)
	r := autonomy.Request{
		ID: "q-1", From: autonomy.Member{Jail: "j-aaaaaaaaaaaa", Session: "s", Run: "r-1", Agent: "opencode"}, To: autonomy.Member{Session: "t", Name: "reviewer"},
		Action: "review", State: autonomy.Failed, Why: "the run of reviewer has ended",
	}
	if err := d.notes().recordRequest(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	all := d.entries(t)
	if len(all) != 1 || all[0].Kind != chain.SiblingTold || all[0].Jail != r.From.Jail || all[0].Run != "r-1" || all[0].Agent != "opencode" {
		t.Fatalf("entries = %+v, want one of the asker", all)
	}
	var body map[string]string
	if err := json.Unmarshal(all[0].Body, &body); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"request": "q-1", "to": "reviewer", "action": "review", "state": "failed", "why": "the run of reviewer has ended"}
	for k, v := range want {
		if body[k] != v {
			t.Errorf("%s = %q, want %q", k, body[k], v)
		}
	}
}

func TestChangesOfLimitsAreRecorded(t *testing.T) {
	d := newGoverned(t)
	c := autonomy.Change{
		Jail: "j-aaaaaaaaaaaa", Verdict: autonomy.Denied, By: "ann", Want: autonomy.Limits{Memory: 4096}, From: autonomy.Limits{Memory: 512}, To: autonomy.Limits{Memory: 512},
		Refusal: &autonomy.Refusal{Code: "person", Reason: "not today"},
	}
	seq, err := d.notes().recordLimits(t.Context(), c)
	if err != nil || seq != 1 {
		t.Fatalf("recordLimits = %d, %v, want entry 1", seq, err)
	}
	all := d.entries(t)
	for _, part := range []string{`"why":"person: not today"`, `"want":"memory=4096"`, `"to":"memory=512"`, `"by":"ann"`} {
		if all[0].Kind != chain.JailLimited || !strings.Contains(string(all[0].Body), part) {
			t.Errorf("entry = %s %s, want %s in it", all[0].Kind, all[0].Body, part)
		}
	}
}

// The policy of a spare applies from the moment at which it is claimed.
func TestPolicyOfClaimedSpareIsApplied(t *testing.T) {
	d := newGoverned(t)
	w := jailEnforcer{d.kernel, d.groups, newFences()}
	j := jail.Jail{ID: "j-aaaaaaaaaaaa", State: jail.Spare}
	if err := w.Apply(t.Context(), j, jail.HostInfo{}); err != nil {
		t.Fatal(err)
	}
	q := policy.Question{Subject: policy.Subject{Jail: j.ID}, Action: "edit", Resource: "a"}
	if got := d.kernel.Decide(q).Effect; got != policy.Deny {
		t.Errorf("without a policy: %s, want deny", got)
	}
	raw, err := json.Marshal(govern.Spec{Policy: &govern.Policy{Files: []govern.File{{Name: "opencode.json", Text: `{"permission":{"edit":"allow"}}`}}}})
	if err != nil {
		t.Fatal(err)
	}
	spec := jail.Spec{Policy: raw}
	spec.Policy, err = w.Check(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	j.Spec = spec
	if err := w.SpecChanged(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	if got := d.kernel.Decide(q).Effect; got != policy.Allow {
		t.Errorf("with its policy: %s, want allow", got)
	}
	w.Release(j.ID)
	if got := d.kernel.Decide(q).Effect; got != policy.Deny {
		t.Errorf("after it has ended: %s, want deny", got)
	}
	if _, err := w.Check(t.Context(), jail.Spec{Policy: json.RawMessage(`{"policy":{"files":[{"name":"x.txt","text":""}]}}`)}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("Check of a file that is no policy = %v, want invalid", err)
	}
}
