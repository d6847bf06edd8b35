package overlay_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"glasshouse/host/overlay"

	"golang.org/x/sys/unix"
)

// tree makes files below a new directory: a name ending in / is a directory,
// content "-> x" a symlink, content "whiteout" a deletion, and a name ending in
// /! makes its directory opaque.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for n := range files {
			if !yield(n) {
				return
			}
		}
	}) {
		content := files[name]
		full := filepath.Join(dir, name)
		os.MkdirAll(filepath.Dir(full), 0o755)
		var err error
		switch {
		case filepath.Base(name) == "!":
			err = unix.Setxattr(filepath.Dir(full), "trusted.overlay.opaque", []byte("y"), 0)
		case name[len(name)-1] == '/':
			err = os.MkdirAll(full, 0o755)
		case content == "whiteout":
			err = unix.Mknod(full, unix.S_IFCHR, 0)
		case len(content) > 3 && content[:3] == "-> ":
			err = os.Symlink(content[3:], full)
		default:
			err = os.WriteFile(full, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestDiffSaysWhatTheUpperChanges(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("whiteouts and trusted attributes are root's to make")
	}
	bottom := tree(t, map[string]string{
		"keep": "same", "edit": "old", "gone": "x", "dir/a": "a", "dir/b": "b", "dir/sub/c": "c",
		"opq/x": "x", "opq/y": "y", "link": "-> a", "same": "1234", "kind": "file", "hiddenbelow": "1",
	})
	middle := tree(t, map[string]string{"hiddenbelow": "whiteout", "mid": "m"})
	upper := tree(t, map[string]string{
		"edit": "new", "gone": "whiteout", "new/deep/file": "12345", "dir/a": "whiteout",
		"dir/sub": "whiteout", "opq/!": "", "opq/x": "changed", "link": "-> b", "same": "1234",
		"kind/": "", "hiddenbelow": "whiteout", "mid": "whiteout", "nothing": "whiteout",
	})
	os.Chmod(filepath.Join(upper, "same"), 0o600)

	changes, err := overlay.Diff(upper, []string{middle, bottom}, true)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range changes {
		got = append(got, fmt.Sprintf("%s %s %s %d", c.Kind, c.Type, c.Path, c.Size))
	}
	want := []string{
		"deleted file /dir/a 1",
		"deleted dir /dir/sub 0",
		"deleted file /dir/sub/c 1",
		"modified file /edit 3",
		"deleted file /gone 1",
		"modified dir /kind 0",
		"modified symlink /link 0",
		"deleted file /mid 1",
		"added dir /new 0",
		"added dir /new/deep 0",
		"added file /new/deep/file 5",
		"modified file /opq/x 7",
		"deleted file /opq/y 1",
		"metadata file /same 4",
	}
	if !slices.Equal(got, want) {
		t.Errorf("Diff = \n%q\nwant\n%q", got, want)
	}
}

func TestDiffDoesNotFollowPlantedLinks(t *testing.T) {
	outside := tree(t, map[string]string{"secret/file": "s"})
	upper := tree(t, map[string]string{"d": "-> " + outside})
	lower := tree(t, map[string]string{"d/secret/file": "x"})
	changes, err := overlay.Diff(upper, []string{lower}, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range changes {
		if c.Kind == "added" {
			t.Errorf("Diff looked behind the link: %+v", c)
		}
	}
}

func TestDiffCountsOwnersOnlyWhereLayersNameThemAlike(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("giving files away is root's to do")
	}
	lower, upper := tree(t, map[string]string{"f": "same"}), tree(t, map[string]string{"f": "same"})
	if err := os.Chown(filepath.Join(upper, "f"), 1000, 1000); err != nil {
		t.Fatal(err)
	}
	for owners, want := range map[bool]int{true: 1, false: 0} {
		if changes, err := overlay.Diff(upper, []string{lower}, owners); err != nil || len(changes) != want {
			t.Errorf("owners %v: %+v, %v; want %d changes", owners, changes, err, want)
		}
	}
}
