// Package rtfs implements RTFS, a small, pure, Lisp-like language. A Host provides all side
// effects. A program is compiled once and can be run many times, also concurrently; runs do not
// affect each other.
package rtfs

import (
	"context"
	"slices"
	"time"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/rtfs/lib"
)

// A Host executes the calls of a program. It must be safe for concurrent use, because the
// branches of a step-parallel call it concurrently.
type Host interface {
	// Call calls a capability. The input of (call "id" x) is x. Several arguments are passed as
	// a vector, and no arguments as an empty map.
	Call(ctx context.Context, id string, input form.Value) (form.Value, error)
}

// A Reporter is a Host that logs the steps of a program as they happen. Step is not called
// concurrently. The steps of one branch of a step-parallel are reported in their order;
// those of several branches are reported in the order in which they happen, all of them
// after the start and before the end of the step around the step-parallel.
type Reporter interface {
	Step(ctx context.Context, s Step)
}

// A Canceller is a Host that must be notified which branches of a step-parallel were cancelled
// because another branch failed.
type Canceller interface {
	Cancelled(branch string)
}

// A Step is the begin or end of a (step "name" …).
type Step struct {
	Name    string
	Phase   Phase
	Branch  string // branch of a step-parallel; "": the step is in no branch
	Params  *form.Map
	Context *form.Map  // the exposed part of the context; nil: none
	Value   form.Value // result of a completed step
	Err     error      // error of a failed step
}

// A Phase is the progress of a step.
type Phase string

const (
	Started    Phase = "start"
	Completed  Phase = "complete"
	StepFailed Phase = "fail"
)

// Limits bounds the resources of one run. Zero values mean the defaults.
type Limits struct {
	Steps int64         // calls and loop iterations; default 50 million
	Depth int64         // nested calls that are not tail calls; default 10 000
	Alloc int64         // total bytes allocated, including bytes that were freed; default 256 MiB
	Time  time.Duration // default 10 seconds
}

func (l Limits) or(d Limits) Limits {
	pick := func(n, d int64) int64 {
		if n > 0 {
			return n
		}
		return d
	}
	return Limits{
		Steps: pick(l.Steps, d.Steps), Depth: pick(l.Depth, d.Depth), Alloc: pick(l.Alloc, d.Alloc),
		Time: time.Duration(pick(int64(l.Time), int64(d.Time))),
	}
}

var defaults = Limits{Steps: 50_000_000, Depth: 10_000, Alloc: 256 << 20, Time: 10 * time.Second}

// A Config is the environment of programs. The zero Config is for pure programs without types.
type Config struct {
	Host   Host // nil: calls fail
	Limits Limits

	// Check compiles the type of an annotation, as in [x : int]. If it is nil, programs with
	// annotations do not compile.
	Check func(*form.Node) (func(form.Value) error, error)
}

// An Env overrides parts of the Config for one run.
type Env struct {
	Host    Host      // nil: the Config's
	Limits  Limits    // zero values mean the Config's
	Context *form.Map // read by (get :key) and @key; nil: empty
	Used    *Usage    // set when the run ends; may be nil
}

// Usage is the resource usage of a run.
type Usage struct {
	Steps, Alloc int64
}

// An Interp compiles programs.
type Interp struct {
	cfg   Config
	names map[string]*lib.Builtin
}

// New returns an Interp for cfg.
func New(cfg Config) *Interp {
	cfg.Limits = cfg.Limits.or(defaults)
	in := &Interp{cfg: cfg, names: map[string]*lib.Builtin{}}
	for _, b := range slices.Concat(lib.All(), intrinsics()) {
		in.names[b.Name] = &b
	}
	return in
}

// Compile compiles a program. An error is a *form.Error with a position.
func (in *Interp) Compile(file string, src []byte) (*Program, error) {
	nodes, err := form.Read(file, src)
	if err != nil {
		return nil, err
	}
	p, err := in.CompileNodes(nodes...)
	return p, shown(err, src)
}

// shown adds the source line to the message of a compile error.
func shown(err error, src []byte) error {
	if e, ok := err.(*form.Error); ok {
		e.Message += "\n" + form.Excerpt(src, e.Pos)
	}
	return err
}

// CompileNodes compiles nodes that were already parsed.
func (in *Interp) CompileNodes(nodes ...*form.Node) (*Program, error) {
	u := newUnit(in)
	main, err := u.compile(nodes)
	if err != nil {
		return nil, err
	}
	return &Program{unit: u, main: main}, nil
}

// A Program is a compiled program. It is safe for concurrent use.
type Program struct {
	unit *unit
	main *proto
	env  Env
}

// With returns p with a different environment.
func (p *Program) With(env Env) *Program {
	q := *p
	q.env = env
	return &q
}

// Run runs a program in a fresh environment and returns the value of its last form. An error is
// a *form.Error.
func (p *Program) Run(ctx context.Context) (form.Value, error) {
	w := &world{unit: p.unit, globals: p.unit.fresh()}
	return w.run(ctx, p.env, &Func{p: p.main, w: w}, nil)
}

// A Func is a function of a program. It is safe for concurrent use.
type Func struct {
	p        *proto
	captured []form.Value // variables of enclosing functions
	w        *world
	env      Env
}

// FuncName returns the function's name, or "".
func (f *Func) FuncName() string { return f.p.name }

// With returns f with a different environment.
func (f *Func) With(env Env) *Func {
	g := *f
	g.env = env
	return &g
}

// Call calls f. Definitions that f makes are discarded afterwards. An error is a *form.Error.
func (f *Func) Call(ctx context.Context, args ...form.Value) (form.Value, error) {
	w := &world{unit: f.w.unit, globals: slices.Clone(f.w.globals)}
	return w.run(ctx, f.env, f, args)
}

// A Session keeps the definitions of its texts, for interactive use. It is not safe for
// concurrent use.
type Session struct {
	world *world
	Env   Env
}

// Session returns a new session.
func (in *Interp) Session() *Session {
	u := newUnit(in)
	return &Session{world: &world{unit: u}}
}

// Eval compiles and runs a text.
func (s *Session) Eval(ctx context.Context, file string, src []byte) (form.Value, error) {
	nodes, err := form.Read(file, src)
	if err != nil {
		return nil, err
	}
	main, err := s.world.unit.compile(nodes)
	if err != nil {
		return nil, shown(err, src)
	}
	fresh := s.world.unit.fresh()
	s.world.globals = append(s.world.globals, fresh[len(s.world.globals):]...)
	return s.world.run(ctx, s.Env, &Func{p: main, w: s.world}, nil)
}

// Names returns the names that the session has defined.
func (s *Session) Names() []string { return s.world.unit.defined() }
