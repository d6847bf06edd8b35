package egress_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"glasshouse/policy/egress"
	"glasshouse/policy/egress/egresstest"
)

const (
	apiHTTP  = egresstest.API + ":80"
	apiHTTPS = egresstest.API + ":443"
)

func allow(rules ...egress.Rule) egress.Config {
	return egress.Config{Rules: egress.Rules{Allow: rules}}
}

// lookup asks the jail's DNS for the addresses of a host.
func (j *jail) lookup(host string, t dnsmessage.Type) ([]string, dnsmessage.RCode) {
	j.t.Helper()
	c, err := j.dial("udp4", "8.8.8.8:53") // the destination server does not matter
	j.must(err)
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	q := dnsmessage.Message{Header: dnsmessage.Header{ID: 5, RecursionDesired: true}, Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(host + "."), Type: t, Class: dnsmessage.ClassINET}}}
	b, err := q.Pack()
	j.must(err)
	_, err = c.Write(b)
	j.must(err)
	b = make([]byte, 4096)
	n, err := c.Read(b)
	j.must(err)
	var m dnsmessage.Message
	j.must(m.Unpack(b[:n]))
	if m.ID != 5 || !m.Response || len(m.Questions) != 1 || m.Questions[0].Name.String() != host+"." {
		j.t.Fatalf("the answer is for another question: %+v", m)
	}
	var addrs []string
	for _, a := range m.Answers {
		addrs = append(addrs, net.IP(a.Body.(*dnsmessage.AResource).A[:]).String())
	}
	return addrs, m.RCode
}

func TestTransparentClientReachesAllowedHosts(t *testing.T) {
	w := needsWorld(t)
	j := newJail(t, w, allow(egress.Rule{Name: "the API", Host: "api.example.com"}))

	addrs, code := j.lookup("API.Example.com", dnsmessage.TypeA)
	if code != dnsmessage.RCodeSuccess || len(addrs) != 1 || addrs[0] != egresstest.API {
		t.Fatalf("the jail's DNS returned %v, %v", addrs, code)
	}
	for _, url := range []string{"http://api.example.com/a?b=c", "https://api.example.com/a?b=c"} {
		for _, address := range []string{apiHTTP, apiHTTPS} {
			if strings.HasPrefix(url, "https") != strings.HasSuffix(address, ":443") {
				continue
			}
			resp, err := j.client(address, w.Roots, true).Get(url)
			if err != nil {
				t.Fatalf("%s: %v", url, err)
			}
			b, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if want := "welcome: api.example.com GET /a\n"; string(b) != want || err != nil || resp.StatusCode != 200 {
				t.Errorf("%s: %d, %q, %v, want %q", url, resp.StatusCode, b, err, want)
			}
			if resp.TLS != nil && resp.ProtoMajor != 2 {
				t.Errorf("%s by HTTP/%d: TLS without interception must negotiate HTTP/2 end to end", url, resp.ProtoMajor)
			}
		}
	}
	r := j.recorded("the request", func(r egress.Record) bool { return r.Kind == egress.KindRequest })
	if !r.Allowed || r.Host != "api.example.com" || r.Port != 80 || r.Method != "GET" || r.Path != "/a" || r.Status != 200 ||
		r.Rule != "the API" || r.Addr != apiHTTP || r.Sent == 0 || r.Received == 0 || r.Jail != "j-test" || r.Reason != "" {
		t.Errorf("got record %+v", r)
	}
}

func TestProxyDialsAddressFromHostResolver(t *testing.T) {
	w := needsWorld(t)
	j := newJail(t, w, allow(egress.Rule{Host: "api.example.com"}))
	// The client connects to the address of another server.
	resp, err := j.client(egresstest.Evil+":80", nil, false).Get("http://api.example.com/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, _ := io.ReadAll(resp.Body); !strings.HasPrefix(string(b), "welcome: api.example.com") {
		t.Errorf("got response %q", b)
	}
	if r := j.recorded("the request", func(r egress.Record) bool { return r.Allowed }); r.Addr != apiHTTP {
		t.Errorf("proxy dialed %s", r.Addr)
	}
}

