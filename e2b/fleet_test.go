package e2b

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/e2b/e2btest"
	"glasshouse/e2b/envd"
	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/id"
	"glasshouse/jail"
)

// A fakeFleet has nodes in this process. Its index is always up to date.
type fakeFleet struct {
	*testing.T
	names []string // in the order in which nodes are chosen
	nodes map[string]*fakeDaemon
	down  map[string]bool
}

// A member is how one node sees the fleet.
type member struct {
	*fakeFleet
	name string
}

func (m member) Self() string { return m.name }

func (f *fakeFleet) Nodes(context.Context) (all []fleet.Node, err error) {
	for _, name := range f.names {
		n := fleet.Node{ID: name, Addr: name, State: fleet.Up, Front: name == "front"}
		if f.down[name] {
			n.State = fleet.Lost
		}
		all = append(all, n)
	}
	return all, nil
}

func (f *fakeFleet) objects() (all []fleet.Object) {
	for _, name := range f.names {
		own, err := f.nodes[name].server.Objects(f.Context())
		if err != nil {
			f.Fatal(err)
		}
		for _, o := range own {
			o.Node = name
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b fleet.Object) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) })
	return all
}

func (f *fakeFleet) Owner(_ context.Context, k fleet.Key) (node string, err error) {
	for _, o := range f.objects() { // the newest one
		if o.Key() == k {
			node = o.Node
		}
	}
	return node, nil
}

func (f *fakeFleet) Objects(_ context.Context, kind fleet.Kind, tenant, after string, limit int) ([]fleet.Object, error) {
	all := slices.DeleteFunc(f.objects(), func(o fleet.Object) bool { return o.Kind != kind || o.Tenant != tenant })
	if after != "" {
		return nil, errors.New("the test has only one page")
	}
	return all, nil
}

// Place chooses each node in turn.
func (f *fakeFleet) Place(context.Context) (fleet.Node, error) {
	f.names = append(f.names[1:], f.names[0])
	name := f.names[0]
	if name == "front" {
		return f.Place(context.Background())
	}
	return fleet.Node{ID: name}, nil
}

func (f *fakeFleet) Forward(w http.ResponseWriter, r *http.Request, node string, _ fleet.Key) error {
	if f.down[node] {
		return fault.Newf(fault.Unavailable, "fake.Forward", node, "the node is lost")
	}
	if r.Header.Get(fleet.E2BHeader) == "" {
		f.Errorf("%s %s is passed on without %s", r.Method, r.URL, fleet.E2BHeader)
	}
	f.nodes[node].server.ServeNode(w, r)
	return nil
}

// newFakeFleet returns a front end of two nodes.
func newFakeFleet(t *testing.T) (f *fakeFleet, front *fakeDaemon) {
	f = &fakeFleet{T: t, names: []string{"front", "one", "two"}, nodes: map[string]*fakeDaemon{}, down: map[string]bool{}}
	for _, name := range f.names {
		d := newFakeDaemon(t)
		d.server.cfg.Fleet, d.server.cfg.Front, d.server.cfg.Domain = member{f, name}, name == "front", name+".test"
		f.nodes[name] = d
	}
	return f, f.nodes["front"]
}

// of returns the node with a sandbox.
func (f *fakeFleet) of(sandbox string) string {
	for name, d := range f.nodes {
		if d.boxes.has(sandbox) {
			return name
		}
	}
	return ""
}

