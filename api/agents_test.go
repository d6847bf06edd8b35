package api_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"glasshouse/agents/gateway"
	"glasshouse/agents/run"
	"glasshouse/api"
	"glasshouse/api/apitest"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/policy"
	"glasshouse/policy/access"
)

// ordered is a gateway that stores the run orders and decisions that it receives.
type ordered struct {
	api.Gateway
	orders []gateway.RunOrder
	said   []string
	err    error
}

func (o *ordered) CreateRun(_ context.Context, q gateway.RunOrder) (run.Run, error) {
	if o.err != nil {
		return run.Run{}, o.err
	}
	o.orders = append(o.orders, q)
	return run.Run{ID: id.NewRun(), Session: q.Session, State: run.Active, Details: run.Details{Agent: q.Agent}}, nil
}

func (o *ordered) OwnsJail(_ context.Context, c gateway.Caller, j id.Jail) bool { return c.Jail == j }

func (o *ordered) RecordAction(_ context.Context, _ gateway.Caller, q policy.Question) govern.Verdict {
	o.said = append(o.said, q.Action+" "+q.Resource)
	return govern.Verdict{Allow: true, Tag: govern.Autonomous}
}

func TestInvalidRunNamesField(t *testing.T) {
	o := &ordered{}
	d := open(t, apitest.New(), func(opts *api.Options) { opts.Runs, opts.Gateway = struct{ api.Runs }{}, o })
	for body, field := range map[string]string{
		`{"goal":"g","session_id":5}`:                       "session_id",
		`{"goal":"g","meta":{"session_id":5}}`:              "meta.session_id",
		`{"goal":"g","meta":{"session_id":""}}`:             "meta.session_id",
		`{"goal":"g","schedule":""}`:                        "schedule",
		`{"goal":"g","schedule":5}`:                         "schedule",
		`{"goal":"g","time_zone":"UTC"}`:                    "schedule",
		`{"goal":"g","agent":{"policy_agent":5}}`:           "agent.policy_agent",
		`{"goal":"g","next_run_at":"2001-01-01T00:00:00Z"}`: "next_run_at",
	} {
		p := d.refused(400, req{as: access.Operator, method: "POST", path: "/chat/run", body: body})
		if p.Field != field {
			t.Errorf("%s: field = %q (%s), want %q", body, p.Field, p.Detail, field)
		}
	}
	if len(o.orders) != 0 {
		t.Errorf("orders = %+v, want none", o.orders)
	}
	for inner, field := range map[string]string{"cron": "schedule", "session": "session_id", "tz": "time_zone", "agent.level": "agent.level"} {
		o.err = fault.Fieldf("schedule", inner, "it is none")
		p := d.refused(400, req{as: access.Operator, method: "POST", path: "/chat/run", body: `{"goal":"g","schedule":"x"}`})
		if p.Field != field {
			t.Errorf("an error of %s: field = %q, want %q", inner, p.Field, field)
		}
	}
}

func TestRunIsCreatedAsRequested(t *testing.T) {
	o := &ordered{}
	d := open(t, apitest.New(), func(opts *api.Options) { opts.Runs, opts.Gateway = struct{ api.Runs }{}, o })
	var got wire.Run
	d.want(200, req{as: access.Operator, method: "POST", path: "/chat/run",
		body: `{"goal":"g","meta":{"session_id":"sess-demo"},"agent":{"preset":"opencode","policy_agent":"reviewer"}}`}, &got)
	if len(o.orders) != 1 || o.orders[0].Session != "sess-demo" || !strings.Contains(string(o.orders[0].Agent), `"policy_agent":"reviewer"`) {
		t.Errorf("orders = %+v, want one in sess-demo as the policy agent reviewer", o.orders)
	}
	if got.Agent.PolicyAgent != "reviewer" {
		t.Errorf("the run's agent = %+v, want the policy agent reviewer", got.Agent)
	}
}

