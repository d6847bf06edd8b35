package connector_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/agents/connector"
	"glasshouse/agents/run"
	"glasshouse/capability/budget"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/internal/webhook"
)

var public = []manifest.Label{manifest.Public}

func TestInboundWebhookIsIdempotent(t *testing.T) {
	h := open(t, connector.Config{Hooks: []connector.InboundWebhook{{Name: "ci", Secret: "key-a", Labels: public, Entry: connector.Entry{Session: "builds"}}}})
	head := h.signed("the key of a", "msg-1", `{"built": true}`)
	first, err := h.Receive(t.Context(), "ci", head, []byte(`{"built": true}`))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 50 { // replays and retries
		wg.Go(func() {
			again, err := h.Receive(t.Context(), "ci", head, []byte(`{"built": true}`))
			if err != nil || again != first {
				t.Errorf("a replay returns %+v, %v, want %+v", again, err, first)
			}
		})
	}
	wg.Wait()
	list := h.inbox("builds")
	if len(list) != 1 || list[0].Text != `{"built": true}` || list[0].From != "connector ci" || list[0].ID != first.Message {
		t.Errorf("the inbox is %+v", list)
	}
}

func TestInboundWebhookStartsRunOnce(t *testing.T) {
	h := open(t, connector.Config{Hooks: []connector.InboundWebhook{{
		Name: "ci", Secret: "key-a", Labels: public,
		Entry: connector.Entry{Session: "repo-{{repository.full_name}}", Goal: "Look at {{ repository.full_name }}: {{commits.1}}", Text: "{{repository}}", Limits: budget.Amounts{"steps": 3}},
	}}})
	body := `{"repository": {"full_name": "acme/shop", "n": 1e400}, "commits": ["a", "b"]}`
	head := h.signed("the key of a", "msg-1", body)
	var first connector.Received
	for n := range 3 {
		got, err := h.Receive(t.Context(), "ci", head, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			first = got
		} else if got != first {
			t.Errorf("a replay returns %+v, want %+v", got, first)
		}
	}
	r, err := h.runs.Get(t.Context(), first.Run)
	if err != nil || r.Goal != "Look at acme/shop: b" || r.Session != "repo-acme-shop" || r.Budget.Limits["steps"] != 3 || r.State != run.Active {
		t.Errorf("the run is %+v, %v", r, err)
	}
	if list := h.inbox("repo-acme-shop"); len(list) != 1 || list[0].Text != `{"full_name":"acme/shop","n":1e400}` {
		t.Errorf("the inbox is %+v", list)
	}
}

func TestInboundWebhookCreatesSession(t *testing.T) {
	h := open(t, connector.Config{Hooks: []connector.InboundWebhook{{Name: "ci", Secret: "key-a", Labels: public, Entry: connector.Entry{Goal: "look"}}}})
	seen := map[string]bool{}
	for n := range 4 {
		got, err := h.Receive(t.Context(), "ci", h.signed("the key of a", fmt.Sprint("msg-", n/2), "{}"), []byte("{}"))
		if err != nil {
			t.Fatal(err)
		}
		seen[got.Session] = true
	}
	if len(seen) != 2 {
		t.Errorf("the sessions are %v", seen)
	}
}

func TestInboundWebhookWakesWaitingRun(t *testing.T) {
	h := open(t, connector.Config{Hooks: []connector.InboundWebhook{{Name: "ci", Secret: "key-a", Entry: connector.Entry{Session: "builds"}}}})
	r, err := h.runs.Create(t.Context(), run.Request{Session: "builds", Goal: "wait for the build"})
	if err != nil {
		t.Fatal(err)
	}
	if r, err = h.runs.WaitForEvent(t.Context(), r.ID, 0, "the build"); err != nil || r.Why != run.ForEvent {
		t.Fatalf("the run is %s (%s), %v", r.State, r.Why, err)
	}
	if _, err := h.Receive(t.Context(), "ci", h.signed("the key of a", "m", "done"), []byte("done")); err != nil {
		t.Fatal(err)
	}
	if r, err = h.runs.Get(t.Context(), r.ID); err != nil || r.State != run.Active {
		t.Errorf("the run is %s (%s), %v", r.State, r.Why, err)
	}
}

