package wasm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"glasshouse/engine"
	"glasshouse/engine/wasi"
	"glasshouse/fault"
)

// What a module exports that is called.
const (
	exportStart      = "_start"            // of a command: one call is its whole life
	exportInitialize = "_initialize"       // of a handler: once, before all calls
	exportAlloc      = "glasshouse_alloc"  // of a handler: room for a request
	exportHandle     = "glasshouse_handle" // of a handler: a request, and its answer
)

// A program is the compiled module of one version of a capability.
type program struct {
	engine *Engine
	module wazero.CompiledModule
	pool   *pool

	capability *engine.Installed
	handler    bool

	mu sync.Mutex
	// +checklocks:mu
	users int // calls, and the engine
}

// compile makes a capability's module ready to be called.
func (e *Engine) compile(ctx context.Context, c *engine.Installed) (*program, error) {
	const op = "wasm.Prepare"
	if c.Runtime.Module == "" {
		return nil, fault.Fieldf(op, "runtime.module", "%s names no module", c.ID)
	}
	if files := c.SecretFiles(); len(files) > 0 {
		return nil, fault.Cannot(op, fmt.Sprintf("%s asks for %s as files, and a module is given no secrets", c.ID, strings.Join(files, ", ")),
			"have the proxy put them into requests, with :inject of :network")
	}
	text, err := readModule(c.Dir, c.Runtime.Module)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.ID, err)
	}
	module, memory, err := bounded(text)
	if err != nil {
		return nil, fault.New(fault.Invalid, op, c.Runtime.Module, err)
	}
	if limit := memoryOf(c); memory > limit {
		return nil, fault.Fieldf(op, "resources.memory_mb", "%s begins with %d MiB, and may have %d", c.Runtime.Module, memory>>20, limit>>20)
	}
	compiled, err := e.runtime.CompileModule(ctx, module)
	if err != nil {
		return nil, fault.New(fault.Invalid, op, c.Runtime.Module, err)
	}
	p := &program{engine: e, module: compiled, capability: c, users: 1}
	if err := p.check(); err != nil {
		return nil, errors.Join(fault.New(fault.Invalid, op, c.Runtime.Module, err), compiled.Close(ctx))
	}
	p.pool = newPool(p)
	return p, e.cache.prune()
}

// readModule reads a module that lies beneath a directory.
func readModule(dir, name string) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fault.New(fault.NotFound, "wasm.Prepare", name, err)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxModule+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxModule {
		return nil, fault.Newf(fault.TooLarge, "wasm.Prepare", name, "a module has at most %d MiB", maxModule>>20)
	}
	return text, nil
}

func memoryOf(c *engine.Installed) uint64 {
	return uint64(or(c.Resources.MemoryMB, defaultMemoryMB)) << 20
}

// check finds out how a module is called, and whether all that it needs is there.
func (p *program) check() error {
	if err := checkImports(p.module); err != nil {
		return err
	}
	exports := p.module.ExportedFunctions()
	if handle := exports[exportHandle]; handle != nil {
		p.handler = true
		return errors.Join(
			shape(exportHandle, handle, 2, api.ValueTypeI64),
			shape(exportAlloc, exports[exportAlloc], 1, api.ValueTypeI32),
			hasMemory(p.module),
		)
	}
	if exports[exportStart] == nil {
		return fmt.Errorf("it exports neither %s nor %s", exportStart, exportHandle)
	}
	return shape(exportStart, exports[exportStart], 0)
}

func checkImports(m wazero.CompiledModule) error {
	var missing []string
	for _, f := range m.ImportedFunctions() {
		module, name, _ := f.Import()
		if module == wasi.Name && wasi.Has(name) || module == hostName && hostFunctions[name] != nil {
			continue
		}
		missing = append(missing, module+"."+name)
	}
	for _, mem := range m.ImportedMemories() {
		module, name, _ := mem.Import()
		missing = append(missing, module+"."+name+" (a memory)")
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return fmt.Errorf("it imports what is not to be had: %s", strings.Join(missing, ", "))
}

func hasMemory(m wazero.CompiledModule) error {
	if m.ExportedMemories()["memory"] == nil {
		return errors.New("it exports no memory")
	}
	return nil
}

// shape returns an error if an export is not a function of so many 32-bit numbers
// with these results.
func shape(name string, f api.FunctionDefinition, params int, results ...api.ValueType) error {
	if f == nil {
		return fmt.Errorf("it exports no %s", name)
	}
	want := slices.Repeat([]api.ValueType{api.ValueTypeI32}, params)
	if !slices.Equal(f.ParamTypes(), want) || !slices.Equal(f.ResultTypes(), results) {
		return fmt.Errorf("its %s does not take and return what it should", name)
	}
	return nil
}

// hold counts a call in, so that the module is kept until its end.
func (p *program) hold() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users == 0 {
		return false
	}
	p.users++
	return true
}

// release counts a user out. The last one closes the module.
func (p *program) release() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users--; p.users > 0 {
		return nil
	}
	return p.module.Close(context.Background())
}
