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

	"glasshouse/approval"
	"glasshouse/fault"
	"glasshouse/store/storetest"
)

// A post is what a receiver was told.
type post struct {
	header http.Header
	body   []byte
}

// A receiver is a real server that is told things.
type receiver struct {
	*httptest.Server
	got chan post

	mu     sync.Mutex
	status func(n int) int // for the n-th, from 0
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
		t.Fatal("nothing is delivered")
		return post{}
	}
}

func always(status int) func(int) int { return func(int) int { return status } }

var soon = approval.Retry{First: time.Millisecond, Longest: 5 * time.Millisecond, Attempts: 4}

const canary = "canary-5a1f"

func key(context.Context) ([]byte, error) { return []byte(canary), nil }

func TestAWebhookIsToldAndCanTellThatItIsUs(t *testing.T) {
	rcv := newReceiver(t, always(204))
	d := newDesk(t, approval.Config{Webhooks: []approval.Webhook{{Name: "ops", URL: rcv.URL, Secret: key}}})
	line := "printf 'hello\n' && rm -rf \u202etxt.exe"
	r := d.mustOpen(run(line))
	p := rcv.next(t)
	var got approval.Hooked
	if err := json.Unmarshal(p.body, &got); err != nil {
		t.Fatal(err)
	}
	if got.Type != "approval.asked" || got.Approval.ID != r.ID || got.Approval.What != "printf 'hello\n' && rm -rf ⟨U+202E⟩txt.exe" {
		t.Errorf("told %+v", got)
	}
	stamp := p.header.Get("Webhook-Timestamp")
	if sec, err := strconv.ParseInt(stamp, 10, 64); err != nil || time.Since(time.Unix(sec, 0)) > time.Minute {
		t.Errorf("the timestamp is %q", stamp)
	}
	m := hmac.New(sha256.New, []byte(canary))
	fmt.Fprintf(m, "%s.%s.%s", p.header.Get("Webhook-Id"), stamp, p.body)
	if want := "v1," + base64.StdEncoding.EncodeToString(m.Sum(nil)); p.header.Get("Webhook-Signature") != want {
		t.Errorf("the signature is %q, want %q", p.header.Get("Webhook-Signature"), want)
	}
	d.mustAnswer(r, deny(anna, "no"))
	got = approval.Hooked{}
	if err := json.Unmarshal(rcv.next(t).body, &got); err != nil || got.Type != "approval.answered" || got.Answer.By != anna || got.Approval.Outcome != "denied by anna: no" {
		t.Errorf("told %+v, %v", got, err)
	}
}

func TestAWebhookIsTriedAgain(t *testing.T) {
	rcv := newReceiver(t, func(n int) int { return []int{500, 302, 204}[min(n, 2)] })
	d := newDesk(t, approval.Config{Webhooks: []approval.Webhook{{Name: "ops", URL: rcv.URL}}, Retry: soon})
	d.mustOpen(run("rm x"))
	first, second, third := rcv.next(t), rcv.next(t), rcv.next(t)
	for _, p := range []post{second, third} {
		if string(p.body) != string(first.body) || p.header.Get("Webhook-Id") != first.header.Get("Webhook-Id") {
			t.Error("tried again, it is another notice")
		}
	}
	if first.header.Get("Webhook-Signature") != "" {
		t.Error("signed without a key")
	}
	eventually(t, func() bool { n, err := d.DeadLetters(t.Context()); return err == nil && len(n) == 0 })
	rcv.mu.Lock()
	defer rcv.mu.Unlock()
	if rcv.n != 3 { // the redirect was not followed
		t.Errorf("told %d times", rcv.n)
	}
}

func TestWhatCannotBeDeliveredIsADeadLetter(t *testing.T) {
	var up bool
	rcv := newReceiver(t, func(int) int {
		if up {
			return 200
		}
		return 503
	})
	d := newDesk(t, approval.Config{Webhooks: []approval.Webhook{{Name: "ops", URL: rcv.URL}}, Retry: soon})
	r := d.mustOpen(run("rm x"))
	var dead []approval.Notice
	eventually(t, func() bool {
		var err error
		dead, err = d.DeadLetters(t.Context())
		return err == nil && len(dead) == 1
	})
	if dead[0].Approval != r.ID || dead[0].Attempts != 4 || !strings.Contains(dead[0].Error, "503") {
		t.Errorf("the dead letter is %+v", dead[0])
	}
	d.restart() // and it stays dead
	for range 4 {
		rcv.next(t)
	}
	rcv.mu.Lock()
	n := rcv.n
	up = true
	rcv.mu.Unlock()
	if n != 4 {
		t.Errorf("tried %d times, want 4", n)
	}
	if err := d.Redeliver(t.Context(), dead[0].ID); err != nil {
		t.Fatal(err)
	}
	rcv.next(t)
	eventually(t, func() bool { dead, err := d.DeadLetters(t.Context()); return err == nil && len(dead) == 0 })
	wantKind(t, d.Redeliver(t.Context(), dead[0].ID), fault.NotFound)
}

