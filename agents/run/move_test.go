package run_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/chain"
)

// legalMoves is an independent copy of the table of transitions.
var legalMoves = map[run.State]string{
	run.Scheduled: "scheduled active paused failed cancelled",
	run.Active:    "paused done failed cancelled",
	run.Paused:    "scheduled active failed cancelled",
	run.Done:      "",
	run.Failed:    "",
	run.Cancelled: "",
}

func TestAllTransitions(t *testing.T) {
	h := newHarness(t)
	for _, from := range run.States() {
		for _, to := range run.States() {
			t.Run(fmt.Sprintf("%s to %s", from, to), func(t *testing.T) {
				r := inState(t, h.Manager, from)
				before := len(events(t, h.Manager, r.Session))
				moved, err := h.Move(t.Context(), r.ID, moveTo(to))
				now := must(h.Get(t.Context(), r.ID))(t)
				published := len(events(t, h.Manager, r.Session)) - before
				if slices.Contains(words(legalMoves[from]), string(to)) {
					if err != nil || moved.State != to || now.State != to || published != 1 {
						t.Errorf("run is %s, %v, with %d events", now.State, err, published)
					}
					kind := chain.RunMoved
					if to.Ended() {
						kind = chain.RunEnded
					}
					last := h.entries(t, r.ID, chain.RunMoved, chain.RunEnded)
					if e := last[len(last)-1]; e["kind"] != kind || e["from"] != string(from) || e["to"] != string(to) {
						t.Errorf("entry = %v", e)
					}
					return
				}
				wantKind(t, "Move", err, fault.Conflict)
				if now.State != from || now.Version != r.Version || published != 0 {
					t.Errorf("run was changed despite the error: %s, %d events", now.State, published)
				}
			})
		}
	}
}

func words(s string) []string {
	var list []string
	for w := ""; s != ""; {
		if n, _ := fmt.Sscan(s, &w); n == 0 {
			break
		}
		list = append(list, w)
		s = s[min(len(s), len(w)+1):]
	}
	return list
}

func moveTo(to run.State) run.Move {
	v := run.Move{To: to, By: "test"}
	switch to {
	case run.Paused:
		v.Why = run.ByOperator
	case run.Scheduled:
		v.NextRunAt = time.Now().Add(time.Hour)
	}
	return v
}

// inState creates a run in a state.
func inState(t *testing.T, m *run.Manager, s run.State) run.Run {
	t.Helper()
	q := run.Request{Goal: "g"}
	if s == run.Scheduled {
		q.NextRunAt = time.Now().Add(time.Hour)
	}
	r := start(t, m, q)
	if r.State != s {
		r = must(m.Move(t.Context(), r.ID, moveTo(s)))(t)
	}
	return r
}

func TestInvalidMoves(t *testing.T) {
	h := newHarness(t)
	r := inState(t, h.Manager, run.Active)
	for _, v := range []run.Move{
		{To: "asleep"}, {To: ""}, {To: run.Paused}, {To: run.Paused, Why: "tea"}, {To: run.Done, Why: run.ByOperator},
		{To: run.Done, Result: []byte("{")}, {To: run.Paused, Why: run.ForSchedule},
	} {
		_, err := h.Move(t.Context(), r.ID, v)
		wantKind(t, fmt.Sprintf("Move(%+v)", v), err, fault.Invalid)
	}
	_, err := h.Move(t.Context(), "r-none", run.Move{To: run.Done})
	wantKind(t, "Move of an unknown run", err, fault.NotFound)
}

func TestMoveWithVersion(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{})
	must(h.beginNew(ctx, r.ID, tool("in flight")))(t)
	asked := must(h.Move(ctx, r.ID, run.Move{To: run.Paused, Why: run.ForApproval}))(t)
	must(h.End(ctx, r.ID, "in flight", done("1")))(t) // changes the run, but not its state
	must(h.Move(ctx, r.ID, run.Move{To: run.Active, Version: asked.Version}))(t)
	must(h.Move(ctx, r.ID, run.Move{To: run.Paused, Why: run.ByOperator}))(t)
	_, err := h.Move(ctx, r.ID, run.Move{To: run.Active, Version: asked.Version})
	wantKind(t, "Move with an old version", err, fault.Conflict)
}

