package gateway

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/policy"
)

// session opens a session of a group.
func (env *testEnv) session(sid, name, group string) {
	env.Helper()
	s := run.Session{ID: sid, Settings: run.Settings{Name: name, Group: group}}
	if _, err := env.runs.Open(env.Context(), s); err != nil {
		env.Fatal(err)
	}
}

// jailIn creates a jail of a session, without a run in it.
func (env *testEnv) jailIn(sid string, rules []byte) jail.Jail {
	env.Helper()
	j, err := env.jails.Create(env.Context(), jail.Spec{Start: true, Cwd: "/work", Policy: rules, Labels: map[string]string{LabelSession: sid}})
	if err != nil {
		env.Fatal(err)
	}
	return j
}

func TestSessionJailHasAgentEndpoint(t *testing.T) {
	env := newTestEnv(t).open()
	env.session("s", "worker", "crew")
	j := env.jailIn("s", nil)
	c, err := env.dialEndpoint(j.ID)
	if err != nil {
		t.Fatal(err)
	}
	want := Caller{Jail: j.ID, Session: "s", Name: "worker", Group: "crew", Workspace: "/work"}
	if c != want {
		t.Errorf("caller = %+v, want %+v", c, want)
	}
}

func TestJailWithoutSessionHasNoAgentEndpoint(t *testing.T) {
	env := newTestEnv(t).open()
	j, err := env.jails.Create(t.Context(), jail.Spec{Start: true})
	if err != nil {
		t.Fatal(err)
	}
	env.g.endpoints.mu.Lock()
	defer env.g.endpoints.mu.Unlock()
	if env.g.endpoints.open[j.ID] != nil {
		t.Error("a jail without a session has an agent endpoint, want none")
	}
}

// A spare jail is started before it can be found. Its session becomes known later.
func TestEndpointOpensWhenJailBecomesVisible(t *testing.T) {
	env := newTestEnv(t).open()
	j := env.jailIn("s", nil)
	env.await("the first endpoint is open", func() bool { env.jails.mu.Lock(); defer env.jails.mu.Unlock(); return env.jails.ports[j.ID] != nil })
	env.g.JailStopped(j.ID)
	env.jails.mu.Lock()
	delete(env.jails.ports, j.ID)
	env.jails.mu.Unlock()

	gone := fault.Newf(fault.NotFound, "jail.Listen", string(j.ID), "no such jail")
	env.jails.failWith("Listen", gone)
	env.g.JailStarted(j)
	env.await("the endpoint is removed", func() bool {
		env.g.endpoints.mu.Lock()
		defer env.g.endpoints.mu.Unlock()
		return env.g.endpoints.open[j.ID] == nil
	})
	env.jails.failWith("Listen", nil)
	env.g.JailStarted(j)
	if c, err := env.dialEndpoint(j.ID); err != nil || c.Jail != j.ID {
		t.Errorf("caller = %+v, %v, want a caller in jail %s", c, err, j.ID)
	}
}

func TestEndpointReopensAfterListenerFailure(t *testing.T) {
	env := newTestEnv(t).open()
	env.jails.failWith("Listen", fault.Newf(fault.Unavailable, "jail.Listen", "", "the instance is being replaced"))
	j := env.jailIn("s", nil)
	env.jails.failWith("Listen", nil)
	if _, err := env.dialEndpoint(j.ID); err != nil {
		t.Fatal(err)
	}
	env.jails.mu.Lock()
	l := env.jails.ports[j.ID]
	delete(env.jails.ports, j.ID)
	env.jails.mu.Unlock()
	l.Close() // as after a change of the jail's network namespace
	if _, err := env.dialEndpoint(j.ID); err != nil {
		t.Errorf("dial after a failure of the listener: %v, want an open endpoint", err)
	}
}

func TestEnvNamesSessionJail(t *testing.T) {
	j := jail.Jail{ID: "j-abc", Spec: jail.Spec{Labels: map[string]string{LabelSession: "s"}}}
	if got := Env(j)["SANDBOX_ID"]; got != "j-abc" {
		t.Errorf("SANDBOX_ID = %q, want j-abc", got)
	}
	if got, ok := Env(jail.Jail{ID: "j-abc"})["SANDBOX_ID"]; ok {
		t.Errorf("SANDBOX_ID of a jail without a session = %q, want none", got)
	}
}

// The jails of runs have the name of the preset. Names of jails are unique, so a number follows it,
// and finally the ID of the run.
func TestJailsOfRunsHaveDifferentNames(t *testing.T) {
	env := newTestEnv(t)
	env.open()
	want := []string{"shell"}
	for n := 2; n <= 9; n++ {
		want = append(want, fmt.Sprint("shell-", n))
	}
	var got []string
	for n := range 11 {
		r := env.order(fmt.Sprint("s", n), "echo", Agent{Preset: "shell"})
		env.awaitState(r.ID, run.Done)
		j, err := env.jails.Get(t.Context(), env.run(r.ID).Jail)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, j.Spec.Name)
		if n >= len(want) {
			want = append(want, "shell-"+string(r.ID[2:]))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("names of the jails: %q, want %q", got, want)
	}
}

