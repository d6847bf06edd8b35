package rootfs_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/rootfs"
)

// image returns an image for this platform with the given layers.
func image(t testing.TB, layers ...[]byte) v1.Image {
	t.Helper()
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	for _, b := range layers {
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(b)), nil
		})
		must(t, err)
		img, err = mutate.AppendLayers(img, l)
		must(t, err)
	}
	return withArch(t, img, runtime.GOARCH)
}

func withArch(t testing.TB, img v1.Image, arch string) v1.Image {
	t.Helper()
	cfg, err := img.ConfigFile()
	must(t, err)
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture = "linux", arch
	cfg.Config.Env = []string{"PATH=/opt/bin", "LANG=C"}
	cfg.Config.Entrypoint, cfg.Config.Cmd = []string{"/entry"}, []string{"serve"}
	cfg.Config.WorkingDir, cfg.Config.User = "/srv", "app"
	img, err = mutate.ConfigFile(img, cfg)
	must(t, err)
	return img
}

func digestOf(t testing.TB, img interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	h, err := img.Digest()
	must(t, err)
	return h.String()
}

// writeLayout writes images as an OCI layout and returns its directory.
func writeLayout(t testing.TB, images ...v1.Image) string {
	t.Helper()
	p, err := layout.Write(filepath.Join(t.TempDir(), "layout"), empty.Index)
	must(t, err)
	for _, img := range images {
		cfg, err := img.ConfigFile()
		must(t, err)
		must(t, p.AppendImage(img, layout.WithPlatform(v1.Platform{OS: cfg.OS, Architecture: cfg.Architecture})))
	}
	return string(p)
}

// layoutWith returns an OCI layout of one image with one layer.
func layoutWith(t testing.TB, members ...member) string {
	t.Helper()
	return writeLayout(t, image(t, archive(t, members...)))
}

// A hub is a registry that counts requests and can be made to fail.
type hub struct {
	host    string
	asked   atomic.Int64
	fail    atomic.Int64           // status of responses, if not 0
	failing atomic.Pointer[string] // a part of the paths that fail; nil: all
}

