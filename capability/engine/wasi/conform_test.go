package wasi_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/capability/engine/wasi"
)

func TestArgumentsAndEnvironment(t *testing.T) {
	g := enterWith(t, wasi.Options{Args: []string{"prog", "", "two words"}, Env: []string{"A=1", "B="}})
	for _, c := range []struct {
		sizes, get string
		want       []string
	}{{"args_sizes_get", "args_get", []string{"prog", "", "two words"}}, {"environ_sizes_get", "environ_get", []string{"A=1", "B="}}} {
		g.want(c.sizes, g.call(c.sizes, atResult, atResult+4), ok)
		count, size := g.u32(atResult), g.u32(atResult+4)
		if int(count) != len(c.want) || int(size) != len(strings.Join(c.want, "0"))+1 {
			t.Errorf("%s = %d, %d", c.sizes, count, size)
		}
		g.want(c.get, g.call(c.get, atVector, atBuffer), ok)
		for i, want := range c.want {
			at := g.u32(atVector + 4*uint32(i))
			if got := g.bytes(at, uint32(len(want)+1)); string(got) != want+"\x00" {
				t.Errorf("%s[%d] = %q, want %q", c.get, i, got, want)
			}
		}
	}
	g.want("args_get outside of memory", g.call("args_get", 0xfffffff0, 0), EFAULT)
}

func TestClocksAndRandomness(t *testing.T) {
	g := enter(t)
	before := time.Now().UnixNano()
	g.want("realtime", g.call("clock_time_get", 0, 0, atResult), ok)
	if got := int64(g.u64(atResult)); got < before || got > time.Now().UnixNano() {
		t.Errorf("realtime = %d, want at least %d", got, before)
	}
	g.want("monotonic", g.call("clock_time_get", 1, 0, atResult), ok)
	first := g.u64(atResult)
	g.want("monotonic", g.call("clock_time_get", 1, 0, atResult), ok)
	if g.u64(atResult) < first {
		t.Error("the monotonic clock has decreased")
	}
	for id, want := range []errno{ok, ok, ENOTSUP, ENOTSUP, EINVAL} {
		g.want(fmt.Sprint("resolution of clock ", id), g.call("clock_res_get", uint64(id), atResult), want)
	}
	g.want("random", g.call("random_get", atBuffer, 64), ok)
	a := g.bytes(atBuffer, 64)
	g.want("random", g.call("random_get", atBuffer, 64), ok)
	if bytes.Equal(a, g.bytes(atBuffer, 64)) || bytes.Equal(a, make([]byte, 64)) {
		t.Error("random_get returned the same bytes twice")
	}
	g.want("random outside of memory", g.call("random_get", 0xffffff00, 0x100), EFAULT)
	g.want("sched_yield", g.call("sched_yield"), ok)
	g.want("proc_raise", g.call("proc_raise", 6), ENOTSUP)
}

func TestPreopenedDirectories(t *testing.T) {
	g := enter(t, wasi.Dir{Host: t.TempDir(), Guest: "/"}, wasi.Dir{Host: t.TempDir(), Guest: "/data"})
	for i, want := range []string{"/", "/data"} {
		fd := uint64(root + i)
		g.want("fd_prestat_get", g.call("fd_prestat_get", fd, atResult), ok)
		n := g.u32(atResult + 4)
		g.want("a name too short", g.call("fd_prestat_dir_name", fd, atBuffer, uint64(n-1)), ENAMETOOLONG)
		g.want("a name with room to spare", g.call("fd_prestat_dir_name", fd, atBuffer, uint64(n+5)), ok)
		if got := string(g.bytes(atBuffer, n)); got != want {
			t.Errorf("directory %d is %q, want %q", i, got, want)
		}
	}
	g.want("no third", g.call("fd_prestat_get", root+2, atResult), EBADF)
	g.want("a stream is none", g.call("fd_prestat_get", 0, atResult), EBADF)

	g.close(root)
	g.want("it is closed", g.call("fd_fdstat_get", root, atResult), EBADF)
	g.want("the other is not", g.call("fd_fdstat_get", root+1, atResult), ok)
}

