package wasm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"glasshouse/capability/engine/wasi"
	"glasshouse/capability/engine/wasm"
	"glasshouse/fault"
)

func TestRunStreamsAndExitCode(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "cache")
	for _, test := range []struct {
		input  string
		code   int
		stdout string
		stderr string
		says   string // the error
	}{
		{`{"do":"echo"}`, 0, `{"do":"echo"}`, "", ""},
		{`{"do":"fail"}`, 3, "", "on purpose\n", ""},
		{`{"do":"exit","n":33}`, 33, "", "", ""},
		{`{"do":"trap"}`, wasm.ExitTrapped, "", "", "unreachable"},
		{`{"do":"look"}`, 0, `{"count":2}`, "", ""},
		{`{"do":"note"}`, 0, `{"count":1}`, "", ""},
		{`{"do":"touch"}`, 0, `{"errno":69}`, "", ""},
		{`{"do":"call"}`, 0, ``, "", ""},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		var stdout, stderr bytes.Buffer
		code, err := wasm.Run(t.Context(), wasm.Program{
			Module: "testdata/command.wasm", Args: []string{"probe"}, Cache: cache,
			Dirs:  []wasi.Dir{{Host: dir, Guest: "/"}, {Host: dir, Guest: "/shown", ReadOnly: true}},
			Stdin: strings.NewReader(test.input), Stdout: &stdout, Stderr: &stderr,
		})
		if code != test.code || stdout.String() != test.stdout || stderr.String() != test.stderr || (err != nil) != (test.says != "") || !strings.Contains(fmt.Sprint(err), test.says) {
			t.Errorf("%s: code %d, %v, %q, %q; want code %d, %q, %q, %q", test.input, code, err, &stdout, &stderr, test.code, test.says, test.stdout, test.stderr)
		}
	}
}

func TestRunErrors(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("no module"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		p    wasm.Program
		want fault.Kind
	}{
		{wasm.Program{Module: filepath.Join(dir, "no")}, fault.NotFound},
		{wasm.Program{Module: text}, fault.Invalid},
		{wasm.Program{Module: "testdata/handler.wasm"}, fault.Invalid},
		{wasm.Program{Module: "testdata/command.wasm", Dirs: []wasi.Dir{{Host: filepath.Join(dir, "no"), Guest: "/"}}}, fault.NotFound},
		{wasm.Program{Module: "testdata/command.wasm", Dirs: []wasi.Dir{{Host: text, Guest: "/"}}}, fault.Invalid},
	} {
		if code, err := wasm.Run(t.Context(), test.p); code != 0 || !errors.Is(err, test.want) {
			t.Errorf("%+v: code %d, %v; want %s", test.p, code, err, test.want)
		}
	}
}

// A cache that cannot be used is ignored.
func TestRunWithoutUsableCache(t *testing.T) {
	dir := t.TempDir()
	file, others, full := filepath.Join(dir, "file"), filepath.Join(dir, "others"), filepath.Join(dir, "full")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(others, 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(cache string) string {
		var stdout bytes.Buffer
		code, err := wasm.Run(t.Context(), wasm.Program{Module: "testdata/command.wasm", Cache: cache, Stdin: strings.NewReader(`{"do":"echo"}`), Stdout: &stdout})
		if code != 0 || err != nil || stdout.String() != `{"do":"echo"}` {
			t.Errorf("with the cache %s: code %d, %v, %q", cache, code, err, &stdout)
		}
		kept, _ := filepath.Glob(filepath.Join(cache, "*", "*"))
		return strings.Join(kept, " ")
	}
	for _, cache := range []string{file, filepath.Join(file, "below"), others, "/proc/no-such"} {
		if kept := run(cache); kept != "" {
			t.Errorf("the unusable cache %s contains %s", cache, kept)
		}
	}
	kept := run(full)
	if kept == "" || strings.Contains(kept, " ") {
		t.Fatalf("the cache contains %q, want one file", kept)
	}
	for _, content := range []string{"", "not what was compiled"} {
		if err := os.WriteFile(kept, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		run(full)
	}
	// A directory with the name of the cache file prevents writing.
	if err := os.Remove(kept); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(kept, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	run(full)
}

func TestRunEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	started := make(chan struct{})
	var once bool
	stdin := reader(func(p []byte) (int, error) {
		if once {
			return 0, nil
		}
		once = true
		close(started)
		return copy(p, `{"do":"spin"}`), nil
	})
	go func() {
		<-started
		cancel(enough)
	}()
	if _, err := wasm.Run(ctx, wasm.Program{Module: "testdata/command.wasm", Stdin: stdin}); !errors.Is(err, enough) {
		t.Errorf("%v, want %v", err, enough)
	}
}

type reader func(p []byte) (int, error)

func (r reader) Read(p []byte) (int, error) { return r(p) }
