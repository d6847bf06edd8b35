package test_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/host/netns"
)

// A stranger sends raw HTTP requests to the daemon, without the client package.
type stranger struct {
	*daemonHarness
	http *http.Client
}

func (h *daemonHarness) stranger() stranger {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(h.data, "glasshouse.sock"))
	}
	t := &http.Transport{DialContext: dial}
	h.Cleanup(t.CloseIdleConnections)
	return stranger{h, &http.Client{Transport: t, Timeout: 2 * time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// An answer is a response of the daemon.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// problem decodes the response body as an API problem.
func (a answer) problem() (p wire.Problem, ok bool) {
	err := json.Unmarshal(a.body, &p)
	return p, err == nil && a.header.Get("Content-Type") == "application/problem+json" && p.Status == a.status && p.Type != "" && p.Title != ""
}

func (s stranger) do(method, path, body string, header ...string) answer {
	s.Helper()
	req, err := http.NewRequest(method, "http://glasshouse/", strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	req.URL.Opaque = "//glasshouse" + path // sent unmodified, without URL normalization
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := s.http.Do(req)
	if err != nil {
		s.Errorf("%s %.60s: %v", method, path, err)
		return answer{}
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		s.Errorf("%s %.60s: %v", method, path, err)
	}
	return answer{resp.StatusCode, resp.Header, data}
}

// resources returns the number of open files and goroutines of the daemon.
func (h *daemonHarness) resources() (files, goroutines int) {
	h.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", h.cmd.Process.Pid))
	if err != nil {
		h.Fatal(err)
	}
	metrics, err := h.Metrics(h.Context())
	if err != nil {
		h.Fatal(err)
	}
	scan := bufio.NewScanner(bytes.NewReader(metrics))
	for scan.Scan() {
		fmt.Sscanf(scan.Text(), "go_goroutines %d", &goroutines)
	}
	if goroutines == 0 {
		h.Error("the metrics have no goroutine count")
	}
	return len(fds), goroutines
}

// checkResources fails the test unless the daemon returns to about its previous resource usage.
func (h *daemonHarness) checkResources(files, goroutines int) {
	h.Helper()
	const spare = 12 // idle connections that are kept open for a while
	var f, g int
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		f, g = h.resources()
		if f <= files+spare && g <= goroutines+2*spare {
			return
		}
	}
	h.Errorf("before: %d open files and %d goroutines; now: %d and %d, want about the same", files, goroutines, f, g)
}

func TestBadRequestsReturnProblems(t *testing.T) {
	h := open(t, "")
	s := h.stranger()
	j := h.running(wire.CreateJail{})
	at := "/jails/" + string(j.ID)
	for _, c := range []struct {
		name, method, path, body string
		status                   int
		field                    string
	}{
		{"unknown field", "POST", "/jails", `{"memory":"lots"}`, 400, "memory"},
		{"unknown field within", "POST", "/jails", `{"limits":{"memory":1}}`, 400, "limits.memory"},
		{"wrong type", "POST", "/jails", `{"limits":{"memory_mb":"1"}}`, 400, "limits.memory_mb"},
		{"number too large", "POST", "/jails", `{"limits":{"memory_mb":1e99}}`, 400, "limits.memory_mb"},
		{"over the maximum", "POST", "/jails", `{"limits":{"memory_mb":8193}}`, 400, "limits.memory_mb"},
		{"negative", "POST", "/jails", `{"limits":{"disk_mb":-1}}`, 400, "limits.disk_mb"},
		{"no such network", "POST", "/jails", `{"network":"some"}`, 400, "network"},
		{"unknown runtime", "POST", "/jails", `{"runtime":"docker"}`, 400, "runtime"},
		{"half a document", "POST", "/jails", `{"name":`, 400, ""},
		{"two documents", "POST", "/jails", `{}{}`, 400, ""},
		{"a list", "POST", "/jails", `[]`, 400, ""},
		{"null bytes", "POST", "/jails", "{\"name\":\"a\\u0000b\"}", 400, "name"},
		{"not UTF-8", "POST", "/jails", "{\"name\":\"\xff\xfe\"}", 400, ""},
		{"deep", "POST", "/jails", strings.Repeat(`{"limits":`, 20000), 400, ""},
		{"oversize", "POST", "/jails", `{"name":"` + strings.Repeat("x", 2<<20) + `"}`, 413, ""},
		{"not JSON", "POST", "/jails", "name=x", 400, ""},
		{"traversal in an id", "GET", "/jails/..%2f..%2fetc%2fpasswd", "", 404, ""},
		{"dots for an id", "GET", "/jails/%2e%2e", "", 404, ""},
		{"a long id", "GET", "/jails/" + strings.Repeat("j", 10000), "", 404, ""},
		{"no such jail", "DELETE", "/jails/j-abcdefghjkmn", "", 404, ""},
		{"no such place", "GET", "/etc/passwd", "", 404, ""},
		{"no such method", "PATCH", "/jails", "{}", 405, ""},
		{"traversal of a file", "GET", at + "/files?path=../../../../etc/shadow", "", 400, "path"},
		{"no path", "GET", at + "/files", "", 400, "path"},
		{"null in a path", "GET", at + "/files?path=/a%00b", "", 400, "path"},
		{"a long path", "GET", at + "/files?path=/" + strings.Repeat("x", 5000), "", 400, "path"},
		{"nothing to run", "POST", at + "/exec", `{}`, 400, ""},
		{"two things to run", "POST", at + "/exec", `{"cmd":"true","argv":["true"]}`, 400, ""},
		{"null in an argument", "POST", at + "/exec", "{\"argv\":[\"a\\u0000b\"]}", 400, "argv"},
		{"no time at all", "POST", at + "/exec", `{"cmd":"true","timeout_ms":-5}`, 400, "timeout_ms"},
		{"an unknown exec", "GET", at + "/execs/x-abcdefghjkmn", "", 404, ""},
		{"a bad page", "GET", "/jails?limit=minus", "", 400, "limit"},
		{"a huge page", "GET", "/jails?limit=99999999999999999999", "", 400, "limit"},
	} {
		a := s.do(c.method, c.path, c.body)
		p, ok := a.problem()
		if a.status != c.status || !ok || c.field != "" && p.Field != c.field {
			t.Errorf("%s: status %d, field %q, %.200q; want %d about %q, as a problem", c.name, a.status, p.Field, a.body, c.status, c.field)
		}
	}
	if got := h.sh(j.ID, "echo alive"); got != "alive" {
		t.Errorf("after the bad requests the jail prints %q, want alive", got)
	}
}

func TestIdempotencyKey(t *testing.T) {
	h := open(t, "")
	s := h.stranger()
	var wg sync.WaitGroup
	ids := make([]string, 10)
	for i := range ids { // in parallel
		wg.Go(func() {
			a := s.do("POST", "/jails", `{"name":"once"}`, "Idempotency-Key", "k1")
			var j wire.Jail
			json.Unmarshal(a.body, &j)
			ids[i] = string(j.ID)
			if a.status != 201 {
				t.Errorf("status %d: %s", a.status, a.body)
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] || id == "" {
			t.Errorf("requests with one idempotency key created jails %q, want one jail", ids)
			break
		}
	}
	if a := s.do("POST", "/jails", `{"name":"twice"}`, "Idempotency-Key", "k1"); a.status != 422 {
		t.Errorf("another body with the same key: got %d %s, want 422", a.status, a.body)
	}
	if a := s.do("POST", "/jails", `{}`, "Idempotency-Key", strings.Repeat("k", 1000)); a.status != 400 {
		t.Errorf("an overlong key: got %d %s, want 400", a.status, a.body)
	}
	h.kill()
	h.start()
	s = h.stranger()
	a := s.do("POST", "/jails", `{"name":"once"}`, "Idempotency-Key", "k1")
	var j wire.Jail
	json.Unmarshal(a.body, &j)
	if a.status != 201 || string(j.ID) != ids[0] {
		t.Errorf("after a daemon kill: got %d %s, want jail %s", a.status, a.body, ids[0])
	}
	if all, err := client.Collect(h.Jails(t.Context(), client.JailFilter{})); err != nil || len(all) != 1 {
		t.Errorf("got %d jails, %v; want one", len(all), err)
	}
}

func TestDeleteJailDuringRequests(t *testing.T) {
	h := open(t, "pool: {size: 0}\n") // spare jails of the pool are observed and use files
	s := h.stranger()
	h.DeleteJail(t.Context(), h.running(wire.CreateJail{}).ID) // makes the daemon allocate everything that it allocates only once
	files, goroutines := h.resources()
	for round := range 20 {
		j, err := h.CreateJail(t.Context(), wire.CreateJail{Command: []string{"sleep", "100"}})
		if err != nil {
			t.Fatal(err)
		}
		at := "/jails/" + string(j.ID)
		var wg sync.WaitGroup
		for i, what := range []string{"start", "stop", "start", "pause", "exec", "", ""} {
			wg.Go(func() {
				time.Sleep(time.Duration(rand.IntN(20+round)) * time.Millisecond)
				method, path, body := "POST", at+"/"+what, ""
				if what == "" {
					method, path = "DELETE", at
				}
				if what == "exec" {
					body = `{"cmd":"sleep 100"}`
				}
				a := s.do(method, path, body)
				// A command whose jail is deleted while it runs fails with 503.
				gone := what == "exec" && a.status == 503
				if _, ok := a.problem(); a.status >= 500 && !gone || a.status >= 400 && !ok {
					t.Errorf("%d %s %s: %d %s", i, method, what, a.status, a.body)
				}
			})
		}
		wg.Wait()
		if a := s.do("DELETE", at, ""); a.status != 204 && a.status != 404 {
			t.Errorf("final delete: got %d %s, want 204 or 404", a.status, a.body)
		}
	}
	h.checkResources(files, goroutines)
}

func TestConcurrentCreateAndDeleteOfFiftyJails(t *testing.T) {
	h := open(t, "pool: {size: 0}\n")
	s := h.stranger()
	h.DeleteJail(t.Context(), h.running(wire.CreateJail{}).ID) // makes the daemon allocate everything that it allocates only once
	files, goroutines := h.resources()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			a := s.do("POST", "/jails", `{"limits":{"disk_mb":32,"memory_mb":64}}`)
			var j wire.Jail
			if err := json.Unmarshal(a.body, &j); err != nil || a.status != 201 {
				t.Errorf("create: %d %s", a.status, a.body)
				return
			}
			if a := s.do("DELETE", "/jails/"+string(j.ID), ""); a.status != 204 {
				t.Errorf("delete: %d %s", a.status, a.body)
			}
		})
	}
	wg.Wait()
	s.http.CloseIdleConnections()
	h.checkResources(files, goroutines)
	if left := h.jailsOnDisk(); len(left) > 0 {
		t.Errorf("jails left on disk: %q", left)
	}
}

// A daemon that runs for months serves thousands of jails. The test compares its resource usage
// after some jails of each kind with its usage at the end.
func TestResourcesAfterThousandsOfJails(t *testing.T) {
	onlyThorough(t)
	h := open(t, "pool: {size: 0}\n")
	var made sync.Map // names of network interfaces
	networks := []string{"isolated", "proxy", "bridged", "full"}
	live := func(n int) error {
		j, err := h.CreateJail(t.Context(), wire.CreateJail{Network: networks[n%len(networks)]})
		if err != nil {
			return err
		}
		j, err = h.StartJail(t.Context(), j.ID)
		if err != nil {
			return err
		}
		x, err := h.Exec(t.Context(), j.ID, wire.ExecRequest{Cmd: "echo here > /root/f; cat /root/f"})
		if err != nil {
			return err
		}
		if stdout, stderr, err := client.Output(x); err != nil || string(stdout) != "here\n" {
			return fmt.Errorf("command in %s: stdout %q, stderr %q: %w", j.ID, stdout, stderr, err)
		}
		made.Store(netns.Link(string(j.ID)), true)
		if n%20 == 0 {
			if _, err := h.TakeSnapshot(t.Context(), j.ID, wire.TakeSnapshot{}); err != nil {
				return err
			}
		}
		return h.DeleteJailAndSnapshots(t.Context(), j.ID)
	}
	var next atomic.Int64
	until := func(last int64) {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for n := next.Add(1); n <= last && !t.Failed(); n = next.Add(1) {
					if err := live(int(n)); err != nil {
						t.Errorf("jail %d: %v", n, err)
					}
				}
			})
		}
		wg.Wait()
		next.Store(last)
	}
	until(200)
	files, goroutines := h.resources()
	memory := h.rss()
	until(2000)
	h.checkResources(files, goroutines)
	if left := h.jailsOnDisk(); len(left) > 0 {
		t.Errorf("jails left on disk: %q", left)
	}
	links, err := os.ReadDir("/sys/class/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if _, ours := made.Load(l.Name()); ours {
			t.Errorf("the network interface %s is left", l.Name())
		}
	}
	now := h.rss()
	t.Logf("the daemon has %d KiB after 200 jails, %d after 2000", memory>>10, now>>10)
	if now > 2*memory {
		t.Errorf("daemon memory grew from %d KiB to %d KiB, want at most twice as much", memory>>10, now>>10)
	}
}