func newHub(t testing.TB) *hub {
	t.Helper()
	h := &hub{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.asked.Add(1)
		failing := h.failing.Load()
		if code := h.fail.Load(); code != 0 && (failing == nil || strings.Contains(r.URL.Path, *failing)) {
			w.WriteHeader(int(code))
			return
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	h.host = strings.TrimPrefix(srv.URL, "http://")
	return h
}

func (h *hub) push(t testing.TB, ref string, img v1.Image) string {
	t.Helper()
	r, err := name.ParseReference(h.host + "/" + ref)
	must(t, err)
	must(t, remote.Write(r, img))
	return r.Name()
}

func (h *hub) pushIndex(t testing.TB, ref string, idx v1.ImageIndex) string {
	t.Helper()
	r, err := name.ParseReference(h.host + "/" + ref)
	must(t, err)
	must(t, remote.WriteIndex(r, idx))
	return r.Name()
}

func TestImageFromRegistry(t *testing.T) {
	h := newHub(t)
	img := image(t,
		archive(t, dir("bin"), file("bin/sh", "1"), file("old", "1")),
		archive(t, file(".wh.old", ""), file("new", "2")))
	ref := h.push(t, "team/app:v1", img)
	p := open(t)

	l, err := p.Resolve(t.Context(), jail.Rootfs{OCI: ref})
	must(t, err)
	if diff := cmp.Diff([]string{"bin/", "bin/sh = 1", "new = 2"}, look(t, l.Dir)); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
	want := rootfs.Layer{
		Dir:    l.Dir,
		Digest: digestOf(t, img),
		Source: "oci:" + ref + "@" + digestOf(t, img),
		Config: rootfs.ImageConfig{
			Env: []string{"PATH=/opt/bin", "LANG=C"}, Entrypoint: []string{"/entry"}, Cmd: []string{"serve"},
			WorkingDir: "/srv", User: "app",
		},
	}
	if diff := cmp.Diff(want, l); diff != "" {
		t.Errorf("layer (-want +got):\n%s", diff)
	}
}

func TestLocalPinnedImageNeedsNoRegistry(t *testing.T) {
	h := newHub(t)
	img := image(t, archive(t, file("a", "1")))
	h.push(t, "app:v1", img)
	pinned := h.host + "/app@" + digestOf(t, img)
	images := filepath.Join(t.TempDir(), "images")

	if _, err := open(t, in(images)).Resolve(t.Context(), jail.Rootfs{OCI: pinned}); err != nil {
		t.Fatal(err)
	}
	asked := h.asked.Load()
	h.fail.Store(http.StatusInternalServerError)
	if _, err := open(t, in(images)).Resolve(t.Context(), jail.Rootfs{OCI: pinned}); err != nil || h.asked.Load() != asked {
		t.Errorf("Resolve of a pinned image = %v with %d requests, want none", err, h.asked.Load()-asked)
	}
}

func TestTagIsResolvedByRegistry(t *testing.T) {
	h := newHub(t)
	p := open(t)
	h.push(t, "app:latest", image(t, archive(t, file("a", "1"))))
	first, err := p.Resolve(t.Context(), jail.Rootfs{OCI: h.host + "/app"})
	must(t, err)
	h.push(t, "app:latest", image(t, archive(t, file("a", "2"))))
	second, err := p.Resolve(t.Context(), jail.Rootfs{OCI: h.host + "/app"})
	must(t, err)
	if first.Digest == second.Digest || look(t, second.Dir)[0] != "a = 2" {
		t.Errorf("before and after the tag was moved: %s and %s", first.Digest, second.Digest)
	}
	if got := look(t, first.Dir)[0]; got != "a = 1" {
		t.Errorf("the first tree has changed to %q", got)
	}
}

func TestManifestListSelectsPlatform(t *testing.T) {
	mine := image(t, archive(t, file("mine", "1")))
	other := withArch(t, image(t, archive(t, file("other", "1"))), "s390x")
	idx := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: other, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}},
		mutate.IndexAddendum{Add: mine, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}})
	h := newHub(t)
	ref := h.pushIndex(t, "multi:1", idx)
	p := open(t)

	for _, r := range []string{ref, h.host + "/multi@" + digestOf(t, idx), h.host + "/multi@" + digestOf(t, mine)} {
		l, err := p.Resolve(t.Context(), jail.Rootfs{OCI: r})
		if err != nil || l.Digest != digestOf(t, mine) {
			t.Errorf("Resolve(%s) = %+v, %v, want %s", r, l, err, digestOf(t, mine))
		}
	}
	_, err := p.Resolve(t.Context(), jail.Rootfs{OCI: h.host + "/multi@" + digestOf(t, other)})
	if !errors.Is(err, fault.Unsupported) {
		t.Errorf("Resolve of an image for another platform = %v, want unsupported", err)
	}
	only := h.pushIndex(t, "multi:2", mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: other, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}}))
	if _, err := p.Resolve(t.Context(), jail.Rootfs{OCI: only}); !errors.Is(err, fault.Unsupported) {
		t.Errorf("Resolve of a list without this platform = %v, want unsupported", err)
	}
}

func TestRegistryErrorsHaveKind(t *testing.T) {
	h := newHub(t)
	p := open(t)
	ref := h.push(t, "app:v1", image(t, archive(t, file("a", "1"))))
	_, err := p.Resolve(t.Context(), jail.Rootfs{OCI: ref})
	must(t, err)

	if _, err := p.Resolve(t.Context(), jail.Rootfs{OCI: h.host + "/none:v1"}); !errors.Is(err, fault.NotFound) {
		t.Errorf("unknown image: %v, want not found", err)
	}
	for code, kind := range map[int64]fault.Kind{
		http.StatusUnauthorized: fault.Denied, http.StatusForbidden: fault.Denied,
		http.StatusTooManyRequests: fault.Exhausted, http.StatusNotImplemented: fault.Unavailable,
	} {
		h.fail.Store(code)
		if _, err := p.Resolve(t.Context(), jail.Rootfs{OCI: ref}); !errors.Is(err, kind) {
			t.Errorf("registry status %d: %v, want %s", code, err, kind)
		}
	}
	down := open(t, func(c *rootfs.Config) { c.Transport = deadNetwork{} })
	if _, err := down.Resolve(t.Context(), jail.Rootfs{OCI: ref}); !errors.Is(err, fault.Unavailable) {
		t.Errorf("no network: %v, want unavailable", err)
	}
}

