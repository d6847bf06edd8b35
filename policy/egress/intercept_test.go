package egress_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/coder/websocket"

	"glasshouse/policy/egress"
	"glasshouse/policy/egress/egresstest"
)

// shop is the address of the test's own servers.
const shop = egresstest.Internet + ":4430"

const canary = `sk-canary/7f+3=&"é4`

func newCA(t testing.TB) (*egress.CA, *x509.CertPool) {
	t.Helper()
	ca, err := egress.NewCA("j-test")
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca.PEM()) {
		t.Fatal("cannot parse the CA certificate")
	}
	return ca, pool
}

func secrets(_ context.Context, name, host string) ([]byte, error) {
	if name != "KEY" || host != "shop.example" {
		return nil, errors.New("no secret " + name + " for " + host)
	}
	return []byte(canary + "\n"), nil
}

// inside returns a jail that may reach shop.example with TLS interception. h handles the
// requests to it.
func inside(t testing.TB, h http.Handler, inject ...egress.Inject) (*jail, *x509.CertPool) {
	t.Helper()
	w := needsWorld(t)
	w.SetAddrs("shop.example", egresstest.Internet)
	w.HTTP(shop, &tls.Config{NextProtos: []string{"h2", "http/1.1"}}, h)
	ca, pool := newCA(t)
	return newJail(t, w, egress.Config{CA: ca, Secret: secrets, Rules: egress.Rules{Allow: []egress.Rule{
		{Name: "the shop", Host: "shop.example", Ports: []uint16{4430}, Intercept: true, Inject: inject}}}},
		egress.Hurry(300*time.Millisecond, 10*time.Second, time.Second, 0)), pool
}

const shopURL = "https://shop.example:4430"

func TestTLSIsIntercepted(t *testing.T) {
	j, pool := inside(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Trailer", "X-Sum")
		fmt.Fprintf(w, "%s %s %s %d", r.Method, r.URL, r.Host, len(b))
		w.Header().Set("X-Sum", fmt.Sprint(len(b)))
	}))
	for _, h2 := range []bool{false, true} {
		client := j.client(shop, pool, h2)
		for range 2 {
			resp, err := client.Post(shopURL+"/a?b=c", "text/plain", strings.NewReader(strings.Repeat("x", 200_000)))
			if err != nil {
				t.Fatalf("HTTP/2 %v: %v", h2, err)
			}
			b, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if want := "POST /a?b=c shop.example:4430 200000"; string(b) != want || err != nil {
				t.Errorf("HTTP/2 %v: %q, %v, want %q", h2, b, err, want)
			}
			if got := resp.Trailer.Get("X-Sum"); got != "200000" {
				t.Errorf("HTTP/2 %v: got trailer %q in %v", h2, got, resp.Trailer)
			}
			if h2 != (resp.ProtoMajor == 2) {
				t.Errorf("HTTP/2 %v: got a response with %s", h2, resp.Proto)
			}
			if leaf := resp.TLS.PeerCertificates[0]; time.Until(leaf.NotAfter) > 25*time.Hour || leaf.VerifyHostname("shop.example") != nil {
				t.Errorf("got a certificate for %v until %v", leaf.DNSNames, leaf.NotAfter)
			}
		}
	}
	r := j.recorded("the request", func(r egress.Record) bool { return r.Allowed && r.Method == "POST" })
	if r.Path != "/a" || r.Status != 200 || !r.TLS || r.Sent < 200_000 || r.Rule != "the shop" {
		t.Errorf("got record %+v", r)
	}
}

