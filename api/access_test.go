package api_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"glasshouse/api"
	"glasshouse/api/apitest"
	"glasshouse/policy/access"
)

// document is the part of an OpenAPI document that the tests check.
type document struct {
	OpenAPI string `json:"openapi"`
	Paths   map[string]map[string]struct {
		ID          string           `json:"operationId"`
		Summary     string           `json:"summary"`
		Description string           `json:"description"`
		Security    []map[string]any `json:"security"`
		Parameters  []struct {
			Name string `json:"name"`
			In   string `json:"in"`
		} `json:"parameters"`
		Body      json.RawMessage            `json:"requestBody"`
		Responses map[string]json.RawMessage `json:"responses"`
	} `json:"paths"`
	Components struct {
		Schemas map[string]json.RawMessage `json:"schemas"`
	} `json:"components"`
}

func (d *harness) document() document {
	d.t.Helper()
	var doc document
	d.want(200, req{method: "GET", path: "/openapi.json"}, &doc)
	return doc
}

var placeholders = strings.NewReplacer("{id}", "j-aaaaaaaaaaaa", "{exec}", "x-aaaaaaaaaaaa", "{sid}", "s-aaaaaaaaaaaa")

// TestOperationIDsAreNames checks the ids of operations, which the SDKs use as method names.
func TestOperationIDsAreNames(t *testing.T) {
	d := open(t, apitest.New())
	name := regexp.MustCompile(`^[a-z]+[A-Z][A-Za-z0-9]+$`)
	seen := map[string]string{}
	for path, methods := range d.document().Paths {
		for method, op := range methods {
			where := method + " " + path
			if !name.MatchString(op.ID) {
				t.Errorf("%s has the operation id %q, want a verb and an object", where, op.ID)
			}
			if other := seen[op.ID]; other != "" {
				t.Errorf("%s and %s have the operation id %q", where, other, op.ID)
			}
			seen[op.ID] = where
		}
	}
	for id, where := range map[string]string{"createJail": "post /jails", "branchSnapshot": "post /snapshots/{sid}/branch", "listChainEntries": "get /chain"} {
		if seen[id] != where {
			t.Errorf("operation %s is %q, want %q", id, seen[id], where)
		}
	}
}

// Calls each operation with each role, and compares the result with the document.
func TestRolesMatchOpenAPIDocument(t *testing.T) {
	d := open(t, apitest.New())
	ladder := map[access.Role]int{"": 0, access.Agent: 0, access.Viewer: 1, access.Operator: 2, access.Admin: 3}
	n := 0
	for path, methods := range d.document().Paths {
		for method, op := range methods {
			n++
			need := access.Role("")
			if _, after, ok := strings.Cut(op.Description, "Requires the role "); ok {
				need = access.Role(strings.TrimSuffix(after, "."))
			}
			if (need == "") != (len(op.Security) == 0) {
				t.Errorf("%s %s needs role %q and has security %v", method, path, need, op.Security)
			}
			for _, have := range []access.Role{"", access.Agent, access.Viewer, access.Operator, access.Admin} {
				resp := d.send(req{as: have, method: strings.ToUpper(method), path: placeholders.Replace(path)})
				resp.Body.Close() // the body of a stream does not end
				got := resp.StatusCode
				switch {
				case need != "" && have == "" && got != 401:
					t.Errorf("%s %s without a token: %d, want 401", method, path, got)
				case have != "" && ladder[have] < ladder[need] && got != 403:
					t.Errorf("%s %s as %s: %d, want 403", method, path, have, got)
				case ladder[have] >= ladder[need] && (got == 401 || got == 403 || got == 500):
					t.Errorf("%s %s as %q: %d, want access", method, path, have, got)
				}
			}
		}
	}
	if n < 30 {
		t.Errorf("the document has too few operations: %d", n)
	}
}

