package rootfs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/nix"
	"glasshouse/jail/rootfs"
)

// open returns a provider with an empty directory. Each edit changes its configuration.
func open(t testing.TB, edit ...func(*rootfs.Config)) *rootfs.Provider {
	t.Helper()
	cfg := rootfs.Config{Dir: filepath.Join(t.TempDir(), "images")}
	for _, e := range edit {
		e(&cfg)
	}
	p := rootfs.New(cfg)
	must(t, p.Open())
	return p
}

func allow(dirs ...string) func(*rootfs.Config) {
	return func(c *rootfs.Config) { c.Allow = dirs }
}

func in(dir string) func(*rootfs.Config) {
	return func(c *rootfs.Config) { c.Dir = dir }
}

func TestInvalidRequests(t *testing.T) {
	p := open(t, allow("/"))
	tests := []struct {
		r    jail.Rootfs
		kind fault.Kind
	}{
		{jail.Rootfs{Debian: "bookworm", Dir: "/"}, fault.Invalid},
		{jail.Rootfs{Host: true, Nix: "base"}, fault.Invalid},
		{jail.Rootfs{Debian: "slink"}, fault.Invalid},
		{jail.Rootfs{Debian: "--help"}, fault.Invalid},
		{jail.Rootfs{Nix: "../base"}, fault.Invalid},
		{jail.Rootfs{Dir: "relative"}, fault.Invalid},
		{jail.Rootfs{Dir: "/etc/passwd"}, fault.Invalid},
		{jail.Rootfs{Dir: "/no/such/dir"}, fault.NotFound},
		{jail.Rootfs{OCI: "Not A Reference"}, fault.Invalid},
		{jail.Rootfs{OCI: "./relative"}, fault.Invalid},
		{jail.Rootfs{OCI: "/no/such/layout"}, fault.NotFound},
		{jail.Rootfs{OCI: "/etc"}, fault.Invalid},
		{jail.Rootfs{OCI: "/etc/passwd"}, fault.Invalid},
		{jail.Rootfs{OCI: "/dev/null"}, fault.Invalid},
	}
	for _, tt := range tests {
		if l, err := p.Resolve(t.Context(), tt.r); !errors.Is(err, tt.kind) {
			t.Errorf("Resolve(%+v) = %+v, %v, want %s", tt.r, l, err, tt.kind)
		}
	}
}

func TestHostTreeHasNoDir(t *testing.T) {
	l, err := open(t).Resolve(t.Context(), jail.Rootfs{Host: true})
	if err != nil || l.Dir != "" || l.Digest != "host" {
		t.Errorf("Resolve(host) = %+v, %v", l, err)
	}
}

func TestDirIsNotModified(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "a"), []byte("1"), 0o600))
	p := open(t, allow(filepath.Dir(dir)))

	first, err := p.Resolve(t.Context(), jail.Rootfs{Dir: dir})
	if err != nil || first.Dir != dir || !strings.HasPrefix(first.Digest, "dir:"+dir) {
		t.Fatalf("Resolve = %+v, %v", first, err)
	}
	if diff := cmp.Diff([]string{"a = 1"}, look(t, dir)); diff != "" {
		t.Errorf("the directory changed:\n%s", diff)
	}
	then := time.Now().Add(-time.Hour)
	must(t, os.Chtimes(dir, then, then))
	second, err := p.Resolve(t.Context(), jail.Rootfs{Dir: dir})
	if err != nil || second.Digest == first.Digest {
		t.Errorf("digest of a replaced directory = %s, %v, want another one", second.Digest, err)
	}
}

