package wasm_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/capability/engine"
	"glasshouse/capability/engine/wasm"
	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs/form"
	"glasshouse/fault"
)

func open(t testing.TB, config wasm.Config) *wasm.Engine {
	t.Helper()
	if config.Dir == "" {
		config.Dir = filepath.Join(t.TempDir(), "engine")
	}
	e, err := wasm.New(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// ask calls the probe and returns its output as text.
func ask(t testing.TB, e *wasm.Engine, c *engine.Installed, session, do string, more ...form.Value) (string, error) {
	t.Helper()
	input := form.NewMap(append([]form.Value{form.Keyword("do"), do}, more...)...)
	r, err := e.Call(context.Background(), &engine.Call{ID: "c-1", Capability: c, Input: input, Session: session})
	return form.Text(r.Output), err
}

func TestPrepareRejectsInvalidModules(t *testing.T) {
	e := open(t, wasm.Config{})
	put := func(c *engine.Installed, module string) *engine.Installed {
		if err := os.WriteFile(filepath.Join(c.Dir, c.Runtime.Module), []byte(module), 0o600); err != nil {
			t.Fatal(err)
		}
		return c
	}
	same := func(*manifest.Capability) {}
	for name, test := range map[string]struct {
		c    *engine.Installed
		want fault.Kind
		says string
	}{
		"no module named":    {install(t, "command.wasm", func(c *manifest.Capability) { c.Runtime.Module = "" }), fault.Invalid, "names no module"},
		"no such module":     {install(t, "command.wasm", func(c *manifest.Capability) { c.Runtime.Module = "no.wasm" }), fault.NotFound, "no.wasm"},
		"a module elsewhere": {install(t, "command.wasm", func(c *manifest.Capability) { c.Runtime.Module = "../../etc/passwd" }), "", "escapes"},
		"not a module":       {put(install(t, "command.wasm", same), "#!/bin/sh\n"), fault.Invalid, "invalid WebAssembly module"},
		"an empty module":    {put(install(t, "command.wasm", same), header), fault.Invalid, "exports neither"},
		"half a module":      {put(install(t, "command.wasm", same), header+"\x01\x7f"), fault.Invalid, "is truncated"},
		"imports of others":  {put(install(t, "command.wasm", same), header+"\x01\x04\x01\x60\x00\x00\x02\x09\x01\x03env\x01f\x00\x00"), fault.Invalid, "env.f"},
		"too much memory":    {put(install(t, "command.wasm", func(c *manifest.Capability) { c.Resources.MemoryMB = 1 }), header+"\x05\x03\x01\x00\x64"), fault.Invalid, "the limit is 1 MiB"},
		"secrets as files":   {install(t, "command.wasm", func(c *manifest.Capability) { c.Secrets = []string{"KEY"} }), fault.Unsupported, "KEY"},
		"a huge table":       {put(install(t, "command.wasm", same), header+"\x04\x07\x01\x70\x00\xff\xff\xff\x3f"), fault.Invalid, "a table with more than"},
	} {
		err := e.Prepare(t.Context(), test.c)
		if err == nil || fault.KindOf(err) != test.want || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: Prepare = %v, want kind %q and text %q", name, err, test.want, test.says)
		}
	}
}

const header = "\x00asm\x01\x00\x00\x00"

// In mode session, a handler may keep its memory between calls of the same session.
func TestHandlerKeepsStateWithinSession(t *testing.T) {
	e := open(t, wasm.Config{})
	c := install(t, "handler.wasm", func(c *manifest.Capability) { c.Filesystem.Mode, c.Runtime.Warm.Max = manifest.Session, 4 })
	for _, step := range []struct{ session, want string }{{"one", "1"}, {"one", "2"}, {"two", "1"}, {"one", "3"}, {"two", "2"}} {
		if got, err := ask(t, e, c, step.session, "remember"); err != nil || !strings.Contains(got, step.want) {
			t.Errorf("session %s: %s, %v; want %s", step.session, got, err, step.want)
		}
	}
	if _, err := ask(t, e, c, "one", "trap"); engine.KindOf(err) != engine.Crashed {
		t.Errorf("trap = %v, want crashed", err)
	}
	if got, err := ask(t, e, c, "one", "remember"); err != nil || !strings.Contains(got, "1") {
		t.Errorf("after a trap: %s, %v; want a new instance", got, err)
	}
	if got, err := ask(t, e, c, "one", "fill", form.Keyword("n"), int64(1)); err != nil {
		t.Errorf("fill: %s, %v", got, err)
	}
	if err := e.EndSession(t.Context(), "two"); err != nil {
		t.Fatal(err)
	}
	if got, err := ask(t, e, c, "two", "remember"); err != nil || !strings.Contains(got, "1") {
		t.Errorf("after its session has ended: %s, %v; want a new instance", got, err)
	}
}

func TestIdleInstancesExpire(t *testing.T) {
	e := open(t, wasm.Config{})
	c := install(t, "handler.wasm", func(c *manifest.Capability) {
		c.Filesystem.Mode, c.Runtime.Warm.Max, c.Runtime.Warm.TTL = manifest.Persistent, 1, time.Millisecond
	})
	for end := time.Now().Add(time.Minute); ; {
		got, err := ask(t, e, c, "", "remember")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
		again, err := ask(t, e, c, "", "remember")
		if err != nil {
			t.Fatal(err)
		}
		if got == again {
			return // a new instance has counted from 1
		}
		if time.Now().After(end) {
			t.Fatalf("an instance with a ttl of 1 ms is still in use: %s", again)
		}
	}
}

func TestExitCodesAndTraps(t *testing.T) {
	e := open(t, wasm.Config{})
	command := install(t, "command.wasm", func(*manifest.Capability) {})
	handler := install(t, "handler.wasm", func(*manifest.Capability) {})
	for _, test := range []struct {
		c    *engine.Installed
		do   string
		n    int64
		want engine.Kind
		says string
	}{
		{command, "exit", 7, engine.Failed, "exit code 7"},
		{command, "exit", 0xffffffff, engine.Failed, "exit code 4294967295"}, // wazero: ExitCodeContextCanceled
		{command, "exit", 0xefffffff, engine.Failed, "exit code 4026531839"}, // wazero: ExitCodeDeadlineExceeded
		{command, "exit", 0, engine.Garbled, "empty"},
		{command, "trap", 0, engine.Crashed, "unreachable"},
		{command, "silent", 0, engine.Garbled, "empty"},
		{handler, "exit", 0, engine.Failed, "exit code 0"},
		{handler, "exit", 7, engine.Failed, "exit code 7"},
		{handler, "trap", 0, engine.Crashed, "unreachable"},
		{handler, "silent", 0, engine.Garbled, "cannot be decoded"},
	} {
		_, err := ask(t, e, test.c, "", test.do, form.Keyword("n"), test.n)
		if engine.KindOf(err) != test.want || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s, %s %d: %v, want %s, %q", test.c.Runtime.Module, test.do, test.n, err, test.want, test.says)
		}
	}
}

