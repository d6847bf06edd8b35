package gateway

import (
	"errors"
	"testing"

	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/policy"
	"glasshouse/run"
)

// session opens a session of a group.
func (w *world) session(sid, name, group string) {
	w.Helper()
	s := run.Session{ID: sid, Settings: run.Settings{Name: name, Group: group}}
	if _, err := w.runs.Open(w.Context(), s); err != nil {
		w.Fatal(err)
	}
}

// jailIn makes a jail that belongs to a session, and in which no run is at work.
func (w *world) jailIn(sid string, rules []byte) jail.Jail {
	w.Helper()
	j, err := w.jails.Create(w.Context(), jail.Spec{Start: true, Cwd: "/work", Govern: rules, Labels: map[string]string{LabelSession: sid}})
	if err != nil {
		w.Fatal(err)
	}
	return j
}

func TestAJailOfASessionHasAnAgentEndpoint(t *testing.T) {
	w := newWorld(t).open()
	w.session("s", "worker", "crew")
	j := w.jailIn("s", nil)
	c, err := w.knock(j.ID)
	if err != nil {
		t.Fatal(err)
	}
	want := Caller{Jail: j.ID, Session: "s", Name: "worker", Group: "crew", Workspace: "/work"}
	if c != want {
		t.Errorf("caller = %+v, want %+v", c, want)
	}
}

func TestAJailWithoutASessionHasNoAgentEndpoint(t *testing.T) {
	w := newWorld(t).open()
	j, err := w.jails.Create(t.Context(), jail.Spec{Start: true})
	if err != nil {
		t.Fatal(err)
	}
	w.g.mu.Lock()
	defer w.g.mu.Unlock()
	if w.g.doors[j.ID] != nil {
		t.Error("a jail without a session has an agent endpoint, want none")
	}
}

// TestAnEndpointOpensWhenItsJailBecomesVisible: a spare is guarded before anybody can find it,
// and whose it is becomes known later.
func TestAnEndpointOpensWhenItsJailBecomesVisible(t *testing.T) {
	w := newWorld(t).open()
	j := w.jailIn("s", nil)
	w.await("the first endpoint is open", func() bool { w.jails.mu.Lock(); defer w.jails.mu.Unlock(); return w.jails.ports[j.ID] != nil })
	w.g.Left(j.ID)
	w.jails.mu.Lock()
	delete(w.jails.ports, j.ID)
	w.jails.mu.Unlock()

	gone := fault.Newf(fault.NotFound, "jail.Listen", string(j.ID), "no such jail")
	w.jails.failing("Listen", gone)
	w.g.Arrived(j)
	w.await("the endpoint is given up", func() bool {
		w.g.mu.Lock()
		defer w.g.mu.Unlock()
		return w.g.doors[j.ID] == nil
	})
	w.jails.failing("Listen", nil)
	w.g.Arrived(j)
	if c, err := w.knock(j.ID); err != nil || c.Jail != j.ID {
		t.Errorf("caller = %+v, %v, want one of jail %s", c, err, j.ID)
	}
}

func TestAnEndpointOpensAgainAfterItsListenerFailed(t *testing.T) {
	w := newWorld(t).open()
	w.jails.failing("Listen", fault.Newf(fault.Unavailable, "jail.Listen", "", "the instance is being replaced"))
	j := w.jailIn("s", nil)
	w.jails.failing("Listen", nil)
	if _, err := w.knock(j.ID); err != nil {
		t.Fatal(err)
	}
	w.jails.mu.Lock()
	l := w.jails.ports[j.ID]
	delete(w.jails.ports, j.ID)
	w.jails.mu.Unlock()
	l.Close() // as when the jail gets another network namespace
	if _, err := w.knock(j.ID); err != nil {
		t.Errorf("after the listener failed: %v, want an open endpoint", err)
	}
}

func TestCommandsOfASessionsJailKnowItsID(t *testing.T) {
	j := jail.Jail{ID: "j-abc", Spec: jail.Spec{Labels: map[string]string{LabelSession: "s"}}}
	if got := Env(j)["SANDBOX_ID"]; got != "j-abc" {
		t.Errorf("SANDBOX_ID = %q, want j-abc", got)
	}
	if got, ok := Env(jail.Jail{ID: "j-abc"})["SANDBOX_ID"]; ok {
		t.Errorf("SANDBOX_ID of a jail without a session = %q, want none", got)
	}
}

// TestTheLevelOfAJailsPolicyCounts: for resources and loops as for the rules.
func TestTheLevelOfAJailsPolicyCounts(t *testing.T) {
	for name, tt := range map[string]struct {
		session, run int
		policy       policy.Level
		want         policy.Level
	}{
		"of the policy alone":             {0, 0, policy.Full, policy.Full},
		"none":                            {0, 0, 0, 0},
		"of the session":                  {2, 0, 0, policy.Intelligent},
		"of the run over the session":     {1, 3, 0, policy.Full},
		"the policy was lowered":          {0, 3, policy.Guided, policy.Guided},
		"the session is below the policy": {1, 0, policy.Full, policy.Guided},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).idle()
			s := run.Session{ID: "s", Settings: run.Settings{Level: tt.session}}
			if _, err := w.runs.Open(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			var rules []byte
			if tt.policy != 0 {
				rules = governed(t, `{"permission": {"edit": "allow"}}`, "", tt.policy)
			}
			j := w.jailIn("s", rules)
			if tt.run != 0 {
				r := w.order("s", "echo", Agent{Preset: "shell", Level: tt.run})
				w.g.mu.Lock()
				w.g.works[j.ID] = r.ID
				w.g.mu.Unlock()
			}
			c, err := w.g.callerIn(t.Context(), j.ID)
			if err != nil || c.Level != tt.want {
				t.Errorf("level = %d, %v, want %d", c.Level, err, tt.want)
			}
		})
	}
}

