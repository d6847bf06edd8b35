package route_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/fleet/pki"
	"glasshouse/fleet/route"
	"glasshouse/store"
)

// A world is a database with nodes that run in this process.
type world struct {
	testing.TB
	db   *store.Store
	wait time.Duration // for daemons that restart
}

func newWorld(t testing.TB) *world {
	t.Helper()
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "g.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return &world{TB: t, db: db}
}

// A box is a node.
type box struct {
	*route.Router
	id, dir  string
	identity *pki.Identity
	server   *http.Server
	addr     string
}

func idOf(name string) string { return name + strings.Repeat("0", 26-len(name)) }

// first creates the node that issues certificates.
func (w *world) first(name string, api http.Handler) *box {
	w.Helper()
	dir := w.TempDir()
	if _, err := pki.Init(dir, idOf(name), time.Now()); err != nil {
		w.Fatal(err)
	}
	return w.start(name, dir, api)
}

// join lets another node join at a node.
func (w *world) join(name string, at *box, api http.Handler) *box {
	w.Helper()
	token, fingerprint, err := at.Invite(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	dir := w.TempDir()
	if _, err := route.Join(w.Context(), dir, idOf(name), at.addr, token, fingerprint); err != nil {
		w.Fatal(err)
	}
	return w.start(name, dir, api)
}

// start serves a node, and gives it a lease.
func (w *world) start(name, dir string, api http.Handler) *box {
	w.Helper()
	identity, err := pki.Open(dir)
	if err != nil {
		w.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.Fatal(err)
	}
	b := &box{id: idOf(name), dir: dir, identity: identity, addr: l.Addr().String()}
	b.Router = route.New(route.Config{Self: b.id, Identity: identity, Store: w.db.Nodes(), Index: w.db.Owners(), Log: slog.New(slog.DiscardHandler), Wait: w.wait})
	b.server = &http.Server{Handler: b.Handler(api, map[string]http.Handler{"/fleet/double": route.Answer(double)}), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	go b.server.Serve(tls.NewListener(l, identity.Server()))
	w.Cleanup(func() {
		b.server.Close()
		b.Close()
	})
	w.lease(name, b.addr, false)
	return b
}

func (w *world) lease(name, addr string, front bool) {
	w.Helper()
	n := fleet.Node{ID: idOf(name), Name: name, Addr: addr, Front: front, Host: name, Nonce: "1"}
	if _, err := w.db.Nodes().Join(w.Context(), n, false, time.Hour); err != nil {
		w.Fatal(err)
	}
}

// ask sends a request of a user by way of a node to another one.
func ask(b *box, node string, k fleet.Key) (status int, text string, err error) {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "http://front.example/jails/j-1", nil)
	r.Header.Set("Authorization", "Bearer gh_user")
	err = b.Forward(w, r, node, k)
	return w.Code, w.Body.String(), err
}

// echo answers with what a node sees of a request.
var echo = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "%s %s%s %s", r.Method, r.Host, r.URL.Path, r.Header.Get("Authorization"))
})

func TestForward(t *testing.T) {
	w := newWorld(t)
	a := w.first("a", http.NotFoundHandler())
	w.join("b", a, echo)
	for _, name := range []string{"b", idOf("b")} {
		if status, text, err := ask(a, name, fleet.Key{}); err != nil || status != 200 || text != "GET front.example/jails/j-1 Bearer gh_user" {
			t.Errorf("Forward to %s = %d %q, %v, want the request of the user as it was", name, status, text, err)
		}
	}
	if _, _, err := ask(a, "none", fleet.Key{}); !errors.Is(err, fault.NotFound) || fault.RemedyOf(err) == "" {
		t.Errorf("Forward to an unknown node = %v, want not found with a remedy", err)
	}
}

