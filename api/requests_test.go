package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/api"
	"glasshouse/api/apitest"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/policy/access"
)

func TestJailLifecycle(t *testing.T) {
	d := open(t, apitest.New())
	var j wire.Jail
	made := d.want(201, req{as: access.Operator, method: "POST", path: "/jails", body: wire.CreateJail{
		Name: "one", Labels: map[string]string{"team": "a"}, Network: "FullAccess", Env: map[string]string{"KEY": "secret"},
		Limits: wire.Limits{MemoryMB: 64},
	}}, &j)
	self := "/jails/" + string(j.ID)
	if got := made.header.Get("Location"); got != self {
		t.Errorf("Location = %q, want %q", got, self)
	}
	if j.State != "created" || j.Network != "full" || j.Limits.MemoryMB != 64 || j.Links["self"] != self {
		t.Errorf("got %+v, want it created, with full network and 64 MB", j)
	}
	for _, step := range []struct{ verb, state string }{
		{"start", "running"}, {"pause", "paused"}, {"resume", "running"}, {"stop", "stopped"}, {"stop", "stopped"},
	} {
		d.want(200, req{as: access.Operator, method: "POST", path: self + "/" + step.verb}, &j)
		if j.State != step.state {
			t.Errorf("after %s: got state %s, want %s", step.verb, j.State, step.state)
		}
	}
	if p := d.refused(409, req{as: access.Operator, method: "POST", path: self + "/pause"}); !strings.Contains(p.Detail, "the jail is stopped") {
		t.Errorf("detail %q does not say that the jail is stopped", p.Detail)
	}
	d.want(200, req{as: access.Operator, method: "POST", path: self + "/stop", body: `{"grace_ms":10}`}, nil)

	d.want(200, req{as: access.Viewer, method: "GET", path: self}, &j)
	if j.Usage == nil || j.Usage.CPUMS != 1500 {
		t.Errorf("usage %+v, want 1500 ms of CPU", j.Usage)
	}
	if strings.Contains(string(d.do(req{as: access.Viewer, method: "GET", path: self}).body), "secret") {
		t.Error("a viewer received the environment")
	}
	if !strings.Contains(string(d.do(req{as: access.Operator, method: "GET", path: self}).body), "secret") {
		t.Error("an operator did not receive the environment")
	}
	if got := d.want(204, req{as: access.Operator, method: "DELETE", path: self}, nil); len(got.body) != 0 {
		t.Errorf("DELETE: got body %q, want none", got.body)
	}
	d.refused(404, req{as: access.Operator, method: "GET", path: self})
	d.refused(404, req{as: access.Operator, method: "DELETE", path: self})
}

func TestListsArePagedAndFiltered(t *testing.T) {
	d := open(t, apitest.New())
	for n := range 25 {
		d.want(201, req{as: access.Operator, method: "POST", path: "/jails", body: wire.CreateJail{
			Name: fmt.Sprint("jail ", n), Labels: map[string]string{"odd": fmt.Sprint(n%2 == 1), "n": fmt.Sprint(n)},
		}}, nil)
	}
	var names []string
	pages := 0
	for after := ""; ; {
		var page wire.Page[wire.Jail]
		d.want(200, req{as: access.Viewer, method: "GET", path: "/jails?limit=10&after=" + after}, &page)
		for _, j := range page.Items {
			names = append(names, j.Name)
		}
		pages++
		after = page.Next
		if after == "" {
			break
		}
	}
	if len(names) != 25 || names[0] != "jail 0" || names[24] != "jail 24" || pages != 3 {
		t.Errorf("%d pages with %d jails, %v; want 3 with 25 in order", pages, len(names), names)
	}
	for query, want := range map[string]int{
		"label=odd=true": 12, "label=odd=true&label=n=3": 1, "name=jail+7": 1, "state=created": 25, "state=running": 0, "limit=1000": 25,
	} {
		var page wire.Page[wire.Jail]
		got := d.want(200, req{as: access.Viewer, method: "GET", path: "/jails?" + query}, &page)
		if len(page.Items) != want {
			t.Errorf("?%s gave %d jails, want %d", query, len(page.Items), want)
		}
		if want == 0 && !strings.Contains(string(got.body), `"items":[]`) {
			t.Errorf("an empty list is %s, want []", got.body)
		}
	}
	for query, field := range map[string]string{
		"limit=0x": "limit", "limit=1001": "limit", "limit=-1": "limit", "limit=1&limit=2": "limit", "state=gone": "state", "label=novalue": "label",
		"label=a=1&label=a=2": "label", "after=nonsense": "after", "after=j-aaaaaaaaaaaa": "after", "nmae=typo": "nmae", "name=%00": "name", "name=%ff": "name", "a;b": "query",
	} {
		if p := d.refused(400, req{as: access.Viewer, method: "GET", path: "/jails?" + query}); p.Field != field {
			t.Errorf("?%s: field %q, want %q: %s", query, p.Field, field, p.Detail)
		}
	}
}

