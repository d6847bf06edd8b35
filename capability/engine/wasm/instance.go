package wasm

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"path"
	"slices"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"glasshouse/capability/engine"
	"glasshouse/capability/engine/wasi"
)

// An instance is an instantiated module with its memory and its open files.
type instance struct {
	program *program
	scope   string
	process *wasi.Process
	memory  *memory
	module  api.Module
	log     *tail
	since   time.Time    // when it became idle
	done    func() error // removes its files if they belong to a single call
}

// maxFiles limits the open files of an instance, which are file descriptors of the daemon.
const maxFiles = 128

// instantiate returns a new instance. It runs _initialize of a handler, but not _start of a
// command.
func (p *program) instantiate(ctx context.Context, scope, session string) (i *instance, err error) {
	c := p.capability
	dirs, done, err := p.engine.files.dirs(c, session)
	if err != nil {
		return nil, err
	}
	i = &instance{program: p, scope: scope, memory: &memory{limit: memoryOf(c)}, log: &tail{}, done: done}
	if i.process, err = wasi.New(wasi.Options{Args: args(c), Env: environment(c), Stdout: i.log, Stderr: i.log, Dirs: dirs, Files: maxFiles}); err != nil {
		return nil, errors.Join(err, done())
	}
	ctx = experimental.WithMemoryAllocator(wasi.With(ctx, i.process), i.memory)
	config := wazero.NewModuleConfig().WithName("").WithStartFunctions().WithRandSource(rand.Reader) // the default seeds a generator for each module
	if p.handler {
		config = config.WithStartFunctions(exportInitialize)
	}
	if i.module, err = p.engine.runtime.InstantiateModule(ctx, p.module, config); err != nil {
		f := i.failure(ctx, err)
		if ctx.Err() == nil || killed(ctx) != nil {
			f.Kind = engine.Unstarted // the caller has not cancelled the call
		}
		f.Err = errors.Join(err, i.close())
		return nil, f
	}
	return i, nil
}

// args returns the arguments of a command: its name, and the entrypoint of the manifest.
func args(c *engine.Installed) []string {
	return append([]string{path.Base(c.Runtime.Module)}, c.Runtime.Entrypoint...)
}

func environment(c *engine.Installed) (env []string) {
	for _, name := range slices.Sorted(maps.Keys(c.Runtime.Env)) {
		env = append(env, name+"="+c.Runtime.Env[name])
	}
	return env
}

// close ends an instance and removes its files if they belong to a single call.
func (i *instance) close() error {
	var errs []error
	if i.module != nil {
		errs = append(errs, i.module.Close(context.Background()))
	}
	return errors.Join(append(errs, i.process.Close(), i.done())...)
}

// A tail keeps the end of an output.
type tail struct {
	bytes []byte
	cut   bool // earlier output was discarded
}

const maxLog = 64 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.bytes = append(t.bytes, b...)
	if over := len(t.bytes) - maxLog; over > maxLog {
		t.bytes, t.cut = append(t.bytes[:0], t.bytes[over:]...), true
	}
	return len(b), nil
}

func (t *tail) String() string { return engine.LogEnd(t.bytes, maxLog, t.cut) }
