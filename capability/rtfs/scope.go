package rtfs

import "glasshouse/capability/rtfs/form"

// A scope resolves names in one function during compilation.
type scope struct {
	outer  *scope
	self   string           // name that the function is bound to; "": none
	vars   []string         // visible variables, the innermost last
	names  map[string][]int // slots of each name, the innermost last
	height int              // slots in use
	slots  int              // maximum of height
	sites  []ref            // where a closure finds the variables of enclosing functions
	caught map[string]int   // index of each site
	start  int              // nesting depth of the function itself
	nest   int              // nesting depth of its forms
}

// A ref is the location of a value.
type ref struct {
	in    location
	index int
}

type location uint8

const (
	inSlot     location = iota // slot of the frame
	inCaptured                 // captured variable of the function
	inSelf                     // the function itself
)

func newScope(outer *scope, self string, start int) *scope {
	return &scope{outer: outer, self: self, start: start, names: map[string][]int{}, caught: map[string]int{}}
}

// find returns the location of a name. It captures variables of enclosing functions.
func (s *scope) find(name string) (ref, bool) {
	if s == nil {
		return ref{}, false
	}
	if slots := s.names[name]; len(slots) > 0 {
		return ref{inSlot, slots[len(slots)-1]}, true
	}
	if name == s.self {
		return ref{in: inSelf}, true
	}
	if i, ok := s.caught[name]; ok {
		return ref{inCaptured, i}, true
	}
	outer, ok := s.outer.find(name)
	if !ok {
		return ref{}, false
	}
	s.caught[name] = len(s.sites)
	s.sites = append(s.sites, outer)
	return ref{inCaptured, len(s.sites) - 1}, true
}

// declare declares a variable.
func (s *scope) declare(name string) int {
	slot := s.reserve()
	s.vars = append(s.vars, name)
	s.names[name] = append(s.names[name], slot)
	return slot
}

// reserve allocates a slot without a name.
func (s *scope) reserve() int {
	s.height++
	s.slots = max(s.slots, s.height)
	return s.height - 1
}

// A mark is a position in a scope, to which release returns.
type mark struct{ vars, height int }

func (s *scope) mark() mark { return mark{len(s.vars), s.height} }

// release ends the variables that were declared since m.
func (s *scope) release(m mark) {
	for _, name := range s.vars[m.vars:] {
		slots := s.names[name]
		s.names[name] = slots[:len(slots)-1]
	}
	s.vars, s.height = s.vars[:m.vars], m.height
}

// A spot is the context of a form.
type spot struct {
	*scope
	tail bool    // the form is in tail position of the function
	loop *target // the form is in tail position of the loop; nil: of none
}

// inner returns the context of a form that is not in tail position.
func (p spot) inner() spot { return spot{scope: p.scope} }

// read returns the code that reads a variable.
func (r ref) read() code {
	i := r.index
	switch r.in {
	case inCaptured:
		return func(f *frame) (form.Value, error) { return f.fn.captured[i], nil }
	case inSelf:
		return func(f *frame) (form.Value, error) { return f.fn, nil }
	}
	return func(f *frame) (form.Value, error) { return f.slots[i], nil }
}

// value returns the value that a closure created in f captures.
func (r ref) value(f *frame) form.Value {
	switch r.in {
	case inCaptured:
		return f.fn.captured[r.index]
	case inSelf:
		return f.fn
	}
	return f.slots[r.index]
}
