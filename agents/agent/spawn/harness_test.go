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

	"glasshouse/agents/agent/spawn"
	"glasshouse/fault"
)

// prebuilt is the environment variable with the directory of built programs, for tests that
// run in another process.
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
	for name, pkg := range map[string]string{"glasshouse-agent": "../../../cmd/glasshouse-agent", "attack": "./testdata/attack"} {
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

// A harness is a spawner with a fake gateway.
type harness struct {
	t       *testing.T
	spawner spawn.Spawner
	dir     string
	socket  string
	token   string
	run     string // state of the run at the gateway; set it before Start

	mu sync.Mutex
	// +checklocks:mu
	seenTokens []string // tokens that the gateway received
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

// tempDir returns a private directory with a short path, because socket paths are limited to 108
// bytes (unix(7)).
func tempDir(t *testing.T) string {
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
	return dir // mode 0700, like the data directory of a daemon
}

func newHarness(t *testing.T, kind string) *harness {
	t.Helper()
	h := &harness{t: t, dir: tempDir(t), token: "tok-3Zq81-secret"}
	noLeaks(t, h.dir)
	h.spawner = open(t, kind, config(t, h.dir))
	if err := h.spawner.Probe(t.Context()); errors.Is(err, fault.Unsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	h.socket = filepath.Join(h.dir, "gateway.sock")
	l, err := net.Listen("unix", h.socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(h.socket, 0o600); err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.seenTokens = append(h.seenTokens, r.Header.Get("Glasshouse-Token"))
		h.mu.Unlock()
		if h.run != "" && r.URL.Path == "/run" {
			fmt.Fprintf(rw, `{"run":"r-1","goal":"none","state":%q}`, h.run)
			return
		}
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(rw, "%s %s %s", r.Method, r.URL.RequestURI(), body)
	})}
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(l) })
	t.Cleanup(func() { server.Close(); serving.Wait() })
	return h
}

func (h *harness) tokens() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string{}, h.seenTokens...)
}

// workspace creates a directory with a file.
func (h *harness) workspace() string {
	h.t.Helper()
	dir := filepath.Join(h.dir, "project")
	if err := os.Mkdir(dir, 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "old.txt"), []byte("old\n"), 0o644); err != nil {
		h.t.Fatal(err)
	}
	return dir
}

func (h *harness) start(s spawn.Start) *spawn.Process {
	h.t.Helper()
	if s.Socket == "" {
		s.Socket = h.socket
	}
	p, err := h.spawner.Start(h.t.Context(), s)
	if err != nil {
		h.t.Fatalf("Start: %v", err)
	}
	h.t.Cleanup(func() { p.Kill(); p.Wait() })
	return p
}

func (h *harness) end(p *spawn.Process) spawn.Exit {
	h.t.Helper()
	select {
	case <-p.Done():
	case <-time.After(2 * time.Minute):
		h.t.Fatal("the agent has not ended after 2 minutes")
	}
	exit, err := p.Wait()
	if err != nil {
		h.t.Errorf("Wait: %v", err)
	}
	return exit
}

// A buffer stores the output of an agent. It is safe for concurrent use.
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

// sh runs a script as the agent and returns its output and exit status.
func (h *harness) sh(script string, change ...func(*spawn.Start)) (string, spawn.Exit) {
	h.t.Helper()
	out := &buffer{}
	s := spawn.Start{Argv: []string{"/bin/sh", "-c", script}, Stdout: out, Stderr: out, Token: []byte(h.token)}
	for _, f := range change {
		f(&s)
	}
	p := h.start(s)
	exit := h.end(p)
	return strings.TrimSpace(out.String()), exit
}

func (h *harness) must(script string, change ...func(*spawn.Start)) string {
	h.t.Helper()
	out, exit := h.sh(script, change...)
	if exit.Code != 0 {
		h.t.Fatalf("%s: %+v\n%s", script, exit, out)
	}
	return out
}

// noLeaks fails the test if mounts, cgroups or processes with the name of dir, or open files,
// remain at its end.
func noLeaks(t *testing.T, dir string) {
	t.Helper()
	before := countFDs(t)
	t.Cleanup(func() {
		name := filepath.Base(dir)
		if b, err := os.ReadFile("/proc/self/mountinfo"); err != nil || bytes.Contains(b, []byte(name)) {
			t.Errorf("mounts of %s remain (%v)", name, err)
		}
		for _, pattern := range []string{"/sys/fs/cgroup/*" + name + "*", "/sys/fs/cgroup/*/*" + name + "*"} {
			if left, _ := filepath.Glob(pattern); len(left) > 0 {
				t.Errorf("cgroups remain: %v", left)
			}
		}
		if pids := processesOf(dir); len(pids) > 0 {
			t.Errorf("processes remain: %v", pids)
		}
		if after := countFDs(t); after > before+4 { // the Go runtime may open some
			t.Errorf("%d descriptors are open, before the test %d", after, before)
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

// processesOf returns the command lines of other processes whose command line or environment
// contains dir.
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

// waitUntil waits until is returns true. It fails the test after a minute.
func waitUntil(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !is() {
		if ctx.Err() != nil {
			t.Fatalf("timeout waiting until %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
