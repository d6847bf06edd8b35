package ptrace_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"glasshouse/observe/event"
	"glasshouse/observe/ptrace"
)

// line formats the event of a file operation.
func line(e *event.Event, dir string) string {
	cut := func(p string) string { return strings.TrimPrefix(p, dir+"/") }
	s := e.Op + " " + cut(e.Path)
	if e.To != "" {
		s += " to " + cut(e.To)
	}
	if e.Bytes != 0 {
		s += fmt.Sprintf(" %d", e.Bytes)
	}
	if e.Ret < 0 {
		s += " " + event.ErrnoName(e.Ret)
	}
	return s
}

// filesOf lists the operations on files below the jail's directory.
func filesOf(j *jail, l *log) (lines []string) {
	for _, e := range l.all(func(e *event.Event) bool { return e.Type == event.File && strings.HasPrefix(e.Path, j.dir+"/") }) {
		lines = append(lines, line(&e, j.dir))
	}
	return lines
}

func TestFileOperations(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed")
	}
	j := newJail(t)
	l, w := watch(t, j, event.Selection{Syscalls: "off"})
	script := `
import ctypes, os
os.mkdir("d")
fd = os.open("d/a", os.O_RDWR | os.O_CREAT | os.O_EXCL)
os.write(fd, b"hello")
os.pread(fd, 100, 1)
os.ftruncate(fd, 3)
os.posix_fallocate(fd, 0, 10)
os.fchmod(fd, 0o600)
os.rename("d/a", "d/b")
os.write(fd, b"x")
os.unlink("d/b")
os.write(fd, b"xy")
os.close(fd)
os.chdir("d")
open("c", "w").close()
os.link("c", "../l")
os.symlink("c", "s")
os.chmod("s", 0o640)
os.truncate("c", 7)
os.utime("c", (1, 1))
os.mkfifo("fifo")
fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
os.rename("c", "n", src_dir_fd=fd, dst_dir_fd=fd)
os.unlink("s", dir_fd=fd)
os.close(fd)
os.chdir("..")
for f in (lambda: os.open("none", os.O_RDONLY), lambda: os.rmdir("d"), lambda: os.mkdir("d")):
    try:
        f()
    except OSError:
        pass
a = os.open("l", os.O_RDONLY)
b = os.open("copy", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
os.sendfile(b, a, 0, 4)
ctypes.CDLL(None).renameat2(-100, b"copy", -100, b"l", 2)
p, q = os.pipe()
os.write(q, b"no file")
os.read(p, 100)
`
	if err := os.WriteFile(filepath.Join(j.dir, "script"), []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := j.sh("python3 - <script 2>&1"); out != "" {
		t.Fatalf("python: %s", out)
	}
	drain(t, w)
	got := slices.DeleteFunc(filesOf(j, l), func(s string) bool { return strings.Contains(s, "script") })
	want := []string{
		"mkdir d", "create d/a", "write d/a 5", "read d/a 4", "truncate d/a 3", "allocate d/a 10", "chmod d/a", "rename d/a to d/b",
		"write d/b 1", "delete d/b", "write d/b 2", "close d/b",
		"create d/c", "close d/c", "link d/c to d/../l", "symlink d/s to c", "chmod d/s", "truncate d/c 7", "utime d/c", "mknod d/fifo",
		"open d", "rename d/c to d/n", "delete d/s", "close d",
		"open none ENOENT", "delete d ENOTEMPTY", "mkdir d EEXIST",
		"open l", "create copy", "read l 4", "write copy 4",
		"exchange copy to l",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("file operations (-want +got):\n%s", diff)
	}
	for _, e := range l.all(func(e *event.Event) bool { return e.Type == event.File }) {
		if !strings.HasPrefix(e.Path, "/") || e.Flags != 0 {
			t.Errorf("not a file: %s", e.AppendJSON(nil))
		}
	}
}

func TestOpenCreatesFile(t *testing.T) {
	j := newJail(t)
	if err := os.WriteFile(filepath.Join(j.dir, "old"), []byte("x"), 0o666); err != nil {
		t.Fatal(err)
	}
	l, w := watch(t, j, event.Selection{})
	for range 20 { // file timestamps have a granularity of some milliseconds
		if out := j.sh("$SELF opens $PWD; rm made exclusive how"); out != "" {
			t.Fatalf("unexpected output %q", out)
		}
	}
	drain(t, w)
	round := []string{"create made", "open made", "create exclusive", "open exclusive", "open old", "create how"}
	got := slices.DeleteFunc(filesOf(j, l), func(s string) bool {
		return strings.HasPrefix(s, event.OpClose) || strings.HasPrefix(s, event.OpDelete)
	})
	if diff := cmp.Diff(slices.Repeat(round, 20), got); diff != "" {
		t.Errorf("opens (-want +got):\n%s", diff)
	}
}

func TestCachedDuringConcurrentMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	stop := mounting(t)
	defer stop()
	const lookups = 100000
	missed := 0
	for range lookups {
		if !ptrace.Cached(file) {
			missed++
		}
	}
	if missed > lookups/10000 { // on a busy host each attempt can coincide with a mount
		t.Errorf("a cached file was not found in %d of %d lookups", missed, lookups)
	}
}

// mounting mounts and unmounts a file system repeatedly, in its own mount namespace, until the
// returned function is called. Each time, the kernel restarts concurrent path lookups on the
// whole host, or fails cached lookups.
func mounting(t *testing.T) (stop func()) {
	t.Helper()
	dir := t.TempDir()
	end, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // not unlocked, so the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		for err == nil {
			select {
			case <-end:
				ended <- nil
				return
			default:
				err = errors.Join(unix.Mount("tmpfs", dir, "tmpfs", 0, ""), unix.Unmount(dir, unix.MNT_DETACH))
			}
		}
		ended <- err
	}()
	return func() {
		t.Helper()
		close(end)
		if err := <-ended; err != nil {
			t.Error("mount and unmount:", err)
		}
	}
}

