package microvm

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/host/disk"
	"glasshouse/jail/guest/wire"
)

func put(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// putKernel makes a directory as that of an unpacked kernel package.
func putKernel(t *testing.T, dir, release, lib string, modules ...string) {
	t.Helper()
	put(t, filepath.Join(dir, "boot/vmlinuz-"+release), "kernel")
	for _, m := range append(modules, "drivers/other.ko") {
		put(t, filepath.Join(dir, lib, "modules", release, "kernel", m), m)
	}
}

func TestNewestKernelIsUsed(t *testing.T) {
	dir := t.TempDir()
	b := New(Config{Kernels: []string{filepath.Join(dir, "missing"), dir}})
	if _, err := b.kernel(); err == nil || !strings.Contains(err.Error(), "no kernel for virtual machines") {
		t.Errorf("without a kernel: %v", err)
	}
	for _, release := range []string{"6.1.0-9-cloud-amd64", "6.1.0-57-cloud-amd64"} {
		putKernel(t, dir, release, "lib")
	}
	putKernel(t, dir, "6.12.117+deb13-cloud-amd64", "usr/lib")
	put(t, filepath.Join(dir, "boot/vmlinuz-7.0.0-1-amd64"), "not for virtual machines")
	put(t, filepath.Join(dir, "boot/vmlinuz-6.13.0-1-cloud-amd64"), "without modules")
	for _, want := range []string{"6.12.117+deb13-cloud-amd64", "6.1.0-57-cloud-amd64", "6.1.0-9-cloud-amd64"} {
		k, err := b.kernel()
		if err != nil || k.release != want {
			t.Errorf("kernel = %s, %v, want %s", k.release, err, want)
		}
		if err := os.Remove(filepath.Join(dir, "boot/vmlinuz-"+want)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestInitialFileSystem(t *testing.T) {
	dir := t.TempDir()
	putKernel(t, dir, "6.1.0-57-cloud-amd64", "lib", "drivers/virtio/virtio.ko", "drivers/virtio/virtio-mmio.ko.xz", "fs/overlay.ko")
	agent, init := filepath.Join(dir, "guest"), filepath.Join(dir, "init")
	put(t, agent, "the agent")
	put(t, init, "init")
	b := New(Config{Kernels: []string{dir}, Cache: filepath.Join(dir, "cache"), Guest: func() (string, error) { return agent, nil }})
	k, err := b.kernel()
	if err != nil {
		t.Fatal(err)
	}
	read := func() []byte {
		t.Helper()
		f, err := b.initrd(k, init)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		data, err := io.ReadAll(f)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	archive := read()
	names := listCpio(t, archive)
	want := []string{"modules", "init", "glasshouse-init", "modules/01-virtio.ko", "modules/02-virtio-mmio.ko.xz", "modules/10-overlay.ko"}
	if !slices.Equal(names, want) {
		t.Errorf("files = %q, want %q", names, want)
	}
	if !bytes.Equal(read(), archive) {
		t.Error("the second machine gets another initial file system")
	}
	old, _ := filepath.Glob(filepath.Join(dir, "cache/initrd-*"))
	for _, name := range old {
		if err := os.Chtimes(name, time.Time{}, time.Now().Add(-keepUnused-time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	// What killed daemons have not completed: a disk, a template, and a copy of a file.
	partial := []string{"layer-1.part", "template-1-memory.part", "volume-64.part.raw", "file-1.part/mounted"}
	for _, name := range partial {
		name = filepath.Join(dir, "cache", name)
		put(t, name, "incomplete")
		for ; name != filepath.Join(dir, "cache"); name = filepath.Dir(name) {
			if err := os.Chtimes(name, time.Time{}, time.Now().Add(-keepPartial-time.Minute)); err != nil {
				t.Fatal(err)
			}
		}
	}
	current := filepath.Join(dir, "cache/template-2-memory.part")
	put(t, current, "of a daemon that runs")
	put(t, agent, "a newer agent")
	if bytes.Equal(read(), archive) {
		t.Error("the initial file system has an old agent")
	}
	if err := os.Remove(current); err != nil {
		t.Errorf("a file that is being written: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "cache/*")); len(left) != 1 {
		t.Errorf("files of the cache = %q, want no unused ones", left)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "cache/*.part")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// listCpio lists the files of an archive, and compares the list with that of the program cpio, if the host has it.
func listCpio(t *testing.T, archive []byte) []string {
	t.Helper()
	var names []string
	for at := 0; ; {
		header := archive[at:]
		if len(header) < 110 || string(header[:6]) != "070701" {
			t.Fatalf("no header at %d", at)
		}
		number := func(n int) (v int) {
			for _, c := range header[6+8*n : 14+8*n] {
				v = v<<4 | strings.IndexByte("0123456789abcdef", c)
			}
			return v
		}
		size, length := number(6), number(11)
		name := string(header[110 : 110+length-1])
		if name == "TRAILER!!!" {
			break
		}
		names = append(names, name)
		at += (110 + length + 3) &^ 3
		at += (size + 3) &^ 3
	}
	if program, err := exec.LookPath("cpio"); err == nil {
		cmd := exec.Command(program, "-t", "--quiet")
		cmd.Stdin = bytes.NewReader(archive)
		out, err := cmd.Output()
		if got := strings.Fields(string(out)); err != nil || !slices.Equal(got, names) {
			t.Errorf("cpio lists %q, %v, want %q", got, err, names)
		}
	}
	return names
}

func TestLayerDisk(t *testing.T) {
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	put(t, filepath.Join(tree, "etc/passwd"), "root")
	put(t, filepath.Join(tree, "large"), strings.Repeat("x", 3<<20))
	for n := range 300 {
		put(t, filepath.Join(tree, "many", strings.Repeat("n", 100)+string(rune('a'+n%26))+strings.Repeat("m", n%90)), "")
	}
	if err := os.Link(filepath.Join(tree, "large"), filepath.Join(tree, "again")); err != nil {
		t.Fatal(err)
	}
	b := New(Config{Cache: filepath.Join(dir, "cache")})
	f, err := b.layerDisk(t.Context(), tree)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tool, err := disk.FindTool("debugfs")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/etc/passwd": "root", "/again": strings.Repeat("x", 3<<20)} {
		out, err := exec.Command(tool, "-R", "cat "+path, f.Name()).Output()
		if err != nil || string(out) != want {
			t.Errorf("%s on the disk has %d bytes, %v, want %d", path, len(out), err, len(want))
		}
	}
	before, err := os.Stat(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	if out, _ := exec.Command(tool, "-R", "ls /", f.Name()).Output(); strings.Contains(string(out), "lost+found") {
		t.Errorf("the disk has a directory of its own: %s", out)
	}
	again, err := b.layerDisk(t.Context(), tree)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	if after, err := os.Stat(again.Name()); err != nil || !os.SameFile(before, after) {
		t.Errorf("the disk was made twice: %v", err)
	}
	if _, err := b.layerDisk(t.Context(), filepath.Join(dir, "missing")); err == nil {
		t.Error("a disk of a directory that does not exist")
	}
}

func TestMountDisk(t *testing.T) {
	dir := t.TempDir()
	from, file := filepath.Join(dir, "from"), filepath.Join(dir, "from/file")
	put(t, file, "one")
	b := New(Config{Cache: filepath.Join(dir, "cache")})
	mount := func(source string) (string, error) {
		to := filepath.Join(t.TempDir(), "mount")
		isFile, err := b.makeMount(t.Context(), source, to, "test")
		if want := source == file; err == nil && isFile != want {
			t.Errorf("%s is a file: %t, want %t", source, isFile, want)
		}
		return to, err
	}
	inode := func(source string) os.FileInfo {
		t.Helper()
		name, err := mount(source)
		if err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	first, single := inode(from), inode(file)
	if !os.SameFile(first, inode(from)) || os.SameFile(first, single) {
		t.Error("a directory has two disks, or the same one as the file in it")
	}
	if first.Size() != 64<<20 || first.Mode().Perm() != 0o600 {
		t.Errorf("the disk has the size %d and the mode %o, want 64 MiB and 600", first.Size(), first.Mode().Perm())
	}
	put(t, file, "two")
	if os.SameFile(first, inode(from)) || os.SameFile(single, inode(file)) {
		t.Error("the disk of changed files has the old ones")
	}
	tool, err := disk.FindTool("debugfs")
	if err != nil {
		t.Fatal(err)
	}
	for source, name := range map[string]string{from: "/file", file: "/" + wire.MountedFile} {
		at, err := mount(source)
		if err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(tool, "-R", "cat "+name, at).Output(); err != nil || string(out) != "two" {
			t.Errorf("%s on the disk of %s is %q, %v, want two", name, source, out, err)
		}
	}
	if err := os.Symlink(from, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := mount(filepath.Join(dir, "link")); !errors.Is(err, fault.Invalid) {
		t.Errorf("a mount through a symbolic link = %v, want invalid", err)
	}

	b = New(Config{Cache: filepath.Join(from, "cache")}) // each copy changes the files
	_, err = mount(from)
	if !errors.Is(err, fault.Conflict) {
		t.Errorf("a mount of files that change all the time = %v, want a conflict", err)
	}
	if left, _ := filepath.Glob(filepath.Join(from, "cache/*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestInlineLayer(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "etc/hosts"), "localhost")
	files, err := inline(dir)
	want := []wire.File{{Name: "etc", Mode: uint32(os.ModeDir | 0o755)}, {Name: "etc/hosts", Mode: 0o644, Data: []byte("localhost")}}
	if err != nil || len(files) != 2 || files[0].Name != want[0].Name || files[0].Mode != want[0].Mode || files[1].Name != want[1].Name || string(files[1].Data) != "localhost" {
		t.Errorf("files = %+v, %v, want %+v", files, err, want)
	}
	if err := os.Symlink("hosts", filepath.Join(dir, "etc/link")); err != nil {
		t.Fatal(err)
	}
	if files, err := inline(dir); err == nil {
		t.Errorf("a layer with a link = %+v, want an error", files)
	}
}

func TestFrequencyOfTimeStampCounter(t *testing.T) {
	if readTSC() == 0 {
		t.Skip("this processor has no time stamp counter")
	}
	began, first := time.Now(), readTSC()
	khz := tscKHz()
	if took := time.Since(began); took > time.Second || readTSC() <= first || khz < 100_000 || khz > 10_000_000 {
		t.Errorf("%d kHz, measured in %v, want that of a processor", khz, took)
	}
}