// The level limits resource requests and loop detection as well as rules.
func TestCallerLevelIsCappedByJailPolicy(t *testing.T) {
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
			env := newTestEnv(t).withoutLoop()
			s := run.Session{ID: "s", Settings: run.Settings{Level: tt.session}}
			if _, err := env.runs.Open(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			var rules []byte
			if tt.policy != 0 {
				rules = policyOf(t, `{"permission": {"edit": "allow"}}`, "", tt.policy)
			}
			j := env.jailIn("s", rules)
			if tt.run != 0 {
				r := env.order("s", "echo", Agent{Preset: "shell", Level: tt.run})
				env.g.assign(j.ID, r.ID)
			}
			c, err := env.g.callerIn(t.Context(), j.ID)
			if err != nil || c.Level != tt.want {
				t.Errorf("level = %d, %v, want %d", c.Level, err, tt.want)
			}
		})
	}
}

// A plugin may implement the same functions as the gateway's tools. Those actions are recorded too.
func TestHarnessActionsAreRecorded(t *testing.T) {
	env := newTestEnv(t).withoutLoop()
	rules := `{"permission": {"create_task": "allow", "coordinate_sibling": "deny", "edit": {"*": "deny", "src/*": "allow"}}}`
	j := env.jailIn("s", policyOf(t, rules, "", policy.Intelligent))
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
		v := env.g.RecordAction(t.Context(), c, policy.Question{Action: tt.action, Resource: tt.resource})
		if v.Tag != tt.tag {
			t.Errorf("Said(%s %s) = %s, want %s", tt.action, tt.resource, v.Tag, tt.tag)
		}
	}
	want := []string{"create_task: Add tests [AUTONOMOUS]", "coordinate_sibling: reviewer [DENIED]", "edit: src/a.ts [AUTONOMOUS]", "edit: b.ts [DENIED]"}
	if got := env.decisions(); !equal(got, want) {
		t.Errorf("decisions = %q, want %q", got, want)
	}
}

// A harness first asks for a decision and then reports the action.
func TestDecidedActionIsRecordedOnce(t *testing.T) {
	env := newTestEnv(t).withoutLoop()
	j := env.jailIn("s", policyOf(t, `{"permission": {"edit": "allow"}}`, "", policy.Intelligent))
	c := Caller{Jail: j.ID, Session: "s", Workspace: "/work"}
	q := policy.Question{Action: "edit", Resource: "/work/a"}
	v, err := env.g.Decide(t.Context(), c, q)
	if err != nil || !v.Allow {
		t.Fatalf("Decide = %+v, %v, want allow", v, err)
	}
	if said := env.g.RecordAction(t.Context(), c, q); said.Entry != v.Entry {
		t.Errorf("Said = entry %d, want the entry of the decision, %d", said.Entry, v.Entry)
	}
	if got := env.decisions(); len(got) != 1 {
		t.Errorf("decisions = %q, want one", got)
	}
	env.g.RecordAction(t.Context(), c, q) // a second action without a decision
	if got := env.decisions(); len(got) != 2 {
		t.Errorf("decisions = %q, want two", got)
	}
}

func TestHarnessDecisionsAreBounded(t *testing.T) {
	env := newTestEnv(t).withoutLoop()
	for range maxHarnessDecisions + 10 {
		env.g.rememberDecision("j-1", policy.Question{Action: "edit", Resource: "a"}, govern.Verdict{Allow: true})
	}
	kept := func() int {
		env.g.decisions.mu.Lock()
		defer env.g.decisions.mu.Unlock()
		return len(env.g.harnessDecisions["j-1"])
	}
	if got := kept(); got != maxHarnessDecisions {
		t.Errorf("stored decisions = %d, want %d", got, maxHarnessDecisions)
	}
	env.g.JailStopped("j-1")
	if got := kept(); got != 0 {
		t.Errorf("stored decisions of a stopped jail = %d, want 0", got)
	}
}

func TestIsFollowsBranchOrigins(t *testing.T) {
	env := newTestEnv(t).withoutLoop()
	first, second, other := env.jailIn("s", nil), env.jailIn("s", nil), env.jailIn("s", nil)
	env.jails.mu.Lock()
	env.jails.all[second.ID].Origin = &jail.Origin{Jail: first.ID}
	env.jails.mu.Unlock()
	c := Caller{Jail: second.ID}
	for j, want := range map[id.Jail]bool{first.ID: true, second.ID: true, other.ID: false, "j-gone": false, "": false} {
		if got := env.g.OwnsJail(t.Context(), c, j); got != want {
			t.Errorf("Is(%q) = %v, want %v", j, got, want)
		}
	}
}

func TestOperationsWithoutRunConflict(t *testing.T) {
	env := newTestEnv(t).withoutLoop()
	j := env.jailIn("s", nil)
	c, err := env.g.callerIn(t.Context(), j.ID)
	if err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func() error{
		"Call":   func() error { _, err := env.g.Call(t.Context(), c, ToolUse{Key: "1", Tool: "bash"}); return err },
		"Task":   func() error { _, err := env.g.Task(t.Context(), c); return err },
		"Beat":   func() error { _, _, err := env.g.Beat(t.Context(), c); return err },
		"Keep":   func() error { _, err := env.g.SaveState(t.Context(), c, "", nil); return err },
		"Finish": func() error { _, err := env.g.Finish(t.Context(), c, nil); return err },
		"Fail":   func() error { _, err := env.g.Fail(t.Context(), c, "x"); return err },
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
