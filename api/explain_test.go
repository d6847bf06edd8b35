package api_test

import (
	"testing"

	"glasshouse/api/apitest"
	"glasshouse/api/wire"
	"glasshouse/policy/access"
)

func TestExplainEvaluatesEgressRulesBeforePolicy(t *testing.T) {
	d := open(t, apitest.New())
	ask := wire.Policy{Files: []wire.PolicyFile{{Name: "opencode.json", Text: `{"permission":{"connect":"ask"}}`}}}
	explain := func(j wire.Jail, resource string) wire.Explained {
		t.Helper()
		var x wire.Explained
		d.want(200, req{as: access.Viewer, method: "POST", path: "/policy/explain",
			body: wire.Explain{Jail: j.ID, Question: wire.Question{Action: "connect", Resource: resource}}}, &x)
		return x
	}
	jailWith := func(p *wire.Policy, asks bool) (j wire.Jail) {
		t.Helper()
		d.want(201, req{as: access.Operator, method: "POST", path: "/jails", body: wire.CreateJail{
			Network: "proxy", Policy: p, Egress: &wire.Egress{Allow: []wire.EgressRule{{Host: "*.example.com"}}, Ask: asks},
		}}, &j)
		return j
	}

	ruled := jailWith(&ask, false)
	if x := explain(ruled, "api.example.com"); x.Egress == nil || !x.Egress.Allow || x.Egress.Rule != "*.example.com" {
		t.Errorf("listed host: got %+v", x.Egress)
	}
	if x := explain(ruled, "evil.example:443"); x.Egress.Allow || !x.Egress.Asks || x.Decision.Effect != "ask" {
		t.Errorf("unlisted host: got %+v, policy %+v", x.Egress, x.Decision)
	}
	if x := explain(ruled, "10.0.0.9:443"); x.Egress.Allow || x.Egress.Asks {
		t.Errorf("address: got %+v, want no approval", x.Egress)
	}
	if x := explain(jailWith(&wire.Policy{Level: 2}, false), "evil.example:443"); !x.Egress.Asks || x.Decision.Effect != "deny" || x.Decision.Rule.File != "egress" {
		t.Errorf("jail at level 2: got %+v, %+v, want a denial by the egress rules", x.Egress, x.Decision)
	}
	if x := explain(jailWith(nil, true), "evil.example:443"); !x.Egress.Asks || x.Decision.Effect != "ask" {
		t.Errorf("jail without policy, egress on approval: got %+v, %+v", x.Egress, x.Decision)
	}
	if x := explain(jailWith(nil, false), "evil.example:443"); x.Egress.Asks || x.Decision.Effect != "deny" {
		t.Errorf("jail without policy: got %+v, %+v", x.Egress, x.Decision)
	}
	d.want(400, req{as: access.Viewer, method: "POST", path: "/policy/explain",
		body: wire.Explain{Jail: ruled.ID, Question: wire.Question{Action: "connect", Resource: "a.example:http"}}}, nil)
}