// A run, its children and its branches count towards the token with which it was started.
func TestCreatorIsInherited(t *testing.T) {
	h := newHarness(t)
	root := start(t, h.Manager, run.Request{Session: "s", Creator: "t-1"})
	child := start(t, h.Manager, run.Request{Session: "s", Parent: root.ID})
	other := start(t, h.Manager, run.Request{Session: "s", Parent: root.ID, Creator: "t-2"})
	branch, _, err := h.Resume(t.Context(), child.ID, run.ResumeRequest{Branch: true})
	if err != nil {
		t.Fatal(err)
	}
	for what, r := range map[string]run.Run{"run": root, "child": child, "branch": branch} {
		if r := must(h.Get(t.Context(), r.ID))(t); r.Creator != "t-1" {
			t.Errorf("creator of the %s = %q, want t-1", what, r.Creator)
		}
	}
	if other.Creator != "t-2" {
		t.Errorf("creator of a child that was started with another token = %q, want t-2", other.Creator)
	}
}

func TestCancelIncludesChildren(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	root := start(t, h.Manager, run.Request{Session: "s"})
	other := start(t, h.Manager, run.Request{Session: "s"})
	var all []run.Run
	for parent := root.ID; len(all) < 8; parent = all[len(all)-1].ID {
		all = append(all, start(t, h.Manager, run.Request{Session: "s", Parent: parent}))
	}
	_, err := h.Create(ctx, run.Request{Session: "s", Goal: "g", Parent: all[7].ID})
	wantKind(t, "Create at depth nine", err, fault.Exhausted)
	_, err = h.Create(ctx, run.Request{Session: "another", Goal: "g", Parent: root.ID})
	wantKind(t, "Create with a parent of another session", err, fault.Conflict)

	must(h.Move(ctx, all[2].ID, run.Move{To: run.Paused, Why: run.ForApproval}))(t)
	must(h.Finish(ctx, all[7].ID, run.Finish{}))(t)
	must(h.Move(ctx, root.ID, run.Move{To: run.Cancelled, By: "anna", Reason: "enough"}))(t)
	for i, r := range all {
		want := run.Cancelled
		if i == 7 {
			want = run.Done
		}
		if now := must(h.Get(ctx, r.ID))(t); now.State != want || now.Ended.IsZero() {
			t.Errorf("run at depth %d is %s, want %s", i+1, now.State, want)
		}
	}
	if now := must(h.Get(ctx, other.ID))(t); now.State != run.Active {
		t.Errorf("unrelated run is %s, want active", now.State)
	}
	_, err = h.Create(ctx, run.Request{Session: "s", Goal: "g", Parent: root.ID})
	wantKind(t, "Create with an ended parent", err, fault.Conflict)
}

func TestClosedSessionRefusesChanges(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	parent := start(t, h.Manager, run.Request{Session: "s"})
	child := start(t, h.Manager, run.Request{Session: "s", Parent: parent.ID})
	must(h.CloseSession(ctx, "s", "anna", "done with it"))(t)
	for _, rid := range []id.Run{parent.ID, child.ID} {
		if r := must(h.Get(ctx, rid))(t); r.State != run.Cancelled {
			t.Errorf("run %s is %s, want cancelled", rid, r.State)
		}
	}
	_, err := h.Create(ctx, run.Request{Session: "s", Goal: "g"})
	wantKind(t, "Create", err, fault.Conflict)
	_, err = h.Send(ctx, run.Message{Session: "s", Text: "hello?"})
	wantKind(t, "Send", err, fault.Conflict)
	if s := must(h.CloseSession(ctx, "s", "anna", ""))(t); s.State != run.Closed {
		t.Errorf("second CloseSession = %s, want closed", s.State)
	}
	if n := len(h.entries(t, "", chain.SessionClosed)); n != 1 {
		t.Errorf("%d entries of the closing, want 1", n)
	}
	_, err = h.Open(ctx, run.Session{ID: "no such name!"})
	wantKind(t, "Open", err, fault.Invalid)
}

