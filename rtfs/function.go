package rtfs

import (
	"slices"

	"glasshouse/rtfs/form"
)

// isFn reports whether a node is (fn …).
func isFn(n *form.Node) bool {
	return n.Kind == form.ListNode && len(n.Items) > 0 && (n.Items[0].Atom == form.Symbol("fn") || n.Items[0].Atom == form.Symbol("λ"))
}

// fn compiles (fn name? [params] body…).
func (c *compiler) fn(n *form.Node, p spot) code { return c.function(n, p, "") }

// function compiles a fn that is bound to a name, which it may refer to.
func (c *compiler) function(n *form.Node, p spot, name string) code {
	if c.err != nil {
		return nil
	}
	if len(n.Items) > 1 {
		if own, ok := n.Items[1].Atom.(form.Symbol); ok {
			return c.closure(n, 2, p, string(own), string(own))
		}
	}
	return c.closure(n, 1, p, name, name)
}

// closure compiles a function whose parameters are the item at an index.
func (c *compiler) closure(n *form.Node, at int, p spot, name, self string) code {
	params, ok := c.brackets(n, at)
	if !ok {
		return nil
	}
	s := newScope(p.scope, self, c.depth)
	fn := &proto{name: name}
	since := c.count
	c.parameters(fn, s, params)
	body := n.Items[at+1:]
	if typ, after := c.resultType(body); typ != nil {
		body = after
		fn.result = c.check(typ, "what "+fn.title()+" returns")
	}
	loop := &target{n: fn.params, rest: fn.rest, call: true}
	fn.body = c.body(n, body, spot{scope: s, tail: true, loop: loop})
	fn.slots, fn.nest, fn.sites = s.slots, s.nest+frameNest, s.sites
	fn.cost = c.cost(since)
	size := int64(64 + 16*len(fn.sites))
	return func(f *frame) (form.Value, error) {
		if err := f.m.Alloc(size); err != nil {
			return nil, failed(err, n)
		}
		g := &Func{p: fn, w: f.m.world}
		if len(fn.sites) > 0 {
			g.captured = make([]form.Value, len(fn.sites))
			g.capture(f)
		}
		return g, nil
	}
}

// capture copies what a closure uses of the frame it is made in.
func (g *Func) capture(f *frame) {
	for i, site := range g.p.sites {
		g.captured[i] = site.value(f)
	}
}

// resultType returns the type that a body begins with, if it does: : T, or the
// keyword of a type with something behind it.
func (c *compiler) resultType(body []*form.Node) (*form.Node, []*form.Node) {
	switch {
	case len(body) > 1 && body[0].Atom == form.Symbol(":"):
		return body[1], body[2:]
	case len(body) > 1:
		if k, ok := body[0].Atom.(form.Keyword); ok && slices.Contains(typeKeywords, k) {
			return body[0], body[1:]
		}
	}
	return nil, body
}

// typeKeywords are the types that may stand without a colon of their own.
var typeKeywords = []form.Keyword{
	"int", "integer", "float", "number", "string", "bool", "boolean", "nil", "keyword", "symbol", "any", "never",
	"int?", "float?", "number?", "string?", "bool?", "keyword?", "symbol?", "vector", "list", "map",
}

// parameters declares them. Where one is a pattern, or has a type, there is something
// to do before the body.
func (c *compiler) parameters(fn *proto, s *scope, items []*form.Node) {
	type param struct {
		pattern, typ *form.Node
	}
	var all []param
	var rest *param
	for len(items) > 0 {
		if items[0].Atom == form.Symbol("&") {
			if len(items) < 2 || !isName(items[1]) {
				c.fail(items[0], "a name belongs behind &, and nothing else")
				return
			}
			typ, after := c.annotation(items[1:], true)
			if len(after) > 0 {
				c.fail(after[0], "nothing may come after the rest of the arguments")
				return
			}
			rest = &param{items[1], typ}
			break
		}
		typ, after := c.annotation(items, true)
		all = append(all, param{items[0], typ})
		items = after
	}
	fn.params, fn.rest = len(all), rest != nil
	p := spot{scope: s}
	for _, a := range all {
		name := ""
		if isName(a.pattern) {
			name = string(a.pattern.Atom.(form.Symbol))
		}
		s.declare(name)
	}
	if rest != nil {
		s.declare(string(rest.pattern.Atom.(form.Symbol)))
		fn.bind = append(fn.bind, restOf(fn.params, c.check(rest.typ, brief(rest.pattern.Value()))))
	}
	for i, a := range all {
		if check := c.check(a.typ, brief(a.pattern.Value())); check != nil {
			fn.bind = append(fn.bind, func(f *frame) error {
				if err := check(f.m, f.slots[i]); err != nil {
					return failed(err, a.pattern)
				}
				return nil
			})
		}
	}
	for i, a := range all {
		if !isName(a.pattern) {
			bind := c.placed(a.pattern, p)
			fn.bind = append(fn.bind, func(f *frame) error { return bind(f, f.slots[i]) })
		}
	}
}

// isName reports whether a pattern is just a name.
func isName(n *form.Node) bool {
	name, ok := n.Atom.(form.Symbol)
	return ok && name != ":" && name != "&"
}

// restOf makes a list of the arguments from i on.
func restOf(i int, check checker) func(f *frame) error {
	return func(f *frame) error {
		if err := f.m.Alloc(int64(f.argc-i)*16 + 24); err != nil {
			return err
		}
		rest := form.List(slices.Clone(f.slots[i:f.argc]))
		f.slots[i] = rest
		if check == nil {
			return nil
		}
		for _, v := range rest {
			if err := check(f.m, v); err != nil {
				return err
			}
		}
		return nil
	}
}

// letfn compiles (letfn [(name [params] body…) …] body…), functions that know each
// other.
func (c *compiler) letfn(n *form.Node, p spot) code {
	fns, ok := c.brackets(n, 1)
	if !ok {
		return nil
	}
	defer p.release(p.mark())
	slots := make([]int, len(fns))
	for i, fn := range fns {
		if fn.Kind != form.ListNode || len(fn.Items) < 3 || !isName(fn.Items[0]) {
			return c.fail(fn, "letfn binds functions: (name [params] body…)")
		}
		slots[i] = p.declare(string(fn.Items[0].Atom.(form.Symbol)))
	}
	makers := make([]code, len(fns))
	for i, fn := range fns {
		makers[i] = c.closure(fn, 1, p, string(fn.Items[0].Atom.(form.Symbol)), "")
	}
	body := c.body(n, n.Items[2:], p)
	return func(f *frame) (form.Value, error) {
		for i, make := range makers {
			fn, err := make(f)
			if err != nil {
				return nil, err
			}
			f.slots[slots[i]] = fn
		}
		for _, slot := range slots { // now all of them are there
			f.slots[slot].(*Func).capture(f)
		}
		return body(f)
	}
}
