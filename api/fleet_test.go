package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"glasshouse/api"
	"glasshouse/api/apitest"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/id"
	"glasshouse/policy/access"
	"glasshouse/policy/chain/archive"
)

// A fakeFleet has the nodes self and other, and records what is forwarded.
type fakeFleet struct {
	mu sync.Mutex
	// +checklocks:mu
	forwarded []string
	// +checklocks:mu
	lookups int
	owners  map[fleet.Key]string
	objects []fleet.Object
	keys    []string // of PlaceOnce
	nodes   []fleet.Node
	down    map[string]bool // nodes that do not answer
	fail    error
}

func (f *fakeFleet) Self() string { return "self" }

func (f *fakeFleet) Node(_ context.Context, name string) (fleet.Node, error) {
	if name != "self" && name != "other" {
		return fleet.Node{}, fault.Newf(fault.NotFound, "route.Node", name, "no such node")
	}
	return fleet.Node{ID: name, Name: "box " + name, Addr: "10.0.0.1:8443"}, nil
}

func (f *fakeFleet) Owner(_ context.Context, k fleet.Key) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lookups++
	return f.owners[k], f.fail
}

func (f *fakeFleet) Place(context.Context) (fleet.Node, error) {
	return fleet.Node{ID: "other"}, f.fail
}

func (f *fakeFleet) PlaceOnce(_ context.Context, key string) (fleet.Node, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keys = append(f.keys, key)
	return fleet.Node{ID: "other"}, f.fail
}

func (f *fakeFleet) Forward(w http.ResponseWriter, r *http.Request, node string, _ fleet.Key) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forwarded = append(f.forwarded, r.Method+" "+r.URL.Path+" to "+node)
	if f.fail != nil {
		return f.fail
	}
	_, err := io.WriteString(w, `{"from":"`+node+`"}`)
	return err
}

func (f *fakeFleet) Nodes(context.Context) ([]fleet.Node, error) {
	return f.nodes, f.fail
}

// Transport records the requests of a user, and responds with the jails that they create.
func (f *fakeFleet) Transport(node string) http.RoundTripper { return fakeTransport{f, node} }

type fakeTransport struct {
	*fakeFleet
	node string
}

func (t fakeTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forwarded = append(t.forwarded, fmt.Sprintf("%s %s to %s as %s: %s", r.Method, r.URL.Path, t.node, r.Header.Get("Authorization"), body))
	if t.down[t.node] {
		return nil, fault.Newf(fault.Unavailable, "route", t.node, "down")
	}
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jails":[{"id":"j-on-%s"}]}`, t.node)
	return w.Result(), nil
}

func (f *fakeFleet) Objects(_ context.Context, _ fleet.Kind, _, after string, limit int) ([]fleet.Object, error) {
	i := 0
	if after != "" {
		i = slices.IndexFunc(f.objects, func(o fleet.Object) bool { return o.Cursor() == after }) + 1
		if i == 0 {
			return nil, fault.Fieldf("store.Objects", "after", "no such place")
		}
	}
	return f.objects[i:min(len(f.objects), i+limit)], nil
}

func (f *fakeFleet) Invite(context.Context) (token, fingerprint string, err error) {
	return "ghj_x", "sha256:00", f.fail
}

func (f *fakeFleet) Drain(_ context.Context, node string, on bool) error { return f.record(node, on) }

func (f *fakeFleet) Remove(_ context.Context, node string, lost bool) error {
	return f.record(node, lost)
}

func (f *fakeFleet) record(node string, flag bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if flag {
		node += "!"
	}
	f.forwarded = append(f.forwarded, node)
	return f.fail
}

// took returns what was forwarded since the last call.
func (f *fakeFleet) took() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := strings.Join(f.forwarded, ", ")
	f.forwarded = nil
	return all
}

// inFleet starts a server in a fleet, with one jail.
func inFleet(t *testing.T, change ...func(*api.Options)) (*harness, *fakeFleet, wire.Jail) {
	t.Helper()
	f := &fakeFleet{owners: map[fleet.Key]string{}}
	nodes := func(context.Context) ([]wire.Node, error) {
		return []wire.Node{{ID: "self", Name: "box self"}, {ID: "other", Name: "box other"}}, nil
	}
	h := open(t, apitest.New(), append([]func(*api.Options){func(o *api.Options) {
		o.Fleet, o.Nodes, o.Facts = f, nodes, func() fleet.Facts { return fleet.Facts{} }
	}}, change...)...)
	var j wire.Jail
	h.want(http.StatusCreated, req{as: access.Operator, method: "POST", path: "/jails", body: wire.CreateJail{Name: "mine"}, header: map[string]string{"Glasshouse-Node": "self"}}, &j)
	return h, f, j
}