func TestFrontEndPassesRequestsOn(t *testing.T) {
	f, front := newFakeFleet(t)
	a, b := front.create(`{"templateID":"base","metadata":{"n":"a"}}`), front.create(`{"templateID":"base","envVars":{"HIDDEN":"1"},"autoPause":true}`)
	if f.of(a.SandboxID) == f.of(b.SandboxID) || f.of(a.SandboxID) == "front" || a.Domain != "front.test" || a.EnvdToken == "" {
		t.Fatalf("sandboxes on %q and %q, the first %+v, want two nodes, and the domain of the front end", f.of(a.SandboxID), f.of(b.SandboxID), a)
	}
	detail := e2btest.Read[wireDetail](t, front.api(200, "GET", "/sandboxes/"+a.SandboxID, ""))
	if detail.Domain != "front.test" || detail.EnvdToken != a.EnvdToken || detail.Metadata["n"] != "a" {
		t.Errorf("details = %+v, want those of the sandbox, and the domain of the front end", detail)
	}
	// Lists have the sandboxes of all nodes, at each node, and each only those of its team.
	for name, d := range f.nodes {
		list := e2btest.Read[[]wireListed](t, d.api(200, "GET", "/v2/sandboxes?order=asc", ""))
		if len(list) != 2 || list[0].SandboxID != a.SandboxID || list[1].SandboxID != b.SandboxID {
			t.Errorf("node %s lists %+v, want both sandboxes", name, list)
		}
		if w := d.do("GET", "/v2/sandboxes", "", "X-API-Key", "key-other"); w.Body.String() != "[]\n" {
			t.Errorf("node %s lists %s to another team, want none", name, w.Body)
		}
		first := d.api(200, "GET", "/v2/sandboxes?order=asc&limit=1", "")
		next := e2btest.Read[[]wireListed](t, d.api(200, "GET", "/v2/sandboxes?order=asc&nextToken="+url.QueryEscape(first.Header().Get("X-Next-Token")), ""))
		if len(next) != 1 || next[0].SandboxID != b.SandboxID {
			t.Errorf("the second page at node %s = %+v, want the second sandbox", name, next)
		}
	}
	for _, c := range []struct {
		method, path, key, body string
		want                    int
	}{
		{"POST", "/sandboxes/" + b.SandboxID + "/pause", "key-mine", "", 204},
		{"POST", "/sandboxes/" + b.SandboxID + "/connect", "key-mine", `{"timeout":60}`, 201},
		{"POST", "/sandboxes/" + b.SandboxID + "/timeout", "key-mine", `{"timeout":60}`, 204},
		{"DELETE", "/sandboxes/" + b.SandboxID, "key-other", "", 404},
		{"DELETE", "/sandboxes/" + b.SandboxID, "other", "", 401},
		{"GET", "/sandboxes/iaaaaaaaaaaaaaaaaaaaa", "key-mine", "", 404},
		{"DELETE", "/sandboxes/" + b.SandboxID + "-client", "key-mine", "", 204},
		{"GET", "/sandboxes/" + b.SandboxID, "key-mine", "", 404},
		{"POST", "/v2/sandboxes", "key-mine", `{"templateID":"none"}`, 404},
		{"POST", "/v2/sandboxes", "key-mine", `{"templateID":`, 400},
		{"POST", "/v2/sandboxes", "key-mine", `{"templateID":"` + strings.Repeat("x", 2<<20) + `"}`, 413},
	} {
		if w := front.do(c.method, c.path, c.body, "X-API-Key", c.key); w.Code != c.want {
			t.Errorf("%s %.60s with %s = %d %s, want %d", c.method, c.path, c.key, w.Code, w.Body, c.want)
		}
	}
	f.down[f.of(a.SandboxID)] = true
	if w := front.do("GET", "/sandboxes/"+a.SandboxID, "", "X-API-Key", "key-mine"); w.Code != 503 || !strings.Contains(w.Body.String(), "the node is lost") {
		t.Errorf("a sandbox of a lost node = %d %s, want unavailable and why", w.Code, w.Body)
	}
}

