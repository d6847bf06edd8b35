package oci_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/netns"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/jail/backend/oci"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// forEachRuntime runs a scenario on each runtime of this host.
func forEachRuntime(t *testing.T, scenario func(t *testing.T, h *host, b *oci.Backend)) {
	for _, runtime := range []string{"runc", "crun", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			h := newHost(t)
			scenario(t, h, ready(t, h, runtime))
		})
	}
}

// ready returns a backend with the given runtime, or skips the test if the host does not have
// it.
func ready(t testing.TB, h *host, runtime string) *oci.Backend {
	t.Helper()
	b := h.daemon(runtime)
	if err := b.Probe(t.Context()); errors.Is(err, fault.Unsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatalf("Probe: %v", err)
	}
	return b
}

// plan returns the plan of a small jail and registers its cleanup.
func (h *host) plan(t testing.TB, b *oci.Backend, change ...func(*jail.Plan)) jail.Plan {
	t.Helper()
	name := id.NewJail()
	p := jail.Plan{
		ID: name, Dir: filepath.Join(h.dir, string(name)), Hostname: string(name),
		Lower:  []string{backendtest.Rootfs(t)},
		IDs:    backendtest.NextIDs(t),
		Limits: jail.DefaultLimits, Network: jail.Isolated, Init: backendtest.Init(t),
	}
	p.Limits.DiskMB = 64
	for _, c := range change {
		c(&p)
	}
	if err := os.Mkdir(p.Dir, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Clean(context.WithoutCancel(t.Context()), p); err != nil {
			t.Errorf("Clean: %v", err)
		}
		// A process that copies the host's mounts may hold the jail's disk a little longer.
		if leaks := backendtest.LeaksAfter(p, 30*time.Second); len(leaks) > 0 {
			t.Errorf("Clean left on the host:\n%s", strings.Join(leaks, "\n"))
		}
	})
	return p
}

// start creates a jail and returns a function that runs a script in it and returns its output
// and exit code.
func start(t testing.TB, b *oci.Backend, p jail.Plan) func(script string) (string, int) {
	t.Helper()
	inst, err := b.Create(t.Context(), p)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() { inst.Close() })
	return func(script string) (string, int) {
		t.Helper()
		out, code, err := run(t.Context(), inst, "/bin/bash", "-c", script)
		if err != nil {
			t.Fatalf("run %s: %v", script, err)
		}
		return out, code
	}
}

func run(ctx context.Context, inst jail.Instance, argv ...string) (string, int, error) {
	e := protocol.Exec{ID: id.NewExec(), Argv: argv, Env: []string{"PATH=/usr/bin:/bin"}}
	stream, _, err := control.Dial(inst.Control()).Exec(ctx, e, &control.AttachOptions{Lossless: true})
	if err != nil {
		return "", 0, err
	}
	defer stream.Close()
	var out bytes.Buffer
	for {
		chunk, err := stream.Next()
		if err == io.EOF {
			return out.String(), stream.Status().Code, nil
		}
		if err != nil {
			return "", 0, err
		}
		out.Write(chunk.Data)
	}
}

// owned creates a directory on the host that belongs to owner.
func (h *host) owned(t *testing.T, name string, owner int, files map[string]int) string {
	t.Helper()
	dir := filepath.Join(h.dir, name)
	must(t, os.Mkdir(dir, 0o755))
	for file, owner := range files {
		must(t, os.WriteFile(filepath.Join(dir, file), []byte(file+"\n"), 0o640))
		must(t, os.Chown(filepath.Join(dir, file), owner, owner))
	}
	must(t, os.Chown(dir, owner, owner))
	return dir
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func ownerOf(t *testing.T, path string) uint32 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	return st.Uid
}