// The manifest arrives, and the registry fails after it.
func TestUnreadableBlobsAreUnavailable(t *testing.T) {
	h := newHub(t)
	img := image(t, archive(t, file("a", "1")))
	ref := h.push(t, "app:v1", img)
	config, err := img.ConfigName()
	must(t, err)
	layers, err := img.Layers()
	must(t, err)
	layer, err := layers[0].Digest()
	must(t, err)
	for what, blob := range map[string]v1.Hash{"configuration": config, "layer": layer} {
		path := blob.String()
		h.failing.Store(&path)
		h.fail.Store(http.StatusNotImplemented)
		if _, err := open(t).Resolve(t.Context(), jail.Rootfs{OCI: ref}); !errors.Is(err, fault.Unavailable) {
			t.Errorf("unreadable %s: %v, want unavailable", what, err)
		}
		h.fail.Store(0)
	}
}

type deadNetwork struct{}

func (deadNetwork) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("network is unreachable")
}

func TestUnreachableRegistryRemedyHasDigest(t *testing.T) {
	h := newHub(t)
	images := filepath.Join(t.TempDir(), "images")
	ref := h.push(t, "app:v1", image(t, archive(t, file("a", "1"))))
	l, err := open(t, in(images)).Resolve(t.Context(), jail.Rootfs{OCI: ref})
	must(t, err)

	offline := open(t, in(images), func(c *rootfs.Config) { c.Transport = deadNetwork{} })
	_, err = offline.Resolve(t.Context(), jail.Rootfs{OCI: ref})
	pin := h.host + "/app@" + l.Digest
	if !strings.Contains(fault.RemedyOf(err), pin) {
		t.Fatalf("remedy of %v = %q, want it to name %s", err, fault.RemedyOf(err), pin)
	}
	if _, err := offline.Resolve(t.Context(), jail.Rootfs{OCI: pin}); err != nil {
		t.Errorf("Resolve of the digest in the remedy: %v", err)
	}
}

