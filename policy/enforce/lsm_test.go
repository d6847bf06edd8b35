package enforce

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// withMaps returns an LSM with the parts that every kernel supports: the maps and the identify
// program.
func withMaps(t *testing.T) *LSM {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("BPF maps need root")
	}
	spec, err := loadLsm()
	if err != nil {
		t.Fatal(err)
	}
	var some struct {
		lsmMaps
		Identify *ebpf.Program `ebpf:"identify"`
	}
	if err := spec.LoadAndAssign(&some, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		some.lsmMaps.Close()
		some.Identify.Close()
	})
	l := &LSM{installed: map[uint64]*refusals{}}
	l.objects.lsmMaps, l.objects.Identify = some.lsmMaps, some.Identify
	return l
}

func count(t *testing.T, m *ebpf.Map) (n int) {
	t.Helper()
	k := make([]byte, m.KeySize())
	var v uint32
	for i := m.Iterate(); i.Next(&k, &v); n++ {
	}
	return n
}

func TestOpenLSMReportsMissingSupport(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	l, err := OpenLSM()
	if err == nil {
		t.Log("this kernel supports BPF LSM")
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		return
	}
	if !errors.Is(err, fault.Unsupported) || fault.RemedyOf(err) == "" {
		t.Errorf("OpenLSM = %v, want a fault.Unsupported error with a remedy", err)
	}
	t.Log(err)
}

func TestRefusalsAreReplacedAndForgotten(t *testing.T) {
	l := withMaps(t)
	dir := t.TempDir()
	file := func(name string) *os.File {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	a, b := file("a"), file("b")
	steps := []struct {
		cgroup           uint64
		r                Refusals
		things, networks int
	}{
		{1, Refusals{Run: []*os.File{a}, Write: []*os.File{a, b}, Connect: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}}, 2, 2},
		{2, Refusals{Write: []*os.File{a}, Connect: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}, 3, 3},
		{1, Refusals{Write: []*os.File{b}}, 2, 1},
		{1, Refusals{}, 1, 1},
	}
	for i, s := range steps {
		if err := l.Refuse(s.cgroup, s.r); err != nil {
			t.Fatal(err)
		}
		if things, networks := count(t, l.objects.Objects), count(t, l.objects.Networks); things != s.things || networks != s.networks {
			t.Errorf("step %d: %d files and %d networks, want %d and %d", i, things, networks, s.things, s.networks)
		}
	}
	inside := networkOf(2, netip.MustParsePrefix("10.1.2.3/32"))
	var v uint32
	if err := l.objects.Networks.Lookup(inside, &v); err != nil {
		t.Errorf("lookup of an address in a refused network: %v", err)
	}
	if err := l.objects.Networks.Lookup(networkOf(1, netip.MustParsePrefix("10.1.2.3/32")), &v); err == nil {
		t.Error("the network is refused for another jail, too")
	}
	if err := l.Forget(2); err != nil {
		t.Fatal(err)
	}
	if n := count(t, l.objects.Objects) + count(t, l.objects.Networks) + count(t, l.objects.Jails); n != 0 {
		t.Errorf("Forget left %d map entries, want 0", n)
	}
}

// TestOverlayFilesUseKernelInodeNumbers uses layers on two filesystems, so that stat(2)
// returns other numbers than the LSM programs see.
func TestOverlayFilesUseKernelInodeNumbers(t *testing.T) {
	l := withMaps(t)
	dir := t.TempDir()
	lower, other, merged := filepath.Join(dir, "lower"), filepath.Join(dir, "other"), filepath.Join(dir, "merged")
	for _, d := range []string{lower, other, merged} {
		must(t, os.Mkdir(d, 0o755))
	}
	must(t, os.WriteFile(filepath.Join(lower, "file"), nil, 0o644))
	must(t, os.Mkdir(filepath.Join(lower, "dir"), 0o755))
	must(t, unix.Mount("tmpfs", other, "tmpfs", 0, ""))
	defer func() { must(t, unix.Unmount(other, 0)) }()
	must(t, os.Mkdir(filepath.Join(other, "upper"), 0o755))
	must(t, os.Mkdir(filepath.Join(other, "work"), 0o755))
	must(t, unix.Mount("overlay", merged, "overlay", 0, "lowerdir="+lower+",upperdir="+other+"/upper,workdir="+other+"/work"))
	defer func() { must(t, unix.Unmount(merged, 0)) }()
	var root unix.Stat_t
	must(t, unix.Stat(merged, &root)) // for the root of an overlay stat(2) returns the device of the overlay
	for _, name := range []string{"file", "dir"} {
		fd, err := unix.Open(filepath.Join(merged, name), unix.O_PATH|unix.O_CLOEXEC, 0)
		must(t, err)
		f := os.NewFile(uintptr(fd), name)
		defer f.Close()
		l.mu.Lock()
		got, err := l.thingOf(1, f)
		l.mu.Unlock()
		must(t, err)
		if want := unix.Major(root.Dev)<<20 | unix.Minor(root.Dev); got.Dev != want || got.Ino == 0 {
			t.Errorf("key of %s = %+v, want device %#x", name, got, want)
		}
	}
}

