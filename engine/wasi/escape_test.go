package wasi_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"glasshouse/engine/wasi"
)

// A prison is a directory that a guest sees, with the host's secret beside it.
type prison struct {
	*guest
	cell   string // the guest's "/"
	secret string // a file of the host's
}

func imprison(t *testing.T) *prison {
	t.Helper()
	dir := t.TempDir()
	p := &prison{cell: filepath.Join(dir, "cell"), secret: filepath.Join(dir, "secret")}
	for _, d := range []string{p.cell, filepath.Join(dir, "shown")} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for file, content := range map[string]string{p.secret: "secret", filepath.Join(dir, "shown", "file"): "shown"} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.guest = enter(t, wasi.Dir{Host: p.cell, Guest: "/"}, wasi.Dir{Host: filepath.Join(dir, "shown"), Guest: "/shown", ReadOnly: true})
	t.Cleanup(p.untouched)
	return p
}

// untouched fails the test if something outside of the cell has changed.
func (p *prison) untouched() {
	if got, err := os.ReadFile(p.secret); string(got) != "secret" || err != nil {
		p.t.Errorf("the secret is now %q, %v", got, err)
	}
	outside, err := os.ReadDir(filepath.Dir(p.secret))
	if err != nil || len(outside) != 3 {
		p.t.Errorf("beside the cell there is now %v, %v", outside, err)
	}
	shown, err := os.ReadDir(filepath.Join(filepath.Dir(p.secret), "shown"))
	if err != nil || len(shown) != 1 {
		p.t.Errorf("what is only shown is now %v, %v", shown, err)
	}
	if got, err := os.ReadFile(filepath.Join(filepath.Dir(p.secret), "shown", "file")); string(got) != "shown" || err != nil {
		p.t.Errorf("the file that is only shown is now %q, %v", got, err)
	}
}

// attack tries everything on a path that leads out, and fails the test if anything
// succeeds.
func (p *prison) attack(path string) {
	p.t.Helper()
	for _, o := range []opening{
		{lookup: follow, rights: toRead}, {lookup: follow, rights: toWrite}, {lookup: follow, rights: both, how: creat},
		{lookup: follow, rights: toWrite, how: creat | trunc}, {lookup: follow, how: trunc}, {lookup: follow, rights: toWrite, flags: 1}, {lookup: follow, how: dironly},
		{rights: both, how: creat}, {how: trunc},
	} {
		if fd, e := p.openAt(root, path, o); e == ok {
			got, _ := p.read(fd, 100)
			p.write(fd, "owned")
			p.t.Errorf("%q is opened, %+v, and reads %q", path, o, got)
			p.close(fd)
		}
	}
	if st, e := p.stat(follow, path); e == ok {
		p.t.Errorf("%q is looked at: %+v", path, st)
	}
	q, n := p.string(atPath, path)
	if e := p.call("path_filestat_set_times", root, follow, q, n, 1, 1, 5); e == ok {
		p.t.Errorf("the times of %q are set", path)
	}
	for what, e := range map[string]errno{
		"linked, followed":  p.link(follow, path, "stolen"),
		"a directory below": p.mkdir(path + "/new"),
		"a link below":      p.symlink("x", path+"/new"),
		"renamed into":      p.rename("bait", path+"/bait"),
		"unlinked below":    p.unlink(path + "/secret"),
		"removed below":     p.rmdir(path + "/shown"),
	} {
		if e == ok {
			p.t.Errorf("%q: %s", path, what)
		}
	}
}

