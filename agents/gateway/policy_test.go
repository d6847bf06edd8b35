package gateway

import (
	"errors"
	"slices"
	"testing"

	"glasshouse/fault"
	"glasshouse/policy/chain"

	"glasshouse/agents/run"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/policy"
)

// seedPermissions is a permission file with an agent that writes and one that only reads.
const seedPermissions = `{
  "permission": {"edit": "allow", "read": "allow", "bash": {"npm *": "allow", "*": "ask"}},
  "agent": {
    "worker": {"description": "Autonomous code writer", "mode": "primary", "tools": {"write": true, "edit": true, "bash": true}},
    "reviewer": {"description": "Code review agent (read-only)", "mode": "subagent", "tools": {"read": true, "write": false, "edit": false, "bash": false}}
  }
}`

// The policy agent applies to the run in the jail, whatever preset runs there.
func TestRunUsesPolicyAgent(t *testing.T) {
	for name, tt := range map[string]struct {
		policyAgent string // agent in the jail's policy
		runAgent    string // agent of the run
		want        string
	}{
		"reviewer of the policy":           {"reviewer", "", "edit: src/a.ts [DENIED]"},
		"worker of the policy":             {"worker", "", "edit: src/a.ts [AUTONOMOUS]"},
		"reviewer of the run":              {"", "reviewer", "edit: src/a.ts [DENIED]"},
		"the run's counts over the jail's": {"worker", "reviewer", "edit: src/a.ts [DENIED]"},
		"the default agent of the file":    {"", "", "edit: src/a.ts [AUTONOMOUS]"},
	} {
		t.Run(name, func(t *testing.T) {
			env := newTestEnv(t)
			denied := make(chan error, 1)
			env.jails.script("glasshouse-agent", func(p *process) int {
				c, err := env.g.callerIn(t.Context(), p.jail)
				if err != nil {
					denied <- err
					return 1
				}
				u, err := env.g.Call(t.Context(), c, ToolUse{Key: "1", Tool: "write_file", Input: []byte(`{"path": "src/a.ts", "text": "x"}`)})
				if err == nil && u.State == run.StepRefused {
					err = fault.Newf(fault.Denied, "test", "", "%s", u.Error.Message)
				}
				denied <- err
				if _, err := env.g.Finish(t.Context(), c, []byte(`"done"`)); err != nil {
					t.Errorf("Finish = %v, want nil", err)
				}
				return 0
			})
			env.open()
			spec := jail.Spec{Policy: policyOf(t, seedPermissions, tt.policyAgent, policy.Intelligent)}
			r := env.order("s", "write a file", Agent{Preset: "builtin", Jail: &spec, PolicyAgent: tt.runAgent})
			err := <-denied
			if got, want := errors.Is(err, fault.Denied), tt.want == "edit: src/a.ts [DENIED]"; got != want {
				t.Errorf("write_file = %v, want denied: %v", err, want)
			}
			env.awaitState(r.ID, run.Done)
			if got := env.decisions(); !slices.Contains(got, tt.want) {
				t.Errorf("decisions = %q, want %q among them", got, tt.want)
			}
			if _, written := env.jails.file(env.run(r.ID).Jail, "/workspace/src/a.ts"); written == (tt.want == "edit: src/a.ts [DENIED]") {
				t.Errorf("src/a.ts written = %v, want %v", written, !written)
			}
		})
	}
}

// The rules of an agent outside of jails belong to its run.
func TestAgentOutsideJailUsesPolicyAgent(t *testing.T) {
	env := newTestEnv(t).withoutLoop()
	spec := jail.Spec{Policy: policyOf(t, seedPermissions, "reviewer", policy.Intelligent)}
	a := Agent{Preset: "builtin", Spawner: InProcess, Jail: &spec}
	rules, err := env.g.policySpec(a)
	if err != nil {
		t.Fatal(err)
	}
	r := id.NewRun()
	if err := env.kernel.GovernRun(t.Context(), r, rules, workspace); err != nil {
		t.Fatal(err)
	}
	c := Caller{Run: r, Session: "s", Agent: "builtin"}
	q := policy.Question{Subject: c.subject(), Action: policy.ActionEdit, Resource: "src/a.ts"}
	if d := env.kernel.Decide(q); d.Effect != policy.Deny {
		t.Errorf("edit as the agent reviewer = %s, want deny", d.Effect)
	}
}

// The audit log shows which rules decided.
func TestDecisionsNamePolicyAgent(t *testing.T) {
	env := newTestEnv(t).withoutLoop()
	j, err := env.jails.Create(t.Context(), jail.Spec{Start: true, Policy: policyOf(t, seedPermissions, "reviewer", policy.Intelligent)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := env.g.Decide(t.Context(), Caller{Jail: j.ID, Session: "s", Agent: "claude"}, policy.Question{Action: policy.ActionEdit, Resource: "a"}); err != nil {
		t.Fatal(err)
	}
	entries := env.entries(chain.Decided)
	if len(entries) != 1 || entries[0].Agent != "reviewer" {
		t.Errorf("entries = %+v, want one entry of the agent reviewer", entries)
	}
}

// The general rules would apply instead, which allow more than the operator intended.
func TestOrderRejectsUndefinedPolicyAgent(t *testing.T) {
	env := newTestEnv(t).withoutLoop()
	spec := jail.Spec{Policy: policyOf(t, seedPermissions, "", policy.Intelligent)}
	raw := mustJSON(t, Agent{Preset: "builtin", Jail: &spec, PolicyAgent: "reviwer"})
	_, err := env.g.CreateRun(t.Context(), RunOrder{Request: run.Request{Session: "s", Goal: "g", Agent: raw}})
	if fault.FieldOf(err) != "agent.policy_agent" {
		t.Errorf("Order with the policy agent reviwer = %v, want an error of agent.policy_agent", err)
	}
	list, err := env.runs.List(t.Context(), run.Filter{})
	if err != nil || len(list) != 0 {
		t.Errorf("runs = %v, %v, want none", list, err)
	}
	if _, err := env.kernel.Check(policyOf(t, seedPermissions, "reviwer", policy.Intelligent), false, false); fault.FieldOf(err) != "policy.agent" {
		t.Errorf("Check of a policy with the agent reviwer = %v, want an error of policy.agent", err)
	}
}
