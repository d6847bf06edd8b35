package approval_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/policy/approval"
	"glasshouse/store/storetest"
)

// A post is a request that a receiver got.
type post struct {
	header http.Header
	body   []byte
}

// A receiver is an HTTP server for notifications.
type receiver struct {
	*httptest.Server
	got chan post

	mu     sync.Mutex
	status func(n int) int // status of the n-th request, from 0
	n      int
}

func newReceiver(t *testing.T, status func(n int) int) *receiver {
	r := &receiver{got: make(chan post, 100), status: status}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		n := r.n
		r.n++
		status := r.status(n)
		r.mu.Unlock()
		if status == http.StatusFound {
			w.Header().Set("Location", r.URL+"/elsewhere")
		}
		w.WriteHeader(status)
		r.got <- post{req.Header, body}
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) next(t *testing.T) post {
	t.Helper()
	select {
	case p := <-r.got:
		return p
	case <-time.After(30 * time.Second):
		t.Fatal("no delivery within 30 s")
		return post{}
	}
}

func always(status int) func(int) int { return func(int) int { return status } }

var fastRetry = approval.Retry{First: time.Millisecond, Longest: 5 * time.Millisecond, Attempts: 4}

const canary = "canary-5a1f"

func key(context.Context) ([]byte, error) { return []byte(canary), nil }

func TestWebhookIsSigned(t *testing.T) {
	rcv := newReceiver(t, always(204))
	d := newHarness(t, approval.Config{Webhooks: []approval.Webhook{{Name: "ops", URL: rcv.URL, Secret: key}}})
	line := "printf 'hello\n' && rm -rf \u202etxt.exe"
	r := d.mustOpen(run(line))
	p := rcv.next(t)
	var got approval.WebhookBody
	if err := json.Unmarshal(p.body, &got); err != nil {
		t.Fatal(err)
	}
	if got.Type != "approval.asked" || got.Approval.ID != r.ID || got.Approval.What != "printf 'hello\n' && rm -rf ⟨U+202E⟩txt.exe" {
		t.Errorf("webhook = %+v", got)
	}
	stamp := p.header.Get("Webhook-Timestamp")
	if sec, err := strconv.ParseInt(stamp, 10, 64); err != nil || time.Since(time.Unix(sec, 0)) > time.Minute {
		t.Errorf("Webhook-Timestamp = %q", stamp)
	}
	m := hmac.New(sha256.New, []byte(canary))
	fmt.Fprintf(m, "%s.%s.%s", p.header.Get("Webhook-Id"), stamp, p.body)
	if want := "v1," + base64.StdEncoding.EncodeToString(m.Sum(nil)); p.header.Get("Webhook-Signature") != want {
		t.Errorf("Webhook-Signature = %q, want %q", p.header.Get("Webhook-Signature"), want)
	}
	d.mustAnswer(r, deny(anna, "no"))
	got = approval.WebhookBody{}
	if err := json.Unmarshal(rcv.next(t).body, &got); err != nil || got.Type != "approval.answered" || got.Answer.By != anna || got.Approval.Outcome != "denied by anna: no" {
		t.Errorf("webhook = %+v, %v", got, err)
	}
}

func TestWebhookIsRetried(t *testing.T) {
	rcv := newReceiver(t, func(n int) int { return []int{500, 302, 204}[min(n, 2)] })
	d := newHarness(t, approval.Config{Webhooks: []approval.Webhook{{Name: "ops", URL: rcv.URL}}, Retry: fastRetry})
	d.mustOpen(run("rm x"))
	first, second, third := rcv.next(t), rcv.next(t), rcv.next(t)
	for _, p := range []post{second, third} {
		if string(p.body) != string(first.body) || p.header.Get("Webhook-Id") != first.header.Get("Webhook-Id") {
			t.Error("the retry differs from the first attempt")
		}
	}
	if first.header.Get("Webhook-Signature") != "" {
		t.Error("the request is signed without a key")
	}
	eventually(t, func() bool { n, err := d.DeadLetters(t.Context()); return err == nil && len(n) == 0 })
	rcv.mu.Lock()
	defer rcv.mu.Unlock()
	if rcv.n != 3 { // the redirect was not followed
		t.Errorf("%d requests, want 3", rcv.n)
	}
}

