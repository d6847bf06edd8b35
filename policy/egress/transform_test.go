package egress_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"glasshouse/policy/egress"
	"glasshouse/policy/egress/egresstest"
)

// An owner holds the secrets of one owner, by name.
type owner struct {
	mu sync.Mutex
	// +checklocks:mu
	has map[string]string
	// +checklocks:mu
	asked []string
}

func (o *owner) give(_ context.Context, who, name, host string) ([]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked = append(o.asked, who+" "+name+" "+host)
	if value, ok := o.has[name]; ok && who == "t-1" {
		return []byte(value), nil
	}
	return nil, errors.New("none")
}

func (o *owner) set(name, value string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.has[name] = value
}

// filled returns a jail with a transform for requests to shop.example, and a function that
// returns the header that the server last received.
func filled(t *testing.T, o *owner, headers map[string][]egress.Part) (j *jail, get func(url string) (int, string), got func() http.Header) {
	t.Helper()
	w := needsWorld(t)
	w.SetAddrs("shop.example", egresstest.Internet)
	w.SetAddrs("other.example", egresstest.Internet)
	var mu sync.Mutex
	var last http.Header
	w.HTTP(shop, &tls.Config{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		last = r.Header.Clone()
		w.Header().Set("X-Echo", r.Header.Get("X-Key"))
		fmt.Fprintf(w, "you say %q", r.Header["X-Key"])
	}))
	ca, pool := newCA(t)
	j = newJail(t, w, egress.Config{CA: ca, OwnerSecret: o.give, Rules: egress.Rules{
		Allow:     []egress.Rule{{Host: "*", Ports: []uint16{4430}, Intercept: true}},
		Transform: []egress.Transform{{Host: "shop.example", Headers: map[string]string{"X-Plain": "p"}, SecretHeaders: headers, Owner: "t-1"}},
	}})
	client := j.client(shop, pool, false)
	get = func(url string) (int, string) {
		t.Helper()
		req, err := http.NewRequest("GET", url, nil)
		j.must(err)
		req.Header["X-Key"] = []string{"its own", "twice"}
		req.Header.Set("Connection", "X-Key")
		req.Header.Set("Accept-Encoding", "br")
		resp, err := client.Do(req)
		j.must(err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		j.must(err)
		return resp.StatusCode, resp.Header.Get("X-Echo") + "|" + string(b)
	}
	return j, get, func() http.Header {
		mu.Lock()
		defer mu.Unlock()
		h := last
		last = nil
		return h
	}
}

func TestTransformUsesSecretsOfOwner(t *testing.T) {
	o := &owner{has: map[string]string{"user": "me", "pass": canary + "\n"}}
	j, get, got := filled(t, o, map[string][]egress.Part{
		"x-key":   {{Text: "Basic "}, {Secret: "user"}, {Text: ":"}, {Secret: "pass"}, {Text: "!"}},
		"X-Again": {{Secret: "pass"}},
	})
	status, said := get(shopURL + "/a")
	h := got()
	if want := "Basic me:" + canary + "!"; status != 200 || len(h["X-Key"]) != 1 || h.Get("X-Key") != want || h.Get("X-Again") != canary || h.Get("X-Plain") != "p" || h.Get("Accept-Encoding") != "identity" {
		t.Errorf("%d, server got %q", status, h)
	}
	// Secrets in the response are masked, except ones too short to distinguish from other
	// text.
	if masked := strings.Repeat("*", len(canary)); !strings.HasPrefix(said, "Basic me:"+masked+"!|") || strings.Contains(said, "canary") {
		t.Errorf("client got %q", said)
	}
	if asked := strings.Join(o.asked, ", "); asked != "t-1 pass shop.example, t-1 user shop.example" {
		t.Errorf("got lookups %q, want each secret once", asked)
	}
	r := j.recorded("the request", func(r egress.Record) bool { return r.Allowed && r.Status == 200 })
	if fmt.Sprint(r.Secrets) != "[pass user]" || strings.Contains(fmt.Sprint(j.all()), "canary") {
		t.Errorf("got record %+v", r)
	}
	// Requests to another host are not changed.
	if status, said := get(strings.Replace(shopURL, "shop", "other", 1)); status != 200 || said != `|you say []` || len(o.asked) != 2 {
		t.Errorf("to another host: %d %q, %q", status, said, got())
	}
	got()
	// The next request has the current value of the secret.
	o.set("pass", "sk-second")
	get(shopURL)
	if key := got().Get("X-Key"); key != "Basic me:sk-second!" {
		t.Errorf("after the secret changed, server got %q", key)
	}
}

