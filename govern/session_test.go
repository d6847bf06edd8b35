package govern

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"glasshouse/capability/budget"
	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/policy"
	"glasshouse/policy/chain"
	"glasshouse/policy/egress"
)

// sessionEngine records the sessions that end.
type sessionEngine struct {
	funcEngine
	mu    sync.Mutex
	ended []string
	err   error
}

func (k *sessionEngine) EndSession(_ context.Context, session string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = append(k.ended, session)
	return k.err
}

func TestEndSession(t *testing.T) {
	h := newHarness(t)
	jails, modules := &sessionEngine{err: errors.New("disk is busy")}, &sessionEngine{}
	h.Serve(capabilityMap{}, map[manifest.Runtime]engine.Engine{manifest.Container: jails, manifest.MicroVM: jails, manifest.WASM: modules})
	in := func(session, run string) policy.Subject { return policy.Subject{Session: session, Run: run} }
	for _, who := range []policy.Subject{in("s1", "r1"), in("s1", "r2"), in("s2", "r3")} {
		_, err := h.BudgetOf(who, budget.Amounts{budget.Steps: 2})
		must(t, err)
	}
	if err := h.EndSession(t.Context(), "s1"); !errors.Is(err, jails.err) {
		t.Errorf("EndSession = %v, want %v", err, jails.err)
	}
	if !slices.Equal(jails.ended, []string{"s1"}) || !slices.Equal(modules.ended, []string{"s1"}) {
		t.Errorf("EndSession calls = %v and %v, want one per engine", jails.ended, modules.ended)
	}
	for run, want := range map[string]bool{"r1": false, "r2": false, "r3": true} {
		if b, err := h.BudgetOf(in("", run), nil); err != nil || (b != nil) != want {
			t.Errorf("BudgetOf(%s) = %v, %v; want one: %v", run, b, err, want)
		}
	}
	if err := h.EndSession(t.Context(), ""); fault.KindOf(err) != fault.Invalid {
		t.Errorf("EndSession without a name = %v, want kind %v", err, fault.Invalid)
	}
}

func TestLendBudget(t *testing.T) {
	h := newHarness(t)
	who := policy.Subject{Session: "s1", Run: "r1"}
	own, err := budget.New("run r1", nil, budget.State{Limits: budget.Amounts{budget.Steps: 2}}, h.BudgetWarnings(who))
	must(t, err)
	release := h.LendBudget(who, own)
	if b, err := h.BudgetOf(who, nil); err != nil || b != own {
		t.Errorf("BudgetOf = %v, %v; want the lent budget", b, err)
	}
	if _, err := h.BudgetOf(who, budget.Amounts{budget.Steps: 2}); fault.KindOf(err) != fault.Conflict {
		t.Errorf("BudgetOf with limits = %v, want kind %v", err, fault.Conflict)
	}
	release()
	if b, err := h.BudgetOf(who, nil); err != nil || b != nil {
		t.Errorf("BudgetOf after release = %v, %v; want nil", b, err)
	}
}

// Egress of a capability's jail is attributed to the call that was running when it began.
func TestEgressParentIsTheServedCall(t *testing.T) {
	h := newHarness(t)
	jid := h.jail(`{"*": "allow"}`)
	first, err := h.chain.Append(t.Context(), chain.Entry{Kind: chain.CallStarted, Jail: jid, Body: []byte(`{}`)})
	must(t, err)
	second, err := h.chain.Append(t.Context(), chain.Entry{Kind: chain.CallStarted, Jail: jid, Body: []byte(`{}`)})
	must(t, err)

	jp := h.find(jid)
	r := recorder{k: h.Engine, jid: jid, served: &jp.served}
	before := time.Now()
	done := h.Serving(jid, first.Seq)
	during := time.Now()
	done()
	between := time.Now().Add(time.Nanosecond)
	for !time.Now().After(between) {
	}
	h.Serving(jid, second.Seq)
	for _, at := range []time.Time{before.Add(-time.Second), during, between, time.Now()} {
		r.Record(egress.Record{At: at, Allowed: true})
	}
	must(t, h.Engine.Close()) // waits until all is recorded
	entries, err := h.chain.Entries(t.Context(), chain.Query{Jail: jid, Kinds: []chain.Kind{chain.Egress}})
	must(t, err)
	var parents []int64
	for _, e := range entries {
		parents = append(parents, e.Parent)
	}
	if want := []int64{0, first.Seq, 0, second.Seq}; !slices.Equal(parents, want) {
		t.Errorf("parents = %v, want %v", parents, want)
	}
}