func TestDirMustBeAllowed(t *testing.T) {
	top := t.TempDir()
	for _, d := range []string{"open", "open/in", "opening", "closed"} {
		must(t, os.Mkdir(filepath.Join(top, d), 0o755))
	}
	must(t, os.Symlink("../closed", filepath.Join(top, "open/way-out")))
	must(t, os.Symlink("open/in", filepath.Join(top, "way-in")))

	tests := []struct {
		allow []string
		dir   string
		want  error
	}{
		{[]string{"open"}, "open", nil},
		{[]string{"open"}, "open/in", nil},
		{[]string{"open/"}, "open/in", nil},
		{[]string{"open"}, "way-in", nil},
		{[]string{"closed", "open"}, "open/way-out", nil},
		{nil, "open", fault.Denied},
		{[]string{"open"}, "opening", fault.Denied},
		{[]string{"open"}, "closed", fault.Denied},
		{[]string{"open"}, "open/way-out", fault.Denied},
		{[]string{"open"}, "open/../closed", fault.Denied},
		{[]string{"open"}, "closed/none", fault.Denied}, // does not disclose whether it exists
		{[]string{"open"}, "open/none", fault.NotFound},
	}
	for _, tt := range tests {
		var prefixes []string
		for _, a := range tt.allow {
			prefixes = append(prefixes, top+"/"+a)
		}
		p := open(t, allow(prefixes...))
		for _, r := range []jail.Rootfs{{Dir: top + "/" + tt.dir}, {OCI: top + "/" + tt.dir}} {
			_, err := p.Resolve(t.Context(), r)
			if r.OCI != "" && tt.want == nil {
				continue // allowed, but not a layout
			}
			if !errors.Is(err, tt.want) {
				t.Errorf("Resolve(%+v) with %v allowed = %v, want %v", r, tt.allow, err, tt.want)
			}
		}
	}
}

func TestImagesDirectoryIsPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "images")
	must(t, os.Mkdir(dir, 0o755))
	open(t, in(dir))
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("mode of the images directory = %v, %v, want 0700: trees may contain set-user-id programs", fi.Mode(), err)
	}
}

func TestOpenRemovesUnlockedTemporaries(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "images")
	for _, d := range []string{".tmp-dead/ready/rootfs/etc", ".tmp-live", "sha256-half/rootfs"} {
		must(t, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	live, err := os.Open(filepath.Join(dir, ".tmp-live"))
	must(t, err)
	defer live.Close()
	must(t, syscall.Flock(int(live.Fd()), syscall.LOCK_EX))

	p := open(t, in(dir))
	if _, err := os.Stat(filepath.Join(dir, ".tmp-dead")); !errors.Is(err, os.ErrNotExist) {
		t.Error("the temporary directory of an ended process still exists")
	}
	if _, err := os.Stat(filepath.Join(dir, ".tmp-live")); err != nil {
		t.Errorf("the temporary directory of a running process was removed: %v", err)
	}
	if got := p.List(); len(got) != 0 {
		t.Errorf("List = %+v, want no incomplete image", got)
	}
}

func TestBase(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "base")
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	for range 2 {
		must(t, rootfs.Base(dir))
	}
	want := []string{".glasshouse/", "dev/", "etc/", "proc/", "root/", "run/", "run/secrets/", "sys/", "tmp/", "var/", "var/tmp/"}
	if diff := cmp.Diff(want, look(t, dir)); diff != "" {
		t.Errorf("base layer (-want +got):\n%s", diff)
	}
	if fi, err := os.Stat(filepath.Join(dir, "tmp")); err != nil || fi.Mode() != os.ModeDir|os.ModeSticky|0o777 {
		t.Errorf("mode of tmp = %v, %v", fi.Mode(), err)
	}
}

