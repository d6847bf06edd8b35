package rtfs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"glasshouse/fault"
	"glasshouse/rtfs/form"
	"glasshouse/rtfs/lib"
)

// A code is a compiled form: what it does in a frame, and its value.
type code func(f *frame) (form.Value, error)

// A proto is a compiled function.
type proto struct {
	name   string
	params int                    // how many it must have
	rest   bool                   // it takes more
	bind   []func(f *frame) error // takes arguments apart; nil: they are where they belong
	result checker                // checks what it returns; nil: it may be anything
	body   code
	slots  int   // of its frame
	cost   int64 // in steps
	nest   int   // how deeply its forms stand in each other
	sites  []ref // where a closure finds what it uses of the functions around it
}

// A world is what a program's global names mean.
type world struct {
	unit    *unit
	globals []form.Value
}

// unbound is the value of a global name before its def.
type unbound struct{}

// A frame is where one call has its values. Frames are linked, and used again by
// the next call of the same depth. Closures copy what they need of one.
type frame struct {
	m          *machine
	fn         *Func
	slots      []form.Value // the first argc are arguments when the function begins
	argc       int
	nest       int // how many forms stand in each other, in all frames to this one
	depth      int64
	prev, next *frame
}

const (
	firstSlots = 8 // that every frame has: as many arguments are written without asking

	// maxNest bounds the stack of Go, of which each form that stands in another
	// takes a few hundred bytes: a process whose stack grows to 1 GB is ended.
	maxNest   = 1 << 19
	frameNest = 8 // what a call takes besides its forms
)

// A caller is what a call of the host says of its program: how much of the stack is taken
// already, for a program that the host runs, and the branch that calls.
type caller struct {
	nest   int
	branch string
}

type callerKey struct{}

// hostNest is what the host takes of the stack.
const hostNest = 256

// BranchOf returns the branch of a step-parallel that a Host is called from, or "". The
// branches of a program have the same names whenever it runs.
func BranchOf(ctx context.Context) string {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c.branch
}

// A machine runs one program once.
type machine struct {
	*world
	ctx     context.Context
	globals []form.Value // those of the world, or a branch's copy
	host    Host
	limits  Limits // of a branch: the portions that it has taken of the budget
	context *form.Map
	written []form.Value // keys of the context that a branch of a step-parallel has set
	root    frame
	cur     *frame       // in which a builtin is called
	tail    *Func        // who is called when a function returns tailCall
	args    []form.Value // a stack of arguments that are being computed
	names   int          // that gensym has given

	group   *group       // of the run; nil before its first step-parallel
	holds   bool         // of a branch: it may have portions of the budget that it has not used
	path    string       // of a branch: its place among all branches of the run
	forks   int          // step-parallel forms that were entered
	defined map[int]bool // globals that a branch has set

	fuel     int64 // steps until the limits are looked at
	granted  int64 // steps that were put into fuel
	alloc    int64
	deadline time.Time
}

// Markers are returned in place of a value, and are none of the language: the frame
// is set up, and whoever waits for the value goes on with it.
type (
	tailMark struct{ _ byte } // for enter: a call of m.tail
	turnMark struct{ _ byte } // for a loop: the next turn
)

var (
	tailCall form.Value = &tailMark{}
	nextTurn form.Value = &turnMark{}
)

// run calls a function in a machine of its own.
func (w *world) run(ctx context.Context, env Env, fn *Func, args []form.Value) (form.Value, error) {
	cfg := &w.unit.in.cfg
	m := &machine{world: w, globals: w.globals, ctx: ctx, host: cfg.Host, limits: env.Limits.or(cfg.Limits), context: env.Context}
	if env.Host != nil {
		m.host = env.Host
	}
	m.begin()
	outer, _ := ctx.Value(callerKey{}).(caller)
	m.root.nest = outer.nest
	err := m.refuel()
	var v form.Value
	if err == nil {
		v, err = m.apply(&m.root, fn, args)
	}
	if err == nil {
		err = lib.Weigh(m, v) // whoever is given it will go through it
	}
	if env.Used != nil {
		*env.Used = Usage{Steps: m.granted - m.fuel, Alloc: m.alloc}
	}
	if err != nil {
		return nil, m.last(failed(err, nil))
	}
	return v, nil
}

// last is the error that a run ends with. What it carries somebody will go through.
func (m *machine) last(f *failure) *form.Error {
	e := f.value()
	if !f.fatal && lib.Weigh(m, e.Data) != nil {
		bare := *e
		bare.Data = nil
		return &bare
	}
	return e
}

func (m *machine) begin() {
	m.root.m = m
	m.deadline = time.Now().Add(m.limits.Time)
}