func TestUndeliverableNoticeIsADeadLetter(t *testing.T) {
	var up bool
	rcv := newReceiver(t, func(int) int {
		if up {
			return 200
		}
		return 503
	})
	d := newHarness(t, approval.Config{Webhooks: []approval.Webhook{{Name: "ops", URL: rcv.URL}}, Retry: fastRetry})
	r := d.mustOpen(run("rm x"))
	var dead []approval.Notice
	eventually(t, func() bool {
		var err error
		dead, err = d.DeadLetters(t.Context())
		return err == nil && len(dead) == 1
	})
	if dead[0].Approval != r.ID || dead[0].Attempts != 4 || !strings.Contains(dead[0].Error, "503") {
		t.Errorf("dead letter = %+v", dead[0])
	}
	d.restart() // a dead letter stays dead
	for range 4 {
		rcv.next(t)
	}
	rcv.mu.Lock()
	n := rcv.n
	up = true
	rcv.mu.Unlock()
	if n != 4 {
		t.Errorf("%d attempts, want 4", n)
	}
	if err := d.Redeliver(t.Context(), dead[0].ID); err != nil {
		t.Fatal(err)
	}
	rcv.next(t)
	eventually(t, func() bool { dead, err := d.DeadLetters(t.Context()); return err == nil && len(dead) == 0 })
	wantKind(t, d.Redeliver(t.Context(), dead[0].ID), fault.NotFound)
}

func TestDeliveryContinuesAfterRestart(t *testing.T) {
	var up bool
	rcv := newReceiver(t, func(int) int {
		if up {
			return 200
		}
		return 503
	})
	slow := approval.Retry{First: time.Hour, Longest: time.Hour, Attempts: 4}
	d := newHarness(t, approval.Config{Webhooks: []approval.Webhook{{Name: "ops", URL: rcv.URL}}, Retry: slow})
	d.mustOpen(run("rm x"))
	first := rcv.next(t)
	eventually(t, func() bool { // the failed attempt is stored
		s, err := storetest.Open(t, d.path)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		n, err := s.Approvals().Notices(t.Context())
		return err == nil && len(n) == 1 && n[0].Attempts == 1
	})
	d.Close()
	rcv.mu.Lock()
	up = true
	rcv.mu.Unlock()
	d.cfg.Retry = fastRetry
	d.open()
	// The pause of the failed notice outlasts the restart. New notices are sent immediately.
	d.mustOpen(run("rm y"))
	if p := rcv.next(t); p.header.Get("Webhook-Id") == first.header.Get("Webhook-Id") {
		t.Error("the pause of a notice ended at the restart")
	}
}

func TestSecretsAreNeitherStoredNorShown(t *testing.T) {
	rcv := newReceiver(t, always(500))
	d := newHarness(t, approval.Config{
		Webhooks: []approval.Webhook{{Name: "ops", URL: rcv.URL + "/?token=" + canary, Secret: key}},
		Pushes:   []approval.Push{{Name: "phone", URL: rcv.URL + "/" + canary, Topic: "t", Recipient: anna, Token: key}},
		Links:    "https://gh.example/answers/",
		Retry:    approval.Retry{First: time.Millisecond, Longest: time.Millisecond, Attempts: 2},
	})
	rcv.Server.Config.SetKeepAlivesEnabled(false)
	d.mustOpen(run("rm x"))
	var links []string
	for range 4 {
		p := rcv.next(t)
		var msg struct{ Actions []struct{ URL string } }
		json.Unmarshal(p.body, &msg)
		for _, a := range msg.Actions {
			links = append(links, a.URL[strings.LastIndex(a.URL, "/")+1:])
		}
	}
	rcv.Close() // errors of refused connections contain the address, too
	d.mustOpen(run("rm y"))
	eventually(t, func() bool { n, err := d.DeadLetters(t.Context()); return err == nil && len(n) == 4 })
	dead, _ := d.DeadLetters(t.Context())
	text := fmt.Sprintf("%+v %#v", dead, dead)
	d.Close()
	text += fmt.Sprintf("%+v %+v", d.cfg, d.events) + readAll(t, d.path)
	text = strings.ReplaceAll(text, rcv.URL+"/?token="+canary, "")
	text = strings.ReplaceAll(text, rcv.URL+"/"+canary, "")
	if len(links) != 4 {
		t.Fatalf("%d links were sent, want 4", len(links))
	}
	for _, secret := range append(links, canary) {
		if strings.Contains(text, secret) {
			t.Errorf("%s is stored or shown", secret)
		}
	}
}