func TestARestartGoesOnDelivering(t *testing.T) {
	var up bool
	rcv := newReceiver(t, func(int) int {
		if up {
			return 200
		}
		return 503
	})
	slow := approval.Retry{First: time.Hour, Longest: time.Hour, Attempts: 4}
	d := newDesk(t, approval.Config{Webhooks: []approval.Webhook{{Name: "ops", URL: rcv.URL}}, Retry: slow})
	d.mustOpen(run("rm x"))
	first := rcv.next(t)
	eventually(t, func() bool { // the failure is kept
		s, err := storetest.Open(t, d.where)
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
	d.cfg.Retry = soon
	d.open()
	// What failed waits its pause, across the restart; what is new does not.
	d.mustOpen(run("rm y"))
	if p := rcv.next(t); p.header.Get("Webhook-Id") == first.header.Get("Webhook-Id") {
		t.Error("the pause of a notice does not survive a restart")
	}
}

func TestASecretIsNowhere(t *testing.T) {
	rcv := newReceiver(t, always(500))
	d := newDesk(t, approval.Config{
		Webhooks: []approval.Webhook{{Name: "ops", URL: rcv.URL + "/?token=" + canary, Secret: key}},
		Pushes:   []approval.Push{{Name: "phone", URL: rcv.URL + "/" + canary, Topic: "t", Who: anna, Token: key}},
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
	rcv.Close() // the errors of refused connections name the address, too
	d.mustOpen(run("rm y"))
	eventually(t, func() bool { n, err := d.DeadLetters(t.Context()); return err == nil && len(n) == 4 })
	dead, _ := d.DeadLetters(t.Context())
	text := fmt.Sprintf("%+v %#v", dead, dead)
	d.Close()
	text += fmt.Sprintf("%+v %+v", d.cfg, d.events) + readAll(t, d.where)
	text = strings.ReplaceAll(text, rcv.URL+"/?token="+canary, "")
	text = strings.ReplaceAll(text, rcv.URL+"/"+canary, "")
	if len(links) != 4 {
		t.Fatalf("%d links were sent", len(links))
	}
	for _, secret := range append(links, canary) {
		if strings.Contains(text, secret) {
			t.Errorf("%s is kept or shown", secret)
		}
	}
}

// A pushed is what a phone is told.
type pushed struct {
	Topic, Title, Message, Click string
	Priority                     int
	Tags                         []string
	Actions                      []struct {
		Action, Label, URL, Method string
		Clear                      bool
	}
}

// phone is a desk with a phone, and a door where its links lead.
func phone(t *testing.T) (*desk, *receiver, *httptest.Server) {
	t.Helper()
	rcv := newReceiver(t, always(200))
	mux := http.NewServeMux()
	door := httptest.NewServer(mux)
	t.Cleanup(door.Close)
	d := newDesk(t, approval.Config{
		Pushes: []approval.Push{{Name: "phone", URL: rcv.URL, Topic: "glass", Who: anna, Token: key}},
		Links:  door.URL + "/answers/",
	})
	mux.Handle("/answers/", http.StripPrefix("/answers", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.Links().ServeHTTP(w, r)
	})))
	return d, rcv, door
}

func (r *receiver) pushed(t *testing.T) pushed {
	t.Helper()
	p := r.next(t)
	var msg pushed
	if err := json.Unmarshal(p.body, &msg); err != nil {
		t.Fatal(err)
	}
	if p.header.Get("Authorization") != "Bearer "+canary || len(msg.Message) > 4096 {
		t.Errorf("pushed %d bytes with %q", len(msg.Message), p.header.Get("Authorization"))
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
		t.Error("what an agent wrote is taken for a page's own text")
	}
	for name, want := range map[string]string{"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY"} {
		if got := res.Header.Get(name); strings.HasPrefix(res.Header.Get("Content-Type"), "text/html") && got != want {
			t.Errorf("%s is %q", name, got)
		}
	}
	return res.StatusCode, html.UnescapeString(string(body))
}

func TestOneTapOnAPhoneAllows(t *testing.T) {
	d, rcv, _ := phone(t)
	line := "rm -rf build <script>alert(1)</script> && \u2066ls"
	done := d.ask(t.Context(), run(line))
	msg := rcv.pushed(t)
	shown := "rm -rf build <script>alert(1)</script> && ⟨U+2066⟩ls"
	if msg.Topic != "glass" || !strings.Contains(msg.Message, shown) || len(msg.Actions) != 2 {
		t.Fatalf("pushed %+v", msg)
	}
	button := msg.Actions[0]
	if button.Label != "Allow once" || button.Method != "POST" || button.Action != "http" || msg.Actions[1].Label != "Deny" {
		t.Errorf("the buttons are %+v", msg.Actions)
	}
	// Whatever looks at links first changes nothing.
	for _, method := range []string{"GET", "HEAD", "GET"} {
		status, body := fetch(t, method, button.URL)
		if status != 200 || method == "GET" && (!strings.Contains(body, "⟨U+2066⟩ls") || !strings.Contains(body, "Allow once") || !strings.Contains(body, "<script>alert(1)")) {
			t.Errorf("%s is %d:\n%s", method, status, body)
		}
	}
	for _, method := range []string{"PUT", "DELETE", "OPTIONS"} {
		if status, _ := fetch(t, method, button.URL); status != http.StatusMethodNotAllowed {
			t.Errorf("%s is %d", method, status)
		}
	}
	if len(d.Pending()) != 1 {
		t.Fatal("looking at it has answered it")
	}
	if status, _ := fetch(t, "POST", button.URL); status != 200 {
		t.Errorf("the button is answered %d", status)
	}
	got := <-done
	if _, granted := got.Granted(); !granted || got.Answer.By != anna || got.Answer.Channel != approval.LinkChannel {
		t.Errorf("got %+v, %v", got.Request, got.err)
	}
	// Again it does nothing, nor does the other button.
	if status, body := fetch(t, "POST", button.URL); status != 200 || !strings.Contains(body, "allowed by anna") || strings.Contains(body, "<button") {
		t.Errorf("used again: %d:\n%s", status, body)
	}
	if status, body := fetch(t, "POST", msg.Actions[1].URL); status != 409 || !strings.Contains(body, "anna said allow") {
		t.Errorf("the other button: %d:\n%s", status, body)
	}
}

// other returns a character that is not c.
func other(c byte) string {
	if c == 'A' {
		return "B"
	}
	return "A"
}

func TestALinkIsForOneRequestOnly(t *testing.T) {
	d, rcv, door := phone(t)
	d.mustOpen(run("rm x"))
	first := rcv.pushed(t)
	d.mustOpen(run("rm y"))
	rcv.pushed(t)
	fetch(t, "POST", first.Actions[1].URL)
	if p := d.Pending(); len(p) != 1 || p[0].Question.Resource != "rm y" {
		t.Errorf("%v are pending", p)
	}
	token := first.Actions[0].URL[strings.LastIndex(first.Actions[0].URL, "/")+1:]
	for _, bad := range []string{"", "x", token[1:], token + "A", other(token[0]) + token[1:], strings.ToLower(token), token + "=", "../" + token, "%00", strings.Repeat("A", 43), strings.Repeat("A", 5000)} {
		if status, body := fetch(t, "POST", door.URL+"/answers/"+bad); status != 404 && status != 405 || strings.Contains(body, "rm ") {
			t.Errorf("token %.50q is %d: %s", bad, status, body)
		}
	}
	if len(d.Pending()) != 1 {
		t.Error("one of them answered something")
	}
}

func TestALinkEndsWithItsRequest(t *testing.T) {
	d, rcv, _ := phone(t)
	r := run("rm x")
	r.Expires = time.Now().Add(5 * time.Second)
	d.mustOpen(r)
	msg := rcv.pushed(t)
	if status, _ := fetch(t, "GET", msg.Actions[0].URL); status != 200 {
		t.Errorf("before: %d", status)
	}
	time.Sleep(time.Until(r.Expires))
	if status, _ := fetch(t, "POST", msg.Actions[0].URL); status != 404 {
		t.Errorf("after: %d", status)
	}
}

func TestALinkSurvivesARestart(t *testing.T) {
	d, rcv, _ := phone(t)
	r := d.mustOpen(run("rm x"))
	msg := rcv.pushed(t)
	d.restart()
	if status, _ := fetch(t, "POST", msg.Actions[0].URL); status != 200 {
		t.Errorf("after a restart: %d", status)
	}
	if got, err := d.Wait(t.Context(), r.ID); err != nil || got.State != approval.Answered {
		t.Errorf("it is %+v, %v", got, err)
	}
}

func TestALinkAloneDoesNotAllowWhatIsElevated(t *testing.T) {
	d, rcv, _ := phone(t)
	r := d.mustOpen(elevated("deploy"))
	msg := rcv.pushed(t)
	if len(msg.Actions) != 1 || msg.Actions[0].Label != "Deny" || msg.Priority != 5 || !strings.Contains(msg.Message, r.Phrase) {
		t.Errorf("pushed %+v", msg)
	}
	_, err := d.NewLink(t.Context(), r.ID, approval.Allow, anna)
	wantKind(t, err, fault.Denied)
	a := allow(anna)
	a.Channel, a.Typed = approval.LinkChannel, r.Phrase
	_, err = d.Answer(t.Context(), r.ID, a)
	wantKind(t, err, fault.Denied)
	if status, _ := fetch(t, "POST", msg.Actions[0].URL); status != 200 {
		t.Errorf("the button to deny is answered %d", status)
	}
	if got, err := d.Get(t.Context(), r.ID); err != nil || got.Answer == nil || got.Answer.Verdict != approval.Deny {
		t.Errorf("it is %+v, %v", got, err)
	}
}

func TestWhatAPhoneCannotShowItCannotAllow(t *testing.T) {
	d, rcv, _ := phone(t)
	line := "echo " + strings.Repeat("harmless ", 600) + "; rm -rf / #end"
	d.mustOpen(run(line))
	msg := rcv.pushed(t)
	if len(msg.Actions) != 1 || msg.Actions[0].Label != "Deny" || !strings.Contains(msg.Message, "bytes are not shown") || !strings.Contains(msg.Message, "rm -rf / #end") {
		t.Errorf("pushed %+v", msg)
	}
	if status, body := fetch(t, "GET", msg.Click); status != 200 || strings.Count(body, "harmless") != 600 {
		t.Errorf("the page is %d and shows %d of it", status, strings.Count(body, "harmless"))
	}
}

func TestAPhoneIsNotToldOfWhatIsOver(t *testing.T) {
	var up bool
	rcv := newReceiver(t, func(int) int {
		if up {
			return 200
		}
		return 500
	})
	d := newDesk(t, approval.Config{Pushes: []approval.Push{{Name: "phone", URL: rcv.URL, Who: anna}}, Retry: approval.Retry{First: time.Hour}})
	r := d.mustOpen(run("rm x"))
	if msg := rcv.next(t); strings.Contains(string(msg.body), "actions") {
		t.Errorf("there are links without an address: %s", msg.body)
	}
	d.mustAnswer(r, allow(anna))
	rcv.mu.Lock()
	up = true
	rcv.mu.Unlock()
	d.Close()
	d.cfg.Retry = soon
	d.open()
	d.mustOpen(run("rm y"))
	if msg := rcv.next(t); !strings.Contains(string(msg.body), "rm y") {
		t.Errorf("told %s", msg.body)
	}
}

func TestChannelsHaveNamesAndPeople(t *testing.T) {
	for _, cfg := range []approval.Config{
		{Webhooks: []approval.Webhook{{URL: "http://x"}}},
		{Webhooks: []approval.Webhook{{Name: "a"}, {Name: "a"}}},
		{Pushes: []approval.Push{{Name: "a", Who: approval.Person{ID: "x", Role: "agent"}}}, Links: "http://x"},
	} {
		if q, err := approval.New(t.Context(), nothing{}, cfg); err == nil {
			q.Close()
			t.Errorf("%+v is accepted", cfg)
		}
	}
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not come about")
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
				t.Fatalf("%s of token %q is %d", method, token, w.Code)
			}
		}
		if len(q.Pending()) != 1 {
			t.Fatalf("token %q answers", token)
		}
	})
}