func TestIdentity(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "identity")
	must(t, rootfs.Identity(dir, "first", ""))
	must(t, rootfs.Identity(dir, "web-1", "nameserver 10.0.0.1\n"))
	want := []string{
		".glasshouse/", "etc/", "etc/hostname = web-1\n",
		"etc/hosts = 127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\tweb-1\n",
		"etc/resolv.conf = nameserver 10.0.0.1\n",
	}
	if diff := cmp.Diff(want, look(t, dir)); diff != "" {
		t.Errorf("identity layer (-want +got):\n%s", diff)
	}
	for _, bad := range []string{"", "a b", "a\n10.0.0.1 bank", "-a", "a/b", strings.Repeat("a", 65)} {
		if err := rootfs.Identity(dir, bad, ""); !errors.Is(err, fault.Invalid) {
			t.Errorf("Identity(%q) = %v, want invalid", bad, err)
		}
	}
}

func BenchmarkIdentity(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "identity")
	for b.Loop() {
		os.RemoveAll(dir)
		if err := rootfs.Identity(dir, "j-abc", "nameserver 1.1.1.1\n"); err != nil {
			b.Fatal(err)
		}
	}
}

func TestDebianLinesOmitOtherVendors(t *testing.T) {
	targets := `http://mirror.example/debian/ bookworm main
http://mirror.example/debian/ bookworm main
http://mirror.example/debian/ bookworm-updates main
http://mirror.example/debian/ bookworm contrib
http://mirror.example/debian-security/ bookworm-security main
https://apt.vendor.example/ bookworm main
https://download.docker.com/linux/debian bookworm stable
file:/srv/debian bookworm main
http://mirror.example/debian/ trixie main
nonsense
`
	got := rootfs.DebianLines(targets, "bookworm")
	want := []string{
		"deb http://mirror.example/debian/ bookworm main",
		"deb http://mirror.example/debian/ bookworm-updates main",
		"deb http://mirror.example/debian-security/ bookworm-security main",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	if got := rootfs.DebianLines("http://m.example/debian/ bookworm-updates main\n", "bookworm"); got != nil {
		t.Errorf("lines of only the updates suite = %q, want none", got)
	}
}

// TestDebianTree runs mmdebstrap once and checks all properties of the tree.
func TestDebianTree(t *testing.T) {
	if os.Getenv("GLASSHOUSE_TEST") != "all" {
		t.Skip("needs half a minute and network access: set GLASSHOUSE_TEST=all")
	}
	images := filepath.Join(t.TempDir(), "images")
	p := open(t, in(images))

	// Of several concurrent callers, one builds.
	var wg sync.WaitGroup
	layers, errs := make([]rootfs.Layer, 4), make([]error, 4)
	for i := range layers {
		wg.Go(func() { layers[i], errs[i] = p.Resolve(t.Context(), jail.Rootfs{}) })
	}
	wg.Wait()
	if errors.Is(errs[0], fault.Unsupported) || errors.Is(errs[0], fault.Unavailable) {
		t.Skip(errs[0])
	}
	for i, err := range errs {
		if err != nil || layers[i].Dir != layers[0].Dir || layers[i].Digest != layers[0].Digest {
			t.Fatalf("Resolve = %+v, %v, want %+v", layers[i], err, layers[0])
		}
	}
	l := layers[0]
	checkDebian(t, l.Dir)

	list := p.List()
	if len(list) != 1 || list[0].Digest != l.Digest || list[0].Size < 50<<20 || list[0].Size > 250<<20 {
		t.Errorf("List = %+v, want one tree of about 150 MB", list)
	}
	t.Logf("%s: %d MB in %d files, skipped %q", l.Digest, list[0].Size>>20, list[0].Files, list[0].Skipped)

	// A restarted daemon does not build the tree again.
	start := time.Now()
	again, err := open(t, in(images)).Resolve(t.Context(), jail.Rootfs{Debian: "bookworm"})
	if err != nil || again.Dir != l.Dir || time.Since(start) > 10*time.Second {
		t.Errorf("Resolve after reopening = %+v, %v in %v", again, err, time.Since(start))
	}
}

func checkDebian(t *testing.T, dir string) {
	t.Helper()
	for _, bin := range []string{"bash", "ls", "curl", "python3", "git"} {
		if _, err := os.Stat(filepath.Join(dir, "usr/bin", bin)); err != nil {
			t.Errorf("%s is missing: %v", bin, err)
		}
	}
	for _, empty := range []string{"etc/profile.d", "var/lib/apt/lists", "var/cache/apt", "usr/share/man"} {
		filepath.WalkDir(filepath.Join(dir, empty), func(p string, d fs.DirEntry, err error) error {
			if fi, err := os.Lstat(p); err == nil && !d.IsDir() && fi.Size() > 0 {
				t.Errorf("%s takes %d bytes", p, fi.Size())
			}
			return nil
		})
	}
	for _, gone := range []string{"etc/hostname", "etc/resolv.conf"} {
		if _, err := os.Lstat(filepath.Join(dir, gone)); err == nil {
			t.Errorf("%s exists, want it only in the identity layer", gone)
		}
	}
	if os.Geteuid() != 0 {
		return
	}
	fi, err := os.Stat(filepath.Join(dir, "home/agent"))
	must(t, err)
	if uid := fi.Sys().(*syscall.Stat_t).Uid; uid != 1000 {
		t.Errorf("owner of home/agent = %d, want 1000", uid)
	}
	script := `test "$PATH" = /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin && id -un 1000 && python3 -c 'import json, http.server, urllib.request; print(6*7)' && git --version`
	out, err := exec.Command("chroot", dir, "/usr/bin/env", "-i", "bash", "-lc", script).CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "agent\n42\ngit version") {
		t.Errorf("a login shell in the tree: %s, %v", out, err)
	}
}

