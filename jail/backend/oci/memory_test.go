package oci

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/jail"
)

// Two tmpfs number their inodes independently, so a file with two names in one can have the number
// of a file in the other.
func TestMemoryOfFileSystemsWithEqualInodes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	p := &packer{ids: jail.IDRange{First: 0, Count: 65536}, file: filepath.Join(dir, memoryFile), seen: map[inode]string{}}
	want := map[string]string{}
	inodes := map[uint64]int{}
	for _, at := range []string{"dev", "shm"} {
		in := filepath.Join(dir, at)
		if err := errors.Join(os.Mkdir(in, 0o755), unix.Mount("tmpfs", in, "tmpfs", 0, "inode64")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(in, 0) })
		if err := errors.Join(os.WriteFile(filepath.Join(in, "a"), []byte("of "+at), 0o600), os.Link(filepath.Join(in, "a"), filepath.Join(in, "b"))); err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(in, "a"), &st); err != nil {
			t.Fatal(err)
		}
		inodes[st.Ino]++
		root, err := os.OpenRoot(in)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "b"} {
			if err := p.add(root, name, at+"/"+name); err != nil {
				t.Fatal(err)
			}
		}
		root.Close()
		want[at+"/a"], want[at+"/b"] = "of "+at, "link to "+at+"/a"
	}
	if len(inodes) != 1 {
		t.Fatalf("the files have different inodes: %v", inodes)
	}
	if err := p.close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(p.file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got := "link to " + h.Linkname
		if h.Typeflag == tar.TypeReg {
			b, _ := io.ReadAll(r)
			got = string(b)
		}
		if got != want[h.Name] {
			t.Errorf("%s is %q, want %q", h.Name, got, want[h.Name])
		}
		delete(want, h.Name)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}

func TestMemoryKeepsTimesOfDirectories(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("changing owners needs root")
	}
	from, images := t.TempDir(), t.TempDir()
	l := layout{t.TempDir()}
	past := time.Unix(1_000_000_000, 0)
	err := errors.Join(
		os.MkdirAll(filepath.Join(from, "d/e"), 0o755), os.WriteFile(filepath.Join(from, "d/e/f"), []byte("x"), 0o600),
		os.Chtimes(filepath.Join(from, "d/e"), past, past), os.Chtimes(filepath.Join(from, "d"), past, past),
		os.MkdirAll(l.dev(), 0o755), os.MkdirAll(l.shm(), 0o755),
	)
	if err != nil {
		t.Fatal(err)
	}
	ids := jail.IDRange{First: 0, Count: 65536}
	p := &packer{ids: ids, file: filepath.Join(images, memoryFile), seen: map[inode]string{}}
	root, err := os.OpenRoot(from)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, name := range []string{"d", "d/e", "d/e/f"} {
		if err := p.add(root, name, "dev/"+name); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(p.close(), unpackMemory(images, ids, l)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"d", "d/e"} {
		st, err := os.Stat(filepath.Join(l.dev(), name))
		if err != nil || !st.ModTime().Equal(past) {
			t.Errorf("%s was changed at %v, %v, want %v", name, st.ModTime(), err, past)
		}
	}
}
