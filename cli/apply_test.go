package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/api/wire"
)

// newHostDir creates a directory with these files, which represent the state before the run.
func newHostDir(t *testing.T, files map[string]string) (dir string, a *applier) {
	t.Helper()
	dir = t.TempDir()
	before := time.Now().Add(-time.Hour)
	for name, content := range files {
		full := filepath.Join(dir, name)
		os.MkdirAll(filepath.Dir(full), 0o755)
		if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		os.Chtimes(full, before, before)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return dir, &applier{
		root: root, since: time.Now().Add(-time.Minute),
		fetch: func(_ context.Context, p string) (io.ReadCloser, error) {
			return io.NopCloser(strings.NewReader("from the jail: " + p)), nil
		},
		link: func(context.Context, string) (string, error) { return "/etc/passwd", nil },
	}
}

func content(t *testing.T, dir string) []string {
	t.Helper()
	var got []string
	filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, p)
		switch {
		case rel == ".":
		case d.IsDir():
			got = append(got, rel+"/")
		case d.Type()&os.ModeSymlink != 0:
			l, _ := os.Readlink(p)
			got = append(got, rel+" -> "+l)
		default:
			data, _ := os.ReadFile(p)
			fi, _ := d.Info()
			got = append(got, fmt.Sprintf("%s %o %s", rel, fi.Mode().Perm(), data))
		}
		return nil
	})
	return got
}

func TestApplyChanges(t *testing.T) {
	dir, a := newHostDir(t, map[string]string{"keep": "k", "edit": "old", "gone/a/b": "x", "was-dir/f": "x", "was-file": "x", "mode": "m"})
	out, err := a.apply(t.Context(), []wire.Change{
		{Path: "/edit", Kind: "modified", Type: "file", Mode: "600"},
		{Path: "/gone", Kind: "deleted", Type: "dir"},
		{Path: "/gone/a", Kind: "deleted", Type: "dir"},
		{Path: "/gone/a/b", Kind: "deleted", Type: "file"},
		{Path: "/link", Kind: "added", Type: "symlink", Mode: "777"},
		{Path: "/mode", Kind: "metadata", Type: "file", Mode: "4755"},
		{Path: "/new/x", Kind: "added", Type: "file", Mode: "755"},
		{Path: "/new", Kind: "added", Type: "dir", Mode: "755"},
		{Path: "/was-dir", Kind: "modified", Type: "file", Mode: "644"},
		{Path: "/was-file", Kind: "modified", Type: "dir", Mode: "755"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Skipped) > 0 {
		t.Errorf("skipped %v, want nothing", out.Skipped)
	}
	want := []string{
		"edit 600 from the jail: /edit", "keep 644 k", "link -> /etc/passwd", "mode 755 m",
		"new/", "new/x 755 from the jail: /new/x", "was-dir 644 from the jail: /was-dir", "was-file/",
	}
	if got := content(t, dir); !slices.Equal(got, want) {
		t.Errorf("after apply:\n%q\nwant\n%q", got, want)
	}
}

func TestApplySkipsGitCode(t *testing.T) {
	dir, a := newHostDir(t, map[string]string{".git/config": "[core]", "sub/.git": "gitdir: x"})
	before := content(t, dir)
	out, err := a.apply(t.Context(), []wire.Change{
		{Path: "/.git/hooks/pre-commit", Kind: "added", Type: "file", Mode: "755"},
		{Path: "/.git/config", Kind: "modified", Type: "file", Mode: "644"},
		{Path: "/.git/modules/m/config", Kind: "added", Type: "file", Mode: "644"},
		{Path: "/.git/info/attributes", Kind: "added", Type: "file", Mode: "644"},
		{Path: "/sub/.git", Kind: "modified", Type: "file", Mode: "644"},
	})
	if err != nil || len(out.Done) != 0 || len(out.Skipped) != 5 {
		t.Errorf("apply = done %v, skipped %v, %v; want all five skipped", out.Done, out.Skipped, err)
	}
	if got := content(t, dir); !slices.Equal(got, before) {
		t.Errorf("the directory changed: %q", got)
	}
}

func TestApplySkipsConflictingUserChanges(t *testing.T) {
	dir, a := newHostDir(t, nil)
	os.WriteFile(filepath.Join(dir, "mine"), []byte("edited just now"), 0o644)
	changes := []wire.Change{{Path: "/mine", Kind: "modified", Type: "file", Mode: "644"}}
	if out, err := a.apply(t.Context(), changes); err != nil || len(out.Skipped) != 1 {
		t.Errorf("apply = %+v, %v; want a conflict", out, err)
	}
	a.force = true
	if out, err := a.apply(t.Context(), changes); err != nil || len(out.Done) != 1 {
		t.Errorf("forced apply = %+v, %v; want it done", out, err)
	}
}

func TestApplyStaysInsideDirectory(t *testing.T) {
	outside := t.TempDir()
	dir, a := newHostDir(t, nil)
	os.Symlink(outside, filepath.Join(dir, "out"))
	for _, p := range []string{"/out/planted", "/../planted", "planted", "/a/../../planted", "/"} {
		out, err := a.apply(t.Context(), []wire.Change{{Path: p, Kind: "added", Type: "file", Mode: "644"}})
		if err == nil && len(out.Done) > 0 {
			t.Errorf("apply of %q = done, want refused", p)
		}
	}
	if es, _ := os.ReadDir(outside); len(es) > 0 {
		t.Errorf("%d files outside of the directory, want none", len(es))
	}
}

func TestApplyRenameIsAtomic(t *testing.T) {
	dir, a := newHostDir(t, map[string]string{"old": "x", "dir/f": "x", "mine": "x", "taken": "here already", "hook": "x"})
	out, err := a.apply(t.Context(), []wire.Change{
		{Path: "/new", Kind: "renamed", From: "/old", Type: "file", Mode: "644"},
		{Path: "/dir", Kind: "modified", Type: "file", Mode: "644"}, // its file was moved out
		{Path: "/f", Kind: "renamed", From: "/dir/f", Type: "file", Mode: "600"},
		{Path: "/taken", Kind: "renamed", From: "/mine", Type: "file", Mode: "644"},
		{Path: "/.git/hooks/post-commit", Kind: "renamed", From: "/hook", Type: "file", Mode: "755"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"dir 644 from the jail: /dir", "f 600 from the jail: /f", "hook 644 x", "mine 644 x", "new 644 from the jail: /new", "taken 644 here already"}
	if got := content(t, dir); !slices.Equal(got, want) {
		t.Errorf("the directory holds %q, want %q", got, want)
	}
	if len(out.Done) != 3 || len(out.Skipped) != 2 {
		t.Errorf("done %+v, skipped %+v; want three and two", out.Done, out.Skipped)
	}
	for _, from := range []string{"/../x", "x", "/a//b"} {
		if _, err := a.apply(t.Context(), []wire.Change{{Path: "/n", Kind: "renamed", From: from, Type: "file", Mode: "644"}}); err == nil {
			t.Errorf("a file renamed from %q was applied", from)
		}
	}
}
