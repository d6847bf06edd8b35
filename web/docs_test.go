package web_test

import (
	"io"
	"net/http"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"glasshouse/web"
)

// linked returns the pages and files of the documentation that are reachable from its first page, by
// address.
func linked(t *testing.T, s *web.Site) map[string]string {
	t.Helper()
	found, queue := map[string]string{}, []string{"/docs/"}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		if _, ok := found[at]; ok {
			continue
		}
		got := get(s, at, "Accept", page)
		text, err := io.ReadAll(got.Body)
		if err != nil || got.StatusCode != http.StatusOK {
			t.Fatalf("%s: got status %d (error %v), want 200", at, got.StatusCode, err)
		}
		found[at] = string(text)
		if !strings.HasPrefix(got.Header.Get("Content-Type"), "text/html") {
			continue
		}
		for _, m := range regexp.MustCompile(`\s(?:href|src)="(/[^"#?]*)`).FindAllStringSubmatch(string(text), -1) {
			if strings.HasPrefix(m[1], "/docs") {
				queue = append(queue, m[1])
			}
		}
	}
	return found
}

func TestDocumentationLinksResolve(t *testing.T) {
	s := web.Handler()
	files := linked(t, s)
	pages, fragments := 0, 0
	for at, text := range files {
		if !strings.HasSuffix(at, "/") {
			continue
		}
		pages++
		for _, m := range regexp.MustCompile(`\shref="(/docs[^"#?]*)?#([^"]+)"`).FindAllStringSubmatch(text, -1) {
			to := m[1]
			if to == "" {
				to = at
			}
			fragments++
			if !strings.Contains(files[to], `id="`+m[2]+`"`) {
				t.Errorf("%s links to %s#%s, which does not exist", at, to, m[2])
			}
		}
	}
	if pages < 200 || fragments < 500 {
		t.Errorf("got %d pages with %d links to headings, want at least 200 and 500", pages, fragments)
	}
}

func TestDocumentationHasAllPages(t *testing.T) {
	s := web.Handler()
	for _, dir := range []string{"tutorials", "how-to", "concepts", "security", "reference", "project"} {
		list, err := os.ReadDir("../docs/" + dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			name, isPage := strings.CutSuffix(e.Name(), ".md")
			if !isPage {
				continue
			}
			at := path.Clean("/docs/"+dir+"/"+strings.TrimSuffix(name, "index")) + "/"
			if got := get(s, at); got.StatusCode != http.StatusOK {
				t.Errorf("%s: got status %d, want 200", at, got.StatusCode)
			}
		}
	}
	got := get(s, "/docs/llms.txt")
	list, err := io.ReadAll(got.Body)
	if err != nil || got.StatusCode != http.StatusOK {
		t.Fatalf("llms.txt: got status %d (error %v), want 200", got.StatusCode, err)
	}
	n := 0
	for _, m := range regexp.MustCompile(`(?m)^- \[[^\]]+\]\((/docs/[^)]+\.md)\)`).FindAllSubmatch(list, -1) {
		n++
		if got := get(s, string(m[1])); got.StatusCode != http.StatusOK || got.Header.Get("Content-Type") != "text/markdown; charset=utf-8" {
			t.Errorf("%s: got status %d and type %s, want 200 and Markdown", m[1], got.StatusCode, got.Header.Get("Content-Type"))
		}
	}
	if n < 200 {
		t.Errorf("llms.txt lists %d pages, want at least 200", n)
	}
}

func TestDocumentationAddresses(t *testing.T) {
	s := web.Handler()
	for _, test := range []struct {
		at, location string
		status       int
	}{
		{"/docs", "", http.StatusOK},
		{"/docs/reference/events", "/docs/reference/events/", http.StatusMovedPermanently},
		{"/docs/reference/events/", "", http.StatusOK},
		{"/docs/reference/none", "", http.StatusNotFound},
		{"/docs/../web.go", "", http.StatusNotFound},
	} {
		got := get(s, test.at)
		if got.StatusCode != test.status || got.Header.Get("Location") != test.location {
			t.Errorf("%s: got status %d, location %q; want %d, %q", test.at, got.StatusCode, got.Header.Get("Location"), test.status, test.location)
		}
	}
}

// The policy allows only the inline scripts that the build has, and no other host.
func TestDocumentationPolicy(t *testing.T) {
	s := web.Handler()
	got := get(s, "/docs/", "Accept", page)
	csp := got.Header.Get("Content-Security-Policy")
	scripts := regexp.MustCompile(`script-src [^;]*`).FindString(csp)
	if strings.Contains(scripts, "unsafe-inline") || strings.Contains(scripts, "'unsafe-eval'") || !strings.Contains(scripts, "'sha256-") {
		t.Errorf("got %q, want hashes of inline scripts only", scripts)
	}
	if n := strings.Count(scripts, "'sha256-"); n > 12 {
		t.Errorf("the policy has %d hashes, want at most 12: scripts differ between pages", n)
	}
	for at, text := range linked(t, s) {
		for _, bad := range []string{`\son[a-z]+="`, `(?:<script[^>]*|<link[^>]*rel="stylesheet"[^>]*)\s(?:src|href)="(?:https?:)?//`} {
			if found := regexp.MustCompile(bad).FindString(text); strings.HasSuffix(at, "/") && found != "" {
				t.Errorf("%s contains %q, which the policy forbids", at, found)
			}
		}
	}
	if csp := get(s, "/", "Accept", page).Header.Get("Content-Security-Policy"); strings.Contains(csp, "sha256") || strings.Contains(csp, "unsafe") {
		t.Errorf("the policy of the UI changed: %q", csp)
	}
}

func TestDocumentationIsSmall(t *testing.T) {
	info, err := os.Stat("docs.tar.zst")
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 4<<20 {
		t.Errorf("the archive has %d bytes, want at most 4 MiB", info.Size())
	}
}