func TestChangesArePaged(t *testing.T) {
	jails := apitest.New()
	d := open(t, jails)
	j := d.running()
	for n := range 7 {
		jails.Diff = append(jails.Diff, apitestChange(fmt.Sprintf("/f%d", 6-n)))
	}
	var got []string
	for after := ""; ; {
		var page wire.Page[wire.Change]
		d.want(200, req{as: access.Viewer, method: "GET", path: "/jails/" + string(j) + "/fs/diff?limit=3&after=" + after}, &page)
		for _, c := range page.Items {
			got = append(got, c.Path)
		}
		after = page.Next
		if after == "" {
			break
		}
	}
	if want := "/f0 /f1 /f2 /f3 /f4 /f5 /f6"; strings.Join(got, " ") != want {
		t.Errorf("changes %v, want %s", got, want)
	}
}

func TestDiffResponsesAreBounded(t *testing.T) {
	jails := apitest.New()
	d := open(t, jails)
	j := d.running()
	for n := range 9 {
		c := apitestChange(fmt.Sprintf("/f%d", n))
		c.Kind, c.From, c.What, c.Diff = "renamed", "/was", []string{"content", "mode"}, "--- a\n"
		jails.Diff = append(jails.Diff, c)
	}
	seen, pages := 0, 0
	for after := ""; ; {
		var page wire.Page[wire.Change]
		d.want(200, req{as: access.Viewer, method: "GET", path: "/jails/" + string(j) + "/fs/diff?content=unified&limit=5&after=" + after}, &page)
		for _, c := range page.Items {
			if c.Diff == "" || c.NoDiff != "" || c.From != "/was" || len(c.What) != 2 {
				t.Errorf("got %+v, want it with a diff", c)
			}
			seen++
		}
		pages++
		after = page.Next
		if after == "" {
			break
		}
	}
	if seen != 9 || pages < 4 { // the daemon compares two at a time
		t.Errorf("%d changes in %d pages, want 9 in at least 4", seen, pages)
	}
	for query, field := range map[string]string{"content=side": "content", "path=etc": "path", "after=~%25": "after"} {
		if p := d.refused(400, req{as: access.Viewer, method: "GET", path: "/jails/" + string(j) + "/fs/diff?" + query}); p.Field != field {
			t.Errorf("?%s: field %q, want %q: %s", query, p.Field, field, p.Detail)
		}
	}
}

// JSON replaces invalid UTF-8 in a name, and the replaced name sorts differently.
func TestPaginationOfInvalidUTF8NamesEnds(t *testing.T) {
	jails := apitest.New()
	d := open(t, jails)
	j := d.running()
	for n := range 9 {
		jails.Diff = append(jails.Diff, apitestChange(fmt.Sprintf("/\xff%d", n)))
	}
	seen := 0
	for after := ""; ; {
		var page wire.Page[wire.Change]
		d.want(200, req{as: access.Viewer, method: "GET", path: "/jails/" + string(j) + "/fs/diff?limit=2&after=" + after}, &page)
		seen += len(page.Items)
		if seen > 9 {
			t.Fatal("got the same names again")
		}
		after = page.Next
		if after == "" {
			break
		}
	}
	if seen != 9 {
		t.Errorf("%d changes, want 9", seen)
	}
}