func TestRequestWithUnavailableSecretIsNotSent(t *testing.T) {
	o := &owner{has: map[string]string{}}
	j, get, got := filled(t, o, map[string][]egress.Part{"X-Key": {{Text: "Bearer "}, {Secret: "confidential"}}})
	refused := func(what, why string) {
		t.Helper()
		status, said := get(shopURL)
		if status != 502 || !strings.Contains(said, why) || strings.Contains(said, "confidential") {
			t.Errorf("%s: %d %q", what, status, said)
		}
		if h := got(); h != nil {
			t.Errorf("%s: server got %q", what, h)
		}
	}
	refused("none there", "is not available")
	for what, value := range map[string]string{"empty": "", "line breaks alone": "\r\n", "two lines": "a\r\nX-Evil: confidential", "a zero": "a\x00b", "too long": strings.Repeat("x", 64<<10+1)} {
		o.set("confidential", value)
		why := "is not a valid header value"
		if what == "too long" {
			why = "longer than"
		}
		refused(what, why)
	}
	j.recorded("a refusal", func(r egress.Record) bool { return r.Reason == egress.ReasonSecret })
	if strings.Contains(fmt.Sprint(j.all()), "X-Evil") {
		t.Errorf("got records %+v", j.all())
	}
	o.set("confidential", "sk")
	if status, _ := get(shopURL); status != 200 || got().Get("X-Key") != "Bearer sk" {
		t.Errorf("after the secret was set: %d", status)
	}
}

func TestHeadersWithSecretsAreLimited(t *testing.T) {
	o := &owner{has: map[string]string{"s": strings.Repeat("x", 8<<10)}}
	var many []egress.Part
	for range 1000 {
		many = append(many, egress.Part{Secret: "s"})
	}
	_, get, got := filled(t, o, map[string][]egress.Part{"X-Key": many})
	if status, said := get(shopURL); status != 502 || !strings.Contains(said, "longer than 65536 bytes") || got() != nil {
		t.Errorf("%d %q", status, said)
	}
}

func TestInvalidTransforms(t *testing.T) {
	ca, _ := newCA(t)
	p, err := egress.New(egress.Config{CA: ca, OwnerSecret: (&owner{}).give})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(t.Context())
	secret := []egress.Part{{Secret: "s"}}
	for what, tr := range map[string]egress.Transform{
		"nobody's":      {Host: "a.example", SecretHeaders: map[string][]egress.Part{"X": secret}},
		"a frame":       {Host: "a.example", Owner: "t-1", SecretHeaders: map[string][]egress.Part{"content-length": secret}},
		"no name":       {Host: "a.example", Owner: "t-1", SecretHeaders: map[string][]egress.Part{"X Y": secret}},
		"lines":         {Host: "a.example", Owner: "t-1", SecretHeaders: map[string][]egress.Part{"X": {{Text: "a\r\nb"}}}},
		"all hosts":     {Host: "*", Owner: "t-1", SecretHeaders: map[string][]egress.Part{"X": secret}},
		"any addresses": {Host: "0.0.0.0/0", Owner: "t-1", SecretHeaders: map[string][]egress.Part{"X": secret}},
	} {
		if err := p.SetRules(egress.Rules{Transform: []egress.Transform{tr}}); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	if _, err := egress.New(egress.Config{CA: ca, Rules: egress.Rules{Transform: []egress.Transform{{Host: "a.example", Owner: "t-1", SecretHeaders: map[string][]egress.Part{"X": secret}}}}}); err == nil {
		t.Error("New accepted a transform with secrets without Config.Owned")
	}
}
