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

	"glasshouse/capability/engine/wasi"
)

// A prison is a guest with a root directory (the cell), and a secret file of the host next to
// the cell.
type prison struct {
	*guest
	cell   string // the guest's "/" on the host
	secret string // a file of the host outside of the cell
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

// untouched fails the test if a file outside of the cell has changed.
func (p *prison) untouched() {
	if got, err := os.ReadFile(p.secret); string(got) != "secret" || err != nil {
		p.t.Errorf("the secret is now %q, %v", got, err)
	}
	outside, err := os.ReadDir(filepath.Dir(p.secret))
	if err != nil || len(outside) != 3 {
		p.t.Errorf("entries outside of the cell: %v, %v", outside, err)
	}
	shown, err := os.ReadDir(filepath.Join(filepath.Dir(p.secret), "shown"))
	if err != nil || len(shown) != 1 {
		p.t.Errorf("entries of the read-only directory: %v, %v", shown, err)
	}
	if got, err := os.ReadFile(filepath.Join(filepath.Dir(p.secret), "shown", "file")); string(got) != "shown" || err != nil {
		p.t.Errorf("file in the read-only directory: %q, %v", got, err)
	}
}

// spy tries to read and stat a path that leads out of the cell. It is used for paths to real
// files of the host, which attack could damage if the code under test is broken.
func (p *prison) spy(path string) {
	p.t.Helper()
	for _, o := range []opening{{lookup: follow, rights: toRead}, {rights: toRead}, {lookup: follow, how: dironly}} {
		if fd, e := p.openAt(root, path, o); e == ok {
			got, _ := p.read(fd, 10)
			p.t.Errorf("open of %q with %+v succeeded and read %q", path, o, got)
			p.close(fd)
		}
	}
	if st, e := p.stat(follow, path); e == ok {
		p.t.Errorf("stat of %q succeeded: %+v", path, st)
	}
}

// attack tries all operations on a path that leads out of the cell to a file of the test. It
// fails the test if an operation succeeds.
func (p *prison) attack(path string) {
	p.t.Helper()
	p.spy(path)
	for _, o := range []opening{
		{lookup: follow, rights: toWrite}, {lookup: follow, rights: both, how: creat},
		{lookup: follow, rights: toWrite, how: creat | trunc}, {lookup: follow, how: trunc}, {lookup: follow, rights: toWrite, flags: 1},
		{rights: both, how: creat}, {how: trunc},
	} {
		if fd, e := p.openAt(root, path, o); e == ok {
			got, _ := p.read(fd, 100)
			p.write(fd, "owned")
			p.t.Errorf("open of %q with %+v succeeded and read %q", path, o, got)
			p.close(fd)
		}
	}
	q, n := p.string(atPath, path)
	if e := p.call("path_filestat_set_times", root, follow, q, n, 1, 1, 5); e == ok {
		p.t.Errorf("setting the times of %q succeeded", path)
	}
	for what, e := range map[string]errno{
		"link to it":       p.link(follow, path, "stolen"),
		"mkdir below it":   p.mkdir(path + "/new"),
		"symlink below it": p.symlink("x", path+"/new"),
		"rename into it":   p.rename("bait", path+"/bait"),
		"unlink below it":  p.unlink(path + "/secret"),
		"rmdir below it":   p.rmdir(path + "/shown"),
	} {
		if e == ok {
			p.t.Errorf("%q: %s succeeded", path, what)
		}
	}
}

func TestGuestSymlinksCannotEscape(t *testing.T) {
	p := imprison(t)
	p.create("bait", "x")
	p.mkdir("a")
	p.mkdir("a/b")
	depth := strings.Repeat("../", 30)
	p.want("symlink", p.symlink(depth+"etc/passwd", "passwd"), ok)
	p.spy("passwd")
	for i, target := range []string{"../secret", "../../secret", depth + strings.TrimPrefix(p.secret, "/"), "a/../../secret", "./..//secret", ".."} {
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

func TestHostSymlinksCannotEscape(t *testing.T) {
	p := imprison(t)
	p.create("bait", "x")
	link := func(name, target string) {
		if err := os.Symlink(target, filepath.Join(p.cell, name)); err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Dir(p.secret)
	for name, target := range map[string]string{
		"absolute": p.secret, "outside": outside, "proc": "/proc/self/root" + outside, "above": "..", "secret": "../secret", "dangling": filepath.Join(outside, "new"),
	} {
		link(name, target)
		p.attack(name)
		p.attack(name + "/../secret")
		p.attack(name + "/")
	}
	for name, target := range map[string]string{"passwd": "/etc/passwd", "root": "/", "self": "/proc/self/root", "fd": "/proc/self/fd"} {
		link(name, target)
		p.spy(name)
		p.spy(name + "/")
		p.spy(name + "/etc/passwd")
	}
	p.spy("/etc/passwd")
	for _, path := range []string{p.secret, "../secret", "bait/../../secret", "./../secret", "shown/../../secret"} {
		p.attack(path)
	}
}

func TestReadOnlyDirectory(t *testing.T) {
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

// TestOpenSymlinkRace replaces a directory with a symbolic link that leads out, while another
// instance opens a file below it.
func TestOpenSymlinkRace(t *testing.T) {
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
				t.Errorf("the guest has read the secret: %q", got)
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

// TestCreateAndRemoveSymlinkRace creates, renames and removes names below a directory that is
// concurrently replaced with a symbolic link that leads out. Each operation must take effect
// inside the cell or fail.
func TestCreateAndRemoveSymlinkRace(t *testing.T) {
	p := imprison(t)
	p.mkdir("dir")
	p.symlink("..", "out")
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
	done := map[string]int{}
	try := func(what string, e errno) {
		if e == ok {
			done[what]++
		}
	}
	for range 500 {
		if fd, e := p.openAt(root, "dir/secret", opening{how: creat | trunc, rights: toWrite}); e == ok {
			p.write(fd, "harmless")
			p.close(fd)
		}
		p.create("bait", "bait")
		try("linked in", p.link(nofollow, "bait", "dir/planted"))
		try("moved in", p.rename("bait", "dir/planted2"))
		try("made", p.mkdir("dir/planted3"))
		try("linked out", p.link(nofollow, "dir/secret", "stolen"))
		try("times", p.setTimes(follow, "dir/secret", 1, 1, setAtim|setMtim))
		try("taken away", p.unlink("dir/secret"))
		try("moved out", p.rename("dir/shown", "stolen2"))
		if fd, e := p.openAt(root, "stolen", opening{rights: toRead}); e == ok {
			if got, _ := p.read(fd, 100); got != "harmless" && got != "" {
				t.Fatalf("a hard link to a file outside was created: %q", got)
			}
			p.close(fd)
		}
		for _, name := range []string{"planted", "planted2"} {
			p.unlink("dir/" + name)
			p.unlink("away/" + name)
		}
		p.rmdir("dir/planted3")
		p.rmdir("away/planted3")
		p.unlink("stolen")
	}
	stop.Store(true)
	wg.Wait()
	if done["moved out"] > 0 {
		t.Error("a directory outside was moved to the cell")
	}
	if st, err := os.Stat(p.secret); err != nil || st.ModTime().Unix() == 0 {
		t.Errorf("the times of the secret were set: %v, %v", st, err)
	}
	t.Logf("of 500 times: %v", done)
}

// TestMovedSymlinksCannotEscape checks that a hard link to a symbolic link, and a moved symbolic
// link, cannot lead out.
func TestMovedSymlinksCannotEscape(t *testing.T) {
	p := imprison(t)
	if err := os.Symlink(p.secret, filepath.Join(p.cell, "host")); err != nil {
		t.Fatal(err)
	}
	p.create("bait", "x")
	p.mkdir("a")
	p.mkdir("a/b")
	p.want("a link that stays inside", p.symlink("../../bait", "a/b/up"), ok)
	for _, l := range [][2]string{{"host", "host2"}, {"host", "a/b/host"}, {"a/b/up", "up"}, {"a/b/up", "a/up2"}} {
		p.want(fmt.Sprint("link ", l), p.link(nofollow, l[0], l[1]), ok)
		if l[1] != "a/up2" {
			p.attack(l[1])
		}
	}
	p.want("from further down it does not lead out", second(p.stat(follow, "a/up2")), EPERM)
	p.want("where it was made it still leads inside", second(p.stat(follow, "a/b/up")), ok)
	p.want("a link is moved over itself", p.rename("up", "host2"), ok)
	p.attack("host2")

	below := p.open("a/b", opening{how: dironly})
	p.want("its directory is moved while it is open", p.rename("a/b", "b"), ok)
	for _, path := range []string{"..", "../bait", "up", "host", "../../secret"} {
		p.want("through it, "+path, second(p.openAt(below, path, opening{lookup: follow, rights: toRead})), EPERM)
	}
	q, n := p.string(atPath, "../planted")
	p.want("made above it", p.call("path_create_directory", below, q, n), EPERM)
	p.want("linked above it", p.linkAt(nofollow, root, "bait", below, "../planted"), EPERM)
	p.want("moved above it", p.renameAt(root, "bait", below, "../planted"), EPERM)
	p.want("moved into what it is itself below", p.renameAt(root, "b", below, "b"), EINVAL)
}

// TestDotAndDotDotAreNotNames checks that "." and ".." cannot be created, renamed or removed.
func TestDotAndDotDotAreNotNames(t *testing.T) {
	p := imprison(t)
	p.create("bait", "x")
	p.mkdir("dir")
	p.symlink("..", "out")
	for _, path := range []string{".", "..", "./", "../", "dir/..", "dir/.", "dir/../..", "dir/../../", "out/.", "out/..", "out/", "dir/../..//"} {
		for what, e := range map[string]errno{
			"mkdir": p.mkdir(path), "symlink": p.symlink("bait", path), "unlink": p.unlink(path), "rmdir": p.rmdir(path),
			"link from it": p.link(nofollow, path, "new"), "link to it": p.link(nofollow, "bait", path),
			"rename of it": p.rename(path, "new"), "rename of a file to it": p.rename("bait", path), "rename of a directory to it": p.rename("dir", path),
			"exclusive create": second(p.openAt(root, path, opening{how: creat | excl, rights: both})),
		} {
			if e == ok {
				t.Errorf("%q: %s succeeded", path, what)
			}
		}
	}
	p.want("all is as it was", second(p.stat(nofollow, "bait"))|second(p.stat(nofollow, "dir"))|second(p.stat(nofollow, "out")), ok)
}

func TestHostDevicesPipesAndSockets(t *testing.T) {
	p := imprison(t)
	if err := syscall.Mkfifo(filepath.Join(p.cell, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.refused("pipe", opening{rights: toRead}, EACCES)
	p.refused("pipe", opening{rights: both}, EACCES)
	if e := second(p.openAt(root, "pipe", opening{rights: toWrite})); e == ok {
		t.Error("opening a pipe for writing succeeded")
	}
	devices := enter(t, wasi.Dir{Host: "/dev", Guest: "/dev"})
	for _, device := range []string{"tty", "kmsg", "mem", "console"} {
		if fd, e := devices.openAt(root, device, opening{rights: toRead}); e == ok {
			t.Errorf("opening /dev/%s succeeded", device)
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

func TestProcCannotEscape(t *testing.T) {
	g := enter(t, wasi.Dir{Host: "/proc/self", Guest: "/"})
	for _, path := range []string{"root/etc/passwd", "cwd", "exe", "fd/0", "task/../root/etc/passwd"} {
		if fd, e := g.openAt(root, path, opening{lookup: follow, rights: toRead}); e == ok {
			t.Errorf("opening %s succeeded", path)
			g.close(fd)
		}
	}
}

func TestBelowCannotEscape(t *testing.T) {
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