func TestInvalidBodiesNameField(t *testing.T) {
	d := open(t, apitest.New())
	deep := strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20000)
	for _, c := range []struct{ body, field, says string }{
		{`   `, "", "empty"},
		{`null`, "", "null"},
		{`[]`, "", "want a JSON object"},
		{`"x"`, "", "want a JSON object"},
		{`{"name":"a"`, "", "not JSON"},
		{`{"name":"a"} {}`, "", "not JSON"},
		{`{"name":"a"}x`, "", "not JSON"},
		{`{"naem":"a"}`, "naem", "unknown field"},
		{`{"NAME":"a"}`, "NAME", "unknown field"},
		{`{"name":"a","name":"b"}`, "name", "given twice"},
		{`{"name":7}`, "name", "want a string"},
		{`{"limits":{"memory_mb":"512"}}`, "limits.memory_mb", "want a whole number"},
		{`{"limits":{"memory_mb":1.5}}`, "limits.memory_mb", "want a whole number"},
		{`{"limits":{"memory_mb":99999999999999999999}}`, "limits.memory_mb", "want a whole number"},
		{`{"limits":{"memroy_mb":512}}`, "limits.memroy_mb", "unknown field"},
		{`{"limits":[]}`, "limits", "want an object"},
		{`{"mounts":[{"source":"/a","target":"/b"},{"sauce":"/a"}]}`, "mounts[1].sauce", "unknown field"},
		{`{"rootfs":{"host":"yes"}}`, "rootfs.host", "want true or false"},
		{`{"command":"ls"}`, "command", "want a list"},
		{`{"env":{"A":1}}`, "env", "want a string"},
		{`{"workspace":{"source":"/a","source":"/b"}}`, "workspace.source", "given twice"},
		{`{"trusted":true}`, "trusted", "unknown field"},
		{`{"network":"half"}`, "network", "not one of"},
		{`{"labels":{"glasshouse.capability":"x"}}`, "labels", "daemon's own"},
		{deep, "", ""},
		{strings.Repeat("[", 100000), "", ""},
	} {
		p := d.refused(400, req{as: access.Operator, method: "POST", path: "/jails", body: c.body})
		if p.Type != "/problems/invalid" || p.Field != c.field || !strings.Contains(p.Detail, c.says) {
			t.Errorf("body %.60s: %+v; want field %q and %q", c.body, p, c.field, c.says)
		}
	}
	if n := d.jails.Created(); n != 0 {
		t.Errorf("invalid bodies created %d jails", n)
	}
}

