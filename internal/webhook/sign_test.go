package webhook_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/internal/webhook"
)

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

var now = time.Unix(1614265330, 0)

func signed(t *testing.T, secret, id string, at time.Time, body string) http.Header {
	t.Helper()
	h, err := webhook.Headers([]byte(secret), id, at, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// The examples are published by GitHub and Standard Webhooks.
func TestVerifyPublishedExamples(t *testing.T) {
	h := http.Header{"X-Hub-Signature-256": {"sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}}
	if _, err := webhook.GitHub.Verify([]byte("It's a Secret to Everybody"), h, []byte("Hello, World!"), now); err != nil {
		t.Errorf("example of GitHub: %v", err)
	}
	h = http.Header{}
	h.Set("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek")
	h.Set("webhook-timestamp", "1614265330")
	h.Set("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")
	const body = `{"test": 2432232314}`
	if id, err := webhook.Standard.Verify([]byte(secret), h, []byte(body), now); id != "msg_p5jXN8AQM9LWM0D4loKWxJek" || err != nil {
		t.Errorf("example of Standard Webhooks: %q, %v", id, err)
	}
	if have := signed(t, secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", now, body).Get("webhook-signature"); have != h.Get("webhook-signature") {
		t.Errorf("signature is %s, want %s", have, h.Get("webhook-signature"))
	}
}

func TestVerifyRejectsChanges(t *testing.T) {
	const body = `{"test": 2432232314}`
	good := signed(t, secret, "msg_1", now, body)
	if id, err := webhook.Standard.Verify([]byte(secret), good, []byte(body), now.Add(webhook.Window)); id != "msg_1" || err != nil {
		t.Errorf("Verify = %q, %v", id, err)
	}
	with := func(name, value string) http.Header {
		h := good.Clone()
		h.Set(name, value)
		return h
	}
	sig := good.Get("Webhook-Signature")
	for name, c := range map[string]struct {
		h    http.Header
		body string
		key  string
		now  time.Time
	}{
		"another body":                {good, body + " ", secret, now},
		"another key":                 {good, body, "whsec_AAAA", now},
		"another id":                  {with("Webhook-Id", "msg_2"), body, secret, now},
		"another time":                {with("Webhook-Timestamp", "1614265331"), body, secret, now},
		"the same time otherwise":     {with("Webhook-Timestamp", "01614265330"), body, secret, now},
		"no time":                     {with("Webhook-Timestamp", ""), body, secret, now},
		"too old":                     {good, body, secret, now.Add(webhook.Window + time.Second)},
		"too new":                     {good, body, secret, now.Add(-webhook.Window - time.Second)},
		"no signature":                {with("Webhook-Signature", ""), body, secret, now},
		"half a signature":            {with("Webhook-Signature", sig[:20]), body, secret, now},
		"another version":             {with("Webhook-Signature", "v2"+sig[2:]), body, secret, now},
		"hidden behind many":          {with("Webhook-Signature", strings.Repeat("v1,AAAA ", 8)+sig), body, secret, now},
		"no id":                       {with("Webhook-Id", ""), body, secret, now},
		"a long id":                   {with("Webhook-Id", strings.Repeat("a", 257)), body, secret, now},
		"id and time moved":           {http.Header{"Webhook-Id": {"msg_1.1614265330"}, "Webhook-Timestamp": {""}, "Webhook-Signature": {sig}}, body, secret, now},
		"GitHub's, where not allowed": {http.Header{"X-Hub-Signature-256": {"sha256=" + strings.Repeat("0", 64)}}, body, secret, now},
	} {
		if _, err := webhook.Standard.Verify([]byte(c.key), c.h, []byte(c.body), c.now); !errors.Is(err, fault.Unauthenticated) {
			t.Errorf("%s: %v, want unauthenticated", name, err)
		}
	}
	// During a key rotation senders sign with both keys.
	if _, err := webhook.Standard.Verify([]byte(secret), with("Webhook-Signature", "v1,AAAA v1a,BBBB "+sig), []byte(body), now); err != nil {
		t.Errorf("one of several: %v", err)
	}
}

func TestGitHubIDDependsOnBody(t *testing.T) {
	h := http.Header{"X-Hub-Signature-256": {"sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}, "X-Github-Delivery": {"one"}}
	key := []byte("It's a Secret to Everybody")
	first, err := webhook.GitHub.Verify(key, h, []byte("Hello, World!"), now)
	if err != nil {
		t.Fatal(err)
	}
	h.Set("X-GitHub-Delivery", "two")
	if again, err := webhook.GitHub.Verify(key, h, []byte("Hello, World!"), now.Add(time.Hour)); again != first || err != nil {
		t.Errorf("id with another delivery header = %q, %v; want %q", again, err, first)
	}
	for _, sig := range []string{"", "sha256=", "sha1=" + h.Get("X-Hub-Signature-256")[7:], h.Get("X-Hub-Signature-256")[7:], "sha256=zz", h.Get("X-Hub-Signature-256") + "00"} {
		if _, err := webhook.GitHub.Verify(key, http.Header{"X-Hub-Signature-256": {sig}}, []byte("Hello, World!"), now); !errors.Is(err, fault.Unauthenticated) {
			t.Errorf("signature %q: %v, want unauthenticated", sig, err)
		}
	}
}

func TestInvalidKeys(t *testing.T) {
	for _, key := range []string{"", "whsec_", "whsec_***"} {
		if _, err := webhook.Headers([]byte(key), "m", now, nil); err == nil {
			t.Errorf("Headers accepts the key %q", key)
		}
		if _, err := webhook.Standard.Verify([]byte(key), http.Header{}, nil, now); err == nil || errors.Is(err, fault.Unauthenticated) {
			t.Errorf("with %q: %v, want an error of the receiver's configuration", key, err)
		}
	}
}

// Without the key, every message is refused as unauthenticated, and none causes a panic.
func FuzzVerify(f *testing.F) {
	f.Add("m", "1614265330", "v1,AAAA v1,", "sha256=00", []byte("{}"))
	f.Add("", "-1", "v1,====", "sha256=", []byte(nil))
	f.Add("a.b", "9223372036854775807", " , , ", "sha256=\x00", []byte("."))
	f.Fuzz(func(t *testing.T, id, stamp, sig, hub string, body []byte) {
		h := http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {stamp}, "Webhook-Signature": {sig}, "X-Hub-Signature-256": {hub}}
		for _, s := range []webhook.Scheme{webhook.Standard, webhook.GitHub} {
			if id, err := s.Verify([]byte("an unknown key"), h, body, now); !errors.Is(err, fault.Unauthenticated) || id != "" {
				t.Errorf("%s: Verify = %q, %v", s, id, err)
			}
		}
	})
}