// extend makes the frame of a call in f.
func (f *frame) extend() (*frame, error) {
	if f.depth >= f.m.limits.Depth {
		return nil, exhausted("depth", f.m.limits.Depth, "calls are more than %d deep", f.m.limits.Depth)
	}
	f.next = &frame{m: f.m, slots: make([]form.Value, firstSlots), depth: f.depth + 1, prev: f}
	return f.next, nil
}

// room makes sure that there are n slots.
func (f *frame) room(n int) error {
	more := n - len(f.slots)
	if more <= 0 {
		return nil
	}
	if err := f.m.Alloc(int64(more) * 16); err != nil {
		return err
	}
	f.slots = slices.Grow(f.slots, more)[:n]
	return nil
}

// enter runs a function whose arguments are in f, and those that it ends in.
func (f *frame) enter(fn *Func) (form.Value, error) {
	m := f.m
	for {
		p := fn.p
		f.fn = fn
		if m.fuel -= p.cost; m.fuel < 0 {
			if err := m.refuel(); err != nil {
				return nil, err
			}
		}
		if f.nest = f.prev.nest + p.nest; f.nest > maxNest {
			return nil, exhausted("depth", m.limits.Depth, "calls are too deep for what stands in them")
		}
		if len(f.slots) < p.slots {
			if err := f.room(p.slots); err != nil {
				return nil, err
			}
		}
		if p.bind != nil || f.argc != p.params {
			if err := f.arguments(p); err != nil {
				return nil, err
			}
		}
		v, err := p.body(f)
		if err != nil {
			return nil, err
		}
		if _, ok := v.(*tailMark); ok {
			if p.result == nil || m.tail.p == p {
				fn = m.tail
				continue
			}
			if v, err = f.forward(m.tail); err != nil {
				return nil, err
			}
		}
		if p.result != nil {
			if err := p.result(m, v); err != nil {
				return nil, err
			}
		}
		return v, nil
	}
}

// forward makes a tail call one that returns, because what it returns is checked.
func (f *frame) forward(fn *Func) (form.Value, error) {
	return f.m.apply(f, fn, slices.Clone(f.slots[:f.argc]))
}

// arguments counts them, and takes them apart.
func (f *frame) arguments(p *proto) error {
	if f.argc < p.params || f.argc > p.params && !p.rest {
		return arity(p.title(), p.params, p.params, p.rest, f.argc)
	}
	for _, bind := range p.bind {
		if err := bind(f); err != nil {
			return err
		}
	}
	return nil
}

func (p *proto) title() string {
	if p.name == "" {
		return "fn"
	}
	return p.name
}

func arity(name string, least, most int, open bool, n int) *form.Error {
	e := form.Errorf("ArityMismatch", "")
	switch {
	case open || most < 0:
		e.Message = fmt.Sprintf("%s takes at least %d, and was given %d", name, least, n)
	case least != most:
		e.Message = fmt.Sprintf("%s takes %d to %d arguments, and was given %d", name, least, most, n)
	default:
		e.Message = fmt.Sprintf("%s takes %d, and was given %d", name, least, n)
	}
	return e
}

// apply calls a value from frame f.
func (m *machine) apply(f *frame, fv form.Value, args []form.Value) (form.Value, error) {
	fn, ok := fv.(*Func)
	if !ok {
		return m.applyOther(f, fv, args)
	}
	if fn.w.unit != m.unit {
		return nil, form.Errorf("TypeError", "%s is a function of another program", fn.p.title())
	}
	c := f.next
	if c == nil {
		var err error
		if c, err = f.extend(); err != nil {
			return nil, err
		}
	}
	if err := c.room(len(args)); err != nil {
		return nil, err
	}
	copy(c.slots, args)
	c.argc = len(args)
	return c.enter(fn)
}

// applyOther calls what can be called and is not a function of the program.
func (m *machine) applyOther(f *frame, fv form.Value, args []form.Value) (form.Value, error) {
	switch fn := fv.(type) {
	case *lib.Builtin:
		return m.builtin(f, fn, args)
	case form.Keyword, *form.Map, form.Vector:
		if len(args) < 1 || len(args) > 2 {
			return nil, arity(brief(fv), 1, 2, false, len(args))
		}
		switch fn := fn.(type) {
		case form.Keyword:
			return field(args[0], fn, args[1:])
		case *form.Map:
			if isCollection(args[0]) { // a key that takes long to compare
				return m.builtin(f, m.unit.in.names["get"], append([]form.Value{fn}, args...))
			}
			return field(fn, args[0], args[1:])
		case form.Vector:
			return element(fn, args[0], args[1:])
		}
	}
	return nil, form.Errorf("TypeError", "%s is not a function: it cannot be called", brief(fv))
}