// 443 is the standard port of https, so a Host field may have or omit it (RFC 9110, 4.2.3).
func TestHostFieldWithStandardPort(t *testing.T) {
	w := needsWorld(t)
	ca, pool := newCA(t)
	j := newJail(t, w, egress.Config{CA: ca, Rules: egress.Rules{Allow: []egress.Rule{{Host: "front.example.com", Ports: []uint16{443}, Intercept: true}}}})
	for target, want := range map[string]int{"front.example.com:443": 200, "front.example.com": 200, "front.example.com:80": 400, "other.example.com": 400} {
		c, err := j.dial("tcp", egresstest.Front+":443")
		j.must(err)
		defer c.Close()
		c.SetDeadline(time.Now().Add(20 * time.Second))
		web := tls.Client(c, &tls.Config{ServerName: "front.example.com", RootCAs: pool})
		_, err = fmt.Fprintf(web, "GET https://front.example.com/ HTTP/1.1\r\nHost: %s\r\n\r\n", target)
		j.must(err)
		resp, err := http.ReadResponse(bufio.NewReader(web), nil)
		j.must(err)
		resp.Body.Close()
		if (resp.StatusCode == 200) != (want == 200) {
			t.Errorf("Host: %s: got status %d, want %d", target, resp.StatusCode, want)
		}
	}
}

func TestUntrustedServerCertificateIsRefused(t *testing.T) {
	j, pool := inside(t, http.NotFoundHandler())
	j.world.SetAddrs("other.example", egresstest.Internet)
	j.must(j.proxy.SetRules(egress.Rules{Allow: []egress.Rule{{Host: "shop.example", Ports: []uint16{9443}, Intercept: true}}}))
	// A server with a certificate of another CA.
	ca, err := egress.NewCA("somebody else")
	j.must(err)
	key, err := ca.Secret()
	j.must(err)
	pair, err := tls.X509KeyPair(key, key)
	j.must(err)
	l := j.world.Listen(egresstest.Internet + ":9443")
	srv := &http.Server{ErrorLog: log.New(io.Discard, "", 0), TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}}}
	done := make(chan struct{})
	go func() { defer close(done); srv.ServeTLS(l, "", "") }()
	defer func() { srv.Close(); <-done }()

	resp, err := j.client(egresstest.Internet+":9443", pool, false).Get("https://shop.example:9443/")
	j.must(err)
	defer resp.Body.Close()
	if b, _ := io.ReadAll(resp.Body); resp.StatusCode != 502 || !strings.Contains(string(b), "certificate") {
		t.Errorf("%s %q", resp.Status, b)
	}
}

func TestCertificatePinningIsReported(t *testing.T) {
	j, _ := inside(t, http.NotFoundHandler())
	_, err := j.client(shop, j.world.Roots, false).Get(shopURL) // trusts the world only
	if err == nil {
		t.Fatal("client accepted the proxy's certificate")
	}
	if r := j.refusal(egress.ReasonTrust); r.Host != "shop.example" || !strings.Contains(r.Detail, "shop.example") || r.Rule != "the shop" {
		t.Errorf("got record %+v", r)
	}
}

func TestEventStreamIsNotDelayed(t *testing.T) {
	next := make(chan string)
	gone := make(chan struct{})
	j, pool := inside(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		for {
			select {
			case s := <-next:
				fmt.Fprintf(w, "data: %s\n\n", s)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				close(gone)
				return
			}
		}
	}), egress.Inject{Secret: "KEY", As: egress.Bearer}) // also while the response is masked
	for _, h2 := range []bool{false, true} {
		gone = make(chan struct{})
		resp, err := j.client(shop, pool, h2).Get(shopURL)
		j.must(err)
		r := bufio.NewReader(resp.Body)
		for _, s := range []string{"one", "two", "three"} {
			next <- s // nothing more is sent until this event has arrived
			line, err := r.ReadString('\n')
			if line != "data: "+s+"\n" {
				t.Fatalf("HTTP/2 %v: %q, %v", h2, line, err)
			}
			r.ReadString('\n')
		}
		resp.Body.Close() // cancels the request at the server
		select {
		case <-gone:
		case <-time.After(30 * time.Second):
			t.Errorf("HTTP/2 %v: the server's request is not canceled after the client closed", h2)
		}
	}
}