func TestRenumber(t *testing.T) {
	g := here(t)
	g.create("one", "first")
	g.create("two", "second")
	one, two := g.open("one", opening{rights: toRead}), g.open("two", opening{rights: toRead})
	g.want("renumber", g.call("fd_renumber", one, two), ok)
	g.want("the old number is free", g.call("fd_close", one), EBADF)
	if got, _ := g.read(two, 100); got != "first" {
		t.Errorf("descriptor of the second file reads %q", got)
	}
	g.want("onto what is not open", g.call("fd_renumber", two, one), EBADF)
	g.want("from what is not open", g.call("fd_renumber", one, two), EBADF)
	g.want("onto itself", g.call("fd_renumber", two, two), ok)

	dir := g.open(".", opening{how: dironly})
	old := g.fstat(dir)
	g.want("over a directory of the start", g.call("fd_renumber", dir, root), ok)
	if got := g.fstat(root); got.ino != old.ino {
		t.Errorf("the descriptor belongs to another file: %v, want %v", got, old)
	}
	g.want("the old number is free", g.call("fd_fdstat_get", dir, atResult), EBADF)

	for stream := uint64(0); stream < 3; stream++ {
		fd := g.open("one", opening{rights: toRead})
		g.want("a stream over a file", g.call("fd_renumber", stream, fd), ok)
		g.want("the stream's number is free", g.call("fd_fdstat_get", stream, atResult), EBADF)
		g.want("the file's is not", g.call("fd_fdstat_get", fd, atResult), ok)
	}
	if fd := g.open("one", opening{}); fd < 3 {
		t.Errorf("open returned %d, a descriptor of the standard streams", fd)
	}
}

func TestSeekAndPositionalIO(t *testing.T) {
	g := here(t)
	fd := g.open("file", opening{how: creat, rights: both | toSeek})
	tell := func() uint64 { g.want("tell", g.call("fd_tell", fd, atResult), ok); return g.u64(atResult) }
	if n, e := g.write(fd, "0123456789"); n != 10 || e != ok || tell() != 10 {
		t.Fatalf("wrote %d, %v; offset %d", n, e, tell())
	}
	for _, s := range []struct {
		offset int64
		whence uint64
		want   errno
		at     uint64
	}{{-5, 1, ok, 5}, {0, 0, ok, 0}, {100, 1, ok, 100}, {-2, 2, ok, 8}, {-2000, 1, EINVAL, 0}, {0, 3, EINVAL, 0}} {
		at, e := g.seek(fd, s.offset, s.whence)
		g.want(fmt.Sprintf("seek %d by %d", s.offset, s.whence), e, s.want)
		if e == ok && at != s.at {
			t.Errorf("seek %d by %d is at %d, want %d", s.offset, s.whence, at, s.at)
		}
	}
	g.string(atBuffer, "ab")
	at, n := g.vector(2)
	g.want("pwrite", g.call("fd_pwrite", fd, at, n, 4, atResult), ok)
	at, n = g.vector(4)
	g.want("pread", g.call("fd_pread", fd, at, n, 3, atResult), ok)
	if got := string(g.bytes(atBuffer, g.u32(atResult))); got != "3ab6" || tell() != 8 {
		t.Errorf("read %q at 3, offset %d", got, tell())
	}
	g.want("pread before the beginning", g.call("fd_pread", fd, at, n, 1<<63, atResult), EINVAL)
	g.want("no buffers", g.call("fd_read", fd, at, 0, atResult), ok)
	if g.u32(atResult) != 0 {
		t.Error("a read without buffers returned data")
	}
	g.want("buffers outside of memory", g.call("fd_read", fd, 0xfffffff0, 1, atResult), EFAULT)
	g.want("allocate", g.call("fd_allocate", fd, 5, 15), ok)
	g.want("allocate what is there", g.call("fd_allocate", fd, 0, 5), ok)
	g.want("allocate nothing", g.call("fd_allocate", fd, 0, 0), EINVAL)
	if got := g.fstat(fd).size; got != 20 {
		t.Errorf("allocated to %d, want 20", got)
	}
	g.want("truncate", g.call("fd_filestat_set_size", fd, 3), ok)
	g.want("truncate to less than nothing", g.call("fd_filestat_set_size", fd, 1<<63), EINVAL)
	if got := g.fstat(fd).size; got != 3 {
		t.Errorf("truncated to %d, want 3", got)
	}
	for advice, want := range []errno{ok, ok, ok, ok, ok, ok, EINVAL} {
		g.want(fmt.Sprint("advice ", advice), g.call("fd_advise", fd, 0, 3, uint64(advice)), want)
	}
	g.want("sync", g.call("fd_sync", fd), ok)
	g.want("datasync", g.call("fd_datasync", fd), ok)
}