func (m *machine) builtin(f *frame, b *lib.Builtin, args []form.Value) (form.Value, error) {
	if len(args) < b.Min || b.Max >= 0 && len(args) > b.Max {
		return nil, arity(b.Name, b.Min, b.Max, false, len(args))
	}
	if m.fuel--; m.fuel < 0 {
		if err := m.refuel(); err != nil {
			return nil, err
		}
	}
	m.cur = f
	return b.Fn(m, args)
}

// Apply is how the library calls functions.
func (m *machine) Apply(fn form.Value, args ...form.Value) (form.Value, error) {
	cur := m.cur
	v, err := m.apply(cur, fn, args)
	m.cur = cur
	return v, err
}

// Alloc counts bytes.
func (m *machine) Alloc(n int64) error {
	if m.alloc += n; n >= 0 && m.alloc >= 0 && m.alloc <= m.limits.Alloc {
		return nil
	}
	if m.branch() && n >= 0 && m.alloc >= 0 {
		const portion = 64 << 10
		need := m.alloc - m.limits.Alloc
		m.limits.Alloc += m.take(allocOf, need, need+portion)
		if m.alloc <= m.limits.Alloc {
			return nil
		}
		if err := m.cancelled(); err != nil {
			return err
		}
	}
	most := m.whole().Alloc
	return exhausted("alloc", most, "more than %d bytes are taken", most)
}

// branch reports whether m runs a branch of a step-parallel.
func (m *machine) branch() bool { return m.path != "" }

// whole returns the limits of the run.
func (m *machine) whole() Limits {
	if m.branch() {
		return m.group.limits
	}
	return m.limits
}

// setGlobal defines a global name.
func (m *machine) setGlobal(i int, v form.Value) {
	m.globals[i] = v
	if !m.branch() {
		return
	}
	if m.defined == nil {
		m.defined = map[int]bool{}
	}
	m.defined[i] = true
}

// Step counts steps. Without any it looks at the clock at once.
func (m *machine) Step(n int64) error {
	if m.fuel -= n; m.fuel < 0 || n == 0 {
		return m.refuel()
	}
	return nil
}

// refuel looks at the limits of steps and time.
func (m *machine) refuel() error {
	const often = 1024 // steps between two looks at the clock
	used := m.granted - m.fuel
	if m.branch() && used+often > m.limits.Steps {
		m.limits.Steps += m.take(stepsOf, max(0, used-m.limits.Steps), used+often-m.limits.Steps)
	}
	if used > m.limits.Steps {
		if err := m.cancelled(); err != nil {
			return err
		}
		most := m.whole().Steps
		return exhausted("steps", most, "more than %d steps are taken", most)
	}
	m.granted = min(used+often, m.limits.Steps)
	m.fuel = m.granted - used
	if !time.Now().Before(m.deadline) {
		return exhausted("time", m.limits.Time.Milliseconds(), "it takes longer than %s", m.limits.Time)
	}
	return m.cancelled()
}

// cancelled returns an error if the context of the run has ended.
func (m *machine) cancelled() error {
	if err := m.ctx.Err(); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			e := exhausted("time", nil, "it takes longer than the caller waits")
			e.err.Cause = err
			return e
		}
		return &failure{fatal: true, err: &form.Error{Kind: "Cancelled", Message: "the caller does not want it any more", Cause: context.Cause(m.ctx)}}
	}
	return nil
}

// call asks the host.
func (m *machine) call(id string, input form.Value) (form.Value, error) {
	if m.host == nil {
		e := form.Errorf("SecurityViolation", "%s is called, and this program may call nothing", id)
		e.Host = true
		return nil, e
	}
	if err := lib.Weigh(m, input); err != nil {
		return nil, err
	}
	ctx, end := context.WithDeadline(context.WithValue(m.ctx, callerKey{}, caller{m.cur.nest + hostNest, m.branchName()}), m.deadline)
	defer end()
	m.release()
	v, err := m.host.Call(ctx, id, input)
	if late := m.refuel(); late != nil {
		return nil, late
	}
	if err == nil {
		return v, nil
	}
	if _, ok := errors.AsType[*failure](err); ok {
		return nil, err
	}
	if e, ok := errors.AsType[*form.Error](err); ok {
		ofHost := *e
		ofHost.Host = true
		return nil, &ofHost
	}
	kind := "ApplicationError"
	switch {
	case errors.Is(err, fault.NotFound):
		kind = "UnknownCapability"
	case errors.Is(err, fault.Denied):
		kind = "SecurityViolation"
	case errors.Is(err, fault.Invalid):
		kind = "InvalidArgument"
	}
	return nil, &form.Error{Kind: kind, Message: id + ": " + err.Error(), Cause: err, Host: true}
}
