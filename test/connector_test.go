package test_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/agents/connector"
	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/internal/webhook"
)

// modelThatWaits is a scripted model that waits for an inbound event.
const modelThatWaits = `
conversations:
  - when: {user: "write a short plan"}
    turns: [{text: "1. wait"}]
  - when: {user: "carry out the plan"}
    turns:
      - calls: [{tool: wait_for_event, arguments: {reason: "the build"}}]
      - text: "it was built"
`

// connectors returns a daemon configuration: an inbound webhook that starts runs, one that wakes
// them, and an outbound webhook.
func connectors(to string) string {
	return fmt.Sprintf(`
  connectors:
    hooks:
      - name: shop
        secret: SHOP
        labels: [public]
        session: shop-{{order.id}}
        goal: Look at order {{order.id}}
        agent:
          preset: shell
          argv: ["sh", "-c", "seen=$(curl -s 'http://localhost:4097/run/inbox?after=0' | grep -c pear); curl -s -X POST -H 'Content-Type: application/json' -d \"{\\\"text\\\": \\\"pears: $seen\\\", \\\"key\\\": \\\"k\\\"}\" http://localhost:4097/run/messages"]
      - {name: build, scheme: github, secret: BUILD, session: waits}
    posts:
      - {name: ops, sessions: ["shop-*"], url: %q, secret: OPS, networks: [127.0.0.0/8]}
      - {name: inside, sessions: ["shop-*"], url: %q}
`, to, to)
}

// webhookReceiver is a receiver of outbound webhooks. Its first request gets no response as long as
// the daemon lives.
type webhookReceiver struct {
	*httptest.Server
	first chan struct{} // closed when the first request has arrived

	mu  sync.Mutex
	ids []string // ids of the requests, in order of arrival
	got []connector.Posted
}

func newWebhookReceiver(t *testing.T) *webhookReceiver {
	r := &webhookReceiver{first: make(chan struct{})}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		var p connector.Posted
		if err == nil {
			_, err = webhook.Standard.Verify([]byte("the key of ops"), req.Header, body, time.Now())
		}
		if err != nil || json.Unmarshal(body, &p) != nil {
			t.Errorf("the webhook body is %q: %v", body, err)
		}
		r.mu.Lock()
		r.ids, r.got = append(r.ids, req.Header.Get("Webhook-Id")), append(r.got, p)
		n := len(r.ids)
		r.mu.Unlock()
		if n == 1 {
			close(r.first)
			<-req.Context().Done()
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// post sends a signed body to an inbound webhook over the network, without a token.
func (h *daemonHarness) post(name, key, id, body string) (status int, answer wire.Received) {
	h.Helper()
	head, err := webhook.Headers([]byte(key), id, time.Now(), []byte(body))
	if err != nil {
		h.Fatal(err)
	}
	return h.postAs(name, head, body)
}

func (h *daemonHarness) postAs(name string, head http.Header, body string) (status int, answer wire.Received) {
	h.Helper()
	req, err := http.NewRequest(http.MethodPost, "http://"+h.tcpAddr()+"/hooks/"+name, strings.NewReader(body))
	if err != nil {
		h.Fatal(err)
	}
	req.Header = head
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		h.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || strings.Contains(string(text), "the key of") {
		h.Errorf("the response contains a key: %q, %v", text, err)
	}
	if res.StatusCode == http.StatusAccepted {
		if err := json.Unmarshal(text, &answer); err != nil {
			h.Fatal(err)
		}
	}
	return res.StatusCode, answer
}

func TestWebhookOrderIsAnsweredAfterADaemonKill(t *testing.T) {
	to := newWebhookReceiver(t)
	h := open(t, models(t, modelThatWaits)+connectors(to.URL)+fmt.Sprintf("rootfs: {default: {dir: %q}}\n", rootfsWith(t, "curl")), "--listen", "127.0.0.1:0")
	for name, key := range map[string]string{"SHOP": "the key of shop", "BUILD": "the key of build", "OPS": "the key of ops"} {
		if err := h.PutSecret(h.Context(), name, wire.PutSecret{Value: &key}); err != nil {
			t.Fatal(err)
		}
	}
	body := `{"order": {"id": 7, "what": "a pear"}}`
	for name, c := range map[string]struct {
		to, key, body string
		want          int
	}{
		"another connector's key": {"shop", "the key of build", body, 401},
		"a connector that is not": {"shoe", "the key of shop", body, 401},
		"a body without an end":   {"shop", "the key of shop", strings.Repeat("x", connector.MaxBody+1), 413},
		"nothing of an order":     {"shop", "the key of shop", `{}`, 400},
	} {
		if status, _ := h.post(c.to, c.key, "m-0", c.body); status != c.want {
			t.Errorf("%s: %d, want %d", name, status, c.want)
		}
	}
	if status, _ := h.postAs("shop", http.Header{}, body); status != 401 {
		t.Errorf("unsigned: %d, want 401", status)
	}

	status, got := h.post("shop", "the key of shop", "m-1", body)
	if status != http.StatusAccepted || got.Session != "shop-7" || got.Run == "" {
		t.Fatalf("response to the order: got %d %+v\n%s", status, got, h.log)
	}
	select {
	case <-to.first:
	case <-time.After(2 * time.Minute):
		t.Fatalf("no webhook was sent\n%s", h.log)
	}
	h.kill() // the webhook has arrived, but the daemon has not received the response
	h.start()
	if status, again := h.post("shop", "the key of shop", "m-1", body); status != http.StatusAccepted || again != got {
		t.Errorf("response to the repeated order: got %d %+v, want %+v", status, again, got)
	}
	var state string
	if !within(time.Minute, func() bool {
		all, err := client.Collect(h.Deliveries(h.Context(), "ops", ""))
		if err == nil && len(all) == 1 {
			state = all[0].State
		}
		return state == "delivered"
	}) {
		t.Fatalf("the delivery is %s\n%s", state, h.log)
	}
	to.mu.Lock()
	if len(to.ids) != 2 || to.ids[0] != to.ids[1] || to.got[0].Data.Message != to.got[1].Data.Message || to.got[0].Data.Text != "pears: 1" || to.got[0].Data.Session != "shop-7" {
		t.Errorf("got webhooks %v: %+v", to.ids, to.got)
	}
	to.mu.Unlock()
	if r := h.settled(got.Run, "done", "failed"); r.State != "done" {
		t.Errorf("run is %s: %s, want done", r.State, r.Error)
	}
	if runs, err := client.Collect(h.Runs(h.Context(), "shop-7", "")); err != nil || len(runs) != 1 {
		t.Errorf("got runs %+v, %v; want one", runs, err)
	}

	// Delivery to a private network is refused unless the configuration allows it.
	var out string
	var code int
	if !within(time.Minute, func() bool { // this delivery is independent of the other
		out, _, code = h.glasshouse("", "connector", "deliveries", "inside")
		return code == 0 && strings.Contains(out, "not an address on the Internet")
	}) {
		t.Errorf("connector deliveries: %d %s", code, out)
	}
	if out, _, code := h.glasshouse("", "connector", "ls"); code != 0 || !strings.Contains(out, "shop-{{order.id}}") || strings.Contains(out, "the key") {
		t.Errorf("connector ls: %d %s", code, out)
	}
	noSecretIn(t, h.data, h.log.String(), "the key of shop", "the key of build", "the key of ops")
}

// hubSignature signs a body as GitHub does.
func hubSignature(key, body string) string {
	m := hmac.New(sha256.New, []byte(key))
	m.Write([]byte(body))
	return hex.EncodeToString(m.Sum(nil))
}

// noSecretIn fails the test if a key is stored or logged in plain text.
func noSecretIn(t *testing.T, data, log string, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if strings.Contains(log, key) {
			t.Errorf("key %q is in the log", key)
		}
	}
	files, err := filepath.Glob(filepath.Join(data, "*.db*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("got databases %v, %v", files, err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			if strings.Contains(string(text), key) {
				t.Errorf("key %q is in %s", key, f)
			}
		}
	}
}