// An upstream is an Egress that calls a function instead of the network.
type upstream func(call *engine.Call, r *http.Request) (*http.Response, error)

func (u upstream) Do(_ context.Context, call *engine.Call, r *http.Request) (*http.Response, error) {
	return u(call, r)
}

func answer(status int, body string) (*http.Response, error) {
	return &http.Response{StatusCode: status, Header: http.Header{"X-From": {"upstream"}}, Body: io.NopCloser(strings.NewReader(body))}, nil
}

func TestFetchUsesEgress(t *testing.T) {
	e := open(t, wasm.Config{Egress: upstream(func(call *engine.Call, r *http.Request) (*http.Response, error) {
		switch r.URL.Path {
		case "/binary":
			return answer(200, "\xff\x00")
		case "/denied":
			return nil, fault.Newf(fault.Denied, "test", r.URL.Host, "not there")
		case "/big":
			return answer(200, strings.Repeat("x", 5000))
		}
		return answer(201, fmt.Sprintf("%s %s for %s %s", r.Method, r.URL, call.Capability.ID, r.Header.Get("X-Test")))
	})})
	networked := func(c *manifest.Capability) {
		c.Network, c.Resources.NetworkBytes = manifest.Network{Mode: "proxy", Hosts: []string{"up.test"}}, 2000
	}
	for _, module := range []string{"command.wasm", "handler.wasm"} {
		c := install(t, module, networked)
		for url, want := range map[string]string{
			"http://up.test/hello":  `"GET http://up.test/hello for test.probe 1"`,
			"http://up.test/binary": `"/wA="`,
			"http://up.test/denied": `"denied"`,
			"file:///etc/passwd":    `only http and https`,
			"http://":               `only http and https`,
			"http://up.test/%zz":    `invalid`,
		} {
			got, err := ask(t, e, c, "", "fetch", form.Keyword("url"), url)
			if err != nil || !strings.Contains(got, want) {
				t.Errorf("%s: fetch %s: %s, %v; want %s", module, url, got, err, want)
			}
		}
		_, err := ask(t, e, c, "", "fetch", form.Keyword("url"), "http://up.test/big")
		if engine.KindOf(err) != engine.Network {
			t.Errorf("%s: response beyond the network limit = %v, want network", module, err)
		}
		r, err := e.Call(t.Context(), &engine.Call{Capability: c, Input: form.NewMap(form.Keyword("do"), "fetch", form.Keyword("url"), "http://up.test/hello")})
		if err != nil || r.Usage.NetworkIn == 0 || r.Usage.NetworkOut == 0 {
			t.Errorf("%s: usage = %+v, %v", module, r.Usage, err)
		}
		for what, change := range map[string]func(*manifest.Capability){
			"without a network": func(c *manifest.Capability) {},
			"NoEgress":          func(c *manifest.Capability) { networked(c); c.NoEgress = true },
			"of mode none":      func(c *manifest.Capability) { networked(c); c.Network.Mode = "none" },
		} {
			got, err := ask(t, e, install(t, module, change), "", "fetch", form.Keyword("url"), "http://up.test/hello")
			if err != nil || !strings.Contains(got, "declares no network access") {
				t.Errorf("%s: %s: %s, %v", module, what, got, err)
			}
		}
	}
	isolated := open(t, wasm.Config{})
	if got, err := ask(t, isolated, install(t, "command.wasm", networked), "", "fetch", form.Keyword("url"), "http://up.test/"); err != nil || !strings.Contains(got, "not supported here") {
		t.Errorf("fetch without Egress = %s, %v", got, err)
	}
}