func TestServersThatSendFirst(t *testing.T) {
	w := needsWorld(t)
	j := newJail(t, w, allow(egress.Rule{Host: "api.example.com", Ports: []uint16{2222, 7000}}), egress.Hurry(100*time.Millisecond, 200*time.Millisecond, time.Second, time.Second))

	c := j.talk(egresstest.API + ":2222")
	if _, err := c.r.ReadByte(); err == nil {
		t.Error("received data from a server whose name was not resolved")
	}
	j.refusal(egress.ReasonName)
	j.lookup("api.example.com", dnsmessage.TypeA)
	c = j.talk(egresstest.API + ":2222")
	if got := c.line(); got != "SSH-2.0-welcome\r\n" {
		t.Errorf("server sent %q", got)
	}
	c.say("after you\n")
	if got := c.line(); got != "after you\n" {
		t.Errorf("server sent %q", got)
	}
	// A client that sends first, in an unknown protocol.
	c = j.talk(egresstest.API + ":7000")
	c.say("\x00\x01 no, after you\n")
	if got := c.line(); got != "\x00\x01 no, after you\n" {
		t.Errorf("echo server sent %q", got)
	}
	c.Conn.(*net.TCPConn).CloseWrite()
	if b, err := io.ReadAll(c.r); len(b) > 0 || err != nil {
		t.Errorf("after CloseWrite of the client: got %q, %v, want EOF of the server", b, err)
	}
	r := j.recorded("the echo", func(r egress.Record) bool { return r.Allowed && r.Port == 7000 })
	if r.Kind != egress.KindConnect || r.Sent != 17 || r.Received != 17 || r.Host != "api.example.com" {
		t.Errorf("got record %+v", r)
	}
}

