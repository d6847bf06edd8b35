package api_test

import (
	"strings"
	"testing"
	"testing/fstest"

	"glasshouse/access"
	"glasshouse/api"
	"glasshouse/api/apitest"
	"glasshouse/web"
)

// withUI gives a server a page of one line.
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

func TestTheUIIsServedBesideTheAPI(t *testing.T) {
	d := open(t, apitest.New(), withUI(t))
	visit := map[string]string{"Accept": browser, "Sec-Fetch-Dest": "document", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "none"}
	for _, path := range []string{"/", "/login", "/jails", "/jails/j-aaaaaaaaaaaa", "/approvals", "/lineage", "/no/such/view"} {
		got := d.do(req{method: "GET", path: path, header: visit})
		if got.status != 200 || !strings.Contains(string(got.body), "glass front") || !strings.Contains(got.header.Get("Content-Security-Policy"), "script-src 'self'") {
			t.Errorf("a browser that goes to %s got %d %.60s", path, got.status, got.body)
		}
	}
	got := d.do(req{method: "GET", path: "/assets/a-123.js"})
	if got.status != 200 || !strings.Contains(got.header.Get("Cache-Control"), "immutable") {
		t.Errorf("a script: %d, Cache-Control %q", got.status, got.header.Get("Cache-Control"))
	}
	// What the API makes for people, and what is for everybody, is the API's.
	for _, path := range []string{"/health", "/openapi.json", "/metrics", "/jails/j-aaaaaaaaaaaa/report"} {
		if got := d.do(req{as: access.Viewer, method: "GET", path: path, header: visit}); strings.Contains(string(got.body), "glass front") {
			t.Errorf("%s is the page, want what the API has", path)
		}
	}
	// A program is answered by the API, whatever it takes.
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

func TestNothingOfTheAPIIsAPageOfItsOwn(t *testing.T) {
	d := open(t, apitest.New(), withUI(t))
	got := d.do(req{as: access.Viewer, method: "GET", path: "/jails"})
	if csp := got.header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || !strings.Contains(csp, "sandbox") {
		t.Errorf("the policy of an answer is %q", csp)
	}
}
