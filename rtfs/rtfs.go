// Package rtfs runs RTFS: a small, pure, Lisp-like language whose only way out is
// a Host. A program is compiled once, and run as often as one likes, at the same
// time and each time as if it were the first.
package rtfs

import (
	"context"
	"slices"
	"time"

	"glasshouse/rtfs/form"
	"glasshouse/rtfs/lib"
)

// A Host is what a program can call. It must be safe for concurrent use: the branches of
// a step-parallel call it concurrently.
type Host interface {
	// Call calls a capability. (call "id" x) gives x as its input; more arguments
	// are one vector, and none is an empty map.
	Call(ctx context.Context, id string, input form.Value) (form.Value, error)
}

// A Reporter is a Host that logs the steps of a program as they happen. Step is not called
// concurrently. The steps of one branch of a step-parallel are reported in their order;
// those of several branches are reported in the order in which they happen, all of them
// after the start and before the end of the step around the step-parallel.
type Reporter interface {
	Step(ctx context.Context, s Step)
}

// A Canceller is a Host that needs to know which branches of a step-parallel were cancelled
// because another branch failed.
type Canceller interface {
	Cancelled(branch string)
}

// A Step is a (step "name" …) that begins or ends.
type Step struct {
	Name    string
	Phase   Phase
	Branch  string // of a step-parallel; "": the step is in none
	Params  *form.Map
	Context *form.Map  // what the step exposes of the context; nil: nothing
	Value   form.Value // of a step that is completed
	Err     error      // of one that failed
}

// A Phase is how far a step is.
type Phase string

const (
	Started    Phase = "start"
	Completed  Phase = "complete"
	StepFailed Phase = "fail"
)

// Limits are what one run may take. What is zero has the default.
type Limits struct {
	Steps int64         // calls and turns of loops; 50 million
	Depth int64         // calls in each other that are not tail calls; 10 000
	Alloc int64         // bytes that are taken in all, given back or not; 256 MiB
	Time  time.Duration // 10 seconds
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

// A Config is what programs have around them. The zero Config is that of a pure
// program without types.
type Config struct {
	Host   Host // nil: nothing can be called
	Limits Limits

	// Check compiles the type of an annotation, as in [x : int]. Without it
	// programs that have annotations do not compile.
	Check func(*form.Node) (func(form.Value) error, error)
}

// An Env is what one run has around it, in place of what the Config says.
type Env struct {
	Host    Host      // nil: that of the Config
	Limits  Limits    // what is zero is as in the Config
	Context *form.Map // what (get :key) and @key read; nil: it is empty
	Used    *Usage    // is filled in when the run ends; nil: nobody wants to know
}

// Usage is what a run took.
type Usage struct {
	Steps, Alloc int64
}

// An Interp compiles programs.
type Interp struct {
	cfg   Config
	names map[string]*lib.Builtin
}

// New returns an Interp.
func New(cfg Config) *Interp {
	cfg.Limits = cfg.Limits.or(defaults)
	in := &Interp{cfg: cfg, names: map[string]*lib.Builtin{}}
	for _, b := range slices.Concat(lib.All(), intrinsics()) {
		in.names[b.Name] = &b
	}
	return in
}

// Compile compiles a program. An error is a *form.Error with the place.
func (in *Interp) Compile(file string, src []byte) (*Program, error) {
	nodes, err := form.Read(file, src)
	if err != nil {
		return nil, err
	}
	p, err := in.CompileNodes(nodes...)
	return p, shown(err, src)
}

// shown adds the line of a compiler's error to what it says.
func shown(err error, src []byte) error {
	if e, ok := err.(*form.Error); ok {
		e.Message += "\n" + form.Excerpt(src, e.Pos)
	}
	return err
}

// CompileNodes compiles what was read already.
func (in *Interp) CompileNodes(nodes ...*form.Node) (*Program, error) {
	u := newUnit(in)
	main, err := u.compile(nodes)
	if err != nil {
		return nil, err
	}
	return &Program{unit: u, main: main}, nil
}

// A Program is compiled. It is safe for concurrent use.
type Program struct {
	unit *unit
	main *proto
	env  Env
}

// With returns a program that runs in an Env.
func (p *Program) With(env Env) *Program {
	q := *p
	q.env = env
	return &q
}

// Run runs a program in a fresh environment and returns the value of its last form.
// An error is a *form.Error.
func (p *Program) Run(ctx context.Context) (form.Value, error) {
	w := &world{unit: p.unit, globals: p.unit.fresh()}
	return w.run(ctx, p.env, &Func{p: p.main, w: w}, nil)
}

// A Func is a function of a program. It is safe for concurrent use.
type Func struct {
	p        *proto
	captured []form.Value // what it uses of the functions around it
	w        *world
	env      Env
}

// FuncName is the function's name, or "".
func (f *Func) FuncName() string { return f.p.name }

// With returns a function that is called in an Env.
func (f *Func) With(env Env) *Func {
	g := *f
	g.env = env
	return &g
}

// Call calls f. What it defines while it runs is gone afterwards. An error is a
// *form.Error.
func (f *Func) Call(ctx context.Context, args ...form.Value) (form.Value, error) {
	w := &world{unit: f.w.unit, globals: slices.Clone(f.w.globals)}
	return w.run(ctx, f.env, f, args)
}

// A Session keeps what its texts define, as somebody who types them expects. It is
// not safe for concurrent use.
type Session struct {
	world *world
	Env   Env
}

// Session begins a session.
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

// Names are the names that the session's texts have defined.
func (s *Session) Names() []string { return s.world.unit.defined() }