// TestReportedDecisionStatesWhetherRecorded verifies that decisions which the gateway records
// itself are not recorded twice.
func TestReportedDecisionStatesWhetherRecorded(t *testing.T) {
	o := &ordered{}
	d := open(t, apitest.New(), func(opts *api.Options) { opts.Runs, opts.Gateway = struct{ api.Runs }{}, o })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go d.server.ServeAgent(l, func(context.Context) (gateway.Caller, error) {
		return gateway.Caller{Jail: "j-aaaaaaaaaaaa", Session: "s"}, nil
	})
	t.Cleanup(func() { l.Close() })
	for _, tt := range []struct {
		body string
		want bool
		said string
	}{
		{`{"tool":"create_task","args":{"title":"Add tests"},"timestamp":"2026-01-02T15:04:05Z"}`, true, "create_task Add tests"},
		{`{"tool":"coordinate_sibling","args":{"targetSandboxId":"reviewer"}}`, true, "coordinate_sibling reviewer"},
		{`{"tool":"write","args":{"filePath":"a"},"phase":"before"}`, true, "write a"},
		{`{"tool":"create_task","args":{"title":"x"},"phase":"before"}`, false, ""},
		{`{"tool":"write","args":{"filePath":"a"},"phase":"after"}`, false, ""},
		{`{"tool":"mcp__glasshouse__create_task","args":{"title":"x"}}`, false, ""},
	} {
		o.said = nil
		res, err := http.Post("http://"+l.Addr().String()+"/sandbox/j-aaaaaaaaaaaa/decisions", "application/json", strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		res.Body.Close()
		var got wire.RecordedAction
		if err != nil || json.Unmarshal(text, &got) != nil || res.StatusCode != 200 {
			t.Fatalf("%s: %d %s, %v", tt.body, res.StatusCode, text, err)
		}
		if got.Recorded != tt.want || strings.Join(o.said, "; ") != tt.said {
			t.Errorf("%s: recorded = %v as %q, want %v as %q", tt.body, got.Recorded, o.said, tt.want, tt.said)
		}
		if !got.Recorded && got.Reason == "" {
			t.Errorf("%s: not recorded, and no reason given", tt.body)
		}
	}
}

// TestExplainPolicyUsesJailDirectory verifies that patterns are relative to the jail's project,
// even if the request contains a policy.
func TestExplainPolicyUsesJailDirectory(t *testing.T) {
	d := open(t, apitest.New())
	text := `{"permission": {"edit": {"*": "deny", "src/*": "allow"}}, "agent": {"reviewer": {"permission": {"edit": "deny"}}}}`
	p := wire.Policy{Files: []wire.PolicyFile{{Name: "opencode.json", Text: text}}, Level: 2, Match: "last"}
	var j wire.Jail
	d.want(201, req{as: access.Operator, method: "POST", path: "/jails", body: wire.CreateJail{Cwd: "/work", Policy: &p}}, &j)
	for _, tt := range []struct {
		policy *wire.Policy
		agent  string
		want   string
	}{{nil, "", "allow"}, {nil, "reviewer", "deny"}, {&p, "", "allow"}, {&p, "reviewer", "deny"}} {
		var x wire.Explained
		d.want(200, req{as: access.Viewer, method: "POST", path: "/policy/explain", body: wire.Explain{
			Jail: j.ID, Policy: tt.policy, Question: wire.Question{Action: "edit", Resource: "/work/src/a.ts", Agent: tt.agent},
		}}, &x)
		if x.Decision.Effect != tt.want {
			t.Errorf("as %q with a policy given: %v: %+v, want %s", tt.agent, tt.policy != nil, x.Decision, tt.want)
		}
	}
	if p := d.refused(400, req{as: access.Viewer, method: "POST", path: "/policy/explain", body: wire.Explain{Question: wire.Question{Action: "edit"}}}); p.Field != "policy" {
		t.Errorf("without a jail and a policy: field = %q, want policy", p.Field)
	}
}
