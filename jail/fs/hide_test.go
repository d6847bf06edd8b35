package jailfs_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	jailfs "glasshouse/jail/fs"
	"glasshouse/jail/init/protocol"
)

// TestHiddenFilesystem checks that no operation finds files on a hidden filesystem, by any path.
func TestHiddenFilesystem(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir, ctx := t.TempDir(), t.Context()
	at := filepath.Join(dir, "run/secrets")
	if err := errors.Join(os.MkdirAll(at, 0o755), unix.Mount("hidden", at, "tmpfs", 0, "")); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(at, unix.MNT_DETACH)
	if err := errors.Join(os.Mkdir(at+"/below", 0o755), os.WriteFile(at+"/below/key", []byte("canary"), 0o644), os.WriteFile(dir+"/run/other", []byte("seen"), 0o644),
		os.Symlink("/run/secrets", dir+"/link"), os.Symlink("run/secrets/below/key", dir+"/file")); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(at, &st); err != nil {
		t.Fatal(err)
	}
	root, err := jailfs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	root.Hide(func(dev uint64) bool { return dev == st.Dev })

	for _, name := range []string{"run/secrets", "run/secrets/below", "run/secrets/below/key", "/run/../run/secrets/below/key", "link/below/key", "link/", "file"} {
		r, _, err := root.Read(ctx, name, 0, -1)
		if err == nil {
			r.Close()
		}
		errs := map[string]error{"Read": err, "WriteTar": root.WriteTar(ctx, name, io.Discard)}
		_, _, errs["List"] = root.List(ctx, name, "", 0)
		errs["Untar"] = root.Untar(ctx, name, strings.NewReader(""))
		if name != "file" { // a symlink, which is not hidden itself
			_, errs["Stat"] = root.Stat(ctx, name)
			_, errs["Tar"] = root.Tar(ctx, name)
		}
		if strings.Contains(name, "key") {
			_, errs["Write"] = root.Write(ctx, name, strings.NewReader("x"), protocol.WriteOptions{})
			errs["Mkdir"] = root.Mkdir(ctx, name+"s", 0, true)
			errs["Remove"] = root.Remove(ctx, name, true)
			errs["Move"] = root.Move(ctx, name, "mine", false)
		}
		for op, err := range errs {
			if !errors.Is(err, fault.NotFound) && !(op == "Mkdir" && errors.Is(err, fault.Conflict)) {
				t.Errorf("%s %s: %v, want not found", op, name, err)
			}
		}
	}
	infos, _, err := root.List(ctx, "run", "", 0)
	if err != nil || len(infos) != 1 || infos[0].Name != "other" {
		t.Errorf("List(run) = %+v, %v; want only other", infos, err)
	}
	var archive strings.Builder
	if err := root.WriteTar(ctx, "/", &archive); err != nil || strings.Contains(archive.String(), "canary") || !strings.Contains(archive.String(), "seen") {
		t.Errorf("WriteTar(/) contains the hidden file or lacks others: %v", err)
	}
	if b, err := os.ReadFile(at + "/below/key"); err != nil || string(b) != "canary" {
		t.Errorf("the hidden file has changed to %q, %v", b, err)
	}
}

// TestFilesBelowAbsentMounts checks that no operation reads or writes files where a running jail
// has a mount, by any path.
func TestFilesBelowAbsentMounts(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	if err := errors.Join(os.MkdirAll(dir+"/work/sub", 0o755), os.MkdirAll(dir+"/real", 0o755), os.WriteFile(dir+"/work/f", []byte("below"), 0o644),
		os.WriteFile(dir+"/worker", []byte("other"), 0o644), os.WriteFile(dir+"/new", []byte("new"), 0o644),
		os.Symlink("/work", dir+"/link"), os.Symlink("work/f", dir+"/file"), os.Symlink("/real", dir+"/alias"), os.Symlink("/work/none", dir+"/dangling")); err != nil {
		t.Fatal(err)
	}
	root, err := jailfs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := root.Mounts([]string{"/work", "/alias/at", "/none"}); err != nil {
		t.Fatal(err)
	}

	conflict := func(op, name string, err error) {
		t.Helper()
		if !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "only a running jail has") {
			t.Errorf("%s %s = %v, want a conflict about the mount", op, name, err)
		}
	}
	for _, name := range []string{"/work/f", "work/../work/f", "link/f", "file", "/work/no", "/none", "/none/a/b", "/alias/at/x"} {
		r, _, err := root.Read(ctx, name, 0, -1)
		if err == nil {
			r.Close()
		}
		conflict("Read", name, err)
	}
	for _, name := range []string{"/work", "/work/sub", "link/", "link/sub"} {
		_, _, err := root.List(ctx, name, "", 0)
		conflict("List", name, err)
		conflict("Untar", name, root.Untar(ctx, name, archiveOf(t, "x")))
	}
	for _, name := range []string{"/work", "/work/x", "link/x", "dangling", "/none", "/none/x", "/alias/at", "/real/at/x"} {
		_, err := root.Write(ctx, name, strings.NewReader("x"), protocol.WriteOptions{Parents: true})
		conflict("Write", name, err)
		if name != "dangling" {
			conflict("Mkdir", name, root.Mkdir(ctx, name, 0o755, true))
		}
	}
	for _, name := range []string{"/work", "/work/x", "link/x", "/none", "/alias/at"} {
		conflict("Move", name, root.Move(ctx, "/new", name, true))
	}
	if _, _, err := root.Read(ctx, "/no/f", 0, -1); !errors.Is(err, fault.NotFound) {
		t.Errorf("Read(/no/f) = %v, want not found", err)
	}
	conflict("Stat", "/work/f", func() error { _, err := root.Stat(ctx, "/work/f"); return err }())
	conflict("Tar", "/work", func() error { _, err := root.Tar(ctx, "/work"); return err }())
	conflict("Move", "from /work/f", root.Move(ctx, "/work/f", "/mine", false))
	conflict("Remove", "/work/f", root.Remove(ctx, "/work/f", false))
	conflict("Remove", "link/f", root.Remove(ctx, "link/f", false))
	conflict("Untar", "/", root.Untar(ctx, "/", archiveOf(t, "work/x")))

	if err := root.Move(ctx, "/new", "/..", true); fault.FieldOf(err) != "to" || strings.Contains(err.Error(), "%!") {
		t.Errorf("Move to /.. = %v, want an error about the field to", err)
	}
	if _, err := root.Write(ctx, "/worker", strings.NewReader("changed"), protocol.WriteOptions{}); err != nil {
		t.Errorf("Write(/worker) = %v; the name only begins like a mount", err)
	}
	if b, err := os.ReadFile(dir + "/work/f"); err != nil || string(b) != "below" {
		t.Errorf("the file below the mount has changed to %q, %v", b, err)
	}
	for _, name := range []string{"work/x", "none/x", "real/at"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s was created below a mount", name)
		}
	}
}

// archiveOf returns a tar archive with one file.
func archiveOf(t *testing.T, name string) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Typeflag: tar.TypeReg}), w.Close()); err != nil {
		t.Fatal(err)
	}
	return &b
}