func TestRequestsAreForwardedToTheOwner(t *testing.T) {
	h, f, mine := inFleet(t)
	f.owners[fleet.Key{Kind: fleet.Jail, ID: "j-other"}] = "other"
	f.owners[fleet.Key{Kind: fleet.Snapshot, ID: "s-other"}] = "other"
	f.owners[fleet.Key{Kind: fleet.Jail, ID: "j-stale"}] = "self"
	for _, c := range []struct {
		method, path, node string
		want               string // what is forwarded
		status             int
	}{
		{"GET", "/jails/" + string(mine.ID), "", "", 200},
		{"GET", "/jails/j-other", "", "GET /jails/j-other to other", 200},
		{"POST", "/jails/j-other/exec", "", "POST /jails/j-other/exec to other", 200},
		{"GET", "/jails/j-other/terminal", "", "GET /jails/j-other/terminal to other", 200},
		{"GET", "/snapshots/s-other", "", "GET /snapshots/s-other to other", 200},
		{"GET", "/jails/j-none", "", "", 404},
		{"GET", "/jails/j-stale", "", "", 404},
		{"GET", "/version", "", "", 200},
		{"GET", "/version", "other", "GET /version to other", 200},
		{"GET", "/version", "self", "", 200},
		{"GET", "/version", "none", "", 404},
		{"POST", "/jails", "other", "POST /jails to other", 200},
		{"GET", "/jails/" + string(mine.ID), "other", "GET /jails/" + string(mine.ID) + " to other", 200},
	} {
		r := req{as: access.Operator, method: c.method, path: c.path}
		if c.node != "" {
			r.header = map[string]string{"Glasshouse-Node": c.node}
		}
		if got := h.do(r); got.status != c.status || f.took() != c.want {
			t.Errorf("%s %s on node %q = %d %s, want %d and forwarded: %q", c.method, c.path, c.node, got.status, got.body, c.status, c.want)
		}
	}
	f.mu.Lock()
	if f.lookups != 6 {
		t.Errorf("%d owners were looked up, want 6: none for jails that are here", f.lookups)
	}
	f.mu.Unlock()
	f.fail = fault.Newf(fault.Unavailable, "route.Forward", "other", "the node does not answer")
	h.refused(http.StatusServiceUnavailable, req{as: access.Operator, method: "GET", path: "/version", header: map[string]string{"Glasshouse-Node": "other"}})
	if p := h.refused(http.StatusServiceUnavailable, req{as: access.Operator, method: "GET", path: "/jails/j-none"}); !strings.Contains(p.Detail, "does not answer") {
		t.Errorf("a lookup that fails = %+v, want the reason", p)
	}
	h.want(http.StatusOK, req{as: access.Operator, method: "GET", path: "/jails/" + string(mine.ID)}, nil) // needs no other node
}

func TestForwardingNeedsRights(t *testing.T) {
	h, f, _ := inFleet(t)
	f.owners[fleet.Key{Kind: fleet.Jail, ID: "j-other"}] = "other"
	h.refused(http.StatusUnauthorized, req{method: "GET", path: "/jails/j-other"})
	h.refused(http.StatusForbidden, req{as: access.Viewer, method: "POST", path: "/jails/j-other/stop"})
	h.refused(http.StatusForbidden, req{as: access.Agent, method: "GET", path: "/jails/j-other"})
	for _, path := range []string{"/jails/j-other", "/health"} {
		p := h.refused(http.StatusForbidden, req{local: true, method: "GET", path: path, header: map[string]string{"Glasshouse-Node": "other"}})
		if !strings.Contains(p.Remedy, "GLASSHOUSE_TOKEN") {
			t.Errorf("%s by the local socket = %+v, want how to use a token", path, p)
		}
	}
	h.refused(http.StatusForbidden, req{method: "GET", path: "/health", header: map[string]string{"Glasshouse-Node": "other"}})
	if got := f.took(); got != "" {
		t.Errorf("forwarded: %s, want nothing", got)
	}
	h.want(http.StatusOK, req{as: access.Viewer, local: true, method: "GET", path: "/jails/j-other"}, nil)
	if got := f.took(); got == "" {
		t.Error("a token by the local socket was not forwarded")
	}
}