func TestRootInJailWritesMountAsItsOwner(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, h *host, b *oci.Backend) {
		src := h.owned(t, "src", 4321, map[string]int{"mine": 4321, "theirs": 5555, "roots": 0})
		sh := start(t, b, h.plan(t, b, func(p *jail.Plan) {
			p.Mounts = []jail.Mount{{Source: src, Target: "/mnt/src", Write: true}}
		}))
		if out, code := sh("cd /mnt/src; stat -c %u mine; cat mine; echo x >> mine; echo y > new; mkdir dir"); code != 0 || out != "0\nmine\n" {
			t.Errorf("access to the owner's files as root in the jail: output %q, exit code %d", out, code)
		}
		for _, name := range []string{"new", "dir", "mine"} {
			if got := ownerOf(t, filepath.Join(src, name)); got != 4321 {
				t.Errorf("owner of %s on the host = %d, want 4321", name, got)
			}
		}
		for _, script := range []string{"cat theirs", "echo x >> theirs", "echo x >> roots"} {
			if out, code := sh("cd /mnt/src; " + script); code == 0 {
				t.Errorf("%s on files of another host user succeeds: %q", script, out)
			}
		}
		sh("cd /mnt/src; chown 0 theirs roots; chmod 666 theirs roots") // gVisor reports no error
		for name, owner := range map[string]uint32{"theirs": 5555, "roots": 0} {
			st, err := os.Stat(filepath.Join(src, name))
			must(t, err)
			if ownerOf(t, filepath.Join(src, name)) != owner || st.Mode() != 0o640 {
				t.Errorf("%s of another host user now has owner %d and mode %v", name, ownerOf(t, filepath.Join(src, name)), st.Mode())
			}
		}
	})
}

// A set-user-id program of root in a directory that host users can access would give them root
// on the host.
func TestSetuidRootProgramsDoNotReachHost(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, h *host, b *oci.Backend) {
		src := h.owned(t, "src", 4321, nil)
		sh := start(t, b, h.plan(t, b, func(p *jail.Plan) {
			p.Mounts = []jail.Mount{{Source: src, Target: "/mnt/src", Write: true}}
		}))
		sh(`cd /mnt/src; cp /usr/bin/id a; chmod 4755 a; cp /usr/bin/id b; chown 0:0 b; chmod 4755 b; cp /usr/bin/id c; chown 1000 c; chmod 4755 c; mknod null c 1 3; mknod disk b 254 0; ln /usr/bin/id d; mv /usr/bin/setuid-probe e; cp -p /usr/bin/setuid-probe f`)
		err := filepath.WalkDir(src, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if got := ownerOf(t, path); got != 4321 {
				t.Errorf("owner of %s on the host = %d, want an id of the jail", path, got)
			}
			if d.Type()&fs.ModeDevice != 0 {
				t.Errorf("%s is a device", path)
			}
			return nil
		})
		must(t, err)
	})
}

func TestWorkspaceBelongsToRootInJailAndIsUnchangedOnHost(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, h *host, b *oci.Backend) {
		src := h.owned(t, "project", 1000, map[string]int{"code": 1000, "config": 0, "secret": 4321})
		p := h.plan(t, b, func(p *jail.Plan) {
			p.Workspace = &jail.Workspace{Source: src, Target: "/work"}
			p.Mounts = []jail.Mount{{Source: h.owned(t, "data", 0, map[string]int{"d": 0}), Target: "/work/deps/data"}}
		})
		sh := start(t, b, p)
		if out, code := sh("cd /work; stat -c %u . code config secret; cat deps/data/d"); code != 0 || out != "0\n0\n1000\n4321\nd\n" {
			t.Errorf("owners in the jail: output %q, exit code %d", out, code)
		}
		if out, code := sh("cd /work; echo changed > code; rm secret; echo n > new; chown 1000 config"); code != 0 {
			t.Errorf("root in the jail cannot write to the workspace: output %q, exit code %d", out, code)
		}
		for name, owner := range map[string]uint32{"code": 1000, "config": 0, "secret": 4321} {
			content, err := os.ReadFile(filepath.Join(src, name))
			if err != nil || string(content) != name+"\n" || ownerOf(t, filepath.Join(src, name)) != owner {
				t.Errorf("%s on the host = %q, %v, want it unchanged", name, content, err)
			}
		}
		if _, err := os.Lstat(filepath.Join(src, "deps")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a mount point was created on the host: %v", err)
		}
		if got, err := os.ReadFile(filepath.Join(p.Dir, "rootfs/ws-upper/code")); string(got) != "changed\n" {
			t.Errorf("upper layer of the workspace = %q, %v", got, err)
		}
	})
}

