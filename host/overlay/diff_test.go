package overlay_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/host/overlay"

	"golang.org/x/sys/unix"
)

// tree creates files below a new directory: a name ending in / is a directory, content "-> x" a
// symlink, content "whiteout" a deletion, and a name ending in /! makes its directory opaque.
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
	// All files get the same old time, as if they were copied up with their times.
	filepath.WalkDir(dir, func(name string, _ fs.DirEntry, _ error) error {
		ts := []unix.Timespec{{Sec: 1e9}, {Sec: 1e9}}
		return unix.UtimesNanoAt(unix.AT_FDCWD, name, ts, unix.AT_SYMLINK_NOFOLLOW)
	})
	return dir
}

// diff returns the result of Diff, one line per change.
func diff(t *testing.T, upper string, lower []string, o overlay.DiffOptions) []string {
	t.Helper()
	changes, err := overlay.Diff(t.Context(), upper, lower, o)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, c := range changes {
		line := fmt.Sprintf("%s %s %s %d", c.Kind, c.Type, c.Path, c.Size)
		if c.From != "" {
			line += " from " + c.From
		}
		if len(c.What) > 0 {
			line += " " + strings.Join(c.What, ",")
		}
		lines = append(lines, line)
	}
	return lines
}

func TestDiffReportsChanges(t *testing.T) {
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

	got := diff(t, upper, []string{middle, bottom}, overlay.DiffOptions{Owners: true})
	want := []string{
		"deleted file /dir/a 1",
		"deleted dir /dir/sub 0",
		"deleted file /dir/sub/c 1",
		"modified file /edit 3 content",
		"deleted file /gone 1",
		"modified dir /kind 0 content",
		"modified symlink /link 0 content",
		"deleted file /mid 1",
		"added dir /new 0",
		"added dir /new/deep 0",
		"added file /new/deep/file 5",
		"modified file /opq/x 7 content",
		"deleted file /opq/y 1",
		"metadata file /same 4 mode",
	}
	if !slices.Equal(got, want) {
		t.Errorf("Diff = \n%q\nwant\n%q", got, want)
	}
}

func TestDiffDoesNotFollowPlantedLinks(t *testing.T) {
	outside := tree(t, map[string]string{"secret/file": "s"})
	upper := tree(t, map[string]string{"d": "-> " + outside})
	lower := tree(t, map[string]string{"d/secret/file": "x"})
	changes, err := overlay.Diff(t.Context(), upper, []string{lower}, overlay.DiffOptions{Owners: true, Text: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range changes {
		if c.Kind == "added" {
			t.Errorf("Diff followed the link: %+v", c)
		}
	}
}

func TestDiffOwnersOption(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("giving files away is root's to do")
	}
	lower, upper := tree(t, map[string]string{"f": "same"}), tree(t, map[string]string{"f": "same"})
	if err := os.Chown(filepath.Join(upper, "f"), 1000, 1000); err != nil {
		t.Fatal(err)
	}
	for owners, want := range map[bool]int{true: 1, false: 0} {
		if changes, err := overlay.Diff(t.Context(), upper, []string{lower}, overlay.DiffOptions{Owners: owners}); err != nil || len(changes) != want {
			t.Errorf("owners %v: %+v, %v; want %d changes", owners, changes, err, want)
		}
	}
}

func TestDiffReportsWhatDiffers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("giving files away is root's to do")
	}
	files := map[string]string{"content": "a", "mode": "a", "owner": "a", "times": "a", "xattr": "a", "all": "a", "untouched": "a", "link": "-> a", "dir/": "", "busy/new": "x"}
	lower := tree(t, files)
	files["content"], files["all"] = "b", "b"
	upper := tree(t, files)
	os.Remove(filepath.Join(lower, "busy/new"))
	in := func(name string) string { return filepath.Join(upper, name) }
	set := func(name string) error { return unix.Setxattr(in(name), "user.note", []byte("x"), 0) }
	for _, err := range []error{
		os.Chmod(in("mode"), 0o600), os.Lchown(in("owner"), 7, 7), os.Chtimes(in("times"), time.Now(), time.Now()), set("xattr"),
		os.Chmod(in("all"), 0o600), os.Lchown(in("all"), 7, 7), set("all"), os.Lchown(in("link"), 7, 7), os.Chmod(in("dir"), 0o700), set("dir"),
		os.Chtimes(in("busy"), time.Now(), time.Now()), // a new entry changes the time of a directory
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		"modified file /all 1 content,mode,owner,xattrs",
		"added file /busy/new 1",
		"modified file /content 1 content",
		"metadata dir /dir 0 mode,xattrs",
		"metadata symlink /link 0 owner",
		"metadata file /mode 1 mode",
		"metadata file /owner 1 owner",
		"metadata file /times 1 times",
		"metadata file /xattr 1 xattrs",
	}
	if got := diff(t, upper, []string{lower}, overlay.DiffOptions{Owners: true}); !slices.Equal(got, want) {
		t.Errorf("Diff = \n%q\nwant\n%q", got, want)
	}
}

