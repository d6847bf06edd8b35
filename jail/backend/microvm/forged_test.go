package microvm_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/host/disk"
	"glasshouse/host/qcow2"
	"glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/jail/init/control"
)

// forgers damage the file system of a disk in ways that an attacker would try. Each gets the commands
// of debugfs to add to, and the bytes of the disk to change afterwards.
var forgers = []struct {
	name    string
	debugfs []string
	bytes   func(r *rand.Rand, disk []byte)
}{
	{"superblock", nil, func(r *rand.Rand, disk []byte) { scribble(r, disk[1024:2048], 1+r.IntN(8)) }},
	{"superblock-with-its-magic", nil, func(r *rand.Rand, disk []byte) {
		for range 6 { // sizes, counts, features, and what else is there before the name of the volume
			at := 1024 + r.IntN(0x78)
			if at < 1024+0x38 || at > 1024+0x39 {
				disk[at] = byte(r.Uint32())
			}
		}
	}},
	{"panics", []string{"ssv errors 3", "sif /upper/root mode 0100755"}, func(r *rand.Rand, disk []byte) { scribble(r, disk[4096:1<<20], 400) }},
	{"cycle", []string{"ln /upper /upper/root/dir/loop", "ln /upper/root /upper/root/dir/parent", "sif /upper links_count 9"}, nil},
	{"upper-is-a-link", []string{"unlink /upper", "symlink /upper /"}, nil},
	{"upper-is-a-file", []string{"unlink /upper", "ln /work/file /upper"}, nil},
	{"large-file", []string{"sif /upper/root/a size 0x7ffffffff000", "sif /upper/root/dir size 0x7ffff000"}, nil},
	{"blocks-of-others", []string{"sif /upper/root/a block[0] 1", "sif /upper/root/dir/b block[IND] 2"}, nil},
	{"directories", nil, func(r *rand.Rand, disk []byte) { scribble(r, disk[1<<20:], 20_000) }},
	{"inodes", nil, func(r *rand.Rand, disk []byte) { scribble(r, disk[4096:1<<20], 4000) }},
}

// scribble writes random bytes.
func scribble(r *rand.Rand, b []byte, n int) {
	for range n {
		b[r.IntN(len(b))] = byte(r.Uint32())
	}
}

// forge writes a disk for a jail.
func forge(t *testing.T, to string, n int) (name string) {
	t.Helper()
	dir := t.TempDir()
	for file, text := range map[string]string{"tree/upper/root/a": "one\n", "tree/upper/root/dir/b": strings.Repeat("two\n", 20_000), "tree/work/file": ""} {
		at := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f := forgers[n%len(forgers)]
	raw := filepath.Join(dir, "raw")
	// Without checksums, because the kernel would look no further.
	commands := [][]string{{"mke2fs", "-q", "-F", "-t", "ext4", "-O", "^metadata_csum,^64bit", "-d", filepath.Join(dir, "tree"), raw, "16M"}}
	for _, line := range f.debugfs {
		commands = append(commands, []string{"debugfs", "-w", "-R", line, raw})
	}
	for _, c := range commands {
		tool, err := disk.FindTool(c[0])
		if err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(tool, c[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v, %s", c, err, out)
		}
	}
	data, err := os.ReadFile(raw)
	if err != nil {
		t.Fatal(err)
	}
	if f.bytes != nil {
		f.bytes(rand.New(rand.NewPCG(uint64(n), 1)), data)
	}
	err = os.WriteFile(raw, data, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(raw)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if err := qcow2.FromRaw(t.Context(), out, in, qcow2.Omit); err != nil {
		t.Fatal(err)
	}
	return f.name
}

// TestForgedDisks reads disks that a guest has forged. The host must not mount them, each attempt must
// end in time, and leave nothing.
func TestForgedDisks(t *testing.T) {
	images := 4 // each takes seconds with an emulated processor
	if backendtest.Thorough {
		images = 200
	}
	backendtest.Repeats(t)
	h := newHost(t)
	b := h.ready(t)
	defer neverMounts(t, h.dir)()
	answers := map[string]int{}
	for n := range images {
		p := h.plan(t, b)
		kind := forge(t, filepath.Join(p.Dir, "disk.img"), n)
		began := time.Now()
		changes, err := b.Changes(t.Context(), p, jail.ChangesOptions{Text: true})
		what := fmt.Sprintf("image %d, %s, after %v: %d changes, %v", n, kind, time.Since(began).Round(time.Millisecond), len(changes), err)
		if files, done, err := b.ServeFiles(t.Context(), p); err == nil {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			if r, _, err := control.Dial(files).Read(ctx, "/root/a", 0, 1<<20); err == nil {
				io.Copy(io.Discard, r)
				r.Close()
			}
			cancel()
			done() // fails if the kernel of the machine has ended
		}
		if took := time.Since(began); took > 2*time.Minute {
			t.Errorf("%s; both took %v", what, took)
		}
		t.Log(strings.SplitN(what, "\n", 2)[0])
		answers[kind+fmt.Sprint(err == nil)]++
		if err := b.Clean(t.Context(), p); err != nil {
			t.Errorf("%s: Clean: %v", what, err)
		}
		if leaks := backendtest.LeaksAfter(p, 30*time.Second); len(leaks) > 0 {
			t.Errorf("%s: left %q", what, leaks)
		}
	}
	t.Log(answers)
}

// neverMounts checks until stop is called that this process mounts nothing of a directory.
func neverMounts(t *testing.T, dir string) (stop func()) {
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			mounts, err := os.ReadFile("/proc/self/mountinfo")
			loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
			for _, name := range loops {
				text, _ := os.ReadFile(name)
				mounts = append(mounts, text...)
			}
			if err != nil || strings.Contains(string(mounts), dir) {
				t.Errorf("the host has mounted a disk in %s: %v\n%s", dir, err, mounts)
				return
			}
			select {
			case <-done:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	return func() { close(done); <-stopped }
}
