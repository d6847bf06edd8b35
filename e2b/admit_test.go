package e2b

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"glasshouse/e2b/e2btest"
)

// answering returns a dialer for jails in which a server listens on every port.
func answering(t *testing.T) func(context.Context, int) (net.Conn, error) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.Path) }))
	t.Cleanup(server.Close)
	return func(ctx context.Context, _ int) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
	}
}

// link returns the query of a file link that is signed with a token.
func link(token, path, operation string, until time.Time) string {
	expires := strconv.FormatInt(until.Unix(), 10)
	sum := sha256.Sum256([]byte(path + ":" + operation + "::" + token + ":" + expires))
	q := url.Values{"path": {path}, "signature_expiration": {expires}, "signature": {"v1_" + base64.RawStdEncoding.EncodeToString(sum[:])}}
	return q.Encode()
}

// TestOnlyCredentialsResumeSandbox sends requests with and without credentials, over every
// route, to a paused sandbox that resumes automatically.
func TestOnlyCredentialsResumeSandbox(t *testing.T) {
	d := newFakeDaemon(t)
	d.dial = answering(t)
	box := d.create(`{"templateID":"base","autoPause":true,"autoResume":{"enabled":true},"network":{"allowPublicTraffic":false}}`)
	other := d.create(`{"templateID":"base","network":{"allowPublicTraffic":false}}`)
	if box.EnvdToken == "" || box.Traffic == nil {
		t.Fatalf("got the tokens %q and %v, want both", box.EnvdToken, box.Traffic)
	}
	const access, traffic = "X-Access-Token", "E2b-Traffic-Access-Token"
	at := func(port int) []string {
		return []string{"E2b-Sandbox-Id", box.SandboxID, "E2b-Sandbox-Port", strconv.Itoa(port)}
	}
	host := func(port int) []string {
		return []string{"Host", fmt.Sprintf("%d-%s.localhost:8083", port, box.SandboxID)}
	}
	oldHost := func(port int) []string {
		return []string{"Host", fmt.Sprintf("%d-%s-%s.localhost:8083", port, box.SandboxID, box.ClientID)}
	}
	websocket := []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="}
	soon, past := time.Now().Add(time.Hour), time.Now().Add(-time.Hour)

	pause := func() {
		t.Helper()
		if d.state(box.SandboxID) == Running {
			d.api(http.StatusNoContent, "POST", "/sandboxes/"+box.SandboxID+"/pause", "")
		}
	}
	refused := []struct {
		name, method, url string
		headers           []string
		want              int
	}{
		{"a port by headers", "GET", "/", at(3000), 403},
		{"a port by headers, other token", "GET", "/", append(at(3000), traffic, *other.Traffic), 403},
		{"a port by headers, access token", "GET", "/", append(at(3000), access, box.EnvdToken), 403},
		{"a port by host", "GET", "/", host(3000), 403},
		{"a port by old host", "GET", "/", oldHost(3000), 403},
		{"a port by path", "GET", "/ports/3000-" + box.SandboxID + "/x", nil, 403},
		{"a WebSocket", "GET", "/ws", append(at(3000), websocket...), 403},
		{"server-sent events", "GET", "/events", append(at(3000), "Accept", "text/event-stream"), 403},
		{"the code interpreter", "POST", "/execute", at(49999), 403},
		{"the code interpreter with the traffic token", "POST", "/execute", append(at(49999), traffic, *box.Traffic), 401},
		{"the code interpreter by another spelling", "POST", "/execute/", append(at(49999), traffic, *box.Traffic), 401},
		{"the code interpreter by a third spelling", "POST", "//execute", append(at(49999), traffic, *box.Traffic), 401},
		{"the code interpreter, escaped", "POST", "/%65xecute", append(at(49999), traffic, *box.Traffic), 401},
		{"envd's health", "GET", "/health", at(49983), 403},
		{"envd's health, other token", "GET", "/health", append(at(49983), access, other.EnvdToken), 403},
		{"envd's health by host", "GET", "/health", host(49983), 403},
		{"envd's health by path", "GET", "/ports/49983-" + box.SandboxID + "/health", nil, 403},
		{"a file", "GET", "/files?path=/etc/passwd", at(49983), 401},
		{"a file, wrong token", "GET", "/files?path=/etc/passwd", append(at(49983), access, other.EnvdToken), 401},
		{"a file, traffic token", "GET", "/files?path=/etc/passwd", append(at(49983), access, *box.Traffic), 401},
		{"an upload", "POST", "/files?path=/x", at(49983), 401},
		{"a link with no signature", "GET", "/files?path=/x&signature=v1_x", at(49983), 401},
		{"a link that has expired", "GET", "/files?" + link(box.EnvdToken, "/x", "read", past), at(49983), 401},
		{"a link to read, used to write", "POST", "/files?" + link(box.EnvdToken, "/x", "read", soon), at(49983), 401},
		{"a link of another sandbox", "GET", "/files?" + link(other.EnvdToken, "/x", "read", soon), at(49983), 401},
		{"compose", "POST", "/files/compose", at(49983), 401},
		{"metrics", "GET", "/metrics", at(49983), 401},
		{"variables", "GET", "/envs", at(49983), 401},
		{"init", "POST", "/init", at(49983), 401},
		{"a path that redirects", "GET", "/x/../files", at(49983), 401},
		{"a path that is not there", "PUT", "/nothing", at(49983), 401},
		{"a Connect call", "POST", "/process.Process/List", append(at(49983), "Content-Type", "application/json"), 401},
		{"a Connect stream", "POST", "/process.Process/Start", append(at(49983), "Content-Type", "application/connect+json"), 401},
		{"a Connect stream by path", "POST", "/ports/49983-" + box.SandboxID + "/filesystem.Filesystem/WatchDir", []string{"Content-Type", "application/connect+json"}, 401},
	}
	for _, c := range refused {
		pause()
		if w := d.do(c.method, c.url, "{}", c.headers...); w.Code != c.want {
			t.Errorf("%s without credentials: got %d %s, want %d", c.name, w.Code, w.Body, c.want)
		}
		if got := d.state(box.SandboxID); got != Paused {
			t.Errorf("%s without credentials: the sandbox is %s, want paused", c.name, got)
		}
	}
	if n := d.count("Rewind"); n != 0 {
		t.Fatalf("the sandbox was resumed %d times without credentials", n)
	}

	admitted := []struct {
		name, method, url string
		headers           []string
		want              int
	}{
		{"a port by headers", "GET", "/", append(at(3000), traffic, *box.Traffic), 200},
		{"a port by host", "GET", "/", append(host(3000), traffic, *box.Traffic), 200},
		{"a port by old host", "GET", "/", append(oldHost(3000), traffic, *box.Traffic), 200},
		{"a port by path", "GET", "/ports/3000-" + box.SandboxID + "/x", []string{traffic, *box.Traffic}, 200},
		{"contexts of the code interpreter", "GET", "/contexts", append(at(49999), traffic, *box.Traffic), 200},
		{"the code interpreter", "POST", "/execute", append(at(49999), traffic, *box.Traffic, access, box.EnvdToken), 200},
		{"envd's health", "GET", "/health", append(at(49983), access, box.EnvdToken), 204},
		{"variables", "GET", "/envs", append(at(49983), access, box.EnvdToken), 200},
		{"a Connect call", "POST", "/process.Process/List", append(at(49983), "Content-Type", "application/json", access, box.EnvdToken), 200},
	}
	for i, c := range admitted {
		pause()
		if w := d.do(c.method, c.url, "{}", c.headers...); w.Code != c.want {
			t.Errorf("%s with credentials: got %d %s, want %d", c.name, w.Code, w.Body, c.want)
		}
		if got := d.state(box.SandboxID); got != Running {
			t.Errorf("%s with credentials: the sandbox is %s, want running", c.name, got)
		}
		if n := d.count("Rewind"); n != i+1 {
			t.Fatalf("%s with credentials: the sandbox was resumed %d times, want %d", c.name, n, i+1)
		}
	}
	pause()
	d.do("GET", "/files?"+link(box.EnvdToken, "/x", "read", soon), "", at(49983)...)
	if got := d.state(box.SandboxID); got != Running {
		t.Errorf("a signed link: the sandbox is %s, want running", got)
	}
}