// A request of a user waits for a daemon that restarts, and one of another daemon fails at once.
func TestForwardWaitsForRestart(t *testing.T) {
	w := newWorld(t)
	a := w.first("a", http.NotFoundHandler())
	b := w.join("b", a, echo)
	if err := b.server.Close(); err != nil {
		t.Fatal(err)
	}
	var twice int
	if err := a.Call(t.Context(), b.id, "/fleet/double", 1, &twice); !errors.Is(err, fault.Unavailable) {
		t.Fatalf("Call of a stopped daemon = %v, want unavailable", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://front.example/jails/j-1", nil)
	if err := a.Forward(httptest.NewRecorder(), r, b.id, fleet.Key{}); ctx.Err() == nil {
		t.Errorf("Forward to a stopped daemon = %v before the request was canceled", err)
	}
	restarted := make(chan error, 1)
	go func() {
		time.Sleep(200 * time.Millisecond)
		l, err := net.Listen("tcp", b.addr)
		restarted <- err
		if err == nil {
			s := &http.Server{Handler: b.Handler(echo, nil)}
			context.AfterFunc(w.Context(), func() { s.Close() })
			s.Serve(tls.NewListener(l, b.identity.Server()))
		}
	}()
	status, _, err := ask(a, b.id, fleet.Key{})
	if listening := <-restarted; listening != nil {
		t.Fatal(listening)
	}
	if err != nil || status != 200 {
		t.Errorf("Forward to a daemon that restarts = %d, %v; want its response", status, err)
	}
}

// A connection is reset if the daemon exits before it has accepted it.
func TestForwardWaitsAfterReset(t *testing.T) {
	w := newWorld(t)
	a := w.first("a", http.NotFoundHandler())
	b := w.join("b", a, http.NotFoundHandler())
	b.server.Close()
	l, err := net.Listen("tcp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: b.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }), nil)}
	defer s.Close()
	go func() {
		for range 2 {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Read(make([]byte, 1))
			c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}
		s.Serve(tls.NewListener(l, b.identity.Server()))
	}()
	got := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "http://front.example/jails/j-1/exec", strings.NewReader("hello"))
	if err := a.Forward(got, r, b.id, fleet.Key{Kind: fleet.Jail, ID: "j-1"}); err != nil || got.Body.String() != "hello" {
		t.Errorf("Forward = %d with %q, %v; want the text sent", got.Code, got.Body, err)
	}
}

// Requests with bodies reach a daemon that is restarted all the time, if it serves those that it has
// begun to serve.
func TestForwardDuringRestarts(t *testing.T) {
	w := newWorld(t)
	a := w.first("a", http.NotFoundHandler())
	b := w.join("b", a, http.NotFoundHandler())
	b.server.Close()
	repeat := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	serve := func() *http.Server {
		l, err := net.Listen("tcp", b.addr)
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: b.Handler(repeat, nil), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
		go s.Serve(tls.NewListener(l, b.identity.Server()))
		return s
	}
	s := serve()
	end := make(chan struct{})
	var done sync.WaitGroup
	var sent atomic.Int64
	for range 8 {
		done.Go(func() {
			for !isClosed(end) {
				body := strings.Repeat(fmt.Sprint(sent.Add(1)), 1000)
				got := httptest.NewRecorder()
				r := httptest.NewRequest(http.MethodPost, "http://front.example/jails/j-1/exec", strings.NewReader(body))
				if err := a.Forward(got, r, b.id, fleet.Key{Kind: fleet.Jail, ID: "j-1"}); err != nil || got.Body.String() != body {
					t.Errorf("Forward = %d with %d bytes, %v; want the %d bytes sent", got.Code, got.Body.Len(), err, len(body))
				}
			}
		})
	}
	for range 8 {
		for n := sent.Load(); sent.Load() < n+20; {
			time.Sleep(time.Millisecond)
		}
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		s = serve()
	}
	close(end)
	done.Wait()
	s.Close()
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// A node whose cache names the previous node of a jail finds the new one.
func TestForwardAfterMove(t *testing.T) {
	w := newWorld(t)
	a := w.first("a", http.NotFoundHandler())
	b := w.join("b", a, http.NotFoundHandler())
	c := w.join("c", a, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %v", r.Method, body, err)
	}))
	k := fleet.Key{Kind: fleet.Jail, ID: "j-1"}
	if err := w.db.Owners().Publish(t.Context(), b.id, []fleet.Object{{Kind: k.Kind, ID: k.ID}}, nil); err != nil {
		t.Fatal(err)
	}
	send := func(body io.Reader) (int, string, error) {
		got := httptest.NewRecorder()
		err := a.Forward(got, httptest.NewRequest(http.MethodPost, "http://front.example/jails/j-1/exec", body), b.id, k)
		return got.Code, got.Body.String(), err
	}
	if code, _, err := send(strings.NewReader("x")); err != nil || code != http.StatusNotFound {
		t.Errorf("the node of the jail answers with %d, %v, want its response", code, err)
	}
	if owner, err := a.Owner(t.Context(), k); err != nil || owner != b.id { // in the cache now
		t.Fatal(owner, err)
	}
	if err := errors.Join(w.db.Owners().Offer(t.Context(), k, b.id, "1"), w.db.Owners().Take(t.Context(), k, b.id, c.id, "1")); err != nil {
		t.Fatal(err)
	}
	if code, text, err := send(strings.NewReader("command")); err != nil || code != 200 || text != "POST command <nil>" {
		t.Errorf("after the move: %d %q, %v, want the response of the new node", code, text, err)
	}
	if _, _, err := send(io.MultiReader(strings.NewReader("a stream"))); !errors.Is(err, fault.Unavailable) || fault.RemedyOf(err) == "" {
		t.Errorf("a stream after the move: %v, want unavailable with a remedy", err)
	}
	if _, _, err := send(failingReader{}); err == nil {
		t.Error("a body that cannot be read: no error")
	}
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errors.New("the client is gone") }

func TestForwardToUnusableNodes(t *testing.T) {
	w := newWorld(t)
	w.wait = time.Millisecond
	a := w.first("a", echo)
	b := w.join("b", a, echo)
	w.lease("noaddr", "", false)
	if _, _, err := ask(a, "noaddr", fleet.Key{}); !errors.Is(err, fault.Unavailable) || !strings.Contains(fault.RemedyOf(err), "fleet.listen") {
		t.Errorf("Forward to a node without an address = %v, want unavailable and the setting", err)
	}
	w.lease("liar", b.addr, false) // at the address is another node
	if status, text, err := ask(a, "liar", fleet.Key{}); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Forward to a node with the address of another = %d %q, %v, want unavailable", status, text, err)
	}
	b.server.Close()
	if _, _, err := ask(a, "b", fleet.Key{}); !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("Forward to a dead node = %v, want unavailable", err)
	}
}

