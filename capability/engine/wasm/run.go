package wasm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/tetratelabs/wazero"

	"glasshouse/capability/engine/wasi"
	"glasshouse/fault"
)

// A Program is a module that is run as a program, outside of a capability. The caller selects
// the directories that it can access.
type Program struct {
	Module  string   // a file
	Args    []string // the first is its name
	Env     []string // "K=V"
	Dirs    []wasi.Dir
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Cache   string // directory of the caller for compiled modules; empty or unusable: no cache
	CacheMB int    // 0: 1024
}

// ExitTrapped is the exit code of a program that has trapped. It is the code that a shell
// reports for SIGABRT, 128+6.
const ExitTrapped = 134

// Run runs a program until it exits, and returns its exit code. If the code is ExitTrapped,
// the error describes the trap. Any other error explains why the program did not run.
func Run(ctx context.Context, p Program) (code int, err error) {
	text, err := os.ReadFile(p.Module)
	if errors.Is(err, os.ErrNotExist) {
		return 0, fault.New(fault.NotFound, "wasm.Run", p.Module, err)
	}
	if err != nil {
		return 0, err
	}
	module, _, err := bounded(text)
	if err != nil {
		return 0, fault.New(fault.Invalid, "wasm.Run", p.Module, err)
	}
	r, m, done, err := p.compile(ctx, module)
	if err != nil {
		return 0, err
	}
	defer done()
	if err := errors.Join(checkImports(m), shape(exportStart, m.ExportedFunctions()[exportStart], 0)); err != nil {
		return 0, fault.New(fault.Invalid, "wasm.Run", p.Module, err)
	}
	process, err := wasi.New(wasi.Options{Args: p.Args, Env: p.Env, Stdin: p.Stdin, Stdout: p.Stdout, Stderr: p.Stderr, Dirs: p.Dirs})
	if err != nil {
		return 0, err
	}
	defer process.Close()
	_, err = r.InstantiateModule(wasi.With(ctx, process), m, wazero.NewModuleConfig().WithName(""))
	if code, exited := process.Exited(); exited {
		return int(code), nil
	}
	switch {
	case err == nil:
		return 0, nil
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	}
	return ExitTrapped, fmt.Errorf("%s: %w", p.Module, err)
}

// compile compiles a program's module in a new runtime. The caller must call done to close
// the runtime. A cache that belongs to another user or is not writable is ignored.
func (p Program) compile(ctx context.Context, module []byte) (r wazero.Runtime, m wazero.CompiledModule, done func(), err error) {
	if p.Cache != "" {
		if c, err := openCache(p.Cache, int64(or(p.CacheMB, 1024))<<20); err == nil {
			if r, m, err := p.compileWith(ctx, c.compiled, module); err == nil {
				return r, m, func() { r.Close(context.WithoutCancel(ctx)); c.close() }, nil
			}
			c.close()
		}
	}
	if r, m, err = p.compileWith(ctx, nil, module); err != nil {
		return nil, nil, nil, err
	}
	return r, m, func() { r.Close(context.WithoutCancel(ctx)) }, nil
}

func (p Program) compileWith(ctx context.Context, cache wazero.CompilationCache, module []byte) (wazero.Runtime, wazero.CompiledModule, error) {
	r, err := newRuntime(ctx, cache)
	if err != nil {
		return nil, nil, err
	}
	m, err := r.CompileModule(ctx, module)
	if err != nil {
		return nil, nil, errors.Join(fault.New(fault.Invalid, "wasm.Run", p.Module, err), r.Close(context.WithoutCancel(ctx)))
	}
	return r, m, nil
}
