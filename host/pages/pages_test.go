package pages_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"glasshouse/host/pages"
)

// The test binary is also the server, and the process with missing memory.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 {
		switch os.Args[1] {
		case "serve":
			if err := pages.Main(os.Args[2]); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		case "process":
			process(os.Args[2])
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

var page = os.Getpagesize()

// length is the number of pages of the memory. The last quarter is in no file.
const (
	length = 256
	filed  = 192
)

// Constants of linux/userfaultfd.h for process.
const (
	ioctlAPI      = 0xc018aa3f
	ioctlRegister = 0xc020aa00
	events        = 1<<1 | 1<<2 | 1<<3 | 1<<6 // fork, remap, remove, unmap
)

// process simulates a restored process: it maps memory, sends its userfaultfd to the restorer's
// socket in dir, and then executes commands from its input, each a word and a page number.
func process(dir string) {
	fail := func(err error) {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	at, err := unix.MmapPtr(-1, 0, nil, uintptr(length*page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		fail(err)
	}
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		fmt.Println("cannot:", errno)
		os.Exit(0)
	}
	api := struct{ api, features, ioctls uint64 }{0xaa, events, 0}
	register := struct{ start, n, mode, ioctls uint64 }{uint64(uintptr(at)), uint64(length * page), 1, 0}
	for _, c := range []struct {
		req uintptr
		arg unsafe.Pointer
	}{{ioctlAPI, unsafe.Pointer(&api)}, {ioctlRegister, unsafe.Pointer(&register)}} {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, c.req, uintptr(c.arg)); errno != 0 {
			fmt.Println("cannot:", errno)
			os.Exit(0)
		}
	}
	fmt.Println(uintptr(at)) // for the map
	in := bufio.NewScanner(os.Stdin)
	in.Scan() // wait until a server is running
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(dir, "lazy-pages.socket"), Net: "unix"})
	if err != nil {
		fail(err)
	}
	word := func(n int32) { binary.Write(conn, binary.NativeEndian, n) }
	word(-7) // a zombie
	word(42)
	if _, _, err := conn.WriteMsgUnix([]byte("*"), unix.UnixRights(int(fd)), nil); err != nil {
		fail(err)
	}
	unix.Close(int(fd))
	word(0x52535446)
	conn.Close()
	for in.Scan() {
		var what string
		var n int
		fmt.Sscan(in.Text(), &what, &n)
		p := unsafe.Add(at, n*page)
		switch what {
		case "read":
			fmt.Println(*(*uint64)(p))
		case "write":
			*(*uint64)(p) = 7
			fmt.Println("done")
		case "syscall": // the kernel reads it
			r, w, _ := os.Pipe()
			_, _, errno := unix.Syscall(unix.SYS_WRITE, w.Fd(), uintptr(p), 8)
			var b [8]byte
			io.ReadFull(r, b[:])
			fmt.Println(binary.NativeEndian.Uint64(b[:]), errno)
		case "discard":
			fmt.Println(unix.Madvise(unsafe.Slice((*byte)(p), page), unix.MADV_DONTNEED))
		case "protect":
			fmt.Println(unix.Mprotect(unsafe.Slice((*byte)(p), page), unix.PROT_READ))
		case "unmap":
			_, _, errno := unix.Syscall(unix.SYS_MUNMAP, uintptr(p), uintptr(page), 0)
			fmt.Println(errno)
		case "move": // moves the pages to the end and replaces the pages there
			_, _, errno := unix.Syscall6(unix.SYS_MREMAP, uintptr(p), uintptr(page), uintptr(page), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, uintptr(at)+uintptr((length-1)*page), 0)
			fmt.Println(errno)
		case "fork": // the child reads one page and returns the number in it as its exit code
			pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
			if pid == 0 {
				unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(*(*uint64)(p)&0xff), 0, 0)
			}
			var status unix.WaitStatus
			unix.Wait4(int(pid), &status, 0, nil)
			fmt.Println(status.ExitStatus(), errno)
		case "forks": // forks so many children, one after the other, that read all pages; prints how many found wrong contents
			wrong := 0
			for range n {
				pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
				if pid == 0 {
					code := uintptr(0)
					for i := range filed {
						if *(*uint64)(unsafe.Add(at, i*page)) != uint64(1000+i) {
							code = 1
						}
					}
					unix.RawSyscall(unix.SYS_EXIT_GROUP, code, 0, 0)
				}
				var status unix.WaitStatus
				unix.Wait4(int(pid), &status, 0, nil)
				if errno != 0 || status.ExitStatus() != 0 {
					wrong++
				}
			}
			fmt.Println(wrong)
		case "resident":
			b := make([]byte, length)
			unix.Syscall(unix.SYS_MINCORE, uintptr(at), uintptr(length*page), uintptr(unsafe.Pointer(&b[0])))
			fmt.Println(bytes.Count(b, []byte{1}))
		}
	}
}