func TestOpenAPIDocumentIsComplete(t *testing.T) {
	d := open(t, apitest.New())
	doc := d.document()
	if !strings.HasPrefix(doc.OpenAPI, "3.1.") {
		t.Errorf("openapi %q, want 3.1", doc.OpenAPI)
	}
	seen := map[string]bool{}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			if op.ID == "" || seen[op.ID] || op.Summary == "" || op.Responses["default"] == nil || len(op.Responses) < 2 {
				t.Errorf("%s %s: incomplete operation %+v", method, path, op)
			}
			seen[op.ID] = true
			for _, name := range strings.Split(path, "/") {
				if !strings.HasPrefix(name, "{") {
					continue
				}
				found := false
				for _, p := range op.Parameters {
					found = found || p.In == "path" && "{"+p.Name+"}" == name
				}
				if !found {
					t.Errorf("%s %s does not describe its parameter %s", method, path, name)
				}
			}
		}
	}
	raw := string(d.do(req{method: "GET", path: "/openapi.json"}).body)
	for _, ref := range strings.Split(raw, `"$ref": "#/components/schemas/`)[1:] {
		name, _, _ := strings.Cut(ref, `"`)
		if doc.Components.Schemas[name] == nil {
			t.Errorf("the document has a reference to %s, which is not defined", name)
		}
	}
	for _, name := range []string{"Jail", "JailPage", "ExecRequest", "Problem", "TerminalControl", "Snapshot", "SnapshotPage", "Branch", "LineageJailPage"} {
		if doc.Components.Schemas[name] == nil {
			t.Errorf("the document lacks %s", name)
		}
	}
	for path, want := range map[string]bool{"/jails": true, "/jails/{id}/start": true, "/jails/{id}/exec": true, "/tokens": false} {
		got := false
		for _, p := range doc.Paths[path]["post"].Parameters {
			got = got || p.In == "header" && p.Name == "Idempotency-Key"
		}
		if got != want {
			t.Errorf("POST %s takes an Idempotency-Key: %v in the document, want %v", path, got, want)
		}
	}
	for name := range doc.Components.Schemas {
		if strings.Contains(name, "Type2") {
			t.Errorf("two types have the schema name %s", name)
		}
	}
	if doc.Paths["/jails"]["post"].Body == nil {
		t.Error("POST /jails has no body in the document")
	}
}

func TestBadCredentials(t *testing.T) {
	d := open(t, apitest.New())
	for _, h := range []string{
		"Bearer", "Bearer ", "Bearer gh_", "Bearer nonsense", "Basic dXNlcjpwdw==", "Bearer " + strings.Repeat("gh_a", 10000)[:10000],
		"Bearer " + d.tokens[access.Admin] + "x", "Bearer " + d.tokens[access.Admin][:20], d.tokens[access.Admin], "Bearer gh_' OR 1=1 --",
	} {
		got := d.do(req{method: "GET", path: "/jails", header: map[string]string{"Authorization": h}})
		if got.status != 401 {
			t.Errorf("Authorization %.40q: %d, want 401", h, got.status)
		}
	}
	// An invalid token is not replaced by the credentials of the socket.
	d.refused(401, req{method: "GET", path: "/jails", local: true, header: map[string]string{"Authorization": "Bearer gh_bad"}})
	// A token in the query is not accepted, and does not reach the log.
	d.refused(401, req{method: "GET", path: "/jails?token=" + d.tokens[access.Admin]})
	if strings.Contains(d.log.String(), d.tokens[access.Admin]) {
		t.Error("a token from a query is in the log")
	}
}