func TestWebSocketIsForwarded(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			typ, b, err := c.Read(r.Context())
			if err != nil {
				return
			}
			c.Write(r.Context(), typ, append([]byte("you said "), b...))
		}
	})
	j, pool := inside(t, h)
	plain := egresstest.Internet + ":8080"
	j.world.HTTP(plain, nil, h)
	j.must(j.proxy.SetRules(egress.Rules{Allow: []egress.Rule{{Host: "shop.example", Ports: []uint16{4430}, Intercept: true}, {Host: "shop.example", Ports: []uint16{8080}}}}))
	for url, address := range map[string]string{"wss://shop.example:4430/": shop, "ws://shop.example:8080/": plain} {
		ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
		defer stop()
		c, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{HTTPClient: &http.Client{Transport: j.client(address, pool, false).Transport}})
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		for _, s := range []string{"a", strings.Repeat("b", 20_000)} {
			if err := c.Write(ctx, websocket.MessageText, []byte(s)); err != nil {
				t.Fatal(err)
			}
			if _, b, err := c.Read(ctx); string(b) != "you said "+s {
				t.Errorf("%s: %.40q, %v", url, b, err)
			}
		}
		if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
			t.Errorf("%s: close: %v", url, err)
		}
	}
	r := j.recorded("the socket", func(r egress.Record) bool { return r.Status == 101 })
	if r.Sent < 20_000 || r.Received < 20_000 {
		t.Errorf("got record %+v", r)
	}
}

// TestWebSocketCompressionIsDisabledWithSecrets verifies that the two sides cannot negotiate
// compression, because the proxy searches WebSocket data for secrets.
func TestWebSocketCompressionIsDisabledWithSecrets(t *testing.T) {
	offered := make(chan string, 2)
	j, pool := inside(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		offered <- r.Header.Get("Sec-Websocket-Extensions")
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionContextTakeover, CompressionThreshold: 1})
		if err != nil {
			return
		}
		defer c.CloseNow()
		c.Write(r.Context(), websocket.MessageText, []byte(strings.Repeat("you are "+r.Header.Get("X-Key")+" ", 20)))
	}), egress.Inject{Secret: "KEY", As: egress.Header, Name: "X-Key"})
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	c, _, err := websocket.Dial(ctx, "wss://shop.example:4430/", &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: j.client(shop, pool, false).Transport}, CompressionMode: websocket.CompressionContextTakeover,
	})
	j.must(err)
	defer c.CloseNow()
	_, b, err := c.Read(ctx)
	if want := strings.Repeat("you are "+strings.Repeat("*", len(canary))+" ", 20); string(b) != want || err != nil {
		t.Errorf("client got %.80q, %v", b, err)
	}
	if ext := <-offered; ext != "" {
		t.Errorf("server got extensions %q", ext)
	}
}

