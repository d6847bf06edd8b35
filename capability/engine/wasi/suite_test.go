package wasi_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tetratelabs/wazero"

	"glasshouse/capability/engine/wasi"
)

var update = flag.Bool("update", false, "write docs/reference/wasi.md")

// A demand describes one test of the public test suite for preview 1, with a probe that makes
// the same requests.
type demand struct {
	test  string // the suite's name for it
	what  string
	probe func(g *guest)
	given wasi.Options // options in addition to the directory
}

// suite contains the tests of WebAssembly/wasi-testsuite in its three parts. A guest has an
// empty directory as "/".
var suite = []struct {
	part    string
	demands []demand
}{{"C", inC}, {"AssemblyScript", inAssemblyScript}, {"Rust", inRust}}

// wasiDocs contains the results of TestPublicSuite.
const wasiDocs = "../../../docs/reference/wasi.md"

func TestPublicSuite(t *testing.T) {
	var found bytes.Buffer
	demands, checks, partial := 0, 0, false
	for _, part := range suite {
		fmt.Fprintf(&found, "\n### %s\n\n| test | asks that | checks |\n| --- | --- | --- |\n", part.part)
		for _, d := range part.demands {
			n := 0
			holds := t.Run(part.part+"/"+d.test, func(t *testing.T) {
				o := d.given
				o.Dirs = []wasi.Dir{{Host: t.TempDir(), Guest: "/"}}
				g := enterWith(t, o)
				d.probe(g)
				if n = g.checks; n == 0 {
					t.Error("nothing was checked")
				}
			})
			says := fmt.Sprint(n)
			if !holds {
				says = "**fails**"
			}
			fmt.Fprintf(&found, "| `%s` | %s | %s |\n", d.test, d.what, says)
			demands, checks, partial = demands+1, checks+n, partial || holds && n == 0
		}
	}
	if partial {
		return // -run has selected some of the tests
	}
	kept, err := os.ReadFile(wasiDocs)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- made by go test ./capability/engine/wasi -update -->\n", "<!-- until here -->\n"
	head, rest, _ := strings.Cut(string(kept), begin)
	_, tail, ok := strings.Cut(rest, end)
	if !ok {
		t.Fatalf("%s has no markers for the table", wasiDocs)
	}
	made := fmt.Sprintf("%s%s\n%d behaviours, %d checks of them.\n%s\n%s%s", head, begin, demands, checks, &found, end, tail)
	if made == string(kept) {
		return
	}
	if !*update {
		t.Fatalf("%s is out of date; run go test ./capability/engine/wasi -update", wasiDocs)
	}
	if err := os.WriteFile(wasiDocs, []byte(made), 0o644); err != nil {
		t.Fatal(err)
	}
}