// A harness is a server and its processes.
type harness struct {
	*testing.T
	dir string
	cl  pages.Client
	pid int
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	dir, err := os.MkdirTemp("", "pages-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{T: t, dir: dir, cl: pages.Client{Sock: filepath.Join(dir, "sock")}}
	if h.pid, err = pages.Start(h.cl.Sock, exe, "serve"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.kill)
	b := make([]byte, filed*page)
	for i := range filed {
		binary.NativeEndian.PutUint64(b[i*page:], uint64(1000+i))
	}
	if err := os.WriteFile(filepath.Join(dir, "pages-1.img"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *harness) kill() { unix.Kill(h.pid, unix.SIGKILL) }

// A proc is one process of a branch.
type proc struct {
	h      *harness
	name   string
	marker string
	cmd    *exec.Cmd
	in     io.Writer
	out    *bufio.Scanner
	watch  *pages.Watch
}

// process starts a process with the pages in the file missing.
func (h *harness) process(name string) *proc {
	h.Helper()
	dir := filepath.Join(h.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		h.Fatal(err)
	}
	if err := os.Link(filepath.Join(h.dir, "pages-1.img"), filepath.Join(dir, "pages-1.img")); err != nil {
		h.Fatal(err)
	}
	exe, _ := os.Executable()
	p := &proc{h: h, name: name, marker: filepath.Join(h.dir, name+".marker"), cmd: exec.Command(exe, "process", dir)}
	p.cmd.Env = append(os.Environ(), "GOGC=off", "GODEBUG=asyncpreemptoff=1")
	in, err := p.cmd.StdinPipe()
	if err != nil {
		h.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		h.Fatal(err)
	}
	p.in, p.out = in, bufio.NewScanner(out)
	if err := p.cmd.Start(); err != nil {
		h.Fatal(err)
	}
	h.Cleanup(p.end)
	var at uint64
	if line := p.line(); strings.HasPrefix(line, "cannot") {
		h.Skip("this host has no userfaultfd for us: " + line)
	} else if _, err := fmt.Sscan(line, &at); err != nil {
		h.Fatal(line)
	}
	m := pages.Map{{PID: 42, File: "pages-1.img", Runs: []pages.Run{
		{Start: at, End: at + uint64(100*page)},
		{Start: at + uint64(100*page), End: at + uint64(filed*page), Off: int64(100 * page)},
	}, Eager: []uint64{at + uint64(3*page) + 5}}}
	if err := errors.Join(pages.PutMap(dir, m), os.WriteFile(p.marker, nil, 0o600)); err != nil {
		h.Fatal(err)
	}
	if p.watch, err = h.cl.Serve(h.Context(), pages.Branch{Name: name, Dir: dir, Marker: p.marker}); err != nil {
		h.Fatal(err)
	}
	fmt.Fprintln(in, "go")
	p.waitFor("resident", "1") // only the page that the server loaded
	return p
}

func (p *proc) end() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

func (p *proc) line() string {
	p.h.Helper()
	got := make(chan string, 1)
	go func() { p.out.Scan(); got <- p.out.Text() }()
	select {
	case s := <-got:
		return s
	case <-time.After(30 * time.Second):
		p.h.Fatal("the process does not continue")
		return ""
	}
}

// do sends a command to the process and fails the test unless the reply is want.
func (p *proc) do(what, want string) {
	p.h.Helper()
	fmt.Fprintln(p.in, what)
	if got := p.line(); got != want {
		p.h.Errorf("%s: %s, want %s", what, got, want)
	}
}

func (p *proc) waitFor(what, want string) {
	p.h.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		fmt.Fprintln(p.in, what)
		if got := p.line(); got == want {
			return
		} else if time.Now().After(end) {
			p.h.Fatalf("%s: %s, want %s", what, got, want)
		}
	}
}

func TestPageIsLoadedOnAccess(t *testing.T) {
	p := newHarness(t).process("j")
	p.do("read 0", "1000")
	p.do("read 99", "1099")
	p.do("read 100", "1100")
	p.do("syscall 150", "1150 errno 0")
	p.do("read 200", "0") // never written
	p.do("write 5", "done")
	p.do("read 5", "7")
	p.do("read 6", "1006")
}

func TestUntouchedPagesAreNotLoaded(t *testing.T) {
	p := newHarness(t).process("j")
	p.do("read 0", "1000")
	p.do("read 50", "1050")
	time.Sleep(50 * time.Millisecond)
	p.do("resident", "3")
	if left, err := p.h.cl.Left(t.Context(), "j"); err != nil || left != int64((filed-3)*page) {
		t.Errorf("Left = %d, %v", left, err)
	}
}

func TestSequentialReadAhead(t *testing.T) {
	p := newHarness(t).process("j")
	for _, n := range []int{60, 61, 63, 67} { // each is the first missing page
		p.do(fmt.Sprint("read ", n), fmt.Sprint(1000+n))
	}
	p.do("resident", fmt.Sprint(1+1+2+4+8))
	for n := 60; n < 130; n++ { // across the end of a run of the map
		p.do(fmt.Sprint("read ", n), fmt.Sprint(1000+n))
	}
	p.do("discard 131", "<nil>") // it may already be loaded
	p.do("read 131", "0")
	p.do("read 132", "1132")
	p.do("protect 142", "<nil>") // a separate mapping within the read-ahead
	p.do("unmap 146", "errno 0")
	for n := 133; n < 146; n++ {
		p.do(fmt.Sprint("read ", n), fmt.Sprint(1000+n))
	}
	for n := 147; n < filed; n++ {
		p.do(fmt.Sprint("read ", n), fmt.Sprint(1000+n))
	}
	p.do("read 200", "0")
}

func TestDiscardedPagesAreZero(t *testing.T) {
	p := newHarness(t).process("j")
	p.do("discard 10", "<nil>") // untouched
	p.do("read 10", "0")
	p.do("read 11", "1011")
	p.do("discard 11", "<nil>") // touched
	p.do("read 11", "0")
	p.do("unmap 12", "errno 0")
	p.do("read 13", "1013")
}

func TestMremap(t *testing.T) {
	p := newHarness(t).process("j")
	p.do("move 20", "errno 0")
	p.do("read 255", "1020")
	p.do("move 21", "errno 0")
	p.do("read 255", "1021")
	p.do("read 22", "1022")
}

func TestForkedChildLoadsPages(t *testing.T) {
	p := newHarness(t).process("j")
	for n := range 100 {
		p.do(fmt.Sprint("fork ", n), fmt.Sprint((1000+n)&0xff, " errno 0"))
	}
	p.do("discard 30", "<nil>")
	p.do("fork 30", "0 errno 0")
	p.do("write 31", "done")
	p.do("fork 31", "7 errno 0")
	p.do("read 32", "1032")
}

func TestFill(t *testing.T) {
	h := newHarness(t)
	p, other := h.process("j"), h.process("k")
	p.do("write 9", "done")
	p.do("discard 10", "<nil>")
	p.do("protect 40", "<nil>") // splits the mapping into three
	if err := h.cl.Fill(t.Context(), "j"); err != nil {
		t.Fatal(err)
	}
	if err := p.watch.Wait(); err != nil {
		t.Errorf("Wait = %v after all memory was loaded", err)
	}
	if _, err := os.Stat(p.marker); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the marker exists: %v", err)
	}
	h.kill() // the server is no longer needed
	for n, want := range map[int]string{0: "1000", 9: "7", 10: "0", 39: "1039", 40: "1040", 41: "1041", 191: "1191", 192: "0"} {
		p.do(fmt.Sprint("read ", n), want)
	}
	if err := other.watch.Wait(); !errors.Is(err, pages.ErrNoServer) {
		t.Error("Wait = nil for a branch with lost memory")
	}
	if _, err := os.Stat(other.marker); err != nil {
		t.Errorf("the marker of a branch whose server was killed: %v", err)
	}
}

// Pages that the parent gets during a fork must not be missing in the child.
func TestForkDuringFill(t *testing.T) {
	h := newHarness(t)
	for i := range 40 {
		p := h.process(fmt.Sprint("j", i))
		fmt.Fprintln(p.in, "forks 20")
		time.Sleep(time.Duration(i%8) * 500 * time.Microsecond)
		if err := h.cl.Fill(t.Context(), p.name); err != nil {
			t.Fatal(err)
		}
		if got := p.line(); got != "0" {
			t.Fatalf("%s of 20 children found memory that was not their parent's", got)
		}
		p.end()
	}
}

func TestServerDropsExitedProcesses(t *testing.T) {
	h := newHarness(t)
	p := h.process("j")
	p.end()
	p.watch.Close() // as when a jail ends
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := h.cl.Watch(t.Context(), "j"); errors.Is(err, pages.ErrUnknownBranch) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("a branch without processes is still served")
		}
	}
	if _, err := os.Stat(p.marker); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the marker exists: %v", err)
	}
}