func TestDiffRecognizesRenamesByContent(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("whiteouts are root's to make")
	}
	lower := tree(t, map[string]string{"d/a": "alpha", "d/b": "beta", "twin1": "twin", "twin2": "twin", "empty": "", "kept": "kept!"})
	upper := tree(t, map[string]string{
		"d": "whiteout", "e/a": "alpha", "e/c": "beta", // a renamed directory is reported as deleted and added
		"twin1": "whiteout", "twin2": "whiteout", "x/twin2": "twin", "y": "twin", // a file with the same name is preferred
		"empty": "whiteout", "nothing": "", // empty files are not paired
		"copy": "kept!", // copy of an existing file
	})
	want := []string{
		"added file /copy 5",
		"deleted dir /d 0",
		"added dir /e 0",
		"renamed file /e/a 5 from /d/a",
		"renamed file /e/c 4 from /d/b",
		"deleted file /empty 0",
		"added file /nothing 0",
		"added dir /x 0",
		"renamed file /x/twin2 4 from /twin2",
		"renamed file /y 4 from /twin1",
	}
	if got := diff(t, upper, []string{lower}, overlay.DiffOptions{Owners: true}); !slices.Equal(got, want) {
		t.Errorf("Diff = \n%q\nwant\n%q", got, want)
	}
}

// The upper layer of a real overlay after a session.
func TestDiffOfMountedOverlay(t *testing.T) {
	s := newStage(t)
	lower, upper, work, merged := s.mkdir("lower"), s.mkdir("upper"), s.mkdir("work"), s.mkdir("merged")
	other := s.mkdir("other")
	for name, content := range map[string]string{"moved": "one\n", "moved and edited": "one\ntwo\n", "touched": "x", "opened": "x", "over": "old", "onto": "new", "dir/f": "f"} {
		os.MkdirAll(filepath.Dir(filepath.Join(lower, name)), 0o755)
		s.write(content, lower, name)
	}
	s.must(overlay.Mount(merged, []string{lower, other}, upper, work, overlay.Options{}))
	in := func(name string) string { return filepath.Join(merged, name) }
	edit := func(name, text string) {
		f, err := os.OpenFile(in(name), os.O_WRONLY|os.O_APPEND, 0)
		s.must(err)
		_, err = f.WriteString(text)
		s.must(errors.Join(err, f.Close()))
	}
	s.must(os.Rename(in("moved"), in("moved2")))
	s.must(os.Rename(in("moved and edited"), in("edited")))
	edit("edited", "three\n")
	s.must(os.Chtimes(in("touched"), time.Now(), time.Unix(5, 0)))
	edit("opened", "") // copied up, and the same
	s.must(os.Rename(in("onto"), in("over")))
	s.must(os.RemoveAll(in("dir")))
	s.must(os.Mkdir(in("dir"), 0o755)) // opaque
	s.must(os.WriteFile(in("dir/g"), []byte("g"), 0o644))
	want := []string{
		"deleted file /dir/f 1",
		"added file /dir/g 1",
		"renamed file /edited 14 from /moved and edited content",
		"renamed file /moved2 4 from /moved",
		"deleted file /onto 3",
		"modified file /over 3 content",
		"metadata file /touched 1 times",
	}
	if got := diff(t, upper, []string{lower, other}, overlay.DiffOptions{Owners: true}); !slices.Equal(got, want) {
		t.Errorf("Diff = \n%q\nwant\n%q", got, want)
	}
}

func TestDiffShowsText(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("whiteouts are root's to make")
	}
	lower := tree(t, map[string]string{"edit": "a\nb\nc\n", "gone": "x\n", "bin": "a\x00b", "latin": "caf\xe9", "large": strings.Repeat("a\n", 300<<10), "was link": "-> x", "old name": strings.Repeat("same\n", 9)})
	upper := tree(t, map[string]string{
		"edit": "a\nB\nc\n", "gone": "whiteout", "new": "no newline", "bin": "c\x00d", "latin": "cafe", "large": strings.Repeat("b\n", 300<<10),
		"was link": "file now\n", "a link": "-> /etc/shadow", "a dir/": "", "evil\n+++ b/etc/passwd\n": "evil\n", "old name": "whiteout", "new name": strings.Repeat("same\n", 9),
	})
	unix.Mkfifo(filepath.Join(upper, "a fifo"), 0o600)
	os.Chmod(filepath.Join(upper, "new name"), 0o600)
	changes, err := overlay.Diff(t.Context(), upper, []string{lower}, overlay.DiffOptions{Text: true})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][2]string{
		"/a dir": {}, "/a fifo": {}, "/a link": {},
		"/bin": {1: overlay.Binary}, "/latin": {1: overlay.Binary}, "/large": {1: overlay.TooLarge},
		"/edit":                     {"--- a/edit\n+++ b/edit\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"},
		"/gone":                     {"--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"},
		"/new":                      {"--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+no newline\n\\ No newline at end of file\n"},
		"/was link":                 {"--- /dev/null\n+++ b/was link\n@@ -0,0 +1 @@\n+file now\n"},
		"/new name":                 {},
		"/evil\n+++ b/etc/passwd\n": {"--- /dev/null\n+++ \"b/evil\\n+++ b/etc/passwd\\n\"\n@@ -0,0 +1 @@\n+evil\n"},
	}
	for _, c := range changes {
		if got := [2]string{c.Diff, c.NoDiff}; got != want[c.Path] {
			t.Errorf("%s %q: %q, want %q", c.Kind, c.Path, got, want[c.Path])
		}
		delete(want, c.Path)
	}
	for path := range want {
		t.Errorf("no change of %q is reported", path)
	}
}