func TestVectoredIO(t *testing.T) {
	g := here(t)
	fd := g.open("file", opening{how: creat, rights: both})
	g.string(atBuffer, "abcdef")
	for i, piece := range [][2]uint32{{atBuffer, 2}, {atBuffer + 2, 0}, {atBuffer + 2, 4}} {
		g.module.Memory().WriteUint32Le(atVector+8*uint32(i), piece[0])
		g.module.Memory().WriteUint32Le(atVector+8*uint32(i)+4, piece[1])
	}
	g.want("write", g.call("fd_write", fd, atVector, 3, atResult), ok)
	if got := g.u32(atResult); got != 6 {
		t.Errorf("wrote %d, want 6", got)
	}
	if got := g.content("file"); got != "abcdef" {
		t.Errorf("content = %q", got)
	}
}

func TestDescriptorRights(t *testing.T) {
	g := here(t)
	g.create("file", "content")
	for _, c := range []struct {
		rights      uint64
		read, write errno
	}{{toRead, ok, EBADF}, {toWrite, EBADF, ok}, {both, ok, ok}, {0, EBADF, EBADF}} {
		fd := g.open("file", opening{rights: c.rights})
		_, _, base, _ := g.fdstat(fd)
		if base&both != c.rights {
			t.Errorf("opened with rights %#x, has %#x", c.rights, base&both)
		}
		_, e := g.read(fd, 10)
		g.want(fmt.Sprintf("read with %#x", c.rights), e, c.read)
		_, e = g.write(fd, "x")
		g.want(fmt.Sprintf("write with %#x", c.rights), e, c.write)
		g.want("rights are not taken away", g.call("fd_fdstat_set_rights", fd, 0, 0), ENOTSUP)
		g.close(fd)
	}
	g.want("rights of what is not open", g.call("fd_fdstat_set_rights", 99, 0, 0), EBADF)
	kind, flags, base, inheriting := g.fdstat(root)
	if kind != 3 || flags != 0 || base&(toWrite|toSeek) != 0 || inheriting&both != both {
		t.Errorf("a directory is of type %d, flags %#x, rights %#x, below %#x", kind, flags, base, inheriting)
	}
}

func TestFileOperationsOnDirectory(t *testing.T) {
	g := here(t)
	g.want("mkdir", g.mkdir("dir"), ok)
	fd := g.open("dir", opening{how: dironly, rights: toSeek})
	at, n := g.vector(8)
	for name, e := range map[string]errno{
		"read":     g.call("fd_read", fd, at, n, atResult),
		"pread":    g.call("fd_pread", fd, at, n, 0, atResult),
		"write":    g.call("fd_write", fd, at, n, atResult),
		"pwrite":   g.call("fd_pwrite", fd, at, n, 0, atResult),
		"seek":     g.call("fd_seek", fd, 0, 1, atResult),
		"tell":     g.call("fd_tell", fd, atResult),
		"allocate": g.call("fd_allocate", fd, 0, 1),
		"set_size": g.call("fd_filestat_set_size", fd, 0),
	} {
		g.want(name, e, EISDIR)
	}
	g.refused("dir", opening{how: dironly, rights: both}, EISDIR)
	g.refused("dir", opening{how: dironly | creat}, EINVAL)
	g.want("opened without waiting", second(g.openAt(root, ".", opening{flags: 4})), ok)
}

func second[A, B any](_ A, b B) B { return b }