func TestRemovedNodeIsRefused(t *testing.T) {
	w := newWorld(t)
	a := w.first("a", echo)
	b := w.join("b", a, echo)
	c := w.join("c", a, echo)
	if status, _, err := ask(c, "a", fleet.Key{}); err != nil || status != 200 {
		t.Fatalf("Forward = %d, %v", status, err)
	}
	if err := w.db.Nodes().Remove(t.Context(), c.id, false); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1100 * time.Millisecond) // nodes are read once in a second
	if status, text, err := ask(c, "a", fleet.Key{}); !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "not in the fleet") {
		t.Errorf("a removed node got %d %q, %v, want a refusal that is not about the user", status, text, err)
	}
	if err := c.Renew(t.Context()); err == nil {
		t.Error("a removed node renewed its certificate")
	}
	if status, _, err := ask(b, "a", fleet.Key{}); err != nil || status != 200 {
		t.Errorf("another node got %d, %v", status, err)
	}
}

// In a large fleet, calls of daemons do not read the list of nodes each second.
func TestListOfLargeFleet(t *testing.T) {
	w := newWorld(t)
	a := w.first("a", echo)
	for n := range 200 {
		w.lease(fmt.Sprintf("n%dx", n), "127.0.0.1:1", false)
	}
	count := func(list func(context.Context) ([]fleet.Node, error)) int {
		t.Helper()
		nodes, err := list(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(nodes)
	}
	for _, list := range []func(context.Context) ([]fleet.Node, error){a.Nodes, a.Peers} {
		if n := count(list); n != 201 {
			t.Fatalf("there are %d nodes, want 201", n)
		}
	}
	w.lease("new", "127.0.0.1:1", false)
	time.Sleep(1100 * time.Millisecond)
	if n := count(a.Peers); n != 201 {
		t.Errorf("Peers has read a list with %d nodes after a second, want the earlier one with 201", n)
	}
	if n := count(a.Nodes); n != 202 {
		t.Errorf("Nodes has not read the list after a second: it has %d nodes, want 202", n)
	}
}

func TestJoin(t *testing.T) {
	w := newWorld(t)
	a := w.first("a", echo)
	token, fingerprint, err := a.Invite(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b := w.join("b", a, echo)
	if _, _, err := b.Invite(t.Context()); !errors.Is(err, fault.Unsupported) || fault.RemedyOf(err) == "" {
		t.Errorf("Invite of a node without the authority = %v, want unsupported with a remedy", err)
	}
	other := newWorld(t).first("x", echo)
	_, foreign, err := other.Invite(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		addr, node, token, fingerprint string
		want                           fault.Kind
	}{
		"unknown token":      {a.addr, idOf("c"), "ghj_none", fingerprint, fault.Unauthenticated},
		"other fleet":        {a.addr, idOf("c"), token, foreign, fault.Unauthenticated},
		"copied directory":   {a.addr, a.id, token, fingerprint, fault.Invalid},
		"invalid ID":         {a.addr, "../c", token, fingerprint, fault.Invalid},
		"not the authority":  {b.addr, idOf("c"), token, fingerprint, fault.Unsupported},
		"nothing listens":    {"127.0.0.1:1", idOf("c"), token, fingerprint, fault.Unavailable},
		"not an address":     {"a b", idOf("c"), token, fingerprint, fault.Invalid},
		"directory in a use": {a.addr, idOf("c"), token, fingerprint, fault.Conflict},
	} {
		dir := t.TempDir()
		if name == "directory in a use" {
			dir = a.dir
		}
		if _, err := route.Join(t.Context(), dir, c.node, c.addr, c.token, c.fingerprint); fault.KindOf(err) != c.want {
			t.Errorf("%s: Join = %v, want %s", name, err, c.want)
		}
		if _, err := pki.Open(dir); dir != a.dir && !errors.Is(err, fault.NotFound) {
			t.Errorf("%s: a failed Join left an identity: %v", name, err)
		}
	}
	// The token is still valid: none of these used it.
	if _, err := route.Join(t.Context(), t.TempDir(), idOf("c"), a.addr, token, fingerprint); err != nil {
		t.Errorf("Join = %v, want success", err)
	}
	if _, err := route.Join(t.Context(), t.TempDir(), idOf("d"), a.addr, token, fingerprint); !errors.Is(err, fault.Unauthenticated) || !strings.Contains(err.Error(), "used before") {
		t.Errorf("second Join with a token = %v, want unauthenticated and why", err)
	}
}

// double answers the calls of other nodes.
func double(_ context.Context, n int) (int, error) {
	if n < 0 {
		return 0, fault.Newf(fault.Denied, "double", "", "%d is negative", n)
	}
	return 2 * n, nil
}

func TestCall(t *testing.T) {
	w := newWorld(t)
	a := w.first("a", echo)
	w.join("b", a, echo)
	w.lease("noaddr", "", false)
	var n int
	if err := a.Call(t.Context(), "b", "/fleet/double", 4, &n); err != nil || n != 8 {
		t.Errorf("Call = %d, %v, want 8", n, err)
	}
	for name, c := range map[string]struct {
		node, path string
		in         any
		want       fault.Kind
	}{
		"refused":        {"b", "/fleet/double", -1, fault.Denied},
		"not decodable":  {"b", "/fleet/double", "x", fault.Invalid},
		"unknown path":   {"b", "/fleet/none", 1, fault.Unavailable},
		"unknown node":   {"none", "/fleet/double", 1, fault.NotFound},
		"without access": {"noaddr", "/fleet/double", 1, fault.Unavailable},
	} {
		if err := a.Call(t.Context(), c.node, c.path, c.in, &n); fault.KindOf(err) != c.want {
			t.Errorf("%s: Call = %v, want %s", name, err, c.want)
		}
	}
}

// The paths of users can be those of calls, for example of a server in a sandbox. A user who sends
// such a request by way of a node must not act as that node.
func TestUsersCannotCall(t *testing.T) {
	w := newWorld(t)
	a := w.first("a", echo)
	b := w.join("b", a, echo)
	_, request, err := pki.NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(map[string]any{"request": request})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/fleet/renew", "/fleet/join", "/fleet/double"} {
		for _, mark := range []string{"", "node"} {
			got := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodPost, "http://front.example"+path, bytes.NewReader(body))
			r.Header.Set("Glasshouse-Call", mark)
			if err := b.Forward(got, r, "a", fleet.Key{}); err != nil || got.Body.String() != "POST front.example"+path+" " {
				t.Errorf("a request of a user to %s with the mark %q = %d %q, %v, want that of the server for users", path, mark, got.Code, got.Body, err)
			}
		}
	}
}

