package api_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/api/apitest"
	"glasshouse/api/wire"
	"glasshouse/policy/access"
)

// raw sends bytes and returns the response until the server closes the connection.
func (d *harness) raw(bytes string) string {
	d.t.Helper()
	conn, err := net.Dial("tcp", d.tcp)
	if err != nil {
		d.t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	io.WriteString(conn, bytes)
	answer, err := io.ReadAll(conn)
	if len(answer) == 0 && err != nil {
		d.t.Fatalf("no response to %.60q: %v", bytes, err)
	}
	return string(answer)
}

func TestMalformedRequestsAreRefused(t *testing.T) {
	d := open(t, apitest.New())
	auth := "Authorization: Bearer " + d.tokens[access.Admin] + "\r\nConnection: close\r\n"
	for name, c := range map[string]struct{ bytes, status string }{
		"nonsense":                  {"\x16\x03\x01 hello\r\n\r\n", "400"},
		"two lengths":               {"POST /jails HTTP/1.1\r\nHost: localhost\r\n" + auth + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ", "400"},
		"a negative length":         {"POST /jails HTTP/1.1\r\nHost: localhost\r\n" + auth + "Content-Length: -1\r\n\r\n{}", "400"},
		"a header without end":      {"GET /jails HTTP/1.1\r\nHost: localhost\r\n" + auth + "X: " + strings.Repeat("a", 200<<10) + "\r\n\r\n", "431"},
		"two hosts":                 {"GET /jails HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n" + auth + "\r\n", "400"},
		"an absolute URL elsewhere": {"GET http://evil.example/jails HTTP/1.1\r\nHost: localhost\r\n" + auth + "\r\n", "403"},
		"a path that climbs":        {"GET /jails/../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n" + auth + "\r\n", "404"},
		"a method of its own":       {"BREW /jails HTTP/1.1\r\nHost: localhost\r\n" + auth + "\r\n", "405"},
		"CONNECT":                   {"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n" + auth + "\r\n", "403"},
		"a body that breaks off":    {"POST /jails HTTP/1.1\r\nHost: localhost\r\n" + auth + "Transfer-Encoding: chunked\r\n\r\nZZ\r\n", "400"},
	} {
		if got := d.raw(c.bytes); !strings.HasPrefix(got, "HTTP/1.1 "+c.status) {
			t.Errorf("%s: got response %.60q, want status %s", name, got, c.status)
		}
	}
	if n := d.jails.Created(); n != 0 {
		t.Errorf("%d jails were created, want 0", n)
	}
}

func TestHundredConcurrentJails(t *testing.T) {
	d := open(t, apitest.New())
	var wg sync.WaitGroup
	for n := range 100 {
		wg.Go(func() {
			var j wire.Jail
			d.want(201, req{as: access.Operator, method: "POST", path: "/jails", body: wire.CreateJail{Name: fmt.Sprint(n)}}, &j)
			self := "/jails/" + string(j.ID)
			var both sync.WaitGroup
			for range 2 { // concurrent stop requests for one jail both succeed
				both.Go(func() { d.want(200, req{as: access.Operator, method: "POST", path: self + "/stop"}, nil) })
			}
			both.Wait()
			d.want(204, req{as: access.Operator, method: "DELETE", path: self}, nil)
		})
	}
	wg.Wait()
}

// Output events must not accumulate for a client that does not read.
func TestStalledStreamReaderIsDisconnected(t *testing.T) {
	d := open(t, apitest.Start(t))
	j := d.running()
	conn, err := net.Dial("tcp", d.tcp)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.(*net.TCPConn).SetReadBuffer(4096)
	body := `{"cmd":"head -c 200000000 /dev/zero","stream":true}`
	fmt.Fprintf(conn, "POST /jails/%s/exec HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s",
		j, d.tokens[access.Operator], len(body), body)
	head, err := http.ReadResponse(bufio.NewReaderSize(conn, 512), nil)
	if err != nil {
		t.Fatal(err)
	}
	x := d.wait(head.Header.Get("Location")) // the command ends although the client does not read
	if x.StdoutBytes != 200_000_000 || code(x) != 0 {
		t.Errorf("got %+v, want 200 MB of output", x)
	}
}

func TestLogsAndMetrics(t *testing.T) {
	d := open(t, apitest.New())
	j := d.running()
	d.do(req{as: access.Viewer, method: "GET", path: "/jails?name=hunter2"})
	d.do(req{as: access.Operator, method: "GET", path: "/jails/" + string(j)})
	d.do(req{method: "GET", path: "/jails/" + strings.Repeat("x", 50)})
	d.do(req{as: access.Operator, method: "PATCH", path: "/evil-label-" + strings.Repeat("y", 50)})
	d.do(req{as: access.Operator, method: "POST", path: "/jails", body: wire.CreateJail{Env: map[string]string{"K": "hunter3"}}})
	log := d.log.String()
	for _, secret := range []string{"hunter2", "hunter3", "gh_"} {
		if strings.Contains(log, secret) {
			t.Errorf("the log contains %s:\n%s", secret, log)
		}
	}
	for _, word := range []string{`request="POST /jails"`, "status=201", `caller="a operator"`, "role=operator", "status=401"} {
		if !strings.Contains(log, word) {
			t.Errorf("the log lacks %s:\n%s", word, log)
		}
	}
	m := d.metrics()
	for _, line := range []string{
		`glasshouse_http_requests_total{method="GET",route="/jails/{id}",status="200"} 1`,
		`glasshouse_http_requests_total{method="POST",route="/jails",status="201"} 2`,
		`glasshouse_http_requests_total{method="",route="none",status="401"} 1`,
		`glasshouse_jails{state="running"} 1`, `glasshouse_jails{state="created"} 1`,
		`glasshouse_http_request_seconds_count{method="POST",route="/jails"} 2`, "go_goroutines", "process_open_fds",
	} {
		if !strings.Contains(m, line) {
			t.Errorf("the metrics lack %s", line)
		}
	}
	if strings.Contains(m, "evil-label") || strings.Contains(m, string(j)) {
		t.Error("the path of an unknown route is a label")
	}
}