func TestExplicitProxyClient(t *testing.T) {
	w := needsWorld(t)
	j := newJail(t, w, allow(egress.Rule{Host: "api.example.com", Ports: []uint16{80, 443, 2222}}))
	c := j.talk(egresstest.Proxy)
	for range 2 { // on one connection
		c.say("GET http://api.example.com/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
		resp := c.response()
		b, _ := io.ReadAll(resp.Body)
		if string(b) != "welcome: api.example.com GET /x\n" {
			t.Errorf("through the proxy: got %d %q", resp.StatusCode, b)
		}
	}
	c = j.talk(egresstest.Proxy)
	c.say("CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n")
	if resp := c.response(); resp.StatusCode != 200 {
		t.Fatalf("CONNECT: %s", resp.Status)
	}
	s := tls.Client(c.Conn, &tls.Config{ServerName: "api.example.com", RootCAs: w.Roots})
	if _, err := io.WriteString(s, "GET /y HTTP/1.0\r\nHost: api.example.com\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(s); !bytes.Contains(b, []byte("welcome: api.example.com GET /y")) {
		t.Errorf("through CONNECT: got %q", b)
	}
	c = j.talk(egresstest.Proxy)
	c.say("CONNECT api.example.com:2222 HTTP/1.1\r\nHost: api.example.com:2222\r\n\r\n")
	c.response()
	if got := c.line(); got != "SSH-2.0-welcome\r\n" {
		t.Errorf("server that sends first, through CONNECT: got %q", got)
	}
}

func TestRefusalContainsRuleAndRemedy(t *testing.T) {
	w := needsWorld(t)
	j := newJail(t, w, allow(egress.Rule{Name: "only reading", Host: "api.example.com", Ports: []uint16{80}, Methods: []string{"GET"}}))
	post := func(accept string) (*http.Response, string) {
		req, err := http.NewRequest("POST", "http://api.example.com/", strings.NewReader(strings.Repeat("x", 1<<20)))
		j.must(err)
		req.Header.Set("Accept", accept)
		resp, err := j.client(apiHTTP, nil, false).Do(req)
		j.must(err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		j.must(err)
		return resp, string(b)
	}
	resp, body := post("*/*")
	if resp.StatusCode != 403 || resp.Header.Get("Glasshouse-Refused") != "method" || !strings.Contains(body, "rule: only reading") || !strings.Contains(body, "POST is not allowed at api.example.com") {
		t.Errorf("as text: %s %q", resp.Status, body)
	}
	resp, body = post("application/json")
	if resp.Header.Get("Content-Type") != "application/problem+json" || !strings.Contains(body, `"rule":"only reading"`) || !strings.Contains(body, `"reason":"method"`) {
		t.Errorf("as JSON: %s %q", resp.Status, body)
	}
	if r := j.refusal(egress.ReasonMethod); r.Rule != "only reading" || r.Method != "POST" || r.Host != "api.example.com" {
		t.Errorf("got record %+v", r)
	}
	if _, err := j.client(apiHTTPS, w.Roots, false).Get("https://elsewhere.example/"); err == nil || !strings.Contains(err.Error(), "access denied") {
		t.Errorf("TLS to a refused host: got %v, want an alert", err)
	}
	c := j.talk(egresstest.API + ":7000")
	c.say("\x00")
	if _, err := c.r.ReadByte(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("raw TCP to a refused host: got %v, want a reset", err)
	}
}

func TestDNSDoesNotResolveRefusedHosts(t *testing.T) {
	w := needsWorld(t)
	j := newJail(t, w, allow(egress.Rule{Host: "*.wild.example.com"}))
	for _, host := range []string{"evil.example", "wild.example.com", "api.example.com"} {
		if addrs, code := j.lookup(host, dnsmessage.TypeA); code != dnsmessage.RCodeNameError || len(addrs) > 0 {
			t.Errorf("%s: %v, %v", host, addrs, code)
		}
	}
	if got := w.Queries(); len(got) > 0 {
		t.Errorf("the host's resolver was queried for %v", got)
	}
	for _, typ := range []dnsmessage.Type{dnsmessage.TypeAAAA, 65, 64} {
		if addrs, code := j.lookup("a.wild.example.com", typ); code != dnsmessage.RCodeSuccess || len(addrs) > 0 {
			t.Errorf("%v query for an allowed host: got %v, %v, want an empty answer", typ, addrs, code)
		}
	}
	if addrs, code := j.lookup("a.wild.example.com", dnsmessage.TypeA); code != dnsmessage.RCodeSuccess || len(addrs) != 1 {
		t.Errorf("allowed host: got %v, %v", addrs, code)
	}
	if addrs, code := j.lookup("b.wild.example.com", dnsmessage.TypeA); code != dnsmessage.RCodeNameError || len(addrs) > 0 {
		t.Errorf("allowed name that does not exist: got %v, %v", addrs, code)
	}
	j.refusal(egress.ReasonHost)
	// Over TCP, two queries on one connection.
	c := j.talk("1.1.1.1:53")
	for range 2 {
		q := dnsmessage.Message{Header: dnsmessage.Header{ID: 9}, Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName("a.wild.example.com."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
		b, err := q.Pack()
		j.must(err)
		c.say(string(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)))
		var size [2]byte
		_, err = io.ReadFull(c.r, size[:])
		j.must(err)
		b = make([]byte, binary.BigEndian.Uint16(size[:]))
		_, err = io.ReadFull(c.r, b)
		j.must(err)
		var m dnsmessage.Message
		if err := m.Unpack(b); err != nil || m.ID != 9 || len(m.Answers) != 1 || m.Answers[0].Header.TTL > 60 {
			t.Errorf("over TCP: got %+v, %v", m, err)
		}
	}
}

func TestSetRulesAbortsRefusedConnections(t *testing.T) {
	w := needsWorld(t)
	both := []egress.Rule{{Name: "raw", Host: "api.example.com", Ports: []uint16{7000}}, {Name: "web", Host: "front.example.com", Ports: []uint16{443}}}
	j := newJail(t, w, allow(both...))
	j.lookup("api.example.com", dnsmessage.TypeA)
	raw := j.talk(egresstest.API + ":7000")
	raw.say("\x00hello\n")
	raw.line()
	c, err := j.dial("tcp", egresstest.Front+":443")
	j.must(err)
	defer c.Close()
	web := tls.Client(c, &tls.Config{ServerName: "front.example.com", RootCAs: w.Roots})
	j.must(web.Handshake())

	j.must(j.proxy.SetRules(egress.Rules{Allow: both[1:]}))
	if _, err := raw.r.ReadByte(); err == nil {
		t.Error("connection that is no longer allowed is still open")
	}
	if r := j.refusal(egress.ReasonRules); r.Host != "api.example.com" || r.Sent != 7 {
		t.Errorf("got record %+v", r)
	}
	if _, err := io.WriteString(web, "GET / HTTP/1.0\r\nHost: front.example.com\r\n\r\n"); err != nil {
		t.Errorf("connection that is still allowed: write: %v", err)
	}
	if b, _ := io.ReadAll(web); !bytes.Contains(b, []byte("welcome")) {
		t.Errorf("connection that is still allowed: got %q", b)
	}
	if addrs, code := j.lookup("api.example.com", dnsmessage.TypeA); code != dnsmessage.RCodeNameError {
		t.Errorf("removed name still resolves: %v, %v", addrs, code)
	}
}

func TestSetRulesAbortsTunnelThatIsNowIntercepted(t *testing.T) {
	for name, next := range map[string]egress.Rule{
		"intercept": {Intercept: true}, "methods": {Methods: []string{"GET"}}, "paths": {Paths: []string{"/open/*"}},
		"inject": {Inject: []egress.Inject{{Secret: "KEY", As: egress.Bearer}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := needsWorld(t)
			ca, _ := newCA(t)
			rule := egress.Rule{Host: "front.example.com", Ports: []uint16{443}}
			j := newJail(t, w, egress.Config{CA: ca, Secret: secrets, Rules: egress.Rules{Allow: []egress.Rule{rule}}})
			c, err := j.dial("tcp", egresstest.Front+":443")
			j.must(err)
			defer c.Close()
			c.SetDeadline(time.Now().Add(20 * time.Second))
			web := tls.Client(c, &tls.Config{ServerName: "front.example.com", RootCAs: w.Roots})
			j.must(web.Handshake())

			next.Host, next.Ports = rule.Host, rule.Ports
			j.must(j.proxy.SetRules(egress.Rules{Allow: []egress.Rule{next}}))
			io.WriteString(web, "GET /closed HTTP/1.0\r\nHost: front.example.com\r\n\r\n")
			if b, _ := io.ReadAll(web); len(b) > 0 {
				t.Errorf("a request in the tunnel was answered: %q", b)
			}
			j.refusal(egress.ReasonRules)
		})
	}
}

// If configured, the record of a request contains its query. This does not change which requests
// are allowed.
func TestPathRulesIgnoreQuery(t *testing.T) {
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprint("recorded ", keep), func(t *testing.T) {
			w := needsWorld(t)
			w.SetAddrs("shop.example", egresstest.Internet)
			plain := egresstest.Internet + ":8080"
			w.HTTP(plain, nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL) }))
			conf := allow(egress.Rule{Host: "shop.example", Ports: []uint16{8080}, Paths: []string{"/*/info"}})
			conf.CA, _ = newCA(t)
			conf.KeepQuery = keep
			j := newJail(t, w, conf)
			for target, want := range map[string]int{"/admin?x=/info": 403, "/a/info": 200, "/a/info?x=//;%2f": 200, "/a/b?/info": 403} {
				resp, err := j.client(plain, nil, false).Get("http://shop.example:8080" + target)
				j.must(err)
				resp.Body.Close()
				if resp.StatusCode != want {
					t.Errorf("%s: got status %d, want %d", target, resp.StatusCode, want)
				}
			}
		})
	}
}