func TestAppending(t *testing.T) {
	g := here(t)
	fd := g.open("file", opening{how: creat, rights: both | toSeek, flags: 1})
	if _, flags, _, _ := g.fdstat(fd); flags != 1 {
		t.Errorf("flags are %#x", flags)
	}
	g.write(fd, "one")
	g.seek(fd, 0, 0)
	g.write(fd, "two")
	if got := g.content("file"); got != "onetwo" {
		t.Errorf("appended: %q", got)
	}
	at, _ := g.seek(fd, 0, 1)
	g.string(atBuffer, "x")
	v, n := g.vector(1)
	g.want("pwrite", g.call("fd_pwrite", fd, v, n, 0, atResult), ok)
	if now, _ := g.seek(fd, 0, 1); now != at {
		t.Errorf("pwrite moved the offset from %d to %d", at, now)
	}
	if got := g.content("file"); got != "xnetwo" {
		t.Errorf("pwrite with append flag: %q", got)
	}
	g.want("no more appending", g.call("fd_fdstat_set_flags", fd, 0), ok)
	g.seek(fd, 0, 0)
	g.write(fd, "ONE")
	if got := g.content("file"); !strings.HasPrefix(got, "ONEtwo") {
		t.Errorf("overwritten: %q", got)
	}
	g.want("a flag that stays as it was", g.call("fd_fdstat_set_flags", fd, 1<<4), ENOTSUP)
	g.want("no flag at all", g.call("fd_fdstat_set_flags", fd, 1<<5), EINVAL)
	synced := g.open("file", opening{rights: toWrite, flags: 1 | 1<<4})
	if _, flags, _, _ := g.fdstat(synced); flags != 1|1<<4 {
		t.Errorf("flags of a synchronous file are %#x", flags)
	}
}

func TestOpenCreatesAndTruncates(t *testing.T) {
	g := here(t)
	g.refused("file", opening{rights: both}, ENOENT)
	g.create("file", "content")
	g.refused("file", opening{how: creat | excl, rights: both}, EEXIST)
	g.refused("file", opening{how: dironly}, ENOTDIR)
	g.refused("file/below", opening{}, ENOTDIR)
	file := g.open("file", opening{})
	g.want("a file is no directory to begin at", second(g.openAt(file, "x", opening{how: creat})), ENOTDIR)
	g.want("nor is what is not open", second(g.openAt(99, "x", opening{how: creat})), EBADF)
	fd := g.open("file", opening{how: creat, rights: both})
	if got := g.fstat(fd).size; got != 7 {
		t.Errorf("size after open with create = %d", got)
	}
	g.close(g.open("file", opening{how: trunc}))
	if got := g.fstat(fd).size; got != 0 {
		t.Errorf("size after truncation without the write right = %d", got)
	}
	g.refused("file", opening{how: 16}, EINVAL)
	g.refused("file", opening{flags: 32}, EINVAL)
	g.want("no place for the number", g.call("path_open", root, 0, atPath, 4, 0, toRead, 0, 0, 0xfffffff0), EFAULT)
}

func TestPathResolution(t *testing.T) {
	g := here(t)
	g.mkdir("dir")
	g.mkdir("dir/nested")
	g.create("dir/nested/file", "x")
	for path, want := range map[string]errno{
		"dir/.//nested/../../dir/nested/../nested///./file": ok,
		"dir/nested/":              ok,
		"dir/nested///":            ok,
		".":                        ok,
		"/dir/nested/file":         EPERM,
		"/":                        EPERM,
		"..":                       EPERM,
		"dir/nested/../../../x":    EPERM,
		"dir/nested/file/":         ENOTDIR,
		"dir/nested/file///":       ENOTDIR,
		"dir/nested/file/.":        ENOTDIR,
		"dir/nested/file\x00":      EINVAL,
		"dir/\xff":                 EILSEQ,
		"":                         ENOENT,
		"nothing/../dir":           ENOENT,
		strings.Repeat("x", 300):   ENAMETOOLONG,
		strings.Repeat("x/", 3000): ENAMETOOLONG,
	} {
		fd, e := g.openAt(root, path, opening{})
		if e == ok {
			g.close(fd)
		}
		g.want(fmt.Sprintf("open %.60q", path), e, want)
	}
	g.want("a path outside of memory", g.call("path_open", root, 0, 0xfffffff0, 100, 0, 0, 0, 0, atResult), EFAULT)
}

