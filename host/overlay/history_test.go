package overlay_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"glasshouse/host/overlay"
)

// A history is a random sequence of changes of a few files over several layers. There are few
// names, so that layers overlap.
type history struct {
	*stage
	rand *rand.Rand
	dir  string
	n    int // directories made
}

func newHistory(s *stage, seed uint64) *history {
	h := &history{stage: s, rand: rand.New(rand.NewPCG(seed, 0)), dir: s.mkdir(fmt.Sprint("history", seed))}
	s.t.Cleanup(func() { os.RemoveAll(h.dir) })
	return h
}

func (h *history) new() string {
	h.n++
	dir := filepath.Join(h.dir, fmt.Sprint(h.n))
	h.must(os.Mkdir(dir, 0o755))
	return dir
}

func (h *history) pick(root string) string {
	path := root
	for range 1 + h.rand.IntN(3) {
		path = filepath.Join(path, string(rune('a'+h.rand.IntN(4))))
	}
	return path
}

// happen performs n operations below root. Many of them fail, which is ignored.
func (h *history) happen(root string, n int) {
	for range n {
		at, other := h.pick(root), h.pick(root)
		switch h.rand.IntN(16) {
		case 0, 1, 2:
			os.MkdirAll(filepath.Dir(at), 0o755)
			os.WriteFile(at, fmt.Append(nil, "content ", h.rand.IntN(5), "\nline\n"), 0o644)
		case 3, 4:
			os.MkdirAll(at, 0o755)
		case 5:
			os.RemoveAll(at)
		case 6:
			os.Remove(at)
		case 7, 8:
			os.Rename(at, other)
		case 9:
			os.Symlink(filepath.Base(other), at)
		case 10:
			if fi, err := os.Lstat(at); err == nil && fi.Mode().Type() != os.ModeSymlink { // its target may be outside of the tree
				os.Chmod(at, os.FileMode(0o600+h.rand.IntN(0o100))|[]os.FileMode{0, os.ModeSetgid}[h.rand.IntN(2)])
			}
		case 11:
			os.Lchown(at, h.rand.IntN(3), h.rand.IntN(3))
		case 12:
			unix.UtimesNanoAt(unix.AT_FDCWD, at, []unix.Timespec{{Sec: 1}, {Sec: int64(h.rand.IntN(3)), Nsec: 5}}, unix.AT_SYMLINK_NOFOLLOW)
		case 13:
			unix.Lsetxattr(at, "user.note", fmt.Append(nil, h.rand.IntN(3)), 0)
		case 14:
			os.Link(at, other)
		case 15: // a directory where there was none, or a file where there was one
			os.RemoveAll(at)
			if h.rand.IntN(2) == 0 {
				os.Mkdir(at, 0o755)
				os.WriteFile(filepath.Join(at, "a"), []byte("in a new directory\n"), 0o644)
			} else {
				os.WriteFile(at, []byte("instead of a directory\n"), 0o644)
			}
		}
	}
}

// base creates a directory of files below all layers.
func (h *history) base() string {
	dir := h.new()
	h.happen(dir, 25)
	return dir
}

// layer creates an upper layer by changes on the lower ones.
func (h *history) layer(lower []string, things int) string {
	upper, work, merged := h.new(), h.new(), h.new()
	h.must(overlay.Mount(merged, lower, upper, work, overlay.Options{}))
	h.happen(merged, things)
	h.must(overlay.Unmount(merged))
	return upper
}

// shows returns the merged tree of a stack.
func (h *history) shows(lower ...string) (all map[string]string) {
	h.t.Helper()
	h.merged(lower, func(merged string) { all = look(h.t, merged, false) })
	return all
}

func (h *history) merged(lower []string, do func(merged string)) {
	h.t.Helper()
	merged := h.new()
	if len(lower) == 1 {
		lower = append(lower, h.new())
	}
	h.must(overlay.Mount(merged, lower, "", "", overlay.Options{}))
	defer func() { h.must(overlay.Unmount(merged)) }()
	do(merged)
}

// histories is the number of tested histories.
func histories() uint64 {
	if os.Getenv("GLASSHOUSE_TEST") == "all" {
		return 200
	}
	return 60
}

func TestFlattenIsEquivalent(t *testing.T) {
	s := newStage(t)
	for seed := range histories() {
		h := newHistory(s, seed)
		base, other := h.base(), h.base()
		var layers []string // topmost first
		for range 2 + h.rand.IntN(4) {
			layers = append([]string{h.layer(append(layers, base), 5+h.rand.IntN(25))}, layers...)
		}
		flat := h.new()
		h.must(overlay.Flatten(t.Context(), layers, flat))
		ok := same(t, "over its base", h.shows(flat, base), h.shows(append(layers, base)...))
		ok = same(t, "over another base", h.shows(flat, other), h.shows(append(layers, other)...)) && ok
		ok = same(t, "over nothing", h.shows(flat), h.shows(layers...)) && ok

		// Flatten some of the layers, and then the result together with the other layers.
		from := h.rand.IntN(len(layers))
		to := from + 1 + h.rand.IntN(len(layers)-from)
		some := h.new()
		h.must(overlay.Flatten(t.Context(), layers[from:to], some))
		mixed := append(append(append([]string{}, layers[:from]...), some), layers[to:]...)
		ok = same(t, fmt.Sprintf("layers %d to %d of %d", from, to, len(layers)), h.shows(append(mixed, base)...), h.shows(append(layers, base)...)) && ok
		twice := h.new()
		h.must(overlay.Flatten(t.Context(), mixed, twice))
		ok = same(t, "flattened twice", h.shows(twice, base), h.shows(flat, base)) && ok

		// The result can be used as any other layer.
		ok = same(t, "under an upper", h.upper(flat, base), h.upper(append(layers, base)...)) && ok
		if !ok {
			t.Fatalf("seed %d", seed)
		}
		s.must(os.RemoveAll(h.dir))
	}
}

// upper returns the merged tree of a stack after the same changes on it.
func (h *history) upper(lower ...string) map[string]string {
	kept := h.rand
	h.rand = rand.New(rand.NewPCG(7, 7))
	defer func() { h.rand = kept }()
	all := h.shows(append([]string{h.layer(lower, 30)}, lower...)...)
	for path, line := range all { // times are current
		all[path] = line[:len("100644 0:0")]
	}
	return all
}

func TestFlattenKeepsHardLinks(t *testing.T) {
	s := newStage(t)
	h := newHistory(s, 0)
	base := h.new()
	lower := h.new()
	s.write("one", lower, "a")
	s.must(os.Link(lower+"/a", lower+"/b"))
	s.must(os.Link(lower+"/a", lower+"/c"))
	upper := h.new()
	s.write("another", upper, "c")
	flat := h.new()
	s.must(overlay.Flatten(t.Context(), []string{upper, lower}, flat))
	a, n := inodeOf(t, flat+"/a")
	b, _ := inodeOf(t, flat+"/b")
	c, _ := inodeOf(t, flat+"/c")
	if a != b || a == c || n != 2 {
		t.Errorf("inodes are %d, %d and %d, with %d names; want the first two alike, with two", a, b, c, n)
	}
	same(t, "flattened", h.shows(flat, base), h.shows(upper, lower, base))
}

func TestFlattenWithoutLayers(t *testing.T) {
	if err := overlay.Flatten(t.Context(), nil, t.TempDir()); err == nil {
		t.Error("Flatten of no layers succeeded")
	}
	if err := overlay.Flatten(t.Context(), []string{t.TempDir(), filepath.Join(t.TempDir(), "none")}, t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Flatten of a layer that does not exist = %v", err)
	}
}