func TestMissingMmdebstrap(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := open(t).Resolve(t.Context(), jail.Rootfs{Debian: "trixie"})
	if !errors.Is(err, fault.Unsupported) || !strings.Contains(fault.RemedyOf(err), "apt-get install mmdebstrap") {
		t.Errorf("Resolve = %v, remedy %q", err, fault.RemedyOf(err))
	}
	_, err = open(t).Resolve(t.Context(), jail.Rootfs{Nix: "python"})
	if !errors.Is(err, fault.Unsupported) || !strings.Contains(fault.RemedyOf(err), "install nix") {
		t.Errorf("Resolve = %v, remedy %q", err, fault.RemedyOf(err))
	}
}

func TestNixProfileIsCopied(t *testing.T) {
	store := t.TempDir()
	asked := filepath.Join(t.TempDir(), "asked")
	// Like nix: all files are read-only, and the result is a symlink.
	tool(t, "nix", `echo "$@" >> `+asked+`
while [ $# -gt 0 ]; do case $1 in --out-link) link=$2;; path:*) flake=$1;; esac; shift; done
dir=${flake#path:}; test -s "${dir%#*}/flake.nix" || exit 9
mkdir -p `+store+`/out/bin `+store+`/out/home/agent
echo sh > `+store+`/out/bin/sh; chmod 0555 `+store+`/out/bin/sh `+store+`/out/bin `+store+`/out
ln -s `+store+`/out "$link"`)
	t.Cleanup(func() { exec.Command("chmod", "-R", "u+w", store).Run() })
	images := filepath.Join(t.TempDir(), "images")

	l, err := open(t, in(images)).Resolve(t.Context(), jail.Rootfs{Nix: "python"})
	must(t, err)
	if diff := cmp.Diff([]string{"bin/", "bin/sh = sh\n", "home/", "home/agent/"}, look(t, l.Dir)); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
	if fi, err := os.Stat(filepath.Join(l.Dir, "bin/sh")); err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("mode of bin/sh = %v, %v, want writable by its owner", fi.Mode(), err)
	}
	if os.Geteuid() == 0 {
		fi, err := os.Stat(filepath.Join(l.Dir, "home/agent"))
		must(t, err)
		if uid := fi.Sys().(*syscall.Stat_t).Uid; uid != 1000 {
			t.Errorf("owner of home/agent = %d, want that of the agent", uid)
		}
	}
	if _, err := open(t, in(images)).Resolve(t.Context(), jail.Rootfs{Nix: "python"}); err != nil {
		t.Error(err)
	}
	b, err := os.ReadFile(asked)
	must(t, err)
	if n := strings.Count(string(b), "#rootfs-python"); n != 1 || strings.Count(string(b), "\n") != 1 {
		t.Errorf("nix ran with %q, want one build of rootfs-python", b)
	}
}

