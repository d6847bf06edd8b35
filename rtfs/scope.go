package rtfs

import "glasshouse/rtfs/form"

// A scope is what names mean in one function, while it is compiled.
type scope struct {
	outer  *scope
	self   string           // what the function is bound to; "": nothing
	vars   []string         // that are visible, the innermost last
	names  map[string][]int // the slots of each, the innermost last
	height int              // slots in use
	slots  int              // the most that were in use at once
	sites  []ref            // where a closure finds what it uses of the functions around it
	caught map[string]int   // the index of each site
	start  int              // how deeply the function itself stands
	nest   int              // how deeply its forms stand in it
}

// A ref is where a value is.
type ref struct {
	in    place
	index int
}

type place uint8

const (
	inSlot     place = iota // of the frame
	inCaptured              // of the function
	inSelf                  // the function itself
)

func newScope(outer *scope, self string, start int) *scope {
	return &scope{outer: outer, self: self, start: start, names: map[string][]int{}, caught: map[string]int{}}
}

// find says where a name's value is. What it needs of outer functions it captures.
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

// declare makes a variable.
func (s *scope) declare(name string) int {
	slot := s.reserve()
	s.vars = append(s.vars, name)
	s.names[name] = append(s.names[name], slot)
	return slot
}

// reserve takes a slot without a name.
func (s *scope) reserve() int {
	s.height++
	s.slots = max(s.slots, s.height)
	return s.height - 1
}

// A mark is how far a scope was.
type mark struct{ vars, height int }

func (s *scope) mark() mark { return mark{len(s.vars), s.height} }

// release ends the variables that came since.
func (s *scope) release(m mark) {
	for _, name := range s.vars[m.vars:] {
		slots := s.names[name]
		s.names[name] = slots[:len(slots)-1]
	}
	s.vars, s.height = s.vars[:m.vars], m.height
}

// A spot is where a form stands.
type spot struct {
	*scope
	tail bool    // the function returns what the form is
	loop *target // the loop does
}

// inner is a spot whose value is needed for something.
func (p spot) inner() spot { return spot{scope: p.scope} }

// read is the code of a variable.
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

// value is what a closure that is made in f captures.
func (r ref) value(f *frame) form.Value {
	switch r.in {
	case inCaptured:
		return f.fn.captured[r.index]
	case inSelf:
		return f.fn
	}
	return f.slots[r.index]
}
