package client_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"glasshouse/api"
	"glasshouse/api/apitest"
	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
	"glasshouse/policy"
	"glasshouse/policy/access"
	"glasshouse/policy/chain"
	"glasshouse/policy/egress"
	"glasshouse/store/storetest"
)

func TestMain(m *testing.M) { os.Exit(apitest.Main(m)) }

// A daemon is an API server that listens on a unix socket and on TCP.
type daemon struct {
	*client.Client // connects to the unix socket
	jails          *apitest.Jails
	watched        *apitest.Watched
	server         *api.Server
	socket, tcp    string
	token          string
}

func start(t testing.TB, jails *apitest.Jails) *daemon {
	t.Helper()
	return startWith(t, jails, jails)
}

func startWith(t testing.TB, jails *apitest.Jails, m api.Manager) *daemon {
	t.Helper()
	st, err := storetest.Open(t, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	ts := &access.Tokens{Store: st.Tokens()}
	_, secret, err := ts.Create(t.Context(), "test", access.Admin, nil, access.Quota{})
	if err != nil {
		t.Fatal(err)
	}
	watched := apitest.Watch(t, jails)
	server := api.New(api.Options{
		Observed: watched, Snapshots: apitest.Snapshot(jails),
		Jails: m, Governor: silentGovernor{}, Tokens: ts, IdempotencyStore: st.Replays(), Ready: st.Writable, Version: wire.Version{Version: "9"},
		Log: slog.New(slog.DiscardHandler),
	})
	dir, err := os.MkdirTemp("", "client")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	d := &daemon{jails: jails, watched: watched, server: server, socket: filepath.Join(dir, "s"), token: secret}
	d.listen(t, "unix", d.socket)
	d.tcp = d.listen(t, "tcp", "127.0.0.1:0")
	d.Client = d.dial(t, client.Options{Addr: "unix://" + d.socket})
	return d
}

// A silentGovernor has no egress proxies and discards audit log entries.
type silentGovernor struct{ api.Governor }

func (silentGovernor) Egress(id.Jail) (egress.Stats, bool)         { return egress.Stats{}, false }
func (silentGovernor) Note(chain.Kind, policy.Subject, int64, any) {}

func (d *daemon) listen(t testing.TB, network, addr string) string {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { d.server.Serve(l, network == "unix") })
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		d.server.Shutdown(ctx)
		wg.Wait()
	})
	return l.Addr().String()
}

