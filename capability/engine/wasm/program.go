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

	"glasshouse/capability/engine"
	"glasshouse/capability/engine/wasi"
	"glasshouse/fault"
)

// Exports of a module that the engine calls.
const (
	exportStart      = "_start"            // exported by a command: called once per instance
	exportInitialize = "_initialize"       // exported by a handler: called once, before all calls
	exportAlloc      = "glasshouse_alloc"  // exported by a handler: allocates the buffer of a request
	exportHandle     = "glasshouse_handle" // exported by a handler: takes a request and returns its response
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
	users int // number of calls, plus 1 for the engine
}

// compile compiles and checks a capability's module.
func (e *Engine) compile(ctx context.Context, c *engine.Installed) (*program, error) {
	const op = "wasm.Prepare"
	if c.Runtime.Module == "" {
		return nil, fault.Fieldf(op, "runtime.module", "the manifest of %s names no module", c.ID)
	}
	if files := c.SecretFiles(); len(files) > 0 {
		return nil, fault.Cannot(op, fmt.Sprintf("cannot give %s the secrets %s as files: modules have no secret files", c.ID, strings.Join(files, ", ")),
			"let the proxy insert the secrets into requests with :inject of :network")
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
		return nil, fault.Fieldf(op, "resources.memory_mb", "the initial memory of %s is %d MiB, the limit is %d MiB", c.Runtime.Module, memory>>20, limit>>20)
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

// readModule reads a module below a directory. It does not follow links out of the directory.
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
		return nil, fault.Newf(fault.TooLarge, "wasm.Prepare", name, "the module exceeds %d MiB", maxModule>>20)
	}
	return text, nil
}

func memoryOf(c *engine.Installed) uint64 {
	return uint64(or(c.Resources.MemoryMB, defaultMemoryMB)) << 20
}

// check determines whether the module is a command or a handler, and checks its imports and
// exports.
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
		return fmt.Errorf("the module exports neither %s nor %s", exportStart, exportHandle)
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
	return fmt.Errorf("unsupported imports: %s", strings.Join(missing, ", "))
}

func hasMemory(m wazero.CompiledModule) error {
	if m.ExportedMemories()["memory"] == nil {
		return errors.New("the module does not export its memory")
	}
	return nil
}

// shape returns an error if an export is not a function with params parameters of type i32
// and the given results.
func shape(name string, f api.FunctionDefinition, params int, results ...api.ValueType) error {
	if f == nil {
		return fmt.Errorf("the module does not export %s", name)
	}
	want := slices.Repeat([]api.ValueType{api.ValueTypeI32}, params)
	if !slices.Equal(f.ParamTypes(), want) || !slices.Equal(f.ResultTypes(), results) {
		return fmt.Errorf("the exported function %s has the wrong signature", name)
	}
	return nil
}

// acquire registers a call, so that the module stays open until release. It returns false if the
// module is closed.
func (p *program) acquire() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users == 0 {
		return false
	}
	p.users++
	return true
}

// release unregisters a user. The last user closes the module.
func (p *program) release() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users--; p.users > 0 {
		return nil
	}
	return p.module.Close(context.Background())
}