// An ntfyMessage is the message that the ntfy server gets.
type ntfyMessage struct {
	Topic, Title, Message, Click string
	Priority                     int
	Tags                         []string
	Actions                      []struct {
		Action, Label, URL, Method string
		Clear                      bool
	}
}

// newPhoneHarness returns a harness with a phone, and the server of its links.
func newPhoneHarness(t *testing.T) (*harness, *receiver, *httptest.Server) {
	t.Helper()
	rcv := newReceiver(t, always(200))
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	d := newHarness(t, approval.Config{
		Pushes: []approval.Push{{Name: "phone", URL: rcv.URL, Topic: "glass", Recipient: anna, Token: key}},
		Links:  server.URL + "/answers/",
	})
	mux.Handle("/answers/", http.StripPrefix("/answers", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.Links().ServeHTTP(w, r)
	})))
	return d, rcv, server
}

func (r *receiver) pushed(t *testing.T) ntfyMessage {
	t.Helper()
	p := r.next(t)
	var msg ntfyMessage
	if err := json.Unmarshal(p.body, &msg); err != nil {
		t.Fatal(err)
	}
	if p.header.Get("Authorization") != "Bearer "+canary || len(msg.Message) > 4096 {
		t.Errorf("message of %d bytes with Authorization %q", len(msg.Message), p.header.Get("Authorization"))
	}
	return msg
}

func fetch(t *testing.T, method, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(body), "<script") {
		t.Error("text of the agent is not escaped")
	}
	for name, want := range map[string]string{"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY"} {
		if got := res.Header.Get(name); strings.HasPrefix(res.Header.Get("Content-Type"), "text/html") && got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	return res.StatusCode, html.UnescapeString(string(body))
}

func TestPhoneButtonAllows(t *testing.T) {
	d, rcv, _ := newPhoneHarness(t)
	line := "rm -rf build <script>alert(1)</script> && \u2066ls"
	done := d.ask(t.Context(), run(line))
	msg := rcv.pushed(t)
	shown := "rm -rf build <script>alert(1)</script> && ⟨U+2066⟩ls"
	if msg.Topic != "glass" || !strings.Contains(msg.Message, shown) || len(msg.Actions) != 2 {
		t.Fatalf("message = %+v", msg)
	}
	button := msg.Actions[0]
	if button.Label != "Allow once" || button.Method != "POST" || button.Action != "http" || msg.Actions[1].Label != "Deny" {
		t.Errorf("buttons = %+v", msg.Actions)
	}
	// GET and HEAD, as from link previews, change nothing.
	for _, method := range []string{"GET", "HEAD", "GET"} {
		status, body := fetch(t, method, button.URL)
		if status != 200 || method == "GET" && (!strings.Contains(body, "⟨U+2066⟩ls") || !strings.Contains(body, "Allow once") || !strings.Contains(body, "<script>alert(1)")) {
			t.Errorf("status of %s = %d:\n%s", method, status, body)
		}
	}
	for _, method := range []string{"PUT", "DELETE", "OPTIONS"} {
		if status, _ := fetch(t, method, button.URL); status != http.StatusMethodNotAllowed {
			t.Errorf("status of %s = %d, want 405", method, status)
		}
	}
	if len(d.Pending()) != 1 {
		t.Fatal("a GET answered the request")
	}
	if status, _ := fetch(t, "POST", button.URL); status != 200 {
		t.Errorf("status of the button = %d, want 200", status)
	}
	got := <-done
	if _, granted := got.Granted(); !granted || got.Answer.By != anna || got.Answer.Channel != approval.LinkChannel {
		t.Errorf("Ask = %+v, %v", got.Request, got.err)
	}
	// The used link and the other link change nothing.
	if status, body := fetch(t, "POST", button.URL); status != 200 || !strings.Contains(body, "allowed by anna") || strings.Contains(body, "<button") {
		t.Errorf("status of the used link = %d:\n%s", status, body)
	}
	if status, body := fetch(t, "POST", msg.Actions[1].URL); status != 409 || !strings.Contains(body, "anna already answered allow") {
		t.Errorf("status of the other link = %d:\n%s", status, body)
	}
}