func TestMountOutsideOfDirectoryIsRejected(t *testing.T) {
	e := open(t, wasm.Config{})
	c := install(t, "command.wasm", func(c *manifest.Capability) {
		c.Filesystem.Mounts = []manifest.Mount{{Host: "link", Guest: "/x"}}
	})
	if err := os.Symlink("/etc", filepath.Join(c.Dir, "link")); err != nil {
		t.Fatal(err)
	}
	if got, err := ask(t, e, c, "", "look"); err == nil {
		t.Errorf("output = %s, want an error", got)
	}
}

func TestCompilationCache(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "engine")
	compiled := func() (files []string, size int64) {
		filepath.Walk(filepath.Join(dir, "compiled"), func(path string, info os.FileInfo, err error) error {
			if err == nil && info.Mode().IsRegular() {
				files, size = append(files, path), size+info.Size()
			}
			return err
		})
		return files, size
	}
	prepare := func(module string) {
		e := open(t, wasm.Config{Dir: dir, CacheMB: 1})
		if err := e.Prepare(t.Context(), install(t, module, func(*manifest.Capability) {})); err != nil {
			t.Fatal(err)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	prepare("command.wasm")
	first, _ := compiled()
	if len(first) != 1 {
		t.Fatalf("compiled modules are %v, want one", first)
	}
	before, err := os.Stat(first[0])
	if err != nil {
		t.Fatal(err)
	}
	prepare("command.wasm")
	if again, _ := compiled(); len(again) != 1 {
		t.Errorf("compiled modules are %v, want the existing one", again)
	} else if after, err := os.Stat(first[0]); err != nil || !os.SameFile(before, after) {
		t.Error("the module was compiled again")
	}

	old := filepath.Join(filepath.Dir(first[0]), "an-old-one")
	if err := os.WriteFile(old, make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(old, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	prepare("handler.wasm")
	if files, size := compiled(); len(files) != 2 || size > 1<<20 {
		t.Errorf("%d files of %d bytes are kept, want the 2 newest", len(files), size)
	}
}

// The cache contains machine code that is executed without verification.
func TestNewRejectsWritableCache(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "engine")
	if err := os.MkdirAll(filepath.Join(dir, "compiled"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "compiled"), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := wasm.New(t.Context(), wasm.Config{Dir: dir}); !errors.Is(err, fault.Conflict) {
		t.Errorf("New = %v, want a conflict", err)
	}
}

func TestScratchFilesAreRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "engine")
	if err := os.MkdirAll(filepath.Join(dir, "scratch", "7", "deep"), 0o700); err != nil {
		t.Fatal(err)
	}
	e := open(t, wasm.Config{Dir: dir})
	if left, err := os.ReadDir(filepath.Join(dir, "scratch")); err != nil || len(left) > 0 {
		t.Errorf("scratch files after New: %v, %v", left, err)
	}
	c := install(t, "command.wasm", func(c *manifest.Capability) { c.Runtime.Warm.Max = 3 })
	for range 5 {
		if _, err := ask(t, e, c, "", "note"); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "scratch")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the scratch directory exists after Close: %v", err)
	}
}

// BenchmarkWarmCall makes sequential calls without pauses. In mode ephemeral, instances are
// created in the background and the pool may become empty. The benchmark therefore reports the
// median of the warm calls and their share.
func BenchmarkWarmCall(b *testing.B) {
	for _, module := range []string{"command.wasm", "handler.wasm"} {
		for _, mode := range []manifest.Mode{manifest.Ephemeral, manifest.Persistent} {
			b.Run(strings.TrimSuffix(module, ".wasm")+"-"+string(mode), func(b *testing.B) {
				e := open(b, wasm.Config{})
				c := install(b, module, func(c *manifest.Capability) { c.Runtime.Warm.Max, c.Filesystem.Mode = 8, mode })
				input := form.NewMap(form.Keyword("do"), "echo")
				var warm []time.Duration
				b.ReportAllocs()
				for b.Loop() {
					begun := time.Now()
					r, err := e.Call(context.Background(), &engine.Call{ID: "c-1", Capability: c, Input: input})
					if err != nil {
						b.Fatal(err)
					}
					if r.Warm {
						warm = append(warm, time.Since(begun))
					}
				}
				if slices.Sort(warm); len(warm) > 0 {
					b.ReportMetric(float64(warm[len(warm)/2].Nanoseconds())/1e3, "warm-p50-µs")
				}
				b.ReportMetric(100*float64(len(warm))/float64(b.N), "%warm")
			})
		}
	}
}