func TestSandboxHealth(t *testing.T) {
	d := newFakeDaemon(t)
	health := func(box wireSandbox, headers ...string) int {
		return d.do("GET", "/health", "", append(headers, "E2b-Sandbox-Id", box.SandboxID, "E2b-Sandbox-Port", "49983")...).Code
	}
	secure := d.create(`{"templateID":"base"}`)
	if got := health(secure); got != 204 {
		t.Errorf("running sandbox, request without a token: got %d, want 204", got)
	}
	d.api(204, "POST", "/sandboxes/"+secure.SandboxID+"/pause", "")
	if got := health(secure, "X-Access-Token", secure.EnvdToken); got != 502 {
		t.Errorf("paused sandbox without autoResume: got %d, want 502", got)
	}
	if got := d.state(secure.SandboxID); got != Paused {
		t.Errorf("the sandbox is %s, want paused", got)
	}
	open := e2btest.Read[wireSandbox](d, d.api(201, "POST", "/sandboxes", `{"templateID":"base","autoPause":true,"autoResume":{"enabled":true}}`))
	d.api(204, "POST", "/sandboxes/"+open.SandboxID+"/pause", "")
	if got := health(open); got != 204 {
		t.Errorf("paused sandbox with autoResume and without tokens: got %d, want 204", got)
	}
	if got := d.state(open.SandboxID); got != Running {
		t.Errorf("the sandbox is %s, want running", got)
	}
}