func (d *daemon) dial(t testing.TB, o client.Options) *client.Client {
	t.Helper()
	c, err := client.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (d *daemon) running(t testing.TB) id.Jail {
	t.Helper()
	j, err := d.CreateJail(t.Context(), wire.CreateJail{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.StartJail(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	return j.ID
}

func TestJails(t *testing.T) {
	d := start(t, apitest.New())
	ctx := t.Context()
	for n := range 5 {
		if _, err := d.CreateJail(ctx, wire.CreateJail{Name: fmt.Sprint("n", n), Labels: map[string]string{"odd": fmt.Sprint(n%2 == 1)}}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := client.Collect(d.Jails(ctx, client.JailFilter{}))
	if err != nil || len(all) != 5 {
		t.Fatalf("Jails = %v, %v; want 5", all, err)
	}
	if some, err := client.Collect(d.Jails(ctx, client.JailFilter{Label: map[string]string{"odd": "true"}, State: "created"})); err != nil || len(some) != 2 {
		t.Errorf("Jails of odd = %v, %v; want 2", some, err)
	}
	if one, err := client.Collect(d.Jails(ctx, client.JailFilter{Name: "n3"})); err != nil || len(one) != 1 {
		t.Errorf("Jails named n3 = %v, %v; want 1", one, err)
	}
	j := all[0].ID
	for _, step := range []struct {
		do    func() (wire.Jail, error)
		state string
	}{
		{func() (wire.Jail, error) { return d.StartJail(ctx, j) }, "running"},
		{func() (wire.Jail, error) { return d.PauseJail(ctx, j) }, "paused"},
		{func() (wire.Jail, error) { return d.ResumeJail(ctx, j) }, "running"},
		{func() (wire.Jail, error) { return d.Jail(ctx, j) }, "running"},
		{func() (wire.Jail, error) { return d.StopJail(ctx, j, time.Second) }, "stopped"},
	} {
		if got, err := step.do(); err != nil || got.State != step.state {
			t.Errorf("the jail is %s, %v; want %s", got.State, err, step.state)
		}
	}
	d.jails.Diff = []jail.Change{{Path: "/b", Kind: "added"}, {Path: "/a", Kind: "deleted"}}
	if cs, err := client.Collect(d.Changes(ctx, j, client.ChangesOptions{})); err != nil || len(cs) != 2 || cs[0].Path != "/a" {
		t.Errorf("Changes = %v, %v", cs, err)
	}
	if err := d.DeleteJail(ctx, j); err != nil {
		t.Error(err)
	}
	if err := d.DeleteJail(ctx, j); !errors.Is(err, fault.NotFound) {
		t.Errorf("second DeleteJail = %v, want not found", err)
	}
}

func TestConcurrentChangesOfEgressRulesAreKept(t *testing.T) {
	d := start(t, apitest.New())
	j, err := d.CreateJail(t.Context(), wire.CreateJail{Network: "proxy"})
	if err != nil {
		t.Fatal(err)
	}
	allow := func(e *wire.Egress, host string) { e.Allow = append(e.Allow, wire.EgressRule{Host: host}) }
	calls := 0
	got, err := d.ChangeEgress(t.Context(), j.ID, func(e *wire.Egress) error {
		calls++
		allow(e, "a.example")
		if calls > 2 { // the rules change only twice
			return nil
		}
		_, err := d.ChangeEgress(t.Context(), j.ID, func(e *wire.Egress) error {
			allow(e, fmt.Sprintf("b%d.example", calls))
			return nil
		})
		return err
	})
	var hosts []string
	for _, r := range got.Egress.Allow {
		hosts = append(hosts, r.Host)
	}
	if want := []string{"b1.example", "b2.example", "a.example"}; err != nil || !slices.Equal(hosts, want) {
		t.Errorf("ChangeEgress = hosts %v, %v; want %v", hosts, err, want)
	}
	if now, err := d.Egress(t.Context(), j.ID); err != nil || now.Version != got.Version || now.Version == "" {
		t.Errorf("Egress = version %q, %v; want %q", now.Version, err, got.Version)
	}

	// A conflict with another cause does not repeat forever.
	d.jails.Fail = func(string) error {
		return fault.Newf(fault.Conflict, "jail.ReplacePolicy", string(j.ID), "the jail is being deleted")
	}
	_, err = d.ChangeEgress(t.Context(), j.ID, func(*wire.Egress) error { return nil })
	if !errors.Is(err, fault.Conflict) {
		t.Errorf("ChangeEgress of a jail that is being deleted = %v, want %v", err, fault.Conflict)
	}
}

func TestErrorsKeepKindFieldAndRemedy(t *testing.T) {
	d := start(t, apitest.New())
	for _, kind := range []fault.Kind{
		fault.Invalid, fault.Unauthenticated, fault.Denied, fault.NotFound, fault.Conflict, fault.TooLarge,
		fault.Mismatch, fault.Exhausted, fault.NoSpace, fault.Unsupported, fault.Unavailable, fault.Timeout,
	} {
		d.jails.Fail = func(string) error {
			return &fault.Error{Op: "jail.Start", On: "j-1", Kind: kind, Field: "a.b", Remedy: "do this", Err: errors.New("the cause")}
		}
		_, err := d.StartJail(t.Context(), "j-aaaaaaaaaaaa")
		if !errors.Is(err, kind) || fault.FieldOf(err) != "a.b" || fault.RemedyOf(err) != "do this" || !strings.Contains(err.Error(), "j-1: the cause") {
			t.Errorf("StartJail with an error of kind %s = %v", kind, err)
		}
	}
	d.jails.Fail = func(string) error { return errors.New("secret") }
	if _, err := d.StartJail(t.Context(), "j-aaaaaaaaaaaa"); err == nil || fault.KindOf(err) != "" || strings.Contains(err.Error(), "secret") {
		t.Errorf("StartJail with an internal error = %v, want an error without a kind and details", err)
	}
}

func TestAddresses(t *testing.T) {
	d := start(t, apitest.New())
	for _, addr := range []string{"unix://" + d.socket, d.socket, d.tcp, "http://" + d.tcp, "http://" + d.tcp + "/"} {
		c, err := client.New(client.Options{Addr: addr, Token: d.token})
		if err != nil {
			t.Errorf("New(%s): %v", addr, err)
			continue
		}
		if v, err := c.Version(t.Context()); err != nil || v.Version != "9" {
			t.Errorf("Version at %s = %v, %v", addr, v, err)
		}
	}
	for _, addr := range []string{"unix://relative", "ftp://x", "http://", "http://h/path", "http://[::1"} {
		if _, err := client.New(client.Options{Addr: addr}); !errors.Is(err, fault.Invalid) {
			t.Errorf("New(%s) = %v, want invalid", addr, err)
		}
	}
	t.Setenv("GLASSHOUSE_ADDR", "http://"+d.tcp)
	t.Setenv("GLASSHOUSE_TOKEN", d.token)
	if _, err := d.dial(t, client.Options{}).Version(t.Context()); err != nil {
		t.Errorf("Version with options from the environment: %v", err)
	}
	absent := d.dial(t, client.Options{Addr: "/no/such/socket"})
	if err := absent.Health(t.Context()); !errors.Is(err, fault.Unavailable) || fault.RemedyOf(err) == "" {
		t.Errorf("Health without a daemon = %v, want unavailable and a remedy", err)
	}
	redirector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer t" {
			t.Error("the request has no token")
		}
		http.Redirect(w, r, "http://other.example/", http.StatusFound)
	}))
	defer redirector.Close()
	if err := d.dial(t, client.Options{Addr: redirector.URL, Token: "t"}).Health(t.Context()); err == nil || fault.KindOf(err) != "" {
		t.Errorf("Health with a redirect = %v, want an error without a kind", err)
	}
}

func TestDaemonCalls(t *testing.T) {
	d := start(t, apitest.New())
	ctx := t.Context()
	if err := errors.Join(d.Health(ctx), d.Ready(ctx)); err != nil {
		t.Error(err)
	}
	if bs, err := client.Collect(d.Backends(ctx)); err != nil || len(bs) != 2 {
		t.Errorf("Backends = %v, %v", bs, err)
	}
	if ps, err := client.Collect(d.Doctor(ctx)); err != nil || len(ps) != 0 {
		t.Errorf("Doctor = %v, %v", ps, err)
	}
	if is, err := client.Collect(d.Images(ctx)); err != nil || len(is) != 0 {
		t.Errorf("Images = %v, %v", is, err)
	}
	if m, err := d.Metrics(ctx); err != nil || !strings.Contains(string(m), `glasshouse_jails{state="running"} 0`) {
		t.Errorf("Metrics = %.200s, %v", m, err)
	}
	if doc, err := d.OpenAPI(ctx); err != nil || !strings.Contains(string(doc), "3.1") {
		t.Errorf("OpenAPI = %.100s, %v", doc, err)
	}
	tok, err := d.CreateToken(ctx, wire.CreateToken{Name: "ci", Role: "viewer"})
	if err != nil {
		t.Fatal(err)
	}
	if list, err := client.Collect(d.Tokens(ctx)); err != nil || len(list) != 2 || list[1].ID != tok.ID {
		t.Errorf("Tokens = %v, %v", list, err)
	}
	viewer := d.dial(t, client.Options{Addr: d.tcp, Token: tok.Token})
	if _, err := viewer.CreateJail(ctx, wire.CreateJail{}); !errors.Is(err, fault.Denied) {
		t.Errorf("CreateJail with role viewer = %v, want denied", err)
	}
	if err := d.RevokeToken(ctx, tok.ID); err != nil {
		t.Error(err)
	}
	if _, err := viewer.Version(ctx); !errors.Is(err, fault.Unauthenticated) {
		t.Errorf("request with a revoked token = %v, want unauthenticated", err)
	}
}

func TestExec(t *testing.T) {
	d := start(t, apitest.Start(t))
	ctx, j := t.Context(), d.running(t)
	x, err := d.Exec(ctx, j, wire.ExecRequest{Cmd: `printf 'a\377'; echo err >&2; exit 4`})
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr, err := client.Output(x)
	if err != nil || string(stdout) != "a\xff" || string(stderr) != "err\n" || *x.ExitCode != 4 {
		t.Errorf("Output = %q, %q, %v of %+v", stdout, stderr, err, x)
	}
	if _, err := d.Exec(ctx, j, wire.ExecRequest{}); !errors.Is(err, fault.Invalid) {
		t.Errorf("Exec without a command = %v, want invalid", err)
	}
	x, err = d.Exec(ctx, j, wire.ExecRequest{Cmd: "cat; stty size", PTY: &wire.Size{Cols: 10, Rows: 10}, StdinOpen: true, Detach: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Resize(ctx, j, x.ID, wire.Size{Cols: 33, Rows: 44}); err != nil {
		t.Error(err)
	}
	if err := d.Stdin(ctx, j, x.ID, strings.NewReader("typed\n\x04"), false); err != nil {
		t.Error(err)
	}
	s, err := d.Follow(ctx, j, x.ID, 0)
	if err != nil {
		t.Fatal(err)
	}
	if out := drain(t, s); !strings.Contains(out, "typed") || !strings.Contains(out, "44 33") {
		t.Errorf("Follow returned the output %q", out)
	}
	x, _ = d.Exec(ctx, j, wire.ExecRequest{Argv: []string{"sleep", "60"}, Detach: true})
	if err := d.Signal(ctx, j, x.ID, "KILL"); err != nil {
		t.Error(err)
	}
	if s, err = d.Follow(ctx, j, x.ID, -1); err != nil {
		t.Fatal(err)
	}
	drain(t, s)
	if got := s.Exec(); got.Signal != "KILL" || got.Running {
		t.Errorf("Follow ended with %+v, want a killed command", got)
	}
	if list, err := client.Collect(d.Execs(ctx, j)); err != nil || len(list) != 3 {
		t.Errorf("Execs = %v, %v; want 3", list, err)
	}
	if got, err := d.ExecResult(ctx, j, x.ID); err != nil || got.ID != x.ID {
		t.Errorf("ExecResult = %v, %v", got, err)
	}
	if _, err := d.Follow(ctx, j, "x-aaaaaaaaaaaa", 0); !errors.Is(err, fault.NotFound) {
		t.Errorf("Follow of an unknown command = %v, want not found", err)
	}
}

func drain(t testing.TB, s *client.ExecStream) string {
	t.Helper()
	defer s.Close()
	var b strings.Builder
	for {
		o, err := s.Next()
		if err == io.EOF {
			return b.String()
		}
		if err != nil {
			t.Fatalf("Next: %v after %d bytes", err, b.Len())
		}
		if o.Lost > 0 {
			t.Fatalf("%d bytes lost", o.Lost)
		}
		b.Write(o.Data)
	}
}

// A proxy is a TCP proxy to a daemon. Tests break its connections with disconnect, and make it
// refuse new ones with down.
type proxy struct {
	net.Listener
	down atomic.Bool
	mu   sync.Mutex
	// +checklocks:mu
	open map[net.Conn]bool
	n    atomic.Int32
}

func newProxy(t testing.TB, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln := &proxy{Listener: l, open: map[net.Conn]bool{}}
	t.Cleanup(func() { l.Close(); ln.disconnect() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			ln.n.Add(1)
			up, err := net.Dial("tcp", to)
			if err != nil || ln.down.Load() {
				c.Close()
				continue
			}
			ln.mu.Lock()
			ln.open[c], ln.open[up] = true, true
			ln.mu.Unlock()
			go func() { io.Copy(up, c); up.Close() }()
			go func() { io.Copy(c, up); c.Close() }()
		}
	}()
	return ln
}

// disconnect resets all open connections.
func (l *proxy) disconnect() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		if tc, ok := c.(*net.TCPConn); ok {
			tc.SetLinger(0)
		}
		c.Close()
		delete(l.open, c)
	}
}

func TestStreamResumesAfterDisconnect(t *testing.T) {
	d := start(t, apitest.Start(t))
	ctx, j := t.Context(), d.running(t)
	ln := newProxy(t, d.tcp)
	c := d.dial(t, client.Options{Addr: ln.Addr().String(), Token: d.token})
	s, err := c.Stream(ctx, j, wire.ExecRequest{Cmd: `i=0; while [ $i -lt 400 ]; do i=$((i+1)); echo line $i; [ $((i%20)) = 0 ] && sleep 0.05; done; exit 9`})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var out strings.Builder
	for n := 0; ; n++ {
		o, err := s.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("Next: %v", err)
		}
		if n%3 == 0 {
			ln.disconnect()
		}
		if n == 5 {
			ln.down.Store(true)
			time.AfterFunc(300*time.Millisecond, func() { ln.down.Store(false) })
		}
		out.Write(o.Data)
	}
	var want strings.Builder
	for i := range 400 {
		fmt.Fprintf(&want, "line %d\n", i+1)
	}
	if out.String() != want.String() {
		t.Errorf("received %d bytes, want the %d written bytes in order", out.Len(), want.Len())
	}
	if got := s.Exec(); got.ExitCode == nil || *got.ExitCode != 9 {
		t.Errorf("the command ended with %+v, want exit code 9", got)
	}
	if ln.n.Load() < 3 {
		t.Errorf("%d connections through the proxy, want at least 3", ln.n.Load())
	}
	if list, _ := client.Collect(d.Execs(ctx, j)); len(list) != 1 {
		t.Errorf("%d commands ran, want 1", len(list))
	}
}

func TestClosedStreamEnds(t *testing.T) {
	apitest.Goroutines(t)
	d := start(t, apitest.Start(t))
	j := d.running(t)
	s, err := d.Stream(t.Context(), j, wire.ExecRequest{Cmd: "echo a; sleep 60"})
	if err != nil {
		t.Fatal(err)
	}
	if o, err := s.Next(); err != nil || string(o.Data) != "a\n" {
		t.Fatalf("Next = %q, %v", o.Data, err)
	}
	time.AfterFunc(50*time.Millisecond, func() { s.Close() })
	if _, err := s.Next(); !errors.Is(err, context.Canceled) {
		t.Errorf("Next of a closed stream = %v, want canceled", err)
	}
}

// The response to the first request is lost, so the client sends the request again with the
// same idempotency key.
func TestLostResponseCreatesOneJail(t *testing.T) {
	jails := apitest.New()
	d := start(t, jails)
	var n atomic.Int32
	flaky := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := httptest.NewRecorder()
		d.server.Handler().ServeHTTP(rec, r)
		if n.Add(1) == 1 {
			panic(http.ErrAbortHandler)
		}
		for k, v := range rec.Header() {
			w.Header()[k] = v
		}
		w.WriteHeader(rec.Code)
		w.Write(rec.Body.Bytes())
	}))
	defer flaky.Close()
	c := d.dial(t, client.Options{Addr: flaky.URL, Token: d.token})
	j, err := c.CreateJail(t.Context(), wire.CreateJail{Name: "one"})
	if err != nil || j.Name != "one" {
		t.Fatalf("CreateJail = %v, %v", j, err)
	}
	if jails.Created() != 1 || n.Load() != 2 {
		t.Errorf("%d jails after %d requests, want 1 jail after 2 requests", jails.Created(), n.Load())
	}
}