func TestLinksThatTheGuestMadeLeadNowhere(t *testing.T) {
	p := imprison(t)
	p.create("bait", "x")
	p.mkdir("a")
	p.mkdir("a/b")
	depth := strings.Repeat("../", 30)
	for i, target := range []string{"../secret", "../../secret", depth + "etc/passwd", depth + strings.TrimPrefix(p.secret, "/"), "a/../../secret", "./..//secret", ".."} {
		link := fmt.Sprintf("link%d", i)
		p.want("symlink to "+target, p.symlink(target, link), ok)
		p.attack(link)
		p.want("a link to the link", p.symlink(link, "to"+link), ok)
		p.attack("to" + link)
	}
	for _, target := range []string{p.secret, "/etc/passwd", "/", "/proc/self/root"} {
		p.want("symlink to "+target, p.symlink(target, "absolute"), EPERM)
	}

	p.want("symlink", p.symlink("../..", "a/b/up"), ok)
	p.want("through a link that stays inside", second(p.stat(follow, "a/b/up/bait")), ok)
	p.attack("a/b/up/../secret")
	p.want("a link moved up", p.rename("a/b/up", "up"), ok)
	p.attack("up")
	p.attack("up/secret")
	p.want("a directory with a link moved up", p.symlink("../../secret", "a/b/deep"), ok)
	p.attack("a/b/../b/../../../secret")
	p.rename("a/b", "b")
	p.attack("b/deep")
}

func TestLinksOfTheHostLeadNowhere(t *testing.T) {
	p := imprison(t)
	p.create("bait", "x")
	for name, target := range map[string]string{
		"absolute": p.secret, "passwd": "/etc/passwd", "root": "/", "proc": "/proc/self/root", "fd": "/proc/self/fd", "above": "..", "secret": "../secret", "dangling": "/tmp/glasshouse-must-not-appear",
	} {
		if err := os.Symlink(target, filepath.Join(p.cell, name)); err != nil {
			t.Fatal(err)
		}
		p.attack(name)
		p.attack(name + "/../secret")
		p.attack(name + "/")
	}
	for _, path := range []string{p.secret, "/etc/passwd", "../secret", "bait/../../secret", "./../secret", "shown/../../secret"} {
		p.attack(path)
	}
	if _, err := os.Lstat("/tmp/glasshouse-must-not-appear"); err == nil {
		t.Error("a file was made outside, through a dangling link")
	}
}

func TestWhatIsOnlyShownIsNotChanged(t *testing.T) {
	p := imprison(t)
	p.create("bait", "x")
	const shown = root + 1
	at := func(name, path string) errno {
		q, n := p.string(atPath, path)
		return p.call(name, shown, q, n)
	}
	for _, c := range []struct {
		what      string
		got, want errno
	}{
		{"write", second(p.openAt(shown, "file", opening{rights: both})), EROFS},
		{"empty", second(p.openAt(shown, "file", opening{how: trunc})), EROFS},
		{"make", second(p.openAt(shown, "new", opening{how: creat})), EROFS},
		{"make what is there", second(p.openAt(shown, "file", opening{how: creat | excl})), EEXIST},
		{"write what is not there", second(p.openAt(shown, "no", opening{rights: both})), ENOENT},
		{"mkdir", at("path_create_directory", "new"), EROFS},
		{"rmdir", at("path_remove_directory", "new"), EROFS},
		{"unlink", at("path_unlink_file", "file"), EROFS},
		{"rename out", p.renameAt(shown, "file", root, "file"), EROFS},
		{"rename in", p.renameAt(root, "bait", shown, "bait"), EROFS},
		{"link out, to write it there", p.linkAt(nofollow, shown, "file", root, "file"), EROFS},
		{"link in", p.linkAt(nofollow, root, "bait", shown, "bait"), EROFS},
	} {
		p.want(c.what, c.got, c.want)
	}
	q, n := p.string(atPath, "file")
	p.want("set times", p.call("path_filestat_set_times", shown, 0, q, n, 1, 1, 5), EROFS)
	fd, e := p.openAt(shown, "file", opening{rights: toRead})
	p.want("read", e, ok)
	if got, _ := p.read(fd, 10); got != "shown" {
		t.Errorf("it reads %q", got)
	}
	p.want("set times by descriptor", p.call("fd_filestat_set_times", fd, 1, 1, 5), EROFS)
	p.want("set size by descriptor", p.call("fd_filestat_set_size", fd, 0), EINVAL)
	p.want("allocate by descriptor", p.call("fd_allocate", fd, 0, 100), EBADF)
	dir, e := p.openAt(shown, ".", opening{how: dironly})
	p.want("open the directory itself", e, ok)
	p.want("make through it", second(p.openAt(dir, "new", opening{how: creat})), EROFS)
	p.want("renumber it", p.call("fd_renumber", dir, root), ok)
	p.want("make through the number of the other", second(p.openAt(root, "new", opening{how: creat})), EROFS)
}

