package overlay_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"glasshouse/host/overlay"
)

// bruteForce compares two trees by looking at everything.
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

// compared is what Compare says, in the words of bruteForce: a renamed file is
// one that is gone and one that has come.
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

func TestCompareSaysWhatLookingAtEverythingSays(t *testing.T) {
	s := newStage(t)
	renamed := 0
	for seed := range uint64(300) {
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
	if renamed < 100 {
		t.Errorf("%d files were renamed in all histories; want more, they rename all the time", renamed)
	}
}