func TestForeignHostsAndOriginsAreRefused(t *testing.T) {
	d := open(t, apitest.New(), func(o *api.Options) {
		o.Hosts = []string{"glass.example"}
	})
	_, port, _ := net.SplitHostPort(d.tcp)
	for host, status := range map[string]int{
		"evil.example": 403, "evil.example:" + port: 403, "localhost.evil.example": 403, "": 200,
		"localhost": 200, "LOCALHOST:" + port: 200, "127.0.0.1": 200, "[::1]:80": 200, "glass.example": 200, "localhost.": 200,
	} {
		if got := d.do(req{as: access.Admin, method: "GET", path: "/jails", header: map[string]string{"Host": host}}); got.status != status {
			t.Errorf("Host %q: %d, want %d", host, got.status, status)
		}
	}
	// The check also applies to routes that require no token.
	d.refused(403, req{method: "GET", path: "/openapi.json", header: map[string]string{"Host": "evil.example"}})

	for origin, status := range map[string]int{
		"https://evil.example": 403, "null": 403, "http://" + d.tcp + ".evil.example": 403, "http://127.0.0.1:1": 403,
		"http://" + d.tcp: 201, "": 201,
	} {
		for _, local := range []bool{false, true} {
			got := d.do(req{as: access.Admin, method: "POST", path: "/jails", body: "{}", header: map[string]string{"Origin": origin}, local: local})
			if got.status != status {
				t.Errorf("Origin %q, local %v: %d, want %d", origin, local, got.status, status)
			}
			if got.header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("Origin %q got Access-Control-Allow-Origin", origin)
			}
		}
	}
	d.refused(403, req{as: access.Admin, method: "POST", path: "/jails", body: "{}", header: map[string]string{"Sec-Fetch-Site": "cross-site"}})
}

func TestSocketIdentifiesCallers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to change credentials")
	}
	const nobody, operators = 65534, 4711
	d := open(t, apitest.New(), func(o *api.Options) { o.Peers = access.Peers{Group: "4711"} })
	os.Chmod(d.socket, 0o777)
	os.Chmod(strings.TrimSuffix(d.socket, "/s"), 0o755)

	d.want(200, req{method: "GET", path: "/tokens", local: true}, nil) // root is an admin
	for _, c := range []struct {
		name          string
		uid, gid      int
		groups        []int
		jails, tokens int
	}{
		{"a stranger", nobody, nobody, nil, 403, 403},
		{"an operator by group", nobody, operators, nil, 200, 403},
		{"an operator by a supplementary group", nobody, nobody, []int{1, operators}, 200, 403},
		{"a member of many groups", nobody, nobody, manyGroups(100, operators), 200, 403},
	} {
		if got := d.statusAs(c.uid, c.gid, c.groups, "/jails"); got != c.jails {
			t.Errorf("GET /jails by %s: %d, want %d", c.name, got, c.jails)
		}
		if got := d.statusAs(c.uid, c.gid, c.groups, "/tokens"); got != c.tokens {
			t.Errorf("GET /tokens by %s: %d, want %d", c.name, got, c.tokens)
		}
	}
}

func manyGroups(n, last int) []int {
	var gs []int
	for i := range n {
		gs = append(gs, 20000+i)
	}
	return append(gs, last)
}

// statusAs sends a request over the socket with other credentials. They apply to a locked
// thread, which ends with its goroutine.
func (d *harness) statusAs(uid, gid int, groups []int, path string) int {
	d.t.Helper()
	status := make(chan int, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so the runtime does not reuse the thread
		defer close(status)
		if err := become(uid, gid, groups); err != nil {
			d.t.Error(err)
			return
		}
		conn, err := net.Dial("unix", d.socket)
		if err != nil {
			d.t.Error(err)
			return
		}
		defer conn.Close()
		tr := &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}
		resp, err := (&http.Client{Transport: tr}).Get("http://glasshouse" + path)
		if err != nil {
			d.t.Error(err)
			return
		}
		resp.Body.Close()
		status <- resp.StatusCode
	}()
	return <-status
}

// become changes the credentials of this thread. The functions of package syscall change those
// of all threads.
func become(uid, gid int, groups []int) error {
	list := make([]uint32, len(groups)+1)
	for i, g := range groups {
		list[i] = uint32(g)
	}
	if err := setgroups(list[:len(groups)]); err != nil {
		return err
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)); e != 0 {
		return e
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
		return e
	}
	return nil
}
