package wasm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/tetratelabs/wazero"

	"glasshouse/engine/wasi"
	"glasshouse/fault"
)

// A Program is a module that is run as a program of its own, by someone who has it
// and says what it sees.
type Program struct {
	Module  string   // a file
	Args    []string // the first is its name
	Env     []string // "K=V"
	Dirs    []wasi.Dir
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Cache   string // a directory of the caller's own for compiled modules; empty: none
	CacheMB int    // 0: 1024
}

// ExitTrapped is the exit code of a program that has trapped: what a shell reports of
// one that aborts.
const ExitTrapped = 134

// Run runs a program to its end, and returns its exit code. An error with the code
// ExitTrapped says how it trapped; any other, why it did not run.
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
	var compiled wazero.CompilationCache
	if p.Cache != "" {
		c, err := openCache(p.Cache, int64(or(p.CacheMB, 1024))<<20)
		if err != nil {
			return 0, err
		}
		defer c.close()
		compiled = c.compiled
	}
	r, err := newRuntime(ctx, compiled)
	if err != nil {
		return 0, err
	}
	defer r.Close(context.WithoutCancel(ctx))
	m, err := r.CompileModule(ctx, module)
	if err != nil {
		return 0, fault.New(fault.Invalid, "wasm.Run", p.Module, err)
	}
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
