package connector_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"glasshouse/agents/connector"
	"glasshouse/agents/run"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/internal/webhook"
)

func TestOutboundWebhookSignsMatchingMessages(t *testing.T) {
	rcv := newReceiver(t)
	h := open(t, connector.Config{Posts: []connector.OutboundWebhook{{Name: "ops", Sessions: []string{"ops-*"}, URL: rcv.URL + "/in", Secret: "key-a", Networks: here}}})
	m := h.say("ops-1", "all is well", run.Message{From: "builtin"})
	other := h.say("private", "not for you", run.Message{})
	d := h.settled(m, run.Delivered)[0]
	h.settled(other)
	got := rcv.all()
	if len(got) != 1 {
		t.Fatalf("got the requests %+v, want one", got)
	}
	did, err := webhook.Standard.Verify([]byte("the key of a"), got[0].header, got[0].body, time.Now())
	if err != nil || did != d.ID {
		t.Errorf("the signature verifies with the id %q, %v, want %q", did, err, d.ID)
	}
	var p connector.Posted
	if err := json.Unmarshal(got[0].body, &p); err != nil || p.Type != "session.message" || p.Data.Text != "all is well" || p.Data.Session != "ops-1" || p.Data.Message != m.ID || p.Data.From != "builtin" {
		t.Errorf("the body is %s, %v", got[0].body, err)
	}
}

func TestDeliveryRetriesKeepID(t *testing.T) {
	rcv := newReceiver(t)
	rcv.answer(503)
	h := open(t, connector.Config{Posts: []connector.OutboundWebhook{{Name: "ops", Sessions: []string{"*"}, URL: rcv.URL, Networks: here}}})
	m := h.say("s", "hello", run.Message{})
	dead := h.settled(m, run.Dead)[0]
	if dead.Attempts != 3 || !strings.Contains(dead.Error, "503") {
		t.Errorf("the dead letter is %+v", dead)
	}
	if all, err := h.List(t.Context()); err != nil || len(all) != 1 || all[0].Dead != 1 || all[0].Pending != 0 || all[0].Address != "127.0.0.1" {
		t.Errorf("the connectors are %+v, %v", all, err)
	}
	list, err := h.Deliveries(t.Context(), run.DeliveryFilter{To: "ops", State: run.Dead})
	if err != nil || len(list) != 1 || list[0].ID != dead.ID {
		t.Errorf("the dead letters are %+v, %v", list, err)
	}
	rcv.answer(200)
	if _, err := h.Redeliver(t.Context(), dead.ID); err != nil {
		t.Fatal(err)
	}
	h.settled(m, run.Delivered)
	ids := map[string]bool{}
	for _, a := range rcv.all() {
		ids[a.header.Get("Webhook-Id")+string(a.body)] = true
		if a.header.Get("Webhook-Signature") != "" {
			t.Error("a request is signed although there is no secret")
		}
	}
	if len(ids) != 1 || len(rcv.all()) != 4 {
		t.Errorf("got %d requests with the ids %v", len(rcv.all()), ids)
	}
	if _, err := h.Redeliver(t.Context(), dead.ID); !errors.Is(err, fault.Conflict) {
		t.Errorf("Redeliver of a delivered message: %v", err)
	}
	if _, err := h.Deliveries(t.Context(), run.DeliveryFilter{To: "none"}); !errors.Is(err, fault.NotFound) {
		t.Errorf("deliveries of a missing connector: %v", err)
	}
}

// TestPrivateNetworksAreRefused checks that an outbound webhook cannot reach a private network by
// an address, a host name or a redirect (SSRF).
func TestPrivateNetworksAreRefused(t *testing.T) {
	rcv := newReceiver(t)
	away := newReceiver(t)
	away.Config.Handler = redirectTo(rcv.URL)
	var posts []connector.OutboundWebhook
	for name, to := range map[string]string{
		"address": rcv.URL, "name": strings.Replace(rcv.URL, "127.0.0.1", "localhost", 1), "metadata": "http://169.254.169.254/latest/", "mapped": strings.Replace(rcv.URL, "127.0.0.1", "[::ffff:127.0.0.1]", 1),
	} {
		posts = append(posts, connector.OutboundWebhook{Name: name, Sessions: []string{"*"}, URL: to})
	}
	posts = append(posts, connector.OutboundWebhook{Name: "redirect", Sessions: []string{"*"}, URL: away.URL, Networks: here})
	h := open(t, connector.Config{Posts: posts})
	m := h.say("s", "hello", run.Message{})
	for _, d := range h.settled(m, run.Dead, run.Dead, run.Dead, run.Dead, run.Dead) {
		if want := "not an address on the Internet"; d.To != "redirect" && !strings.Contains(d.Error, want) {
			t.Errorf("%s: %s, want %s", d.To, d.Error, want)
		}
	}
	if got := rcv.all(); len(got) != 0 {
		t.Errorf("the private server received %+v", got)
	}
}