func TestCreateAndRemove(t *testing.T) {
	g := here(t)
	g.create("file", "x")
	for _, c := range []struct {
		what string
		got  errno
		want errno
	}{
		{"mkdir", g.mkdir("dir"), ok},
		{"mkdir with a slash", g.mkdir("dir2/"), ok},
		{"mkdir where one is", g.mkdir("dir"), EEXIST},
		{"mkdir where a file is", g.mkdir("file"), EEXIST},
		{"mkdir in a file", g.mkdir("file/x"), ENOTDIR},
		{"mkdir nowhere", g.mkdir("no/dir"), ENOENT},
		{"mkdir of nothing", g.mkdir(""), ENOENT},
		{"mkdir outside", g.mkdir("../x"), EPERM},
		{"mkdir at the root", g.mkdir("/x"), EPERM},
		{"mkdir of what is above", g.mkdir(".."), EEXIST},
		{"rmdir", g.rmdir("dir2"), ok},
		{"rmdir with a slash", second(0, g.mkdir("dir2")) | g.rmdir("dir2/"), ok},
		{"rmdir of a file", g.rmdir("file"), ENOTDIR},
		{"rmdir of a file with a slash", g.rmdir("file/"), ENOTDIR},
		{"rmdir of what is not there", g.rmdir("no"), ENOENT},
		{"rmdir of what is full", second(0, g.mkdir("dir/sub")) | g.rmdir("dir"), ENOTEMPTY},
		{"rmdir of here", g.rmdir("."), EINVAL},
		{"unlink of a directory", g.unlink("dir"), EISDIR},
		{"unlink of a directory with a slash", g.unlink("dir/"), EISDIR},
		{"unlink of a file with a slash", g.unlink("file/"), ENOTDIR},
		{"unlink", g.unlink("file"), ok},
		{"unlink of what is not there", g.unlink("file"), ENOENT},
	} {
		g.want(c.what, c.got, c.want)
	}
}

func TestRenaming(t *testing.T) {
	g := here(t)
	g.mkdir("dir")
	for _, names := range [][2]string{{"dir/", "other"}, {"other", "dir/"}, {"dir/", "other/"}, {"other", "dir"}} {
		g.want(fmt.Sprint("rename ", names), g.rename(names[0], names[1]), ok)
	}
	g.create("file", "a")
	g.mkdir("empty")
	g.mkdir("full")
	g.create("full/file", "b")
	for _, c := range []struct {
		old, new string
		want     errno
	}{
		{"dir", "empty", ok},
		{"empty", "full", ENOTEMPTY},
		{"empty", "full/file", ENOTDIR},
		{"file", "empty", EISDIR},
		{"file", "no/", ENOTDIR},
		{"file/", "no", ENOTDIR},
		{"no", "file", ENOENT},
		{"empty", "empty/below", EINVAL},
		{"file", "../file", EPERM},
		{"/file", "x", EPERM},
		{"full/file", "file", ok},
	} {
		g.want(fmt.Sprintf("rename %s to %s", c.old, c.new), g.rename(c.old, c.new), c.want)
	}
	if got := g.content("file"); got != "b" {
		t.Errorf("content of the replaced file = %q", got)
	}
	g.refused("full/file", opening{}, ENOENT)
}

func TestHardLinks(t *testing.T) {
	g := here(t)
	g.create("file", "x")
	g.mkdir("dir")
	g.want("link", g.link(nofollow, "file", "link"), ok)
	a, _ := g.stat(nofollow, "file")
	b, _ := g.stat(nofollow, "link")
	if a != b || a.links != 2 {
		t.Errorf("status of the two names: %+v and %+v", a, b)
	}
	g.symlink("nowhere", "dangling")
	g.symlink("loop", "loop")
	for _, c := range []struct {
		lookup   uint64
		old, new string
		want     errno
	}{
		{nofollow, "file", "dir/link", ok},
		{nofollow, "file", "link", EEXIST},
		{nofollow, "file", "file", EEXIST},
		{nofollow, "file", "dir", EEXIST},
		{nofollow, "file", "dangling", EEXIST},
		{nofollow, "file", "new/", ENOENT},
		{nofollow, "file/", "new", ENOTDIR},
		{nofollow, "dir", "new", EPERM},
		{nofollow, "dir/", "new", EPERM},
		{nofollow, "no", "new", ENOENT},
		{nofollow, "dangling", "dangling2", ok},
		{nofollow, "loop", "loop2", ok},
		{follow, "dangling", "new", EINVAL},
		{follow, "file", "new", EINVAL},
		{nofollow, "..", "new", EPERM},
	} {
		g.want(fmt.Sprintf("link %s to %s", c.old, c.new), g.link(c.lookup, c.old, c.new), c.want)
	}
}

