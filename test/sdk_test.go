package test_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"glasshouse/api/wire"
	"glasshouse/fault"
)

// steps are the steps that the program in each language of test/sdk prints.
var steps = []string{
	"jail", "run", "stream", "files", "kill the daemon", "events", "branches", "approvals", "capabilities", "runs", "refusals", "awaited",
}

func TestPythonSDK(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	if err := exec.Command(python, "-m", "pip", "--version").Run(); err != nil {
		t.Skip("python3 has no pip")
	}
	dir := t.TempDir()
	// Install as a user would, without a package index.
	pip := exec.Command(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-cache-dir", "--disable-pip-version-check", "--target", dir, "../sdk/python")
	if out, err := pip.CombinedOutput(); err != nil {
		t.Fatalf("pip install ./sdk/python: %v\n%s", err, out)
	}
	program(t, []string{"PYTHONPATH=" + dir, "PYTHONWARNINGS=error"}, python, "sdk/scenario.py")
}

func TestTypeScriptSDK(t *testing.T) {
	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Skip("npm is not installed")
	}
	sdk, err := filepath.Abs("../sdk/typescript")
	if err != nil {
		t.Fatal(err)
	}
	tsc := filepath.Join(sdk, "node_modules/.bin/tsc")
	if _, err := os.Stat(tsc); err != nil {
		t.Skip("the TypeScript compiler is not installed: run make sdk")
	}
	// Install as a user would, without a registry; the user's compiler checks our types.
	dir := t.TempDir()
	scenario, err := os.ReadFile("sdk/scenario.ts")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"scenario.ts":   string(scenario),
		"package.json":  `{"type": "module"}`,
		"tsconfig.json": fmt.Sprintf(`{"compilerOptions": {"target": "ES2022", "module": "NodeNext", "lib": ["ES2023", "ESNext.Disposable"], "strict": true, "types": ["node"], "typeRoots": [%q]}}`, filepath.Join(sdk, "node_modules/@types")),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{npm, "install", "--offline", "--no-audit", "--no-fund", "--loglevel", "error", sdk}, {tsc, "-p", dir}} {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
	program(t, nil, "node", filepath.Join(dir, "scenario.js"))
}

// program runs a program against a daemon, which is killed and restarted when the program
// requests it.
func program(t *testing.T, env []string, name string, args ...string) {
	h := open(t, tools()+models(t, modelThatCounts), "--listen", "127.0.0.1:0")
	h.canSnapshot()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), "GLASSHOUSE_DATA="+h.data, "GLASSHOUSE_ADDR=", "GLASSHOUSE_TOKEN=")
	cmd.Env = append(cmd.Env, "VIEWER="+h.viewer())
	cmd.Env = append(cmd.Env, env...)
	cmd.WaitDelay = 10 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var did []string
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		did = append(did, lines.Text())
		if lines.Text() == "kill the daemon" {
			h.kill()
			h.start()
			fmt.Fprintf(stdin, "http://%s\n", h.tcpAddr())
		}
	}
	if err := cmd.Wait(); err != nil || !slices.Equal(did, steps) {
		t.Fatalf("steps = %q, want %q; the program exited with %v and\n%s\nlog of the daemon:\n%s", did, steps, err, &stderr, h.log)
	}
}

// canSnapshot skips the test if the host cannot checkpoint jails.
func (h *daemonHarness) canSnapshot() {
	h.Helper()
	j := h.running(wire.CreateJail{Name: "probe"})
	s, err := h.TakeSnapshot(h.Context(), j.ID, wire.TakeSnapshot{})
	if errors.Is(err, fault.Unsupported) {
		h.Skip(err)
	}
	err = errors.Join(err, h.DeleteSnapshot(h.Context(), s.ID), h.DeleteJail(h.Context(), j.ID))
	if err != nil {
		h.Fatal(err)
	}
}

// viewer returns a token of a user with the role viewer.
func (h *daemonHarness) viewer() string {
	h.Helper()
	token, err := h.CreateToken(h.Context(), wire.CreateToken{Name: "looker", Role: "viewer"})
	if err != nil {
		h.Fatal(err)
	}
	return token.Token
}