// An administrator may have mounted a source with additional restrictions. They apply in the
// jail as well.
func TestHostMountFlagsApplyInJail(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, h *host, b *oci.Backend) {
		src := filepath.Join(h.dir, "restricted")
		must(t, os.Mkdir(src, 0o755))
		must(t, unix.Mount("tmpfs", src, "tmpfs", unix.MS_NOEXEC|unix.MS_NOATIME|unix.MS_NOSUID, "mode=755"))
		t.Cleanup(func() { must(t, unix.Unmount(src, 0)) })
		must(t, exec.Command("cp", "/usr/bin/true", src).Run())

		p := h.plan(t, b, func(p *jail.Plan) {
			p.Mounts = []jail.Mount{{Source: src, Target: "/mnt/ro"}, {Source: src, Target: "/mnt/rw", Write: true}}
		})
		inst, err := b.Create(t.Context(), p)
		if errors.Is(err, fault.Unsupported) {
			t.Skip(err) // tmpfs without idmapped mounts
		}
		must(t, err)
		defer inst.Close()
		for _, program := range []string{"/mnt/ro/true", "/mnt/rw/true"} {
			if _, code, err := run(t.Context(), inst, "/bin/bash", "-c", program); err == nil && code == 0 {
				t.Errorf("%s runs although its filesystem is noexec on the host", program)
			}
		}
	})
}

func TestJailCannotUseItsControlDirectory(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, h *host, b *oci.Backend) {
		p := h.plan(t, b)
		sh := start(t, b, p)
		scripts := []string{
			"echo x > /.glasshouse/x", "rm /.glasshouse/init.sock", "mv /.glasshouse/init.sock /.glasshouse/y", "ln -s /x /.glasshouse/y",
			"echo x > /.glasshouse/init", "ls /.glasshouse", "probe as 1000 probe dial unix /.glasshouse/init.sock",
		}
		if runtimeOf(t) != "runsc" { // gVisor allows root to connect to any socket
			scripts = append(scripts, "probe dial unix /.glasshouse/init.sock")
		}
		for _, script := range scripts {
			if out, code := sh(script); code == 0 {
				t.Errorf("%s succeeds in the jail: %q", script, out)
			}
		}
		sh("chown 0 /.glasshouse /.glasshouse/*; chmod 777 /.glasshouse /.glasshouse/*") // gVisor reports no error
		for name, want := range map[string]fs.FileMode{"": fs.ModeDir | 0o711, "init": 0o755, "init.sock": fs.ModeSocket | 0o600} {
			path := filepath.Join(p.Dir, "ctl", name)
			st, err := os.Lstat(path)
			must(t, err)
			if st.Mode() != want || ownerOf(t, path) != 0 {
				t.Errorf("%s has owner %d and mode %v, want root and %v", path, ownerOf(t, path), st.Mode(), want)
			}
		}
		if out, _ := sh("echo still there"); out != "still there\n" {
			t.Errorf("unexpected answer of init: %q", out)
		}
	})
}

func TestFullNetworkHasHostResolvers(t *testing.T) {
	if err := netns.ProbeFull(); errors.Is(err, fault.Unsupported) {
		t.Skip(err)
	}
	t.Cleanup(func() { must(t, netns.Release()) })
	forEachRuntime(t, func(t *testing.T, h *host, b *oci.Backend) {
		sh := start(t, b, h.plan(t, b, func(p *jail.Plan) { p.Network = jail.Full }))
		out, code := sh("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | sort | tr '\\n' ' '; test -e /etc/resolv.conf")
		if out != "eth0 lo " || code != 0 {
			t.Errorf("interfaces = %q, %d, want eth0 and lo", out, code)
		}
		isolated := start(t, b, h.plan(t, b))
		if out, _ := isolated("cat /etc/resolv.conf"); out != "" {
			t.Errorf("resolvers of an isolated jail = %q, want none", out)
		}
	})
}

func TestCreateOfRunningJailFailsWithoutEffect(t *testing.T) {
	h := newHost(t)
	b := ready(t, h, "runc")
	p := h.plan(t, b)
	sh := start(t, b, p)
	if _, err := b.Create(t.Context(), p); !errors.Is(err, fault.Conflict) {
		t.Errorf("Create of a running jail = %v, want conflict", err)
	}
	if out, _ := sh("echo alive"); out != "alive\n" {
		t.Errorf("output of the running jail = %q", out)
	}
}

