package api_test

import (
	"strings"
	"testing"
	"testing/fstest"

	"glasshouse/api"
	"glasshouse/api/apitest"
	"glasshouse/policy/access"
	"glasshouse/web"
)

// withUI adds a UI with a page of one line.
func withUI(t testing.TB) func(*api.Options) {
	site, err := web.New(fstest.MapFS{
		"index.html":      {Data: []byte("<!doctype html>glass front")},
		"assets/a-123.js": {Data: []byte("1")},
	})
	if err != nil {
		t.Fatal(err)
	}
	return func(o *api.Options) { o.UI = site }
}

const browser = "text/html,application/xhtml+xml,*/*;q=0.8"

func TestUIRoutes(t *testing.T) {
	d := open(t, apitest.New(), withUI(t))
	visit := map[string]string{"Accept": browser, "Sec-Fetch-Dest": "document", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "none"}
	for _, path := range []string{"/", "/login", "/jails", "/jails/j-aaaaaaaaaaaa", "/approvals", "/lineage", "/no/such/view"} {
		got := d.do(req{method: "GET", path: path, header: visit})
		if got.status != 200 || !strings.Contains(string(got.body), "glass front") || !strings.Contains(got.header.Get("Content-Security-Policy"), "script-src 'self'") {
			t.Errorf("browser navigation to %s: got %d %.60s", path, got.status, got.body)
		}
	}
	got := d.do(req{method: "GET", path: "/assets/a-123.js"})
	if got.status != 200 || !strings.Contains(got.header.Get("Cache-Control"), "immutable") {
		t.Errorf("a script: %d, Cache-Control %q", got.status, got.header.Get("Cache-Control"))
	}
	// Routes with pages of their own, and public routes, are served by the API.
	for _, path := range []string{"/health", "/openapi.json", "/metrics", "/jails/j-aaaaaaaaaaaa/report"} {
		if got := d.do(req{as: access.Viewer, method: "GET", path: path, header: visit}); strings.Contains(string(got.body), "glass front") {
			t.Errorf("%s: got the UI, want the API response", path)
		}
	}
	// Programs get API responses, regardless of the Accept header.
	for _, accept := range []string{"application/json", "*/*", browser, ""} {
		d.refused(401, req{method: "GET", path: "/jails", header: map[string]string{"Accept": accept}})
		if got := d.do(req{as: access.Viewer, method: "GET", path: "/jails", header: map[string]string{"Accept": accept}}); !strings.HasPrefix(string(got.body), `{"items":`) {
			t.Errorf("GET /jails for %q is %.60s", accept, got.body)
		}
	}
	d.refused(404, req{as: access.Viewer, method: "GET", path: "/no/such/path"})
	d.refused(405, req{as: access.Viewer, method: "POST", path: "/health"})
	d.refused(403, req{method: "GET", path: "/", header: map[string]string{"Accept": browser, "Host": "evil.example"}})
}

func TestAPIResponsesHaveSandboxPolicy(t *testing.T) {
	d := open(t, apitest.New(), withUI(t))
	got := d.do(req{as: access.Viewer, method: "GET", path: "/jails"})
	if csp := got.header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || !strings.Contains(csp, "sandbox") {
		t.Errorf("got Content-Security-Policy %q", csp)
	}
}
