package jailfs_test

import (
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