func TestInboundPersonalDataIsQuarantined(t *testing.T) {
	const canary = "anna@example.org, 1979-03-05"
	h := open(t, connector.Config{Hooks: []connector.InboundWebhook{{
		Name: "crm", Secret: "key-a", // the default label is pii
		Entry: connector.Entry{Session: "desk", Goal: "Answer {{who}}"},
	}}})
	body := `{"who": "` + canary + `"}`
	got, err := h.Receive(t.Context(), "crm", h.signed("the key of a", "m", body), []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	r, err := h.runs.Get(t.Context(), got.Run)
	if err != nil || !run.IsHandle(r.Goal) {
		t.Errorf("the goal is %q, %v", r.Goal, err)
	}
	inbox, err := h.runs.Inbox(t.Context(), "desk", 0, 10)
	if err != nil || len(inbox) != 1 || !run.IsHandle(inbox[0].Text) {
		t.Errorf("without clearance the inbox is %+v, %v", inbox, err)
	}
	events, err := h.runs.Events(t.Context(), "desk", 0, 100)
	if text, _ := json.Marshal(events); err != nil || strings.Contains(string(text), "anna") {
		t.Errorf("the event stream is %s, %v", text, err)
	}
	if _, err := h.runs.ChangeSettings(t.Context(), "desk", "me", func(s *run.Settings) { s.Labels = []manifest.Label{manifest.PII} }); err != nil {
		t.Fatal(err)
	}
	inbox, err = h.runs.Inbox(t.Context(), "desk", 0, 10)
	if err != nil || inbox[0].Text != body {
		t.Errorf("with clearance the inbox is %+v, %v", inbox, err)
	}
}

func TestInvalidSignaturesGetSameError(t *testing.T) {
	h := open(t, connector.Config{Hooks: []connector.InboundWebhook{
		{Name: "a", Secret: "key-a", Labels: public, Entry: connector.Entry{Session: "s"}},
		{Name: "b", Secret: "key-b", Labels: public, Entry: connector.Entry{Session: "s"}},
		{Name: "hub", Scheme: webhook.GitHub, Secret: "key-a", Labels: public, Entry: connector.Entry{Session: "s"}},
		{Name: "keyless", Secret: "gone", Labels: public, Entry: connector.Entry{Session: "s"}},
	}})
	body := []byte(`{}`)
	good := h.signed("the key of a", "m", "{}")
	old, err := webhook.Headers([]byte("the key of a"), "m", time.Now().Add(-time.Hour), body)
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]bool{}
	for name, c := range map[string]struct {
		to   string
		head http.Header
		body []byte
	}{
		"unsigned":                     {"a", http.Header{}, body},
		"with another connector's key": {"b", good, body},
		"to a missing connector":       {"none", good, body},
		"another body":                 {"a", good, []byte(`{"x": 1}`)},
		"signed with another scheme":   {"hub", good, body},
		"unsigned, without connector":  {"", http.Header{}, body},
	} {
		_, err := h.Receive(t.Context(), c.to, c.head, c.body)
		if !errors.Is(err, fault.Unauthenticated) {
			t.Errorf("%s: %v, want unauthenticated", name, err)
			continue
		}
		said[err.Error()] = true
	}
	if len(said) != 1 {
		t.Errorf("the errors differ: %v", said)
	}
	if _, err := h.Receive(t.Context(), "a", old, body); !errors.Is(err, fault.Unauthenticated) {
		t.Errorf("a signature that is an hour old: %v", err)
	}
	if _, err := h.Receive(t.Context(), "keyless", good, body); !errors.Is(err, fault.Unavailable) || strings.Contains(err.Error(), "gone") {
		t.Errorf("to a webhook whose secret is missing: %v", err)
	}
	if list := h.inbox("s"); len(list) != 0 {
		t.Errorf("the inbox is %+v, want it empty", list)
	}
}

