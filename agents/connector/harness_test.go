package connector_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"time"

	"filippo.io/age"

	"glasshouse/agents/connector"
	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/internal/webhook"
	"glasshouse/policy/chain"
	"glasshouse/policy/egress"
	"glasshouse/store/storetest"
)

// A harness is a session manager with connectors and their secrets.
type harness struct {
	*testing.T
	runs *run.Manager
	*connector.Connectors
	keys map[string]string
}

// soon retries deliveries immediately and gives up after three attempts.
var soon = run.Retry{First: time.Millisecond, Longest: time.Millisecond, Attempts: 3}

func open(t *testing.T, cfg connector.Config) *harness {
	t.Helper()
	db, err := storetest.Open(t, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	key, err := chain.LoadKey(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c, err := chain.Open(t.Context(), chain.Config{Store: db.Chain(), Key: key, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	seal, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{T: t, keys: map[string]string{"key-a": "the key of a", "key-b": "the key of b"}}
	h.runs, err = run.New(t.Context(), run.Config{Store: db.Runs(), Chain: c, Key: seal, Retry: soon})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.runs.Close() })
	cfg.Runs, cfg.Reach = h.runs, egress.CheckInternetAddr
	cfg.Start = h.runs.Create
	cfg.Key = func(_ context.Context, _, secret, _ string) ([]byte, error) {
		if k, ok := h.keys[secret]; ok {
			return []byte(k), nil
		}
		return nil, fault.Newf(fault.NotFound, "secret", secret, "no such secret")
	}
	made, err := connector.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	h.Connectors = made
	h.Open()
	t.Cleanup(func() { made.Close() })
	return h
}

// signed returns the headers of a request that is signed with key now.
func (h *harness) signed(key, id, body string) http.Header {
	h.Helper()
	head, err := webhook.Headers([]byte(key), id, time.Now(), []byte(body))
	if err != nil {
		h.Fatal(err)
	}
	return head
}

func (h *harness) inbox(session string) []run.Message {
	h.Helper()
	list, err := h.runs.Messages(h.Context(), session, run.In, 0, 0)
	if err != nil && !errors.Is(err, fault.NotFound) {
		h.Fatal(err)
	}
	return list
}

func (h *harness) say(session, text string, m run.Message) run.Message {
	h.Helper()
	m.Session, m.Text = session, text
	got, err := h.runs.Post(h.Context(), m, h.For(session)...)
	if err != nil {
		h.Fatal(err)
	}
	return got
}

func (h *harness) settled(m run.Message, want ...run.DeliveryState) []run.Delivery {
	h.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		list, err := h.runs.Deliveries(h.Context(), m.ID)
		if err != nil {
			h.Fatal(err)
		}
		done := len(list) == len(want)
		for i := range list {
			done = done && list[i].State == want[i]
		}
		if done {
			return list
		}
		if time.Now().After(deadline) {
			h.Fatalf("the deliveries are %+v, want the states %v", list, want)
		}
	}
}

// A receiver is an HTTP server that records outbound webhooks.
type receiver struct {
	*httptest.Server
	mu sync.Mutex
	// +checklocks:mu
	got []arrived
	// +checklocks:mu
	status int
}

type arrived struct {
	header http.Header
	body   []byte
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{status: http.StatusNoContent}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.got = append(r.got, arrived{req.Header, body})
		w.WriteHeader(r.status)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) answer(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = status
}

func (r *receiver) all() []arrived {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]arrived(nil), r.got...)
}

var here = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

// fakeRuns is a fake of connector.Runs that records the session of the last message.
type fakeRuns struct {
	connector.Runs
	session string
}

func (k *fakeRuns) Send(_ context.Context, m run.Message) (run.Message, error) {
	k.session = m.Session
	return m, nil
}

func (k *fakeRuns) start(context.Context, run.Request) (run.Run, error) { return run.Run{}, nil }

func aKey(context.Context, string, string, string) ([]byte, error) { return []byte("k"), nil }

func redirectTo(url string) http.Handler {
	return http.RedirectHandler(url, http.StatusTemporaryRedirect)
}

func waitFor(c <-chan struct{}) http.Handler {
	return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-c })
}