func TestFiles(t *testing.T) {
	d := start(t, apitest.Start(t))
	ctx, j, dir := t.Context(), d.running(t), t.TempDir()
	uid := uint32(os.Getuid())
	f, err := d.WriteFile(ctx, j, dir+"/a/b c", strings.NewReader("hello"), client.WriteOptions{Mode: 0o640 | os.ModeSetgid, Parents: true, UID: &uid})
	if err != nil || f.Mode != "2640" || f.Size != 5 {
		t.Fatalf("WriteFile = %+v, %v", f, err)
	}
	if _, err := d.WriteFile(ctx, j, dir+"/a/b c", strings.NewReader(" world"), client.WriteOptions{Append: true}); err != nil {
		t.Error(err)
	}
	if got := read(t)(d.ReadFile(ctx, j, dir+"/a/b c", 0, -1)); got != "hello world" {
		t.Errorf("read %q", got)
	}
	if got := read(t)(d.ReadFile(ctx, j, dir+"/a/b c", 3, 4)); got != "lo w" {
		t.Errorf("4 bytes at offset 3: %q", got)
	}
	if f, err := d.Mkdir(ctx, j, dir+"/x", 0o700, false); err != nil || f.Type != "dir" || f.Mode != "0700" {
		t.Errorf("Mkdir = %+v, %v", f, err)
	}
	if err := d.Move(ctx, j, wire.MoveFile{From: dir + "/a/b c", To: dir + "/x/d"}); err != nil {
		t.Error(err)
	}
	if f, err := d.Stat(ctx, j, dir+"/x/d"); err != nil || f.Size != 11 {
		t.Errorf("Stat = %+v, %v", f, err)
	}
	if list, err := client.Collect(d.Files(ctx, j, dir)); err != nil || len(list) != 2 || list[0].Name != "a" {
		t.Errorf("Files = %v, %v", list, err)
	}
	if _, err := d.ReadFile(ctx, j, dir+"/none", 0, -1); !errors.Is(err, fault.NotFound) {
		t.Errorf("ReadFile of a missing file = %v, want not found", err)
	}
	if _, err := d.ReadFile(ctx, j, dir, 0, -1); err == nil {
		t.Error("ReadFile of a directory succeeded")
	}
	archive, err := d.Tar(ctx, j, dir+"/x")
	if err != nil {
		t.Fatal(err)
	}
	data, _ := io.ReadAll(archive)
	archive.Close()
	if h, err := tar.NewReader(bytes.NewReader(data)).Next(); err != nil {
		t.Errorf("Tar: %v, %v", h, err)
	}
	if err := d.Untar(ctx, j, dir+"/y", bytes.NewReader(data), true); err != nil {
		t.Error(err)
	}
	if err := d.Remove(ctx, j, dir+"/x", true); err != nil {
		t.Error(err)
	}
	if err := d.Remove(ctx, j, dir+"/x", true); !errors.Is(err, fault.NotFound) {
		t.Errorf("Remove of a missing file = %v, want not found", err)
	}
}

