package rtfs

import "glasshouse/capability/rtfs/form"

// A later is a function that a let binds after other functions. Those functions may refer to it if
// its name has no other meaning in them.
type later struct {
	name   string
	value  *form.Node
	slot   int   // through which the preceding functions access it
	before []int // the slots of those functions
}

// bindings compiles the bindings of a let in order.
func (c *compiler) bindings(n *form.Node, items []*form.Node, p spot) []func(f *frame) error {
	ahead := c.ahead(items, p)
	var steps []func(f *frame) error
	if len(ahead) > 0 {
		steps = append(steps, func(f *frame) error {
			for _, l := range ahead {
				f.slots[l.slot] = nil
			}
			return nil
		})
	}
	for len(items) > 0 && c.err == nil {
		_, after := c.annotation(items, false)
		var value *form.Node
		if len(after) > 0 && isFn(after[0]) && isName(items[0]) {
			value = after[0]
		}
		if value != nil && len(ahead) > 0 && ahead[0].value == value {
			arrived := ahead[0]
			ahead = ahead[1:]
			step, rest := c.lending(n, items, ahead, p)
			steps, items = append(steps, step, arrived.arrive(p.names[arrived.name])), rest
			continue
		}
		lent := ahead
		if value == nil {
			lent = nil
		}
		step, rest := c.lending(n, items, lent, p)
		steps, items = append(steps, step), rest
	}
	return steps
}

// lending compiles a binding whose function may refer to later functions.
func (c *compiler) lending(n *form.Node, items []*form.Node, ahead []*later, p spot) (func(f *frame) error, []*form.Node) {
	for _, l := range ahead {
		p.names[l.name] = append(p.names[l.name], l.slot)
	}
	step, rest := c.binding(n, items, p, func() {
		for _, l := range ahead {
			p.names[l.name] = p.names[l.name][:len(p.names[l.name])-1]
		}
	})
	if slots := p.names[nameOf(items[0])]; len(slots) > 0 {
		for _, l := range ahead {
			l.before = append(l.before, slots[len(slots)-1])
		}
	}
	return step, rest
}

func nameOf(n *form.Node) string {
	name, _ := n.Atom.(form.Symbol)
	return string(name)
}

// arrive stores a later function into the closures of the preceding functions when it is bound.
func (l *later) arrive(slots []int) func(f *frame) error {
	if len(slots) == 0 {
		return nil
	}
	own := slots[len(slots)-1]
	return func(f *frame) error {
		f.slots[l.slot] = f.slots[own]
		for _, slot := range l.before {
			f.slots[slot].(*Func).capture(f)
		}
		return nil
	}
}

// maxAhead is the maximum number of later functions in a let. It bounds the time to
// resolve names.
const maxAhead = 256

// ahead returns the functions that a let binds after other functions.
func (c *compiler) ahead(items []*form.Node, p spot) (all []*later) {
	first, bound := true, map[string]bool{}
	for len(items) > 1 && len(all) < maxAhead {
		name := nameOf(items[0])
		_, after := c.annotation(items, false)
		if len(after) == 0 {
			break
		}
		if isFn(after[0]) && isName(items[0]) && name != "_" {
			if !first && !bound[name] && !c.means(name, p) {
				all = append(all, &later{name: name, value: after[0], slot: p.reserve()})
			}
			first = false
		}
		names(items[0], bound)
		items = after[1:]
	}
	return all
}

// names collects the names in a pattern.
func names(pattern *form.Node, all map[string]bool) {
	all[nameOf(pattern)] = true
	for _, item := range pattern.Items {
		names(item, all)
	}
}

// means reports whether a name is already defined.
func (c *compiler) means(name string, p spot) bool {
	if _, ok := p.find(name); ok {
		return true
	}
	_, library := c.in.names[name]
	return library || c.defs[c.module.qualified(name)] || c.module.only[name] != ""
}
