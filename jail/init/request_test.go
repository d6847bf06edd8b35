package jailinit

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/id"
	jailfs "glasshouse/jail/fs"
	"glasshouse/jail/init/protocol"
)

// FuzzRequest sends arbitrary requests to init. Its files are those of an empty directory, and
// it does not run commands.
func FuzzRequest(f *testing.F) {
	add := func(frames ...func(*protocol.Writer)) {
		var b bytes.Buffer
		w := protocol.NewWriter(&b)
		for _, write := range frames {
			write(w)
		}
		f.Add(b.Bytes())
	}
	request := func(q protocol.Request) func(*protocol.Writer) {
		q.Version = protocol.Version
		return func(w *protocol.Writer) { w.JSON(protocol.FrameRequest, q) }
	}
	data := func(w *protocol.Writer) { w.Data([]byte("data")) }
	end := func(w *protocol.Writer) { w.JSON(protocol.FrameEnd, nil) }
	x := id.Exec("x-aaaaaaaaaaaa")
	for op := range operations {
		add(request(protocol.Request{Op: op, ID: x, Path: "/f", To: "/g", Signal: "0", Attach: &protocol.Attach{From: -1}, Size: &protocol.Size{}}), data, end)
	}
	add(request(protocol.Request{Op: protocol.OpWrite, Path: "/new/f", Write: &protocol.WriteOptions{Parents: true}}), data, data, end)
	add(request(protocol.Request{Op: "nonsense"}))
	f.Add([]byte("\x01\x00\x00\x00\x02{}"))

	f.Fuzz(func(t *testing.T, in []byte) {
		kind, payload, err := protocol.NewReader(bytes.NewReader(in)).Next()
		if err == nil && kind == protocol.FrameRequest && dangerous(payload) {
			return
		}
		i := &Init{files: fileService{slots: make(chan struct{}, 1)}, forks: make(chan struct{}, 1), execs: map[id.Exec]*process{}, byPID: map[int]*process{}, open: map[*conn]struct{}{}}
		i.files.root, err = jailfs.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer i.files.root.Close()
		ours, theirs := socketPair(t)
		go func() {
			theirs.Write(in)
			theirs.CloseWrite()
		}()
		done := make(chan struct{})
		c := newConn(ours)
		i.register(c)
		go func() {
			defer close(done)
			i.serve(c)
			i.unregister(c)
		}()
		r := protocol.NewReader(theirs)
		for err := error(nil); err == nil; {
			_, _, err = r.Next()
		}
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Fatal("timeout: the request is not finished")
		}
		if len(i.files.slots)+len(i.forks) != 0 {
			t.Error("a slot was not released")
		}
		theirs.Close()
	})
}

// dangerous reports whether a request would affect the machine that runs the test.
func dangerous(request []byte) bool {
	for _, op := range []protocol.Op{protocol.OpExec, protocol.OpTerminate, protocol.OpWatch, protocol.OpBranched} {
		if bytes.Contains(request, []byte(op)) {
			return true
		}
	}
	return bytes.Contains(request, []byte(`\u`)) // escaped names
}

func socketPair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	conns := make([]*net.UnixConn, 2)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		conns[i] = c.(*net.UnixConn)
	}
	return conns[0], conns[1]
}

func FuzzCheck(f *testing.F) {
	f.Add("x-aaaaaaaaaaaa", "true", "A=1", "/", "root", int64(0), 0)
	f.Add("", "", "", "", "", int64(-1), -1)
	f.Fuzz(func(t *testing.T, x, arg, env, cwd, user string, timeout int64, ring int) {
		e := &protocol.Exec{ID: id.Exec(x), Argv: []string{arg}, Env: []string{env}, Cwd: cwd, User: user, Timeout: time.Duration(timeout), Ring: ring}
		if check(e) != nil {
			return
		}
		if !id.Valid('x', x) || arg == "" || strings.ContainsRune(arg+env+cwd, 0) || ring < 0 || ring > protocol.MaxRing || timeout < 0 {
			t.Errorf("check(%+v) = nil, want an error", e)
		}
	})
}

func FuzzRegistration(f *testing.F) {
	f.Add("SIGUSR1\n", "Name:\tx\nUid:\t1\t1\t1\t1\n", uint32(1))
	f.Add("KILL", "Uid:\t0\t1\t1\t1\n", uint32(0))
	f.Add("19", "Uid:\n", uint32(0))
	f.Fuzz(func(t *testing.T, text, status string, uid uint32) {
		if sig, err := notification(text); err == nil && (sig < 1 || sig > 64 || sig == unix.SIGKILL || sig == unix.SIGSTOP) {
			t.Errorf("notification(%q) = signal %d, want an error", text, sig)
		}
		if runsAs(status, uid) && !strings.Contains(status, "Uid:") {
			t.Errorf("runsAs(%q) is true for user %d", status, uid)
		}
	})
}

func TestRunsAs(t *testing.T) {
	for status, want := range map[string]bool{
		"Name:\tUid:\nUid:\t5\t5\t5\t5\nGid:\t0\t0\t0\t0\n": true,
		"Uid:\t5\t0\t0\t0\n": false, // a setuid program
		"Uid:\t0\t5\t5\t5\n": false,
		"Uid:\n":             false,
		"":                   false,
	} {
		if got := runsAs(status, 5); got != want {
			t.Errorf("runsAs(%q, 5) = %v, want %v", status, got, want)
		}
	}
}

func TestAccountsAfterLongLine(t *testing.T) {
	dir := t.TempDir()
	groups := "all:x:5:" + strings.Repeat("somebody,", 20_000) + "ann\nlater:x:6:ann\n"
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "etc"), 0o755), os.WriteFile(filepath.Join(dir, "etc/group"), []byte(groups), 0o644)); err != nil {
		t.Fatal(err)
	}
	var fs fileService
	var err error
	fs.root, err = jailfs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer fs.root.Close()
	u := &user{name: "ann"}
	fs.supplementary(u)
	if !slices.Equal(u.groups, []uint32{5, 6}) {
		t.Errorf("groups = %v, want 5 and 6", u.groups)
	}
}

func TestTruncatedArgv(t *testing.T) {
	long := strings.Repeat("ü", protocol.MaxStatusArgv)
	for _, argv := range [][]string{{"short", "one"}, {long}, {"a", long, "b"}, strings.Split(strings.Repeat("a ", protocol.MaxStatusArgv), " ")} {
		got, size := truncated(argv), 0
		for _, a := range got {
			size += len(a) + 1
			if !bytes.Equal([]byte(a), bytes.ToValidUTF8([]byte(a), nil)) {
				t.Errorf("%.10q… is cut inside of a character", a)
			}
		}
		if size > protocol.MaxStatusArgv+8 || len(argv) < 3 && len(argv[0]) < 10 && len(got) != len(argv) {
			t.Errorf("truncated %d arguments to %d of %d bytes", len(argv), len(got), size)
		}
	}
}
