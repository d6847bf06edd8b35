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

	"glasshouse/engine"
	"glasshouse/engine/wasi"
)

// An instance is a module with memory and files of its own, ready to be called.
type instance struct {
	program *program
	scope   string
	process *wasi.Process
	memory  *memory
	module  api.Module
	log     *tail
	since   time.Time    // it waits
	done    func() error // removes its files, if they are its own
}

// maxFiles is how many files an instance may have open: the daemon's are counted too.
const maxFiles = 128

// instantiate makes an instance. A handler's _initialize has run then; a command
// has not begun.
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
	config := wazero.NewModuleConfig().WithName("").WithStartFunctions().WithRandSource(rand.Reader) // or it seeds one of its own, each time
	if p.handler {
		config = config.WithStartFunctions(exportInitialize)
	}
	if i.module, err = p.engine.runtime.InstantiateModule(ctx, p.module, config); err != nil {
		f := i.failure(ctx, err)
		if ctx.Err() == nil || killed(ctx) != nil {
			f.Kind = engine.Unstarted // and nobody has given it up
		}
		f.Err = errors.Join(err, i.close())
		return nil, f
	}
	return i, nil
}

// args are a command's: its name, and what the manifest adds.
func args(c *engine.Installed) []string {
	return append([]string{path.Base(c.Runtime.Module)}, c.Runtime.Entrypoint...)
}

func environment(c *engine.Installed) (env []string) {
	for _, name := range slices.Sorted(maps.Keys(c.Runtime.Env)) {
		env = append(env, name+"="+c.Runtime.Env[name])
	}
	return env
}

// close ends an instance and removes what was its own.
func (i *instance) close() error {
	var errs []error
	if i.module != nil {
		errs = append(errs, i.module.Close(context.Background()))
	}
	return errors.Join(append(errs, i.process.Close(), i.done())...)
}

// A tail keeps the end of what is written.
type tail struct {
	bytes []byte
	cut   bool // there was more before it
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