func TestSecretIsInjectedAndMasked(t *testing.T) {
	const user = "me"
	pair := base64.StdEncoding.EncodeToString([]byte(user + ":" + canary))
	var got *http.Request
	j, pool := inside(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		w.Header().Set("X-Echo", "it is "+canary)
		w.Header().Set("X-Key", r.Header.Get("X-Key"))
		w.Header().Set("Location", "/next?"+r.URL.RawQuery)
		w.Header().Set(http.TrailerPrefix+"X-Last", canary)
		for _, c := range []byte("<" + canary + "> " + pair + " " + r.URL.RawQuery + " " + base64.StdEncoding.EncodeToString([]byte("a"+canary+"b"))) {
			w.Write([]byte{c}) // sends the body in pieces
			w.(http.Flusher).Flush()
		}
	}),
		egress.Inject{Secret: "KEY", As: egress.Basic, Name: user},
		egress.Inject{Secret: "KEY", As: egress.Header, Name: "X-Key"},
		egress.Inject{Secret: "KEY", As: egress.Query, Name: "key"})
	for _, h2 := range []bool{false, true} {
		req, err := http.NewRequest("GET", shopURL+"/p?a=1&KEY=mine&key=mine&b=2", nil)
		j.must(err)
		req.Header.Set("Authorization", "Bearer mine")
		req.Header["x-key"] = []string{"mine"}
		req.Header.Set("Accept-Encoding", "br")
		resp, err := j.client(shop, pool, h2).Do(req)
		j.must(err)
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		j.must(err)
		if u, p, ok := got.BasicAuth(); !ok || u != user || p != canary {
			t.Errorf("server got the user %q, %v, and a password of %d bytes", u, ok, len(p))
		}
		if h := got.Header; len(h["X-Key"]) != 1 || h.Get("X-Key") != canary || h.Get("Accept-Encoding") != "identity" {
			t.Errorf("server got %d keys, and Accept-Encoding %q", len(h["X-Key"]), h.Get("Accept-Encoding"))
		}
		if q := got.URL.Query(); len(q["key"]) != 1 || q.Get("key") != canary || len(q["KEY"]) > 0 || q.Get("a") != "1" || q.Get("b") != "2" {
			t.Errorf("server got the parameters %d, %v, %q, %q", len(q["key"]), q["KEY"], q.Get("a"), q.Get("b"))
		}
		var all bytes.Buffer
		resp.Header.Write(&all)
		resp.Trailer.Write(&all)
		all.Write(b)
		if !bytes.HasPrefix(b, []byte("<"+strings.Repeat("*", len(canary))+"> ")) {
			t.Errorf("got body %q", b)
		}
		if resp.Trailer.Get("X-Last") != strings.Repeat("*", len(canary)) {
			t.Errorf("got trailer %q", resp.Trailer)
		}
		for _, form := range []string{canary, "canary", pair[8:], "c2stY2FuYXJ5", "stY2FuYXJ5LzdmKz", "sk-canary%2F"} {
			if strings.Contains(all.String(), form) {
				t.Errorf("HTTP/2 %v: secret as %q is visible in %q", h2, form, &all)
			}
		}
	}
	r := j.recorded("the request", func(r egress.Record) bool { return r.Allowed && r.Status == 200 })
	if fmt.Sprint(r.Secrets) != "[KEY KEY KEY]" || strings.Contains(fmt.Sprint(j.all()), "canary") {
		t.Errorf("got record %+v", r)
	}
}

func TestSecretForListedAddress(t *testing.T) {
	w := needsWorld(t)
	addr := egresstest.Private + ":8081"
	w.HTTP(addr, nil, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, r.Header.Get("X-Key")) }))
	give := func(_ context.Context, name, host string) ([]byte, error) { return []byte("value-for-" + name), nil }
	ca, _ := newCA(t)
	j := newJail(t, w, egress.Config{CA: ca, Secret: give, Rules: egress.Rules{Allow: []egress.Rule{
		{Host: egresstest.Private + "/32", Ports: []uint16{8081}, Inject: []egress.Inject{{Secret: "KEY", As: egress.Header, Name: "X-Key"}}}}}})
	c := j.talk(addr)
	c.say("GET / HTTP/1.1\r\nHost: " + addr + "\r\n\r\n")
	resp := c.response()
	if b, _ := io.ReadAll(resp.Body); string(b) != "*************" {
		t.Errorf("%s %q", resp.Status, b)
	}
}

func TestTLSToPortForHTTPOnlyIsRefused(t *testing.T) {
	w := needsWorld(t)
	j := newJail(t, w, allow(egress.Rule{Host: "api.example.com", Ports: []uint16{80}, Methods: []string{"GET"}}))
	c := j.talk(apiHTTP)
	c.say(string(egresstest.Hello("api.example.com")))
	if b, _ := io.ReadAll(c.r); !bytes.HasPrefix(b, []byte{21, 3, 3, 0, 2, 2}) {
		t.Errorf("got %q, want an alert", b)
	}
	j.refusal(egress.ReasonProtocol)
}

