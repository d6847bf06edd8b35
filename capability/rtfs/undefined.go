package rtfs

import "slices"

// Undefined returns the names that a program uses but neither it nor the library defines,
// sorted. Evaluating one of them is an error.
func (p *Program) Undefined() []string {
	var names []string
	for name, i := range p.unit.index {
		if _, ok := p.unit.initial[i].(unbound); ok && !p.unit.defs[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