// A person is an Authority whose verdicts the test provides.
type person struct {
	asked  chan egress.Request
	answer chan egress.Verdict
}

func (p *person) Evaluate(ctx context.Context, r egress.Request) (egress.Verdict, error) {
	if r.Kind == egress.KindName {
		return egress.Verdict{Allow: !strings.HasPrefix(r.Host, "never")}, nil
	}
	select {
	case p.asked <- r:
	case <-ctx.Done():
		return egress.Verdict{}, ctx.Err()
	}
	select {
	case v := <-p.answer:
		return v, nil
	case <-ctx.Done():
		p.asked <- egress.Request{Host: "gave up"}
		return egress.Verdict{}, ctx.Err()
	}
}

func TestAuthorityDecidesWhileClientWaits(t *testing.T) {
	w := needsWorld(t)
	someone := &person{make(chan egress.Request), make(chan egress.Verdict)}
	j := newJail(t, w, egress.Config{Authority: someone})

	if addrs, code := j.lookup("never.example.com", dnsmessage.TypeA); code != dnsmessage.RCodeNameError {
		t.Errorf("name that is denied immediately: got %v, %v", addrs, code)
	}
	// DNS returns a placeholder address, without a query to the host's resolver.
	addrs, code := j.lookup("api.example.com", dnsmessage.TypeA)
	if code != dnsmessage.RCodeSuccess || len(addrs) != 1 || !strings.HasPrefix(addrs[0], "198.18.") {
		t.Fatalf("name that the Authority may allow: got %v, %v", addrs, code)
	}
	if got := w.Queries(); len(got) > 0 {
		t.Errorf("the host's resolver was queried for %v", got)
	}
	type result struct {
		status int
		body   string
		err    error
	}
	got := make(chan result, 1)
	fetch := func(address, url string) {
		resp, err := j.client(address, w.Roots, false).Get(url)
		if err != nil {
			got <- result{err: err}
			return
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		got <- result{resp.StatusCode, string(b), err}
	}
	go fetch(addrs[0]+":443", "https://api.example.com/")
	if r := <-someone.asked; r.Kind != egress.KindConnect || r.Host != "api.example.com" || r.Port != 443 || !r.TLS || r.Jail != "j-test" {
		t.Errorf("got request %+v", r)
	}
	someone.answer <- egress.Verdict{Allow: true, Rule: "approval 7"}
	if r := <-got; r.status != 200 || !strings.Contains(r.body, "welcome") {
		t.Errorf("after Allow: got %+v", r)
	}
	go fetch(addrs[0]+":80", "http://api.example.com/x?q=1")
	if r := <-someone.asked; r.Kind != egress.KindRequest || r.Method != "GET" || r.Path != "/x" {
		t.Errorf("got request %+v", r)
	}
	someone.answer <- egress.Verdict{Rule: "policy.json:3", Reason: "no shopping", Remedy: "buy nothing"}
	if r := <-got; r.status != 403 || !strings.Contains(r.body, "no shopping") || !strings.Contains(r.body, "policy.json:3") || !strings.Contains(r.body, "buy nothing") {
		t.Errorf("after a denial: got %+v", r)
	}
	// The decision is canceled when the client closes its connection.
	c := j.talk(addrs[0] + ":443")
	c.say(string(egresstest.Hello("api.example.com")))
	<-someone.asked
	c.Close()
	if r := <-someone.asked; r.Host != "gave up" {
		t.Errorf("got request %+v although the client is gone", r)
	}
	// With CONNECT, one decision is enough.
	c = j.talk(egresstest.Proxy)
	c.say("CONNECT api.example.com:2222 HTTP/1.1\r\nHost: api.example.com:2222\r\n\r\n")
	<-someone.asked
	someone.answer <- egress.Verdict{Allow: true}
	if resp := c.response(); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	if got := c.line(); got != "SSH-2.0-welcome\r\n" {
		t.Errorf("through CONNECT: got %q", got)
	}
	// The Authority is not called for addresses.
	c = j.talk(egresstest.Evil + ":80")
	c.say("GET / HTTP/1.1\r\nHost: " + egresstest.Evil + "\r\n\r\n")
	if resp := c.response(); resp.StatusCode != 403 {
		t.Errorf("request to an address: %s", resp.Status)
	}
}

// The grant of a CONNECT request ends when the rules change, for example with the jail's policy.
func TestAuthorityIsAskedAgainAfterSetRules(t *testing.T) {
	w := needsWorld(t)
	someone := &person{make(chan egress.Request), make(chan egress.Verdict)}
	j := newJail(t, w, egress.Config{Authority: someone})
	c := j.talk(egresstest.Proxy)
	c.say("CONNECT api.example.com:80 HTTP/1.1\r\nHost: api.example.com:80\r\n\r\n")
	<-someone.asked
	someone.answer <- egress.Verdict{Allow: true, Rule: "approval 8"}
	if resp := c.response(); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	get := func() (int, string) {
		c.say("GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
		resp := c.response()
		b, err := io.ReadAll(resp.Body)
		j.must(err)
		return resp.StatusCode, string(b)
	}
	if code, body := get(); code != 200 {
		t.Fatalf("request on the granted connection: %d %q", code, body)
	}
	j.must(j.proxy.SetRules(egress.Rules{}))
	go func() {
		<-someone.asked
		someone.answer <- egress.Verdict{Rule: "policy.json:3", Reason: "no longer"}
	}()
	if code, body := get(); code != 403 || !strings.Contains(body, "no longer") {
		t.Errorf("request after a change of the rules: %d %q", code, body)
	}
}

func TestAuthorityTimeoutRefuses(t *testing.T) {
	w := needsWorld(t)
	someone := &person{make(chan egress.Request, 2), make(chan egress.Verdict)}
	j := newJail(t, w, egress.Config{Authority: someone}, egress.Hurry(time.Second, 10*time.Second, 50*time.Millisecond, time.Second))
	c := j.talk(apiHTTP)
	c.say("GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
	resp := c.response()
	if b, _ := io.ReadAll(resp.Body); resp.StatusCode != 403 || !strings.Contains(string(b), "timed out") {
		t.Errorf("%s %q", resp.Status, b)
	}
}

func TestPipelinedRequestsAreEachChecked(t *testing.T) {
	w := needsWorld(t)
	j := newJail(t, w, allow(egress.Rule{Host: "api.example.com"}, egress.Rule{Host: "front.example.com"}))
	c := j.talk(apiHTTP)
	c.say("GET /1 HTTP/1.1\r\nHost: api.example.com\r\n\r\n" +
		"POST /2 HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n" +
		"GET /3 HTTP/1.1\r\nHost: front.example.com\r\n\r\n" +
		"GET /4 HTTP/1.1\r\nHost: hidden.example.com\r\n\r\n" +
		"GET /5 HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
	for _, want := range []string{"welcome: api.example.com GET /1", "welcome: api.example.com POST /2", "welcome: front.example.com GET /3", "hidden.example.com is not in this jail's list"} {
		resp := c.response()
		if b, _ := io.ReadAll(resp.Body); !strings.Contains(string(b), want) {
			t.Errorf("%d %q, want %q", resp.StatusCode, b, want)
		}
	}
	if b, err := io.ReadAll(c.r); len(b) > 0 || err != nil {
		t.Errorf("connection is still open after a refusal: %q, %v", b, err)
	}
}

func TestListedAddressIsReachable(t *testing.T) {
	w := needsWorld(t)
	j := newJail(t, w, allow(
		egress.Rule{Name: "the neighbour", Host: egresstest.Private, Ports: []uint16{80, 7000}},
		egress.Rule{Name: "names of it", Host: "lan.rebind.example", Ports: []uint16{80}}))
	for _, host := range []string{egresstest.Private, "anything.example", "lan.rebind.example"} {
		c := j.talk(egresstest.Private + ":80")
		c.say(fmt.Sprintf("GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host))
		resp := c.response()
		if b, _ := io.ReadAll(resp.Body); resp.StatusCode != 200 || !strings.Contains(string(b), "10.9.9.9 for "+host) && !strings.Contains(string(b), host) {
			t.Errorf("%s: %d %q", host, resp.StatusCode, b)
		}
	}
	c := j.talk(egresstest.Private + ":7000")
	c.say("\x00x\n")
	if got := c.line(); !strings.Contains(got, "an echo") {
		t.Errorf("raw connection: got %q", got)
	}
	c = j.talk(egresstest.Private + ":8443")
	c.say("GET / HTTP/1.1\r\nHost: 10.9.9.9:8443\r\n\r\n")
	if resp := c.response(); resp.StatusCode != 403 {
		t.Errorf("another port of the address: %s", resp.Status)
	}
}

func TestDNSRebindingToPrivateAddressIsRefused(t *testing.T) {
	w := needsWorld(t)
	j := newJail(t, w, allow(egress.Rule{Host: "moves.example.com"}))
	w.SetAddrs("moves.example.com", egresstest.API, "127.0.0.1")
	get := func() *http.Response {
		c := j.talk(apiHTTP)
		c.say("GET / HTTP/1.1\r\nHost: moves.example.com\r\n\r\n")
		return c.response()
	}
	// The first address is public and answers; the other one is never returned.
	if resp := get(); resp.StatusCode != 200 {
		t.Errorf("public address: %s", resp.Status)
	}
	if addrs, _ := j.lookup("moves.example.com", dnsmessage.TypeA); len(addrs) != 1 || addrs[0] != egresstest.API {
		t.Errorf("DNS returned %v to the jail", addrs)
	}
}

func TestRecordStatesWhichSideClosed(t *testing.T) {
	w := needsWorld(t)
	w.SetAddrs("shop.example", egresstest.Internet)
	addr := egresstest.Internet + ":9000"
	w.TCP(addr, func(c net.Conn) {
		io.WriteString(c, "hello\n")
		b := make([]byte, 1)
		if n, _ := c.Read(b); n > 0 && b[0] == 'x' {
			c.(*net.TCPConn).SetLinger(0)
		}
	})
	// The last but one client sends data within times.silence.
	j := newJail(t, w, allow(egress.Rule{Host: "shop.example", Ports: []uint16{9000, 9001, 443}}), egress.Hurry(time.Second, 10*time.Second, time.Second, time.Second))
	j.lookup("shop.example", dnsmessage.TypeA)

	c := j.talk(addr)
	c.line()
	c.say("x")
	if _, err := c.r.ReadByte(); err == nil {
		t.Error("connection that the server reset is still open")
	}
	if r := j.recorded("flow closed by the server", func(r egress.Record) bool { return r.Reason == egress.ReasonUpstream }); !r.Allowed {
		t.Errorf("got record %+v", r)
	}
	c = j.talk(addr)
	c.line()
	c.Conn.(*net.TCPConn).SetLinger(0)
	c.Close()
	if r := j.recorded("flow closed by the client", func(r egress.Record) bool { return r.Reason == egress.ReasonClient }); !r.Allowed {
		t.Errorf("got record %+v", r)
	}
	// No server listens there.
	j.forget()
	c = j.talk(egresstest.Internet + ":9001")
	if _, err := c.r.ReadByte(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("port without a listener: %v", err)
	}
	if r := j.recorded("flow to a port without a listener", func(r egress.Record) bool { return r.Reason == egress.ReasonUpstream }); !strings.Contains(r.Detail, "refused") || !r.Allowed {
		t.Errorf("got record %+v", r)
	}
	c = j.talk(egresstest.Internet + ":9001")
	c.say("GET / HTTP/1.1\r\nHost: shop.example:9001\r\n\r\n")
	if resp := c.response(); resp.StatusCode != 502 {
		t.Errorf("same port over HTTP: %s", resp.Status)
	}
	c = j.talk(egresstest.Proxy)
	c.say("CONNECT gone.shop.example:443 HTTP/1.1\r\nHost: gone.shop.example:443\r\n\r\n")
	if resp := c.response(); resp.StatusCode != 403 {
		t.Errorf("CONNECT to a refused host: %s", resp.Status)
	}
}

func TestOverridingFieldsAreRemoved(t *testing.T) {
	w := needsWorld(t)
	w.SetAddrs("shop.example", egresstest.Internet)
	addr := egresstest.Internet + ":8080"
	var got http.Header
	w.HTTP(addr, nil, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { got = r.Header }))
	j := newJail(t, w, allow(egress.Rule{Host: "shop.example", Ports: []uint16{8080}}))
	c := j.talk(addr)
	c.say("GET / HTTP/1.1\r\nHost: shop.example:8080\r\nX-Forwarded-Host: evil.example\r\nX-HTTP-Method-Override: DELETE\r\nX-Original-URL: /closed\r\n" +
		"Connection: x-hop\r\nX-Hop: a\r\nProxy-Authorization: Basic x\r\nTE: gzip\r\nX-Kept: b\r\n\r\n")
	if resp := c.response(); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	if fmt.Sprint(got) != "map[X-Kept:[b]]" {
		t.Errorf("server got %v", got)
	}
}

func TestHTTPServerThatSendsFirstIsRefused(t *testing.T) {
	w := needsWorld(t)
	w.SetAddrs("shop.example", egresstest.Internet)
	late, two := egresstest.Internet+":9000", egresstest.Internet+":9001"
	w.TCP(late, func(c net.Conn) { io.WriteString(c, "HTTP/1.1 408 Request Timeout\r\n\r\n"); io.Copy(c, c) })
	w.TCP(two, func(c net.Conn) { c.Write([]byte{0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 100}); io.Copy(c, c) })
	j := newJail(t, w, allow(egress.Rule{Host: "shop.example", Ports: []uint16{9000, 9001}}), egress.Hurry(50*time.Millisecond, 10*time.Second, time.Second, time.Second))
	j.lookup("shop.example", dnsmessage.TypeA)
	for _, addr := range []string{late, two} {
		c := j.talk(addr)
		if b, err := c.r.ReadByte(); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %q, %v, want a reset", addr, b, err)
		}
		j.refusal(egress.ReasonProtocol)
		j.forget()
	}
}

func TestHostFieldIsNormalized(t *testing.T) {
	w := needsWorld(t)
	w.SetAddrs("shop.example", egresstest.Internet)
	addr := egresstest.Internet + ":8080"
	w.HTTP(addr, nil, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, r.Host) }))
	j := newJail(t, w, allow(egress.Rule{Host: "Shop.Example.", Ports: []uint16{8080}}))
	for _, host := range []string{"SHOP.example:8080", "shop.example.:8080", "shop.example", "shop.EXAMPLE:08080"} {
		c := j.talk(addr)
		c.say("GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n")
		if b, _ := io.ReadAll(c.response().Body); string(b) != "shop.example:8080" {
			t.Errorf("%s: server got Host %q", host, b)
		}
	}
}

func TestPortScanIsRecorded(t *testing.T) {
	w := needsWorld(t)
	j := newJail(t, w, allow())
	c, err := j.dial("tcp", egresstest.Evil+":22")
	j.must(err)
	c.Close()
	if r := j.refusal(egress.ReasonClient); r.Host != egresstest.Evil || r.Port != 22 {
		t.Errorf("got record %+v", r)
	}
}

// A silent Authority always returns the zero Verdict.
type silent struct{}

func (silent) Evaluate(context.Context, egress.Request) (egress.Verdict, error) {
	return egress.Verdict{}, nil
}

func TestZeroVerdictKeepsRuleRefusal(t *testing.T) {
	j := newJail(t, needsWorld(t), egress.Config{Authority: silent{}, Rules: egress.Rules{Allow: []egress.Rule{
		{Name: "the API", Host: "api.example.com"},
	}}})
	for target, want := range map[string]egress.Record{
		"api.example.com:25": {Reason: egress.ReasonPort, Rule: "the API"},
		"evil.example:443":   {Reason: egress.ReasonHost},
	} {
		c := j.talk(egresstest.Proxy)
		c.say("CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n\r\n")
		if resp := c.response(); resp.StatusCode != 403 {
			t.Errorf("CONNECT to %s: %s", target, resp.Status)
		}
		if r := j.refusal(want.Reason); r.Rule != want.Rule {
			t.Errorf("CONNECT to %s: got record %+v", target, r)
		}
	}
}
