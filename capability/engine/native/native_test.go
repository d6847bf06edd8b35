package native_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"glasshouse/capability/engine"
	"glasshouse/capability/engine/enginetest"
	"glasshouse/capability/engine/native"
	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs/form"
	"glasshouse/fault"
)

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

// program builds the probe of the contract, which is also used for jails.
func program(t *testing.T) string {
	t.Helper()
	built.Do(func() {
		if builtDir, builtErr = os.MkdirTemp("", "glasshouse-native-"); builtErr != nil {
			return
		}
		cmd := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(builtDir, "program"), "../jailed/testdata/program")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			builtErr = fmt.Errorf("build the program: %w\n%s", err, out)
		}
	})
	if builtErr != nil {
		t.Fatal(builtErr)
	}
	return filepath.Join(builtDir, "program")
}

func open(t *testing.T) *native.Engine {
	t.Helper()
	prefix := "glasshouse-native-" + strconv.Itoa(os.Getpid())
	e, err := native.New(t.Context(), native.Config{CgroupPrefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return e
}

func digest(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// capability returns a trusted capability with the probe in its directory.
func capability(t *testing.T, change ...func(*manifest.Capability)) *engine.Installed {
	t.Helper()
	dir := t.TempDir()
	text, err := os.ReadFile(program(t))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "program"), text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return install(t, dir, "program", change...)
}

// shell returns a trusted capability that is a shell script.
func shell(t *testing.T, script string, change ...func(*manifest.Capability)) *engine.Installed {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "script"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return install(t, dir, "script", change...)
}

func install(t *testing.T, dir, program string, change ...func(*manifest.Capability)) *engine.Installed {
	t.Helper()
	c := &manifest.Capability{
		ID: "test.native", Version: "1.0.0", Effects: []string{"exec"},
		Runtime:    manifest.Spec{Type: manifest.Native, Entrypoint: []string{program}, Stdio: manifest.JSONStdio, Digest: digest(t, filepath.Join(dir, program))},
		Filesystem: manifest.Filesystem{Mode: manifest.Ephemeral},
		Network:    manifest.Network{Mode: "none"},
		Resources:  manifest.Resources{Timeout: time.Minute},
	}
	for _, f := range change {
		f(c)
	}
	return &engine.Installed{Capability: c, Dir: dir, Digest: "sha256:of-it", Trust: true}
}

func call(t *testing.T, e *native.Engine, c *engine.Installed, pairs ...any) (engine.Result, error) {
	for i := 0; i+1 < len(pairs); i += 2 {
		pairs[i] = form.Keyword(pairs[i].(string))
	}
	return e.Call(t.Context(), &engine.Call{ID: "c-1", Capability: c, Input: form.NewMap(pairs...)})
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

func TestContract(t *testing.T) {
	needRoot(t)
	version := 0
	enginetest.Run(t, func(t *testing.T) engine.Engine { return open(t) }, enginetest.Options{
		Install: func(t *testing.T, change func(*manifest.Capability)) *engine.Installed {
			version++
			return capability(t, func(c *manifest.Capability) {
				c.Version = fmt.Sprintf("1.0.%d", version)
				change(c)
			})
		},
		Lacks: map[string]string{
			"SessionFiles":             "native capabilities use the files of the host; Prepare rejects :session",
			"PersistentFiles":          "native capabilities use the files of the host; Prepare rejects :persistent",
			"EphemeralFilesAreRemoved": "native capabilities use the files of the host, which are not removed",
			"DiskQuota":                "quotas cannot be enforced; Prepare rejects them",
			"Mounts":                   "native capabilities use the files of the host; Prepare rejects :mounts",
			"NestedCalls":              "native capabilities have no endpoint for nested calls",
			"WarmCalls":                "there are no warm processes: a process is started for each call",
		},
	})
}

func TestOnlyTheTrustedProgramRuns(t *testing.T) {
	needRoot(t)
	e := open(t)
	c := shell(t, `echo '{"ran": true}'`)
	if r, err := call(t, e, c); err != nil || form.Text(r.Output) != `{"ran" true}` {
		t.Fatalf("the trusted program: %s, %v", form.Text(r.Output), err)
	}
	untrusted := *c
	untrusted.Trust = false
	without := *c.Capability
	without.Runtime.Digest = ""
	if err := e.Prepare(t.Context(), &untrusted); err != nil {
		t.Errorf("Prepare of an untrusted capability = %v, want no error", err)
	}
	unnamed := &engine.Installed{Capability: &without, Dir: c.Dir, Trust: true}
	for name, err := range map[string]error{
		"untrusted": errOf(call(t, e, &untrusted)),
		"no digest": errOf(call(t, e, unnamed)), "no digest, prepared": e.Prepare(t.Context(), unnamed),
	} {
		if err == nil || fault.RemedyOf(err) == "" {
			t.Errorf("%s: %v, remedy %q; want an error with a remedy", name, err, fault.RemedyOf(err))
		}
	}
	if err := os.WriteFile(filepath.Join(c.Dir, "script"), []byte("#!/bin/sh\necho '{\"ran\": \"another\"}'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if r, err := call(t, e, c); !errors.Is(err, fault.Denied) || !strings.Contains(err.Error(), "is not the trusted program") {
		t.Errorf("call of a changed program = %s, %v, want denied", form.Text(r.Output), err)
	}
}

func errOf(_ engine.Result, err error) error { return err }

func TestPrepareRejectsUnenforceableManifest(t *testing.T) {
	needRoot(t)
	e := open(t)
	for name, change := range map[string]func(*manifest.Capability){
		"a session":  func(c *manifest.Capability) { c.Filesystem.Mode = manifest.Session },
		"files":      func(c *manifest.Capability) { c.Filesystem.Mode = manifest.Persistent },
		"mounts":     func(c *manifest.Capability) { c.Filesystem.Mounts = []manifest.Mount{{Host: ".", Guest: "/app"}} },
		"a quota":    func(c *manifest.Capability) { c.Filesystem.QuotaMB = 1 },
		"a proxy":    func(c *manifest.Capability) { c.Network.Mode = "proxy" },
		"a secret":   func(c *manifest.Capability) { c.Secrets = []string{"KEY"} },
		"a port":     func(c *manifest.Capability) { c.Runtime.Port = 80 },
		"no program": func(c *manifest.Capability) { c.Runtime.Entrypoint = nil },
	} {
		c := shell(t, "exit 0", change)
		if err := e.Prepare(t.Context(), c); err == nil {
			t.Errorf("%s: Prepare succeeded, want an error", name)
		}
		if _, err := call(t, e, c); err == nil || engine.KindOf(err) != "" {
			t.Errorf("%s: Call = %v, want an error that is not a Failure", name, err)
		}
	}
}

func TestProgramStaysInDirectory(t *testing.T) {
	needRoot(t)
	e := open(t)
	c := shell(t, "exit 0")
	for link, to := range map[string]string{"out": "/bin/true", "up": "../../bin/true"} {
		if err := os.Symlink(to, filepath.Join(c.Dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(c.Dir, "pipe"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.Dir, "plain"), []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"out", "up", "../script", "pipe", "plain", ".", "nothing"} {
		other := *c.Capability
		other.Runtime.Entrypoint = []string{name}
		if err := e.Prepare(t.Context(), &engine.Installed{Capability: &other, Dir: c.Dir, Trust: true}); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}
}

func TestProcessEnvironment(t *testing.T) {
	needRoot(t)
	t.Setenv("HOST_SECRET", "do not tell")
	e := open(t)
	c := shell(t, `env | sort; pwd; cat /proc/net/dev | wc -l; ls /proc/self/fd | wc -l; exit 3`, func(c *manifest.Capability) {
		c.Runtime.Stdio, c.Runtime.Env = manifest.TextStdio, map[string]string{"MINE": "1"}
	})
	r, err := call(t, e, c)
	if err != nil {
		t.Fatal(err)
	}
	m := r.Output.(*form.Map)
	out, _ := m.Get("stdout")
	code, _ := m.Get("exit_code")
	lines := strings.Split(out.(string), "\n")
	got := strings.Join(lines, "|")
	if code != int64(3) || strings.Contains(got, "HOST_SECRET") || !strings.Contains(got, "MINE=1|") || !strings.Contains(got, "|"+c.Dir+"|") {
		t.Errorf("exit code %v, output %s", code, got)
	}
	if !strings.Contains(got, "|"+c.Dir+"|3|") { // /proc/net/dev: two header lines and the loopback device
		t.Errorf("the network namespace has more than the loopback device: %s", got)
	}
}

func TestChildrenAreKilled(t *testing.T) {
	needRoot(t)
	e := open(t)
	file := filepath.Join(t.TempDir(), "pids")
	// An orphan in a new session that ignores signals.
	leave := `setsid sh -c 'trap "" TERM HUP INT; echo $$ >> ` + file + `; exec sleep 1000' >/dev/null 2>&1 </dev/null &
while [ ! -s ` + file + ` ]; do sleep 0.01; done; `
	alive := func() (left []int) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !strings.Contains(string(stat), ") Z ") {
				left = append(left, pid)
			}
		}
		return left
	}
	if _, err := call(t, e, shell(t, leave+`echo '{}'`)); err != nil {
		t.Fatal(err)
	}
	if left := alive(); len(left) > 0 {
		t.Errorf("processes left after a successful call: %v", left)
	}
	_, err := call(t, e, shell(t, leave+`exec sleep 1000`, func(c *manifest.Capability) { c.Resources.Timeout = 200 * time.Millisecond }))
	if engine.KindOf(err) != engine.TimedOut {
		t.Errorf("call beyond its time limit = %v, want a timeout", err)
	}
	if left := alive(); len(left) > 0 {
		t.Errorf("processes left after a timeout: %v", left)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	begun := filepath.Join(t.TempDir(), "begun")
	go func() { // cancels the call when its program runs
		for ctx.Err() == nil {
			if _, err := os.Stat(begun); err == nil {
				cancel()
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	_, err = e.Call(ctx, &engine.Call{ID: "c-1", Capability: shell(t, leave+`: >`+begun+`; exec sleep 1000`), Input: form.NewMap()})
	if engine.KindOf(err) != engine.Cancelled {
		t.Errorf("cancelled call = %v, want cancelled", err)
	}
	if left := alive(); len(left) > 0 {
		t.Errorf("processes left after a cancelled call: %v", left)
	}
}

func TestPIDLimit(t *testing.T) {
	needRoot(t)
	e := open(t)
	c := shell(t, `i=0; while [ $i -lt 100 ]; do sleep 1000 & i=$((i+1)); done; echo '{}'`, func(c *manifest.Capability) { c.Resources.PIDs = 8 })
	r, err := call(t, e, c)
	if err == nil && !strings.Contains(r.Log, "fork") {
		t.Errorf("the script started 100 processes with a limit of 8: %q", r.Log)
	}
}
