package egress_test

import (
	"testing"

	"glasshouse/policy/egress"
)

func TestExplainEvaluatesRules(t *testing.T) {
	rules := egress.Rules{Allow: []egress.Rule{
		{Host: "192.0.2.0/24", Deny: true},
		{Host: "*.example.com", Ports: []uint16{443}, Name: "examples", Inject: []egress.Inject{{Secret: "key", As: egress.Bearer}}},
	}}
	for _, c := range []struct {
		host string
		port uint16
		want egress.Explanation // Detail and Remedy are not compared
	}{
		{"api.example.com", 443, egress.Explanation{Allow: true, Rule: "examples"}},
		{"api.example.com", 22, egress.Explanation{Rule: "examples", Reason: egress.ReasonPort, NeedsAuthority: true}},
		{"evil.example", 443, egress.Explanation{Reason: egress.ReasonHost, NeedsAuthority: true}},
		{"198.51.100.1", 443, egress.Explanation{Reason: egress.ReasonHost}}, // the Authority is not consulted for addresses
		{"192.0.2.7", 443, egress.Explanation{Rule: "192.0.2.0/24", Reason: egress.ReasonAddress}},
	} {
		got, err := rules.Explain(egress.Request{Kind: egress.KindConnect, Host: c.host, Port: c.port})
		if err != nil {
			t.Fatal(err)
		}
		if !got.Allow && got.Detail == "" {
			t.Errorf("%s:%d: refusal without detail", c.host, c.port)
		}
		got.Detail, got.Remedy = "", ""
		if got != c.want {
			t.Errorf("%s:%d: got %+v, want %+v", c.host, c.port, got, c.want)
		}
	}
	if _, err := (egress.Rules{Allow: []egress.Rule{{Host: "no host"}}}).Explain(egress.Request{Host: "a.example", Port: 1}); err == nil {
		t.Error("Explain accepted invalid rules")
	}
}
