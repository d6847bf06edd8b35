package wasm_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/capability/engine"
	"glasshouse/capability/engine/wasi"
	"glasshouse/capability/engine/wasm"
	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs/form"
)

// example builds one of the Go examples.
func example(t *testing.T, name string, flags ...string) *engine.Installed {
	t.Helper()
	dir := filepath.Join("..", "..", "..", "examples", "wasm", name)
	text, err := os.ReadFile(filepath.Join(dir, name+".rtfs"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := manifest.Read(name+".rtfs", text)
	if err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	build := exec.Command("go", append(append([]string{"build", "-o", filepath.Join(to, name+".wasm")}, flags...), ".")...)
	build.Dir, build.Env = dir, append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	all[0].Resources.Timeout, all[0].Runtime.StartupTimeout = time.Minute, time.Minute // the machine may be busy
	return &engine.Installed{Capability: all[0], Dir: to, Digest: "sha256:" + name}
}

func TestGoExamples(t *testing.T) {
	e := open(t, wasm.Config{Egress: upstream(func(call *engine.Call, r *http.Request) (*http.Response, error) {
		return answer(200, r.URL.Host+" on "+r.Header.Get("Accept"))
	})})
	words := example(t, "wordcount")
	input := form.NewMap(form.Keyword("text"), "one three five")
	r, err := e.Call(t.Context(), &engine.Call{Capability: words, Input: input})
	if err != nil {
		t.Fatal(err)
	}
	want := form.NewMap(form.Keyword("words"), int64(3), form.Keyword("longest"), "three")
	if !form.Equal(r.Output, want) {
		t.Errorf("wordcount = %s, want %s", form.Text(r.Output), form.Text(want))
	}

	lookup := example(t, "lookup", "-buildmode=c-shared")
	for range 2 {
		r, err = e.Call(t.Context(), &engine.Call{
			Capability: lookup, Host: wordcounter{t},
			Input: form.NewMap(form.Keyword("word"), "a b", form.Keyword("url"), "https://dictionary.example/a"),
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := form.Text(r.Output); !strings.Contains(got, "dictionary.example on text/plain") || !strings.Contains(got, "7") {
			t.Errorf("lookup = %s", got)
		}
	}
}

// A wordcounter is a host that executes text.wordcount.
type wordcounter struct{ t *testing.T }

func (w wordcounter) Call(context.Context, string, form.Value) (form.Value, error) {
	w.t.Error("Call was used, want CallJSON")
	return nil, nil
}

func (w wordcounter) CallJSON(_ context.Context, id string, input json.RawMessage) (json.RawMessage, error) {
	if id != "text.wordcount" || string(input) != `{"text":"a b"}` {
		w.t.Errorf("nested call of %s with %s", id, input)
	}
	return json.RawMessage(`{"words":7}`), nil
}

// TestGoFileTestSuites runs the tests of file packages of the Go standard library as modules.
// Running all of them takes minutes.
func TestGoFileTestSuites(t *testing.T) {
	packages := []string{"path/filepath"}
	if os.Getenv("GLASSHOUSE_TEST") == "all" {
		packages = append(packages, "os", "io/fs", "io/ioutil", "syscall", "bufio")
	}
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	goroot, cache := strings.TrimSpace(string(out)), filepath.Join(t.TempDir(), "cache")
	for _, name := range packages {
		t.Run(name, func(t *testing.T) {
			src := filepath.Join(goroot, "src", name)
			module := filepath.Join(t.TempDir(), "test.wasm")
			build := exec.Command("go", "test", "-c", "-o", module, name)
			build.Dir, build.Env = src, append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0", "GOFLAGS=-trimpath")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("build the tests of %s: %v\n%s", name, err, out)
			}
			var said bytes.Buffer
			code, err := wasm.Run(t.Context(), wasm.Program{
				// The DevNull tests need /dev/null of the host, which the module cannot access.
				Module: module, Args: []string{"test", "-test.short", "-test.v", "-test.skip=DevNull"}, Cache: cache,
				Env:    []string{"PWD=" + src, "GOROOT=" + goroot, "TMPDIR=/tmp"},
				Dirs:   []wasi.Dir{{Host: t.TempDir(), Guest: "/"}, {Host: t.TempDir(), Guest: "/tmp"}, {Host: goroot, Guest: goroot, ReadOnly: true}},
				Stdout: &said, Stderr: &said,
			})
			passed := strings.Count(said.String(), "\n--- PASS")
			if code != 0 || err != nil || passed == 0 {
				t.Errorf("%d tests passed, exit code %d, %v\n%s", passed, code, err, &said)
			}
			t.Logf("%d tests passed", passed)
		})
	}
}