func TestScheduledRunIsDue(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	now := time.Now()
	soon := start(t, h.Manager, run.Request{Session: "s", NextRunAt: now.Add(time.Minute), Schedule: "0 0 * * * *"})
	later := start(t, h.Manager, run.Request{Session: "s", NextRunAt: now.Add(time.Hour)})
	held := start(t, h.Manager, run.Request{Session: "s", NextRunAt: now.Add(30 * time.Second)})
	must(h.Move(ctx, held.ID, run.Move{To: run.Paused, Why: run.ByOperator}))(t)
	if soon.State != run.Scheduled || !soon.Started.IsZero() {
		t.Fatalf("Create = %+v, want scheduled", soon)
	}
	_, _, err := h.Begin(ctx, soon.ID, tool("k"))
	wantKind(t, "Begin before the run is due", err, fault.Conflict)
	due := func(at time.Time) (list []id.Run) {
		for _, r := range must(h.Due(ctx, at, 0))(t) {
			list = append(list, r.ID)
		}
		return list
	}
	if got := due(now); len(got) != 0 {
		t.Errorf("due now: %v", got)
	}
	if got := due(now.Add(2 * time.Minute)); !slices.Equal(got, []id.Run{soon.ID}) {
		t.Errorf("due in two minutes: %v", got)
	}
	if got := due(now.Add(time.Hour)); !slices.Equal(got, []id.Run{soon.ID, later.ID}) {
		t.Errorf("due in an hour: %v", got)
	}
	must(h.Move(ctx, soon.ID, run.Move{To: run.Active}))(t)
	must(h.Move(ctx, soon.ID, run.Move{To: run.Paused, Why: run.ForSchedule, NextRunAt: now.Add(30 * time.Minute)}))(t)
	if r := must(h.Move(ctx, held.ID, run.Move{To: run.Scheduled}))(t); !r.NextRunAt.Equal(now.Add(30 * time.Second)) {
		t.Errorf("NextRunAt after resuming = %v", r.NextRunAt)
	}
	if got := due(now.Add(time.Hour)); !slices.Equal(got, []id.Run{held.ID, soon.ID, later.ID}) {
		t.Errorf("due in an hour: %v", got)
	}
}

func TestCreateIsIdempotent(t *testing.T) {
	h := newHarness(t)
	first := start(t, h.Manager, run.Request{Session: "s", Key: "k"})
	if again := start(t, h.Manager, run.Request{Session: "s", Key: "k"}); again.ID != first.ID {
		t.Errorf("second Create = %s, want %s", again.ID, first.ID)
	}
	if other := start(t, h.Manager, run.Request{Session: "s2", Key: "k"}); other.ID == first.ID {
		t.Error("the same key returns the same run in another session")
	}
}

func TestListPagesAreStable(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	var want []id.Run
	for range 7 {
		r := start(t, h.Manager, run.Request{Session: "s"})
		step(t, h.Manager, r.ID, "k")
		want = append([]id.Run{r.ID}, want...)
	}
	start(t, h.Manager, run.Request{Session: "s2"})
	var got []id.Run
	f := run.Filter{Session: "s", Limit: 3}
	for {
		list := must(h.List(ctx, f))(t)
		for _, r := range list {
			got = append(got, r.ID)
		}
		if len(list) < 3 {
			break
		}
		f.After = got[len(got)-1]
		start(t, h.Manager, run.Request{Session: "s"}) // newer than the page
	}
	if !slices.Equal(got, want) {
		t.Errorf("pages = %v, want %v", got, want)
	}
	if list := must(h.List(ctx, run.Filter{States: []run.State{run.Done, run.Failed}}))(t); len(list) != 0 {
		t.Errorf("List of ended runs has %d, want 0", len(list))
	}
	if list := must(h.Sessions(ctx, run.SessionFilter{Limit: 1, After: "s2"}))(t); len(list) != 1 || list[0].ID != "s" {
		t.Errorf("Sessions after s2 = %v, want s", list)
	}
}
