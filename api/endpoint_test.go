package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/api"
	"glasshouse/api/apitest"
	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/policy/access"
	"glasshouse/store/storetest"
)

func TestMain(m *testing.M) { os.Exit(apitest.Main(m)) }

// A harness is a server on a unix socket and on TCP, with a token for each role.
type harness struct {
	t      testing.TB
	jails  *apitest.Jails
	kept   *apitest.Snapshots
	server *api.Server
	tokens map[access.Role]string
	socket string
	tcp    string // host:port
	log    *syncBuffer
}

// syncBuffer is a log that can be read concurrently.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func open(t testing.TB, jails *apitest.Jails, change ...func(*api.Options)) *harness {
	t.Helper()
	st, err := storetest.Open(t, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	d := &harness{t: t, jails: jails, kept: apitest.Snapshot(jails), tokens: map[access.Role]string{}, log: &syncBuffer{}}
	ts := &access.Tokens{Store: st.Tokens()}
	for _, role := range []access.Role{access.Admin, access.Operator, access.Viewer, access.Agent} {
		_, d.tokens[role], err = ts.Create(t.Context(), "a "+string(role), role, nil, access.Quota{})
		if err != nil {
			t.Fatal(err)
		}
	}
	o := api.Options{
		Jails: jails, Snapshots: d.kept, Tokens: ts, IdempotencyStore: st.Replays(), Ready: st.Writable,
		Version: wire.Version{Version: "1.2.3"},
		Log:     slog.New(slog.NewTextHandler(d.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, f := range change {
		f(&o)
	}
	d.server = api.New(o)
	d.serve()
	return d
}

func (d *harness) serve() {
	d.t.Helper()
	dir, err := os.MkdirTemp("", "api")
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { os.RemoveAll(dir) })
	d.socket = filepath.Join(dir, "s")
	local, err := net.Listen("unix", d.socket)
	if err != nil {
		d.t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		d.t.Fatal(err)
	}
	d.tcp = tcp.Addr().String()
	var wg, begun sync.WaitGroup
	begun.Add(2)
	wg.Go(func() { d.serveOne(announced{local, sync.OnceFunc(begun.Done)}, true) })
	wg.Go(func() { d.serveOne(announced{tcp, sync.OnceFunc(begun.Done)}, false) })
	begun.Wait() // Serve fails if a short test has ended before it
	d.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := d.server.Shutdown(ctx); err != nil {
			d.t.Errorf("Shutdown: %v", err)
		}
		wg.Wait()
	})
}

// An announced listener calls begun when a server accepts connections.
type announced struct {
	net.Listener
	begun func()
}

func (s announced) Accept() (net.Conn, error) {
	s.begun()
	return s.Listener.Accept()
}

func (d *harness) serveOne(l announced, local bool) {
	defer l.begun() // runs also if Serve fails
	if err := d.server.Serve(l, local); err != nil {
		d.t.Errorf("Serve: %v", err)
	}
}

// A req is a request. The body is marshaled unless it is a string. A header with an empty
// value is omitted.
type req struct {
	as     access.Role // whose token; "" is none
	method string
	path   string
	body   any
	header map[string]string
	local  bool // over the unix socket
}

// A reply is a complete response.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func (d *harness) send(r req) *http.Response {
	d.t.Helper()
	var body io.Reader
	switch b := r.body.(type) {
	case nil:
	case string:
		body = strings.NewReader(b)
	case io.Reader:
		body = b
	default:
		data, err := json.Marshal(b)
		if err != nil {
			d.t.Fatal(err)
		}
		body = bytes.NewReader(data)
	}
	hr, err := http.NewRequestWithContext(d.t.Context(), r.method, "http://"+d.tcp+r.path, body)
	if err != nil {
		d.t.Fatal(err)
	}
	if r.as != "" {
		hr.Header.Set("Authorization", "Bearer "+d.tokens[r.as])
	}
	if body != nil {
		hr.Header.Set("Content-Type", "application/json")
	}
	for k, v := range r.header {
		if k == "Host" {
			hr.Host = v
		}
		hr.Header.Set(k, v)
	}
	resp, err := d.client(r.local).Do(hr)
	if err != nil {
		d.t.Fatalf("%s %s: %v", r.method, r.path, err)
	}
	return resp
}

func (d *harness) client(local bool) *http.Client {
	tr := &http.Transport{DisableKeepAlives: true}
	if local {
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", d.socket)
		}
	}
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func (d *harness) do(r req) reply {
	d.t.Helper()
	resp := d.send(r)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatalf("%s %s: %v", r.method, r.path, err)
	}
	return reply{resp.StatusCode, resp.Header, body}
}

// want fails the test unless the response has the status, and decodes the response.
func (d *harness) want(status int, r req, into any) reply {
	d.t.Helper()
	got := d.do(r)
	if got.status != status {
		d.t.Fatalf("%s %s: status %d, want %d\n%s", r.method, r.path, got.status, status, got.body)
	}
	if into != nil {
		if err := json.Unmarshal(got.body, into); err != nil {
			d.t.Fatalf("%s %s: %v\n%s", r.method, r.path, err, got.body)
		}
	}
	return got
}

// refused fails the test unless the response is a problem with the status, and returns it.
func (d *harness) refused(status int, r req) wire.Problem {
	d.t.Helper()
	var p wire.Problem
	got := d.want(status, r, &p)
	if ct := got.header.Get("Content-Type"); ct != wire.ProblemType {
		d.t.Errorf("%s %s: got Content-Type %q, want %s", r.method, r.path, ct, wire.ProblemType)
	}
	if p.Status != status || p.Type == "" || p.Title == "" {
		d.t.Errorf("%s %s: problem %+v is not complete", r.method, r.path, p)
	}
	return p
}

// running creates and starts a jail.
func (d *harness) running() id.Jail {
	d.t.Helper()
	var j wire.Jail
	d.want(201, req{as: access.Admin, method: "POST", path: "/jails", body: "{}"}, &j)
	d.want(200, req{as: access.Admin, method: "POST", path: "/jails/" + string(j.ID) + "/start"}, nil)
	return j.ID
}
