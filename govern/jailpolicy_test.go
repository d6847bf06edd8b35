package govern

import (
	"encoding/json"
	"testing"
	"time"

	"glasshouse/id"
	"glasshouse/policy"
	"glasshouse/policy/approval"
	"glasshouse/policy/egress"
)

// Egress rules limit a jail whatever its autonomy level: a level allows no other host.
func TestLevelDoesNotAddToEgressRules(t *testing.T) {
	h := newHarness(t)
	listed := []Rule{{Host: "api.example.com", Methods: []string{"GET"}}}
	for _, c := range []struct {
		name       string
		permission string
		level      policy.Level
		egress     *Egress
		allow      bool
	}{
		{"no rules", `{}`, policy.Intelligent, nil, true},
		{"rules that only deny", `{}`, policy.Full, &Egress{Allow: []Rule{{Host: "evil.example", Deny: true}}}, true},
		{"rules, level 2", `{}`, policy.Intelligent, &Egress{Allow: listed}, false},
		{"rules, level 3", `{}`, policy.Full, &Egress{Allow: listed}, false},
		{"a rule of the policy for the host", `{"connect": {"other.example:443": "allow"}}`, policy.Full, &Egress{Allow: listed}, true},
		{"a rule of the policy for another host", `{"connect": {"third.example:443": "allow"}}`, policy.Full, &Egress{Allow: listed}, false},
		{"a rule of the policy for everything", `{"*": "allow"}`, policy.Full, &Egress{Allow: listed}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw, err := json.Marshal(Spec{Policy: &Policy{Files: []File{{Name: "opencode.json", Text: `{"permission": ` + c.permission + `}`}}, Level: c.level}, Egress: c.egress})
			must(t, err)
			jid := id.NewJail()
			must(t, h.Guard(t.Context(), jid, Guard{Spec: raw, Workspace: "/work"}))
			for _, r := range []egress.Request{
				{Kind: egress.KindName, Host: "other.example"},
				{Kind: egress.KindConnect, Host: "other.example", Port: 443},
				{Kind: egress.KindRequest, Host: "other.example", Port: 443, Method: "POST", Path: "/"},
			} {
				v, err := authority{h.Engine, h.find(jid)}.Evaluate(t.Context(), r)
				must(t, err)
				if v.Allow != c.allow {
					t.Errorf("%s of other.example: %+v, want allowed: %v", r.Kind, v, c.allow)
				}
			}
		})
	}
}

// Egress rules that request approval do so at every level.
func TestEgressRulesAskAtEveryLevel(t *testing.T) {
	h := newHarness(t)
	raw, err := json.Marshal(Spec{Policy: &Policy{Level: policy.Full}, Egress: &Egress{Allow: []Rule{{Host: "api.example.com"}}, Ask: true}})
	must(t, err)
	jid := id.NewJail()
	must(t, h.Guard(t.Context(), jid, Guard{Spec: raw, Workspace: "/work"}))
	verdict := make(chan egress.Verdict, 1)
	go func() {
		v, _ := authority{h.Engine, h.find(jid)}.Evaluate(t.Context(), egress.Request{Kind: egress.KindConnect, Host: "other.example", Port: 443})
		verdict <- v
	}()
	asked := h.waitPending()
	h.answer(asked, approval.Answer{Verdict: approval.Deny})
	if v := <-verdict; v.Allow {
		t.Errorf("verdict after a denial: %+v", v)
	}
}

// endJail waits for requests in the proxy, which may wait for a verdict: Judge must not need
// mu.
func TestAuthorityAnswersWhileTheJailEnds(t *testing.T) {
	h := newHarness(t)
	jp := h.find(h.jail(`{"*": "allow"}`))
	jp.mu.Lock() // the lock order is that of endJail
	defer jp.mu.Unlock()
	judged := make(chan error, 1)
	go func() {
		_, err := authority{h.Engine, jp}.Evaluate(t.Context(), egress.Request{Kind: egress.KindConnect, Host: "api.example.com", Port: 443})
		judged <- err
	}()
	select {
	case err := <-judged:
		must(t, err)
	case <-time.After(20 * time.Second):
		t.Fatal("deadlock: Judge waits for mu")
	}
}
