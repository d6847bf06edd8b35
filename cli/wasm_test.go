package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"glasshouse/cli"
)

func TestAModuleIsRunWithoutADaemon(t *testing.T) {
	module, err := filepath.Abs("../engine/wasm/testdata/command.wasm")
	if err != nil {
		t.Fatal(err)
	}
	dir, home := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("as it was"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		input  string
		flags  []string
		code   int
		stdout string
		stderr string
	}{
		{`{"do":"look"}`, nil, 0, `{"count":0}`, ""},
		{`{"do":"look"}`, []string{"--mount", dir + ":/", "--mount", dir + ":/b:ro"}, 0, `{"count":2}`, ""},
		{`{"do":"touch"}`, []string{"--mount", dir + ":/", "--mount", dir + ":/b:ro"}, 0, `{"errno":69}`, ""},
		{`{"do":"exit","n":33}`, []string{"--env", "A=B"}, 33, "", ""},
		{`{"do":"trap"}`, nil, 134, "", "unreachable"},
		{``, []string{"--mount", dir}, 2, "", "HOST:GUEST"},
		{``, []string{"--env", "A"}, 2, "", "K=V"},
		{``, []string{"--mount", dir + "/no:/"}, 1, "", "no such file"},
	} {
		var stdout, stderr bytes.Buffer
		args := append(append([]string{"wasm", "run"}, test.flags...), module, "--not-ours")
		code := cli.Run(t.Context(), args, cli.Env{
			Stdin: strings.NewReader(test.input), Stdout: &stdout, Stderr: &stderr,
			Getenv: func(name string) string { return map[string]string{"HOME": home}[name] },
		})
		if code != test.code || stdout.String() != test.stdout || !strings.Contains(stderr.String(), test.stderr) || test.stderr == "" && stderr.Len() > 0 {
			t.Errorf("%s %v: code %d, %q, %q; want %d, %q, %q", test.input, test.flags, code, &stdout, &stderr, test.code, test.stdout, test.stderr)
		}
	}
	if _, err := os.Stat(filepath.Join(home, ".cache", "glasshouse", "wasm")); err != nil {
		t.Errorf("what was compiled is not kept: %v", err)
	}
}

func TestAModuleRunsWithoutAHome(t *testing.T) {
	for _, home := range []string{"", "/proc/no-such-home"} {
		var stdout, stderr bytes.Buffer
		code := cli.Run(t.Context(), []string{"wasm", "run", "../engine/wasm/testdata/command.wasm"}, cli.Env{
			Stdin: strings.NewReader(`{"do":"look"}`), Stdout: &stdout, Stderr: &stderr,
			Getenv: func(name string) string { return map[string]string{"HOME": home}[name] },
		})
		if code != 0 || stdout.String() != `{"count":0}` {
			t.Errorf("HOME=%s: code %d, %q, %q", home, code, &stdout, &stderr)
		}
	}
}