func TestWatchFromLaterDaemon(t *testing.T) {
	h := newHarness(t)
	p := h.process("j")
	p.watch.Close()
	time.Sleep(20 * time.Millisecond)
	p.do("read 77", "1077")
	w, err := h.cl.Watch(t.Context(), "j")
	if err != nil {
		t.Fatal(err)
	}
	h.kill()
	if err := w.Wait(); !errors.Is(err, pages.ErrNoServer) {
		t.Errorf("Wait = %v after the server was killed", err)
	}
	if _, err := h.cl.Watch(t.Context(), "j"); !errors.Is(err, pages.ErrNoServer) {
		t.Errorf("Watch = %v without a server", err)
	}
}

func TestAbandonedBranchIsDropped(t *testing.T) {
	for name, halfMade := range map[string]bool{"before its restore": false, "in the middle": true} {
		t.Run(name, func(t *testing.T) { forgotten(t, halfMade) })
	}
}

func forgotten(t *testing.T, halfMade bool) {
	h := newHarness(t)
	dir := t.TempDir()
	if err := pages.PutMap(dir, nil); err != nil {
		t.Fatal(err)
	}
	w, err := h.cl.Serve(t.Context(), pages.Branch{Name: "j", Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if halfMade { // the restorer hangs
		conn, err := net.Dial("unix", filepath.Join(dir, "lazy-pages.socket"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	w.Close()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := h.cl.Watch(t.Context(), "j"); errors.Is(err, pages.ErrUnknownBranch) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the server still waits for the branch")
		}
	}
}

func TestInUse(t *testing.T) {
	h := newHarness(t)
	name := filepath.Join(h.dir, "pages-1.img")
	if pages.InUse(name) {
		t.Error("InUse = true before a branch exists")
	}
	h.process("j")
	if !pages.InUse(name) {
		t.Error("InUse = false although a branch uses the file")
	}
}

func TestServeRejectsMissingFiles(t *testing.T) {
	h := newHarness(t)
	for name, m := range map[string]pages.Map{
		"none":    {{PID: 1, File: "pages-2.img", Runs: []pages.Run{{Start: 1 << 20, End: 2 << 20}}}},
		"outside": {{PID: 1, File: "../pages-1.img", Runs: []pages.Run{{Start: 1 << 20, End: 2 << 20}}}},
		"short":   {{PID: 1, File: "pages-1.img", Runs: []pages.Run{{Start: 1 << 20, End: 1 << 30}}}},
		"behind":  {{PID: 1, File: "pages-1.img", Runs: []pages.Run{{Start: 1 << 20, End: 1<<20 + uint64(page), Off: int64(filed * page)}}}},
	} {
		dir := filepath.Join(h.dir, name)
		err := errors.Join(os.Mkdir(dir, 0o700), os.Link(filepath.Join(h.dir, "pages-1.img"), filepath.Join(dir, "pages-1.img")), pages.PutMap(dir, m))
		if err != nil {
			t.Fatal(err)
		}
		if w, err := h.cl.Serve(context.Background(), pages.Branch{Name: name, Dir: dir}); err == nil {
			t.Errorf("%s: served", name)
			w.Close()
		}
	}
}