func TestIndexHasNoSecretsOfSandboxes(t *testing.T) {
	f, front := newFakeFleet(t)
	box := front.create(`{"templateID":"base","envVars":{"KEY":"hidden-env"},"network":{"allowPublicTraffic":false,"rules":{"example.com":[{"transform":{"headers":{"X-Key":"hidden-header"}}}]}}}`)
	front.snap(box.SandboxID, "named")
	v := e2btest.Read[wireVolume](t, front.api(201, "POST", "/volumes", `{"name":"v"}`))
	if box.Traffic == nil || box.EnvdToken == "" || v.Token == "" {
		t.Fatalf("sandbox %+v and volume %+v, want tokens", box, v)
	}
	for _, o := range f.objects() {
		for _, hidden := range []string{"hidden-env", "hidden-header", box.EnvdToken, *box.Traffic, v.Token} {
			if strings.Contains(o.Summary, hidden) {
				t.Errorf("the entry of %s %s contains %q", o.Kind, o.ID, hidden)
			}
		}
	}
}

func TestPortsOfSandboxesOnOtherNodes(t *testing.T) {
	f, front := newFakeFleet(t)
	var seen *http.Request
	for name, d := range f.nodes {
		d.server.cfg.Ports = portsFunc(func(w http.ResponseWriter, r *http.Request, sandbox string, port int) {
			seen = r
			fmt.Fprintf(w, "%s %s:%d%s", name, sandbox, port, r.URL.Path)
		})
	}
	box := front.create(`{"templateID":"base"}`).SandboxID
	for _, c := range []struct {
		url    string
		header []string
	}{
		{"http://3000-" + box + ".front.test/a", nil},
		{"http://127.0.0.1/ports/3000-" + box + "/a", nil},
		{"http://127.0.0.1/a", []string{"E2b-Sandbox-Id", box, "E2b-Sandbox-Port", "3000", fleet.E2BHeader, "client=forged"}},
	} {
		w := front.do("GET", c.url, "", c.header...)
		if got, want := w.Body.String(), fmt.Sprintf("%s %s:3000/a", f.of(box), box); got != want {
			t.Errorf("%s = %d %q, want %q", c.url, w.Code, got, want)
		}
		if seen.RemoteAddr != "192.0.2.1:1234" || seen.TLS != nil || seen.Header.Get(fleet.E2BHeader) != "" {
			t.Errorf("%s arrives from %q with TLS %v and the header %q, want the client's address, no TLS, and no header", c.url, seen.RemoteAddr, seen.TLS != nil, seen.Header.Get(fleet.E2BHeader))
		}
	}
	front.do("GET", "https://3000-"+box+".front.test/a", "")
	if seen.TLS == nil {
		t.Error("a request by TLS arrives without it")
	}
	// A forged header does not make this node serve what another one has.
	w := front.do("GET", "/sandboxes/"+box, "", "X-API-Key", "key-mine", fleet.E2BHeader, "domain=evil.test")
	if got := e2btest.Read[wireDetail](t, w); got.Domain != "front.test" {
		t.Errorf("with a forged header the domain is %q, want that of the front end", got.Domain)
	}
	if w := front.do("GET", "http://3000-iaaaaaaaaaaaaaaaaaaaa.front.test/", ""); !strings.HasPrefix(w.Body.String(), "front ") {
		t.Errorf("an unknown sandbox = %s, want the response of this node", w.Body)
	}
}

type portsFunc func(w http.ResponseWriter, r *http.Request, sandbox string, port int)

func (f portsFunc) ServeSandbox(w http.ResponseWriter, r *http.Request, sandbox string, port int) {
	f(w, r, sandbox, port)
}

