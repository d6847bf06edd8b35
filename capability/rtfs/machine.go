package rtfs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/rtfs/lib"
	"glasshouse/fault"
)

// A code is a compiled form: it runs in a frame and returns the value of the form.
type code func(f *frame) (form.Value, error)

// A proto is a compiled function.
type proto struct {
	name   string
	params int                    // number of required parameters
	rest   bool                   // accepts further arguments
	bind   []func(f *frame) error // destructures arguments; nil: parameters are plain names
	result checker                // checks the result; nil: no check
	body   code
	slots  int   // number of slots of its frame
	cost   int64 // in steps
	nest   int   // nesting depth of its forms
	sites  []ref // where a closure finds the variables of enclosing functions
}

// A world holds the global names of a program.
type world struct {
	unit    *unit
	globals []form.Value
}

// unbound is the value of a global name before its def.
type unbound struct{}

// A frame holds the variables of one call. Frames are linked and reused by the next call at the
// same depth. Closures copy the values that they use.
type frame struct {
	m          *machine
	fn         *Func
	slots      []form.Value // the first argc are the arguments on entry
	argc       int
	nest       int // nesting depth of forms, summed over this frame and its callers
	depth      int64
	prev, next *frame
}

const (
	firstSlots = 8 // slots of every frame; up to as many arguments need no check

	// maxNest bounds the Go stack. Each nested form needs a few hundred bytes of it, and the Go
	// runtime ends a process whose stack exceeds 1 GB (runtime/debug.SetMaxStack).
	maxNest   = 1 << 19
	frameNest = 8 // nesting counted for a call in addition to its forms
)

// A caller describes the calling program in the context of a host call: its use of the stack,
// for programs that the host runs, and its branch.
type caller struct {
	nest   int
	branch string
}

type callerKey struct{}

// hostNest is the nesting counted for the host's own use of the stack.
const hostNest = 256

// BranchOf returns the branch of a step-parallel that calls a Host, or "". The names of
// branches are the same in each run of a program.
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
	limits  Limits // for a branch: the portions that it has taken of the budget
	context *form.Map
	written []form.Value // keys of the context that a branch of a step-parallel has set
	root    frame
	cur     *frame       // current frame of a builtin call
	tail    *Func        // function to call when a function returns tailCall
	args    []form.Value // stack of arguments being evaluated
	names   int          // number of symbols created by gensym

	group   *group       // group of the run; nil before its first step-parallel
	holds   bool         // for a branch: it may hold unused portions of the budget
	path    string       // for a branch: its position among all branches of the run
	forks   int          // step-parallel forms that were entered
	defined map[int]bool // globals that a branch has set

	fuel     int64 // steps until the next check of the limits
	granted  int64 // steps added to fuel
	alloc    int64
	deadline time.Time
}

// Markers are returned in place of a value. They are not values of the language: the frame is
// prepared, and the receiver of the marker continues with it.
type (
	tailMark struct{ _ byte } // for enter: call m.tail
	turnMark struct{ _ byte } // for a loop: next iteration
)

var (
	tailCall form.Value = &tailMark{}
	nextTurn form.Value = &turnMark{}
)

// run calls a function in a new machine.
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
		err = lib.Weigh(m, v) // the caller may traverse it
	}
	if env.Used != nil {
		*env.Used = Usage{Steps: m.granted - m.fuel, Alloc: m.alloc}
	}
	if err != nil {
		return nil, m.last(failed(err, nil))
	}
	return v, nil
}

// last returns the error that a run ends with. It removes the data of the error if their text
// would exceed the limits, because the caller may print them.
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

// extend returns the frame for a call from f.
func (f *frame) extend() (*frame, error) {
	if f.depth >= f.m.limits.Depth {
		return nil, exhausted("depth", f.m.limits.Depth, "calls are nested more than %d levels deep", f.m.limits.Depth)
	}
	f.next = &frame{m: f.m, slots: make([]form.Value, firstSlots), depth: f.depth + 1, prev: f}
	return f.next, nil
}

// room grows the frame to at least n slots.
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

// enter runs a function whose arguments are in f, and the tail calls that it ends with.
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
			return nil, exhausted("depth", m.limits.Depth, "calls and forms are nested too deeply")
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

// forward performs a tail call as an ordinary call, because the result must be checked.
func (f *frame) forward(fn *Func) (form.Value, error) {
	return f.m.apply(f, fn, slices.Clone(f.slots[:f.argc]))
}

// arguments checks the number of arguments and destructures them.
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
		e.Message = fmt.Sprintf("%s takes at least %d, got %d", name, least, n)
	case least != most:
		e.Message = fmt.Sprintf("%s takes %d to %d arguments, got %d", name, least, most, n)
	default:
		e.Message = fmt.Sprintf("%s takes %d, got %d", name, least, n)
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

// applyOther calls a value that is callable but not a function of the program.
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
			if isCollection(args[0]) { // comparing it may take long
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

// Apply implements lib.Call.
func (m *machine) Apply(fn form.Value, args ...form.Value) (form.Value, error) {
	cur := m.cur
	v, err := m.apply(cur, fn, args)
	m.cur = cur
	return v, err
}

// Alloc implements lib.Call.
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
	most := m.runLimits().Alloc
	return exhausted("alloc", most, "the program allocates more than %d bytes", most)
}

// branch reports whether m runs a branch of a step-parallel.
func (m *machine) branch() bool { return m.path != "" }

// runLimits returns the limits of the run.
func (m *machine) runLimits() Limits {
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

// Step implements lib.Call. With n = 0 it checks the limits immediately.
func (m *machine) Step(n int64) error {
	if m.fuel -= n; m.fuel < 0 || n == 0 {
		return m.refuel()
	}
	return nil
}

// refuel checks the limits of steps and time.
func (m *machine) refuel() error {
	const often = 1024 // steps between two checks of the clock
	used := m.granted - m.fuel
	if m.branch() && used+often > m.limits.Steps {
		m.limits.Steps += m.take(stepsOf, max(0, used-m.limits.Steps), used+often-m.limits.Steps)
	}
	if used > m.limits.Steps {
		if err := m.cancelled(); err != nil {
			return err
		}
		most := m.runLimits().Steps
		return exhausted("steps", most, "the program takes more than %d steps", most)
	}
	m.granted = min(used+often, m.limits.Steps)
	m.fuel = m.granted - used
	if !time.Now().Before(m.deadline) {
		return exhausted("time", m.limits.Time.Milliseconds(), "the program runs longer than %s", m.limits.Time)
	}
	return m.cancelled()
}

// cancelled returns an error if the context of the run has ended.
func (m *machine) cancelled() error {
	if err := m.ctx.Err(); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			e := exhausted("time", nil, "the deadline of the caller has passed")
			e.err.Cause = err
			return e
		}
		return &failure{fatal: true, err: &form.Error{Kind: "Cancelled", Message: "the caller cancelled the run", Cause: context.Cause(m.ctx)}}
	}
	return nil
}

// call calls a capability through the host.
func (m *machine) call(id string, input form.Value) (form.Value, error) {
	if m.host == nil {
		e := form.Errorf("SecurityViolation", "%s cannot be called: the program has no host", id)
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
