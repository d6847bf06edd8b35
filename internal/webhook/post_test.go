package webhook_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"glasshouse/internal/webhook"
)

func TestPostIsSigned(t *testing.T) {
	var got error
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			_, err = webhook.Standard.Verify([]byte(secret), r.Header, body, now)
		}
		got = err
	}))
	defer srv.Close()
	s := webhook.NewSender(nil)
	defer s.Close()
	if err := s.Post(t.Context(), srv.URL, signed(t, secret, "m", now, "{}"), []byte("{}")); err != nil || got != nil {
		t.Errorf("Post: %v; Verify: %v", err, got)
	}
}

func TestSenderChecksAddressBeforeConnecting(t *testing.T) {
	asked, answered := 0, 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answered++
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	}))
	defer srv.Close()
	closed := errors.New("address refused")
	s := webhook.NewSender(func(at netip.AddrPort) error {
		asked++
		if !at.Addr().IsLoopback() || at.Port() == 0 {
			t.Errorf("reach was called with %s", at)
		}
		return closed
	})
	defer s.Close()
	for _, to := range []string{srv.URL, strings.Replace(srv.URL, "127.0.0.1", "localhost", 1)} {
		if err := s.Post(t.Context(), to+"/?token=canary", http.Header{}, nil); !errors.Is(err, closed) || strings.Contains(err.Error(), "canary") {
			t.Errorf("posting to %s: %v", to, err)
		}
	}
	if asked < 2 || answered != 0 {
		t.Errorf("reach was called %d times, and %d requests were received", asked, answered)
	}
	open := webhook.NewSender(func(netip.AddrPort) error { return nil })
	defer open.Close()
	if err := open.Post(t.Context(), srv.URL, http.Header{}, nil); err == nil || answered != 1 {
		t.Errorf("redirect: %v, %d requests received", err, answered)
	}
}
