package microvm_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/jail/backend/microvm"
)

// kernelFile returns a file with a kernel for x86 whose payload is given.
func kernelFile(t *testing.T, payload []byte) *os.File {
	t.Helper()
	const sectors, offset = 3, 100
	head := make([]byte, (sectors+1)*512+offset)
	head[0x1f1] = sectors
	copy(head[0x202:], "HdrS")
	binary.LittleEndian.PutUint32(head[0x248:], offset)
	binary.LittleEndian.PutUint32(head[0x24c:], uint32(len(payload)))
	f, err := os.Create(filepath.Join(t.TempDir(), "vmlinuz"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.Write(append(append(head, payload...), "what follows the payload"...)); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestKernelsAreUnpacked unpacks kernels in the formats of distributions.
func TestKernelsAreUnpacked(t *testing.T) {
	kernel := append([]byte("\x7fELF"), bytes.Repeat([]byte("kernel"), 100_000)...)
	size := binary.LittleEndian.AppendUint32(nil, uint32(len(kernel)))
	pack := func(w io.WriteCloser, buf *bytes.Buffer, with []byte) []byte {
		_, err := w.Write(with)
		if err := errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		return buf.Bytes()
	}
	var zipped, legacy, standard, other bytes.Buffer
	l := lz4.NewWriter(&legacy)
	if err := l.Apply(lz4.LegacyOption(true)); err != nil {
		t.Fatal(err)
	}
	z, err := zstd.NewWriter(&standard)
	if err != nil {
		t.Fatal(err)
	}
	formats := map[string][]byte{
		"gzip":       pack(gzip.NewWriter(&zipped), &zipped, kernel),
		"lz4":        append(pack(l, &legacy, kernel), size...),
		"zstd":       append(pack(z, &standard, kernel), size...),
		"not packed": append(bytes.Clone(kernel), size...),
	}
	for name, payload := range formats {
		var got bytes.Buffer
		if err := microvm.UnpackKernel(&got, kernelFile(t, payload)); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !bytes.Equal(got.Bytes(), kernel) {
			t.Errorf("%s: the unpacked kernel has %d bytes, want the %d that were packed", name, got.Len(), len(kernel))
		}
	}
	for name, payload := range map[string][]byte{
		"no payload": nil, "unknown format": []byte("\xfd7zXZ\x00 and more"), "damaged": formats["gzip"][:len(zipped.Bytes())/2],
		"no ELF file": pack(gzip.NewWriter(&other), &other, []byte("a text of some length")),
	} {
		if err := microvm.UnpackKernel(io.Discard, kernelFile(t, payload)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := microvm.UnpackKernel(io.Discard, os.Stdin); !errors.Is(err, fault.Unsupported) || fault.RemedyOf(err) == "" {
		t.Errorf("a file that is no kernel = %v, want unsupported and a remedy", err)
	}
}

// A badMonitor answers each connection to the sockets of Firecracker with bytes.
func badMonitor(t *testing.T, answer func(c net.Conn)) (jailDir string) {
	t.Helper()
	dir := t.TempDir()
	shared := filepath.Join(dir, "ctl/machine")
	if err := os.MkdirAll(shared, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"api.sock", "port.sock"} {
		l, err := net.Listen("unix", filepath.Join(shared, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() { defer c.Close(); answer(c) }()
			}
		}()
	}
	return dir
}

// forever writes bytes until the other end closes the connection.
func forever(c net.Conn, first, then string) {
	fmt.Fprint(c, first)
	chunk := []byte(strings.Repeat(then, 64<<10))
	for {
		if _, err := c.Write(chunk); err != nil {
			return
		}
	}
}

// TestHostileFirecracker checks that the answers of a monitor that a guest has taken over are bounded.
func TestHostileFirecracker(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	for name, answer := range map[string]func(c net.Conn){
		"silent":         func(c net.Conn) { io.Copy(io.Discard, c) },
		"closes":         func(net.Conn) {},
		"garbage":        func(c net.Conn) { forever(c, "", "\x00\xff") },
		"endless header": func(c net.Conn) { forever(c, ok, "a: b\r\n") },
		"endless line":   func(c net.Conn) { forever(c, ok+"a: ", "b") },
		"endless body":   func(c net.Conn) { forever(c, ok+"Content-Length: 99999999999\r\n\r\n", "{") },
		"endless chunks": func(c net.Conn) { forever(c, ok+"Transfer-Encoding: chunked\r\n\r\n", "1\r\n{\r\n") },
		"no JSON":        func(c net.Conn) { fmt.Fprint(c, ok+"Content-Length: 2\r\n\r\n[]") },
		"refuses at length": func(c net.Conn) {
			forever(c, "HTTP/1.1 400 Bad\r\nContent-Length: 9999999\r\n\r\n{\"fault_message\": \"", "\x1b[31m")
		},
		"many interim answers": func(c net.Conn) { forever(c, "", "HTTP/1.1 100 Continue\r\n\r\n") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := badMonitor(t, answer)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			if err := microvm.OpenFirecracker(ctx, dir); err == nil {
				t.Error("the API: no error")
			} else if len(err.Error()) > 2000 || strings.ContainsRune(err.Error(), '\x1b') {
				t.Errorf("the API: error of %d bytes: %.200q", len(err.Error()), err)
			}
			if err := microvm.DialFirecracker(ctx, dir); err == nil {
				t.Error("the port: no error")
			}
		})
	}
}

// TestLinksOfFirecracker checks that the daemon follows no links in the directory that Firecracker writes to.
func TestLinksOfFirecracker(t *testing.T) {
	dir := t.TempDir()
	shared := filepath.Join(dir, "ctl/machine")
	if err := os.MkdirAll(shared, 0o700); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(dir, "target.sock")
	l, err := net.Listen("unix", target)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, put := range map[string]func(name string) error{
		"symbolic link to a socket": func(name string) error { return os.Symlink(target, name) },
		"hard link to a socket":     func(name string) error { return os.Link(target, name) },
		"file":                      func(name string) error { return os.WriteFile(name, nil, 0o600) },
		"directory":                 func(name string) error { return os.Mkdir(name, 0o700) },
	} {
		at := filepath.Join(shared, "api.sock")
		if err := errors.Join(os.RemoveAll(at), put(at)); err != nil {
			t.Fatal(err)
		}
		if err := microvm.OpenFirecracker(t.Context(), dir); err == nil || errors.Is(err, os.ErrNotExist) {
			t.Errorf("API socket that is a %s: %v, want an error", name, err)
		}
	}
	if err := l.(*net.UnixListener).SetDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if c, err := l.Accept(); err == nil {
		t.Error("the daemon has connected to another socket")
		c.Close()
	}
	for name, put := range map[string]func(name string) error{
		"symbolic link": func(name string) error { return os.Symlink(secret, name) },
		"hard link":     func(name string) error { return os.Link(secret, name) },
	} {
		at := filepath.Join(shared, "memory")
		if err := errors.Join(os.RemoveAll(at), put(at)); err != nil {
			t.Fatal(err)
		}
		if err := microvm.OpenSaved(dir, "memory"); err == nil {
			t.Errorf("saved memory that is a %s was opened", name)
		}
	}
}

// Environment variables: the path of a real Firecracker for tests, and that of the Firecracker, or of its double, in
// which a test runs machines.
const (
	realFirecracker = "FIRECRACKER"
	testFirecracker = "GLASSHOUSE_MICROVM_TEST_FIRECRACKER"
)

// useFirecracker makes hosts of this test run machines in Firecracker or, without one, in its double.
func useFirecracker(t *testing.T) {
	t.Helper()
	path := os.Getenv(realFirecracker)
	if path == "" {
		var err error
		path, err = backendtest.Find("./jail/backend/microvm/fcshim")
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(testFirecracker, path)
}

// TestFilesOfFirecracker checks that Firecracker can change no file of root, and not its mode.
func TestFilesOfFirecracker(t *testing.T) {
	useFirecracker(t)
	h := newHost(t)
	b := h.ready(t)
	p := h.plan(t, b)
	i, err := b.Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	dir := fmt.Sprintf("/proc/%d/fd", i.PID())
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	own, shared := 0, 0
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		target, err := os.Readlink(name)
		var seen, st unix.Stat_t
		var fs unix.Statfs_t
		if err := errors.Join(err, unix.Stat(name, &seen), unix.Statfs(name, &fs)); err != nil {
			t.Fatal(err)
		}
		if seen.Mode&unix.S_IFMT != unix.S_IFREG || strings.HasPrefix(target, "/memfd:") {
			continue
		}
		target, _, _ = strings.Cut(target, " ")
		switch err := unix.Stat(target, &st); { // without the map of owners
		case err != nil:
			t.Errorf("%s: %v", target, err)
		case st.Uid == p.IDs.First:
			own++
		case fs.Flags&unix.ST_RDONLY != 0:
			shared++
		case seen.Uid != 0 || seen.Mode&0o022 != 0:
			t.Errorf("Firecracker, as user %d, can open %s of user %d for writing, or change its mode", seen.Uid, target, st.Uid)
		}
	}
	if own == 0 || shared == 0 {
		t.Errorf("Firecracker has %d files of its own and %d that are shared, want some", own, shared)
	}
}

// TestFirecrackerContract checks the contract with Firecracker.
func TestFirecrackerContract(t *testing.T) {
	useFirecracker(t)
	h, o := newHost(t), contractOptions()
	if !backendtest.Thorough { // what the guest does is the same as with QEMU
		o.Without = append(o.Without, "Inside", "Workspace", "DoneClosesWhenInitDies", "Changes", "Attacks", "Checkpoint/DumpLeavesFrozenAndUnharmed", "Checkpoint/FailedDump",
			"Checkpoint/HelpersDie", "Checkpoint/Keeps")
	}
	backendtest.Run(t, func(*testing.T) jail.Backend { return h.daemon() }, o)
}

// TestFirecracker runs tests of other machines with Firecracker.
func TestFirecracker(t *testing.T) {
	if !backendtest.Thorough {
		t.Skip("repeats other tests: runs with GLASSHOUSE_TEST=all")
	}
	useFirecracker(t)
	t.Run("FailedSnapshots", TestMachineSurvivesFailedSnapshots)
	t.Run("DamagedTemplates", TestDamagedTemplateIsMadeAgain)
	t.Run("Kills", TestMachineOrDaemonIsKilled)
	t.Run("Network", TestNetworkOfMachine)
	t.Run("Files", TestFilesOfStoppedMachine)
}

// TestDiskOfOtherMonitor checks that a jail does not start with an empty disk if the monitor was changed.
func TestDiskOfOtherMonitor(t *testing.T) {
	for _, firecracker := range []bool{false, true} {
		h, disk := &host{dir: t.TempDir(), prefix: "glasshouse-test-none"}, "disk.raw"
		if firecracker {
			h.firecracker, disk = "/usr/bin/false", "disk.img"
		}
		b, id := h.daemon(), id.NewJail()
		p := jail.Plan{ID: id, Dir: filepath.Join(h.dir, string(id)), Lower: []string{"/"}, IDs: backendtest.NextIDs(t), Limits: jail.DefaultLimits, Network: jail.Isolated}
		if err := errors.Join(os.Mkdir(p.Dir, 0o711), os.WriteFile(filepath.Join(p.Dir, disk), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		for name, call := range map[string]func() error{
			"Create":    func() error { _, err := b.Create(t.Context(), p); return err },
			"Open":      func() error { _, err := b.Open(t.Context(), p); return err },
			"SealLayer": func() error { return b.SealLayer(t.Context(), p, filepath.Join(h.dir, "layer")) },
			"BeginCopy": func() error { _, err := b.BeginCopy(t.Context(), p, filepath.Join(h.dir, "layer")); return err },
		} {
			if err := call(); !errors.Is(err, fault.Unsupported) || fault.RemedyOf(err) == "" || !strings.Contains(err.Error(), "the jail has a disk of") {
				t.Errorf("%s of a jail with %s = %v, want unsupported and a remedy", name, disk, err)
			}
		}
	}
}