func TestDiffTextLimitPerCall(t *testing.T) {
	files := map[string]string{}
	for i := range 20 {
		files[fmt.Sprintf("f%02d", i)] = strings.Repeat("text\n", 90<<10)
	}
	upper, lower := tree(t, files), tree(t, nil)
	after, rounds := "", 0
	for seen := 0; seen < len(files); rounds++ {
		changes, err := overlay.Diff(t.Context(), upper, []string{lower}, overlay.DiffOptions{Text: true, After: after})
		if err != nil || len(changes) != len(files) {
			t.Fatalf("%d changes, %v; want all %d", len(changes), err, len(files))
		}
		for _, c := range changes {
			if c.Path <= after && c.Diff != "" {
				t.Errorf("after %s there is a text for %s", after, c.Path)
			}
			if c.Path > after && c.NoDiff != overlay.Later {
				after, seen = c.Path, seen+1
			}
		}
		if rounds > len(files) {
			t.Fatal("repeated calls do not end")
		}
	}
	if rounds < 2 {
		t.Errorf("all texts in %d calls, want more: 9 MB exceed the limit of one call", rounds)
	}
}

func TestDiffBelow(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("whiteouts are root's to make")
	}
	lower := tree(t, map[string]string{"a/x": "1", "moved": "12345", "ab": "1"})
	upper := tree(t, map[string]string{"a/x": "2", "a/y": "3", "ab": "4", "moved": "whiteout", "b/moved": "12345", "c": "5"})
	for where, want := range map[string]string{
		"/a": "/a/x /a/y", "/a/": "/a/x /a/y", "/a/x": "/a/x", "/moved": "/b/moved", "/b": "/b /b/moved", "/": "/a/x /a/y /ab /b /b/moved /c", "/nowhere": "",
	} {
		changes, err := overlay.Diff(t.Context(), upper, []string{lower}, overlay.DiffOptions{Below: where})
		var got []string
		for _, c := range changes {
			got = append(got, c.Path)
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("below %s: %q, %v; want %s", where, got, err, want)
		}
	}
}

func TestDiffCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := overlay.Diff(ctx, tree(t, map[string]string{"a": "a"}), nil, overlay.DiffOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Diff = %v, want %v", err, context.Canceled)
	}
}

// withoutDevices mounts dir with the options of a volume for layers.
func withoutDevices(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NODEV, ""); err != nil {
		t.Fatal(err)
	}
}

// A jail that changes files during a Diff must not redirect it to files outside of the layers or
// stop it.
func TestDiffDuringHostileChanges(t *testing.T) {
	outside := tree(t, map[string]string{"secret": "the host's secret\n"})
	lower, upper := tree(t, map[string]string{"f": "harmless\n"}), tree(t, map[string]string{"f": "harmless!\n"})
	withoutDevices(t, upper)
	f := filepath.Join(upper, "f")
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, trick := range []func() error{
				func() error { return os.Symlink(filepath.Join(outside, "secret"), f+"~") },
				func() error { return unix.Mkfifo(f+"~", 0o600) },
				func() error { return unix.Mknod(f+"~", unix.S_IFCHR, 0) }, // a whiteout
				func() error { return os.WriteFile(f+"~", []byte("harmless?\n"), 0o644) },
				func() error { return os.Mkdir(f+"~", 0o755) },
			} {
				trick()
				os.RemoveAll(f)
				os.Rename(f+"~", f)
			}
		}
	}()
	for range 2000 {
		changes, err := overlay.Diff(t.Context(), upper, []string{lower}, overlay.DiffOptions{Text: true})
		if err != nil {
			t.Errorf("Diff = %v", err)
			break
		}
		for _, c := range changes {
			if strings.Contains(c.Diff, "secret") {
				t.Errorf("Diff read outside of the layers: %+v", c)
			}
		}
	}
	close(stop)
	<-done
}