func TestEncodedResponseIsDecodedOrRefused(t *testing.T) {
	packed, err := exec.Command("gzip", "-c", "/dev/null").Output()
	if err != nil || len(packed) == 0 {
		t.Skip("gzip(1): ", err)
	}
	cmd := exec.Command("gzip", "-c")
	cmd.Stdin = strings.NewReader("the key is " + canary)
	packed, err = cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	j, pool := inside(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", strings.TrimPrefix(r.URL.Path, "/"))
		w.Write(packed)
	}), egress.Inject{Secret: "KEY", As: egress.Bearer})
	resp, err := j.client(shop, pool, false).Get(shopURL + "/gzip")
	j.must(err)
	b, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if string(b) != "the key is "+strings.Repeat("*", len(canary)) || err != nil || resp.Header.Get("Content-Encoding") != "" {
		t.Errorf("gzip: %q, %v, %v", b, err, resp.Header)
	}
	resp, err = j.client(shop, pool, false).Get(shopURL + "/br")
	j.must(err)
	b, _ = io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 502 || resp.Header.Get("Glasshouse-Refused") != "secret" {
		t.Errorf("br: %s %q", resp.Status, b)
	}
}

func TestInvalidResponseIsNotQuoted(t *testing.T) {
	j, pool := inside(t, http.NotFoundHandler())
	addr := egresstest.Internet + ":4431"
	j.world.TCP(addr, func(c net.Conn) {
		s := tls.Server(c, &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return j.world.Certificate(h.ServerName) }})
		if r, err := http.ReadRequest(bufio.NewReader(s)); err == nil {
			fmt.Fprintf(s, "%s %s\r\n%s\r\n\r\n", map[bool]string{true: "HTTP/1.1 200", false: ""}[r.URL.Path == "/field"], r.Header.Get("X-Key"), r.Header.Get("X-Key"))
		}
	})
	j.must(j.proxy.SetRules(egress.Rules{Allow: []egress.Rule{{Host: "shop.example", Ports: []uint16{4431}, Inject: []egress.Inject{{Secret: "KEY", As: egress.Header, Name: "X-Key"}}}}}))
	for _, path := range []string{"/", "/field"} {
		resp, err := j.client(addr, pool, false).Get("https://shop.example:4431" + path)
		j.must(err)
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 502 || strings.Contains(string(b), "canary") {
			t.Errorf("%s: %s %q", path, resp.Status, b)
		}
	}
	j.recorded("the answer", func(r egress.Record) bool { return r.Status == 502 })
	if strings.Contains(fmt.Sprint(j.all()), "canary") {
		t.Errorf("got records %+v", j.all())
	}
}

func TestUnavailableSecretRefusesRequest(t *testing.T) {
	j, pool := inside(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the server was asked without the secret") }),
		egress.Inject{Secret: "OTHER", As: egress.Bearer})
	resp, err := j.client(shop, pool, false).Get(shopURL)
	j.must(err)
	defer resp.Body.Close()
	if b, _ := io.ReadAll(resp.Body); resp.StatusCode != 502 || !strings.Contains(string(b), "secret OTHER is not available") {
		t.Errorf("%s %q", resp.Status, b)
	}
}

func TestEarlyHintsAndContinue(t *testing.T) {
	j, _ := inside(t, http.NotFoundHandler())
	plain := egresstest.Internet + ":8080"
	j.world.HTTP(plain, nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</a>")
		w.WriteHeader(http.StatusEarlyHints)
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "got %s", b)
	}))
	j.must(j.proxy.SetRules(egress.Rules{Allow: []egress.Rule{{Host: "shop.example", Ports: []uint16{8080}}}}))
	c := j.talk(plain)
	c.say("PUT / HTTP/1.1\r\nHost: shop.example:8080\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
	var seen []int
	for {
		resp := c.response()
		seen = append(seen, resp.StatusCode)
		if resp.StatusCode == http.StatusContinue {
			c.say("hello")
		}
		if resp.StatusCode >= 200 {
			if b, _ := io.ReadAll(resp.Body); string(b) != "got hello" {
				t.Errorf("%s %q", resp.Status, b)
			}
			break
		}
	}
	if fmt.Sprint(seen) != "[103 100 200]" && fmt.Sprint(seen) != "[100 103 200]" {
		t.Errorf("got responses %v", seen)
	}
}