func TestSymbolicLinks(t *testing.T) {
	g := here(t)
	g.mkdir("dir")
	g.create("file", "content")
	for _, c := range []struct {
		target, path string
		want         errno
	}{
		{"file", "tofile", ok},
		{"dir", "todir", ok},
		{"nowhere", "dangling", ok},
		{"loop", "loop", ok},
		{"file", "tofile", EEXIST},
		{"x", "new/", ENOENT},
		{"x", "dir/", EEXIST},
		{"x", "dir", EEXIST},
		{"x", "file/", ENOTDIR},
		{"x", "file", EEXIST},
		{"/", "absolute", EPERM},
		{"", "empty", ENOENT},
		{"x", "../x", EPERM},
	} {
		g.want(fmt.Sprintf("symlink %s to %q", c.path, c.target), g.symlink(c.target, c.path), c.want)
	}
	for _, c := range []struct {
		path string
		o    opening
		want errno
	}{
		{"tofile", opening{lookup: follow}, ok},
		{"tofile", opening{}, ELOOP},
		{"tofile", opening{how: dironly}, ENOTDIR},
		{"tofile", opening{how: dironly, lookup: follow}, ENOTDIR},
		{"todir", opening{}, ELOOP},
		{"todir", opening{how: dironly}, ENOTDIR},
		{"todir", opening{how: dironly, lookup: follow}, ok},
		{"dangling", opening{}, ELOOP},
		{"dangling", opening{how: dironly}, ENOTDIR},
		{"dangling", opening{lookup: follow}, ENOENT},
		{"dangling", opening{how: creat | excl, lookup: follow}, EEXIST},
		{"loop", opening{lookup: follow}, ELOOP},
		{"loop", opening{}, ELOOP},
	} {
		fd, e := g.openAt(root, c.path, c.o)
		if e == ok {
			g.close(fd)
		}
		g.want(fmt.Sprintf("open %s, %+v", c.path, c.o), e, c.want)
	}
	if got, e := g.readlink("tofile", 10); got != "file" || e != ok {
		t.Errorf("readlink = %q, %v", got, e)
	}
	if got, e := g.readlink("tofile", 2); got != "fi" || e != ok {
		t.Errorf("readlink into two bytes = %q, %v", got, e)
	}
	for path, want := range map[string]errno{"file": EINVAL, "dir": EINVAL, "no": ENOENT, "todir/": EINVAL, "../x": EPERM} {
		g.want("readlink of "+path, second(g.readlink(path, 10)), want)
	}
	link, _ := g.stat(nofollow, "tofile")
	file, _ := g.stat(follow, "tofile")
	if link.kind != 7 || file.kind != 4 || file.size != 7 {
		t.Errorf("status of the link = %+v, of its target = %+v", link, file)
	}
	g.want("unlink a link", g.unlink("todir"), ok)
	g.want("the directory is still there", second(g.stat(nofollow, "dir")), ok)
}

func TestSetTimes(t *testing.T) {
	g := here(t)
	g.create("file", "x")
	g.symlink("file", "link")
	const given, now = 4, 8 // flags of mtime; those of atime are 1 and 2
	set := func(lookup uint64, path string, atim, mtim, flags uint64) errno {
		p, n := g.string(atPath, path)
		return g.call("path_filestat_set_times", root, lookup, p, n, atim, mtim, flags)
	}
	before, _ := g.stat(nofollow, "file")
	g.want("times of a link", set(nofollow, "link", 0, 1_000_000_123, given), ok)
	if link, _ := g.stat(nofollow, "link"); link.mtim != 1_000_000_123 {
		t.Errorf("mtime of the link = %d", link.mtim)
	}
	if file, _ := g.stat(nofollow, "file"); file.mtim != before.mtim {
		t.Error("the target of the link has changed")
	}
	g.want("times through a link", set(follow, "link", 7, 2_000_000_456, given|1), ok)
	if file, _ := g.stat(nofollow, "file"); file.mtim != 2_000_000_456 || file.atim != 7 {
		t.Errorf("status = %+v", file)
	}
	g.want("now", set(nofollow, "file", 0, 0, now), ok)
	if file, _ := g.stat(nofollow, "file"); file.mtim < before.mtim || file.atim != 7 {
		t.Errorf("status = %+v", file)
	}
	fd := g.open("file", opening{rights: toRead})
	for flags, want := range map[uint64]errno{given | now: EINVAL, 3: EINVAL, 16: EINVAL, 0: ok, given: ok} {
		g.want(fmt.Sprint("by path, flags ", flags), set(nofollow, "file", 1, 1, flags), want)
		g.want(fmt.Sprint("by descriptor, flags ", flags), g.call("fd_filestat_set_times", fd, 1, 1, flags), want)
	}
	if st := g.fstat(fd); st.mtim != 1 {
		t.Errorf("status = %+v", st)
	}
	g.want("of what is not there", set(nofollow, "no", 0, 0, given), ENOENT)
}

