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

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/overlay"
)

// bruteForce compares two trees by reading all files.
func bruteForce(t testing.TB, a, b string) (changes []string) {
	t.Helper()
	was, now := walk(t, a), walk(t, b)
	for path, x := range was {
		if y, ok := now[path]; !ok {
			changes = append(changes, fmt.Sprintf("deleted %s", path))
		} else if what := x.differences(y); len(what) > 0 {
			kind := "metadata"
			if what[0] == "content" {
				kind = "modified"
			}
			changes = append(changes, fmt.Sprintf("%s %s %s", kind, path, strings.Join(what, ",")))
		}
	}
	for path := range now {
		if _, ok := was[path]; !ok {
			changes = append(changes, fmt.Sprintf("added %s", path))
		}
	}
	slices.Sort(changes)
	return changes
}

type seen struct {
	st              unix.Stat_t
	content, xattrs string
}

func walk(t testing.TB, top string) map[string]seen {
	all := map[string]seen{}
	err := filepath.WalkDir(top, func(name string, _ fs.DirEntry, err error) error {
		if err != nil || name == top {
			return err
		}
		var s seen
		if err := unix.Lstat(name, &s.st); err != nil {
			return err
		}
		switch s.st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			s.content = string(b)
		case unix.S_IFLNK:
			s.content, err = os.Readlink(name)
		}
		s.xattrs = xattrsOf(t, name, false)
		all[strings.TrimPrefix(name, top)] = s
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func (x seen) differences(y seen) (what []string) {
	if x.st.Mode&unix.S_IFMT != y.st.Mode&unix.S_IFMT {
		return []string{"content"}
	}
	dir := x.st.Mode&unix.S_IFMT == unix.S_IFDIR
	for _, w := range []struct {
		word   string
		differ bool
	}{
		{"content", x.content != y.content},
		{"mode", x.st.Mode != y.st.Mode},
		{"owner", x.st.Uid != y.st.Uid || x.st.Gid != y.st.Gid},
		{"times", !dir && x.content == y.content && x.st.Mtim != y.st.Mtim},
		{"xattrs", x.xattrs != y.xattrs},
	} {
		if w.differ {
			what = append(what, w.word)
		}
	}
	return what
}

// compared returns the result of Compare in the format of bruteForce: a renamed file is a deleted
// and an added one.
func compared(t testing.TB, a, b overlay.Stack) (changes []string, renamed int) {
	t.Helper()
	found, err := overlay.Compare(t.Context(), a, b, overlay.DiffOptions{Owners: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range found {
		switch c.Kind {
		case "renamed":
			changes = append(changes, "deleted "+c.From, "added "+c.Path)
			renamed++
		case "added", "deleted":
			changes = append(changes, c.Kind+" "+c.Path)
		default:
			changes = append(changes, fmt.Sprintf("%s %s %s", c.Kind, c.Path, strings.Join(c.What, ",")))
		}
	}
	slices.Sort(changes)
	return changes, renamed
}

func TestCompareMatchesBruteForce(t *testing.T) {
	s := newStage(t)
	renamed := 0
	for seed := range histories() {
		h := newHistory(s, 1000+seed)
		base := []string{h.base(), h.base()}
		grow := func(layers []string, n int) []string {
			for range n {
				layers = append([]string{h.layer(slices.Concat(layers, base), 5+h.rand.IntN(20))}, layers...)
			}
			return layers
		}
		shared := grow(nil, h.rand.IntN(3))
		a, b := grow(shared, h.rand.IntN(4)), grow(shared, h.rand.IntN(4))
		for what, pair := range map[string][2][]string{
			"siblings": {a, b}, "and back": {b, a}, "to a descendant": {shared, a}, "to an ancestor": {a, shared}, "to itself": {a, a}, "from the base": {nil, b},
		} {
			from, to := pair[0], pair[1]
			var want []string
			h.merged(slices.Concat(from, base), func(x string) {
				h.merged(slices.Concat(to, base), func(y string) { want = bruteForce(t, x, y) })
			})
			got, n := compared(t, overlay.Stack{Layers: from, Base: base}, overlay.Stack{Layers: to, Base: base})
			renamed += n
			if !slices.Equal(got, want) {
				t.Errorf("seed %d, %s: Compare says\n%s\nwant\n%s", seed, what, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
		if t.Failed() {
			return
		}
		s.must(os.RemoveAll(h.dir))
	}
	if renamed < int(histories())/2 {
		t.Errorf("%d files were renamed in all histories; want more, they rename all the time", renamed)
	}
}

// A file that one layer changes and another renames is reported as the same file.
func TestCompareFollowsFileThroughLayers(t *testing.T) {
	s := newStage(t)
	h := newHistory(s, 0)
	base := h.new()
	for _, name := range []string{"a", "b", "c", "d"} {
		s.write("the file "+name+"\n", base, name)
	}
	edit := func(path, text string) {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		s.must(err)
		_, err = f.WriteString(text)
		s.must(err)
		s.must(f.Close())
	}
	var layers []string
	step := func(do func(in func(string) string)) {
		upper, work, merged := h.new(), h.new(), h.new()
		s.must(overlay.Mount(merged, slices.Concat(layers, []string{base}), upper, work, overlay.Options{}))
		do(func(name string) string { return filepath.Join(merged, name) })
		s.must(overlay.Unmount(merged))
		layers = append([]string{upper}, layers...)
	}
	step(func(in func(string) string) {
		s.must(os.Rename(in("a"), in("a2")))
		edit(in("b"), "changed\n")
		s.must(os.Rename(in("c"), in("c2")))
	})
	step(func(in func(string) string) {
		edit(in("a2"), "changed\n")
		s.must(os.Rename(in("b"), in("b2")))
		s.must(os.Rename(in("c2"), in("c3")))
		s.must(os.Remove(in("d")))
		s.must(os.WriteFile(in("d2"), []byte("another\n"), 0o644))
	})
	step(func(in func(string) string) {
		edit(in("b2"), "changed again\n")
		edit(in("c3"), "changed\n")
	})
	lines := func(from, to overlay.Stack) (lines []string) {
		changes, err := overlay.Compare(t.Context(), from, to, overlay.DiffOptions{Owners: true, Text: true})
		s.must(err)
		for _, c := range changes {
			lines = append(lines, strings.TrimSpace(strings.Join([]string{c.Kind, c.Path, c.From, strings.Join(c.What, ",")}, " ")))
			if strings.HasPrefix(c.Kind, "renamed") && !strings.Contains(c.Diff, "changed") {
				t.Errorf("of %s the text is %q", c.Path, c.Diff)
			}
		}
		return lines
	}
	was, now := overlay.Stack{Base: []string{base}}, overlay.Stack{Layers: layers, Base: []string{base}}
	if got, want := lines(was, now), []string{"renamed /a2 /a content", "renamed /b2 /b content", "renamed /c3 /c content", "deleted /d", "added /d2"}; !slices.Equal(got, want) {
		t.Errorf("Compare = %q, want %q", got, want)
	}
	if got, want := lines(now, was), []string{"renamed /a /a2 content", "renamed /b /b2 content", "renamed /c /c3 content", "added /d", "deleted /d2"}; !slices.Equal(got, want) {
		t.Errorf("back, Compare = %q, want %q", got, want)
	}
}

func TestCompareReadsOnlyUnsharedLayers(t *testing.T) {
	s := newStage(t)
	h := newHistory(s, 0)
	base := h.new()
	s.write("x", base, "shared")
	a, b := h.new(), h.new()
	s.write("a", a, "own")
	s.write("b", b, "own")
	// Compare does not read a base, so it does not detect differences between its two paths.
	got, _ := compared(t, overlay.Stack{Layers: []string{a}, Base: []string{base}}, overlay.Stack{Layers: []string{b}, Base: []string{base}})
	if want := []string{"modified /own content"}; !slices.Equal(got, want) {
		t.Errorf("Compare = %q, want %q", got, want)
	}
	_, err := overlay.Compare(t.Context(), overlay.Stack{Base: []string{base}}, overlay.Stack{Base: []string{a}}, overlay.DiffOptions{})
	if !errors.Is(err, fault.Invalid) {
		t.Errorf("Compare on two bases = %v, want invalid", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := overlay.Compare(ctx, overlay.Stack{}, overlay.Stack{Layers: []string{a}}, overlay.DiffOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Compare = %v, want %v", err, context.Canceled)
	}
}

// Root's overlays and Compare ignore the opaque mark that any program can set.
func TestCompareIgnoresUserOpaqueMark(t *testing.T) {
	s := newStage(t)
	h := newHistory(s, 0)
	base := h.new()
	s.must(os.Mkdir(base+"/d", 0o755))
	s.write("x", base, "d/kept")
	layer := h.layer([]string{base}, 0)
	s.must(os.Mkdir(layer+"/d", 0o755))
	s.must(unix.Setxattr(layer+"/d", "user.overlay.opaque", []byte("y"), 0))
	got, _ := compared(t, overlay.Stack{Base: []string{base}}, overlay.Stack{Layers: []string{layer}, Base: []string{base}})
	if len(got) != 0 && !slices.Equal(got, []string{"metadata /d times"}) {
		t.Errorf("Compare = %q, want nothing: the overlay shows all", got)
	}
	flat := h.new()
	s.must(overlay.Flatten(t.Context(), []string{layer}, flat))
	same(t, "flattened", h.shows(flat, base), h.shows(layer, base))
}

func TestCompareRejectsTooLongPaths(t *testing.T) {
	s := newStage(t)
	layer := s.mkdir("layer")
	s.deep(layer, 4096, "deep")
	if _, err := overlay.Compare(t.Context(), overlay.Stack{}, overlay.Stack{Layers: []string{layer}}, overlay.DiffOptions{}); !errors.Is(err, fault.TooLarge) {
		t.Errorf("Compare = %v, want too large", err)
	}
}

func TestCompareLimitsMemory(t *testing.T) {
	dir := t.TempDir()
	for n := range 100 {
		if err := os.MkdirAll(filepath.Join(dir, "upper", fmt.Sprint(n), "below"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	now := overlay.Stack{Layers: []string{filepath.Join(dir, "upper")}}
	if changes, err := overlay.Compare(t.Context(), overlay.Stack{}, now, overlay.DiffOptions{Memory: 1 << 20}); err != nil || len(changes) != 200 {
		t.Errorf("%d changes, %v, want 200", len(changes), err)
	}
	if _, err := overlay.Compare(t.Context(), overlay.Stack{}, now, overlay.DiffOptions{Memory: 50 << 10}); !errors.Is(err, fault.TooLarge) {
		t.Errorf("200 changes in 50 KiB = %v, want too large", err)
	}
}