func TestConcurrentResolvesPullOnce(t *testing.T) {
	h := newHub(t)
	img := image(t, archive(t, file("a", "1")))
	ref := h.push(t, "app:v1", img)
	p := open(t)
	before := h.asked.Load()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := p.Resolve(t.Context(), jail.Rootfs{OCI: ref}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	// Each caller sends a ping and requests the manifest. Only one of them also requests the layer
	// and the configuration.
	if n := h.asked.Load() - before; n > 20*2+2 {
		t.Errorf("%d requests for 20 callers, want at most 42: the image was pulled more than once", n)
	}
	if n := len(p.List()); n != 1 {
		t.Errorf("%d images, want 1", n)
	}
}

func TestImageFromLayoutAndTars(t *testing.T) {
	img := image(t, archive(t, file("a", "1")), archive(t, file("b", "2")))
	lay := writeLayout(t, img)
	top := t.TempDir()

	ociTar := filepath.Join(top, "oci.tar")
	var b bytes.Buffer
	must(t, rootfs.TarTree(t.Context(), lay, &b, nil))
	must(t, os.WriteFile(ociTar, b.Bytes(), 0o600))

	zipped := filepath.Join(top, "oci.tar.gz")
	var z bytes.Buffer
	zw := gzip.NewWriter(&z)
	zw.Write(b.Bytes())
	must(t, zw.Close())
	must(t, os.WriteFile(zipped, z.Bytes(), 0o600))

	dockerTar := filepath.Join(top, "docker.tar")
	tag, err := name.NewTag("example/app:v1")
	must(t, err)
	must(t, tarball.WriteToFile(dockerTar, tag, img))
	id, err := img.ConfigName()
	must(t, err)

	for _, tt := range []struct{ file, digest string }{
		{lay, digestOf(t, img)},
		{ociTar, digestOf(t, img)},
		{zipped, digestOf(t, img)},
		{dockerTar, id.String()},
	} {
		t.Run(filepath.Base(tt.file), func(t *testing.T) {
			images := filepath.Join(t.TempDir(), "images")
			p := open(t, in(images), allow("/"))
			l, err := p.Resolve(t.Context(), jail.Rootfs{OCI: tt.file})
			must(t, err)
			if l.Digest != tt.digest || l.Source != "oci:"+tt.file+"@"+tt.digest || l.Config.User != "app" {
				t.Errorf("layer = %+v, want digest %s", l, tt.digest)
			}
			if diff := cmp.Diff([]string{"a = 1", "b = 2"}, look(t, l.Dir)); diff != "" {
				t.Errorf("tree (-want +got):\n%s", diff)
			}
			if _, err := p.Resolve(t.Context(), jail.Rootfs{OCI: tt.file + "@" + tt.digest}); err != nil {
				t.Errorf("with the right pin: %v", err)
			}
			wrong := "@sha256:" + strings.Repeat("0", 64)
			if _, err := p.Resolve(t.Context(), jail.Rootfs{OCI: tt.file + wrong}); !errors.Is(err, fault.Invalid) {
				t.Errorf("with a wrong pin: %v, want invalid", err)
			}
			if left, _ := filepath.Glob(images + "/.tmp-*"); len(left) > 0 {
				t.Errorf("temporary directories remain: %v", left)
			}
		})
	}
}

func TestLayoutOfSeveralImagesNeedsDigest(t *testing.T) {
	one, two := image(t, archive(t, file("a", "1"))), image(t, archive(t, file("a", "2")))
	other := withArch(t, one, "s390x")
	p := open(t, allow("/"))

	lay := writeLayout(t, one, two)
	if _, err := p.Resolve(t.Context(), jail.Rootfs{OCI: lay}); !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), digestOf(t, two)) {
		t.Errorf("Resolve = %v, want invalid with the digests", err)
	}
	l, err := p.Resolve(t.Context(), jail.Rootfs{OCI: lay + "@" + digestOf(t, two)})
	if err != nil || l.Digest != digestOf(t, two) {
		t.Errorf("Resolve of a pinned image = %+v, %v", l, err)
	}
	l, err = p.Resolve(t.Context(), jail.Rootfs{OCI: writeLayout(t, other, one)})
	if err != nil || l.Digest != digestOf(t, one) {
		t.Errorf("Resolve of the only image for this platform = %+v, %v", l, err)
	}
}

// TestDamagedImagesAreRejected damages each part of an image, one at a time.
func TestDamagedImagesAreRejected(t *testing.T) {
	img := image(t, archive(t, file("a", "1")))
	m, err := img.Manifest()
	must(t, err)
	parts := map[string]string{
		"manifest": digestOf(t, img), "configuration": m.Config.Digest.String(), "layer": m.Layers[0].Digest.String(),
	}
	for part, digest := range parts {
		for _, harm := range []struct {
			name string
			do   func(b []byte) []byte
		}{
			{"one bit", func(b []byte) []byte { b[len(b)/2] ^= 1; return b }},
			{"cut short", func(b []byte) []byte { return b[:len(b)/2] }},
			{"other content", func([]byte) []byte {
				other := image(t, archive(t, file("evil", "1")))
				l, _ := other.Layers()
				r, _ := l[0].Compressed()
				b, _ := io.ReadAll(r)
				return b
			}},
		} {
			t.Run(part+" "+harm.name, func(t *testing.T) {
				lay := writeLayout(t, img)
				blob := filepath.Join(lay, "blobs", strings.Replace(digest, ":", "/", 1))
				b, err := os.ReadFile(blob)
				must(t, err)
				must(t, os.WriteFile(blob, harm.do(b), 0o600))
				p := open(t, allow("/"))
				l, err := p.Resolve(t.Context(), jail.Rootfs{OCI: lay})
				if !errors.Is(err, fault.Invalid) {
					t.Errorf("Resolve = %+v, %v, want invalid", l, err)
				}
				if n := len(p.List()); n != 0 {
					t.Errorf("%d images were stored, want none", n)
				}
			})
		}
	}
}

