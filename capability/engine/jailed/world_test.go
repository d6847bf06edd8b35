package jailed_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/capability/engine"
	"glasshouse/capability/engine/jailed"
	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs/form"
	"glasshouse/fault"
	"glasshouse/host/disk"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/jail/backend/microvm"
	"glasshouse/jail/backend/oci"
)

// A world is a jail manager like that of a daemon, with an engine.
type world struct {
	t       testing.TB
	dir     string
	src     string // directory with the files of the capabilities
	runtime string
	tree    backendtest.Trees
	jails   *jail.Manager
	records *backendtest.Records
	secrets jail.Secrets
	engine  *jailed.Engine
	tune    func(*jailed.Config)
}

// made is the number of created capabilities. Each has its own name.
var made atomic.Int64

// newWorld returns a world with jails of a runtime. It skips the test if the runtime is not
// available.
func newWorld(t testing.TB, runtime string, change ...func(*world)) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir, err := os.MkdirTemp("", "glasshouse-jailed-")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("world", dir, "tmpfs", 0, "size=4g,mode=711"); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: dir, src: filepath.Join(dir, "src"), runtime: runtime, records: &backendtest.Records{}}
	t.Cleanup(w.end)
	for _, f := range change {
		f(w)
	}
	w.tree = backendtest.Trees{languages(t), filepath.Join(build(t), "root")}
	for _, d := range []string{"run", "src", "src/app", "src/shown"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"server.py", "app.py", "server.mjs", "script.py", "wc.sh"} {
		copyFile(t, filepath.Join(w.src, "app", f), filepath.Join("testdata", "src", f))
	}
	copyFile(t, filepath.Join(w.src, "app", "program"), program(t))
	of := w.backend()
	if err := of.Backend.Probe(t.Context()); errors.Is(err, fault.Unsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	w.jails = jail.NewManager(jail.Config{
		Dir: filepath.Join(dir, "jails"), Store: w.records, Rootfs: w.tree, Secrets: w.secrets,
		Runtimes: []jail.Runtime{of},
		Init:     backendtest.Init(t), Boot: "boot", Backend: of.Name, Runtime: of.Runtime, FirstID: backendtest.FirstID(t),
	})
	if err := w.jails.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.open()
	return w
}

func (w *world) backend() jail.Runtime {
	if w.runtime == "microvm" {
		guest, err := backendtest.Find("./cmd/glasshouse-guest")
		if err != nil {
			w.t.Fatal(err)
		}
		return jail.Runtime{Name: "microvm", Backend: microvm.New(microvm.Config{
			Kernels: []string{filepath.Join(filepath.Dir(runtimePath("criu")), "../kernel"), "/"}, Emulate: true, CgroupPrefix: filepath.Base(w.dir),
			Guest: func() (string, error) { return guest, nil },
			Cache: filepath.Join(w.dir, "cache"), Templates: filepath.Join(w.dir, "templates"), Base: filepath.Join(w.dir, "base"),
		})}
	}
	return jail.Runtime{Name: "oci", Runtime: w.runtime, Backend: oci.New(oci.Config{
		Runtime: w.runtime, Path: runtimePath(w.runtime), CgroupPrefix: filepath.Base(w.dir),
		RunDir: filepath.Join(w.dir, "run"), Templates: filepath.Join(w.dir, "templates"), Base: filepath.Join(w.dir, "base"),
		NetnsDir: filepath.Join(w.dir, "netns"),
	})}
}

// runtimePath returns the path of a runtime on this host, or its name.
func runtimePath(runtime string) string {
	for _, p := range []string{runtime, os.Getenv("GLASSHOUSE_RUNSC"), "/var/lib/glasshouse/tools/bin/" + runtime} {
		if path, err := exec.LookPath(p); err == nil {
			return path
		}
	}
	return runtime
}