// Requests of other daemons are served here, and only with the rights of the user.
func TestForwardedRequestsAreServedHere(t *testing.T) {
	h, f, mine := inFleet(t)
	f.owners[fleet.Key{Kind: fleet.Jail, ID: "j-other"}] = "other"
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go h.server.ServeNodes(l, func(api http.Handler) http.Handler { return api })
	h.tcp = l.Addr().String()
	host := map[string]string{"Host": "front.example"} // the other daemon has checked it
	h.want(http.StatusOK, req{as: access.Viewer, method: "GET", path: "/jails/" + string(mine.ID), header: host}, nil)
	h.refused(http.StatusNotFound, req{as: access.Viewer, method: "GET", path: "/jails/j-other", header: host})
	h.refused(http.StatusUnauthorized, req{method: "GET", path: "/jails/" + string(mine.ID), header: host})
	h.refused(http.StatusForbidden, req{as: access.Viewer, method: "POST", path: "/jails/" + string(mine.ID) + "/stop", header: host})
	h.want(http.StatusOK, req{as: access.Viewer, method: "GET", path: "/version", header: map[string]string{"Glasshouse-Node": "other"}}, nil)
	if got := f.took(); got != "" {
		t.Errorf("forwarded again: %s", got)
	}
}

func TestDaemonWithoutJailsPlacesThem(t *testing.T) {
	h, f, _ := inFleet(t, func(o *api.Options) { o.Front = true })
	h.want(http.StatusOK, req{as: access.Operator, method: "POST", path: "/jails", body: wire.CreateJail{}}, nil)
	h.want(http.StatusOK, req{as: access.Operator, method: "POST", path: "/chat/run", body: wire.StartRun{Goal: "x"}}, nil)
	if got, want := f.took(), "POST /jails to other, POST /chat/run to other"; got != want {
		t.Errorf("forwarded: %s, want %s", got, want)
	}
	f.fail = fault.Newf(fault.Exhausted, "route.Place", "", "no node accepts new jails")
	h.refused(http.StatusTooManyRequests, req{as: access.Operator, method: "POST", path: "/jails", body: wire.CreateJail{}})
}

func TestListOfAllNodes(t *testing.T) {
	h, f, mine := inFleet(t)
	add := func(id, node string, j wire.Jail) {
		data, err := json.Marshal(j)
		if err != nil {
			t.Fatal(err)
		}
		f.objects = append(f.objects, fleet.Object{Kind: fleet.Jail, ID: id, Node: node, Summary: string(data)})
	}
	for n := range 2500 {
		j := wire.Jail{ID: mine.ID, Name: "x", State: "running"}
		if n%500 == 7 {
			j.Name, j.State, j.Labels = "rare", "paused", map[string]string{"team": "a"}
		}
		node := "other"
		if n%2 == 0 {
			node = "gone"
		}
		j.ID += "-" // unlike an ID of this daemon
		add(fmt.Sprint(j.ID, n), node, j)
	}
	list := func(query string) (names, nodes []string, next string) {
		t.Helper()
		var page wire.Page[wire.Jail]
		h.want(http.StatusOK, req{as: access.Viewer, method: "GET", path: "/jails?nodes=all&" + query}, &page)
		for _, j := range page.Items {
			names, nodes = append(names, j.Name), append(nodes, j.Node)
		}
		return names, nodes, page.Next
	}
	for _, query := range []string{"name=rare", "state=paused", "label=team=a", "state=paused&label=team=a&name=rare"} {
		names, nodes, _ := list(query)
		if len(names) != 5 || nodes[0] != "box other" {
			t.Errorf("%s: %d jails of %q, want 5 of box other", query, len(names), nodes)
		}
	}
	if names, _, next := list("limit=3&name=rare"); len(names) != 3 || next == "" {
		t.Errorf("a page has %d jails, next %q, want 3 and another page", len(names), next)
	}
	_, _, next := list("limit=3&name=rare")
	if names, _, more := list("limit=3&name=rare&after=" + url.QueryEscape(next)); len(names) != 2 || more != "" {
		t.Errorf("the page after %q has %d jails, next %q, want 2 and no other page", next, len(names), more)
	}
	if _, nodes, _ := list("limit=2"); !slices.Equal(nodes, []string{"gone", "box other"}) {
		t.Errorf("nodes = %q, want the ID of a node that was removed, and the name of the other", nodes)
	}
	h.refused(http.StatusBadRequest, req{as: access.Viewer, method: "GET", path: "/jails?nodes=all&after=j-none"})
	h.refused(http.StatusBadRequest, req{as: access.Viewer, method: "GET", path: "/jails?nodes=some"})
	var page wire.Page[wire.Jail]
	h.want(http.StatusOK, req{as: access.Viewer, method: "GET", path: "/jails"}, &page)
	if len(page.Items) != 1 || page.Items[0].Name != "mine" {
		t.Errorf("jails of this daemon: %+v, want mine", page.Items)
	}
}

