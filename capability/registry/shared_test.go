package registry_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/capability/registry"
	"glasshouse/fault"
)

// Tools of one server have the same files. The files are stored only once and exist as long as one
// of the tools is registered, even after a restart.
func TestCapabilitiesWithTheSameFilesShareThem(t *testing.T) {
	s := newShop(t)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "data.txt"), []byte("1"), 0o644))
	put := func(cid string) registry.Record {
		t.Helper()
		text := `(capability "` + cid + `" :version "1.0.0" :description "d" :effects [:exec]
		  :runtime {:type :container :image "debian" :entrypoint ["/bin/true"]}
		  :filesystem {:mode :ephemeral :mounts [{:host "data.txt" :guest "/data.txt" :mode :ro}]})`
		all, err := s.Register(t.Context(), registry.Request{File: "m.rtfs", Text: []byte(text), Dir: dir, By: "anna"})
		must(t, err)
		return all[0]
	}
	a, b := put("a.x"), put("a.y")
	if a.Digest == b.Digest || a.Files != b.Files {
		t.Fatalf("the digests are %s and %s, of files %s and %s", a.Digest, b.Digest, a.Files, b.Files)
	}
	kept := func() int {
		t.Helper()
		list, err := filepath.Glob(filepath.Join(s.dir, "capabilities", "*", "data.txt"))
		must(t, err)
		return len(list)
	}
	if n := kept(); n != 1 {
		t.Errorf("the files are kept %d times", n)
	}
	must(t, s.Remove(t.Context(), "a.x"))
	s.close()
	s.open()
	if _, in, err := s.Find("a.y"); err != nil || in == nil {
		t.Fatal(err)
	}
	if n := kept(); n != 1 {
		t.Errorf("after removing one of them they are kept %d times", n)
	}
	must(t, s.Remove(t.Context(), "a.y"))
	if n := kept(); n != 0 {
		t.Errorf("after removing both they are kept %d times", n)
	}
}

// registerShared registers capabilities that mount the same directory.
func (s *shop) registerShared(t *testing.T, dir, version string, ids ...string) ([]registry.Record, error) {
	t.Helper()
	var text strings.Builder
	for _, cid := range ids {
		fmt.Fprintf(&text, `(capability %q :version %q :description "d" :effects [:exec]
		  :runtime {:type :container :image "debian" :entrypoint ["/bin/true"]}
		  :filesystem {:mode :ephemeral :mounts [{:host "src" :guest "/app" :mode :ro}]})`, cid, version)
	}
	return s.Register(t.Context(), registry.Request{File: "m.rtfs", Text: []byte(text.String()), Dir: dir, By: "anna"})
}

func TestSharedFilesAreReadOnce(t *testing.T) {
	s := newShop(t)
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "src"), 0o755))
	file := filepath.Join(dir, "src", "model.bin")
	const size = 1 << 20
	must(t, os.WriteFile(file, make([]byte, size), 0o644))
	first, err := s.registerShared(t, dir, "1.0.0", "a.a", "a.b", "a.c")
	must(t, err)
	if got := s.BytesRead(); got != size {
		t.Errorf("three capabilities of one manifest read %d bytes, want %d", got, size)
	}
	time.Sleep(2100 * time.Millisecond) // digests are cached only for time stamps older than 2 s
	_, err = s.registerShared(t, dir, "1.0.0", "a.d")
	must(t, err)
	before := s.BytesRead()
	second, err := s.registerShared(t, dir, "1.0.0", "a.e")
	must(t, err)
	if got := s.BytesRead() - before; got != 0 {
		t.Errorf("another manifest with files that were already read reads %d bytes, want 0", got)
	}
	if first[0].Files != second[0].Files {
		t.Errorf("the same files have the digests %s and %s, want one", first[0].Files, second[0].Files)
	}
	changed := make([]byte, size) // same size
	changed[size-1] = 1
	must(t, os.WriteFile(file, changed, 0o644))
	third, err := s.registerShared(t, dir, "1.0.0", "a.f")
	must(t, err)
	if third[0].Files == second[0].Files {
		t.Errorf("changed files have the digest %s of the old ones, want another", third[0].Files)
	}
	// A missing copy is restored, also of files that were read earlier.
	time.Sleep(2100 * time.Millisecond)
	_, err = s.registerShared(t, dir, "1.0.0", "a.g")
	must(t, err)
	stored := filepath.Join(s.dir, "capabilities", strings.TrimPrefix(third[0].Files, "sha256:"))
	must(t, os.RemoveAll(stored))
	_, err = s.registerShared(t, dir, "1.0.0", "a.h")
	must(t, err)
	if got, err := os.ReadFile(filepath.Join(stored, "src", "model.bin")); err != nil || len(got) != size || got[size-1] != 1 {
		t.Errorf("the restored copy has %d bytes, %v, want the %d bytes of the file", len(got), err, size)
	}
}

func TestMountOutsideDirectoryIsInvalid(t *testing.T) {
	s := newShop(t)
	dir := t.TempDir()
	for name, target := range map[string]string{"relative": "..", "absolute": "/etc", "loop": "src"} {
		t.Run(name, func(t *testing.T) {
			link := filepath.Join(dir, "src")
			must(t, os.Symlink(target, link))
			defer os.Remove(link)
			_, err := s.registerShared(t, dir, "1.0.0", "a.link")
			if fault.KindOf(err) != fault.Invalid || fault.RemedyOf(err) == "" {
				t.Errorf("a mount of a link to %s: got %v (kind %q), want kind %q and a remedy", target, err, fault.KindOf(err), fault.Invalid)
			}
		})
	}
}