func TestErrorResponses(t *testing.T) {
	d := newFakeDaemon(t)
	box := d.create(`{"templateID":"base","network":{"allowPublicTraffic":false}}`)
	at := []string{"E2b-Sandbox-Id", box.SandboxID, "E2b-Sandbox-Port", "3000"}
	browser := []string{"User-Agent", "Mozilla/5.0 (X11; Linux x86_64)"}
	for _, c := range []struct {
		name    string
		headers []string
		status  int
		json    string
		page    []string
	}{
		{"no traffic token", at, 403,
			`{"sandboxId":"` + box.SandboxID + `","message":"Sandbox is secured with traffic access token. Token header 'e2b-traffic-access-token' is missing","code":403}`,
			[]string{"Missing Traffic Access Token", box.SandboxID}},
		{"wrong traffic token", append(at, "E2b-Traffic-Access-Token", "abcd"), 403,
			`{"sandboxId":"` + box.SandboxID + `","message":"Sandbox is secured with traffic access token. Provided token in header 'e2b-traffic-access-token' is invalid","code":403}`,
			[]string{"Invalid Traffic Access Token", box.SandboxID}},
		{"no such sandbox", []string{"E2b-Sandbox-Id", "inosuchsandbox", "E2b-Sandbox-Port", "3000"}, 502,
			`{"sandboxId":"inosuchsandbox","message":"The sandbox was not found","code":502}`,
			[]string{"Sandbox Not Found", "inosuchsandbox"}},
		{"closed port", append(at, "E2b-Traffic-Access-Token", *box.Traffic), 502,
			`{"sandboxId":"` + box.SandboxID + `","message":"The sandbox is running but port is not open","port":3000,"code":502}`,
			[]string{"no service running on port 3000", box.SandboxID}},
	} {
		w := d.do("GET", "/", "", c.headers...)
		if got := strings.TrimSpace(w.Body.String()); w.Code != c.status || got != c.json || w.Header().Get("Content-Type") != "application/json; charset=utf-8" {
			t.Errorf("%s: got %d %s, want %d %s", c.name, w.Code, got, c.status, c.json)
		}
		w = d.do("GET", "/", "", append(c.headers, browser...)...)
		text := w.Body.String()
		if w.Code != c.status || !strings.HasPrefix(text, "<html") || !strings.HasSuffix(text, "</html>") {
			t.Errorf("%s in a browser: got %d %s, want a page with %d", c.name, w.Code, text, c.status)
		}
		for _, want := range c.page {
			if !strings.Contains(text, want) {
				t.Errorf("%s in a browser: got %s, want %q in it", c.name, text, want)
			}
		}
	}
	w := d.do("POST", "/init", `{"accessToken":"second"}`, "E2b-Sandbox-Id", box.SandboxID, "E2b-Sandbox-Port", "49983", "X-Access-Token", box.EnvdToken)
	if w.Code != 401 {
		t.Errorf("a change of the token by /init: got %d %s, want 401", w.Code, w.Body)
	}
}