func TestApprovalsOfAllNodes(t *testing.T) {
	queue := record(t).use
	h, f, _ := inFleet(t, queue)
	for n, j := range []string{"j-aaaaaaaaaaaa", "j-bbbbbbbbbbbb", "j-aaaaaaaaaaaa"} {
		data, err := json.Marshal(wire.Approval{ID: id.Approval(fmt.Sprint("a-", n)), Jail: id.Jail(j), State: "pending", Title: "rm"})
		if err != nil {
			t.Fatal(err)
		}
		f.objects = append(f.objects, fleet.Object{Kind: fleet.Approval, ID: fmt.Sprint("a-", n), Node: []string{"other", "gone"}[n%2], Summary: string(data)})
	}
	list := func(h *harness, query string) (all string) {
		t.Helper()
		var page wire.Page[wire.Approval]
		h.want(http.StatusOK, req{as: access.Viewer, method: "GET", path: "/approvals?" + query}, &page)
		for _, a := range page.Items {
			all += string(a.ID) + "@" + a.Node + " "
		}
		return all
	}
	for query, want := range map[string]string{"nodes=all": "a-0@box other a-1@gone a-2@box other ", "nodes=all&jail=j-aaaaaaaaaaaa": "a-0@box other a-2@box other ", "": "", "nodes=self": ""} {
		if got := list(h, query); got != want {
			t.Errorf("approvals with %q = %q, want %q", query, got, want)
		}
	}
	h.refused(http.StatusBadRequest, req{as: access.Viewer, method: "GET", path: "/approvals?nodes=all&state=answered"})
	h.refused(http.StatusBadRequest, req{as: access.Viewer, method: "GET", path: "/approvals?nodes=some"})
	front, g, _ := inFleet(t, queue, func(o *api.Options) { o.Front = true })
	g.objects = f.objects
	for query, want := range map[string]string{"": "a-0@box other a-1@gone a-2@box other ", "nodes=self": "", "state=answered": ""} {
		if got := list(front, query); got != want {
			t.Errorf("approvals at a front end with %q = %q, want %q", query, got, want)
		}
	}
	alone := open(t, apitest.New(), queue)
	alone.refused(http.StatusBadRequest, req{as: access.Viewer, method: "GET", path: "/approvals?nodes=all"})
}

func TestRepeatedRequestsReachTheSameNode(t *testing.T) {
	h, f, _ := inFleet(t, func(o *api.Options) { o.Front = true })
	f.took()
	create := func(as access.Role, key string) {
		t.Helper()
		if got := h.do(req{as: as, method: "POST", path: "/jails", body: wire.CreateJail{}, header: map[string]string{"Idempotency-Key": key}}); got.status != http.StatusOK {
			t.Errorf("create = %d %s", got.status, got.body)
		}
	}
	create(access.Operator, "one")
	create(access.Operator, "one")
	create(access.Operator, "two")
	create(access.Admin, "one")
	if k := f.keys; len(k) != 4 || k[0] != k[1] || k[0] == k[2] || k[0] == k[3] || strings.Contains(k[0], "one") {
		t.Errorf("keys = %q, want the first two to be equal, and digests", k)
	}
	h.refused(http.StatusBadRequest, req{as: access.Operator, method: "POST", path: "/jails", body: wire.CreateJail{}, header: map[string]string{"Idempotency-Key": "a b"}})
}