func TestReaddirInPieces(t *testing.T) {
	g := here(t)
	g.mkdir("dir")
	dir := g.open("dir", opening{how: dironly})
	all, end := g.entries(dir, 256, 0)
	if len(all) != 2 || !end {
		t.Fatalf("entries of an empty directory = %v", all)
	}
	for _, e := range all {
		if e.kind != 3 || e.name == "." && e.ino != g.fstat(dir).ino {
			t.Errorf("entry = %+v", e)
		}
	}
	want := []string{".", ".."}
	for i := range 500 {
		name := fmt.Sprintf("file.%03d", i)
		want = append(want, name)
		g.close(g.open("dir/"+name, opening{how: creat}))
	}
	var got []string
	for cookie, end := uint64(0), false; !end; {
		all, end = g.entries(dir, 256, cookie)
		for _, e := range all {
			got, cookie = append(got, e.name), e.next
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("listed %d names, want %d", len(got), len(want))
	}
	all, _ = g.entries(dir, 1<<16, 0)
	again, _ := g.entries(dir, 1<<16, all[99].next)
	if len(again) != len(all)-100 || again[0] != all[100] {
		t.Errorf("after entry 100: %d entries, first %v", len(again), again[0])
	}
	file := g.open("dir/file.000", opening{rights: toRead})
	g.want("a file has no entries", g.call("fd_readdir", file, atBuffer, 256, 0, atResult), ENOTDIR)
	if got, _ := g.entries(dir, 10, 0); len(got) != 0 || g.u32(atResult) != 10 {
		t.Error("a buffer that is smaller than an entry was not filled")
	}
}

func TestPollOneoff(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	g := enterWith(t, wasi.Options{Stdin: r, Dirs: []wasi.Dir{{Host: t.TempDir(), Guest: "/"}}})
	g.create("file", "1234567")
	file := g.open("file", opening{rights: toRead})

	const clock, read, write = 0, 1, 2
	type sub struct {
		data    uint64
		kind    byte
		id      uint32
		timeout uint64
		flags   uint16
	}
	poll := func(subs ...sub) (datas []uint64, errors []uint16, e errno) {
		b := make([]byte, 48*len(subs))
		for i, s := range subs {
			at := b[48*i:]
			binary.LittleEndian.PutUint64(at, s.data)
			at[8] = s.kind
			binary.LittleEndian.PutUint32(at[16:], s.id)
			binary.LittleEndian.PutUint64(at[24:], s.timeout)
			binary.LittleEndian.PutUint16(at[40:], s.flags)
		}
		g.module.Memory().Write(atBuffer, b)
		e = g.call("poll_oneoff", atBuffer, atBuffer+0x8000, uint64(len(subs)), atResult)
		for i := range g.u32(atResult) {
			event := g.bytes(atBuffer+0x8000+32*i, 32)
			datas = append(datas, binary.LittleEndian.Uint64(event))
			errors = append(errors, binary.LittleEndian.Uint16(event[8:]))
		}
		return datas, errors, e
	}
	const soon, late = uint64(time.Millisecond), uint64(time.Hour)
	now := uint64(time.Now().UnixNano())
	for _, c := range []struct {
		what string
		subs []sub
		want []uint64
	}{
		{"a clock", []sub{{7, clock, 1, soon, 0}}, []uint64{7}},
		{"the earlier of two clocks", []sub{{7, clock, 1, late, 0}, {8, clock, 1, soon, 0}}, []uint64{8}},
		{"a time that is past", []sub{{7, clock, 0, now - late, 1}, {8, clock, 1, late, 0}}, []uint64{7}},
		{"a time that comes", []sub{{7, clock, 0, now + soon, 1}}, []uint64{7}},
		{"streams to write, before the clock", []sub{{1, write, 1, 0, 0}, {2, write, 2, 0, 0}, {7, clock, 1, late, 0}}, []uint64{1, 2}},
		{"a file", []sub{{3, read, uint32(file), 0, 0}, {7, clock, 1, late, 0}}, []uint64{3}},
		{"nothing to read yet", []sub{{4, read, 0, 0, 0}, {7, clock, 1, soon, 0}}, []uint64{7}},
	} {
		if got, _, e := poll(c.subs...); e != ok || !slices.Equal(got, c.want) {
			t.Errorf("waiting for %s: %v, %v; want %v", c.what, got, e, c.want)
		}
	}
	w.WriteString("x")
	if got, _, e := poll(sub{4, read, 0, 0, 0}, sub{7, clock, 1, late, 0}); e != ok || !slices.Equal(got, []uint64{4}) {
		t.Errorf("poll with readable data: %v, %v", got, e)
	}
	if got, errs, e := poll(sub{5, read, 99, 0, 0}, sub{7, clock, 1, late, 0}); e != ok || !slices.Equal(got, []uint64{5}) || errs[0] != uint16(EBADF) {
		t.Errorf("poll of a closed descriptor: %v, %v, %v", got, errs, e)
	}
	_, _, e := poll()
	g.want("for nothing", e, EINVAL)
	_, _, e = poll(sub{1, 9, 0, 0, 0})
	g.want("for what is no event", e, EINVAL)
	if got, e := g.read(0, 10); got != "x" || e != ok {
		t.Errorf("read %q, %v", got, e)
	}
	g.want("without waiting", g.call("fd_fdstat_set_flags", 0, 4), ok)
	g.want("read what is not there yet", second(g.read(0, 10)), EAGAIN)
}

func TestNoSockets(t *testing.T) {
	g := here(t)
	file := g.open("file", opening{how: creat})
	for name, args := range map[string][]uint64{"sock_shutdown": {1}, "sock_accept": {0, atResult}, "sock_recv": {atVector, 0, 0, atResult, atResult}, "sock_send": {atVector, 0, 0, atResult}} {
		g.want(name+" of a file", g.call(name, append([]uint64{file}, args...)...), ENOTSOCK)
		g.want(name+" of nothing", g.call(name, append([]uint64{99}, args...)...), EBADF)
	}
}

func TestStandardStreams(t *testing.T) {
	var out bytes.Buffer
	g := enterWith(t, wasi.Options{Stdin: strings.NewReader("input"), Stdout: &out})
	if got, e := g.read(0, 3); got != "inp" || e != ok {
		t.Errorf("read %q, %v", got, e)
	}
	if got, e := g.read(0, 10); got != "ut" || e != ok {
		t.Errorf("read %q, %v", got, e)
	}
	if got, e := g.read(0, 10); got != "" || e != ok {
		t.Errorf("read %q at the end, %v", got, e)
	}
	if n, e := g.write(1, "hello"); n != 5 || e != ok || out.String() != "hello" {
		t.Errorf("wrote %d, %v: %q", n, e, &out)
	}
	g.want("read what is written", second(g.read(1, 1)), EBADF)
	g.want("write what is read", second(g.write(0, "x")), EBADF)
	g.want("seek", second(g.seek(1, 0, 1)), ESPIPE)
	at, n := g.vector(1)
	g.want("pread", g.call("fd_pread", 0, at, n, 0, atResult), ESPIPE)
	g.want("set its size", g.call("fd_filestat_set_size", 1, 0), ESPIPE)
	if st := g.fstat(1); st.ino != 0 || st.dev != 0 {
		t.Errorf("the status of a stream reveals the file of the host: %+v", st)
	}
}

func TestDescriptorLimit(t *testing.T) {
	g := enterWith(t, wasi.Options{Dirs: []wasi.Dir{{Host: t.TempDir(), Guest: "/"}}, Files: 100})
	g.create("file", "x")
	var last errno
	n := 0
	for ; n < 200 && last == ok; n++ {
		_, last = g.openAt(root, "file", opening{rights: toRead})
	}
	g.want(fmt.Sprintf("after %d files", n), last, EMFILE)
	g.close(50)
	if fd := g.open("file", opening{}); fd != 50 {
		t.Errorf("open = %d, want the free descriptor 50", fd)
	}
}
