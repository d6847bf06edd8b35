// Package web serves the built files of the web UI.
//
// The files are embedded in the binary, so the UI needs no other server and no Internet access.
// The sources are in ui; `make ui` builds dist from them.
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
	files map[string]*file // by path without the leading slash
}

// file is one file with its response headers.
type file struct {
	kind, tag string
	hashed    bool // the name contains a hash of the content
	plain     []byte
	packed    func() []byte // compresses on first use; nil if compression saves nothing
	policy    string        // Content-Security-Policy; "" for that of the UI
	moved     string        // the address of the page, if the request has another
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

// New returns a site with the files in dist. It fails if dist has no index.html.
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
		err = fmt.Errorf("web: %s is missing", index)
	}
	return s, err
}

// kinds maps file extensions to media types. It replaces the MIME table of the host
// (mime.TypeByExtension), so that the types are the same on every host.
var kinds = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
	".svg": "image/svg+xml", ".png": "image/png", ".webp": "image/webp", ".ico": "image/x-icon", ".woff2": "font/woff2",
	".json": "application/json", ".md": "text/markdown; charset=utf-8", ".webmanifest": "application/manifest+json", ".txt": "text/plain; charset=utf-8",
}

// least is the minimum size in bytes of a compressed file. Smaller files fit into one packet.
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
	if len(text) >= least && kind != "image/png" && kind != "image/webp" && kind != "font/woff2" {
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
		panic(err) // the level is valid, and a bytes.Buffer does not fail
	}
	return b.Bytes()
}

// Has reports whether the site has a response to r: a file, or the page if the request accepts
// HTML. The page handles all paths, and shows an error for unknown ones.
func (s *Site) Has(r *http.Request) bool {
	return s.find(r) != nil
}

func (s *Site) find(r *http.Request) *file {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return nil
	}
	name := strings.TrimPrefix(r.URL.Path, "/")
	if below, ok := strings.CutPrefix(name+"/", docsPrefix); ok {
		return readDocs().find(strings.TrimSuffix(below, "/"))
	}
	if f := s.files[name]; f != nil {
		return f
	}
	// A request for a script of an older build must fail: the page is not a script.
	if strings.HasPrefix(name, "assets/") || !accepts(r.Header.Values("Accept"), "text/html") {
		return nil
	}
	return s.files[index]
}

// policy is the Content-Security-Policy of the pages: they run only scripts from the binary, connect
// only to their daemon, and cannot be framed.
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
		http.Error(w, "no such file", http.StatusNotFound)
		return
	}
	if f.moved != "" {
		http.Redirect(w, r, f.moved, http.StatusMovedPermanently)
		return
	}
	if f.policy != "" {
		h.Set("Content-Security-Policy", f.policy)
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
	w.Write(text) // an error means that the client disconnected
}

// accepts reports whether the values of an Accept or Accept-Encoding header contain word with a
// quality above zero (RFC 9110, section 12.4.2).
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

// named reports whether the values of an If-None-Match header match tag, by weak comparison (RFC
// 9110, section 13.1.2).
func named(headers []string, tag string) bool {
	for part := range words(headers) {
		if part == "*" || strings.TrimPrefix(part, "W/") == tag {
			return true
		}
	}
	return false
}

// words yields the elements of comma-separated header values.
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