// open opens a new engine, as a daemon does at its start.
func (w *world) open() {
	w.t.Helper()
	cfg := jailed.Config{Jails: w.jails, Dir: filepath.Join(w.dir, "engine"), Log: slog.New(slog.NewTextHandler(w.t.Output(), nil))}
	if w.tune != nil {
		w.tune(&cfg)
	}
	w.engine = jailed.New(cfg)
	if err := w.engine.Open(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) end() {
	if w.engine != nil {
		if err := w.engine.Close(); err != nil {
			w.t.Errorf("close: %v", err)
		}
	}
	if w.jails != nil {
		if left := w.list(); len(left) > 0 {
			w.t.Errorf("jails left after Close: %v", left)
			for _, j := range left {
				w.jails.Delete(context.Background(), j)
			}
		}
		w.jails.Close()
	}
	w.nothingIsLeft()
	if err := unix.Unmount(w.dir, unix.MNT_DETACH); err != nil {
		w.t.Error(err)
	}
	os.RemoveAll(w.dir)
}

// list returns the existing jails.
func (w *world) list() (all []id.Jail) {
	list, err := w.jails.List(context.Background(), jail.ListOptions{})
	if err != nil {
		w.t.Error(err)
	}
	for _, j := range list {
		all = append(all, j.ID)
	}
	return all
}

// nothingIsLeft fails the test if jails or volumes have left resources on the host.
func (w *world) nothingIsLeft() {
	w.t.Helper()
	if left, _ := filepath.Glob(filepath.Join(w.dir, "jails", "*")); len(left) > 0 {
		w.t.Errorf("left: %v", left)
	}
	name := filepath.Base(w.dir)
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if left, _ := filepath.Glob(filepath.Join(root, name, "*", "cgroup.procs")); len(left) > 0 {
			w.t.Errorf("cgroups left: %v", left)
		}
	}
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*/" + name)
	for _, d := range append(dirs, "/sys/fs/cgroup/"+name) {
		os.Remove(d)
	}
	if b, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(b), w.dir+"/") {
		w.t.Errorf("mounts left below %s", w.dir)
	}
	left, err := disk.Leftovers(w.dir)
	for end := time.Now().Add(30 * time.Second); len(left) > 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		left, err = disk.Leftovers(w.dir) // the kernel detaches a device a moment after its last use
	}
	if len(left) > 0 || err != nil {
		w.t.Errorf("loop devices left: %v, %v", left, err)
	}
}

// capability returns a capability that runs the probe as a server.
func (w *world) capability(change ...func(*manifest.Capability)) *engine.Installed {
	c := &manifest.Capability{
		ID: fmt.Sprintf("test.cap%d", made.Add(1)), Version: "1.0.0", Effects: []string{"fs"},
		Runtime: manifest.Spec{
			Type: manifest.Container, Rootfs: "debian", Entrypoint: []string{"/app/program"}, Port: 8000, HealthCheck: "/ping",
			StartupTimeout: time.Minute,
		},
		Filesystem: manifest.Filesystem{Mode: manifest.Ephemeral, QuotaMB: 32, Mounts: []manifest.Mount{app}},
		Network:    manifest.Network{Mode: "none"},
		Resources:  manifest.Resources{MemoryMB: 128, Timeout: time.Minute, PIDs: 64},
	}
	switch w.runtime {
	case "runsc":
		c.Runtime.Type, c.Resources.MemoryMB = manifest.GVisor, 256
	case "microvm":
		c.Runtime.Type = manifest.MicroVM
	}
	for _, f := range change {
		f(c)
	}
	return &engine.Installed{Capability: c, Dir: w.src, Digest: "sha256:" + c.ID + "@" + c.Version}
}

// app is the directory of programs in a jail.
var app = manifest.Mount{Host: "app", Guest: "/app"}

// script returns a change of a manifest that starts a process for each call.
func script(argv ...string) func(*manifest.Capability) {
	return func(c *manifest.Capability) {
		c.Runtime.Port, c.Runtime.HealthCheck, c.Runtime.Stdio = 0, "", manifest.JSONStdio
		c.Runtime.Entrypoint = argv
	}
}

// in returns an input map for alternating keys and values.
func in(pairs ...any) *form.Map {
	for i := 0; i+1 < len(pairs); i += 2 {
		pairs[i] = form.Keyword(pairs[i].(string))
		switch v := pairs[i+1].(type) {
		case int:
			pairs[i+1] = int64(v)
		case []string:
			var all form.Vector
			for _, s := range v {
				all = append(all, s)
			}
			pairs[i+1] = all
		}
	}
	return form.NewMap(pairs...)
}

// call calls a capability, which must succeed.
func (w *world) call(c *engine.Installed, input form.Value, change ...func(*engine.Call)) (*form.Map, engine.Result) {
	w.t.Helper()
	r, err := w.try(c, input, change...)
	if err != nil {
		var log string
		if f, ok := errors.AsType[*engine.Failure](err); ok {
			log = f.Log
		}
		w.t.Fatalf("%s of %v: %v\n%s", c.ID, input, err, log)
	}
	m, ok := r.Output.(*form.Map)
	if !ok {
		w.t.Fatalf("%s of %v = %v, want a map", c.ID, input, r.Output)
	}
	return m, r
}

func (w *world) try(c *engine.Installed, input form.Value, change ...func(*engine.Call)) (engine.Result, error) {
	call := &engine.Call{ID: "c-" + string(id.NewExec()), Capability: c, Input: input, Session: "s1"}
	for _, f := range change {
		f(call)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	return w.engine.Call(ctx, call)
}

// fails calls a capability, which must fail with a Failure of the given kind.
func (w *world) fails(kind engine.Kind, c *engine.Installed, input form.Value) *engine.Failure {
	w.t.Helper()
	_, err := w.try(c, input)
	f, ok := errors.AsType[*engine.Failure](err)
	if !ok || f.Kind != kind {
		w.t.Fatalf("%s of %v: %v, want the failure %s", c.ID, input, err, kind)
	}
	return f
}

// get returns the value of a keyword in a map.
func get(m *form.Map, key string) any {
	v, _ := m.Get(key)
	return v
}

// eventually waits until a condition holds.
func (w *world) eventually(what string, so func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: not within a minute", what)
		}
	}
}

