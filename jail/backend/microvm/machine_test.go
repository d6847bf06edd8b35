package microvm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/jail/backend/microvm"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// ready returns a backend, or skips the test on a host that cannot run virtual machines.
func (h *host) ready(t *testing.T) *microvm.Backend {
	t.Helper()
	b := h.daemon()
	if err := b.Probe(t.Context()); errors.Is(err, fault.Unsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatalf("Probe: %v", err)
	}
	return b
}

// plan returns the plan of a small jail and registers its cleanup.
func (h *host) plan(t *testing.T, b *microvm.Backend) jail.Plan {
	t.Helper()
	name := id.NewJail()
	p := jail.Plan{
		ID: name, Dir: filepath.Join(h.dir, string(name)), Hostname: string(name),
		Lower:  []string{backendtest.Rootfs(t)},
		IDs:    backendtest.NextIDs(t),
		Limits: jail.DefaultLimits, Network: jail.Isolated, Init: backendtest.Init(t),
	}
	p.Limits.DiskMB = 64
	if err := os.Mkdir(p.Dir, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Clean(context.WithoutCancel(t.Context()), p); err != nil {
			t.Errorf("Clean: %v", err)
		}
		if leaks := backendtest.LeaksAfter(p, 30*time.Second); len(leaks) > 0 {
			t.Errorf("Clean left on the host:\n%s", strings.Join(leaks, "\n"))
		}
	})
	return p
}

// output runs a command in a jail and returns its output.
func output(t *testing.T, i jail.Instance, argv ...string) string {
	t.Helper()
	e := protocol.Exec{ID: id.NewExec(), Argv: argv, Env: []string{"PATH=/usr/bin:/bin"}}
	stream, _, err := control.Dial(i.Control()).Exec(t.Context(), e, &control.AttachOptions{Lossless: true})
	if err != nil {
		t.Fatalf("run %q: %v", argv, err)
	}
	defer stream.Close()
	var out bytes.Buffer
	for {
		chunk, err := stream.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("run %q: %v", argv, err)
		}
		out.Write(chunk.Data)
	}
	if code := stream.Status().Code; code != 0 {
		t.Fatalf("run %q: code %d, %s", argv, code, &out)
	}
	return out.String()
}

// counting starts a program in a jail that counts.
func counting(t *testing.T, i jail.Instance) {
	t.Helper()
	begin(t, i, "while :; do echo >> /tmp/count; sleep 0.1; done")
	output(t, i, "sh", "-c", "until test -s /tmp/count; do sleep 0.05; done")
}

