package jailfs_test

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	jailfs "glasshouse/jail/fs"
	"glasshouse/jail/init/protocol"
)

// TestMetadataIgnoresForeignAttributes sets extended attributes that setMeta cannot set. Stat and
// List must not return them, and must not read attributes through a symlink.
func TestMetadataIgnoresForeignAttributes(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"user.e2b.good": "yes", "user.e2b.new\nline": "1", "user.e2b.bytes": "\xff\x00", "user.e2b.ünï": "1", "user.other": "1",
		"user.e2b.large": strings.Repeat("v", protocol.MaxMeta+1),
	} {
		switch err := unix.Setxattr(file, name, []byte(value), 0); err {
		case nil, unix.ENOSPC, unix.E2BIG: // the filesystem may not have room for the large one
		case unix.EOPNOTSUPP:
			t.Skip("the filesystem of temporary files does not support user extended attributes")
		default:
			t.Fatal(name, err)
		}
	}
	if err := os.Symlink("f", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	r, err := jailfs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	want := map[string]string{"good": "yes"}
	if i, err := r.Stat(t.Context(), "f"); err != nil || !maps.Equal(i.Meta, want) {
		t.Errorf("Stat = %v, %v; want %v", i.Meta, err, want)
	}
	list, _, err := r.List(t.Context(), ".", "", 0)
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	if !maps.Equal(list[0].Meta, want) || list[1].Meta != nil {
		t.Errorf("List = %v", list)
	}
	for _, bad := range []map[string]string{{"": "x"}, {"a\n": "x"}, {"a": "\xff"}, {"a": strings.Repeat("v", protocol.MaxMeta)}, {strings.Repeat("k", 300): "v"}} {
		if _, err := r.Write(t.Context(), "g", strings.NewReader("x"), protocol.WriteOptions{Meta: &bad}); err == nil {
			t.Errorf("the metadata %.40v was accepted", bad)
		}
	}
	none := map[string]string{}
	if i, err := r.Write(t.Context(), "f", strings.NewReader("x"), protocol.WriteOptions{InPlace: true, Meta: &none}); err != nil || len(i.Meta) != 0 {
		t.Error(i, err)
	}
	if i, err := r.Stat(t.Context(), "f"); err != nil || i.Meta != nil {
		t.Errorf("after a write with empty metadata: %v, %v", i.Meta, err)
	}
	if n, err := unix.Getxattr(file, "user.other", make([]byte, 8)); n != 1 {
		t.Errorf("a foreign attribute was removed: %v", err)
	}
}