// TestGitHubReplayWithNewID replays a request with another delivery id. GitHub signs only the
// body, so an attacker can change the id.
func TestGitHubReplayWithNewID(t *testing.T) {
	h := open(t, connector.Config{Hooks: []connector.InboundWebhook{{Name: "hub", Scheme: webhook.GitHub, Secret: "key-a", Labels: public, Entry: connector.Entry{Session: "s"}}}})
	m := hmac.New(sha256.New, []byte("the key of a"))
	m.Write([]byte("{}"))
	for n := range 3 {
		head := http.Header{"X-Hub-Signature-256": {"sha256=" + hex.EncodeToString(m.Sum(nil))}, "X-Github-Delivery": {fmt.Sprint(n)}}
		if _, err := h.Receive(t.Context(), "hub", head, []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	if list := h.inbox("s"); len(list) != 1 {
		t.Errorf("the inbox is %+v", list)
	}
}

func TestInvalidBodies(t *testing.T) {
	h := open(t, connector.Config{Hooks: []connector.InboundWebhook{
		{Name: "a", Secret: "key-a", Labels: public, Entry: connector.Entry{Session: "s-{{a.b}}"}},
		{Name: "b", Secret: "key-a", Labels: public, Entry: connector.Entry{Session: "closed"}},
	}})
	for body, want := range map[string]string{
		`{"a": 1}`: "no field a.b", `{`: "not JSON", `{} {}`: "unexpected data", "\xff": "UTF-8", `{"a": {"b": ""}}`: "", `{"a": {"b": "` + strings.Repeat("x", 300) + `"}}`: "session",
	} {
		_, err := h.Receive(t.Context(), "a", h.signed("the key of a", fmt.Sprint(len(body)), body), []byte(body))
		if want == "" && err != nil || want != "" && (!errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.40q: %v, want %q", body, err, want)
		}
	}
	if _, err := h.runs.Open(t.Context(), run.Session{ID: "closed"}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.runs.CloseSession(t.Context(), "closed", "me", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Receive(t.Context(), "b", h.signed("the key of a", "m", "x"), []byte("x")); !errors.Is(err, fault.Conflict) {
		t.Errorf("to a closed session: %v", err)
	}
}

func TestInvalidConfigurations(t *testing.T) {
	to := connector.Entry{Session: "s"}
	for name, cfg := range map[string]connector.Config{
		"no name":              {Hooks: []connector.InboundWebhook{{Secret: "k", Entry: to}}},
		"a name with a slash":  {Hooks: []connector.InboundWebhook{{Name: "a/b", Secret: "k", Entry: to}}},
		"duplicate name":       {Hooks: []connector.InboundWebhook{{Name: "a", Secret: "k", Entry: to}}, Posts: []connector.OutboundWebhook{{Name: "a", URL: "https://x", Sessions: []string{"s"}}}},
		"no secret":            {Hooks: []connector.InboundWebhook{{Name: "a", Entry: to}}},
		"unknown scheme":       {Hooks: []connector.InboundWebhook{{Name: "a", Secret: "k", Scheme: "md5", Entry: to}}},
		"unknown label":        {Hooks: []connector.InboundWebhook{{Name: "a", Secret: "k", Labels: []manifest.Label{"mine"}, Entry: to}}},
		"no session, no goal":  {Hooks: []connector.InboundWebhook{{Name: "a", Secret: "k"}}},
		"invalid session":      {Hooks: []connector.InboundWebhook{{Name: "a", Secret: "k", Entry: connector.Entry{Session: "a b"}}}},
		"unclosed field":       {Hooks: []connector.InboundWebhook{{Name: "a", Secret: "k", Entry: connector.Entry{Session: "a{{b"}}}},
		"an empty field":       {Hooks: []connector.InboundWebhook{{Name: "a", Secret: "k", Entry: connector.Entry{Session: "a{{}}"}}}},
		"agent without a goal": {Hooks: []connector.InboundWebhook{{Name: "a", Secret: "k", Entry: connector.Entry{Session: "s", Agent: []byte("{}")}}}},
		"unsupported URL":      {Posts: []connector.OutboundWebhook{{Name: "a", URL: "ftp://x", Sessions: []string{"s"}}}},
		"no sessions":          {Posts: []connector.OutboundWebhook{{Name: "a", URL: "https://x"}}},
		"invalid pattern":      {Posts: []connector.OutboundWebhook{{Name: "a", URL: "https://x", Sessions: []string{"["}}}},
		"loop":                 {Relays: []connector.Relay{{Name: "a", Sessions: []string{"s*"}, Entry: to}}},
	} {
		if _, err := connector.New(cfg); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}
}

// FuzzReceive checks that an authenticated body is stored in a session with a valid name, or
// rejected with fault.Invalid.
func FuzzReceive(f *testing.F) {
	for _, s := range []string{`{"a": {"b": "x"}}`, `{"a": [1]}`, `[]`, `null`, `{"a": {"b": {"c": "\u0000"}}}`, `{"a": {"b": 1e999}}`, "\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) > 1<<16 {
			return
		}
		runs := &fakeRuns{}
		c, err := connector.New(connector.Config{
			Hooks: []connector.InboundWebhook{{Name: "a", Secret: "k", Labels: public, Entry: connector.Entry{Session: "s-{{a.b}}", Goal: "{{a}}"}}},
			Runs:  runs, Start: runs.start, Key: aKey,
		})
		if err != nil {
			t.Fatal(err)
		}
		head, err := webhook.Headers([]byte("k"), "m", time.Now(), body)
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.Receive(t.Context(), "a", head, body)
		if err != nil && !errors.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", body, err)
		}
		if err == nil && (got.Session != runs.session || strings.Trim(got.Session, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-") != "") {
			t.Errorf("%q: stored in the session %q", body, got.Session)
		}
	})
}