// TestWhatAHarnessSaysIsRecorded: also of the tools that the gateway has as well, since a
// plugin may do by itself what they do.
func TestWhatAHarnessSaysIsRecorded(t *testing.T) {
	w := newWorld(t).idle()
	rules := `{"permission": {"create_task": "allow", "coordinate_sibling": "deny", "edit": {"*": "deny", "src/*": "allow"}}}`
	j := w.jailIn("s", governed(t, rules, "", policy.Intelligent))
	c := Caller{Jail: j.ID, Session: "s", Workspace: "/work"}
	for _, tt := range []struct {
		action, resource string
		tag              govern.Tag
	}{
		{"create_task", "Add tests", govern.Autonomous},
		{"coordinate_sibling", "reviewer", govern.Denied},
		{"edit", "/work/src/a.ts", govern.Autonomous},
		{"edit", "/work/b.ts", govern.Denied},
	} {
		v := w.g.Said(t.Context(), c, policy.Question{Action: tt.action, Resource: tt.resource})
		if v.Tag != tt.tag {
			t.Errorf("Said(%s %s) = %s, want %s", tt.action, tt.resource, v.Tag, tt.tag)
		}
	}
	want := []string{"create_task: Add tests [AUTONOMOUS]", "coordinate_sibling: reviewer [DENIED]", "edit: src/a.ts [AUTONOMOUS]", "edit: b.ts [DENIED]"}
	if got := w.decisions(); !equal(got, want) {
		t.Errorf("decisions = %q, want %q", got, want)
	}
}

// TestAnAnsweredQuestionIsRecordedOnce: a harness asks first, and then says that it does it.
func TestAnAnsweredQuestionIsRecordedOnce(t *testing.T) {
	w := newWorld(t).idle()
	j := w.jailIn("s", governed(t, `{"permission": {"edit": "allow"}}`, "", policy.Intelligent))
	c := Caller{Jail: j.ID, Session: "s", Workspace: "/work"}
	q := policy.Question{Action: "edit", Resource: "/work/a"}
	v, err := w.g.Decide(t.Context(), c, q)
	if err != nil || !v.Allow {
		t.Fatalf("Decide = %+v, %v, want allow", v, err)
	}
	if said := w.g.Said(t.Context(), c, q); said.Entry != v.Entry {
		t.Errorf("Said = entry %d, want the entry of the decision, %d", said.Entry, v.Entry)
	}
	if got := w.decisions(); len(got) != 1 {
		t.Errorf("decisions = %q, want one", got)
	}
	w.g.Said(t.Context(), c, q) // it does it again, and has not asked
	if got := w.decisions(); len(got) != 2 {
		t.Errorf("decisions = %q, want two", got)
	}
}

func TestAnswersOfOneJailAreBounded(t *testing.T) {
	w := newWorld(t).idle()
	for range maxAnswers + 10 {
		w.g.answered("j-1", policy.Question{Action: "edit", Resource: "a"}, govern.Verdict{Allow: true})
	}
	kept := func() int {
		w.g.mu.Lock()
		defer w.g.mu.Unlock()
		return len(w.g.answers["j-1"])
	}
	if got := kept(); got != maxAnswers {
		t.Errorf("answers kept = %d, want %d", got, maxAnswers)
	}
	w.g.Left("j-1")
	if got := kept(); got != 0 {
		t.Errorf("answers kept of a jail that has ended = %d, want 0", got)
	}
}

func TestACallerIsItsJailAndWhatThatWasBranchedFrom(t *testing.T) {
	w := newWorld(t).idle()
	first, second, other := w.jailIn("s", nil), w.jailIn("s", nil), w.jailIn("s", nil)
	w.jails.mu.Lock()
	w.jails.all[second.ID].Origin = &jail.Origin{Jail: first.ID}
	w.jails.mu.Unlock()
	c := Caller{Jail: second.ID}
	for j, want := range map[id.Jail]bool{first.ID: true, second.ID: true, other.ID: false, "j-gone": false, "": false} {
		if got := w.g.Is(t.Context(), c, j); got != want {
			t.Errorf("Is(%q) = %v, want %v", j, got, want)
		}
	}
}

func TestWithoutARunNothingIsBegun(t *testing.T) {
	w := newWorld(t).idle()
	j := w.jailIn("s", nil)
	c, err := w.g.callerIn(t.Context(), j.ID)
	if err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func() error{
		"Call":   func() error { _, err := w.g.Call(t.Context(), c, Use{Key: "1", Tool: "bash"}); return err },
		"Task":   func() error { _, err := w.g.Task(t.Context(), c); return err },
		"Beat":   func() error { _, _, err := w.g.Beat(t.Context(), c); return err },
		"Keep":   func() error { _, err := w.g.Keep(t.Context(), c, "", nil); return err },
		"Finish": func() error { _, err := w.g.Finish(t.Context(), c, nil); return err },
		"Fail":   func() error { _, err := w.g.Fail(t.Context(), c, "x"); return err },
	} {
		if err := do(); !errors.Is(err, fault.Conflict) {
			t.Errorf("%s without a run = %v, want a conflict", name, err)
		}
	}
}

func equal(got, want []string) bool {
	if len(got) != len(want) {
		return false
	}
	for i := range got {
		if got[i] != want[i] {
			return false
		}
	}
	return true
}