func TestFileLinksWithoutSandbox(t *testing.T) {
	f, front := newFakeFleet(t)
	for name, d := range f.nodes {
		d.server.cfg.Ports = portsFunc(func(w http.ResponseWriter, _ *http.Request, sandbox string, port int) {
			fmt.Fprintf(w, "%s %s:%d", name, sandbox, port)
		})
	}
	front.create(`{"templateID":"base"}`)
	box := front.create(`{"templateID":"base"}`)
	link := "/files?" + link(box.EnvdToken, "a", "read", time.Now().Add(time.Hour))
	if w := front.do("GET", link, ""); w.Body.String() != fmt.Sprintf("%s %s:%d", f.of(box.SandboxID), box.SandboxID, envd.Port) {
		t.Errorf("a link = %d %s, want that of the sandbox on node %s", w.Code, w.Body, f.of(box.SandboxID))
	}
	for _, c := range [][2]string{{"POST", link}, {"GET", "/files?path=a&signature=v1_wrong"}, {"DELETE", link}} {
		if w := front.do(c[0], c[1], "x"); w.Code != 401 {
			t.Errorf("%s %s = %d %s, want unauthorized", c[0], c[1], w.Code, w.Body)
		}
	}
	f.down[f.of(box.SandboxID)] = true
	if w := front.do("GET", link, ""); w.Code != 401 {
		t.Errorf("a link to a lost node = %d %s, want unauthorized", w.Code, w.Body)
	}
}

func TestSnapshotsOfOtherNodes(t *testing.T) {
	f, front := newFakeFleet(t)
	a, b := front.create(`{"templateID":"base"}`).SandboxID, front.create(`{"templateID":"base"}`).SandboxID
	front.snap(a, "app")
	time.Sleep(time.Millisecond)
	front.snap(b, "app") // of another node, and newer
	unnamed := front.snap(a, "")
	if got := front.snapshotsOf(""); len(got) != 2 || !slices.Contains(got, "app:default") || !slices.Contains(got, unnamed.SnapshotID) {
		t.Errorf("snapshots = %v, want the newest of each name", got)
	}
	for ref, node := range map[string]string{"app": f.of(b), "app:default": f.of(b), unnamed.SnapshotID: f.of(a)} {
		made := front.create(fmt.Sprintf(`{"templateID":%q}`, ref)).SandboxID
		if got := f.of(made); got != node {
			t.Errorf("a sandbox of snapshot %s is on node %s, want %s", ref, got, node)
		}
	}
	if w := front.do("POST", "/v2/sandboxes", `{"templateID":"app"}`, "X-API-Key", "key-other"); w.Code != 404 {
		t.Errorf("a snapshot of another team = %d %s, want not found", w.Code, w.Body)
	}
	front.api(204, "DELETE", "/templates/app", "")
	for _, name := range []string{"one", "two"} {
		for _, s := range f.nodes[name].snaps {
			if s.Labels[labelName] != "" {
				t.Errorf("node %s still has snapshot %s with the deleted name", name, s.ID)
			}
		}
	}
}

func TestVolumesOfOtherNodes(t *testing.T) {
	f, front := newFakeFleet(t)
	volume := func(name string) (wireVolume, string) {
		v := e2btest.Read[wireVolume](t, front.api(201, "POST", "/volumes", fmt.Sprintf(`{"name":%q}`, name)))
		for node, d := range f.nodes {
			if d.server.cfg.Volumes.has(v.VolumeID) {
				return v, node
			}
		}
		return v, ""
	}
	a, nodeA := volume("a")
	_, nodeB := volume("b")
	if nodeA == nodeB || nodeA == "front" || nodeB == "front" {
		t.Fatalf("volumes on %s and %s, want two nodes", nodeA, nodeB)
	}
	if w := front.do("POST", "/volumes", `{"name":"a"}`, "X-API-Key", "key-mine"); w.Code != 400 || !strings.Contains(w.Body.String(), "already exists") {
		t.Errorf("a second volume of a name = %d %s, want an error", w.Code, w.Body)
	}
	if list := e2btest.Read[[]wireVolume](t, front.api(200, "GET", "/volumes", "")); len(list) != 2 || list[0].Token != "" {
		t.Errorf("volumes = %+v, want two without tokens", list)
	}
	if got := e2btest.Read[wireVolume](t, front.api(200, "GET", "/volumes/"+a.VolumeID, "")); got.Token != a.Token {
		t.Errorf("volume = %+v, want %+v", got, a)
	}
	both := `{"templateID":"base","volumeMounts":[{"name":"a","path":"/a"},{"name":"b","path":"/b"}]}`
	if w := front.do("POST", "/v2/sandboxes", both, "X-API-Key", "key-mine"); w.Code != 409 || !strings.Contains(w.Body.String(), "different nodes") {
		t.Errorf("a sandbox with volumes of two nodes = %d %s, want conflict", w.Code, w.Body)
	}
	front.api(204, "DELETE", "/volumes/"+a.VolumeID, "")
	if w := front.do("GET", "/volumecontent/"+a.VolumeID+"/dir?path=/", "", "Authorization", "Bearer "+a.Token); w.Code != 401 {
		t.Errorf("files of a destroyed volume = %d %s, want unauthorized", w.Code, w.Body)
	}
}