func TestUnexpectedBodiesAreRefused(t *testing.T) {
	d := open(t, apitest.New())
	j := d.running()
	d.refused(400, req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/pause", body: `{"a":1}`})
	d.want(200, req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/pause", body: " \n"}, nil)
	d.refused(400, req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/stop", body: `{"grace_ms":-1}`})
	d.refused(400, req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/stop", body: `{"grace":1}`})
}

func TestTooLargeOrNonJSONBodies(t *testing.T) {
	d := open(t, apitest.New(), func(o *api.Options) { o.MaxBody = 1000 })
	ok := `{"name":"` + strings.Repeat("a", 980) + `"}`
	d.want(201, req{as: access.Operator, method: "POST", path: "/jails", body: ok}, nil)
	for _, body := range []any{`{"name":"` + strings.Repeat("a", 1000) + `"}`, strings.Repeat(" ", 5000), chunked(strings.Repeat("a", 5000))} {
		if p := d.refused(413, req{as: access.Operator, method: "POST", path: "/jails", body: body}); p.Type != "/problems/too-large" {
			t.Errorf("problem %+v, want too large", p)
		}
	}
	for _, ct := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/json; charset=latin1", "nonsense;;"} {
		p := d.refused(400, req{as: access.Operator, method: "POST", path: "/jails", body: "{}", header: map[string]string{"Content-Type": ct}})
		if p.Field != "Content-Type" || p.Remedy == "" {
			t.Errorf("Content-Type %s: %+v, want the field and a remedy", ct, p)
		}
	}
	d.want(201, req{as: access.Operator, method: "POST", path: "/jails", body: "{}", header: map[string]string{"Content-Type": "application/json; charset=UTF-8"}}, nil)
}

func TestUnknownPaths(t *testing.T) {
	d := open(t, apitest.New())
	for _, path := range []string{
		"/nope", "/jails/", "/jails/j-1", "/jails/..%2f..%2fetc", "/jails/j-aaaaaaaaaaaa/nope", "/jails/j-AAAAAAAAAAAA", "/jails/%00",
		"/jails/j-aaaaaaaaaaaa/execs/x-1", "/tokens/t-1", "/jails/j-aaaaaaaaaaaa%0a",
	} {
		method := "GET"
		if strings.HasPrefix(path, "/tokens/") {
			method = "DELETE"
		}
		if p := d.refused(404, req{as: access.Admin, method: method, path: path}); p.Type != "/problems/not-found" {
			t.Errorf("%s: %+v, want not found", path, p)
		}
	}
	got := d.do(req{as: access.Admin, method: "PATCH", path: "/jails"})
	if got.status != 405 || got.header.Get("Allow") != "GET, POST" || got.header.Get("Content-Type") != wire.ProblemType {
		t.Errorf("PATCH /jails: %d, Allow %q, %s", got.status, got.header.Get("Allow"), got.body)
	}
	got = d.do(req{as: access.Admin, method: "PUT", path: "/jails/j-4k2v9c7m1xqe/limits"})
	if allow, want := got.header.Get("Allow"), "GET, PATCH"; got.status != 405 || allow != want {
		t.Errorf("PUT of limits = %d, Allow %q, want 405, %q", got.status, allow, want)
	}
	got = d.do(req{as: access.Admin, method: "DELETE", path: "/health"})
	if got.status != 405 {
		t.Errorf("DELETE /health: %d, want 405", got.status)
	}
}

func TestErrorKindsHaveStatus(t *testing.T) {
	jails := apitest.New()
	d := open(t, jails)
	for kind, status := range map[fault.Kind]int{
		fault.Invalid: 400, fault.Unauthenticated: 401, fault.Denied: 403, fault.NotFound: 404, fault.Conflict: 409, fault.TooLarge: 413,
		fault.Mismatch: 422, fault.Exhausted: 429, fault.NoSpace: 507, fault.Unsupported: 501, fault.Unavailable: 503, fault.Timeout: 504,
	} {
		jails.Fail = func(string) error {
			return fmt.Errorf("deep: %w", &fault.Error{Op: "jail.Create", On: "j-1", Kind: kind, Field: "a.b", Remedy: "do this", Err: errors.New("the cause")})
		}
		p := d.refused(status, req{as: access.Admin, method: "POST", path: "/jails", body: "{}"})
		if p.Kind() != string(kind) || p.Field != "a.b" || p.Remedy != "do this" || !strings.Contains(p.Detail, "the cause") {
			t.Errorf("%s: got %+v", kind, p)
		}
	}
}

func TestInternalErrorsAreOnlyLogged(t *testing.T) {
	jails := apitest.New()
	d := open(t, jails)
	for name, fail := range map[string]func(string) error{
		"error": func(string) error { return errors.New("open /var/lib/glasshouse/secret: hunter2") },
		"panic": func(string) error { panic("hunter2") },
	} {
		jails.Fail = fail
		p := d.refused(500, req{as: access.Admin, method: "POST", path: "/jails", body: "{}"})
		if text := fmt.Sprint(p); strings.Contains(text, "hunter2") || p.ID == "" {
			t.Errorf("%s: the response contains %s", name, text)
		}
		if log := d.log.String(); !strings.Contains(log, p.ID) || !strings.Contains(log, "hunter2") {
			t.Errorf("%s: the log does not have it under %s", name, p.ID)
		}
	}
	jails.Fail = nil
	d.want(201, req{as: access.Admin, method: "POST", path: "/jails", body: "{}"}, nil)
}

// The response must not contain paths of the host.
func TestFullDiskIsInsufficientStorage(t *testing.T) {
	jails := apitest.New()
	d := open(t, jails)
	for name, err := range map[string]error{
		"errno":    fmt.Errorf("make volume: %w", &fs.PathError{Op: "write", Path: "/var/lib/hunter2", Err: unix.ENOSPC}),
		"database": fault.New(fault.Unavailable, "chain.Append", "", errors.New("hunter2: database or disk is full (13)")),
		"program":  errors.New("runc create: hunter2: write config.json: No space left on device"),
	} {
		jails.Fail = func(string) error { return err }
		p := d.refused(507, req{as: access.Admin, method: "POST", path: "/jails", body: "{}"})
		if p.Kind() != string(fault.NoSpace) || p.Remedy == "" || strings.Contains(fmt.Sprint(p), "hunter2") {
			t.Errorf("%s: %+v", name, p)
		}
		if log := d.log.String(); !strings.Contains(log, p.ID) || !strings.Contains(log, "hunter2") {
			t.Errorf("%s: the log does not have it under %s", name, p.ID)
		}
	}
}

func TestReadyReportsFullDisk(t *testing.T) {
	d := open(t, apitest.New(), func(o *api.Options) {
		o.Ready = func(contextT) error { return &fs.PathError{Op: "write", Path: "/hunter2", Err: unix.ENOSPC} }
	})
	p := d.refused(503, req{method: "GET", path: "/health/ready"})
	if !strings.Contains(p.Detail, "disk is full") || p.Remedy == "" || strings.Contains(fmt.Sprint(p), "hunter2") {
		t.Errorf("not ready: %+v", p)
	}
}

func TestJailsShowTheirConditions(t *testing.T) {
	jails := apitest.New()
	d := open(t, jails)
	var j wire.Jail
	d.want(201, req{as: access.Admin, method: "POST", path: "/jails", body: "{}"}, &j)
	c := jail.Condition{Type: jail.DiskReadOnly, Detail: "it failed", Remedy: "start it again"}
	jails.SetConditions(j.ID, c)
	var page wire.Page[wire.Jail]
	d.want(200, req{as: access.Viewer, method: "GET", path: "/jails/" + string(j.ID)}, &j)
	d.want(200, req{as: access.Viewer, method: "GET", path: "/jails"}, &page)
	for _, j := range append(page.Items, j) {
		if len(j.Conditions) != 1 || j.Conditions[0] != wire.Condition(c) {
			t.Errorf("conditions are %+v, want %+v", j.Conditions, c)
		}
	}
}

func TestReady(t *testing.T) {
	down := false
	d := open(t, apitest.New(), func(o *api.Options) {
		ping := o.Ready
		o.Ready = func(ctx contextT) error {
			if down {
				return errors.New("database postgres://u:hunter2@host is down")
			}
			return ping(ctx)
		}
	})
	d.want(200, req{method: "GET", path: "/health/ready"}, nil)
	down = true
	d.want(200, req{method: "GET", path: "/health"}, nil)
	got := d.do(req{method: "GET", path: "/health/ready"})
	if got.status != 503 || strings.Contains(string(got.body), "hunter2") || got.header.Get("Retry-After") == "" {
		t.Errorf("not ready: %d %s", got.status, got.body)
	}
}

func TestDaemonPages(t *testing.T) {
	d := open(t, apitest.New(), func(o *api.Options) {
		o.Doctor = func(contextT) []wire.Probe {
			return []wire.Probe{{Name: "criu", Status: "unsupported", Need: "recommended", Purpose: "snapshots", Reason: "too old", Remedy: "make up"}}
		}
		o.Storage = func(contextT) (wire.Storage, error) {
			return wire.Storage{Total: 10, Free: 3, Parts: []wire.StoragePart{{Name: "events", Bytes: 7, Files: 1}}}, nil
		}
	})
	var kept wire.Storage
	d.want(200, req{as: access.Viewer, method: "GET", path: "/storage"}, &kept)
	if kept.Free != 3 || len(kept.Parts) != 1 || kept.Parts[0].Bytes != 7 {
		t.Errorf("storage %+v", kept)
	}
	var v wire.Version
	d.want(200, req{as: access.Viewer, method: "GET", path: "/version"}, &v)
	if v.Version != "1.2.3" {
		t.Errorf("version %+v, want 1.2.3", v)
	}
	var backends wire.Page[wire.Backend]
	d.want(200, req{as: access.Viewer, method: "GET", path: "/backends"}, &backends)
	if len(backends.Items) != 2 || backends.Items[0].Lacks["disk"] == "" || backends.Items[1].Remedy == "" {
		t.Errorf("backends %+v", backends)
	}
	var probes wire.Page[wire.Probe]
	d.want(200, req{as: access.Viewer, method: "GET", path: "/doctor"}, &probes)
	if len(probes.Items) != 1 || probes.Items[0].Remedy != "make up" || probes.Items[0].Need != "recommended" || probes.Items[0].Purpose != "snapshots" {
		t.Errorf("doctor %+v", probes)
	}
	var images wire.Page[wire.Image]
	d.want(200, req{as: access.Viewer, method: "GET", path: "/images"}, &images)
}

func TestTokens(t *testing.T) {
	d := open(t, apitest.New())
	var tok wire.Token
	d.want(201, req{as: access.Admin, method: "POST", path: "/tokens", body: wire.CreateToken{Name: "ci", Role: "viewer"}}, &tok)
	if !strings.HasPrefix(tok.Token, "gh_") {
		t.Fatalf("made %+v, want a secret", tok)
	}
	d.tokens["ci"] = tok.Token
	d.want(200, req{as: "ci", method: "GET", path: "/jails"}, nil)
	list := d.want(200, req{as: access.Admin, method: "GET", path: "/tokens"}, nil)
	if strings.Contains(string(list.body), "gh_") || !strings.Contains(string(list.body), string(tok.ID)) {
		t.Errorf("got list %s, want the token without its secret", list.body)
	}
	d.want(204, req{as: access.Admin, method: "DELETE", path: "/tokens/" + string(tok.ID)}, nil)
	d.refused(401, req{as: "ci", method: "GET", path: "/jails"})
	d.refused(404, req{as: access.Admin, method: "DELETE", path: "/tokens/" + string(tok.ID)})
	for body, field := range map[string]string{
		`{"name":"a","role":"root"}`: "role", `{"name":"","role":"viewer"}`: "name", `{"name":"a\nb","role":"viewer"}`: "name",
		`{"name":"a","role":"viewer","expires_at":"2001-01-01T00:00:00Z"}`: "expires_at", `{"name":"a","role":"viewer","token":"x"}`: "token",
	} {
		if p := d.refused(400, req{as: access.Admin, method: "POST", path: "/tokens", body: body}); p.Field != field {
			t.Errorf("%s: field %q, want %q", body, p.Field, field)
		}
	}
	d.refused(400, req{as: access.Admin, method: "POST", path: "/tokens", body: `{"name":"a","role":"viewer","expires_at":"soon"}`})
	if strings.Contains(d.log.String(), "gh_") {
		t.Error("a token's secret is in the log")
	}
}

func TestTokenQuotas(t *testing.T) {
	jails := apitest.New()
	var first wire.Token
	d := open(t, jails, func(o *api.Options) {
		o.Demand = func(context.Context) (map[id.Token]jail.Demand, error) {
			return map[id.Token]jail.Demand{first.ID: {Jails: 1, Memory: 512, Disk: 1024}}, nil
		}
	})
	create := func(body string) (tok wire.Token) {
		d.want(201, req{as: access.Admin, method: "POST", path: "/tokens", body: body}, &tok)
		return tok
	}
	first, second := create(`{"name":"a","role":"operator","quota":{"jails":3,"memory_bytes":1024}}`), create(`{"name":"b","role":"operator"}`)
	d.tokens["a"], d.tokens["b"] = first.Token, second.Token
	if want := (wire.Quota{Jails: 3, Memory: 1024}); first.Quota != want || second.Quota != (wire.Quota{}) {
		t.Errorf("quotas = %+v and %+v, want %+v and none", first.Quota, second.Quota, want)
	}
	at := req{as: access.Admin, method: "PATCH", path: "/tokens/" + string(first.ID)}
	at.body = `{"quota":{"jails":0,"disk_bytes":4096}}`
	var changed wire.Token
	d.want(200, at, &changed)
	if want := (wire.Quota{Memory: 1024, Disk: 4096}); changed.Quota != want {
		t.Errorf("changed quota = %+v, want %+v", changed.Quota, want)
	}
	at.body = `{"quota":{"memory_bytes":-1}}`
	if p := d.refused(400, at); p.Field != "quota.memory_bytes" {
		t.Errorf("field of a negative limit = %q, want quota.memory_bytes", p.Field)
	}
	at.as, at.body = "a", `{"quota":{"jails":100}}`
	d.refused(403, at) // its own
	at.as, at.path = access.Admin, "/tokens/t-unknown"
	d.refused(404, at)
	var list wire.Page[wire.Token]
	d.want(200, req{as: access.Admin, method: "GET", path: "/tokens"}, &list)
	for _, tok := range list.Items {
		want := wire.Demand{}
		if tok.ID == first.ID {
			want = wire.Demand{Jails: 1, Memory: 512, Disk: 1024}
		}
		if tok.Used == nil || *tok.Used != want {
			t.Errorf("token %s uses %+v, want %+v", tok.Name, tok.Used, want)
		}
	}

	// A jail counts towards the token with which it was created.
	var j, branch, local wire.Jail
	d.want(201, req{as: "a", method: "POST", path: "/jails", body: "{}"}, &j)
	s := d.taken(j.ID, nil)
	d.want(201, req{as: "b", method: "POST", path: "/snapshots/" + string(s.ID) + "/restore"}, &branch)
	d.want(201, req{local: true, method: "POST", path: "/snapshots/" + string(s.ID) + "/restore"}, &local)
	if j.Creator != first.ID || branch.Creator != second.ID || local.Creator != "" {
		t.Errorf("creators = %q, %q and %q, want %q, %q and none", j.Creator, branch.Creator, local.Creator, first.ID, second.ID)
	}
	jails.Fail = func(string) error {
		return fault.Newf(fault.Exhausted, "jail.Create", "", "the quota of the token is 3 jails")
	}
	if p := d.refused(429, req{as: "a", method: "POST", path: "/jails", body: "{}"}); !strings.Contains(p.Detail, "quota of the token is 3 jails") {
		t.Errorf("detail = %q, want the limit", p.Detail)
	}
}

func TestIdempotencyKey(t *testing.T) {
	d := open(t, apitest.New())
	key := map[string]string{"Idempotency-Key": "k-1"}
	var first, again wire.Jail
	made := d.want(201, req{as: access.Operator, method: "POST", path: "/jails", body: `{"name":"a"}`, header: key}, &first)
	if made.header.Get("Idempotent-Replay") != "" {
		t.Error("the first response is marked as a replay")
	}
	replayed := d.want(201, req{as: access.Operator, method: "POST", path: "/jails", body: `{"name":"a"}`, header: key}, &again)
	if again.ID != first.ID || replayed.header.Get("Idempotent-Replay") != "true" || replayed.header.Get("Location") != made.header.Get("Location") {
		t.Errorf("replayed %s as %s with %v", first.ID, again.ID, replayed.header)
	}
	if p := d.refused(422, req{as: access.Operator, method: "POST", path: "/jails", body: `{"name":"b"}`, header: key}); p.Field != "Idempotency-Key" {
		t.Errorf("another body under the key: %+v", p)
	}
	// Keys of different callers are independent.
	d.want(201, req{as: access.Admin, method: "POST", path: "/jails", body: `{"name":"b"}`, header: key}, &again)
	if again.ID == first.ID {
		t.Error("a caller got the response of another")
	}
	// A failed request can be repeated.
	d.jails.Fail = func(string) error { return fault.Newf(fault.Unavailable, "", "", "later") }
	retry := map[string]string{"Idempotency-Key": "k-2"}
	d.refused(503, req{as: access.Operator, method: "POST", path: "/jails", body: "{}", header: retry})
	d.jails.Fail = func(string) error { panic("boom") }
	d.refused(500, req{as: access.Operator, method: "POST", path: "/jails", body: "{}", header: retry})
	d.jails.Fail = nil
	d.want(201, req{as: access.Operator, method: "POST", path: "/jails", body: "{}", header: retry}, nil)

	d.refused(400, req{as: access.Operator, method: "POST", path: "/jails", body: "{}", header: map[string]string{"Idempotency-Key": strings.Repeat("k", 256)}})
	d.refused(400, req{as: access.Operator, method: "POST", path: "/jails", body: "{}", header: map[string]string{"Idempotency-Key": "a b"}})
	// State changes can also be replayed. GET ignores keys.
	for range 2 {
		d.want(200, req{as: access.Operator, method: "POST", path: "/jails/" + string(first.ID) + "/start", header: map[string]string{"Idempotency-Key": "start"}}, nil)
		d.want(200, req{as: access.Operator, method: "GET", path: "/jails", header: map[string]string{"Idempotency-Key": "list"}}, nil)
	}
	// The secret of a token must not be stored for a replay.
	d.refused(400, req{as: access.Admin, method: "POST", path: "/tokens", body: `{"name":"a","role":"viewer"}`, header: key})
}

func TestConcurrentRequestsWithOneKey(t *testing.T) {
	jails := apitest.New()
	jails.Stuck = make(chan struct{})
	d := open(t, jails)
	const n = 20
	ids := make(chan string, n)
	for range n {
		go func() {
			var j wire.Jail
			got := d.do(req{as: access.Operator, method: "POST", path: "/jails", body: "{}", header: map[string]string{"Idempotency-Key": "k"}})
			json.Unmarshal(got.body, &j)
			ids <- fmt.Sprint(got.status, j.ID)
		}()
	}
	time.Sleep(50 * time.Millisecond) // all but one wait for the first
	close(jails.Stuck)
	want := <-ids
	for range n - 1 {
		if got := <-ids; got != want {
			t.Errorf("requests got different responses: %s and %s", want, got)
		}
	}
	if jails.Created() != 1 {
		t.Errorf("%d jails were created with one key", jails.Created())
	}
}

func TestResponseHeaders(t *testing.T) {
	d := open(t, apitest.New())
	for _, r := range []req{
		{method: "GET", path: "/health"}, {method: "GET", path: "/nope"}, {as: access.Viewer, method: "GET", path: "/jails"},
	} {
		got := d.do(r)
		if got.header.Get("X-Content-Type-Options") != "nosniff" || got.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: headers %v", r.path, got.header)
		}
	}
	got := d.do(req{method: "GET", path: "/jails"})
	if got.status != 401 || !strings.HasPrefix(got.header.Get("WWW-Authenticate"), "Bearer") {
		t.Errorf("no token: %d %v", got.status, got.header)
	}
	if got := d.do(req{as: access.Viewer, method: "HEAD", path: "/jails"}); got.status != http.StatusOK || len(got.body) != 0 {
		t.Errorf("HEAD: %d %q", got.status, got.body)
	}
}

// The type of a problem is a URL of the daemon. The page there needs no authentication, so it
// is available also after a token was refused.
func TestProblemTypesHavePages(t *testing.T) {
	d := open(t, apitest.New())
	for _, kind := range []fault.Kind{"internal", "method not allowed", fault.Invalid, fault.Unauthenticated, fault.Denied, fault.NotFound, fault.Conflict,
		fault.TooLarge, fault.Mismatch, fault.Exhausted, fault.NoSpace, fault.Unsupported, fault.Unavailable, fault.Timeout} {
		at := wire.TypeOf(string(kind))
		got := d.do(req{method: "GET", path: at})
		if ct := got.header.Get("Content-Type"); got.status != 200 || !strings.HasPrefix(ct, "text/html") || !strings.Contains(string(got.body), at) {
			t.Errorf("GET %s = %d %s, want 200 text/html that names the type", at, got.status, ct)
		}
	}
	if p := d.refused(404, req{method: "GET", path: "/problems/%3Cb%3Eno-such"}); strings.ContainsAny(p.Detail, "\u202e\x1b") {
		t.Errorf("detail of an unknown type = %q, want it without hidden characters", p.Detail)
	}
	p := d.refused(404, req{as: access.Admin, method: "GET", path: "/nowhere%1b%5b2J%e2%80%ae%c2%9b"})
	if want := `\x1b[2J\u202e\u009b`; !strings.Contains(p.Detail, want) {
		t.Errorf("detail of an unknown path = %q, want %s in it", p.Detail, want)
	}
}