func TestOwnedObjectsHaveNoEnvironment(t *testing.T) {
	h, _, _ := inFleet(t)
	h.want(http.StatusCreated, req{as: access.Operator, method: "POST", path: "/jails", body: wire.CreateJail{Name: "env", Env: map[string]string{"KEY": "private"}}}, nil)
	all, err := h.server.Owned(access.WithCaller(t.Context(), access.Caller{Role: access.Admin}))
	if err != nil || len(all) != 2 {
		t.Fatalf("Owned = %+v, %v, want two jails", all, err)
	}
	for _, o := range all {
		if strings.Contains(o.Summary, "private") || o.Kind != fleet.Jail {
			t.Errorf("object %+v, want a jail without its environment", o)
		}
	}
}

func TestNewObjectsArePublished(t *testing.T) {
	published := 0
	h := open(t, apitest.New(), func(o *api.Options) { o.Created = func(context.Context) { published++ } })
	h.want(http.StatusCreated, req{as: access.Operator, method: "POST", path: "/jails", body: wire.CreateJail{}}, nil)
	h.refused(http.StatusBadRequest, req{as: access.Operator, method: "POST", path: "/jails", body: `{"none":1}`})
	h.want(http.StatusOK, req{as: access.Operator, method: "GET", path: "/jails"}, nil)
	if published != 1 {
		t.Errorf("published %d times, want once, for the new jail", published)
	}
}

// upNodes returns nodes that accept jails.
func upNodes(ids ...string) (all []fleet.Node) {
	for _, n := range ids {
		all = append(all, fleet.Node{ID: n, Name: "box " + n, State: fleet.Up, Addr: "10.0.0.1:8443"})
	}
	return all
}

func TestBranchesAreSpread(t *testing.T) {
	h, f, mine := inFleet(t, func(o *api.Options) { o.Created = func(context.Context) {} })
	f.nodes, f.down = upNodes("self", "other", "down"), map[string]bool{"down": true}
	f.nodes[1].Jails = 3
	var s wire.Snapshot
	h.want(http.StatusCreated, req{as: access.Operator, method: "POST", path: "/jails/" + string(mine.ID) + "/snapshot"}, &s)
	for _, path := range []string{"/snapshots/" + string(s.ID) + "/branch", "/jails/" + string(mine.ID) + "/branch"} {
		var made wire.Branches
		h.want(http.StatusCreated, req{as: access.Operator, method: "POST", path: path, body: wire.Branch{Count: 7, Spread: true, Overrides: wire.Overrides{Name: "b"}}}, &made)
		var names []string
		for _, j := range made.Jails {
			if j.Node != "" {
				names = append(names, string(j.ID)+"@"+j.Node)
			} else {
				names = append(names, j.Name)
			}
		}
		// Those of the node that does not answer are divided again.
		slices.Sort(names)
		if got, want := strings.Join(names, " "), "b-1 b-2 b-3 b-4 j-on-other@box other j-on-other@box other"; got != want || len(made.Errors) != 0 {
			t.Errorf("%s: jails %s with errors %v, want %s", path, got, made.Errors, want)
		}
		sent := f.took()
		for _, want := range []string{`to other as Bearer `, `{"count":2,"first":6,"name":"b"`, `to down as Bearer `, `{"count":2,"first":4,"name":"b"`, `{"count":1,"first":5,"name":"b"`} {
			if !strings.Contains(sent, want) {
				t.Errorf("%s: requests to other nodes: %s, want one with %s", path, sent, want)
			}
		}
	}
	branch := func(r req) reply {
		r.method, r.path, r.body = "POST", "/snapshots/"+string(s.ID)+"/branch", wire.Branch{Count: 2, Spread: true}
		return h.do(r)
	}
	// Without a token, no part is silently created here.
	if got := branch(req{local: true}); got.status != http.StatusForbidden || f.took() != "" {
		t.Errorf("spread by the local socket = %d %s, want a refusal", got.status, got.body)
	}
	f.nodes, f.down["other"] = upNodes("other", "down"), true
	if got := branch(req{as: access.Operator}); got.status != http.StatusServiceUnavailable {
		t.Errorf("spread without a node that answers = %d %s, want unavailable", got.status, got.body)
	}
	f.nodes = nil
	if got := branch(req{as: access.Operator}); got.status != http.StatusTooManyRequests && got.status != http.StatusServiceUnavailable && got.status < 400 {
		t.Errorf("spread without nodes = %d %s, want an error", got.status, got.body)
	}
	f.took()
	f.nodes = upNodes("self", "other")
	for i := range f.nodes {
		f.nodes[i].Facts.Arch = "riscv64"
	}
	if got := branch(req{as: access.Operator}); !strings.Contains(string(got.body), "riscv64") || !strings.Contains(string(got.body), f.nodes[1].Name) || f.took() != "" {
		t.Errorf("spread to nodes of another architecture = %d %s, want an error with the architecture and the node", got.status, got.body)
	}
}