func TestRenew(t *testing.T) {
	w := newWorld(t)
	a := w.first("a", echo)
	b := w.join("b", a, echo)
	for _, n := range []*box{a, b} {
		before := n.identity.Certificate()
		if err := n.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n.identity.Certificate().Equal(before) {
			t.Error("the certificate is the same after Renew")
		}
	}
	if status, _, err := ask(b, "a", fleet.Key{}); err != nil || status != 200 {
		t.Errorf("Forward with a new certificate = %d, %v", status, err)
	}
	a.server.Close()
	if err := b.Renew(t.Context()); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Renew without the authority = %v, want unavailable", err)
	}
}

func TestPlace(t *testing.T) {
	w := newWorld(t)
	a := w.first("a", echo)
	b := w.join("b", a, echo)
	w.lease("front", "127.0.0.1:1", true)
	w.lease("noaddr", "", false)
	place := func() string {
		t.Helper()
		time.Sleep(1100 * time.Millisecond)
		n, err := a.Place(t.Context())
		if err != nil {
			return string(fault.KindOf(err))
		}
		return n.Name
	}
	publish := func(node string, jails ...string) {
		t.Helper()
		var objects []fleet.Object
		for _, j := range jails {
			objects = append(objects, fleet.Object{Kind: fleet.Jail, ID: j})
		}
		if err := w.db.Owners().Publish(t.Context(), node, objects, nil); err != nil {
			t.Fatal(err)
		}
	}
	publish(a.id, "j-1", "j-2", "j-3")
	// A placed jail counts once, before and after it is in the list.
	for _, j := range []string{"j-4", "j-5", "j-6"} {
		if got := place(); got != "b" {
			t.Errorf("Place = %s for %s, want b, which has fewer jails", got, j)
		}
		publish(b.id, j)
	}
	// Requests at the same time are spread, also if the list is read again before the new jails are
	// in it.
	at := make(chan string, 10)
	count := map[string]int{}
	for range 2 {
		time.Sleep(1100 * time.Millisecond)
		for range cap(at) {
			go func() {
				n, err := a.Place(t.Context())
				if err != nil {
					t.Error(err)
				}
				at <- n.Name
			}()
		}
		for range cap(at) {
			count[<-at]++
		}
	}
	if count["a"] != 10 || count["b"] != 10 {
		t.Errorf("places = %v, want 10 on each node", count)
	}
	if err := b.Drain(t.Context(), b.id, true); err != nil {
		t.Fatal(err)
	}
	if got := place(); got != "a" {
		t.Errorf("Place = %s, want a, as b is draining", got)
	}
	if !b.Draining(t.Context()) || a.Draining(t.Context()) {
		t.Error("want only b to be draining")
	}
	if err := b.Drain(t.Context(), a.id, true); err != nil {
		t.Fatal(err)
	}
	if got := place(); got != string(fault.Exhausted) {
		t.Errorf("Place = %s, want exhausted", got)
	}
}

