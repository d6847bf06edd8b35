package run_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"glasshouse/agents/run"
	"glasshouse/capability/budget"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/policy/chain"
)

func TestBudgetWarningsAreSentOnce(t *testing.T) {
	h := newHarness(t)
	r := start(t, h.Manager, run.Request{Session: "s", Limits: budget.Amounts{budget.Steps: 10}})
	for n := range 10 {
		step(t, h.Manager, r.ID, fmt.Sprint(n))
	}
	var warnings []string
	for _, e := range events(t, h.Manager, "s") {
		if e.Kind == run.BudgetWarned {
			var w budget.Warning
			if err := json.Unmarshal(e.Body, &w); err != nil {
				t.Fatal(err)
			}
			warnings = append(warnings, fmt.Sprintf("%d%% at %d of %d", w.Percent, w.Consumed, w.Limit))
		}
	}
	if got, want := strings.Join(warnings, ", "), "50% at 5 of 10, 80% at 8 of 10, 100% at 10 of 10"; got != want {
		t.Errorf("warnings = %s, want %s", got, want)
	}
	if n := len(h.entries(t, r.ID, chain.BudgetCharged)); n != 2 {
		t.Errorf("%d entries of a charged budget, want 2", n)
	}
	if n := len(h.entries(t, r.ID, chain.BudgetSpent)); n != 1 {
		t.Errorf("%d entries of a spent budget, want 1", n)
	}
}

func TestRunOverBudgetResumesOnlyWithHigherLimit(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{Session: "s", Limits: budget.Amounts{budget.Steps: 1}})
	step(t, h.Manager, r.ID, "one")
	_, _, err := h.Begin(ctx, r.ID, tool("two"))
	wantKind(t, "Begin over the limit", err, fault.Exhausted)
	if e, ok := errors.AsType[*budget.Exceeded](err); !ok || e.Dimension != budget.Steps {
		t.Errorf("error = %v, want the exceeded dimension", err)
	}
	r = must(h.Get(ctx, r.ID))(t)
	if r.State != run.Paused || r.Why != run.OverBudget || r.Shortage == nil || r.Shortage.Dimension != budget.Steps {
		t.Fatalf("run = %+v, want paused over its budget", r)
	}
	_, err = h.Move(ctx, r.ID, run.Move{To: run.Active})
	wantKind(t, "Move to active without a raised limit", err, fault.Conflict)
	for _, limits := range []budget.Amounts{{budget.Steps: 0}, {budget.Tokens: 5}} {
		_, err = h.Move(ctx, r.ID, run.Move{To: run.Active, Limits: limits})
		wantKind(t, fmt.Sprint("Move to active with limits ", limits), err, fault.Invalid)
	}
	r = must(h.Move(ctx, r.ID, run.Move{To: run.Active, Limits: budget.Amounts{budget.Steps: 3}, By: "anna"}))(t)
	if r.Shortage != nil || r.Budget.Limits[budget.Steps] != 3 {
		t.Errorf("run = %+v, want a limit of 3", r)
	}
	step(t, h.Manager, r.ID, "two")
	step(t, h.Manager, r.ID, "three")
	_, _, err = h.Begin(ctx, r.ID, tool("four"))
	wantKind(t, "Begin over the limit", err, fault.Exhausted)
	if list := h.entries(t, r.ID, chain.OperatorActed); len(list) != 1 || list[0]["agent"] != "anna" {
		t.Errorf("entries of the raised limit = %v, want one by anna", list)
	}
}

func TestStopRunFailsOverBudget(t *testing.T) {
	h := newHarness(t)
	r := start(t, h.Manager, run.Request{Limits: budget.Amounts{budget.Steps: 1}, OnExceed: run.StopRun})
	child := start(t, h.Manager, run.Request{Session: r.Session, Parent: r.ID})
	step(t, h.Manager, r.ID, "one")
	_, _, err := h.Begin(t.Context(), r.ID, tool("two"))
	wantKind(t, "Begin over the limit", err, fault.Exhausted)
	r = must(h.Get(t.Context(), r.ID))(t)
	if r.State != run.Failed || r.Error == "" {
		t.Errorf("run = %+v, want failed", r)
	}
	if c := must(h.Get(t.Context(), child.ID))(t); c.State != run.Cancelled {
		t.Errorf("child is %s, want cancelled", c.State)
	}
}

