package web_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"glasshouse/web"
)

// small returns a site with one file of each kind.
func small(t *testing.T) *web.Site {
	t.Helper()
	s, err := web.New(fstest.MapFS{
		"index.html":         {Data: []byte("<!doctype html><script type=module src=/assets/main-abc.js></script>")},
		"favicon.svg":        {Data: []byte("<svg/>")},
		"assets/main-abc.js": {Data: bytes.Repeat([]byte("export const a = 1;\n"), 1000)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func get(s http.Handler, path string, header ...string) *http.Response {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Result()
}

const page = "text/html,application/xhtml+xml,*/*;q=0.8"

func TestPageHandlesAllPaths(t *testing.T) {
	s := small(t)
	for _, path := range []string{"/", "/index.html", "/jails/j-3f2akm9x7qpw", "/login", "/what/is/this"} {
		got := get(s, path, "Accept", page)
		body, _ := io.ReadAll(got.Body)
		if got.StatusCode != http.StatusOK || !strings.HasPrefix(string(body), "<!doctype html>") || got.Header.Get("Content-Type") != "text/html; charset=utf-8" {
			t.Errorf("%s = %d %s %.40q, want the page", path, got.StatusCode, got.Header.Get("Content-Type"), body)
		}
		if got.Header.Get("Cache-Control") != "no-cache" || got.Header.Get("ETag") == "" {
			t.Errorf("%s has Cache-Control %q and ETag %q, want no-cache and a tag", path, got.Header.Get("Cache-Control"), got.Header.Get("ETag"))
		}
	}
}

func TestNoPageUnlessHTMLIsAccepted(t *testing.T) {
	s := small(t)
	for path, accept := range map[string]string{
		"/nothing": "application/json", "/else": "", "/assets/main-old.js": page, "/zero": "text/html;q=0, */*",
	} {
		if got := get(s, path, "Accept", accept); got.StatusCode != http.StatusNotFound {
			t.Errorf("%s for %q = %d, want 404", path, accept, got.StatusCode)
		}
	}
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.Header.Set("Accept", page)
	if s.Has(r) {
		t.Error("Has(POST /) = true, want false")
	}
}

func TestHashedFileIsImmutable(t *testing.T) {
	got := get(small(t), "/assets/main-abc.js")
	if got.Header.Get("Cache-Control") != "public, max-age=31536000, immutable" || got.Header.Get("Content-Type") != "text/javascript; charset=utf-8" {
		t.Errorf("got header %v, want a cacheable script", got.Header)
	}
}

func TestMatchingETagReturnsNotModified(t *testing.T) {
	s := small(t)
	for _, encoding := range []string{"", "gzip"} {
		first := get(s, "/", "Accept", page, "Accept-Encoding", encoding)
		again := get(s, "/jails", "Accept", page, "Accept-Encoding", encoding, "If-None-Match", `"other", W/`+first.Header.Get("ETag"))
		if body, _ := io.ReadAll(again.Body); again.StatusCode != http.StatusNotModified || len(body) > 0 {
			t.Errorf("with %q: %d and %d bytes, want 304 and none", encoding, again.StatusCode, len(body))
		}
	}
}

func TestCompressesIfAccepted(t *testing.T) {
	s := small(t)
	plain := get(s, "/assets/main-abc.js", "Accept-Encoding", "br, gzip;q=0")
	want, _ := io.ReadAll(plain.Body)
	if plain.Header.Get("Content-Encoding") != "" {
		t.Fatal("got a compressed response, want none without Accept-Encoding")
	}
	packed := get(s, "/assets/main-abc.js", "Accept-Encoding", "gzip, deflate, br")
	if packed.Header.Get("Content-Encoding") != "gzip" || packed.Header.Get("Vary") != "Accept-Encoding" {
		t.Fatalf("got header %v, want gzip", packed.Header)
	}
	if packed.ContentLength*10 > int64(len(want)) {
		t.Errorf("compressed %d bytes to %d, want a tenth at most", len(want), packed.ContentLength)
	}
	r, err := gzip.NewReader(packed.Body)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the decompressed file differs (error %v)", err)
	}
	if packed.Header.Get("ETag") == plain.Header.Get("ETag") {
		t.Error("the plain and the compressed response have the same ETag")
	}
}

func TestSecurityHeaders(t *testing.T) {
	got := get(small(t), "/", "Accept", page)
	csp := got.Header.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "script-src 'self';", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"} {
		if !strings.Contains(csp, want) {
			t.Errorf("the policy %q lacks %s", csp, want)
		}
	}
	for _, never := range []string{"unsafe-eval", "http:", "https:", "*"} {
		if strings.Contains(csp, never) {
			t.Errorf("the policy contains %s, want it absent", never)
		}
	}
	for name, want := range map[string]string{
		"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
		"Cross-Origin-Opener-Policy": "same-origin", "X-Frame-Options": "DENY",
	} {
		if v := got.Header.Get(name); v != want {
			t.Errorf("%s is %q, want %q", name, v, want)
		}
	}
}

// The policy forbids inline scripts and styles and other origins. A build that contains them
// would not work in a browser.
func TestBuildFitsPolicy(t *testing.T) {
	dist := os.DirFS("dist")
	text, err := fs.ReadFile(dist, "index.html")
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{`<script[^>]*>[^<]`, `<style`, `\son[a-z]+=`, `(src|href)="(https?:)?//`, `\sstyle=`} {
		if found := regexp.MustCompile(bad).Find(text); found != nil {
			t.Errorf("index.html contains %q, which the policy forbids", found)
		}
	}
	site := web.Handler()
	for _, m := range regexp.MustCompile(`(?:src|href)="(/[^"]+)"`).FindAllSubmatch(text, -1) {
		if got := get(site, string(m[1])); got.StatusCode != http.StatusOK {
			t.Errorf("index.html references %s, which is missing", m[1])
		}
	}
}

func TestNewWithoutIndexFails(t *testing.T) {
	if _, err := web.New(fstest.MapFS{"a.js": {Data: []byte("1")}}); err == nil {
		t.Error("New returned no error")
	}
}