func TestWaitForWebhookSurvivesDaemonKill(t *testing.T) {
	h := open(t, models(t, modelThatWaits)+connectors("https://elsewhere.invalid/"), "--listen", "127.0.0.1:0")
	key := "the key of build"
	if err := h.PutSecret(h.Context(), "BUILD", wire.PutSecret{Value: &key}); err != nil {
		t.Fatal(err)
	}
	r, err := h.StartRun(h.Context(), wire.StartRun{Goal: "wait for the build", Session: "waits"})
	if err != nil {
		t.Fatal(err)
	}
	r = h.settled(r.ID, "paused", "done", "failed")
	if r.Why != "event" || r.Reason != "the build" {
		t.Fatalf("run is %s (%s) %s %s, want paused for an event\n%s", r.State, r.Why, r.Reason, r.Error, h.log)
	}
	h.kill()
	h.start()
	body := `{"built": true}`
	head := http.Header{"X-Hub-Signature-256": {"sha256=" + hubSignature(key, body)}}
	status, got := h.postAs("build", head, body)
	if status != http.StatusAccepted || got.Session != "waits" {
		t.Fatalf("response to the event: got %d %+v", status, got)
	}
	r = h.settled(r.ID, "done", "failed")
	if r.State != "done" || r.Result != "it was built" {
		t.Errorf("run is %s: %q %s, want done\n%s", r.State, r.Result, r.Error, h.log)
	}
	// The event is not declared as free of personal data, so the agent received only a
	// quarantine handle.
	for a, err := range h.RunActions(context.Background(), r.ID) {
		if err != nil {
			t.Fatal(err)
		}
		if a.Name == "wait_for_event" && (!strings.Contains(string(a.Output), "quarantine:") || strings.Contains(string(a.Output), "built")) {
			t.Errorf("wait_for_event returned %s, want a quarantine handle", a.Output)
		}
	}
}