func TestHostileImageLeavesNothing(t *testing.T) {
	outside := t.TempDir()
	images := filepath.Join(t.TempDir(), "images")
	p := open(t, in(images), allow("/"))
	lay := layoutWith(t, file("fine", "1"), symlink("l", outside), file("l/new", "x"))
	_, err := p.Resolve(t.Context(), jail.Rootfs{OCI: lay})
	if !errors.Is(err, fault.Invalid) {
		t.Errorf("Resolve = %v, want invalid", err)
	}
	if left, _ := os.ReadDir(images); len(left) > 0 {
		t.Errorf("files remain: %v", left)
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Errorf("files were written outside: %v", left)
	}
}

func TestImageSizeLimit(t *testing.T) {
	small := func(c *rootfs.Config) { c.MaxBytes, c.MaxFiles = 1<<20, 100 }
	// 1.5 MB of zeros are compressed to a few kB.
	lay := layoutWith(t, file("zeros", strings.Repeat("\x00", 3<<19)))
	if _, err := open(t, small, allow("/")).Resolve(t.Context(), jail.Rootfs{OCI: lay}); !errors.Is(err, fault.TooLarge) {
		t.Errorf("Resolve = %v, want too large", err)
	}
	var many []member
	for i := range 101 {
		many = append(many, file(fmt.Sprint(i), ""))
	}
	if _, err := open(t, small, allow("/")).Resolve(t.Context(), jail.Rootfs{OCI: layoutWith(t, many...)}); !errors.Is(err, fault.TooLarge) {
		t.Errorf("Resolve = %v, want too large", err)
	}
}

func TestLayoutWithSymlinksIsRejected(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(secret, []byte("root:hash"), 0o600))
	for _, name := range []string{"index.json", "blobs/sha256/" + fmt.Sprintf("%x", sha256.Sum256(nil))} {
		lay := layoutWith(t, file("a", "1"))
		os.Remove(filepath.Join(lay, name))
		must(t, os.Symlink(secret, filepath.Join(lay, name)))
		_, err := open(t, allow("/")).Resolve(t.Context(), jail.Rootfs{OCI: lay})
		if !errors.Is(err, fault.Invalid) || strings.Contains(err.Error(), "hash") {
			t.Errorf("%s is a symlink: %v, want invalid", name, err)
		}
	}
}

func TestInvalidImageTars(t *testing.T) {
	big := strings.Repeat(" ", 9<<20)
	for name, b := range map[string][]byte{
		"empty":            nil,
		"text":             []byte("hello"),
		"no image":         archive(t, file("a", "1")),
		"empty manifest":   archive(t, file("manifest.json", "[]")),
		"two images":       archive(t, file("manifest.json", `[{"Config":"a"},{"Config":"b"}]`)),
		"config missing":   archive(t, file("manifest.json", `[{"Config":"c.json","Layers":["l.tar"]}]`)),
		"layer missing":    archive(t, file("c.json", `{"os":"linux","rootfs":{"diff_ids":["sha256:`+strings.Repeat("0", 64)+`"]}}`), file("manifest.json", `[{"Config":"c.json","Layers":["l.tar"]}]`)),
		"huge manifest":    archive(t, file("manifest.json", big)),
		"huge config":      archive(t, file("c.json", big), file("manifest.json", `[{"Config":"c.json","Layers":[]}]`)),
		"layout of links":  archive(t, symlink("index.json", "/etc/passwd"), file("oci-layout", "{}"), dir("blobs")),
		"layout outside":   archive(t, symlink("blobs", "/"), file("index.json", "{}"), file("oci-layout", "{}")),
		"layout of nested": archive(t, file("index.json", `{"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","digest":"sha256:`+strings.Repeat("0", 64)+`","size":1}]}`), file("oci-layout", "{}"), dir("blobs")),
	} {
		t.Run(name, func(t *testing.T) {
			tar := filepath.Join(t.TempDir(), "image.tar")
			must(t, os.WriteFile(tar, b, 0o600))
			if _, err := open(t, allow("/")).Resolve(t.Context(), jail.Rootfs{OCI: tar}); !errors.Is(err, fault.Invalid) {
				t.Errorf("Resolve = %v, want invalid", err)
			}
		})
	}
}