// TestRefusedOperationsFail needs a kernel with BPF LSM. scripts/vm.sh runs one.
func TestRefusedOperationsFail(t *testing.T) {
	l, err := OpenLSM()
	if errors.Is(err, fault.Unsupported) {
		t.Skip(err)
	}
	must(t, err)
	defer func() { must(t, l.Close()) }()
	dir := t.TempDir()
	for _, d := range []string{"kept", "kept/deep", "free"} {
		must(t, os.Mkdir(filepath.Join(dir, d), 0o755))
	}
	self, err := os.ReadFile("/bin/true")
	must(t, err)
	for _, name := range []string{"kept/deep/file", "free/file", "free/kept"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("as it was"), 0o644))
	}
	for _, name := range []string{"allowed", "refused"} {
		must(t, os.WriteFile(filepath.Join(dir, name), self, 0o755))
	}
	script := filepath.Join(dir, "script")
	must(t, os.WriteFile(script, []byte("#!"+filepath.Join(dir, "refused")+"\n"), 0o755))
	open := func(name string) *os.File {
		fd, err := unix.Open(filepath.Join(dir, name), unix.O_PATH|unix.O_CLOEXEC, 0)
		must(t, err)
		f := os.NewFile(uintptr(fd), name)
		t.Cleanup(func() { f.Close() })
		return f
	}

	// The cgroup of a jail and a nested one.
	group := filepath.Join("/sys/fs/cgroup", "glasshouse-lsm-"+strconv.Itoa(os.Getpid()))
	inner := filepath.Join(group, "inner")
	must(t, os.MkdirAll(inner, 0o755))
	defer func() { must(t, errors.Join(os.Remove(inner), os.Remove(group))) }()
	var st unix.Stat_t
	must(t, unix.Stat(group, &st))
	must(t, l.Refuse(st.Ino, Refusals{
		Run: []*os.File{open("refused")}, Write: []*os.File{open("kept"), open("free/kept")},
		Connect: []netip.Prefix{netip.MustParsePrefix("127.9.0.0/16"), netip.MustParsePrefix("::1/128")},
	}))

	try := func(in, what string, args ...string) error {
		cmd := exec.Command(os.Args[0], append([]string{"-test.run=^TestRefusedOperationsHelper$", "-test.v", "--", what}, args...)...)
		cmd.Env = append(os.Environ(), "GLASSHOUSE_LSM_TRIES=1")
		if in != "" {
			d, err := os.Open(in)
			must(t, err)
			defer d.Close()
			cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(d.Fd())}
		}
		out, err := cmd.CombinedOutput()
		switch {
		case strings.Contains(string(out), "tried: <nil>"):
			return nil
		case strings.Contains(string(out), "operation not permitted"):
			return unix.EPERM
		}
		return fmt.Errorf("%w\n%s", err, out)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, tt := range []struct {
		what    string
		arg     string
		refused bool
	}{
		{"run", at("allowed"), false},
		{"run", at("refused"), true},
		{"run", script, true},
		{"write", at("free/file"), false},
		{"write", at("free/kept"), true},
		{"write", at("kept/deep/file"), true},
		{"write", at("kept/new"), true},
		{"read", at("kept/deep/file"), false},
		{"cut", at("kept/deep/file"), true},
		{"cut while reading", at("free/kept"), true},
		{"cut", at("free/file"), false},
		{"connect", "127.9.1.1:9", true},
		{"connect", "127.8.1.1:9", false},
		{"connect", "[::1]:9", true},
		{"send", "127.9.1.1:9", true},
		{"send", "127.8.1.1:9", false},
	} {
		for where, in := range map[string]string{"the jail": group, "a cgroup of the jail": inner, "no jail": ""} {
			err := try(in, tt.what, tt.arg)
			if want := tt.refused && in != ""; want != (err == unix.EPERM) || err != nil && err != unix.EPERM {
				t.Errorf("%s %s in %s: got error %v, want EPERM: %t", tt.what, tt.arg, where, err, want)
			}
		}
	}
	must(t, l.Forget(st.Ino))
	if err := try(group, "run", at("refused")); err != nil {
		t.Errorf("run after Forget: %v", err)
	}
}

// TestRefusedOperationsHelper is run by TestRefusedOperationsFail as a child process in a
// cgroup.
func TestRefusedOperationsHelper(t *testing.T) {
	if os.Getenv("GLASSHOUSE_LSM_TRIES") == "" {
		return
	}
	what, arg := flag.Arg(0), flag.Arg(1)
	err := map[string]func() error{
		"run": func() error { return exec.Command(arg).Run() },
		"write": func() error {
			f, err := os.OpenFile(arg, os.O_WRONLY|os.O_CREATE, 0o644)
			return errors.Join(err, f.Close())
		},
		"read": func() error { _, err := os.ReadFile(arg); return err },
		"cut":  func() error { return os.Truncate(arg, 1) },
		"cut while reading": func() error {
			f, err := os.OpenFile(arg, os.O_RDONLY|os.O_TRUNC, 0)
			return errors.Join(err, f.Close())
		},
		"connect": func() error {
			c, err := net.Dial("tcp", arg)
			if errors.Is(err, unix.ECONNREFUSED) {
				return nil // allowed; the port has no listener
			}
			if err != nil {
				return err
			}
			return c.Close()
		},
		"send": func() error {
			to, err := net.ResolveUDPAddr("udp", arg)
			must(t, err)
			c, err := net.ListenUDP("udp", nil)
			must(t, err)
			defer c.Close()
			_, err = c.WriteTo([]byte("x"), to)
			return err
		},
	}[what]()
	fmt.Println("tried:", err)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
