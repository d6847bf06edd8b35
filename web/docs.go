package web

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// The documentation is the site below /docs, of the same version as the daemon. scripts/docs.sh
// builds it from docs and docs/ in this directory.

//go:embed docs.tar.zst
var documentation []byte

const docsPrefix = "docs/"

// docs are the files of the documentation, by path below /docs/.
type docs struct {
	files map[string]*file
}

// readDocs returns the documentation in the binary. Its files take 20 MB of memory, so they are read
// at the first request.
var readDocs = sync.OnceValue(func() *docs {
	d, err := unpackDocs(documentation)
	if err != nil {
		panic(err) // the archive is in the binary
	}
	return d
})

func unpackDocs(archive []byte) (*docs, error) {
	z, err := zstd.NewReader(bytes.NewReader(archive), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	d, scripts := &docs{files: map[string]*file{}}, map[string]bool{}
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("web: read the documentation: %w", err)
		}
		text, err := io.ReadAll(t)
		if err != nil {
			return nil, fmt.Errorf("web: documentation: %s: %w", h.Name, err)
		}
		f := newFile(h.Name, text)
		f.hashed = strings.HasPrefix(h.Name, "_astro/")
		d.files[h.Name] = f
		if path.Ext(h.Name) == ".html" {
			inlineScripts(text, scripts)
		}
	}
	if d.files[index] == nil {
		return nil, fmt.Errorf("web: documentation: %s is missing", index)
	}
	// The pages have small inline scripts, which set the theme before anything is drawn, and inline
	// styles for the colours of code. The search is WebAssembly.
	own := strings.NewReplacer(
		"script-src 'self'", "script-src 'self' 'wasm-unsafe-eval' "+strings.Join(slices.Sorted(maps.Keys(scripts)), " "),
		"style-src 'self'", "style-src 'self' 'unsafe-inline'",
	).Replace(policy)
	for _, f := range d.files {
		f.policy = own
	}
	return d, nil
}

var inline = regexp.MustCompile(`(?s)<script(?:\s+(?:type="module"|aria-hidden="true"))*>(.+?)</script>`)

// inlineScripts adds the hashes of the inline scripts of a page, as a Content-Security-Policy has
// them.
func inlineScripts(page []byte, hashes map[string]bool) {
	for _, m := range inline.FindAllSubmatch(page, -1) {
		sum := sha256.Sum256(m[1])
		hashes["'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'"] = true
	}
}

// find returns the file for a path below /docs/. That of a page is index.html in its directory.
func (d *docs) find(name string) *file {
	if f := d.files[name]; f != nil {
		return f
	}
	if name == "" || strings.HasSuffix(name, "/") {
		return d.files[name+index]
	}
	if d.files[name+"/"+index] != nil {
		return &file{moved: "/" + docsPrefix + name + "/"} // relative links need the slash
	}
	return nil
}
