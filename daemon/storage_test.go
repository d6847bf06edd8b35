package daemon

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glasshouse/api/wire"
	"glasshouse/jail"
)

func TestDiskUsageByCategory(t *testing.T) {
	dir := t.TempDir()
	for name, size := range map[string]int{
		"glasshouse.db": 100, "glasshouse.db-wal": 100, "house": 1,
		"jails/j-a/events/0.jsonl": 40_000, "jails/j-a/snapshots/s-a/fs-upper.img": 9000, "jails/j-a/jail.json": 10,
		"pages/packs/p": 5000, "images/sha256-1/root/bin/sh": 70_000, "wasm/compiled/m": 10, "agents/opencode/bin": 10,
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// A hard link takes no additional space.
	if err := os.Link(filepath.Join(dir, "images/sha256-1/root/bin/sh"), filepath.Join(dir, "images/sha256-1/root/bin/dash")); err != nil {
		t.Fatal(err)
	}
	used := time.Now()
	s := newStorage(dir, 2, func() []jail.Spares {
		return []jail.Spares{{Backend: "oci", Network: "isolated", Ready: 1, Used: used}}
	})
	got, err := s.now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]int64{}
	for _, p := range got.Parts {
		files[p.Name] = p.Files
		if p.Bytes <= 0 {
			t.Errorf("%s takes %d bytes", p.Name, p.Bytes)
		}
	}
	want := map[string]int64{"database": 2, "other": 1, "events": 1, "snapshots": 2, "jails": 1, "images": 1, "capabilities": 1, "agents": 1}
	if diff := cmp.Diff(want, files); diff != "" {
		t.Errorf("files, -want +got:\n%s", diff)
	}
	if got.Parts[0].Name != "images" || got.Parts[0].Bytes < 70_000 || got.Parts[0].Bytes > 140_000 {
		t.Errorf("the largest is %+v, want the images, and the one file once", got.Parts[0])
	}
	if got.Total <= 0 || got.Free <= 0 || got.Free > got.Total {
		t.Errorf("%d of %d bytes are free", got.Free, got.Total)
	}
	if diff := cmp.Diff([]wire.Spares{{Backend: "oci", Network: "isolated", Ready: 1, Used: used.UTC()}}, got.Pool); diff != "" || got.PoolSize != 2 {
		t.Errorf("a pool of %d: %s", got.PoolSize, diff)
	}

	if err := os.RemoveAll(filepath.Join(dir, "images")); err != nil {
		t.Fatal(err)
	}
	again, err := s.now(t.Context())
	if err != nil || !again.At.Equal(got.At) {
		t.Errorf("counted again at %v, after %v: %v", again.At, got.At, err)
	}
}