func TestSlowReceiverDoesNotDelayOthers(t *testing.T) {
	slow, rcv := newReceiver(t), newReceiver(t)
	hold := make(chan struct{})
	slow.Config.Handler = waitFor(hold)
	h := open(t, connector.Config{Posts: []connector.OutboundWebhook{
		{Name: "slow", Sessions: []string{"*"}, URL: slow.URL, Networks: here},
		{Name: "well", Sessions: []string{"*"}, URL: rcv.URL, Networks: here},
	}})
	var last run.Message
	for range 20 {
		last = h.say("s", "hello", run.Message{})
	}
	h.settled(last, run.Pending, run.Delivered)
	close(hold)
	h.settled(last, run.Delivered, run.Delivered)
}

func TestPersonalDataIsSentAsHandle(t *testing.T) {
	rcv := newReceiver(t)
	h := open(t, connector.Config{
		Posts: []connector.OutboundWebhook{
			{Name: "any", Sessions: []string{"s"}, URL: rcv.URL + "/any", Networks: here},
			{Name: "may", Sessions: []string{"s"}, URL: rcv.URL + "/may", Networks: here, Labels: []manifest.Label{manifest.PII}},
		},
		Relays: []connector.Relay{
			{Name: "relay-any", Sessions: []string{"s"}, Entry: connector.Entry{Session: "any"}},
			{Name: "relay-may", Sessions: []string{"s"}, Labels: []manifest.Label{manifest.PII}, Entry: connector.Entry{Session: "may"}},
		},
	})
	m := h.say("s", "anna@example.org", run.Message{Labels: []manifest.Label{manifest.PII}})
	h.settled(m, run.Delivered, run.Delivered, run.Delivered, run.Delivered)
	seen := map[string]bool{}
	for _, a := range rcv.all() {
		var p connector.Posted
		if err := json.Unmarshal(a.body, &p); err != nil {
			t.Fatal(err)
		}
		seen[p.Data.Text] = true
	}
	if len(seen) != 2 || !seen["anna@example.org"] || !seen[m.Text] || !run.IsHandle(m.Text) {
		t.Errorf("the webhooks received %v", seen)
	}
	// A relay that is cleared for pii stores the value under a new handle in the destination
	// session. The handle of another session cannot be revealed there.
	for session, want := range map[string]string{"any": m.Text, "may": "anna@example.org"} {
		if list := h.inbox(session); len(list) != 1 || !run.IsHandle(list[0].Text) {
			t.Errorf("the inbox of %s is %+v", session, list)
		}
		if _, err := h.runs.ChangeSettings(t.Context(), session, "me", func(s *run.Settings) { s.Labels = []manifest.Label{manifest.PII} }); err != nil {
			t.Fatal(err)
		}
		if list, err := h.runs.Inbox(t.Context(), session, 0, 10); err != nil || list[0].Text != want {
			t.Errorf("the revealed inbox of %s is %+v, %v, want %q", session, list, err, want)
		}
	}
}

func TestRelay(t *testing.T) {
	h := open(t, connector.Config{Relays: []connector.Relay{
		{Name: "review", Sessions: []string{"write-*"}, Entry: connector.Entry{Session: "review-{{session_id}}", Goal: "Review what {{from}} says"}},
		{Name: "gone", Sessions: []string{"write-*"}, Entry: connector.Entry{Session: "archive"}},
	}})
	if _, err := h.runs.Open(t.Context(), run.Session{ID: "archive"}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.runs.CloseSession(t.Context(), "archive", "me", ""); err != nil {
		t.Fatal(err)
	}
	m := h.say("write-1", "it is written", run.Message{From: "builtin"})
	h.settled(m, run.Dead, run.Delivered)
	list := h.inbox("review-write-1")
	if len(list) != 1 || list[0].Text != "it is written" || list[0].From != "connector review" {
		t.Errorf("the inbox of the destination is %+v", list)
	}
	runs, err := h.runs.List(t.Context(), run.Filter{Session: "review-write-1"})
	if err != nil || len(runs) != 1 || runs[0].Goal != "Review what builtin says" {
		t.Errorf("the runs are %+v, %v", runs, err)
	}
}
