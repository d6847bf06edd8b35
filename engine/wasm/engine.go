// Package wasm runs capabilities that are WebAssembly modules of WASI preview 1, in
// this process: compiled when they are prepared, in a fresh instance each call, and
// cut off from the host but for what their manifest names.
package wasm

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/tetratelabs/wazero"

	"glasshouse/engine"
	"glasshouse/engine/wasi"
	"glasshouse/fault"
)

// Config is what an engine needs.
type Config struct {
	// Dir is where compiled modules and the files of capabilities are kept. It must
	// be the engine's own: what is in it is run.
	Dir string

	// Egress is the way out of modules. nil: there is none.
	Egress Egress

	// CacheMB bounds the compiled modules on disk; 0: 1024.
	CacheMB int
}

// An Egress makes requests for capabilities: whether the one who is called may, is
// for it to decide. It is safe for concurrent use.
type Egress interface {
	Do(ctx context.Context, call *engine.Call, r *http.Request) (*http.Response, error)
}

// An Engine runs capabilities of runtime wasm. It is safe for concurrent use.
type Engine struct {
	config  Config
	ctx     context.Context // ends with the engine
	cancel  context.CancelCauseFunc
	cache   *cache
	runtime wazero.Runtime
	files   *files
	work    sync.WaitGroup // calls, and what is done beside them

	preparing sync.Mutex // held while a module is compiled: one has all processors

	mu       sync.Mutex
	programs map[string]*program // by id and digest
	closed   bool
}

var _ engine.Engine = (*Engine)(nil)

var errClosed = errors.New("the engine is closed")

// New opens an engine. What calls of an earlier one have left is removed.
func New(ctx context.Context, config Config) (*Engine, error) {
	if config.Dir == "" {
		return nil, errors.New("wasm.New: a directory is needed")
	}
	if config.CacheMB == 0 {
		config.CacheMB = 1024
	}
	files, err := openFiles(config.Dir)
	if err != nil {
		return nil, err
	}
	cache, err := openCache(filepath.Join(config.Dir, "compiled"), int64(config.CacheMB)<<20)
	if err != nil {
		return nil, err
	}
	e := &Engine{config: config, cache: cache, files: files, programs: map[string]*program{}}
	e.ctx, e.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	if e.runtime, err = newRuntime(e.ctx, cache.compiled); err != nil {
		return nil, errors.Join(err, cache.close())
	}
	return e, nil
}

// newRuntime makes a runtime whose modules can be ended at any time, with all that
// modules import.
func newRuntime(ctx context.Context, compiled wazero.CompilationCache) (wazero.Runtime, error) {
	config := wazero.NewRuntimeConfig().WithCloseOnContextDone(true)
	if compiled != nil {
		config = config.WithCompilationCache(compiled)
	}
	r := wazero.NewRuntimeWithConfig(ctx, config)
	if err := errors.Join(wasi.Instantiate(ctx, r), instantiateHost(ctx, r)); err != nil {
		return nil, errors.Join(fmt.Errorf("offer modules their system: %w", err), r.Close(ctx))
	}
	return r, nil
}

// Prepare compiles a capability's module.
func (e *Engine) Prepare(ctx context.Context, c *engine.Installed) error {
	_, err := e.program(ctx, c)
	return err
}

// program returns the compiled module of a capability, and compiles it if need be.
func (e *Engine) program(ctx context.Context, c *engine.Installed) (*program, error) {
	if p, err := e.find(c); p != nil || err != nil {
		return p, err
	}
	e.preparing.Lock()
	defer e.preparing.Unlock()
	if p, err := e.find(c); p != nil || err != nil {
		return p, err
	}
	p, err := e.compile(ctx, c)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, errors.Join(errClosed, p.release())
	}
	e.programs[key(c)] = p
	return p, nil
}

func key(c *engine.Installed) string { return c.ID + "\x00" + c.Digest }

func (e *Engine) find(c *engine.Installed) (*program, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, fault.New(fault.Unavailable, "wasm.Call", c.ID, errClosed)
	}
	return e.programs[key(c)], nil
}

// enter counts a call in, so that Close waits for it.
func (e *Engine) enter() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.work.Add(1)
	return true
}

// Call calls a capability.
func (e *Engine) Call(ctx context.Context, call *engine.Call) (engine.Result, error) {
	if !e.enter() {
		return engine.Result{}, fault.New(fault.Unavailable, "wasm.Call", call.Capability.ID, errClosed)
	}
	defer e.work.Done()
	p, err := e.program(ctx, call.Capability)
	if err != nil {
		return engine.Result{}, err
	}
	if !p.hold() {
		return engine.Result{}, fault.Newf(fault.Conflict, "wasm.Call", call.Capability.ID, "it is just being removed")
	}
	defer p.release()
	return p.call(ctx, call)
}

// Drop forgets a capability: instances that wait for calls are ended, calls that run
// come to their own end. With purge its files are removed.
func (e *Engine) Drop(_ context.Context, c *engine.Installed, purge bool) error {
	e.mu.Lock()
	p := e.programs[key(c)]
	delete(e.programs, key(c))
	e.mu.Unlock()
	var errs []error
	if p != nil {
		errs = append(errs, p.pool.close(), p.release())
	}
	if purge {
		errs = append(errs, e.files.removeCapability(c.ID))
	}
	return errors.Join(errs...)
}

// EndSession removes what capabilities have kept for a session.
func (e *Engine) EndSession(_ context.Context, session string) error {
	e.mu.Lock()
	var errs []error
	for _, p := range e.programs {
		errs = append(errs, p.pool.drop(session))
	}
	e.mu.Unlock()
	return errors.Join(append(errs, e.files.removeSession(session))...)
}

// Close kills the calls that run, and ends all instances.
func (e *Engine) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	programs := e.programs
	e.programs = nil
	e.mu.Unlock()
	e.cancel(errClosed)
	var errs []error
	for _, p := range programs {
		errs = append(errs, p.pool.close(), p.release())
	}
	e.work.Wait()
	return errors.Join(append(errs, e.runtime.Close(context.Background()), e.cache.close(), e.files.close())...)
}

// What a manifest leaves open.
const (
	defaultMemoryMB = 256
	defaultTimeout  = 30 * time.Second
	defaultStartup  = 10 * time.Second
	defaultQuotaMB  = 64
	defaultTTL      = 5 * time.Minute
)

func or[T int | time.Duration](v, otherwise T) T {
	if v == 0 {
		return otherwise
	}
	return v
}

// ownDir makes a directory that only this user may look into, or returns why what is
// there is not one.
func ownDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 || !ownedByUs(info) {
		return fault.Newf(fault.Conflict, "wasm.New", dir, "it must be a directory that only this user may enter, for what is in it is run")
	}
	return nil
}