func TestFlakeHasAllProfiles(t *testing.T) {
	b, err := nix.Flake.ReadFile("flake.nix")
	must(t, err)
	for _, p := range rootfs.Profiles {
		if !strings.Contains(string(b), "rootfs-"+p+" = ") {
			t.Errorf("the flake has no output rootfs-%s", p)
		}
	}
}

// tool creates a program and puts its directory first in PATH.
func tool(t *testing.T, name, script string) {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestFailedBootstrapLeavesNothing(t *testing.T) {
	tests := []struct {
		name, script string
		kind         fault.Kind
	}{
		{"the mirror is not there", "echo 'E: Could not resolve deb.debian.org' >&2; exit 1", fault.Unavailable},
		{"no subordinate ids", "echo 'E: newuidmap failed' >&2; exit 1", fault.Unsupported},
		{"it writes half a tree and fails", "head -c 1000 /dev/zero; exit 3", ""},
		{"it writes more than fits", "cat /dev/zero", fault.TooLarge},
		{"it writes no tar", "echo hello; exit 0", fault.Invalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tool(t, "mmdebstrap", tt.script)
			dir := filepath.Join(t.TempDir(), "images")
			p := open(t, in(dir), func(c *rootfs.Config) { c.MaxBytes, c.MaxFiles = 1<<20, 10 })
			_, err := p.Resolve(t.Context(), jail.Rootfs{})
			if err == nil || fault.KindOf(err) != tt.kind {
				t.Errorf("Resolve = %v, want kind %q", err, tt.kind)
			}
			if left, _ := os.ReadDir(dir); len(left) > 0 || len(p.List()) > 0 {
				t.Errorf("files remain: %v", left)
			}
		})
	}
}

// mmdebstrap mounts directories of the host in its tree. If it is killed, their files are not
// deleted with the tree.
func TestKilledBootstrapLeavesFilesOfHost(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount directories")
	}
	host := t.TempDir()
	kept := filepath.Join(host, "kept")
	must(t, os.WriteFile(kept, nil, 0o600))
	mounted := filepath.Join(t.TempDir(), "mounted")
	tool(t, "mmdebstrap", `mkdir -p "$TMPDIR/root/dev/shm" && mount --bind `+host+` "$TMPDIR/root/dev/shm" && touch `+mounted+`; sleep 300`)
	images := filepath.Join(t.TempDir(), "images")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(mounted); err == nil {
				cancel()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	if _, err := open(t, in(images)).Resolve(ctx, jail.Rootfs{}); !errors.Is(err, context.Canceled) {
		t.Fatalf("Resolve = %v, want it to be cancelled", err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("after a killed build: %v, want the file of the host", err)
	}
	if left, err := os.ReadDir(images); err != nil || len(left) > 0 {
		t.Errorf("files remain: %v, %v", left, err)
	}

	// A mount that a daemon without this protection has left.
	dir := filepath.Join(images, ".tmp-1", "scratch", "shm")
	must(t, os.MkdirAll(dir, 0o755))
	must(t, unix.Mount(host, dir, "", unix.MS_BIND, ""))
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	open(t, in(images))
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("after the next start: %v, want the file of the host", err)
	}
	if left, err := os.ReadDir(images); err != nil || len(left) > 0 {
		t.Errorf("files remain after the next start: %v, %v", left, err)
	}
}