func read(t *testing.T) func(io.ReadCloser, error) string {
	return func(r io.ReadCloser, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
}

func TestLargeFileTransfer(t *testing.T) {
	d := start(t, apitest.Start(t))
	ctx, j, name := t.Context(), d.running(t), t.TempDir()+"/big"
	const size = 64 << 20
	f, err := d.WriteFile(ctx, j, name, io.LimitReader(zeros{}, size), client.WriteOptions{})
	if err != nil || f.Size != size {
		t.Fatalf("WriteFile = %+v, %v", f, err)
	}
	r, err := d.ReadFile(ctx, j, name, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if n, err := io.Copy(io.Discard, r); n != size || err != nil {
		t.Errorf("read %d, %v; want %d", n, err, size)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestWatch(t *testing.T) {
	d := start(t, apitest.Start(t))
	j, dir := d.running(t), t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	events, err := d.Watch(ctx, j, dir, false)
	if err != nil {
		t.Fatal(err)
	}
	os.WriteFile(dir+"/f", nil, 0o600)
	seen := false
	for e, err := range events {
		if err != nil {
			t.Fatal(err)
		}
		if seen = e.Path == dir+"/f" && e.Op == "create"; seen {
			break
		}
	}
	if !seen {
		t.Error("the watch did not report the created file")
	}
}

func TestTerminal(t *testing.T) {
	d := start(t, apitest.Start(t))
	ctx, j := t.Context(), d.running(t)
	term, err := d.Terminal(ctx, j, client.TerminalOptions{Size: wire.Size{Cols: 50, Rows: 20}})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(term, "stty size; X=kept; echo si''zed\n")
	if got := until(t, term, "sized"); !strings.Contains(got, "20 50") {
		t.Errorf("output of the terminal is %q, want its size", got)
	}
	if err := term.Resize(wire.Size{Cols: 60, Rows: 30}); err != nil {
		t.Error(err)
	}
	if err := term.Close(); err != nil {
		t.Error(err)
	}
	again, err := d.Terminal(ctx, j, client.TerminalOptions{Exec: term.Exec().ID})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := again.Signal("NOSUCH"); err != nil {
		t.Error(err)
	}
	fmt.Fprintf(again, "echo $X-$((40+2)); exit 6\n")
	rest, err := io.ReadAll(again)
	if err != nil || !strings.Contains(string(rest), "kept-42") {
		t.Errorf("output after reconnecting is %q, %v", rest, err)
	}
	if x := again.Exec(); x.ExitCode == nil || *x.ExitCode != 6 {
		t.Errorf("the command ended with %+v, want exit code 6", x)
	}
	if err := again.Err(); !errors.Is(err, fault.Invalid) {
		t.Errorf("Err after an unknown signal = %v, want invalid", err)
	}
	if _, err := d.Terminal(ctx, j, client.TerminalOptions{Exec: "x-aaaaaaaaaaaa"}); !errors.Is(err, fault.NotFound) {
		t.Errorf("Terminal of an unknown command = %v, want not found", err)
	}
	bad := d.dial(t, client.Options{Addr: d.tcp, Token: "gh_bad"})
	if _, err := bad.Terminal(ctx, j, client.TerminalOptions{}); !errors.Is(err, fault.Unauthenticated) {
		t.Errorf("Terminal with a bad token = %v, want unauthenticated", err)
	}
}

func until(t *testing.T, r io.Reader, text string) string {
	t.Helper()
	var got []byte
	buf := make([]byte, 4096)
	for !bytes.Contains(got, []byte(text)) {
		n, err := r.Read(buf)
		got = append(got, buf[:n]...)
		if err != nil {
			t.Fatalf("%v after %q", err, got)
		}
	}
	return string(got)
}

// BenchmarkExec measures the round trip of a command through the client and the API, and, for
// comparison, the command without them.
func BenchmarkExec(b *testing.B) {
	jails := apitest.Start(b)
	d := start(b, jails)
	j := d.running(b)
	b.Run("client", func(b *testing.B) {
		for b.Loop() {
			if _, err := d.Exec(b.Context(), j, wire.ExecRequest{Argv: []string{"/bin/true"}}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("init", func(b *testing.B) {
		for b.Loop() {
			jails.True(b, j)
		}
	})
}

// noop is a Manager that does not run the commands.
type noop struct{ *apitest.Jails }

func (noop) Exec(context.Context, id.Jail, jail.ExecRequest, *control.AttachOptions) (*control.Stream, protocol.ExecStatus, error) {
	return nil, protocol.ExecStatus{ID: "x-aaaaaaaaaaaa", Started: time.Now()}, nil
}

// BenchmarkExecOverhead measures the overhead of the client and the API for a command.
func BenchmarkExecOverhead(b *testing.B) {
	jails := apitest.New()
	d := startWith(b, jails, noop{jails})
	j := d.running(b)
	for b.Loop() {
		if _, err := d.Exec(b.Context(), j, wire.ExecRequest{Argv: []string{"/bin/true"}, Detach: true}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRoundTrip measures a request that does no work.
func BenchmarkRoundTrip(b *testing.B) {
	d := start(b, apitest.New())
	j, err := d.CreateJail(b.Context(), wire.CreateJail{})
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name string
		addr string
	}{{"unix", "unix://" + d.socket}, {"tcp", d.tcp}} {
		cl := d.dial(b, client.Options{Addr: c.addr, Token: map[string]string{"tcp": d.token}[c.name]})
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				if _, err := cl.Jail(b.Context(), j.ID); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