func TestPlaceOnce(t *testing.T) {
	w := newWorld(t)
	a := w.first("a", echo)
	b := w.join("b", a, echo)
	place := func(at *box, key string) string {
		t.Helper()
		n, err := at.PlaceOnce(t.Context(), key)
		if err != nil {
			t.Error(err)
		}
		return n.ID
	}
	time.Sleep(1100 * time.Millisecond) // until node a reads the list of nodes again
	const keys = 40
	var chosen [keys][2]string
	var wg sync.WaitGroup
	for i := range keys {
		for n, at := range []*box{a, b} {
			wg.Go(func() { chosen[i][n] = place(at, fmt.Sprint("key", i)) })
		}
	}
	wg.Wait()
	used := map[string]int{}
	for i, c := range chosen {
		used[c[0]]++
		if c[0] != c[1] || c[0] == "" {
			t.Errorf("key %d is placed on %s at node a and on %s at node b, want the same", i, c[0], c[1])
		}
	}
	if len(used) != 2 {
		t.Errorf("keys are placed on %v, want both nodes", used)
	}
	// A node that accepts no new jails has stored the response to a repeated request.
	key := ""
	for i, c := range chosen {
		if c[0] == b.id {
			key = fmt.Sprint("key", i)
		}
	}
	if err := a.Drain(t.Context(), b.id, true); err != nil {
		t.Fatal(err)
	}
	if got := place(a, key); got != b.id {
		t.Errorf("a key of a draining node is placed on %s, want that node", got)
	}
	if err := a.Remove(t.Context(), b.id, true); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1100 * time.Millisecond) // the list of nodes
	for range 2 {
		if got := place(a, key); got != a.id {
			t.Errorf("a key of a removed node is placed on %s, want the other node", got)
		}
	}
}

