package spawn_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/agent/spawn"
	"glasshouse/fault"
)

// prebuilt names a directory to the same tests in another process.
const prebuilt = "GLASSHOUSE_SPAWN_PREBUILT"

var build = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv(prebuilt); dir != "" {
		return dir, nil
	}
	dir, err := os.MkdirTemp("", "gh-spawn-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	for name, pkg := range map[string]string{"glasshouse-agent": "../../cmd/glasshouse-agent", "attack": "./testdata/attack"} {
		cmd := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(dir, name), pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return dir, fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, _ := build(); dir != "" && os.Getenv(prebuilt) == "" {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// A world is a host with a gateway, and a spawner of the kind.
type world struct {
	t       *testing.T
	spawner spawn.Spawner
	dir     string
	socket  string
	token   string
	run     string // state of the run at the gateway; set before anything is started

	mu sync.Mutex
	// +checklocks:mu
	shown []string // tokens
}

func agentProgram(t *testing.T) string {
	t.Helper()
	dir, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "glasshouse-agent")
}

func config(t *testing.T, dir string) spawn.Config {
	return spawn.Config{Agent: agentProgram(t), Dir: filepath.Join(dir, "homes"), CgroupPrefix: "glasshouse-spawn-" + filepath.Base(dir)}
}

func open(t *testing.T, kind string, cfg spawn.Config) spawn.Spawner {
	t.Helper()
	var s spawn.Spawner
	var err error
	if kind == "bwrap" {
		s, err = spawn.NewBwrap(t.Context(), cfg)
	} else {
		s, err = spawn.NewUnjailed(t.Context(), cfg)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.(io.Closer).Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// room makes a directory of a short name, for sockets, that anybody may look through.
func room(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gh-w-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir // 0700: as a daemon's may be
}

func newWorld(t *testing.T, kind string) *world {
	t.Helper()
	w := &world{t: t, dir: room(t), token: "tok-3Zq81-secret"}
	noLeaks(t, w.dir)
	w.spawner = open(t, kind, config(t, w.dir))
	if err := w.spawner.Probe(t.Context()); errors.Is(err, fault.Unsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	w.socket = filepath.Join(w.dir, "gateway.sock")
	l, err := net.Listen("unix", w.socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(w.socket, 0o600); err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		w.shown = append(w.shown, r.Header.Get("Glasshouse-Token"))
		w.mu.Unlock()
		if w.run != "" && r.URL.Path == "/run" {
			fmt.Fprintf(rw, `{"run":"r-1","goal":"none","state":%q}`, w.run)
			return
		}
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(rw, "%s %s %s", r.Method, r.URL.RequestURI(), body)
	})}
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(l) })
	t.Cleanup(func() { server.Close(); serving.Wait() })
	return w
}

func (w *world) tokens() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string{}, w.shown...)
}

// workspace makes a directory of the user's with a file in it.
func (w *world) workspace() string {
	w.t.Helper()
	dir := filepath.Join(w.dir, "project")
	if err := os.Mkdir(dir, 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "old.txt"), []byte("old\n"), 0o644); err != nil {
		w.t.Fatal(err)
	}
	return dir
}

func (w *world) start(s spawn.Start) *spawn.Process {
	w.t.Helper()
	if s.Socket == "" {
		s.Socket = w.socket
	}
	p, err := w.spawner.Start(w.t.Context(), s)
	if err != nil {
		w.t.Fatalf("Start: %v", err)
	}
	w.t.Cleanup(func() { p.Kill(); p.Wait() })
	return p
}

func (w *world) end(p *spawn.Process) spawn.Exit {
	w.t.Helper()
	select {
	case <-p.Done():
	case <-time.After(2 * time.Minute):
		w.t.Fatal("it does not end")
	}
	exit, err := p.Wait()
	if err != nil {
		w.t.Errorf("Wait: %v", err)
	}
	return exit
}

// a buffer takes what an agent writes.
type buffer struct {
	mu sync.Mutex
	// +checklocks:mu
	b bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// sh runs a script as the agent and returns what it says, and its exit code.
func (w *world) sh(script string, change ...func(*spawn.Start)) (string, spawn.Exit) {
	w.t.Helper()
	out := &buffer{}
	s := spawn.Start{Argv: []string{"/bin/sh", "-c", script}, Stdout: out, Stderr: out, Token: []byte(w.token)}
	for _, f := range change {
		f(&s)
	}
	p := w.start(s)
	exit := w.end(p)
	return strings.TrimSpace(out.String()), exit
}

func (w *world) must(script string, change ...func(*spawn.Start)) string {
	w.t.Helper()
	out, exit := w.sh(script, change...)
	if exit.Code != 0 {
		w.t.Fatalf("%s: %+v\n%s", script, exit, out)
	}
	return out
}

// noLeaks fails the test if something of the directory's name is left when it ends.
func noLeaks(t *testing.T, dir string) {
	t.Helper()
	before := countFDs(t)
	t.Cleanup(func() {
		name := filepath.Base(dir)
		if b, err := os.ReadFile("/proc/self/mountinfo"); err != nil || bytes.Contains(b, []byte(name)) {
			t.Errorf("a mount is left of %s (%v)", name, err)
		}
		for _, pattern := range []string{"/sys/fs/cgroup/*" + name + "*", "/sys/fs/cgroup/*/*" + name + "*"} {
			if left, _ := filepath.Glob(pattern); len(left) > 0 {
				t.Errorf("cgroups are left: %v", left)
			}
		}
		if pids := processesOf(dir); len(pids) > 0 {
			t.Errorf("processes are left: %v", pids)
		}
		if after := countFDs(t); after > before+4 { // of the runtime: its poller, its random numbers
			t.Errorf("%d descriptors are open, before there were %d", after, before)
		}
	})
}

func countFDs(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// processesOf returns the processes that name a directory in their command line or
// environment, other than this one.
func processesOf(dir string) (pids []string) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		cmdline, _ := os.ReadFile(d + "/cmdline")
		environ, _ := os.ReadFile(d + "/environ")
		if bytes.Contains(append(cmdline, environ...), []byte(dir)) && filepath.Base(d) != fmt.Sprint(os.Getpid()) {
			pids = append(pids, strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
	return pids
}

// until waits for something that must become so.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !is() {
		if ctx.Err() != nil {
			t.Fatalf("it never came to be that %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