func TestMetricsOfOtherNodes(t *testing.T) {
	f, front := newFakeFleet(t)
	a, b := front.create(`{"templateID":"base"}`).SandboxID, front.create(`{"templateID":"base"}`).SandboxID
	for _, sandbox := range []string{a, b} { // the first sample of the node may be taken before or after
		f.nodes[f.of(sandbox)].handle(sandbox).samples.add(time.Now().UTC(), jail.Stats{MemoryBytes: 7}, 0)
	}
	read := func(key string) map[string]wireSample {
		w := front.do("GET", "/sandboxes/metrics?sandbox_ids="+a+","+b+",none", "", "X-API-Key", key)
		var got struct{ Sandboxes map[string]wireSample }
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatalf("%v in %s", err, w.Body)
		}
		return got.Sandboxes
	}
	if got := read("key-mine"); len(got) != 2 || got[a].Unix == 0 || got[b].Unix == 0 {
		t.Errorf("metrics = %+v, want those of both sandboxes", got)
	}
	if got := read("key-other"); len(got) != 0 {
		t.Errorf("metrics for another team = %+v, want none", got)
	}
	f.down[f.of(a)] = true
	if got := read("key-mine"); len(got) != 1 || got[b].Unix == 0 {
		t.Errorf("metrics without a lost node = %+v, want those of the other", got)
	}
}

func TestMalformedHeaderOfNode(t *testing.T) {
	_, front := newFakeFleet(t)
	r := front.request("GET", "/sandboxes", "", fleet.E2BHeader, "%zz")
	w := httptest.NewRecorder()
	front.server.ServeNode(w, r)
	if w.Code != 400 {
		t.Errorf("a malformed header = %d %s, want an error", w.Code, w.Body)
	}
}

func TestTemplateNodeFollowsNewestTemplate(t *testing.T) {
	f, front := newFakeFleet(t)
	objects, err := TemplateObjects(id.Token("mine"), "t1", "app", time.Now(), struct{}{})
	if err != nil || len(objects) != 2 || objects[1].Key() != templateAlias("mine", "app") || objects[0].Tenant != "mine" {
		t.Fatalf("objects = %+v, %v, want the template and its name", objects, err)
	}
	front.server.cfg.Fleet = withObjects{member{f, "front"}, append(objects, fleet.Object{Kind: fleet.Template, ID: "t0", Tenant: "mine"})}
	for range 2 { // always the same
		if node, _, err := front.server.placeBuild(t.Context(), "mine"); err != nil || node != "two" {
			t.Errorf("node of a new template = %s, %v, want that of the newest", node, err)
		}
	}
	f.down["two"] = true
	if node, _, err := front.server.placeBuild(t.Context(), "mine"); err != nil || node == "two" && f.names[0] != "two" {
		t.Errorf("node of a new template = %s, %v, want another one", node, err)
	}
}

// withObjects is a fleet with further objects of node two.
type withObjects struct {
	member
	more []fleet.Object
}

func (w withObjects) Objects(_ context.Context, kind fleet.Kind, _, _ string, _ int) (all []fleet.Object, err error) {
	for _, o := range w.more {
		if o.Kind == kind {
			o.Node = "two"
			all = append(all, o)
		}
	}
	return all, nil
}
