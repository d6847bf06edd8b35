package wasi_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"glasshouse/capability/engine/wasi"
)

const (
	room    = 10_000
	perName = 512
)

// counted returns a guest whose directory has a small quota.
func counted(t *testing.T) (*guest, *wasi.Volume, string) {
	t.Helper()
	dir := t.TempDir()
	v, err := wasi.NewVolume(dir, room)
	if err != nil {
		t.Fatal(err)
	}
	return enter(t, wasi.Dir{Host: dir, Guest: "/", Volume: v}), v, dir
}

// agrees fails the test if the charged bytes differ from the content of the directory.
func agrees(t *testing.T, what string, v *wasi.Volume, dir string) {
	t.Helper()
	fresh, err := wasi.NewVolume(dir, room)
	if err != nil {
		t.Fatal(err)
	}
	if v.Used() != fresh.Used() {
		t.Errorf("%s: %d bytes are charged, want %d", what, v.Used(), fresh.Used())
	}
}

func TestVolumeLimit(t *testing.T) {
	big := strings.Repeat("x", room)
	for name, fill := range map[string]func(g *guest, fd uint64) errno{
		"write": func(g *guest, fd uint64) errno { return second(g.write(fd, big)) },
		"pwrite": func(g *guest, fd uint64) errno {
			at, n := g.vector(1)
			return g.call("fd_pwrite", fd, at, n, room, atResult)
		},
		"truncate": func(g *guest, fd uint64) errno { return g.call("fd_filestat_set_size", fd, 1<<40) },
		"allocate": func(g *guest, fd uint64) errno { return g.call("fd_allocate", fd, 0, room) },
		"seek and write": func(g *guest, fd uint64) errno {
			g.seek(fd, room, 0)
			return second(g.write(fd, "x"))
		},
		"append": func(g *guest, fd uint64) errno {
			g.want("append", g.call("fd_fdstat_set_flags", fd, 1), ok)
			g.write(fd, big[:room-perName-10])
			return second(g.write(fd, "more than ten bytes"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, v, dir := counted(t)
			fd := g.open("file", opening{how: creat, rights: both})
			if e := fill(g, fd); e != EDQUOT {
				t.Errorf("%v, want EDQUOT", e)
			}
			if !g.process.Full() {
				t.Error("Full = false after EDQUOT")
			}
			agrees(t, name, v, dir)
		})
	}
}

func TestVolumeChargesNames(t *testing.T) {
	for name, make := range map[string]func(g *guest, name string) errno{
		"files": func(g *guest, name string) errno {
			fd, e := g.openAt(root, name, opening{how: creat})
			if e == ok {
				g.close(fd)
			}
			return e
		},
		"files that must be new": func(g *guest, name string) errno { return second(g.openAt(root, name, opening{how: creat | excl})) },
		"directories":            func(g *guest, name string) errno { return g.mkdir(name) },
		"symbolic links":         func(g *guest, name string) errno { return g.symlink("x", name) },
		"hard links":             func(g *guest, name string) errno { return g.link(nofollow, "file", name) },
	} {
		t.Run(name, func(t *testing.T) {
			g, v, dir := counted(t)
			g.create("file", "")
			n := 0
			e := ok
			for ; e == ok && n < 1000; n++ {
				e = make(g, fmt.Sprint("name", n))
			}
			if e != EDQUOT || n > room/perName {
				t.Errorf("after %d: %v", n, e)
			}
			agrees(t, name, v, dir)
		})
	}
}

func TestVolumeRemoveFreesSpace(t *testing.T) {
	g, v, dir := counted(t)
	half := strings.Repeat("x", room/2)
	for what, free := range map[string]func(){
		"unlink":      func() { g.unlink("file") },
		"truncate":    func() { g.create("file", "") },
		"rename over": func() { g.create("small", "x"); g.rename("small", "file") },
		"two names": func() {
			g.link(nofollow, "file", "other")
			g.unlink("file")
			g.create("file", strings.Repeat("y", 1000))
			g.unlink("other")
		},
		"set size": func() {
			fd := g.open("file", opening{rights: toWrite})
			g.call("fd_filestat_set_size", fd, 10)
			g.close(fd)
		},
	} {
		for range 5 {
			g.create("file", half)
			g.mkdir("dir")
			free()
			g.rmdir("dir")
			agrees(t, what, v, dir)
		}
		g.unlink("file")
	}
}

func TestVolumeCountsDeletedOpenFile(t *testing.T) {
	g, v, dir := counted(t)
	fd := g.open("file", opening{how: creat, rights: both})
	g.write(fd, strings.Repeat("x", 6000))
	g.want("unlink", g.unlink("file"), ok)
	if got := v.Used(); got != 6000 {
		t.Errorf("%d bytes are charged, want 6000", got)
	}
	other := g.open("other", opening{how: creat, rights: both})
	_, e := g.write(other, strings.Repeat("x", 6000))
	g.want("there is no room for another", e, EDQUOT)
	g.close(fd)
	_, e = g.write(other, strings.Repeat("x", 6000))
	g.want("now there is", e, ok)
	agrees(t, "closed", v, dir)
}

func TestVolumeConcurrentWriters(t *testing.T) {
	dir := t.TempDir()
	v, err := wasi.NewVolume(dir, room)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for n := range 8 {
		g := enter(t, wasi.Dir{Host: dir, Guest: "/", Volume: v})
		wg.Go(func() {
			for i := range 50 {
				name := fmt.Sprint("file", (n+i)%5)
				if fd, e := g.openAt(root, name, opening{how: creat, rights: both, flags: 1}); e == ok {
					g.write(fd, strings.Repeat("x", 333))
					g.call("fd_close", fd)
				}
				if i%7 == 0 {
					g.unlink(name)
				}
				if i%11 == 0 {
					g.rename(name, fmt.Sprint("file", i%5))
				}
			}
		})
	}
	wg.Wait()
	agrees(t, "after many writers", v, dir)
	if v.Used() > room {
		t.Errorf("%d bytes are charged with a limit of %d", v.Used(), room)
	}
}

func TestRenameBetweenVolumes(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	volume := func(dir string) *wasi.Volume {
		v, err := wasi.NewVolume(dir, room)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if err := os.WriteFile(filepath.Join(a, "file"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	g := enter(t, wasi.Dir{Host: a, Guest: "/a", Volume: volume(a)}, wasi.Dir{Host: b, Guest: "/b", Volume: volume(b)})
	g.want("rename", g.renameAt(root, "file", root+1, "file"), EXDEV)
	g.want("link", g.linkAt(nofollow, root, "file", root+1, "file"), EXDEV)
}
