package test_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/jail/backend/backendtest"
)

// An entry is a file, a directory or a link in a layer of an image.
type entry struct {
	name, text, link string
	mode             int64
	uid              int
}

// layerOf packs entries after the files below dir, unless dir is empty.
func layerOf(t *testing.T, dir string, entries ...entry) v1.Layer {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if dir != "" {
		if err := w.AddFS(os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.text)), Uid: e.uid, Gid: e.uid, Typeflag: tar.TypeReg}
		switch {
		case e.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		case strings.HasSuffix(e.name, "/"):
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, e.text)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// agentImage returns a typical image for an agent: programs, a user, and a second layer that
// removes a part of the first.
func agentImage(t *testing.T, word string) v1.Image {
	t.Helper()
	base := layerOf(t, backendtest.Rootfs(t),
		entry{name: "srv/", mode: 0o755}, entry{name: "srv/secret", text: "in the first layer", mode: 0o644},
		entry{name: "srv/old/", mode: 0o755}, entry{name: "srv/old/a", text: "a", mode: 0o644},
		entry{name: "srv/own", text: "its own\n", mode: 0o600, uid: 1000},
		entry{name: "srv/passwd", link: "/etc/passwd"})
	top := layerOf(t, "",
		entry{name: "srv/.wh.secret"}, entry{name: "srv/old/", mode: 0o755}, entry{name: "srv/old/.wh..wh..opq"},
		entry{name: "srv/old/b", text: "b", mode: 0o644}, entry{name: "srv/word", text: word + "\n", mode: 0o644})
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.AppendLayers(img, base, top)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture = "linux", runtime.GOARCH
	cfg.Config.Env = []string{"PATH=/usr/bin:/bin", "OF_THE_IMAGE=yes", "BOTH=image"}
	cfg.Config.WorkingDir, cfg.Config.User = "/srv", "agent"
	img, err = mutate.ConfigFile(img, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// holds checks that a jail has the content of agentImage.
func (h *daemonHarness) holds(ref, word string) wire.Jail {
	h.Helper()
	j := h.running(wire.CreateJail{Rootfs: wire.Rootfs{OCI: ref}, Env: map[string]string{"BOTH": "jail"}})
	want := fmt.Sprintf("%s\n/srv\n1000\nits own\nyes jail\nb", word)
	if got := h.sh(j.ID, "cat word; pwd; id -u; cat own; echo $OF_THE_IMAGE $BOTH; ls old; ls secret 2>/dev/null"); got != want {
		h.Errorf("%s: %q, want %q", ref, got, want)
	}
	if got := h.sh(j.ID, "(echo x > /srv/new) 2>/dev/null && echo wrote"); got != "" {
		h.Errorf("%s: the image's user can write to a directory of root: %q", ref, got)
	}
	return j
}

func TestJailFromOCIImage(t *testing.T) {
	allowed := shortTemp(t)
	h := open(t, fmt.Sprintf("rootfs: {default: {dir: %q}, allow: [%q]}\n", backendtest.Rootfs(t), allowed))
	dir := filepath.Join(allowed, "layout")
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	first := agentImage(t, "of a layout")
	if err := l.AppendImage(first); err != nil {
		t.Fatal(err)
	}
	h.holds(dir, "of a layout")

	hub := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer hub.Close()
	host := strings.TrimPrefix(hub.URL, "http://")
	ref, err := name.ParseReference(host + "/agents/one:v1")
	if err != nil {
		t.Fatal(err)
	}
	old := agentImage(t, "pulled")
	if err := remote.Write(ref, old); err != nil {
		t.Fatal(err)
	}
	j := h.holds(ref.String(), "pulled")
	if j.Digest == "" || !strings.Contains(j.Rootfs.OCI, host) {
		t.Errorf("jail digest = %q of %+v", j.Digest, j.Rootfs)
	}

	// The tag moves to another image. This affects neither a pinned reference nor an existing
	// jail.
	digest, err := old.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, agentImage(t, "moved")); err != nil {
		t.Fatal(err)
	}
	moved := h.holds(ref.String(), "moved")
	h.holds(host+"/agents/one@"+digest.String(), "pulled")
	if _, err := h.StopJail(t.Context(), j.ID, 0); err != nil {
		t.Fatal(err)
	}

	// Prune removes images that no jail uses, and keeps those of stopped jails, even after a daemon
	// restart.
	hub.Close()
	if err := h.DeleteJail(t.Context(), moved.ID); err != nil {
		t.Fatal(err)
	}
	h.kill()
	images, _ := filepath.Glob(filepath.Join(h.data, "images/*/image.json"))
	for _, i := range images { // simulate an age of an hour
		os.Chtimes(i, time.Time{}, time.Now().Add(-time.Hour))
	}
	h.start()
	if gone, err := h.PruneImages(t.Context()); err != nil || len(gone) != 1 || gone[0].Digest != moved.Digest {
		t.Errorf("pruned %+v, %v; want only %s", gone, err, moved.Digest)
	}
	if _, err := h.StartJail(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	if got := h.sh(j.ID, "cat /srv/word"); got != "pulled" {
		t.Errorf("after the tag moved and a prune: got %q", got)
	}
	h.holds(host+"/agents/one@"+digest.String(), "pulled") // resolved by digest from the cache, without the registry
	if _, err := h.CreateJail(t.Context(), wire.CreateJail{Rootfs: wire.Rootfs{OCI: host + "/agents/two"}}); !errors.Is(err, fault.Unavailable) {
		t.Errorf("from an unreachable registry: got %v, want unavailable", err)
	}
}

func TestHostDirectoriesNeedConfiguration(t *testing.T) {
	allowed := shortTemp(t)
	h := open(t, fmt.Sprintf("rootfs: {default: {dir: %q}, allow: [%q]}\n", backendtest.Rootfs(t), allowed))
	tree := filepath.Join(allowed, "tree")
	if err := os.CopyFS(tree, os.DirFS(backendtest.Rootfs(t))); err != nil {
		t.Fatal(err)
	}
	filepath.WalkDir(tree, func(p string, d fs.DirEntry, err error) error { // undo the umask
		if d.IsDir() {
			os.Chmod(p, 0o755)
		}
		return err
	})
	if err := os.Symlink("/", filepath.Join(allowed, "link")); err != nil {
		t.Fatal(err)
	}
	j := h.running(wire.CreateJail{Rootfs: wire.Rootfs{Dir: tree}})
	if got := h.sh(j.ID, "echo x > /etc/new && cat /etc/new"); got != "x" {
		t.Errorf("on a host directory: got %q", got)
	}
	if _, err := os.Stat(filepath.Join(tree, "etc/new")); err == nil {
		t.Error("the jail wrote to the host's directory")
	}
	for dir, want := range map[string]error{
		"/":                              fault.Denied,
		"/etc":                           fault.Denied,
		filepath.Join(allowed, ".."):     fault.Denied,
		filepath.Join(allowed, "link"):   fault.Denied,
		allowed + "x":                    nil, // a sibling with the same prefix
		filepath.Join(allowed, "nosuch"): nil,
		"relative":                       fault.Invalid,
	} {
		for _, r := range []wire.Rootfs{{Dir: dir}, {OCI: dir}} {
			if r.OCI == "relative" {
				continue // it is parsed as an image name
			}
			_, err := h.CreateJail(t.Context(), wire.CreateJail{Rootfs: r})
			kind := fault.KindOf(err)
			if err == nil || want != nil && kind != want || want == nil && kind != fault.Denied && kind != fault.NotFound && kind != fault.Invalid {
				t.Errorf("%+v: %v (%s), want %v", r, err, kind, want)
			}
		}
	}
}