func TestFrozenJailIsReopened(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, h *host, b *oci.Backend) {
		p := h.plan(t, b)
		inst, err := b.Create(t.Context(), p)
		must(t, err)
		must(t, inst.Freeze(t.Context()))
		must(t, inst.Close())

		again, err := h.daemon(runtimeOf(t)).Open(t.Context(), p)
		if err != nil {
			t.Fatalf("Open of a frozen jail: %v", err)
		}
		defer again.Close()
		must(t, again.Thaw(t.Context()))
		if out, _, err := run(t.Context(), again, "/bin/echo", "awake"); err != nil || out != "awake\n" {
			t.Errorf("after Thaw: %q, %v", out, err)
		}
	})
}

func TestInvalidPlansAreRejected(t *testing.T) {
	h := newHost(t)
	b := h.daemon("runc")
	good := jail.Plan{ID: id.NewJail(), Dir: filepath.Join(h.dir, "x"), Hostname: "x", Lower: []string{"/"}, IDs: jail.IDRange{First: 1 << 20, Count: 65536}}
	for name, change := range map[string]func(p *jail.Plan){
		"a name that is a path":  func(p *jail.Plan) { p.ID = "../../etc" },
		"a relative directory":   func(p *jail.Plan) { p.Dir = "x" },
		"the root directory":     func(p *jail.Plan) { p.Dir = "/" },
		"another runtime":        func(p *jail.Plan) { p.Runtime = "runsc" },
		"the host's own ids":     func(p *jail.Plan) { p.IDs.First = 0 },
		"no ids":                 func(p *jail.Plan) { p.IDs.Count = 0 },
		"ids beyond the last":    func(p *jail.Plan) { p.IDs.First = 1<<32 - 10 },
		"no layers":              func(p *jail.Plan) { p.Lower = nil },
		"a mount over /proc":     func(p *jail.Plan) { p.Mounts = []jail.Mount{{Source: "/tmp", Target: "/proc/x"}} },
		"a workspace over /sys":  func(p *jail.Plan) { p.Workspace = &jail.Workspace{Source: "/sys"} },
		"a mount above the root": func(p *jail.Plan) { p.Mounts = []jail.Mount{{Source: "/tmp", Target: "/../x"}} },
	} {
		p := good
		change(&p)
		if _, err := b.Create(t.Context(), p); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: Create = %v, want invalid", name, err)
		}
	}
}

func TestMountSourceIsNotResolved(t *testing.T) {
	h := newHost(t)
	b := ready(t, h, "runc")
	real := h.owned(t, "real", 0, nil)
	link := filepath.Join(h.dir, "link")
	must(t, os.Symlink(real, link))
	must(t, unix.Mkfifo(filepath.Join(h.dir, "fifo"), 0o600))
	for source, want := range map[string]fault.Kind{
		link: fault.Invalid, link + "/.": fault.Invalid, filepath.Join(h.dir, "fifo"): fault.Invalid, filepath.Join(h.dir, "absent"): fault.NotFound,
	} {
		p := h.plan(t, b, func(p *jail.Plan) { p.Mounts = []jail.Mount{{Source: source, Target: "/mnt"}} })
		if _, err := b.Create(t.Context(), p); !errors.Is(err, want) {
			t.Errorf("Create with a mount of %s = %v, want %s", source, err, want)
		}
	}
}

// The test binary runs again as the daemon that dies at a step of Create.
const (
	dyingPlan = "GLASSHOUSE_OCI_TEST_PLAN"
	dyingStep = "GLASSHOUSE_OCI_TEST_STEP"
	dyingWith = "GLASSHOUSE_OCI_TEST_RUNTIME"
)

func TestCleanAfterCrashAtEachStep(t *testing.T) {
	if file := os.Getenv(dyingPlan); file != "" {
		dieCreating(t, file)
		return
	}
	steps := []string{"volume", "network", "cgroup", "control", "identity", "idmap", "layers", "bundle", "runtime", "answer", "unmount", "created"}
	forEachRuntime(t, func(t *testing.T, h *host, b *oci.Backend) {
		for _, step := range steps {
			p := h.plan(t, b)
			plan, err := json.Marshal(p)
			must(t, err)
			file := filepath.Join(h.dir, "plan.json")
			must(t, os.WriteFile(file, plan, 0o600))
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestCleanAfterCrashAtEachStep$")
			cmd.Env = append(os.Environ(), dyingPlan+"="+file, dyingStep+"="+step, dyingWith+"="+runtimeOf(t))
			out, err := cmd.CombinedOutput()
			if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGKILL {
				t.Fatalf("the daemon did not die after %s: %v\n%s", step, err, out)
			}
			if err := h.daemon(runtimeOf(t)).Clean(t.Context(), p); err != nil {
				t.Errorf("Clean after a crash at %s: %v", step, err)
			}
			if leaks := backendtest.LeaksAfter(p, 30*time.Second); len(leaks) > 0 {
				t.Errorf("after a crash at %s and Clean, the host still has:\n%s", step, strings.Join(leaks, "\n"))
			}
			left, err := os.ReadDir(p.Dir)
			must(t, err)
			for _, e := range left {
				if e.Name() != "disk.img" && e.Name() != "rootfs" {
					t.Errorf("after a crash at %s and Clean, %s exists", step, e.Name())
				}
			}
		}
	})
}