// counting counts lookups of owners.
type counting struct {
	fleet.Index
	n atomic.Int64
}

func (c *counting) Owner(ctx context.Context, k fleet.Key) (string, error) {
	c.n.Add(1)
	return c.Index.Owner(ctx, k)
}

func TestOwnersAreCached(t *testing.T) {
	w := newWorld(t)
	a := w.first("a", echo)
	gone := w.join("gone", a, http.NotFoundHandler())
	index := &counting{Index: w.db.Owners()}
	r := &box{Router: route.New(route.Config{Self: a.id, Identity: a.identity, Store: w.db.Nodes(), Index: index, Log: slog.New(slog.DiscardHandler)})}
	defer r.Close()
	k := fleet.Key{Kind: fleet.Jail, ID: "j-1"}
	owner := func(want string, lookups int64) {
		t.Helper()
		if got, err := r.Owner(t.Context(), k); err != nil || got != want || index.n.Load() != lookups {
			t.Errorf("Owner = %q, %v, after %d lookups, want %q after %d", got, err, index.n.Load(), want, lookups)
		}
	}
	owner("", 1)
	owner("", 2) // the object may be created at any time
	if err := w.db.Owners().Publish(t.Context(), gone.id, []fleet.Object{{Kind: k.Kind, ID: k.ID}}, nil); err != nil {
		t.Fatal(err)
	}
	owner(gone.id, 3)
	owner(gone.id, 3)
	if status, _, err := ask(r, gone.id, k); err != nil || status != http.StatusNotFound {
		t.Fatalf("Forward = %d, %v, want 404", status, err)
	}
	owner(gone.id, 4) // the node no longer has the object
}

func TestStreamsAreNotBuffered(t *testing.T) {
	w := newWorld(t)
	next := make(chan struct{})
	a := w.first("a", echo)
	w.join("b", a, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for n := range 3 {
			fmt.Fprintf(w, "%d\n", n)
			http.NewResponseController(w).Flush()
			<-next
		}
		<-r.Context().Done() // the user leaves
		close(next)
	}))
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := a.Forward(w, r, "b", fleet.Key{}); err != nil && r.Context().Err() == nil {
			t.Error(err)
		}
	}))
	defer front.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, front.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	line := make([]byte, 2)
	for n := range 3 {
		if _, err := io.ReadFull(response.Body, line); err != nil || string(line) != fmt.Sprintf("%d\n", n) {
			t.Fatalf("line %d = %q, %v", n, line, err)
		}
		next <- struct{}{}
	}
	cancel()
	select {
	case <-next:
	case <-time.After(10 * time.Second):
		t.Error("the owner does not notice that the user has left")
	}
}

// BenchmarkForward compares a request that a node serves with one that it forwards.
func BenchmarkForward(b *testing.B) {
	w := newWorld(b)
	one := w.first("a", echo)
	w.join("b", one, echo)
	forward := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := one.Forward(w, r, "b", fleet.Key{}); err != nil {
			b.Error(err)
		}
	})
	for name, h := range map[string]http.Handler{"Local": echo, "Forwarded": forward} {
		b.Run(name, func(b *testing.B) {
			front := httptest.NewServer(h)
			defer front.Close()
			for b.Loop() {
				r, err := http.Get(front.URL)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, r.Body); err != nil {
					b.Fatal(err)
				}
				r.Body.Close()
			}
		})
	}
}
