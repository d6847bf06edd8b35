package egress_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"glasshouse/policy/egress"
	"glasshouse/policy/egress/egresstest"
)

// everywhere allows all Internet addresses.
var everywhere = []egress.Rule{{Host: "*", Internet: true}, {Host: "0.0.0.0/0", Internet: true}, {Host: "::/0", Internet: true}}

// answered returns the response to a request for a host that is sent to an address.
func (j *jail) answered(address, host string) string {
	j.t.Helper()
	client := j.client(address, j.world.Roots, false)
	resp, err := client.Get("http://" + host + "/")
	if err != nil {
		return "error: " + err.Error()
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return fmt.Sprintf("%d %s", resp.StatusCode, b)
}

func TestInternetRuleAllowsOnlyInternetAddresses(t *testing.T) {
	w := needsWorld(t)
	j := newJail(t, w, allow(everywhere...), egress.Hurry(100*time.Millisecond, time.Second, time.Second, time.Second))
	for _, c := range []struct{ address, host string }{
		{apiHTTP, "api.example.com"}, {apiHTTP, egresstest.API}, {egresstest.Evil + ":80", "evil.example"},
		{egresstest.API + ":8443", "api.example.com:8443"}, {egresstest.Evil + ":8443", egresstest.Evil + ":8443"},
	} {
		if got := j.answered(c.address, c.host); !strings.HasPrefix(got, "200 ") {
			t.Errorf("%s at %s = %q, want a response", c.host, c.address, got)
		}
	}
	j.lookup("api.example.com", dnsmessage.TypeA) // servers that send first are reached by name
	for _, address := range []string{egresstest.API + ":2222", egresstest.Evil + ":2222"} {
		if got := j.talk(address).line(); got == "" {
			t.Errorf("no data from %s", address)
		}
	}
	for _, c := range []struct{ address, host string }{
		{egresstest.Private + ":80", egresstest.Private}, {egresstest.Metadata + ":80", egresstest.Metadata},
		{egresstest.Host + ":80", egresstest.Host}, {apiHTTP, "lan.rebind.example"}, {apiHTTP, "meta.rebind.example"},
		{apiHTTP, "host.rebind.example"}, {apiHTTP, "lo.rebind.example"}, {egresstest.Private + ":8443", "lan.rebind.example:8443"},
		{egresstest.Private + ":80", "127.0.0.1"},
	} {
		if got := j.answered(c.address, c.host); strings.Contains(got, egresstest.Reached) || strings.HasPrefix(got, "200") {
			t.Errorf("%s at %s was reached: %q", c.host, c.address, got)
		}
	}
	// The addresses of the host's network are not disclosed either.
	for _, rules := range [][]egress.Rule{everywhere, {{Host: egresstest.Private + "/32", Deny: true}, {Host: "*", Internet: true}}} {
		j.must(j.proxy.SetRules(egress.Rules{Allow: rules}))
		if addrs, code := j.lookup("lan.rebind.example", dnsmessage.TypeA); code != dnsmessage.RCodeSuccess || len(addrs) > 0 {
			t.Errorf("with %v the name of a private address resolves to %v, %v, want an empty answer", rules, addrs, code)
		}
	}
}

func TestDeniedAddressIsRefusedForEveryName(t *testing.T) {
	w := needsWorld(t)
	deny := egress.Rule{Name: "no API", Host: egresstest.API + "/32", Deny: true}
	j := newJail(t, w, allow(append([]egress.Rule{deny}, everywhere...)...))
	for _, host := range []string{"api.example.com", egresstest.API, "a.wild.example.com", "api.example.com:8443"} {
		address := apiHTTP
		if strings.HasSuffix(host, ":8443") {
			address = egresstest.API + ":8443"
		}
		if got := j.answered(address, host); !strings.HasPrefix(got, "403 ") {
			t.Errorf("%s = %q, want it to be refused", host, got)
		}
		if r := j.refusal(egress.ReasonAddress); r.Rule != "no API" {
			t.Errorf("got refusal %+v", r)
		}
		j.forget()
	}
	if got := j.answered(egresstest.Evil+":80", "evil.example"); !strings.HasPrefix(got, "200 ") {
		t.Errorf("address that is not denied: got %q", got)
	}
	// An earlier rule that allows the name or the address takes precedence.
	for _, before := range []string{"api.example.com", egresstest.API} {
		j.must(j.proxy.SetRules(egress.Rules{Allow: append([]egress.Rule{{Host: before, Internet: true}, {Host: "0.0.0.0/0", Deny: true}}, everywhere...)}))
		if got := j.answered(apiHTTP, "api.example.com"); !strings.HasPrefix(got, "200 ") {
			t.Errorf("with an earlier rule for %s: got %q", before, got)
		}
		if got := j.answered(egresstest.Evil+":80", "evil.example"); !strings.HasPrefix(got, "403 ") {
			t.Errorf("with %s allowed, another host = %q, want it to be refused", before, got)
		}
	}
	// Another name of the same address is not allowed.
	j.must(j.proxy.SetRules(egress.Rules{Allow: append([]egress.Rule{{Host: "api.example.com", Internet: true}, {Host: "0.0.0.0/0", Deny: true}}, everywhere...)}))
	if got := j.answered(apiHTTP, "a.wild.example.com"); !strings.HasPrefix(got, "403 ") {
		t.Errorf("another name: got %q, want a refusal", got)
	}
}

func TestDenyAbortsConnection(t *testing.T) {
	w := needsWorld(t)
	j := newJail(t, w, allow(everywhere...), egress.Hurry(100*time.Millisecond, time.Second, time.Second, time.Second))
	j.lookup("api.example.com", dnsmessage.TypeA)
	c := j.talk(egresstest.API + ":2222")
	if c.line() == "" {
		t.Fatal("no data before the rule change")
	}
	j.must(j.proxy.SetRules(egress.Rules{Allow: append([]egress.Rule{{Host: egresstest.API, Deny: true}}, everywhere...)}))
	if _, err := c.r.ReadByte(); err == nil {
		t.Error("connection is still open after the deny rule")
	}
	j.refusal(egress.ReasonRules)
}

func TestTransformSetsHeadersOverTLS(t *testing.T) {
	w := needsWorld(t)
	w.SetAddrs("shop.example", egresstest.Internet)
	w.SetAddrs("a.b.example", egresstest.Internet)
	seen := func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(rw, "%q %q", r.Header["X-Key"], r.Header.Get("X-Other"))
	}
	w.HTTP(egresstest.Internet+":4430", &tls.Config{}, http.HandlerFunc(seen))
	w.HTTP(egresstest.Internet+":8080", nil, http.HandlerFunc(seen))
	ca, pool := newCA(t)
	conf := egress.Config{CA: ca, Rules: egress.Rules{Allow: everywhere, Transform: []egress.Transform{
		{Host: "*.example", Headers: map[string]string{"X-Key": "wide"}},
		{Host: "*.b.example", Headers: map[string]string{"X-Key": "longer"}},
		{Host: "shop.example", Headers: map[string]string{"x-key": "exact"}},
	}}}
	j := newJail(t, w, conf)
	get := func(address, url string) string {
		t.Helper()
		r, err := http.NewRequest("GET", url, nil)
		j.must(err)
		r.Header.Set("X-Key", "the client's own")
		r.Header.Set("X-Other", "kept")
		resp, err := j.client(address, pool, false).Do(r)
		j.must(err)
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return string(b)
	}
	for url, want := range map[string]string{
		"https://shop.example:4430/": `["exact"] "kept"`,
		"https://a.b.example:4430/":  `["longer"] "kept"`,
		"http://shop.example:8080/":  `["the client's own"] "kept"`,
	} {
		address := egresstest.Internet + ":4430"
		if strings.HasPrefix(url, "http:") {
			address = egresstest.Internet + ":8080"
		}
		if got := get(address, url); got != want {
			t.Errorf("%s: the server saw %s, want %s", url, got, want)
		}
	}
	// A transform alone allows nothing.
	j.must(j.proxy.SetRules(egress.Rules{Transform: conf.Rules.Transform}))
	c := j.talk(egresstest.Internet + ":4430")
	c.say(string(egresstest.Hello("shop.example")))
	if b, _ := io.ReadAll(c.r); !bytes.HasPrefix(b, []byte{21, 3, 3, 0, 2, 2}) {
		t.Errorf("got %q, want an alert", b)
	}
	j.refusal(egress.ReasonHost)
}

func TestInvalidDenyAndTransformRules(t *testing.T) {
	ca, _ := newCA(t)
	for what, r := range map[string]egress.Rules{
		"a name is denied":           {Allow: []egress.Rule{{Host: "a.example", Deny: true}}},
		"every name is denied":       {Allow: []egress.Rule{{Host: "*", Deny: true}}},
		"what is denied has a limit": {Allow: []egress.Rule{{Host: "8.8.8.8", Deny: true, Limit: egress.Limit{Bytes: 1}}}},
		"headers for an address":     {Transform: []egress.Transform{{Host: "8.8.8.8"}}},
		"headers for all":            {Transform: []egress.Transform{{Host: "*"}}},
		"a header that frames":       {Transform: []egress.Transform{{Host: "a.example", Headers: map[string]string{"host": "b.example"}}}},
		"a header that is two":       {Transform: []egress.Transform{{Host: "a.example", Headers: map[string]string{"X": "a\r\nY: b"}}}},
	} {
		if _, err := egress.New(egress.Config{CA: ca, Rules: r}); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	if _, err := egress.New(egress.Config{Rules: egress.Rules{Transform: []egress.Transform{{Host: "a.example"}}}}); err == nil {
		t.Error("transform without a CA: no error")
	}
}