func TestRunsSpendFromParentAndSession(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	must(h.Open(ctx, run.Session{ID: "s", Budget: budget.State{Limits: budget.Amounts{budget.Steps: 5}}}))(t)
	parent := start(t, h.Manager, run.Request{Session: "s", Limits: budget.Amounts{budget.Steps: 3}})
	child := start(t, h.Manager, run.Request{Session: "s", Parent: parent.ID})
	other := start(t, h.Manager, run.Request{Session: "s"})
	step(t, h.Manager, parent.ID, "1")
	step(t, h.Manager, child.ID, "1")
	step(t, h.Manager, child.ID, "2")
	_, _, err := h.Begin(ctx, child.ID, tool("3"))
	wantKind(t, "Begin over the limit of the parent", err, fault.Exhausted)
	c := must(h.Get(ctx, child.ID))(t)
	if c.State != run.Paused || c.Shortage.Budget != "run "+string(parent.ID) {
		t.Errorf("child is %s with shortage %+v", c.State, c.Shortage)
	}
	step(t, h.Manager, other.ID, "1")
	step(t, h.Manager, other.ID, "2")
	_, _, err = h.Begin(ctx, other.ID, tool("3"))
	wantKind(t, "Begin over the limit of the session", err, fault.Exhausted)
	if s := must(h.Session(ctx, "s"))(t); s.Budget.Consumed[budget.Steps] != 5 {
		t.Errorf("budget of the session = %v, want 5 steps spent", s.Budget)
	}
	_, err = h.Move(ctx, other.ID, run.Move{To: run.Active})
	wantKind(t, "Move to active without a raised limit", err, fault.Conflict)
	must(h.Raise(ctx, "s", "anna", budget.Amounts{budget.Steps: 6}))(t)
	must(h.Move(ctx, other.ID, run.Move{To: run.Active}))(t)
	step(t, h.Manager, other.ID, "3")
}

func TestSpendingOutsideOfStepsCounts(t *testing.T) {
	h := newHarness(t, func(c *run.Config) { c.Holder = "w" })
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{Limits: budget.Amounts{budget.Tokens: 100, budget.Wall: 1000}})
	b := must(h.Budget(ctx, r.ID))(t)
	hold := must(b.Reserve(budget.Amounts{budget.Tokens: 60}))(t)
	r = must(h.SaveBudget(ctx, r.ID))(t)
	if r.Budget.Held[budget.Tokens] != 60 {
		t.Errorf("budget with a reservation = %+v", r.Budget)
	}
	hold.Commit(budget.Amounts{budget.Tokens: 40})
	r = must(h.Charge(ctx, r.ID, budget.Amounts{budget.Wall: 700}))(t)
	if r.Budget.Consumed[budget.Tokens] != 40 || r.Budget.Consumed[budget.Wall] != 700 || len(r.Budget.Held) != 0 {
		t.Errorf("budget = %+v", r.Budget)
	}

	// A reservation of a killed daemon counts as spent.
	must(b.Reserve(budget.Amounts{budget.Tokens: 50}))(t)
	must(h.SaveBudget(ctx, r.ID))(t)
	m := h.manager(t, func(c *run.Config) { c.Holder = "w" })
	if got := must(m.Budget(ctx, r.ID))(t).Remaining(); got[budget.Tokens] != 10 {
		t.Errorf("remaining after a kill = %v, want 10 tokens", got)
	}
	// Charge is possible over the limit.
	r = must(m.Charge(ctx, r.ID, budget.Amounts{budget.Wall: 301}))(t)
	if r.State != run.Paused || r.Why != run.OverBudget {
		t.Errorf("run over its time is %s, %s", r.State, r.Why)
	}
	_, err := m.Charge(ctx, r.ID, budget.Amounts{"beer": 1})
	wantKind(t, "Charge of an unknown dimension", err, fault.Invalid)
	_, err = m.Charge(ctx, r.ID, budget.Amounts{budget.Wall: -1})
	wantKind(t, "Charge of a negative amount", err, fault.Invalid)
}

func TestNumbersOutsideOfCanonicalJSONAreRecorded(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{Limits: budget.Amounts{budget.Tokens: math.MaxInt64 - 1}})
	must(h.Charge(ctx, r.ID, budget.Amounts{budget.Tokens: math.MaxInt64 - 3}))(t)
	step(t, h.Manager, r.ID, "k")
	list := h.entries(t, r.ID, chain.BudgetCharged)
	if len(list) != 2 || !strings.Contains(fmt.Sprint(list[0]["json"]), "9223372036854775806") {
		t.Errorf("entries = %v", list)
	}
	many := make([]manifest.Label, 51)
	for i := range many {
		many[i] = "pii"
	}
	_, err := h.Open(ctx, run.Session{ID: "s2", Settings: run.Settings{Labels: many}})
	wantKind(t, "Open with too many labels", err, fault.Invalid)
	if _, err := h.CloseSession(ctx, r.Session, strings.Repeat("\x00\xff", 100<<10), "enough"); err != nil {
		t.Error(err)
	}
	if list := h.entriesOf(t, chain.Query{Session: r.Session, Kinds: []chain.Kind{chain.SessionClosed}}); len(list) != 1 {
		t.Errorf("entries = %v, want 1", list)
	}
}

func TestRefusalDueToReservationsDoesNotPause(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{Limits: budget.Amounts{budget.Steps: 1}})
	must(h.beginNew(ctx, r.ID, tool("one")))(t)
	_, _, err := h.Begin(ctx, r.ID, tool("two"))
	wantKind(t, "Begin while another step has the last reservation", err, fault.Exhausted)
	r = must(h.Get(ctx, r.ID))(t)
	if r.State != run.Active {
		t.Errorf("run is %s, want active", r.State)
	}
	// A step that spends nothing releases its reservation.
	must(h.End(ctx, r.ID, "one", run.Outcome{State: run.StepRefused, Used: budget.Amounts{}}))(t)
	step(t, h.Manager, r.ID, "two")
}