// The guest swaps a directory for a link out, while another of its instances opens
// what lies behind it.
func TestAPathIsSwappedWhileItIsOpened(t *testing.T) {
	p := imprison(t)
	if err := os.Mkdir(filepath.Join(p.cell, "dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.cell, "dir", "secret"), []byte("harmless"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("..", filepath.Join(p.cell, "out")); err != nil {
		t.Fatal(err)
	}
	swapper := enter(t, wasi.Dir{Host: p.cell, Guest: "/"})
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			swapper.rename("dir", "away")
			swapper.rename("out", "dir")
			swapper.rename("dir", "out")
			swapper.rename("away", "dir")
		}
	})
	opened, out := 0, 0
	for range 4000 {
		if fd, e := p.openAt(root, "dir/secret", opening{lookup: follow, rights: both}); e == ok {
			opened++
			if got, _ := p.read(fd, 100); got != "harmless" {
				out++
				t.Errorf("the secret is read: %q", got)
			}
			p.close(fd)
		}
		if e := p.symlink("x", "dir/planted"); e == ok {
			p.unlink("dir/planted")
			p.unlink("away/planted")
		}
		if out > 0 {
			break
		}
	}
	stop.Store(true)
	wg.Wait()
	t.Logf("opened %d of 4000 times", opened)
}

func TestDevicesPipesAndSocketsOfTheHostAreNobodys(t *testing.T) {
	p := imprison(t)
	if err := syscall.Mkfifo(filepath.Join(p.cell, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.refused("pipe", opening{rights: toRead}, EACCES)
	p.refused("pipe", opening{rights: both}, EACCES)
	if e := second(p.openAt(root, "pipe", opening{rights: toWrite})); e == ok {
		t.Error("a pipe is opened to be written")
	}
	devices := enter(t, wasi.Dir{Host: "/dev", Guest: "/dev"})
	for _, device := range []string{"tty", "kmsg", "mem", "console"} {
		if fd, e := devices.openAt(root, device, opening{rights: toRead}); e == ok {
			t.Errorf("/dev/%s is opened", device)
			devices.close(fd)
		}
	}
	null := devices.open("null", opening{rights: both})
	if n, e := devices.write(null, "gone"); n != 4 || e != ok {
		t.Errorf("wrote %d to /dev/null, %v", n, e)
	}
	if got, e := devices.read(devices.open("zero", opening{rights: toRead}), 4); got != "\x00\x00\x00\x00" || e != ok {
		t.Errorf("read %q from /dev/zero, %v", got, e)
	}
}

func TestProcIsNoWayOut(t *testing.T) {
	g := enter(t, wasi.Dir{Host: "/proc/self", Guest: "/"})
	for _, path := range []string{"root/etc/passwd", "cwd", "exe", "fd/0", "task/../root/etc/passwd"} {
		if fd, e := g.openAt(root, path, opening{lookup: follow, rights: toRead}); e == ok {
			t.Errorf("%s is opened", path)
			g.close(fd)
		}
	}
}

func TestAMountDoesNotLeadOutOfItsWorkspace(t *testing.T) {
	dir := t.TempDir()
	workspace := filepath.Join(dir, "workspace")
	if err := os.MkdirAll(filepath.Join(workspace, "src"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"etc": "/etc", "up": "..", "inside": "src"} {
		if err := os.Symlink(target, filepath.Join(workspace, name)); err != nil {
			t.Fatal(err)
		}
	}
	for host, want := range map[string]bool{"src": true, "inside": true, "etc": false, "up": false, "..": false, "/etc": false, "no": false} {
		p, err := wasi.New(wasi.Options{Dirs: []wasi.Dir{{Below: workspace, Host: host, Guest: "/x"}}})
		if (err == nil) != want {
			t.Errorf("mount %s: %v", host, err)
		}
		if err == nil {
			p.Close()
		}
	}
}
