// Package web is the UI in a browser, as the files that its build made.
//
// The files are in the binary: no other server, and no network, is needed for a
// page. Its sources are in ui, and `make ui` makes dist from them.
package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"
)

//go:embed all:dist
var built embed.FS

// A Site serves the files of one build. It is safe for concurrent use.
type Site struct {
	files map[string]*file // by path, without the slash that it begins with
}

// file is one file, as it is sent.
type file struct {
	kind, tag string
	hashed    bool // its name changes with its content
	plain     []byte
	packed    func() []byte // compressed by the first who asks; nil if that does not pay
}

const index = "index.html"

// Handler returns the site that was built into the binary.
func Handler() *Site {
	dist, err := fs.Sub(built, "dist")
	if err != nil {
		panic(err) // the name is a constant
	}
	s, err := New(dist)
	if err != nil {
		panic(err) // the files are in the binary
	}
	return s
}

// New returns a site of the files in dist, of which one is index.html.
func New(dist fs.FS) (*Site, error) {
	s := &Site{files: map[string]*file{}}
	err := fs.WalkDir(dist, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(dist, name)
		s.files[name] = newFile(name, text)
		return err
	})
	if err == nil && s.files[index] == nil {
		err = fmt.Errorf("web: there is no %s", index)
	}
	return s, err
}

// kinds are the types of what a build makes. The host's own list is not asked:
// what a browser takes for a script must be the same everywhere.
var kinds = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
	".svg": "image/svg+xml", ".png": "image/png", ".ico": "image/x-icon", ".woff2": "font/woff2",
	".json": "application/json", ".webmanifest": "application/manifest+json", ".txt": "text/plain; charset=utf-8",
}

// least is from how many bytes on compressing pays: below, all of it is one packet.
const least = 1024

func newFile(name string, text []byte) *file {
	kind, known := kinds[path.Ext(name)]
	if !known {
		kind = "application/octet-stream"
	}
	sum := sha256.Sum256(text)
	f := &file{
		kind: kind, tag: base64.RawURLEncoding.EncodeToString(sum[:12]),
		hashed: strings.HasPrefix(name, "assets/"), plain: text,
	}
	if len(text) >= least && kind != "image/png" && kind != "font/woff2" {
		f.packed = sync.OnceValue(func() []byte { return compress(text) })
	}
	return f
}

func compress(text []byte) []byte {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err == nil {
		_, err = w.Write(text)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		panic(err) // the level is a constant, and memory takes all
	}
	return b.Bytes()
}

// Has reports whether the site has something for r: one of its files, or for
// somebody who wants a page the one page that there is. What the page shows
// follows from the address, and what is not there the page says.
func (s *Site) Has(r *http.Request) bool {
	return s.find(r) != nil
}

func (s *Site) find(r *http.Request) *file {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return nil
	}
	name := strings.TrimPrefix(r.URL.Path, "/")
	if f := s.files[name]; f != nil {
		return f
	}
	// A script that is not there any more must not be answered with a page.
	if strings.HasPrefix(name, "assets/") || !accepts(r.Header.Values("Accept"), "text/html") {
		return nil
	}
	return s.files[index]
}

// policy is what the pages may do: run what is in the binary, and talk to the
// daemon that they came from. Nobody can put them in a frame.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; " +
	"connect-src 'self'; worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// ServeHTTP implements http.Handler.
func (s *Site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("X-Frame-Options", "DENY")
	f := s.find(r)
	if f == nil {
		http.Error(w, "there is no such file", http.StatusNotFound)
		return
	}
	h.Set("Cache-Control", "no-cache")
	if f.hashed {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	h.Set("Content-Type", f.kind)
	text, tag := f.plain, f.tag
	if f.packed != nil {
		h.Add("Vary", "Accept-Encoding")
		if accepts(r.Header.Values("Accept-Encoding"), "gzip") {
			text, tag = f.packed(), tag+"-gz"
			h.Set("Content-Encoding", "gzip")
		}
	}
	tag = `"` + tag + `"`
	h.Set("ETag", tag)
	if named(r.Header.Values("If-None-Match"), tag) {
		h.Del("Content-Type")
		h.Del("Content-Encoding")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Length", fmt.Sprint(len(text)))
	if r.Method == http.MethodHead {
		return
	}
	w.Write(text) // who has gone needs no more of it
}

// accepts reports whether a list of what is taken, with weights, has a word
// that is not weighed zero.
func accepts(headers []string, word string) bool {
	for part := range words(headers) {
		name, weight, _ := strings.Cut(part, ";")
		if !strings.EqualFold(strings.TrimSpace(name), word) {
			continue
		}
		q, weighed := strings.CutPrefix(strings.ReplaceAll(weight, " ", ""), "q=")
		return !weighed || strings.Trim(q, "0.") != ""
	}
	return false
}

// named reports whether a list of tags names one. A weak tag is the same here.
func named(headers []string, tag string) bool {
	for part := range words(headers) {
		if part == "*" || strings.TrimPrefix(part, "W/") == tag {
			return true
		}
	}
	return false
}

// words yields the parts of headers that are lists.
func words(headers []string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for _, h := range headers {
			for part := range strings.SplitSeq(h, ",") {
				if !yield(strings.TrimSpace(part)) {
					return
				}
			}
		}
	}
}