// begin starts a script in a jail.
func begin(t *testing.T, i jail.Instance, script string) {
	t.Helper()
	e := protocol.Exec{ID: id.NewExec(), Argv: []string{"sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}}
	if _, _, err := control.Dial(i.Control()).Exec(t.Context(), e, nil); err != nil {
		t.Fatal(err)
	}
}

// counts checks that the program of counting runs.
func counts(t *testing.T, i jail.Instance) {
	t.Helper()
	output(t, i, "sh", "-c", `n=$(wc -l < /tmp/count); for i in $(seq 100); do test $(wc -l < /tmp/count) -gt $n && exit; sleep 0.1; done; echo the count stays $n; exit 1`)
}

func freeze(t *testing.T, i jail.Instance) {
	t.Helper()
	if err := control.Dial(i.Control()).Park(t.Context(), 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := i.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func thaw(t *testing.T, i jail.Instance) {
	t.Helper()
	if err := i.Thaw(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestMachineSurvivesFailedSnapshots checks that a machine runs on after each failure of Dump.
func TestMachineSurvivesFailedSnapshots(t *testing.T) {
	backendtest.Repeats(t)
	h := newHost(t)
	b := h.ready(t)
	p := h.plan(t, b)
	i, err := b.Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	counting(t, i)
	small := t.TempDir()
	sizes, moments := []string{"64k", "16m"}, 2
	if backendtest.Thorough {
		sizes, moments = []string{"4k", "64k", "300k", "1m", "16m"}, 8
	}
	for _, size := range sizes {
		if err := unix.Mount("small", small, "tmpfs", 0, "size="+size); err != nil {
			t.Fatal(err)
		}
		freeze(t, i)
		err := b.Dump(t.Context(), p, i, small)
		if err == nil {
			t.Errorf("Dump to a disk of %s = %v, want an error", size, err)
		}
		thaw(t, i)
		counts(t, i)
		if err := unix.Unmount(small, 0); err != nil {
			t.Fatal(err)
		}
	}
	for n := range moments {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n)*20*time.Millisecond)
		freeze(t, i)
		b.Dump(ctx, p, i, t.TempDir())
		cancel()
		thaw(t, i)
		counts(t, i)
	}

	// A daemon is killed during a Dump: the processors are stopped, and QEMU is not frozen.
	freeze(t, i)
	if err := b.Dump(t.Context(), p, i, filepath.Join(small, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Dump to a missing directory = %v", err)
	}
	i.Close()
	microvm.ThawProcess(t, i)
	again, err := h.daemon().Open(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := again.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := b.Dump(t.Context(), p, again, dir); err != nil {
		t.Errorf("Dump after the failures: %v", err)
	}
	thaw(t, again)
	counts(t, again)

	// A branch needs the machine that was saved.
	other := h.plan(t, b)
	other.Limits.MemoryMB *= 2
	if _, err := b.Restore(t.Context(), other, dir); !errors.Is(err, fault.Unsupported) || fault.RemedyOf(err) == "" {
		t.Errorf("Restore with more memory = %v, want unsupported and a remedy", err)
	}
}

// TestBranchesOfMachine checks that branches share the memory that they do not change, and that they
// do not draw the same random numbers.
func TestBranchesOfMachine(t *testing.T) {
	backendtest.Repeats(t)
	h := newHost(t)
	b := h.ready(t)
	p := h.plan(t, b)
	i, err := b.Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	// An interrupt after cmpxchg16b ends a kernel that is emulated by QEMU 7.2.
	features := strings.Fields(output(t, i, "grep", "-m1", "^flags", "/proc/cpuinfo"))
	if !slices.Contains(features, "cx8") || slices.Contains(features, "cx16") {
		t.Errorf("features of the processor = %q, want cx8 and not cx16", features)
	}
	for dir, allowed := range map[string][]string{
		"": {"bin", "dev", "etc", "gnu", "lib", "lib64", "nix", "proc", "sbin", "usr"}, "dev": {"kvm", "null", "urandom", "zero"}, "etc": {"ld.so.cache"},
	} {
		entries, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(i.PID()), "root", dir))
		if err != nil || len(entries) == 0 {
			t.Errorf("QEMU sees %v in /%s, %v", entries, dir, err)
		}
		for _, e := range entries {
			if !slices.Contains(allowed, e.Name()) {
				t.Errorf("QEMU sees /%s/%s of the host", dir, e.Name())
			}
		}
	}
	const held = 64 // MiB
	counting(t, i)
	begin(t, i, fmt.Sprintf("exec probe hold %d > /tmp/held", held))
	output(t, i, "sh", "-c", "until test -s /tmp/held; do sleep 0.1; done")
	freeze(t, i)
	dir := t.TempDir()
	if err := b.Dump(t.Context(), p, i, dir); err != nil {
		t.Fatal(err)
	}
	layer := filepath.Join(dir, "layer.img")
	c, err := b.BeginCopy(t.Context(), p, layer)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Copy(t.Context()), c.Close()); err != nil {
		t.Fatal(err)
	}
	thaw(t, i)
	drawn := map[string]bool{}
	for n := range 3 {
		q := h.plan(t, b)
		q.Sealed = []string{layer}
		branch, err := b.Restore(t.Context(), q, dir)
		if err != nil {
			t.Fatal(err)
		}
		defer branch.Close()
		thaw(t, branch)
		counts(t, branch)
		drawn[output(t, branch, "head", "-c", "32", "/dev/urandom")] = true
		private := microvm.PrivateMemory(t, branch)
		t.Logf("branch %d has %d KiB of its own", n, private>>10)
		if private > held<<20/2 {
			t.Errorf("branch %d has %d MiB of its own, want less than half of the %d MiB that it does not change", n, private>>20, held)
		}
	}
	if len(drawn) != 3 {
		t.Errorf("three branches drew %d different random numbers", len(drawn))
	}
}

// TestDamagedTemplateIsMadeAgain damages the files from which new machines start.
func TestDamagedTemplateIsMadeAgain(t *testing.T) {
	backendtest.Repeats(t)
	h := newHost(t)
	h.cache = h.dir
	b := h.ready(t)
	for _, damage := range []func(name string) error{
		func(string) error { return nil },
		func(name string) error { return os.Truncate(name, 20_000) },
		os.Remove,
	} {
		names, err := filepath.Glob(filepath.Join(h.dir, "cache/template-*-devices"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if err := damage(name); err != nil {
				t.Fatal(err)
			}
		}
		p := h.plan(t, b)
		i, err := b.Create(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if got := output(t, i, "cat", "/etc/hostname"); got != p.Hostname+"\n" {
			t.Errorf("host name = %q, want %q", got, p.Hostname)
		}
		i.Close()
		if names, _ := filepath.Glob(filepath.Join(h.dir, "cache/template-*")); len(names) != 2 {
			t.Errorf("files of templates = %q, want two", names)
		}
	}
}