// Branches for which this node has no memory are created on others.
func TestBranchesOverflow(t *testing.T) {
	const mib = 1 << 20
	here := fleet.Facts{Memory: 1000 * mib, FreeMemory: 1000 * mib}
	h, f, mine := inFleet(t, func(o *api.Options) {
		o.Created = func(context.Context) {}
		o.Facts = func() fleet.Facts { return here }
	})
	var s wire.Snapshot
	h.want(http.StatusCreated, req{as: access.Operator, method: "POST", path: "/jails/" + string(mine.ID) + "/snapshot"}, &s)
	branch := func(path string, r req) (on string) {
		t.Helper()
		f.took()
		r.method, r.path, r.body = "POST", path+"/branch", wire.Branch{Count: 5}
		got := h.do(r)
		var made wire.Branches
		if err := json.Unmarshal(got.body, &made); err != nil || got.status != http.StatusCreated || len(made.Errors) > 0 {
			t.Fatalf("branch = %d %s, %v", got.status, got.body, err)
		}
		local := 0
		for _, j := range made.Jails {
			if j.Node == "" {
				local++
			}
		}
		return fmt.Sprint(local) + " " + strings.Join(regexp.MustCompile(`to (\w+) as|"count":\d+`).FindAllString(f.took(), -1), " ")
	}
	snapshot, jail := "/snapshots/"+string(s.ID), "/jails/"+string(mine.ID)
	user := req{as: access.Operator}
	f.nodes = nil // with enough memory, no list of nodes is needed
	for _, path := range []string{snapshot, jail} {
		if got := branch(path, user); got != "5 " {
			t.Errorf("%s with enough memory: branches here and elsewhere: %s, want all here", path, got)
		}
	}
	here.FreeMemory = 50*mib + 2*16*mib // a twentieth stays free, and a branch needs 16 MiB
	f.nodes = upNodes("self", "other", "third")
	f.nodes[0].Facts = here
	f.nodes[1].Facts = fleet.Facts{Memory: 1000 * mib, FreeMemory: 50*mib + 16*mib}
	f.nodes[2].Facts = fleet.Facts{Memory: 1000 * mib, FreeMemory: 900 * mib}
	for _, path := range []string{snapshot, jail} {
		if got := branch(path, user); got != "2 to third as \"count\":3" {
			t.Errorf("%s with memory for two: branches here and elsewhere: %s, want two here, three on the emptiest node", path, got)
		}
	}
	for name, r := range map[string]req{
		"a selected node":        {as: access.Operator, header: map[string]string{"Glasshouse-Node": "self"}},
		"a user without a token": {local: true},
	} {
		if got := branch(snapshot, r); got != "5 " {
			t.Errorf("%s: branches here and elsewhere: %s, want all here", name, got)
		}
	}
	f.down = map[string]bool{"third": true, "other": true}
	if got := branch(snapshot, user); !strings.HasPrefix(got, "5 ") {
		t.Errorf("without another node that answers: branches here and elsewhere: %s, want all here", got)
	}
	f.down = nil
	f.nodes[1].Facts.FreeMemory, f.nodes[2].Facts.FreeMemory = 0, 0
	if got := branch(snapshot, user); got != "5 " {
		t.Errorf("without memory anywhere: branches here and elsewhere: %s, want all here", got)
	}
	f.fail = errors.New("no database")
	if got := branch(snapshot, user); got != "5 " {
		t.Errorf("without the list of nodes: branches here and elsewhere: %s, want all here", got)
	}
}

