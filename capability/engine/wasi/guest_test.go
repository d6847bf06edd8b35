package wasi_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"glasshouse/capability/engine/wasi"
)

// A guest is a module with an export for each function of preview 1, which forwards the call.
// The constants below are the addresses of buffers in its memory.
type guest struct {
	t       *testing.T
	ctx     context.Context
	module  api.Module
	process *wasi.Process
	host    string // path of its first directory on the host
	checks  int    // number of checks
}

const (
	atPath   = 0x1000
	atPath2  = 0x3000
	atResult = 0x5000
	atVector = 0x6000
	atBuffer = 0x10000

	root = 3 // the first directory
)

// enter returns a guest with the given directories.
func enter(t *testing.T, dirs ...wasi.Dir) *guest {
	t.Helper()
	return enterWith(t, wasi.Options{Dirs: dirs})
}

func enterWith(t *testing.T, o wasi.Options) *guest {
	t.Helper()
	p, err := wasi.New(o)
	if err != nil {
		t.Fatal(err)
	}
	r := wazero.NewRuntimeWithConfig(t.Context(), wazero.NewRuntimeConfigInterpreter())
	if err := wasi.Instantiate(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	ctx := wasi.With(t.Context(), p)
	m, err := r.InstantiateWithConfig(ctx, relay(), wazero.NewModuleConfig().WithName(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		r.Close(context.Background())
	})
	g := &guest{t: t, ctx: ctx, module: m, process: p}
	if len(o.Dirs) > 0 {
		g.host = o.Dirs[0].Host
	}
	return g
}

// here returns a new directory as "/".
func here(t *testing.T) *guest { return enter(t, wasi.Dir{Host: t.TempDir(), Guest: "/"}) }

// calls are the functions that the guest imports, with their parameters.
var calls = []struct{ name, params string }{
	{"args_get", "ii"}, {"args_sizes_get", "ii"}, {"clock_res_get", "ii"}, {"clock_time_get", "iIi"}, {"environ_get", "ii"}, {"environ_sizes_get", "ii"},
	{"fd_advise", "iIIi"}, {"fd_allocate", "iII"}, {"fd_close", "i"}, {"fd_datasync", "i"}, {"fd_fdstat_get", "ii"}, {"fd_fdstat_set_flags", "ii"},
	{"fd_fdstat_set_rights", "iII"}, {"fd_filestat_get", "ii"}, {"fd_filestat_set_size", "iI"}, {"fd_filestat_set_times", "iIIi"},
	{"fd_pread", "iiiIi"}, {"fd_prestat_dir_name", "iii"}, {"fd_prestat_get", "ii"}, {"fd_pwrite", "iiiIi"}, {"fd_read", "iiii"}, {"fd_readdir", "iiiIi"},
	{"fd_renumber", "ii"}, {"fd_seek", "iIii"}, {"fd_sync", "i"}, {"fd_tell", "ii"}, {"fd_write", "iiii"}, {"path_create_directory", "iii"},
	{"path_filestat_get", "iiiii"}, {"path_filestat_set_times", "iiiiIIi"}, {"path_link", "iiiiiii"}, {"path_open", "iiiiiIIii"}, {"path_readlink", "iiiiii"},
	{"path_remove_directory", "iii"}, {"path_rename", "iiiiii"}, {"path_symlink", "iiiii"}, {"path_unlink_file", "iii"}, {"poll_oneoff", "iiii"},
	{"proc_raise", "i"}, {"random_get", "ii"}, {"sched_yield", ""}, {"sock_accept", "iii"}, {"sock_recv", "iiiiii"}, {"sock_send", "iiiii"}, {"sock_shutdown", "ii"},
}

// relay returns the guest's module, whose exports forward their parameters to the imports.
func relay() []byte {
	count := uint64(len(calls))
	list := func(items ...[]byte) []byte {
		return append(binary.AppendUvarint(nil, uint64(len(items))), bytes.Join(items, nil)...)
	}
	name := func(s string) []byte { return append(binary.AppendUvarint(nil, uint64(len(s))), s...) }
	var types, imports, functions, exports, bodies [][]byte
	for i, c := range calls {
		index := binary.AppendUvarint(nil, uint64(i))
		signature := binary.AppendUvarint([]byte{0x60}, uint64(len(c.params)))
		body := []byte{0} // no locals
		for p, kind := range c.params {
			signature = append(signature, map[rune]byte{'i': 0x7f, 'I': 0x7e}[kind])
			body = append(body, 0x20, byte(p)) // local.get
		}
		types = append(types, append(signature, 1, 0x7f))
		imports = append(imports, append(append(append(name(wasi.Name), name(c.name)...), 0), index...))
		functions = append(functions, index)
		exports = append(exports, append(append(name(c.name), 0), binary.AppendUvarint(nil, count+uint64(i))...))
		body = append(append(append(body, 0x10), index...), 0x0b) // call, end
		bodies = append(bodies, append(binary.AppendUvarint(nil, uint64(len(body))), body...))
	}
	exports = append(exports, append(name("memory"), 2, 0))
	module := []byte("\x00asm\x01\x00\x00\x00")
	for _, s := range []struct {
		id   byte
		body []byte
	}{{1, list(types...)}, {2, list(imports...)}, {3, list(functions...)}, {5, list([]byte{0, 64})}, {7, list(exports...)}, {10, list(bodies...)}} {
		module = append(binary.AppendUvarint(append(module, s.id), uint64(len(s.body))), s.body...)
	}
	return module
}

// An errno is the result of a call. Its String is used in messages.
type errno uint32

const (
	ok           errno = 0
	EACCES       errno = 2
	EAGAIN       errno = 6
	EBADF        errno = 8
	EDQUOT       errno = 19
	EEXIST       errno = 20
	EFAULT       errno = 21
	EILSEQ       errno = 25
	EINVAL       errno = 28
	EISDIR       errno = 31
	ELOOP        errno = 32
	EMFILE       errno = 33
	ENAMETOOLONG errno = 37
	ENOENT       errno = 44
	ENOTDIR      errno = 54
	ENOTEMPTY    errno = 55
	ENOTSOCK     errno = 57
	ENOTSUP      errno = 58
	EPERM        errno = 63
	EROFS        errno = 69
	ESPIPE       errno = 70
	EXDEV        errno = 75
)

var names = map[errno]string{
	ok: "success", EACCES: "EACCES", EAGAIN: "EAGAIN", EBADF: "EBADF", EDQUOT: "EDQUOT", EEXIST: "EEXIST", EFAULT: "EFAULT", EILSEQ: "EILSEQ",
	EINVAL: "EINVAL", EISDIR: "EISDIR", ELOOP: "ELOOP", EMFILE: "EMFILE", ENAMETOOLONG: "ENAMETOOLONG", ENOENT: "ENOENT", ENOTDIR: "ENOTDIR",
	ENOTEMPTY: "ENOTEMPTY", ENOTSOCK: "ENOTSOCK", ENOTSUP: "ENOTSUP", EPERM: "EPERM", EROFS: "EROFS", ESPIPE: "ESPIPE", EXDEV: "EXDEV",
}

func (e errno) String() string {
	if s := names[e]; s != "" {
		return s
	}
	return fmt.Sprintf("errno %d", uint32(e))
}

// call calls a function of preview 1.
func (g *guest) call(name string, args ...uint64) errno {
	g.t.Helper()
	results, err := g.module.ExportedFunction(name).Call(g.ctx, args...)
	if err != nil {
		g.t.Fatalf("%s: %v", name, err)
	}
	return errno(results[0])
}

// want fails the test if the result of a call differs from want.
func (g *guest) want(what string, got, want errno) {
	g.t.Helper()
	g.checks++
	if got != want {
		g.t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// string writes a string to memory and returns its address and length as arguments.
func (g *guest) string(at uint32, s string) (uint64, uint64) {
	g.t.Helper()
	if !g.module.Memory().WriteString(at, s) {
		g.t.Fatal("the guest's memory is too small")
	}
	return uint64(at), uint64(len(s))
}

func (g *guest) u32(at uint32) uint32 { v, _ := g.module.Memory().ReadUint32Le(at); return v }
func (g *guest) u64(at uint32) uint64 { v, _ := g.module.Memory().ReadUint64Le(at); return v }

func (g *guest) bytes(at, n uint32) []byte {
	g.t.Helper()
	b, ok := g.module.Memory().Read(at, n)
	if !ok {
		g.t.Fatal("the guest's memory is too small")
	}
	return bytes.Clone(b)
}

// Flags for path_open: oflags, rights and lookupflags.
const (
	creat, dironly, excl, trunc = 1, 2, 4, 8

	toRead, toWrite, toSeek = 1 << 1, 1 << 6, 1 << 2
	both                    = toRead | toWrite

	follow, nofollow = 1, 0
)

// An opening contains the parameters of path_open.
type opening struct {
	lookup, how, rights, flags uint64
}

func (g *guest) openAt(dir uint64, path string, o opening) (uint64, errno) {
	g.t.Helper()
	p, n := g.string(atPath, path)
	e := g.call("path_open", dir, o.lookup, p, n, o.how, o.rights, 0, o.flags, atResult)
	return uint64(g.u32(atResult)), e
}

// open opens a path, which must succeed.
func (g *guest) open(path string, o opening) uint64 {
	g.t.Helper()
	fd, e := g.openAt(root, path, o)
	if e != ok {
		g.t.Fatalf("open %q: %v", path, e)
	}
	return fd
}

// refused checks that opening a path fails.
func (g *guest) refused(path string, o opening, want errno) {
	g.t.Helper()
	fd, e := g.openAt(root, path, o)
	if e == ok {
		g.close(fd)
	}
	g.want(fmt.Sprintf("open %q", path), e, want)
}

func (g *guest) close(fd uint64) { g.t.Helper(); g.want("close", g.call("fd_close", fd), ok) }

// create creates a file with the given content.
func (g *guest) create(path, content string) {
	g.t.Helper()
	fd := g.open(path, opening{how: creat | trunc, rights: toWrite})
	if n, e := g.write(fd, content); e != ok || n != len(content) {
		g.t.Fatalf("write %q: %d, %v", path, n, e)
	}
	g.close(fd)
}

// vector writes an iovec with one buffer to memory.
func (g *guest) vector(length int) (at, count uint64) {
	g.module.Memory().WriteUint32Le(atVector, atBuffer)
	g.module.Memory().WriteUint32Le(atVector+4, uint32(length))
	return atVector, 1
}

func (g *guest) write(fd uint64, content string) (int, errno) {
	g.t.Helper()
	g.string(atBuffer, content)
	at, n := g.vector(len(content))
	g.module.Memory().WriteUint32Le(atResult, 0)
	e := g.call("fd_write", fd, at, n, atResult)
	return int(g.u32(atResult)), e
}

func (g *guest) read(fd uint64, most int) (string, errno) {
	g.t.Helper()
	at, n := g.vector(most)
	if e := g.call("fd_read", fd, at, n, atResult); e != ok {
		return "", e
	}
	return string(g.bytes(atBuffer, g.u32(atResult))), ok
}

// content returns the content of a file.
func (g *guest) content(path string) string {
	g.t.Helper()
	fd := g.open(path, opening{lookup: follow, rights: toRead})
	defer g.close(fd)
	s, e := g.read(fd, 1<<16)
	g.want("read "+path, e, ok)
	return s
}

// on calls a function with a directory and a path.
func (g *guest) on(name, path string) errno {
	g.t.Helper()
	p, n := g.string(atPath, path)
	return g.call(name, root, p, n)
}

func (g *guest) mkdir(path string) errno  { g.t.Helper(); return g.on("path_create_directory", path) }
func (g *guest) rmdir(path string) errno  { g.t.Helper(); return g.on("path_remove_directory", path) }
func (g *guest) unlink(path string) errno { g.t.Helper(); return g.on("path_unlink_file", path) }

func (g *guest) symlink(target, path string) errno {
	g.t.Helper()
	p, n := g.string(atPath, target)
	q, m := g.string(atPath2, path)
	return g.call("path_symlink", p, n, root, q, m)
}

func (g *guest) rename(old, new string) errno { g.t.Helper(); return g.renameAt(root, old, root, new) }

func (g *guest) renameAt(from uint64, old string, to uint64, new string) errno {
	g.t.Helper()
	p, n := g.string(atPath, old)
	q, m := g.string(atPath2, new)
	return g.call("path_rename", from, p, n, to, q, m)
}

func (g *guest) link(lookup uint64, old, new string) errno {
	g.t.Helper()
	return g.linkAt(lookup, root, old, root, new)
}

func (g *guest) linkAt(lookup, from uint64, old string, to uint64, new string) errno {
	g.t.Helper()
	p, n := g.string(atPath, old)
	q, m := g.string(atPath2, new)
	return g.call("path_link", from, lookup, p, n, to, q, m)
}

func (g *guest) readlink(path string, most int) (string, errno) {
	g.t.Helper()
	p, n := g.string(atPath, path)
	if e := g.call("path_readlink", root, p, n, atBuffer, uint64(most), atResult); e != ok {
		return "", e
	}
	return string(g.bytes(atBuffer, g.u32(atResult))), ok
}

// A filestat is the status of a file.
type filestat struct {
	dev, ino, links, size, atim, mtim, ctim uint64
	kind                                    byte
}

func (g *guest) readFilestat() filestat {
	return filestat{
		dev: g.u64(atBuffer), ino: g.u64(atBuffer + 8), kind: g.bytes(atBuffer+16, 1)[0], links: g.u64(atBuffer + 24),
		size: g.u64(atBuffer + 32), atim: g.u64(atBuffer + 40), mtim: g.u64(atBuffer + 48), ctim: g.u64(atBuffer + 56),
	}
}

func (g *guest) stat(lookup uint64, path string) (filestat, errno) {
	g.t.Helper()
	p, n := g.string(atPath, path)
	e := g.call("path_filestat_get", root, lookup, p, n, atBuffer)
	return g.readFilestat(), e
}

func (g *guest) fstat(fd uint64) filestat {
	g.t.Helper()
	g.want("fd_filestat_get", g.call("fd_filestat_get", fd, atBuffer), ok)
	return g.readFilestat()
}

// fdstat returns the type, flags and rights of a descriptor.
func (g *guest) fdstat(fd uint64) (kind byte, flags uint16, base, inheriting uint64) {
	g.t.Helper()
	g.want("fd_fdstat_get", g.call("fd_fdstat_get", fd, atBuffer), ok)
	b := g.bytes(atBuffer, 24)
	return b[0], binary.LittleEndian.Uint16(b[2:]), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
}

func (g *guest) seek(fd uint64, offset int64, whence uint64) (uint64, errno) {
	g.t.Helper()
	e := g.call("fd_seek", fd, uint64(offset), whence, atResult)
	return g.u64(atResult), e
}

// An entry is a directory entry.
type entry struct {
	next, ino uint64
	kind      byte
	name      string
}

// entries makes one fd_readdir call with a cookie. end reports whether these are the last
// entries.
func (g *guest) entries(fd uint64, size uint32, cookie uint64) (all []entry, end bool) {
	g.t.Helper()
	if e := g.call("fd_readdir", fd, atBuffer, uint64(size), cookie, atResult); e != ok {
		g.t.Fatalf("fd_readdir: %v", e)
	}
	used := g.u32(atResult)
	for b := g.bytes(atBuffer, used); len(b) >= 24; {
		n := binary.LittleEndian.Uint32(b[16:])
		if len(b) < 24+int(n) {
			break
		}
		all = append(all, entry{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), b[20], string(b[24 : 24+n])})
		b = b[24+n:]
	}
	return all, used < size
}