// other returns a character that is not c.
func other(c byte) string {
	if c == 'A' {
		return "B"
	}
	return "A"
}

func TestLinkAnswersOneRequestOnly(t *testing.T) {
	d, rcv, server := newPhoneHarness(t)
	d.mustOpen(run("rm x"))
	first := rcv.pushed(t)
	d.mustOpen(run("rm y"))
	rcv.pushed(t)
	fetch(t, "POST", first.Actions[1].URL)
	if p := d.Pending(); len(p) != 1 || p[0].Question.Resource != "rm y" {
		t.Errorf("Pending = %v, want the request of rm y", p)
	}
	token := first.Actions[0].URL[strings.LastIndex(first.Actions[0].URL, "/")+1:]
	for _, bad := range []string{"", "x", token[1:], token + "A", other(token[0]) + token[1:], strings.ToLower(token), token + "=", "../" + token, "%00", strings.Repeat("A", 43), strings.Repeat("A", 5000)} {
		if status, body := fetch(t, "POST", server.URL+"/answers/"+bad); status != 404 && status != 405 || strings.Contains(body, "rm ") {
			t.Errorf("status of token %.50q = %d: %s", bad, status, body)
		}
	}
	if len(d.Pending()) != 1 {
		t.Error("an invalid token answered a request")
	}
}

func TestLinkExpiresWithItsRequest(t *testing.T) {
	d, rcv, _ := newPhoneHarness(t)
	r := run("rm x")
	r.Expires = time.Now().Add(5 * time.Second)
	d.mustOpen(r)
	msg := rcv.pushed(t)
	if status, _ := fetch(t, "GET", msg.Actions[0].URL); status != 200 {
		t.Errorf("status before the expiry = %d, want 200", status)
	}
	time.Sleep(time.Until(r.Expires))
	if status, _ := fetch(t, "POST", msg.Actions[0].URL); status != 404 {
		t.Errorf("status after the expiry = %d, want 404", status)
	}
}

func TestLinkSurvivesRestart(t *testing.T) {
	d, rcv, _ := newPhoneHarness(t)
	r := d.mustOpen(run("rm x"))
	msg := rcv.pushed(t)
	d.restart()
	if status, _ := fetch(t, "POST", msg.Actions[0].URL); status != 200 {
		t.Errorf("status after a restart = %d, want 200", status)
	}
	if got, err := d.Wait(t.Context(), r.ID); err != nil || got.State != approval.Answered {
		t.Errorf("Wait = %+v, %v", got, err)
	}
}

func TestLinkCannotAllowElevatedRequest(t *testing.T) {
	d, rcv, _ := newPhoneHarness(t)
	r := d.mustOpen(elevated("deploy"))
	msg := rcv.pushed(t)
	if len(msg.Actions) != 1 || msg.Actions[0].Label != "Deny" || msg.Priority != 5 || !strings.Contains(msg.Message, r.Phrase) {
		t.Errorf("message = %+v", msg)
	}
	_, err := d.NewLink(t.Context(), r.ID, approval.Allow, anna)
	wantKind(t, err, fault.Denied)
	a := allow(anna)
	a.Channel, a.Typed = approval.LinkChannel, r.Phrase
	_, err = d.Answer(t.Context(), r.ID, a)
	wantKind(t, err, fault.Denied)
	if status, _ := fetch(t, "POST", msg.Actions[0].URL); status != 200 {
		t.Errorf("status of the button to deny = %d, want 200", status)
	}
	if got, err := d.Get(t.Context(), r.ID); err != nil || got.Answer == nil || got.Answer.Verdict != approval.Deny {
		t.Errorf("Get = %+v, %v, want denied", got, err)
	}
}

