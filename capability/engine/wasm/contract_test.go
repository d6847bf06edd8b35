package wasm_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"glasshouse/capability/engine"
	"glasshouse/capability/engine/enginetest"
	"glasshouse/capability/engine/wasm"
	"glasshouse/capability/manifest"
)

func TestContract(t *testing.T) {
	for _, module := range []string{"command.wasm", "handler.wasm"} {
		t.Run(module, func(t *testing.T) {
			enginetest.Run(t, opener(), enginetest.Options{
				Install: func(t *testing.T, change func(*manifest.Capability)) *engine.Installed {
					return install(t, module, change)
				},
			})
		})
	}
}

// opener returns a function that opens engines. Engines of the same test share a directory.
func opener() func(t *testing.T) engine.Engine {
	var dirs sync.Map
	return func(t *testing.T) engine.Engine {
		t.Helper()
		dir, _ := dirs.LoadOrStore(t, filepath.Join(t.TempDir(), "engine"))
		e, err := wasm.New(t.Context(), wasm.Config{Dir: dir.(string)})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
}

var versions atomic.Int64

// install copies the probe to a new directory.
func install(t testing.TB, module string, change func(*manifest.Capability)) *engine.Installed {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", module))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, module), text, 0o600); err != nil {
		t.Fatal(err)
	}
	c := &manifest.Capability{ID: "test.probe", Version: "1.0.0", Runtime: manifest.Spec{Type: manifest.WASM, Module: module}}
	change(c)
	return &engine.Installed{Capability: c, Dir: dir, Digest: fmt.Sprint("sha256:", versions.Add(1))}
}