// Jails are created from a snapshot of another node after it was copied.
func TestSnapshotsAreFetched(t *testing.T) {
	var fetched []id.Snapshot
	var h *harness
	h, _, mine := inFleet(t, func(o *api.Options) {
		o.Fetch = func(ctx context.Context, s id.Snapshot) error {
			fetched = append(fetched, s)
			return fault.Newf(fault.NotFound, "fetch", string(s), "no such snapshot")
		}
	})
	var s wire.Snapshot
	h.want(http.StatusCreated, req{as: access.Operator, method: "POST", path: "/jails/" + string(mine.ID) + "/snapshot"}, &s)
	for path, want := range map[string]int{string(s.ID): http.StatusCreated, "s-aaaaaaaaaaaa": http.StatusNotFound} {
		for _, operation := range []string{"/branch", "/restore"} {
			got := h.do(req{as: access.Operator, method: "POST", path: "/snapshots/" + path + operation, body: wire.Overrides{}, header: map[string]string{"Glasshouse-Node": "self"}})
			if got.status != want {
				t.Errorf("%s%s = %d %s, want %d", path, operation, got.status, got.body, want)
			}
		}
	}
	if want := []id.Snapshot{"s-aaaaaaaaaaaa", "s-aaaaaaaaaaaa"}; !slices.Equal(fetched, want) {
		t.Errorf("fetched %v, want %v: the other one is here", fetched, want)
	}
}

func TestMoveJail(t *testing.T) {
	var moved []string
	h, f, mine := inFleet(t, func(o *api.Options) {
		o.Move = func(_ context.Context, j id.Jail, node string) (fleet.Node, error) {
			moved = append(moved, string(j)+" to "+node)
			if node == "none" {
				return fleet.Node{}, fault.Newf(fault.NotFound, "move", node, "no such node")
			}
			return fleet.Node{ID: "other", Name: "box other"}, nil
		}
	})
	var m wire.MovedJail
	h.want(http.StatusOK, req{as: access.Operator, method: "POST", path: "/jails/" + string(mine.ID) + "/move", body: wire.MoveJail{Node: "other"}}, &m)
	if want := (wire.MovedJail{ID: mine.ID, Node: "other", Name: "box other"}); m != want {
		t.Errorf("moved = %+v, want %+v", m, want)
	}
	h.refused(http.StatusNotFound, req{as: access.Operator, method: "POST", path: "/jails/" + string(mine.ID) + "/move", body: wire.MoveJail{Node: "none"}})
	h.refused(http.StatusForbidden, req{as: access.Viewer, method: "POST", path: "/jails/" + string(mine.ID) + "/move"})
	f.owners[fleet.Key{Kind: fleet.Jail, ID: "j-other"}] = "other"
	h.want(http.StatusOK, req{as: access.Operator, method: "POST", path: "/jails/j-other/move"}, nil)
	if got := f.took(); len(moved) != 2 || got != "POST /jails/j-other/move to other" {
		t.Errorf("moved %v here, and forwarded %q, want the jail of the other node to be moved there", moved, got)
	}
	alone := open(t, apitest.New())
	alone.want(http.StatusCreated, req{as: access.Operator, method: "POST", path: "/jails", body: wire.CreateJail{}}, &mine)
	alone.refused(http.StatusNotImplemented, req{as: access.Operator, method: "POST", path: "/jails/" + string(mine.ID) + "/move"})
}