// is fails the test if got differs from want.
func is[T comparable](g *guest, what string, got, want T) {
	g.t.Helper()
	g.checks++
	if got != want {
		g.t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// sub creates a directory and opens it.
func (g *guest) sub(path string) uint64 {
	g.t.Helper()
	g.want("mkdir "+path, g.mkdir(path), ok)
	return g.open(path, opening{how: dironly})
}

// fresh creates an empty file and opens it.
func (g *guest) fresh(path string, rights, flags uint64) uint64 {
	g.t.Helper()
	fd := g.open(path, opening{how: creat, rights: rights, flags: flags})
	is(g, "its number is no stream's", fd > 2, true)
	return fd
}

func (g *guest) pwrite(fd uint64, content string, at uint64) errno {
	g.t.Helper()
	g.string(atBuffer, content)
	v, n := g.vector(len(content))
	return g.call("fd_pwrite", fd, v, n, at, atResult)
}

func (g *guest) pread(fd uint64, most int, at uint64) (string, errno) {
	g.t.Helper()
	v, n := g.vector(most)
	e := g.call("fd_pread", fd, v, n, at, atResult)
	if e != ok {
		return "", e
	}
	return string(g.bytes(atBuffer, g.u32(atResult))), ok
}

func (g *guest) tell(fd uint64) uint64 {
	g.t.Helper()
	g.want("tell", g.call("fd_tell", fd, atResult), ok)
	return g.u64(atResult)
}

func (g *guest) setTimes(lookup uint64, path string, atim, mtim, flags uint64) errno {
	g.t.Helper()
	p, n := g.string(atPath, path)
	return g.call("path_filestat_set_times", root, lookup, p, n, atim, mtim, flags)
}

func (g *guest) statted(lookup uint64, path string) filestat {
	g.t.Helper()
	st, e := g.stat(lookup, path)
	g.want("stat "+path, e, ok)
	return st
}

// Flags for setting times (fstflags).
const (
	setAtim, atimNow, setMtim, mtimNow = 1, 2, 4, 8
)

// Flags of descriptors (fdflags).
const (
	appended, nonblocking, synced = 1, 4, 16
)

// clockIs checks the time and the resolution of a clock.
func clockIs(id uint64) (resolution, time func(g *guest)) {
	return func(g *guest) {
			g.want("clock_res_get", g.call("clock_res_get", id, atResult), ok)
			is(g, "it has a resolution", g.u64(atResult) > 0, true)
		}, func(g *guest) {
			var last uint64
			for _, precision := range []uint64{1, 0, 0} {
				g.want("clock_time_get", g.call("clock_time_get", id, precision, atResult), ok)
				now := g.u64(atResult)
				is(g, "the time increases", now > last || id == 0 && now > 0, true) // the real time clock may be set back
				last = now
			}
		}
}

var (
	realtimeResolution, realtimeTime   = clockIs(0)
	monotonicResolution, monotonicTime = clockIs(1)
)

// inC contains the tests that are written in C.
var inC = []demand{
	{test: "clock_getres-monotonic", what: "the monotonic clock has a resolution", probe: monotonicResolution},
	{test: "clock_getres-realtime", what: "the real time clock has a resolution", probe: realtimeResolution},
	{test: "clock_gettime-monotonic", what: "of two readings of the monotonic clock the second is later", probe: monotonicTime},
	{test: "clock_gettime-realtime", what: "the real time can be read", probe: realtimeTime},
	{test: "fdopendir-with-access", what: "a directory entry has the inode of its file, and inodes are unique", probe: func(g *guest) {
		dir := g.sub("listed")
		g.create("listed/one", "1")
		g.create("listed/two", "2")
		all, _ := g.entries(dir, 4096, 0)
		inodes := map[uint64]bool{}
		for _, e := range all {
			if e.name == ".." {
				continue // ".." of the root has the inode of the host
			}
			is(g, "inode of "+e.name, e.ino, g.statted(nofollow, "listed/"+e.name).ino)
			inodes[e.ino] = true
		}
		is(g, "different inodes", len(inodes), 3)
	}},
	{test: "fopen-with-access", what: "a file below a directory can be opened", probe: func(g *guest) {
		g.create("readable", "x")
		g.close(g.open("readable", opening{lookup: follow, rights: toRead | toSeek}))
		g.want("stat", second(g.stat(follow, "readable")), ok)
	}},
	{test: "fopen-with-no-access", what: "without a preopened directory no file can be opened", probe: func(g *guest) {
		g.close(root)
		for fd := range uint64(8) {
			g.want(fmt.Sprint("prestat ", fd), g.call("fd_prestat_get", fd, atResult), EBADF)
		}
		_, e := g.openAt(root, "x", opening{})
		g.want("open", e, EBADF)
	}},
	{test: "lseek", what: "an offset is relative to the start, the current offset or the end, and reading advances it", probe: func(g *guest) {
		g.create("digits", "01234567")
		fd := g.open("digits", opening{rights: toRead | toSeek})
		for _, s := range []struct {
			read   string
			offset int64
			whence uint64
			at     uint64
		}{{"0123", 0, 1, 4}, {"4", 0, 1, 5}, {"", -3, 1, 2}, {"", 0, 0, 0}, {"", 0, 2, 8}} {
			if s.read != "" {
				got, _ := g.read(fd, len(s.read))
				is(g, "read", got, s.read)
			}
			at, e := g.seek(fd, s.offset, s.whence)
			g.want("seek", e, ok)
			is(g, "place", at, s.at)
		}
	}},
	{test: "pread-with-access", what: "a file is read at an offset", probe: func(g *guest) {
		g.create("text", "one two three")
		got, e := g.pread(g.open("text", opening{rights: toRead}), 3, 4)
		g.want("pread", e, ok)
		is(g, "content", got, "two")
	}},
	{test: "pwrite-with-access", what: "a new file is written at offsets, without moving the offset of the next write, and read back", probe: func(g *guest) {
		g.want("not there", second(g.stat(nofollow, "new")), ENOENT)
		fd := g.fresh("new", toWrite, 0)
		g.want("pwrite", g.pwrite(fd, "aaaaaaaa", 0), ok)
		g.want("pwrite", g.pwrite(fd, "BB", 3), ok)
		is(g, "place", g.tell(fd), 0)
		g.close(fd)
		is(g, "content", g.content("new"), "aaaBBaaa")
		g.want("unlink", g.unlink("new"), ok)
	}},
	{test: "pwrite-with-append", what: "an appending write goes to the end and moves the offset; a write at an offset does neither, as POSIX requires and Linux does not", probe: func(g *guest) {
		fd := g.fresh("log", toWrite|toSeek, appended)
		g.write(fd, "ab")
		g.want("seek", second(g.seek(fd, 0, 0)), ok)
		g.write(fd, "cd")
		is(g, "place", g.tell(fd), 4)
		g.want("pwrite", g.pwrite(fd, "XYZ", 0), ok)
		is(g, "place", g.tell(fd), 4)
		is(g, "size", g.fstat(fd).size, 4)
		is(g, "content", g.content("log"), "XYZd")
	}},
	{test: "sock_shutdown-invalid_fd", what: "shutdown of a descriptor that is not open fails: EBADF", probe: func(g *guest) {
		g.close(root)
		g.want("sock_shutdown", g.call("sock_shutdown", 3, 1), EBADF)
	}},
	{test: "sock_shutdown-not_sock", what: "a stream is not a socket: ENOTSOCK", probe: func(g *guest) {
		for fd := range uint64(4) {
			g.want("sock_shutdown", g.call("sock_shutdown", fd, 1), ENOTSOCK)
		}
	}},
	{test: "stat-dev-ino", what: "two files of a directory have the same device and different inodes", probe: func(g *guest) {
		a, b := g.fstat(g.fresh("a", toRead, 0)), g.fstat(g.fresh("b", toRead, 0))
		is(g, "device", a.dev, b.dev)
		is(g, "different inodes", a.ino != b.ino, true)
	}},
}

// strings returns the result of args_get or environ_get.
func (g *guest) strings(sizes, get string) (all []string) {
	g.t.Helper()
	g.want(sizes, g.call(sizes, atResult, atResult+4), ok)
	count, size := g.u32(atResult), g.u32(atResult+4)
	g.want(get, g.call(get, atVector, atBuffer), ok)
	for i := range count {
		s, _, _ := strings.Cut(string(g.bytes(g.u32(atVector+4*i), 256)), "\x00")
		all = append(all, s)
		size -= uint32(len(s) + 1)
	}
	is(g, "bytes that were counted and not there", size, 0)
	return all
}

func argumentsAre(want ...string) demand {
	return demand{given: wasi.Options{Args: want}, probe: func(g *guest) {
		is(g, "arguments", fmt.Sprintf("%q", g.strings("args_sizes_get", "args_get")), fmt.Sprintf("%q", want))
	}}
}

func environmentIs(want ...string) demand {
	return demand{given: wasi.Options{Env: want}, probe: func(g *guest) {
		is(g, "variables", fmt.Sprintf("%q", g.strings("environ_sizes_get", "environ_get")), fmt.Sprintf("%q", want))
	}}
}

func (d demand) named(test, what string) demand { d.test, d.what = test, what; return d }

// exitsWith runs a module that calls proc_exit, and traps if proc_exit returns.
func exitsWith(code byte) func(g *guest) {
	return func(g *guest) {
		module := slices.Concat(
			[]byte("\x00asm\x01\x00\x00\x00"),
			[]byte{1, 8, 2, 0x60, 1, 0x7f, 0, 0x60, 0, 0}, // types: (i32) and ()
			[]byte{2, 36, 1, 22}, []byte(wasi.Name), []byte{9}, []byte("proc_exit"), []byte{0, 0},
			[]byte{3, 2, 1, 1},
			[]byte{7, 10, 1, 6}, []byte("_start"), []byte{0, 1},
			[]byte{10, 9, 1, 7, 0, 0x41, code, 0x10, 0, 0, 0x0b}, // i32.const, call, unreachable
		)
		r := wazero.NewRuntimeWithConfig(g.ctx, wazero.NewRuntimeConfigInterpreter())
		defer r.Close(context.Background())
		if err := wasi.Instantiate(g.ctx, r); err != nil {
			g.t.Fatal(err)
		}
		_, err := r.InstantiateWithConfig(g.ctx, module, wazero.NewModuleConfig().WithName(""))
		got, exited := g.process.Exited()
		is(g, fmt.Sprintf("it has exited (%v)", err), exited, true)
		is(g, "exit code", got, uint32(code))
	}
}

// inAssemblyScript contains the tests that are written in AssemblyScript.
var inAssemblyScript = []demand{
	argumentsAre("program", "one", `a "quoted" one`, "3").named("args_get-multiple-arguments", "arguments arrive unchanged, including quotes"),
	argumentsAre("program", "one", "", "three").named("args_sizes_get-multiple-arguments", "all of them are counted, including the program's name"),
	argumentsAre("program").named("args_sizes_get-no-arguments", "without arguments there is only the name"),
	environmentIs("a=text", `b=a "quoted" one`, "c=two\nlines").named("environ_get-multiple-variables", "variables arrive unchanged and in order, including quotes and line breaks"),
	environmentIs("a=b", "b=", "c=d=e").named("environ_sizes_get-multiple-variables", "all of them are counted"),
	environmentIs().named("environ_sizes_get-no-variables", "the environment of the host is not visible"),
	{test: "fd_write-to-invalid-fd", what: "a write to a descriptor that is not open fails: EBADF, for any number", probe: func(g *guest) {
		for _, fd := range []uint64{4, 99, 0x7fffffff, 0x80000000, 0xffffffff, 0xffff8597} {
			g.want(fmt.Sprint("write to ", fd), g.call("fd_write", fd, 0, 0, atResult), EBADF)
		}
	}},
	{test: "fd_write-to-stdout", what: "output to standard output arrives, and is counted", given: wasi.Options{Stdout: &stdout}, probe: func(g *guest) {
		stdout.Reset()
		n, e := g.write(1, "hello")
		g.want("write", e, ok)
		is(g, "written", n, 5)
		is(g, "arrived", stdout.String(), "hello")
	}},
	{test: "proc_exit-failure", what: "a program ends immediately with the given exit code", probe: exitsWith(33)},
	{test: "proc_exit-success", what: "the same with 0", probe: exitsWith(0)},
	{test: "random_get-non-zero-length", what: "random bytes are available", probe: func(g *guest) {
		g.want("random_get", g.call("random_get", atBuffer, 32), ok)
		is(g, "it is not nothing", bytes.Equal(g.bytes(atBuffer, 32), make([]byte, 32)), false)
	}},
	{test: "random_get-zero-length", what: "a request for zero bytes succeeds", probe: func(g *guest) {
		g.want("random_get", g.call("random_get", atBuffer, 0), ok)
		g.want("random_get at the end of memory", g.call("random_get", 64<<16, 0), ok)
	}},
}

var stdout bytes.Buffer

// listed counts the names in a directory, which it reads with a small buffer.
func (g *guest) listed(dir uint64, size uint32) int {
	g.t.Helper()
	names := map[string]bool{}
	for cookie, end := uint64(0), false; !end; {
		var all []entry
		all, end = g.entries(dir, size, cookie)
		for _, e := range all {
			names[e.name], cookie = true, e.next
		}
	}
	return len(names)
}

// inRust contains the tests that are written in Rust.
var inRust = []demand{
	{test: "big_random_buf", what: "a kilobyte of random bytes is not all zeros", probe: func(g *guest) {
		g.want("random_get", g.call("random_get", atBuffer, 1<<10), ok)
		is(g, "it is not nothing", bytes.Equal(g.bytes(atBuffer, 1<<10), make([]byte, 1<<10)), false)
	}},
	{test: "clock_time_get", what: "the monotonic clock does not go back, at any requested precision", probe: monotonicTime},
	{test: "close_preopen", what: "a preopened directory can be closed; directories that were opened through it stay open", probe: func(g *guest) {
		dir := g.open(".", opening{how: dironly})
		g.close(root)
		g.want("closed", g.call("fd_fdstat_get", root, atResult), EBADF)
		kind, _, _, _ := g.fdstat(dir)
		is(g, "kind", kind, 3)
	}},
	{test: "dangling_fd", what: "a file or directory that was opened, closed and removed can be created again with the same name", probe: func(g *guest) {
		for range 2 {
			g.close(g.fresh("file", 0, 0))
			g.close(g.open("file", opening{}))
			g.want("unlink", g.unlink("file"), ok)
			g.close(g.sub("dir"))
			g.want("rmdir", g.rmdir("dir"), ok)
		}
		held := g.fresh("file", toRead, 0)
		g.want("unlink what is open", g.unlink("file"), ok)
		g.close(g.fresh("file", 0, 0))
		is(g, "names of what is open", g.fstat(held).links, 0)
	}},
	{test: "dangling_symlink", what: "a dangling link is not opened without following links: ELOOP, ENOTDIR for a directory", probe: func(g *guest) {
		g.want("symlink", g.symlink("nothing", "dangling"), ok)
		g.refused("dangling", opening{}, ELOOP)
		g.refused("dangling", opening{how: dironly}, ENOTDIR)
		g.want("unlink", g.unlink("dangling"), ok)
	}},
	{test: "dir_fd_op_failures", what: "a directory cannot be read, written, sought or resized: EISDIR; a buffer for its name must be large enough", probe: func(g *guest) {
		dir := g.open(".", opening{how: dironly})
		is(g, "kind", g.fstat(dir).kind, 3)
		g.want("its name without room", g.call("fd_prestat_dir_name", root, atBuffer, 0), ENAMETOOLONG)
		g.want("its name with more room", g.call("fd_prestat_dir_name", root, atBuffer, 2), ok)
		v, n := g.vector(128)
		for _, c := range []struct {
			name string
			args []uint64
		}{
			{"fd_read", []uint64{v, n, atResult}}, {"fd_pread", []uint64{v, n, 0, atResult}}, {"fd_write", []uint64{v, n, atResult}}, {"fd_pwrite", []uint64{v, n, 0, atResult}},
			{"fd_seek", []uint64{0, 0, atResult}}, {"fd_seek", []uint64{0, 1, atResult}}, {"fd_seek", []uint64{0, 2, atResult}}, {"fd_tell", []uint64{atResult}},
			{"fd_allocate", []uint64{0, 1}}, {"fd_filestat_set_size", []uint64{0}},
		} {
			g.want(c.name, g.call(c.name, append([]uint64{dir}, c.args...)...), EISDIR)
		}
	}},
	{test: "directory_seek", what: "a directory opened with the right to seek cannot seek, and does not have the right", probe: func(g *guest) {
		g.want("mkdir", g.mkdir("dir"), ok)
		dir := g.open("dir", opening{how: dironly, rights: toSeek})
		g.want("seek", second(g.seek(dir, 0, 1)), EISDIR)
		kind, _, base, _ := g.fdstat(dir)
		is(g, "kind", kind, 3)
		is(g, "right to seek", base&toSeek, 0)
	}},
	{test: "fd_advise", what: "advice is accepted, and changes no size", probe: func(g *guest) {
		fd := g.fresh("file", both, 0)
		g.want("set size", g.call("fd_filestat_set_size", fd, 100), ok)
		for advice := range uint64(6) {
			g.want("advise", g.call("fd_advise", fd, 10, 50, advice), ok)
		}
		is(g, "size", g.fstat(fd).size, 100)
		g.want("allocate", g.call("fd_allocate", fd, 100, 100), ok)
		is(g, "size", g.fstat(fd).size, 200)
	}},
	{test: "fd_fdstat_set_rights", what: "rights are removed as preview 1 defines, or not at all: ENOTSUP", probe: func(g *guest) {
		for _, fd := range []uint64{root, g.fresh("file", both, 0)} {
			_, _, base, inheriting := g.fdstat(fd)
			g.want("the same", g.call("fd_fdstat_set_rights", fd, base, inheriting), ENOTSUP)
			g.want("fewer", g.call("fd_fdstat_set_rights", fd, base&^both, inheriting&^both), ENOTSUP)
			_, _, after, below := g.fdstat(fd)
			is(g, "rights", after, base)
			is(g, "rights below", below, inheriting)
		}
	}},
	{test: "fd_filestat_set", what: "a descriptor sets its file's size, and a single one of its times, to the nanosecond", probe: func(g *guest) {
		fd := g.fresh("file", both, 0)
		is(g, "size", g.fstat(fd).size, 0)
		g.want("set size", g.call("fd_filestat_set_size", fd, 100), ok)
		before := g.fstat(fd)
		is(g, "size", before.size, 100)
		g.want("set times", g.call("fd_filestat_set_times", fd, 1, before.mtim-100, setMtim), ok)
		after := g.fstat(fd)
		is(g, "size", after.size, 100)
		is(g, "mtim", after.mtim, before.mtim-100)
		is(g, "atim", after.atim, before.atim)
	}},
	{test: "fd_flags_set", what: "writes append until the flag is removed", probe: func(g *guest) {
		fd := g.fresh("file", both|toSeek, appended)
		for _, step := range []struct {
			write string
			flags uint64
			want  string
		}{{"aaaa", appended, "aaaa"}, {"bbbb", appended, "aaaabbbb"}, {"cccc", 0, "ccccbbbb"}} {
			g.want("flags", g.call("fd_fdstat_set_flags", fd, step.flags), ok)
			_, flags, _, _ := g.fdstat(fd)
			is(g, "flags", uint64(flags), step.flags)
			g.want("seek", second(g.seek(fd, 0, 0)), ok)
			n, e := g.write(fd, step.write)
			g.want("write", e, ok)
			is(g, "written", n, len(step.write))
			is(g, "content", g.content("file"), step.want)
		}
		is(g, "size by path", g.statted(nofollow, "file").size, 8)
	}},
	{test: "fd_readdir", what: "a directory lists itself, its parent and its files; each entry has the position of the next; a thousand entries are listed in parts", probe: func(g *guest) {
		dir := g.sub("dir")
		all, end := g.entries(dir, 256, 0)
		is(g, "that is all", end, true)
		is(g, "entries of an empty one", len(all), 2)
		slices.SortFunc(all, func(a, b entry) int { return strings.Compare(a.name, b.name) })
		for i, name := range []string{".", ".."} {
			is(g, "name", all[i].name, name)
			is(g, "kind", all[i].kind, 3)
		}
		is(g, "inode", all[0].ino, g.fstat(dir).ino)

		file := g.fresh("dir/file", both, 0)
		all, _ = g.entries(dir, 256, 0)
		is(g, "entries", len(all), 3)
		for _, e := range all {
			if e.name == "file" {
				is(g, "kind", e.kind, 4)
				is(g, "inode", e.ino, g.fstat(file).ino)
			}
		}
		rest, end := g.entries(dir, 256, all[1].next)
		is(g, "that is all", end, true)
		is(g, "behind the second", len(rest), 1)
		is(g, "name", rest[0].name, all[2].name)
		for i := range 999 {
			g.call("fd_close", g.open(fmt.Sprint("dir/", i), opening{how: creat}))
		}
		is(g, "names of a thousand files", g.listed(dir, 256), 1002)
	}},
	{test: "file_allocate", what: "allocating makes a file larger, never smaller", probe: func(g *guest) {
		fd := g.fresh("file", both, 0)
		for _, a := range []struct{ offset, length, size uint64 }{{0, 100, 100}, {10, 10, 100}, {90, 20, 110}} {
			g.want("allocate", g.call("fd_allocate", fd, a.offset, a.length), ok)
			is(g, "size", g.fstat(fd).size, a.size)
		}
	}},
	{test: "file_pread_pwrite", what: "one buffer and several are read and written at offsets; at the end fewer bytes are read", probe: func(g *guest) {
		fd := g.fresh("file", both|toSeek, 0)
		g.want("pwrite", g.pwrite(fd, "\x00\x01\x02\x03", 0), ok)
		got, _ := g.pread(fd, 4, 0)
		is(g, "content", got, "\x00\x01\x02\x03")
		got, _ = g.pread(fd, 4, 2)
		is(g, "the end", got, "\x02\x03")
		got, e := g.pread(fd, 4, 4)
		g.want("pread at the end", e, ok)
		is(g, "at the end", got, "")
		g.want("pwrite", g.pwrite(fd, "\x01\x00", 2), ok)

		pieces := func(at ...uint32) (uint64, uint64) {
			for i, at := range at {
				g.module.Memory().WriteUint32Le(atVector+8*uint32(i), at)
				g.module.Memory().WriteUint32Le(atVector+8*uint32(i)+4, 2)
			}
			return atVector, uint64(len(at))
		}
		v, n := pieces(atBuffer+8, atBuffer)
		g.want("pread into two", g.call("fd_pread", fd, v, n, 0, atResult), ok)
		is(g, "read", g.u32(atResult), 4)
		is(g, "content", string(g.bytes(atBuffer, 2))+string(g.bytes(atBuffer+8, 2)), "\x01\x00\x00\x01")
		v, n = pieces(atBuffer, atBuffer+8)
		g.want("pwrite of two", g.call("fd_pwrite", fd, v, n, 1, atResult), ok)
		is(g, "content", g.content("file"), "\x00\x01\x00\x00\x01")
	}},
	{test: "file_seek_tell", what: "an offset may be after the end, never before the start: EINVAL; reads and writes advance it", probe: func(g *guest) {
		fd := g.fresh("file", both|toSeek, 0)
		is(g, "place", g.tell(fd), 0)
		g.write(fd, strings.Repeat("x", 100))
		is(g, "place", g.tell(fd), 100)
		for _, s := range []struct {
			offset int64
			whence uint64
			at     uint64
			e      errno
		}{{-50, 1, 50, ok}, {0, 0, 0, ok}, {1000, 1, 1000, ok}, {-2000, 1, 0, EINVAL}, {-101, 2, 0, EINVAL}, {-1, 0, 0, EINVAL}, {0, 0, 0, ok}} {
			at, e := g.seek(fd, s.offset, s.whence)
			g.want("seek", e, s.e)
			if e == ok {
				is(g, "place", at, s.at)
			}
		}
		got, _ := g.read(fd, 100)
		is(g, "read", len(got), 100)
		is(g, "place", g.tell(fd), 100)
	}},
	{test: "file_truncation", what: "a file opened with truncation is empty", probe: func(g *guest) {
		g.create("file", "what was there")
		fd := g.open("file", opening{how: creat | trunc, rights: both})
		got, e := g.read(fd, 100)
		g.want("read", e, ok)
		is(g, "content", got, "")
		g.create("file", "again")
		g.close(g.open("file", opening{how: trunc}))
		is(g, "size", g.statted(nofollow, "file").size, 0)
	}},
	{test: "file_unbuffered_write", what: "data written through one descriptor is immediately visible through another", probe: func(g *guest) {
		reader := g.fresh("file", toRead, 0)
		writer := g.open("file", opening{rights: toWrite})
		for _, c := range []string{"1", "2"} {
			g.write(writer, c)
			got, e := g.read(reader, 1)
			g.want("read", e, ok)
			is(g, "read", got, c)
		}
	}},
	{test: "fstflags_validate", what: "a time cannot be both explicit and the current time: EINVAL", probe: func(g *guest) {
		fd := g.fresh("file", toRead, 0)
		before := g.fstat(fd)
		for _, flags := range []uint64{setMtim | mtimNow, setAtim | atimNow} {
			g.want("set times", g.call("fd_filestat_set_times", fd, 100, 200, flags), EINVAL)
		}
		is(g, "nothing has changed", g.fstat(fd), before)
	}},
	{test: "interesting_paths", what: "paths may go up and down and have trailing slashes after directories; paths that are absolute or lead outside: EPERM; with a zero byte: EINVAL; with a slash after a file: ENOTDIR", probe: func(g *guest) {
		g.want("mkdir", g.mkdir("a"), ok)
		g.want("mkdir", g.mkdir("a/b"), ok)
		g.close(g.fresh("a/b/c", 0, 0))
		for _, p := range []struct {
			path string
			want errno
		}{
			{"a/.//b/../../a/b/../b///./c", ok}, {"a/b/", ok}, {"a/b///", ok}, {".", ok}, {"a/../a/..", ok},
			{"/a/b/c", EPERM}, {"a/b/../../../" + filepath.Base(g.host) + "/a/b/c", EPERM}, {"..", EPERM}, {"a/../..", EPERM},
			{"a/b/c\x00", EINVAL}, {"a/b/c/", ENOTDIR}, {"a/b/c///", ENOTDIR}, {"", ENOENT},
		} {
			fd, e := g.openAt(root, p.path, opening{})
			g.want(fmt.Sprintf("open %q", p.path), e, p.want)
			if e == ok {
				g.close(fd)
			}
		}
	}},
	{test: "isatty", what: "a file is not a terminal: it is a regular file, which can seek", probe: func(g *guest) {
		kind, _, base, _ := g.fdstat(g.fresh("file", toRead, 0))
		is(g, "kind", kind, 4)
		is(g, "it seeks", base&toSeek != 0, true)
	}},
	{test: "nofollow_errors", what: "a link is followed if requested, and otherwise not opened: ELOOP, ENOTDIR for a directory", probe: func(g *guest) {
		g.want("symlink", g.symlink("target", "link"), ok)
		for _, kind := range []string{"directory", "file"} {
			last := ok
			if kind == "directory" {
				g.want("mkdir", g.mkdir("target"), ok)
			} else {
				last = ENOTDIR
				g.want("rmdir", g.rmdir("target"), ok)
				g.close(g.fresh("target", 0, 0))
			}
			g.refused("link", opening{}, ELOOP)
			g.refused("link", opening{how: dironly}, ENOTDIR)
			g.refused("link", opening{how: dironly, lookup: follow}, last)
			g.refused("link", opening{lookup: follow}, ok)
		}
	}},
	{test: "overwrite_preopen", what: "another directory can take the number of a preopened one", probe: func(g *guest) {
		dir := g.sub("dir")
		was := g.fstat(dir)
		g.want("renumber", g.call("fd_renumber", dir, root), ok)
		is(g, "the number is the other's", g.fstat(root), was)
		g.want("its own is free", g.call("fd_fdstat_get", dir, atResult), EBADF)
		g.close(root)
	}},
	{test: "path_exists", what: "directories, files and links report their type, and the type of their target if requested", probe: func(g *guest) {
		g.want("mkdir", g.mkdir("dir"), ok)
		g.close(g.fresh("dir/file", 0, 0))
		g.want("symlink", g.symlink("dir/file", "tofile"), ok)
		g.want("symlink", g.symlink("dir", "todir"), ok)
		for _, c := range []struct {
			path         string
			itself, kind byte
		}{{"dir", 3, 3}, {"dir/file", 4, 4}, {"tofile", 7, 4}, {"todir", 7, 3}} {
			is(g, c.path, g.statted(nofollow, c.path).kind, c.itself)
			is(g, c.path+" followed", g.statted(follow, c.path).kind, c.kind)
		}
	}},
	{test: "path_filestat", what: "a path can set a single time; a descriptor reports the flags with which it was opened", probe: func(g *guest) {
		_, _, base, _ := g.fdstat(root)
		is(g, "right to stat", base>>18&1, 1)
		_, flags, _, _ := g.fdstat(g.fresh("file", both, appended|synced))
		is(g, "flags", flags, appended|synced)
		st := g.statted(nofollow, "file")
		is(g, "size", st.size, 0)
		g.want("set times", g.setTimes(nofollow, "file", 0, st.mtim-100, setMtim), ok)
		is(g, "mtim", g.statted(nofollow, "file").mtim, st.mtim-100)
		g.want("given and now", g.setTimes(nofollow, "file", 0, st.mtim, setMtim|mtimNow), EINVAL)
		g.want("given and now", g.setTimes(nofollow, "file", 0, 0, setAtim|atimNow), EINVAL)
		is(g, "mtim", g.statted(nofollow, "file").mtim, st.mtim-100)
		is(g, "atim", g.statted(nofollow, "file").atim, st.atim)
	}},
	{test: "path_link", what: "a second name refers to the same file; an existing name is not replaced: EEXIST; a directory cannot be linked: EPERM; a link itself is linked, never followed: EINVAL", probe: func(g *guest) {
		fd := g.fresh("file", toRead, 0)
		dir := g.sub("dir")
		for _, to := range []uint64{root, dir} {
			g.want("link", g.linkAt(nofollow, root, "file", to, "link"), ok)
			other, e := g.openAt(to, "link", opening{rights: toRead})
			g.want("open", e, ok)
			is(g, "file", g.fstat(other), g.fstat(fd))
			kind, flags, base, inheriting := g.fdstat(fd)
			kind2, flags2, base2, inheriting2 := g.fdstat(other)
			is(g, "descriptor", fmt.Sprint(kind2, flags2, base2, inheriting2), fmt.Sprint(kind, flags, base, inheriting))
			p, n := g.string(atPath, "link")
			g.want("unlink", g.call("path_unlink_file", to, p, n), ok)
		}
		g.close(g.fresh("taken", 0, 0))
		g.want("symlink", g.symlink("nothing", "dangling"), ok)
		g.want("symlink", g.symlink("loop", "loop"), ok)
		for _, l := range []struct {
			old, new string
			lookup   uint64
			want     errno
		}{
			{"file", "taken", nofollow, EEXIST}, {"file", "file", nofollow, EEXIST}, {"file", "dir", nofollow, EEXIST}, {"file", "dangling", nofollow, EEXIST},
			{"dir", "link", nofollow, EPERM}, {"file", "link/", nofollow, ENOENT}, {"dangling", "link", follow, EINVAL},
			{"dangling", "link", nofollow, ok}, {"loop", "link2", nofollow, ok},
		} {
			g.want(fmt.Sprintf("link %s to %s", l.old, l.new), g.link(l.lookup, l.old, l.new), l.want)
		}
		is(g, "the link of a link", g.statted(nofollow, "link").kind, 7)
	}},
	{test: "path_open_create_existing", what: "an exclusive create of an existing file fails: EEXIST", probe: func(g *guest) {
		g.close(g.fresh("file", 0, 0))
		g.refused("file", opening{how: creat | excl}, EEXIST)
	}},
	{test: "path_open_dirfd_not_dir", what: "a path cannot start at a file: ENOTDIR", probe: func(g *guest) {
		fd := g.fresh("file", 0, 0)
		g.want("open", second(g.openAt(fd, "below", opening{how: creat})), ENOTDIR)
	}},
	{test: "path_open_missing", what: "a missing file cannot be opened: ENOENT", probe: func(g *guest) {
		g.refused("file", opening{}, ENOENT)
	}},
	{test: "path_open_nonblock", what: "a directory may be opened in non-blocking mode", probe: func(g *guest) {
		g.refused(".", opening{flags: nonblocking}, ok)
	}},
	{test: "path_open_preopen", what: "a preopened directory has the rights that libraries check, and can open itself with all, some or none of them; not for writing: EISDIR", probe: func(g *guest) {
		g.want("prestat", g.call("fd_prestat_get", root, atResult), ok)
		is(g, "it is a directory", g.u32(atResult), 0)
		is(g, "length of its name", g.u32(atResult+4), 1)
		_, _, base, inheriting := g.fdstat(root)
		const ofDirectories = 1<<9 | 1<<10 | 1<<11 | 1<<12 | 1<<13 | 1<<14 | 1<<15 | 1<<16 | 1<<17 | 1<<18 | 1<<20 | 1<<21 | 1<<23 | 1<<24 | 1<<25 | 1<<26
		const ofFiles = 0x1ff | 1<<22 | 1<<27
		is(g, "rights that are missing", ofDirectories&^base, 0)
		is(g, "rights below that are missing", (ofDirectories|ofFiles)&^inheriting, 0)
		for _, o := range []opening{{rights: base}, {}, {how: dironly}, {how: dironly, rights: toRead}} {
			g.refused(".", o, ok)
		}
		g.refused(".", opening{how: dironly, rights: both}, EISDIR)
	}},
	{test: "path_open_read_write", what: "a descriptor supports the operations for which it was opened, reports them, and refuses others: EBADF", probe: func(g *guest) {
		g.close(g.fresh("file", 0, 0))
		for _, o := range []struct {
			rights      uint64
			read, write errno
			size        uint64
		}{{toRead, ok, EBADF, 0}, {toWrite, EBADF, ok, 5}, {both, ok, ok, 10}, {0, EBADF, EBADF, 10}} {
			fd := g.open("file", opening{rights: o.rights})
			_, _, base, _ := g.fdstat(fd)
			is(g, "rights", base&both, o.rights)
			_, e := g.read(fd, 100)
			g.want("read", e, o.read)
			_, e = g.write(fd, "xxxxx")
			g.want("write", e, o.write)
			is(g, "size", g.fstat(fd).size, o.size)
			g.close(fd)
		}
	}},
	{test: "path_rename", what: "files and empty directories replace others of the same type; not a directory with entries: ENOTEMPTY; not a file by a directory: ENOTDIR; not a directory by a file: EISDIR", probe: func(g *guest) {
		g.want("mkdir", g.mkdir("dir"), ok)
		g.want("to nothing", g.rename("dir", "dir2"), ok)
		g.refused("dir", opening{how: dironly}, ENOENT)
		g.want("mkdir", g.mkdir("dir"), ok)
		g.want("to an empty one", g.rename("dir", "dir2"), ok)
		g.refused("dir", opening{how: dironly}, ENOENT)
		g.refused("dir2", opening{how: dironly}, ok)
		g.create("dir2/file", "")
		g.want("mkdir", g.mkdir("dir"), ok)
		g.want("to a full one", g.rename("dir", "dir2"), ENOTEMPTY)
		g.want("to a file", g.rename("dir", "dir2/file"), ENOTDIR)
		g.create("a", "a")
		g.want("a file to nothing", g.rename("a", "b"), ok)
		g.refused("a", opening{}, ENOENT)
		g.create("a", "new")
		g.want("a file to a file", g.rename("a", "b"), ok)
		is(g, "content", g.content("b"), "new")
		g.want("a file to a directory", g.rename("b", "dir"), EISDIR)
	}},
	{test: "path_rename_dir_trailing_slashes", what: "trailing slashes after either name of a directory are ignored", probe: func(g *guest) {
		g.want("mkdir", g.mkdir("a"), ok)
		for _, n := range [][2]string{{"a/", "b"}, {"b", "a/"}, {"a/", "b/"}, {"b", "a"}, {"a//", "b"}} {
			g.want(fmt.Sprint("rename ", n), g.rename(n[0], n[1]), ok)
		}
	}},
	{test: "path_symlink_trailing_slashes", what: "the name of a new link cannot have a trailing slash: ENOENT; an existing name is not replaced: EEXIST, ENOTDIR for a file with a slash", probe: func(g *guest) {
		g.want("mkdir", g.mkdir("dir"), ok)
		g.close(g.fresh("file", 0, 0))
		for _, l := range []struct {
			path string
			want errno
		}{{"new/", ENOENT}, {"new", ok}, {"dir/", EEXIST}, {"dir", EEXIST}, {"file/", ENOTDIR}, {"file", EEXIST}} {
			g.want("symlink "+l.path, g.symlink("nothing", l.path), l.want)
		}
	}},
	{test: "poll_oneoff_stdio", what: "standard input is ready or the timeout expires; standard output and error are ready before that", probe: func(g *guest) {
		const late = uint64(time.Hour)
		subscribe := func(at uint32, data uint64, kind byte, id uint32, timeout uint64) {
			b := make([]byte, 48)
			binary.LittleEndian.PutUint64(b, data)
			b[8] = kind
			binary.LittleEndian.PutUint32(b[16:], id)
			binary.LittleEndian.PutUint64(b[24:], timeout)
			g.module.Memory().Write(at, b)
		}
		events := func(count uint64) string {
			g.want("poll_oneoff", g.call("poll_oneoff", atBuffer, atBuffer+0x1000, count, atResult), ok)
			var all []string
			for i := range g.u32(atResult) {
				b := g.bytes(atBuffer+0x1000+32*i, 32)
				all = append(all, fmt.Sprintf("%d kind %d errno %d", binary.LittleEndian.Uint64(b), b[10], binary.LittleEndian.Uint16(b[8:])))
			}
			return strings.Join(all, ", ")
		}
		subscribe(atBuffer, 7, 0, 1, uint64(time.Millisecond))
		is(g, "a clock", events(1), "7 kind 0 errno 0")
		subscribe(atBuffer, 7, 0, 1, late)
		subscribe(atBuffer+48, 8, 1, 0, 0)
		is(g, "input that has ended", events(2), "8 kind 1 errno 0")
		subscribe(atBuffer+48, 9, 2, 1, 0)
		subscribe(atBuffer+96, 10, 2, 2, 0)
		is(g, "output", events(3), "9 kind 2 errno 0, 10 kind 2 errno 0")
	}},
	{test: "readlink", what: "a link returns its target, up to the size of the buffer, and writes nothing after it", probe: func(g *guest) {
		g.want("symlink", g.symlink("target", "link"), ok)
		for _, room := range []int{10, 6, 4, 0} {
			g.module.Memory().Write(atBuffer, make([]byte, 10))
			want := "target"[:min(room, 6)]
			got, e := g.readlink("link", room)
			g.want("readlink", e, ok)
			is(g, "target", got, want)
			is(g, "behind it", string(g.bytes(atBuffer, 10)), want+strings.Repeat("\x00", 10-len(want)))
		}
	}},
	{test: "remove_directory_trailing_slashes", what: "trailing slashes after a removed directory are ignored; a file cannot be removed this way: ENOTDIR", probe: func(g *guest) {
		for _, path := range []string{"dir", "dir/", "dir//"} {
			g.want("mkdir", g.mkdir("dir"), ok)
			g.want("rmdir "+path, g.rmdir(path), ok)
		}
		g.close(g.fresh("file", 0, 0))
		g.want("rmdir file", g.rmdir("file"), ENOTDIR)
		g.want("rmdir file/", g.rmdir("file/"), ENOTDIR)
	}},
	{test: "remove_nonempty_directory", what: "a directory with entries cannot be removed: ENOTEMPTY", probe: func(g *guest) {
		g.want("mkdir", g.mkdir("dir"), ok)
		g.want("mkdir", g.mkdir("dir/sub"), ok)
		g.want("rmdir", g.rmdir("dir"), ENOTEMPTY)
		g.want("rmdir", g.rmdir("dir/sub"), ok)
		g.want("rmdir", g.rmdir("dir"), ok)
	}},
	{test: "renumber", what: "a descriptor takes the number of another with its whole state; the old number becomes free, and an unused one cannot be a target: EBADF", probe: func(g *guest) {
		from, to := g.fresh("one", both, appended), g.fresh("two", toRead, 0)
		is(g, "different files", g.fstat(from) != g.fstat(to), true)
		st := g.fstat(from)
		k, f, b, i := g.fdstat(from)
		g.want("renumber", g.call("fd_renumber", from, to), ok)
		g.want("close the old number", g.call("fd_close", from), EBADF)
		is(g, "file", g.fstat(to), st)
		k2, f2, b2, i2 := g.fdstat(to)
		is(g, "descriptor", fmt.Sprint(k2, f2, b2, i2), fmt.Sprint(k, f, b, i))
		g.want("to the free number", g.call("fd_renumber", to, from), EBADF)
		g.want("from the free number", g.call("fd_renumber", from, to), EBADF)
	}},
	{test: "sched_yield", what: "yielding the processor succeeds", probe: func(g *guest) {
		g.want("sched_yield", g.call("sched_yield"), ok)
	}},
	{test: "stdio", what: "each standard stream can take the number of a file, and frees its own", probe: func(g *guest) {
		for fd := range uint64(3) {
			to := g.fresh(fmt.Sprint("file", fd), 0, 0)
			g.want("renumber", g.call("fd_renumber", fd, to), ok)
			g.want("the file's number", g.call("fd_fdstat_get", to, atResult), ok)
			g.want("the stream's own", g.call("fd_fdstat_get", fd, atResult), EBADF)
			g.want("unlink", g.unlink(fmt.Sprint("file", fd)), ok)
		}
	}},
	{test: "symlink_create", what: "links to files and directories can be followed; absolute links cannot be created", probe: func(g *guest) {
		g.close(g.fresh("file", 0, 0))
		g.want("mkdir", g.mkdir("dir"), ok)
		g.want("symlink", g.symlink("file", "tofile"), ok)
		g.want("symlink", g.symlink("dir", "todir"), ok)
		g.refused("tofile", opening{lookup: follow}, ok)
		g.refused("todir", opening{lookup: follow, how: dironly}, ok)
		g.want("unlink", g.unlink("tofile"), ok)
		g.want("unlink", g.unlink("todir"), ok)
		g.refused("file", opening{}, ok)
		g.want("absolute", g.symlink("/", "absolute"), EPERM)
		g.want("there is none", second(g.stat(nofollow, "absolute")), ENOENT)
	}},
	{test: "symlink_filestat", what: "a link has its own times, which are set without following it", probe: func(g *guest) {
		g.create("file", "content")
		file := g.statted(nofollow, "file")
		g.want("symlink", g.symlink("file", "link"), ok)
		link := g.statted(nofollow, "link")
		is(g, "size of the link", link.size, uint64(len("file")))
		g.want("set its times", g.setTimes(nofollow, "link", 0, link.mtim-200, setMtim), ok)
		is(g, "its mtim", g.statted(nofollow, "link").mtim, link.mtim-200)
		is(g, "the file's", g.statted(nofollow, "file").mtim, file.mtim)
		is(g, "the file's, followed", g.statted(follow, "link").mtim, file.mtim)
		g.want("set the file's times", g.setTimes(follow, "link", 0, link.mtim-300, setMtim), ok)
		is(g, "the file's mtim", g.statted(nofollow, "file").mtim, link.mtim-300)
		is(g, "the link's", g.statted(nofollow, "link").mtim, link.mtim-200)
	}},
	{test: "symlink_loop", what: "a link to itself cannot be opened: ELOOP", probe: func(g *guest) {
		g.want("symlink", g.symlink("loop", "loop"), ok)
		g.refused("loop", opening{}, ELOOP)
		g.refused("loop", opening{lookup: follow}, ELOOP)
	}},
	{test: "truncation_rights", what: "a directory has no flags and no right to set its size; truncation by path is a right that can be removed, or does not exist", probe: func(g *guest) {
		dir := g.sub("dir")
		kind, flags, base, _ := g.fdstat(dir)
		is(g, "kind", kind, 3)
		is(g, "flags", flags, 0)
		is(g, "right to set its size", base>>22&1, 0)
		is(g, "right to set sizes by path", base>>19&1, 0)
	}},
	{test: "unlink_file_trailing_slashes", what: "a directory cannot be unlinked: EISDIR; neither can a file with a trailing slash: ENOTDIR", probe: func(g *guest) {
		g.want("mkdir", g.mkdir("dir"), ok)
		g.close(g.fresh("file", 0, 0))
		for _, u := range []struct {
			path string
			want errno
		}{{"dir", EISDIR}, {"dir/", EISDIR}, {"file/", ENOTDIR}, {"file", ok}, {"file", ENOENT}} {
			g.want("unlink "+u.path, g.unlink(u.path), u.want)
		}
	}},
}