func TestCallPaths(t *testing.T) {
	j := newJail(t)
	j.sh("mkdir real; echo x > real/file; ln -s real link")
	l, w := watch(t, j, event.Selection{Files: "off"})
	j.sh("cat link/file $PWD/real/file none 2>/dev/null; mv real/file real/moved")
	drain(t, w)
	opens := map[string]string{}
	for _, e := range l.all(func(e *event.Event) bool { return called("openat")(e) && e.Comm == "cat" }) {
		opens[e.Path] = e.Real
	}
	for path, real := range map[string]string{"link/file": j.dir + "/real/file", j.dir + "/real/file": "", "none": ""} {
		if got, ok := opens[path]; !ok || got != real {
			t.Errorf("open of %q is recorded as %q, want %q", path, got, real)
		}
	}
	moved := l.all(func(e *event.Event) bool { return strings.HasPrefix(e.Name, "rename") && e.Ret == 0 })
	if len(moved) != 1 || moved[0].Path != "real/file" || moved[0].To != "real/moved" {
		t.Errorf("renames: %+v", moved)
	}
	if files := l.all(func(e *event.Event) bool { return e.Type == event.File }); len(files) != 0 {
		t.Errorf("%d file events with Files off", len(files))
	}
}

func TestCallAddresses(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed")
	}
	j := newJail(t)
	l, w := watch(t, j, event.Selection{Files: "off"})
	script := `
import socket
s = socket.create_server(("127.0.0.1", 0))
c = socket.create_connection(s.getsockname())
a, _ = s.accept()
print(s.getsockname()[1], c.getsockname()[1])
u = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
u.bind(b"\0abstract")
u.sendto(b"x", b"\0abstract")
d = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
try:
    d.sendmsg([b"x"], [], 0, ("::1", 7))
except OSError:
    pass
`
	if err := os.WriteFile(filepath.Join(j.dir, "script"), []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	var server, client int
	out := j.sh("python3 script")
	if _, err := fmt.Sscan(out, &server, &client); err != nil {
		t.Fatalf("python printed %q", out)
	}
	drain(t, w)
	for name, want := range map[string]string{
		"connect": fmt.Sprintf("127.0.0.1:%d", server), "accept4": fmt.Sprintf("127.0.0.1:%d", client),
		"sendto": "unix:@abstract", "sendmsg": "[::1]:7",
	} {
		if got := l.all(func(e *event.Event) bool { return called(name)(e) && e.Addr == want }); len(got) != 1 {
			t.Errorf("%d calls of %s with %s\n%v", len(got), name, want, l.all(called(name)))
		}
	}
	if got := l.all(func(e *event.Event) bool { return called("bind")(e) && e.Addr == "unix:@abstract" }); len(got) != 1 {
		t.Errorf("bind: %v", l.all(called("bind")))
	}
}

func TestConcurrentPathChangeIsFlagged(t *testing.T) {
	j := newJail(t)
	j.sh("echo > aaaaaaaa; echo > bbbbbbbb")
	l, w := watch(t, j, event.Selection{})
	raced := func(e *event.Event) bool { return e.Flags&event.Raced != 0 }
	rounds, wrong := 0, 0
	for len(l.all(raced)) == 0 && rounds < 100 { // on one CPU the threads may never run simultaneously
		j.sh("$SELF race $PWD/aaaaaaaa $PWD/bbbbbbbb")
		drain(t, w)
		rounds++
	}
	opens := l.all(func(e *event.Event) bool {
		return called("openat")(e) && (strings.HasPrefix(e.Path, j.dir+"/a") || strings.HasPrefix(e.Path, j.dir+"/b"))
	})
	if len(opens) != 300*rounds {
		t.Errorf("%d of %d opens are recorded", len(opens), 300*rounds)
	}
	for _, e := range opens {
		if e.Ret >= 0 && e.Real != "" {
			wrong++
			if !strings.HasSuffix(e.Real, "aaaaaaaa") && !strings.HasSuffix(e.Real, "bbbbbbbb") {
				t.Errorf("opened %q", e.Real)
			}
		}
	}
	if len(l.all(raced)) == 0 {
		t.Errorf("no call has the flag raced, but %d opened another file than recorded", wrong)
	}
}

func TestSharedWritableMapping(t *testing.T) {
	j := newJail(t)
	l, w := watch(t, j, event.Selection{Syscalls: "off"})
	if out := j.sh("$SELF mapped $PWD/file"); out != "" {
		t.Fatal(out)
	}
	drain(t, w)
	if got := l.all(func(e *event.Event) bool { return e.Op == event.OpMmap && e.Path == j.dir+"/file" }); len(got) != 1 {
		t.Errorf("%d events of a shared and a private mapping, want 1", len(got))
	}
}

func TestPathsInChroot(t *testing.T) {
	j := newJail(t)
	if os.Geteuid() != 0 && unix.Access("/usr/sbin/chroot", unix.X_OK) != nil {
		t.Skip("chroot is not installed")
	}
	l, w := watch(t, j, event.Selection{Syscalls: "off"})
	j.sh("mkdir -p root/sub; PATH=$PATH:/usr/sbin chroot root $SELF 2>/dev/null; mkdir root/sub/x")
	drain(t, w)
	if got := l.all(func(e *event.Event) bool { return e.Op == event.OpChroot }); len(got) != 1 || got[0].Path != j.dir+"/root" {
		t.Errorf("chroot: %+v", got)
	}
}