func TestFleetRoutes(t *testing.T) {
	h, f, _ := inFleet(t)
	var token wire.NodeToken
	h.want(http.StatusCreated, req{as: access.Admin, method: "POST", path: "/nodes/tokens"}, &token)
	if want := (wire.NodeToken{Token: "ghj_x", Address: "10.0.0.1:8443", Authority: "sha256:00"}); token != want {
		t.Errorf("token = %+v, want %+v", token, want)
	}
	h.want(http.StatusOK, req{as: access.Admin, method: "PATCH", path: "/nodes/other", body: `{"draining":true}`}, nil)
	h.want(http.StatusOK, req{as: access.Admin, method: "PATCH", path: "/nodes/other", body: `{"draining":false}`}, nil)
	h.want(http.StatusOK, req{as: access.Admin, method: "PATCH", path: "/nodes/other", body: `{}`}, nil)
	h.want(http.StatusNoContent, req{as: access.Admin, method: "DELETE", path: "/nodes/other"}, nil)
	h.want(http.StatusNoContent, req{as: access.Admin, method: "DELETE", path: "/nodes/other?lost=true"}, nil)
	if got, want := f.took(), "other!, other, other, other!"; got != want {
		t.Errorf("changes = %s, want %s", got, want)
	}
	h.refused(http.StatusConflict, req{as: access.Admin, method: "DELETE", path: "/nodes/self"})
	h.refused(http.StatusNotFound, req{as: access.Admin, method: "DELETE", path: "/nodes/none"})
	h.refused(http.StatusNotFound, req{as: access.Admin, method: "PATCH", path: "/nodes/none", body: `{}`})
	for _, role := range []access.Role{access.Operator, access.Viewer} {
		h.refused(http.StatusForbidden, req{as: role, method: "POST", path: "/nodes/tokens"})
		h.refused(http.StatusForbidden, req{as: role, method: "PATCH", path: "/nodes/other", body: `{}`})
		h.refused(http.StatusForbidden, req{as: role, method: "DELETE", path: "/nodes/other"})
	}
	alone := open(t, apitest.New())
	for _, r := range []req{
		{method: "POST", path: "/nodes/tokens"}, {method: "PATCH", path: "/nodes/x", body: `{}`}, {method: "DELETE", path: "/nodes/x"},
		{method: "GET", path: "/version", header: map[string]string{"Glasshouse-Node": "x"}},
	} {
		r.as = access.Admin
		if p := alone.refused(http.StatusNotImplemented, r); !strings.Contains(p.Remedy, "fleet init") {
			t.Errorf("%s %s without a fleet = %+v, want how to create one", r.method, r.path, p)
		}
	}
	alone.refused(http.StatusBadRequest, req{as: access.Admin, method: "GET", path: "/jails?nodes=all"})
	f.fail = errors.New("no database")
	h.refused(http.StatusInternalServerError, req{as: access.Admin, method: "POST", path: "/nodes/tokens"})
}

// storedLogs are copies of audit logs.
type storedLogs map[string]string

func (s storedLogs) Logs(context.Context) (list []archive.Log, err error) {
	for node, text := range s {
		list = append(list, archive.Log{Node: node, Entries: int64(len(text)), Bytes: 1})
	}
	return list, nil
}

func (s storedLogs) Export(_ context.Context, node string, w io.Writer) error {
	if s[node] == "" {
		return fault.Newf(fault.NotFound, "archive.Export", node, "no copy")
	}
	_, err := io.WriteString(w, s[node])
	return err
}

func TestStoredAuditLogs(t *testing.T) {
	c := record(t)
	stored := storedLogs{"self": "mine", "other": "theirs", "removed": "old"}
	h, _, _ := inFleet(t, c.use, func(o *api.Options) { o.Stored = stored })
	var list wire.Page[wire.StoredLog]
	h.want(http.StatusOK, req{as: access.Viewer, method: "GET", path: "/chain/stored"}, &list)
	for _, l := range list.Items {
		if l.Entries != int64(len(stored[l.Node])) || l.Bytes != 1 {
			t.Errorf("stored log = %+v, want %d entries", l, len(stored[l.Node]))
		}
	}
	if len(list.Items) != len(stored) {
		t.Errorf("%d stored logs, want %d", len(list.Items), len(stored))
	}
	export := func(r req, node string) reply {
		t.Helper()
		r.method, r.path = "GET", "/chain/export?stored="+node
		return h.do(r)
	}
	for node, want := range stored {
		if got := export(req{as: access.Viewer}, node); got.status != http.StatusOK || string(got.body) != want {
			t.Errorf("copy of %s = %d %q, want %q", node, got.status, got.body, want)
		}
	}
	if got := export(req{as: access.Viewer}, "unknown"); got.status != http.StatusNotFound {
		t.Errorf("copy of an unknown node = %d %s, want not found", got.status, got.body)
	}
	// A user of this host has no rights on other nodes.
	for node, want := range map[string]int{"self": http.StatusOK, "other": http.StatusForbidden, "removed": http.StatusForbidden} {
		if got := export(req{local: true}, node); got.status != want {
			t.Errorf("copy of %s over the local socket = %d %s, want %d", node, got.status, got.body, want)
		}
	}
	h, _, _ = inFleet(t, c.use)
	if got := export(req{as: access.Viewer}, "self"); got.status != http.StatusNotImplemented {
		t.Errorf("copy without an object store = %d %s, want not implemented", got.status, got.body)
	}
}