func (h *daemonHarness) jailsOnDisk() []string {
	dirs, _ := filepath.Glob(filepath.Join(h.data, "jails", "*"))
	return dirs
}

func TestGarbageRequests(t *testing.T) {
	h := open(t, "", "--listen", "127.0.0.1:0")
	j := h.running(wire.CreateJail{})
	files, goroutines := h.resources()

	// Many clients that never finish a request header.
	var slow []net.Conn
	for range 50 {
		c, err := net.Dial("tcp", h.tcpAddr())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "GET /jails HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
		slow = append(slow, c)
	}

	s := h.stranger()
	rng := rand.New(rand.NewPCG(1, 2)) // fixed seed: the same garbage in each run
	pick := func(words ...string) string { return words[rng.IntN(len(words))] }
	junk := func(n int) string {
		b := make([]byte, rng.IntN(n))
		for i := range b {
			b[i] = byte(rng.IntN(256))
		}
		return string(b)
	}
	for range 1000 {
		path := "/" + pick("jails", "images", "tokens", "openapi.json", "metrics", fmt.Sprintf("%x", junk(20)))
		if rng.IntN(2) == 0 {
			path += "/" + pick(string(j.ID), "j-abcdefghjkmn", "..", "%00", fmt.Sprintf("%x", junk(200)))
			path += pick("", "/exec", "/files", "/execs", "/start", "/fs/diff", "/terminal", "/files/watch", "/stop/..")
		}
		path += pick("", "?path="+fmt.Sprintf("%x", junk(50)), "?limit=-1", "?%zz", "?after="+fmt.Sprintf("%x", junk(100)))
		body := pick("", "{}", junk(300), `{"argv":[`+fmt.Sprintf("%q", junk(30))+`]}`, strings.Repeat("[", rng.IntN(5000)), `{"cmd":"true","pty":{"cols":0,"rows":99999}}`)
		a := s.do(pick("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "BREW"), path, body, pick("Accept", "Range", "Last-Event-ID", "Idempotency-Key", "Upgrade", "X-A"), fmt.Sprintf("%q", junk(60)))
		if a.status >= 500 && a.status != 501 {
			t.Errorf("%s with %.60q: %d %.200s", path, body, a.status, a.body)
		}
	}
	// Clients that do not speak HTTP.
	for range 50 {
		if c, err := net.Dial("tcp", h.tcpAddr()); err == nil {
			io.WriteString(c, junk(500)+"\r\n\r\n")
			c.Close()
		}
	}
	if err := h.Ready(t.Context()); err != nil {
		t.Errorf("Ready after the garbage: %v", err)
	}
	all, err := client.Collect(h.Jails(t.Context(), client.JailFilter{}))
	if err != nil {
		t.Error(err)
	}
	for _, j := range all { // some of the garbage is a valid request
		if err := h.DeleteJail(t.Context(), j.ID); err != nil {
			t.Error(err)
		}
	}
	for _, c := range slow {
		c.SetReadDeadline(time.Now().Add(30 * time.Second))
		if _, err := io.Copy(io.Discard, c); err != nil {
			t.Errorf("the daemon still waits for an unfinished header: %v", err)
		}
		c.Close()
	}
	s.http.CloseIdleConnections()
	h.checkResources(files, goroutines)
}
