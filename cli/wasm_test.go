package cli_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"glasshouse/cli"
)

func TestWasmRunWithoutDaemon(t *testing.T) {
	module, err := filepath.Abs("../capability/engine/wasm/testdata/command.wasm")
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
		t.Errorf("the compiled module is not cached: %v", err)
	}
}

func TestWasmRunWithoutHome(t *testing.T) {
	for _, home := range []string{"", "/proc/no-such-home"} {
		var stdout, stderr bytes.Buffer
		code := cli.Run(t.Context(), []string{"wasm", "run", "../capability/engine/wasm/testdata/command.wasm"}, cli.Env{
			Stdin: strings.NewReader(`{"do":"look"}`), Stdout: &stdout, Stderr: &stderr,
			Getenv: func(name string) string { return map[string]string{"HOME": home}[name] },
		})
		if code != 0 || stdout.String() != `{"count":0}` {
			t.Errorf("HOME=%s: code %d, %q, %q", home, code, &stdout, &stderr)
		}
	}
}

// echoModule returns a module that writes its arguments and its environment to standard output,
// each terminated by a zero byte.
func echoModule() []byte {
	const size = 4 // size of the strings
	load := func(sizes, get byte) []byte {
		return []byte{
			0x41, 0, 0x41, size, 0x10, sizes, 0x1a, // sizes(0, 4)
			0x41, 0xc0, 0, 0x41, 0x80, 8, 0x10, get, 0x1a, // get(64, 1024)
			0x41, 8, 0x41, 0x80, 8, 0x36, 2, 0, // *8 = 1024
			0x41, 12, 0x41, size, 0x28, 2, 0, 0x36, 2, 0, // *12 = *4
			0x41, 1, 0x41, 8, 0x41, 1, 0x41, 16, 0x10, 4, 0x1a, // fd_write(1, 8, 1, 16)
		}
	}
	text := func(s string) []byte { return append([]byte{byte(len(s))}, s...) }
	imported := []byte{5}
	for _, name := range []string{"args_sizes_get", "args_get", "environ_sizes_get", "environ_get", "fd_write"} {
		kind := byte(0)
		if name == "fd_write" {
			kind = 1
		}
		imported = slices.Concat(imported, text("wasi_snapshot_preview1"), text(name), []byte{0, kind})
	}
	body := slices.Concat([]byte{0}, load(0, 1), load(2, 3), []byte{0x0b})
	module := []byte("\x00asm\x01\x00\x00\x00")
	for _, s := range []struct {
		id   byte
		body []byte
	}{
		{1, []byte{3, 0x60, 2, 0x7f, 0x7f, 1, 0x7f, 0x60, 4, 0x7f, 0x7f, 0x7f, 0x7f, 1, 0x7f, 0x60, 0, 0}},
		{2, imported},
		{3, []byte{1, 2}},
		{5, []byte{1, 0, 1}},
		{7, slices.Concat([]byte{2}, text("_start"), []byte{0, 5}, text("memory"), []byte{2, 0})},
		{10, append([]byte{1, byte(len(body))}, body...)},
	} {
		module = append(module, s.id, byte(len(s.body)&0x7f|0x80), byte(len(s.body)>>7))
		module = append(module, s.body...)
	}
	return module
}

func TestWasmRunPassesArgumentsAndEnvironment(t *testing.T) {
	module := filepath.Join(t.TempDir(), "args.wasm")
	if err := os.WriteFile(module, echoModule(), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("OF_THE_HOST", "1")
	for _, test := range []struct {
		flags, args, want []string
	}{
		{nil, nil, []string{"args.wasm"}},
		{
			[]string{"--env", "b=two\nlines", "--env", `a=a "quoted" one`, "--env", "c=x=y,z"}, []string{"one", "", `a "quoted" one`, "--env", "-v"},
			[]string{"args.wasm", "one", "", `a "quoted" one`, "--env", "-v", "b=two\nlines", `a=a "quoted" one`, "c=x=y,z"},
		},
	} {
		var stdout, stderr bytes.Buffer
		args := slices.Concat([]string{"wasm", "run"}, test.flags, []string{module}, test.args)
		code := cli.Run(t.Context(), args, cli.Env{Stdout: &stdout, Stderr: &stderr, Getenv: func(string) string { return "" }})
		if want := strings.Join(test.want, "\x00") + "\x00"; code != 0 || stdout.String() != want {
			t.Errorf("%q: code %d, %q, %q; want %q", args, code, &stdout, &stderr, want)
		}
	}
}

// The runner of the public test suite has changed the arguments of its adapters. Each form
// results in the same command line, which runs.
func TestWASIAdapter(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed: ", err)
	}
	module, err := filepath.Abs("../capability/engine/wasm/testdata/command.wasm")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	const load = `
import importlib.util, json, pathlib, sys
spec = importlib.util.spec_from_file_location("adapter", "../scripts/wasi_testsuite.py")
adapter = importlib.util.module_from_spec(spec)
spec.loader.exec_module(adapter)
module, dir = sys.argv[1:]
args, env, dirs = ["-a", "b c"], {"K": "a=b"}, [(pathlib.Path(dir), "/")]
json.dump([adapter.get_name(), adapter.get_wasi_versions(),
    adapter.compute_argv(module, args, env, dirs),
    adapter.compute_argv(module, args, env, dirs, "wasm32-wasip1"),
    adapter.compute_argv(module, (args, env, dirs), [], "wasm32-wasip1"),
    adapter.compute_argv(module, (args, env, pathlib.Path(dir)), [], "wasi:cli/command", "wasm32-wasip1"),
    adapter.compute_argv(module, (args, env, None), [], "wasi:cli/command", "wasm32-wasip1"),
    ], sys.stdout)
`
	python := exec.Command("python3", "-c", load, module, dir)
	python.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "GLASSHOUSE=/opt/glasshouse --color=never")
	out, err := python.Output()
	if err != nil {
		t.Fatal(err)
	}
	var name string
	var versions, form1, form2, form3, form4, without []string
	if err := json.Unmarshal(out, &[]any{&name, &versions, &form1, &form2, &form3, &form4, &without}); err != nil {
		t.Fatal(err)
	}
	if name != "glasshouse" || !slices.Equal(versions, []string{"wasm32-wasip1"}) {
		t.Errorf("it is %s, of %v", name, versions)
	}
	want := []string{"/opt/glasshouse", "--color=never", "wasm", "run", "--env", "K=a=b", "--mount", dir + ":/", module, "-a", "b c"}
	for _, argv := range [][]string{form1, form2, form3, form4} {
		if !slices.Equal(argv, want) {
			t.Errorf("the command line is %q, want %q", argv, want)
		}
	}
	for count, argv := range map[string][]string{`{"count":1}`: form4, `{"count":0}`: without} {
		var stdout, stderr bytes.Buffer
		code := cli.Run(t.Context(), argv[2:], cli.Env{
			Stdin: strings.NewReader(`{"do":"look"}`), Stdout: &stdout, Stderr: &stderr, Getenv: func(string) string { return "" },
		})
		if code != 0 || stdout.String() != count {
			t.Errorf("%q: code %d, %q, %q; want %q", argv, code, &stdout, &stderr, count)
		}
	}
}