// runtimeOf returns the runtime of a subtest of forEachRuntime.
func runtimeOf(t *testing.T) string { return filepath.Base(t.Name()) }

func dieCreating(t *testing.T, file string) {
	var p jail.Plan
	plan, err := os.ReadFile(file)
	must(t, err)
	must(t, json.Unmarshal(plan, &p))
	b := newHost(t).daemon(os.Getenv(dyingWith))
	b.Trace(func(step string, _ time.Duration) {
		if step == os.Getenv(dyingStep) {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	})
	if _, err := b.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	fmt.Println("created")
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

// TestOnlyInitHasAntiTraceCapability checks the capabilities of a command and what root can
// read of init.
func TestOnlyInitHasAntiTraceCapability(t *testing.T) {
	const kept = "00000000000004fb" // the eight of base.KeptCapabilities
	for _, runtime := range []string{"runc", "crun"} {
		t.Run(runtime, func(t *testing.T) {
			h := newHost(t)
			b := ready(t, h, runtime)
			sh := start(t, b, h.plan(t, b))
			out, _ := sh("grep ^Cap /proc/self/status")
			want := "CapInh:\t0000000000000000\nCapPrm:\t" + kept + "\nCapEff:\t" + kept + "\nCapBnd:\t" + kept + "\nCapAmb:\t0000000000000000\n"
			if out != want {
				t.Errorf("capabilities of a command:\n%swant\n%s", out, want)
			}
			for _, try := range []string{"cat /proc/1/environ", "readlink /proc/1/fd/3", "head -c 1 /proc/1/mem", "readlink /proc/1/exe", "cat /proc/1/maps"} {
				if out, code := sh(try + " 2>&1"); code == 0 && out != "" {
					t.Errorf("%s: %q", try, out)
				}
			}
		})
	}
}

// TestUnrelatedMountsInJailDirectoryAreKept makes a mount where snapshot layers of a jail are
// merged. Neither the start nor the end of the jail may unmount it, and the files of the
// stopped jail must be found.
func TestUnrelatedMountsInJailDirectoryAreKept(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, h *host, b *oci.Backend) {
		p := h.plan(t, b)
		at := filepath.Join(p.Dir, "snapshots", "s", "fs-flat-1.img.part", "0")
		if err := os.MkdirAll(at, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("layer", at, "tmpfs", 0, "size=1m"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := errors.Join(unix.Unmount(at, 0), os.RemoveAll(filepath.Join(p.Dir, "snapshots"))); err != nil {
				t.Error(err)
			}
		})
		mounted := func(when string) {
			t.Helper()
			var st unix.Statfs_t
			if err := unix.Statfs(at, &st); err != nil || st.Type != unix.TMPFS_MAGIC {
				t.Fatalf("%s: file system %#x, %v, want the tmpfs", when, st.Type, err)
			}
		}
		inst, err := b.Create(t.Context(), p)
		if err != nil {
			t.Fatalf("Create: %v", err)
		}
		mounted("started")
		if _, code, err := run(t.Context(), inst, "/bin/sh", "-c", "echo one > /root/f"); code != 0 || err != nil {
			t.Fatalf("run: exit code %d, %v", code, err)
		}
		if err := errors.Join(inst.Kill(t.Context()), inst.Close(), b.Clean(t.Context(), p)); err != nil {
			t.Fatal(err)
		}
		mounted("stopped")
		changes, err := b.Changes(t.Context(), p, jail.ChangesOptions{})
		if err != nil || !slices.ContainsFunc(changes, func(c jail.Change) bool { return c.Path == "/root/f" }) {
			t.Errorf("Changes = %+v, %v, want /root/f", changes, err)
		}
	})
}
