package bundle_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/capability/bundle"
	"glasshouse/fault"
)

const (
	metadata = `{
  "name": "local-places",
  "version": "1.2.0",
  "publisher": "acme",
  "description": "Places nearby",
  "tier": "standard",
  "effects": ["network"],
  "hosts": ["places.googleapis.com"],
  "secrets": ["GOOGLE_PLACES_API_KEY"]
}
`
	skillText = `---
name: local-places
description: Search for places nearby
version: "1.2.0"
ccos:
  capabilities: [places.search]
  approval:
    tier: standard
---

# Local places

Use places.search with a query.
`
	manifestText = `(capability "places.search"
  :description "Search for nearby places"
  :version "1.0.0"
  :input-schema [:map [:query :string]]
  :output-schema [:map [:results [:vector :string]]]
  :effects [:network]
  :runtime {:type :container
            :rootfs "debian"
            :entrypoint ["python3" "/app/main.py"]
            :port 8000}
  :filesystem {:mode :ephemeral
               :mounts [{:host "src" :guest "/app" :mode :ro}]}
  :network {:mode :proxy
            :allowed-hosts ["places.googleapis.com"]
            :allowed-ports [443]}
  :secrets [:GOOGLE_PLACES_API_KEY]
  :approval {:tier :standard})
`
)

// good returns the files of a valid bundle.
func good() map[string]string {
	return map[string]string{
		"metadata.json":                   metadata,
		"skill.yaml":                      skillText,
		"capabilities/places.search.rtfs": manifestText,
		"src/main.py":                     "print('places')\n",
		"src/run.sh":                      "#!/bin/sh\nexec python3 main.py\n",
	}
}

// with returns a copy of files with one file added, replaced or, if text is empty, removed.
func with(files map[string]string, name, text string) map[string]string {
	files = maps.Clone(files)
	files[name] = text
	if text == "" {
		delete(files, name)
	}
	return files
}

// A scene is an installer with a trusted publisher and an approver.
type scene struct {
	*testing.T
	key *bundle.SecretKey
	bundle.Installer
	*registry
	*approver
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{T: t, key: newKey(t), registry: &registry{}, approver: &approver{}}
	s.Installer = bundle.Installer{
		Dir: filepath.Join(t.TempDir(), "bundles"), Trust: openTrust(t, t.TempDir()), Approve: s.approver, Register: s.registry,
	}
	s.ok(s.Trust.Add(s.Context(), "acme", bundle.Standard, s.key.Public()))
	return s
}

