// Package wasm runs capabilities that are WebAssembly modules of WASI preview 1, in this
// process. A module is compiled by Prepare. Unless its files are shared between calls, each
// call has a new instance. A module can access only the directories, hosts and capabilities
// that its manifest declares.
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

	"glasshouse/capability/engine"
	"glasshouse/capability/engine/wasi"
	"glasshouse/fault"
)

// Config is the configuration of an Engine.
type Config struct {
	// Dir is the directory for compiled modules and for the files of capabilities. No other
	// user may have access to it, because it contains machine code that the daemon runs.
	Dir string

	// Egress makes the network requests of modules. nil: network access is not supported.
	Egress Egress

	// CacheMB limits the compiled modules on disk, in MiB; 0: 1024.
	CacheMB int
}

// An Egress makes HTTP requests for capabilities. It decides whether the capability may make
// a request. It is safe for concurrent use.
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
	work    sync.WaitGroup // calls and background work

	preparing sync.Mutex // held while a module is compiled: one compilation uses all processors

	mu       sync.Mutex
	programs map[string]*program // by id and digest
	closed   bool
}

var _ engine.Engine = (*Engine)(nil)

var errClosed = errors.New("the engine is closed")

// New returns an engine. It removes the temporary files of earlier calls.
func New(ctx context.Context, config Config) (*Engine, error) {
	if config.Dir == "" {
		return nil, errors.New("wasm.New: a directory is required")
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

// newRuntime returns a runtime with the host modules that modules can import. A module ends
// when the context of its call ends.
func newRuntime(ctx context.Context, compiled wazero.CompilationCache) (wazero.Runtime, error) {
	config := wazero.NewRuntimeConfig().WithCloseOnContextDone(true)
	if compiled != nil {
		config = config.WithCompilationCache(compiled)
	}
	r := wazero.NewRuntimeWithConfig(ctx, config)
	if err := errors.Join(wasi.Instantiate(ctx, r), instantiateHost(ctx, r)); err != nil {
		return nil, errors.Join(fmt.Errorf("instantiate the host modules: %w", err), r.Close(ctx))
	}
	return r, nil
}

// Prepare compiles a capability's module.
func (e *Engine) Prepare(ctx context.Context, c *engine.Installed) error {
	_, err := e.program(ctx, c)
	return err
}

// program returns the compiled module of a capability. It compiles the module if necessary.
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

// enter registers a call, so that Close waits for it. It returns false if the engine is
// closed.
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
	if !p.acquire() {
		return engine.Result{}, fault.Newf(fault.Conflict, "wasm.Call", call.Capability.ID, "the capability is being removed")
	}
	defer p.release()
	return p.call(ctx, call)
}

// Drop implements engine.Engine. It ends the idle instances of a capability; running calls
// are completed.
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

// EndSession removes the instances and files of a session.
func (e *Engine) EndSession(_ context.Context, session string) error {
	e.mu.Lock()
	var errs []error
	for _, p := range e.programs {
		errs = append(errs, p.pool.drop(session))
	}
	e.mu.Unlock()
	return errors.Join(append(errs, e.files.removeSession(session))...)
}

// Close kills the running calls and ends all instances.
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

// Defaults for values that a manifest does not set.
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

// ownDir creates a directory that only this user can access. It returns an error if the path
// exists and is not such a directory.
func ownDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 || !ownedByUs(info) {
		return fault.Newf(fault.Conflict, "wasm.New", dir, "must be a directory that only the user of this process can access, because it contains executable code")
	}
	return nil
}