func TestCAIsSavedAndTrusted(t *testing.T) {
	ca, pool := newCA(t)
	b, err := ca.Secret()
	if err != nil {
		t.Fatal(err)
	}
	again, err := egress.ParseCA(b)
	if err != nil || !bytes.Equal(again.PEM(), ca.PEM()) {
		t.Fatalf("ParseCA(Secret()) returned a different CA: %v", err)
	}
	if bytes.Contains(ca.PEM(), []byte("PRIVATE")) || strings.Contains(fmt.Sprintf("%v %+v %#v %s", ca, ca, ca, ca), "0x") {
		t.Error("formatted CA contains the private key")
	}
	_ = pool
	for _, bad := range [][]byte{nil, ca.PEM(), []byte("x")} {
		if _, err := egress.ParseCA(bad); err == nil {
			t.Errorf("ParseCA(%.20q) = nil error", bad)
		}
	}
	root := fstest.MapFS{
		"etc/ssl/certs/ca-certificates.crt":         {Data: []byte("# what was there\n")},
		"usr/lib/jvm/java-21/lib/security/cacerts":  {Data: []byte("old")},
		"etc/pki/tls/certs/ca-bundle.crt/directory": {Data: nil},
	}
	files, err := ca.TrustFiles(root, nil)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]byte{}
	for _, f := range files {
		found[f.Path] = f.Data
	}
	if want := "# what was there\n" + string(ca.PEM()); string(found["/etc/ssl/certs/ca-certificates.crt"]) != want || string(found[egress.TrustBundle]) != want {
		t.Errorf("got bundles %q and %q", found["/etc/ssl/certs/ca-certificates.crt"], found[egress.TrustBundle])
	}
	if string(found[egress.TrustCA]) != string(ca.PEM()) || len(found) != 4 {
		t.Errorf("got files %v", found)
	}
	for name, path := range egress.TrustEnv() {
		if found[path] == nil {
			t.Errorf("%s = %s, which does not exist", name, path)
		}
	}
	store := found["/usr/lib/jvm/java-21/lib/security/cacerts"]
	keytool, err := exec.LookPath("keytool")
	if err != nil {
		t.Skip("Java reads its own stores: ", err)
	}
	path := filepath.Join(t.TempDir(), "cacerts")
	if err := os.WriteFile(path, store, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(keytool, "-list", "-keystore", path, "-storepass", "changeit").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "trustedCertEntry") {
		t.Errorf("keytool: %v: %s", err, out)
	}
}

// A response in progress when Close is called reaches the client completely.
func TestCloseWaitsForResponses(t *testing.T) {
	for i := range 20 {
		h2 := i%2 == 1
		t.Run(fmt.Sprintf("HTTP/2 %v/%d", h2, i/2), func(t *testing.T) {
			asked, release := make(chan struct{}), make(chan struct{})
			j, pool := inside(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.(http.Flusher).Flush()
				close(asked)
				<-release
				io.WriteString(w, "done")
			}))
			resp, err := j.client(shop, pool, h2).Get(shopURL)
			j.must(err)
			defer resp.Body.Close()
			<-asked
			closed := make(chan error)
			go func() { closed <- j.proxy.Close(context.Background()) }()
			for end := time.Now().Add(30 * time.Second); ; {
				c, err := j.dial("tcp", shop)
				if err != nil {
					break // it is closing
				}
				c.Close()
				if time.Now().After(end) {
					t.Fatal("the proxy accepts connections while it closes")
				}
			}
			close(release)
			if b, err := io.ReadAll(resp.Body); string(b) != "done" || err != nil {
				t.Errorf("got response %q, %v, want \"done\"", b, err)
			}
			if err := <-closed; err != nil {
				t.Error(err)
			}
		})
	}
}
