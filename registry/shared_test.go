package registry_test

import (
	"os"
	"path/filepath"
	"testing"

	"glasshouse/registry"
)

// Tools of one server bring the same files along: they are kept once, for as long as one
// of them is registered, also over a restart.
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
		t.Errorf("with one of them gone they are kept %d times", n)
	}
	must(t, s.Remove(t.Context(), "a.y"))
	if n := kept(); n != 0 {
		t.Errorf("with both of them gone they are kept %d times", n)
	}
}