func (s *scene) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func newKey(t testing.TB) *bundle.SecretKey {
	t.Helper()
	k, err := bundle.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func openTrust(t *testing.T, dir string) *bundle.Trust {
	t.Helper()
	trust, err := bundle.OpenTrust(filepath.Join(dir, bundle.TrustFile))
	if err != nil {
		t.Fatal(err)
	}
	return trust
}

// lay writes files to a new directory. Files that end in .sh are executable.
func lay(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, name)
		mode := fs.FileMode(0o644)
		if filepath.Ext(name) == ".sh" {
			mode = 0o755
		}
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// signed writes files to a new directory and signs them.
func (s *scene) signed(files map[string]string) string {
	s.Helper()
	dir := lay(s, files)
	_, err := bundle.Sign(dir, s.key, time.Time{})
	s.ok(err)
	return dir
}

// resigned is like signed, but f modifies the signature document before it is signed.
func (s *scene) resigned(files map[string]string, k *bundle.SecretKey, f func(*bundle.Signature)) string {
	s.Helper()
	dir := s.signed(files)
	name := filepath.Join(dir, bundle.SignatureFile)
	text, err := os.ReadFile(name)
	s.ok(err)
	var sig bundle.Signature
	s.ok(json.Unmarshal(text, &sig))
	f(&sig)
	text, err = sig.Sign(k)
	s.ok(err)
	s.ok(os.WriteFile(name, text, 0o644))
	return dir
}

// An item is an entry of an archive.
type item struct {
	name string
	body string
	mode int64 // 0: 0644
	kind byte  // tar type flag; 0: a file
	link string
}

// items returns the files of a directory in order.
func items(t testing.TB, dir string) []item {
	t.Helper()
	var all []item
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		all = append(all, item{name: name, body: string(body), mode: int64(info.Mode().Perm())})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func (i item) header() *tar.Header {
	h := &tar.Header{Name: i.name, Mode: i.mode, Typeflag: i.kind, Linkname: i.link, Size: int64(len(i.body))}
	if h.Mode == 0 {
		h.Mode = 0o644
	}
	if h.Typeflag == 0 {
		h.Typeflag = tar.TypeReg
	}
	return h
}

func tarOf(t testing.TB, all []item) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, i := range all {
		if err := w.WriteHeader(i.header()); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(i.body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gz(t testing.TB, plain []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zipOf(t testing.TB, all []item) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, i := range all {
		h := &zip.FileHeader{Name: i.name, Method: zip.Deflate}
		if i.body == "" {
			h.Method = zip.Store
		}
		h.SetMode(i.header().FileInfo().Mode())
		f, err := w.CreateHeader(h)
		if err != nil {
			t.Fatal(err)
		}
		body := i.body
		if i.kind == tar.TypeSymlink {
			body = i.link
		}
		if _, err := f.Write([]byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func file(t testing.TB, name string, data []byte) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// A registry is an in-memory Registry.
type registry struct {
	mu   sync.Mutex
	have map[string]bundle.Installed
	fail error // returned by Register
}

func (r *registry) Installed(_ context.Context, name string) (*bundle.Installed, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	in, ok := r.have[name]
	if !ok {
		return nil, nil
	}
	return &in, nil
}

func (r *registry) Register(_ context.Context, in *bundle.Installed, b *bundle.Bundle, replaces string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return r.fail
	}
	if r.have[in.Name].Digest != replaces {
		return fault.Newf(fault.Conflict, "Register", in.Name, "another is installed")
	}
	if b.Digest() != in.Digest {
		return fault.Newf(fault.Invalid, "Register", in.Name, "another bundle")
	}
	if r.have == nil {
		r.have = map[string]bundle.Installed{}
	}
	r.have[in.Name] = *in
	return nil
}

func (r *registry) Forget(_ context.Context, name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.have, name)
	return nil
}

// An approver approves by default and records the reviews.
type approver struct {
	mu     sync.Mutex
	seen   []*bundle.Review
	answer func(*bundle.Review) error
}

func (a *approver) Approve(_ context.Context, r *bundle.Review) error {
	a.mu.Lock()
	a.seen = append(a.seen, r)
	answer := a.answer
	a.mu.Unlock()
	if answer != nil {
		return answer(r)
	}
	return nil
}

// below lists the files under a directory.
func below(t testing.TB, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if path != dir {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return all
}

func sha(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// sameID returns another key with the id of k. Ids are not authenticated.
func sameID(s *scene, k *bundle.SecretKey) *bundle.SecretKey {
	s.Helper()
	mine, err := k.File(nil)
	s.ok(err)
	other, err := newKey(s.T).File(nil)
	s.ok(err)
	a, b := decodeKey(s, mine), decodeKey(s, other)
	copy(b[54:62], a[54:62])
	forged, err := bundle.ParseSecretKey(base64.StdEncoding.EncodeToString(b), nil)
	s.ok(err)
	if forged.Public().ID() != k.Public().ID() || forged.Public() == k.Public() {
		s.Fatal("the keys are equal or have different ids")
	}
	return forged
}

func decodeKey(s *scene, text []byte) []byte {
	s.Helper()
	b, err := base64.StdEncoding.DecodeString(strings.Split(string(text), "\n")[1])
	s.ok(err)
	return b
}
