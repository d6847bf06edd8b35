package bundle_test

import (
	"archive/tar"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"glasshouse/capability/bundle"
)

// seeds adds small archives of all kinds to the corpus.
func seeds(f *testing.F, pack func(testing.TB, []item) []byte) {
	f.Helper()
	f.Add(pack(f, []item{{name: "a", body: "1"}, {name: "d/b", body: "2", mode: 0o755}}))
	f.Add(pack(f, []item{{name: "../a", body: "1"}}))
	f.Add(pack(f, []item{{name: "/a", body: "1"}, {name: "A", body: "2"}, {name: "a", body: "3"}}))
	f.Add(pack(f, []item{{name: "l", kind: tar.TypeSymlink, link: "/etc"}, {name: "l/x", body: "1"}}))
	f.Add(pack(f, nil))
}

// sane fails if a name is invalid or a duplicate.
func sane(t *testing.T, names []string) {
	t.Helper()
	seen := map[string]bool{}
	for _, n := range names {
		if !filepath.IsLocal(n) || filepath.Clean(n) != n || strings.ContainsAny(n, "\\\x00\n") {
			t.Errorf("invalid name %q was accepted", n)
		}
		if seen[strings.ToLower(n)] {
			t.Errorf("name %q was accepted twice", n)
		}
		seen[strings.ToLower(n)] = true
	}
}

func FuzzZip(f *testing.F) {
	seeds(f, zipOf)
	f.Fuzz(func(t *testing.T, archive []byte) {
		if names, err := bundle.Names(archive); err == nil || len(names) > 0 {
			sane(t, names)
		}
	})
}

func FuzzTar(f *testing.F) {
	seeds(f, tarOf)
	f.Fuzz(func(t *testing.T, plain []byte) {
		if names, err := bundle.TarNames(plain); err == nil || len(names) > 0 {
			sane(t, names)
		}
	})
}

func FuzzSignature(f *testing.F) {
	// Workers must generate the same corpus, so the key and the time are fixed.
	key, err := os.ReadFile("testdata/open.key")
	if err != nil {
		f.Fatal(err)
	}
	k, err := bundle.ParseSecretKey(string(key), nil)
	if err != nil {
		f.Fatal(err)
	}
	text, err := (&bundle.Signature{
		Name: "places", Version: "1.0.0", Publisher: "acme", Signed: "2026-01-01T00:00:00Z",
		Files: []bundle.File{fileOf(item{name: "a", body: "1"}), fileOf(item{name: "b/c", body: "2", mode: 0o755})},
	}).Sign(k)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"format":"glasshouse-bundle/1","files":[]}`))
	signed := string(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := bundle.ParseSignature(text)
		if err != nil {
			if bundle.ReasonOf(err) == "" {
				t.Errorf("refused without a reason: %v", err)
			}
			return
		}
		// Only the holder of the key can create another valid signature.
		if !strings.Contains(signed, s.Signature) {
			t.Errorf("a forged signature was accepted: %s", text)
		}
	})
}

func FuzzNames(f *testing.F) {
	for _, n := range []string{"a/b", "../a", "/a", "C:a", "a//b", "\u202e", "a\x00", "\u00e9"} {
		f.Add(n)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if bundle.CheckName(name) == nil {
			sane(t, []string{name})
		}
	})
}