func TestPhoneCannotAllowShortenedRequest(t *testing.T) {
	d, rcv, _ := newPhoneHarness(t)
	line := "echo " + strings.Repeat("harmless ", 600) + "; rm -rf / #end"
	d.mustOpen(run(line))
	msg := rcv.pushed(t)
	if len(msg.Actions) != 1 || msg.Actions[0].Label != "Deny" || !strings.Contains(msg.Message, "bytes omitted") || !strings.Contains(msg.Message, "rm -rf / #end") {
		t.Errorf("message = %+v", msg)
	}
	if status, body := fetch(t, "GET", msg.Click); status != 200 || strings.Count(body, "harmless") != 600 {
		t.Errorf("status of the page = %d with %d repetitions, want 200 with 600", status, strings.Count(body, "harmless"))
	}
}

func TestPhoneIsNotNotifiedOfSettledRequest(t *testing.T) {
	var up bool
	rcv := newReceiver(t, func(int) int {
		if up {
			return 200
		}
		return 500
	})
	d := newHarness(t, approval.Config{Pushes: []approval.Push{{Name: "phone", URL: rcv.URL, Recipient: anna}}, Retry: approval.Retry{First: time.Hour}})
	r := d.mustOpen(run("rm x"))
	if msg := rcv.next(t); strings.Contains(string(msg.body), "actions") {
		t.Errorf("the message has links without Config.Links: %s", msg.body)
	}
	d.mustAnswer(r, allow(anna))
	rcv.mu.Lock()
	up = true
	rcv.mu.Unlock()
	d.Close()
	d.cfg.Retry = fastRetry
	d.open()
	d.mustOpen(run("rm y"))
	if msg := rcv.next(t); !strings.Contains(string(msg.body), "rm y") {
		t.Errorf("message = %s, want the one of rm y", msg.body)
	}
}

func TestChannelConfigIsValidated(t *testing.T) {
	for _, cfg := range []approval.Config{
		{Webhooks: []approval.Webhook{{URL: "http://x"}}},
		{Webhooks: []approval.Webhook{{Name: "a"}, {Name: "a"}}},
		{Pushes: []approval.Push{{Name: "a", Recipient: approval.Person{ID: "x", Role: "agent"}}}, Links: "http://x"},
	} {
		if q, err := approval.New(t.Context(), emptyStore{}, cfg); err == nil {
			q.Close()
			t.Errorf("New accepts %+v", cfg)
		}
	}
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the condition does not become true within 30 s")
		}
	}
}

var errBroken = errors.New("the disk is gone")

func FuzzLinkToken(f *testing.F) {
	for _, s := range []string{"", "x", strings.Repeat("A", 43), strings.Repeat("A", 42) + "=", "..", "%2e%2e", "a/b", strings.Repeat("_", 43)} {
		f.Add(s)
	}
	s, err := storetest.Open(f, "")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.Close() })
	q, err := approval.New(f.Context(), s.Approvals(), approval.Config{Links: "http://x/"})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { q.Close() })
	r, err := q.Open(f.Context(), run("rm x"))
	if err != nil {
		f.Fatal(err)
	}
	if _, err := q.NewLink(f.Context(), r.ID, approval.Allow, anna); err != nil {
		f.Fatal(err)
	}
	h := q.Links()
	f.Fuzz(func(t *testing.T, token string) {
		for _, method := range []string{"GET", "POST"} {
			req := httptest.NewRequest(method, "/", nil)
			req.URL.Path = "/" + token
			w := httptest.NewRecorder()
			h.ServeHTTP(w, req)
			if w.Code < 300 || strings.Contains(w.Body.String(), "rm x") {
				t.Fatalf("status of %s of token %q = %d", method, token, w.Code)
			}
		}
		if len(q.Pending()) != 1 {
			t.Fatalf("token %q answered the request", token)
		}
	})
}