// host executes nested calls.
type host func(ctx context.Context, id string, input json.RawMessage) (json.RawMessage, error)

func (h host) CallJSON(ctx context.Context, id string, input json.RawMessage) (json.RawMessage, error) {
	return h(ctx, id, input)
}

func (h host) Call(context.Context, string, form.Value) (form.Value, error) {
	return nil, errors.New("a jail speaks JSON")
}

// Programs are built and interpreters are copied once for all tests.
var (
	built    sync.Once
	builtDir string
	builtErr error
)

func TestMain(m *testing.M) {
	code := m.Run()
	if builtDir != "" {
		os.RemoveAll(builtDir)
	}
	os.Exit(code)
}

func build(t testing.TB) string {
	t.Helper()
	built.Do(func() {
		if builtDir, builtErr = os.MkdirTemp("", "glasshouse-jailed-build-"); builtErr != nil {
			return
		}
		os.Chmod(builtDir, 0o755)
		backendtest.Build(t, builtDir)
		os.Setenv(backendtest.Prebuilt, builtDir)
		if builtErr = link(filepath.Join(builtDir, "root"), backendtest.Rootfs(t)); builtErr != nil {
			return
		}
		cmd := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(builtDir, "program"), "./testdata/program")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			builtErr = fmt.Errorf("build the program: %w\n%s", err, out)
			return
		}
		builtErr = gather(filepath.Join(builtDir, "languages"))
	})
	if builtErr != nil {
		t.Fatal(builtErr)
	}
	return builtDir
}

func program(t testing.TB) string   { return filepath.Join(build(t), "program") }
func languages(t testing.TB) string { return filepath.Join(build(t), "languages") }

// gather creates a directory tree with the interpreters of this host.
func gather(dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, "usr/bin"), 0o755); err != nil {
		return err
	}
	if node, err := exec.LookPath("/usr/bin/node"); err == nil {
		if err := withLibraries(dir, node, "/usr/bin/node"); err != nil {
			return err
		}
	}
	out, err := exec.Command("/usr/bin/python3", "-c", "import http.server, sysconfig, os; print(os.path.realpath('/usr/bin/python3'), sysconfig.get_paths()['stdlib'])").Output()
	if err != nil {
		return nil
	}
	var python, library string
	if _, err := fmt.Sscan(string(out), &python, &library); err != nil {
		return err
	}
	if err := withLibraries(dir, python, "/usr/bin/python3"); err != nil {
		return err
	}
	for _, module := range []string{"_ssl", "_hashlib", "_ctypes", "_lzma", "_bz2", "_uuid"} {
		for _, so := range glob(library + "/lib-dynload/" + module + ".*.so") {
			if err := libraries(dir, so); err != nil {
				return err
			}
		}
	}
	if err := link(filepath.Join(dir, library), library); err != nil {
		return err
	}
	out, err = exec.Command("/usr/bin/python3", "-c", "import uvicorn, os; print(os.path.dirname(os.path.dirname(uvicorn.__file__)))").Output()
	if err != nil {
		return nil
	}
	if err := link(filepath.Join(dir, "usr/lib/python3/dist-packages"), strings.TrimSpace(string(out))); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "usr/bin/uvicorn"), []byte("#!/bin/sh\nexec python3 -m uvicorn \"$@\"\n"), 0o755)
}

func glob(pattern string) []string {
	all, _ := filepath.Glob(pattern)
	return all
}

// withLibraries copies a program and its shared libraries to a tree.
func withLibraries(dir, program, at string) error {
	if err := link(filepath.Join(dir, at), program); err != nil {
		return err
	}
	return libraries(dir, program)
}

func libraries(dir, program string) error {
	out, err := exec.Command("ldd", program).Output()
	if err != nil {
		return nil // static
	}
	for _, lib := range strings.Fields(string(out)) {
		to := filepath.Join(dir, lib)
		if _, err := os.Lstat(to); err == nil || !strings.HasPrefix(lib, "/") {
			continue
		}
		real, err := filepath.EvalSymlinks(lib)
		if err == nil {
			err = link(to, real)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// link copies a file or directory, with hard links if possible.
func link(to, from string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if exec.Command("cp", "-al", from, to).Run() == nil {
		return nil
	}
	os.RemoveAll(to)
	if out, err := exec.Command("cp", "-a", "--reflink=auto", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, out)
	}
	return nil
}

// needs skips the test if the host does not have a program.
func needs(t testing.TB, program string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(languages(t), "usr/bin", program)); err != nil {
		t.Skipf("this host has no %s", program)
	}
}

func copyFile(t testing.TB, to, from string) {
	t.Helper()
	src, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(dst, src)
	if err := errors.Join(err, dst.Close()); err != nil {
		t.Fatal(err)
	}
}