func TestCancelledBuildIsRetriedByWaiter(t *testing.T) {
	tar := filepath.Join(t.TempDir(), "tree.tar")
	must(t, os.WriteFile(tar, archive(t, file("etc/os", "x")), 0o600))
	mark := filepath.Join(t.TempDir(), "started")
	// The first run hangs and has a child process; the second run succeeds.
	tool(t, "mmdebstrap", "if [ -e "+mark+" ]; then exec cat "+tar+"; fi; echo $$ > "+mark+"; sleep 300 & wait")
	p := open(t)

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var first, second error
	wg.Go(func() { _, first = p.Resolve(ctx, jail.Rootfs{}) })
	for {
		if b, err := os.ReadFile(mark); err == nil && bytes.HasSuffix(b, []byte("\n")) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	wg.Go(func() { _, second = p.Resolve(t.Context(), jail.Rootfs{}) })
	time.Sleep(10 * time.Millisecond) // the second caller probably waits for the first; the test does not depend on it
	cancel()
	wg.Wait()
	if !errors.Is(first, context.Canceled) {
		t.Errorf("the cancelled caller got %v", first)
	}
	if second != nil {
		t.Errorf("the waiting caller got %v", second)
	}
}

func TestPruneKeepsUsedImages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "images")
	p := open(t, in(dir), allow("/"))
	var layers []rootfs.Layer
	for _, name := range []string{"used", "fresh", "stale"} {
		l, err := p.Resolve(t.Context(), jail.Rootfs{OCI: layoutWith(t, file(name, "1"))})
		must(t, err)
		layers = append(layers, l)
	}
	used, fresh, stale := layers[0], layers[1], layers[2]
	p.Age(used.Digest, time.Hour)
	p.Age(stale.Digest, time.Hour)

	removed, err := p.Prune(t.Context(), []string{used.Digest})
	if err != nil || len(removed) != 1 || removed[0].Digest != stale.Digest {
		t.Errorf("Prune = %+v, %v, want only %s", removed, err, stale.Digest)
	}
	for _, l := range []rootfs.Layer{used, fresh} {
		if _, err := os.Stat(l.Dir); err != nil {
			t.Errorf("an image in use was pruned: %v", err)
		}
	}
	if _, err := os.Stat(filepath.Dir(stale.Dir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pruned tree still exists: %v", err)
	}
	if left, _ := filepath.Glob(dir + "/.tmp-*"); len(left) > 0 {
		t.Errorf("temporary directories remain: %v", left)
	}
}

func TestDamagedImageIsReplaced(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "images")
	layout := layoutWith(t, file("a", "1"))
	l, err := open(t, in(dir), allow("/")).Resolve(t.Context(), jail.Rootfs{OCI: layout})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(filepath.Dir(l.Dir), "image.json"), []byte("{"), 0o600))

	again, err := open(t, in(dir), allow("/")).Resolve(t.Context(), jail.Rootfs{OCI: layout})
	if err != nil || again.Dir != l.Dir {
		t.Fatalf("Resolve = %+v, %v", again, err)
	}
	if diff := cmp.Diff([]string{"a = 1"}, look(t, again.Dir)); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
}

func TestImageRecord(t *testing.T) {
	p := open(t, allow("/"))
	layout := layoutWith(t, file("a", "1"), member{Name: "null", Typeflag: '3'})
	l, err := p.Resolve(t.Context(), jail.Rootfs{OCI: layout})
	must(t, err)
	b, err := os.ReadFile(filepath.Join(filepath.Dir(l.Dir), "image.json"))
	must(t, err)
	var got rootfs.Image
	must(t, json.Unmarshal(b, &got))
	if got.Digest != l.Digest || got.Size != 1 || got.Created.IsZero() || !slices.Contains(got.Skipped, "null: device node") ||
		!slices.Equal(got.Sources, []string{"oci:" + layout + "@" + l.Digest}) {
		t.Errorf("image.json = %s", b)
	}
}
