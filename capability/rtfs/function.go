package rtfs

import (
	"slices"

	"glasshouse/capability/rtfs/form"
)

// isFn reports whether a node is (fn …).
func isFn(n *form.Node) bool {
	return n.Kind == form.ListNode && len(n.Items) > 0 && (n.Items[0].Atom == form.Symbol("fn") || n.Items[0].Atom == form.Symbol("λ"))
}

// fn compiles (fn name? [params] body…).
func (c *compiler) fn(n *form.Node, p spot) code { return c.function(n, p, "") }

// function compiles a fn that is bound to a name and may refer to itself by that name.
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

// closure compiles a function whose parameters are the item at index at.
func (c *compiler) closure(n *form.Node, at int, p spot, name, self string) code {
	var sig signature
	if len(n.Items) > at+1 && sig.read(n.Items[at]) {
		at++ // {:type …} before the parameters
	}
	var params []*form.Node
	if len(n.Items) > at+1 && n.Items[at].Kind == form.MapNode {
		params = n.Items[at : at+1] // (defn f {:keys [a]} …): one map
	} else {
		var ok bool
		params, ok = c.brackets(n, at)
		if !ok {
			return nil
		}
	}
	s := newScope(p.scope, self, c.depth)
	fn := &proto{name: name}
	since := c.count
	body := n.Items[at+1:]
	if len(body) > 1 && sig.read(body[0]) {
		body = body[1:] // {:type …} after the parameters
	}
	c.parameters(fn, s, params, sig.args)
	fn.result = c.check(sig.result, "what "+fn.title()+" returns")
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

// A signature is {:type {:args [T …] :return T}}, the types of a function in one map.
type signature struct {
	args   []*form.Node
	result *form.Node
}

// read parses a signature. It reports whether the map is one.
func (s *signature) read(n *form.Node) bool {
	types := valueAt(n, "type")
	if types == nil || types.Kind != form.MapNode {
		return false
	}
	args, result := valueAt(types, "args"), valueAt(types, "return")
	if args == nil && result == nil {
		return false
	}
	if args != nil {
		s.args = args.Items
	}
	s.result = result
	return true
}

// valueAt returns the node at a keyword of a map literal, or nil.
func valueAt(n *form.Node, key form.Keyword) *form.Node {
	if n.Kind != form.MapNode {
		return nil
	}
	for i := 0; i+1 < len(n.Items); i += 2 {
		if n.Items[i].Atom == key {
			return n.Items[i+1]
		}
	}
	return nil
}

// capture copies the variables of the enclosing functions that the closure uses from frame f.
func (g *Func) capture(f *frame) {
	for i, site := range g.p.sites {
		g.captured[i] = site.value(f)
	}
}

// resultType returns the type at the beginning of a body, and the remaining body. A type is
// written : T, or as the keyword of a type followed by more forms.
func (c *compiler) resultType(body []*form.Node) (*form.Node, []*form.Node) {
	switch {
	case len(body) > 1 && body[0].Atom == form.Symbol(":"):
		return body[1], body[2:]
	case len(body) > 1:
		if isTypeKeyword(body[0]) {
			return body[0], body[1:]
		}
	}
	return nil, body
}

// typeKeywords lists the types that can be written without a separate colon.
var typeKeywords = []form.Keyword{
	"int", "integer", "float", "number", "string", "bool", "boolean", "nil", "keyword", "symbol", "any", "never",
	"int?", "float?", "number?", "string?", "bool?", "keyword?", "symbol?", "vector", "list", "map",
}

// parameters declares the parameters. Patterns and types add code that runs before the body.
//
// A type follows its parameter, as in [s : string] or [s :string]. If the first item is a type,
// the types precede the parameters: [:string s :int n]. signed is the types of {:type …}, or
// nil.
func (c *compiler) parameters(fn *proto, s *scope, items, signed []*form.Node) {
	type param struct {
		pattern, typ *form.Node
	}
	var all []param
	var rest *param
	before := len(items) > 0 && isTypeKeyword(items[0])
	for len(items) > 0 {
		if before && isTypeKeyword(items[0]) {
			if len(items) < 2 || isTypeKeyword(items[1]) || items[1].Atom == form.Symbol("&") {
				c.fail(items[0], "a parameter must follow the type %s", brief(items[0].Value()))
				return
			}
			all = append(all, param{items[1], items[0]})
			items = items[2:]
			continue
		}
		if items[0].Atom == form.Symbol("&") {
			if len(items) < 2 || !isName(items[1]) {
				c.fail(items[0], "& must be followed by exactly one name")
				return
			}
			typ, after := c.annotation(items[1:], true)
			if len(after) > 0 {
				c.fail(after[0], "no parameter may follow the rest parameter")
				return
			}
			rest = &param{items[1], typ}
			break
		}
		typ, after := c.annotation(items, !before)
		all = append(all, param{items[0], typ})
		items = after
	}
	fn.params, fn.rest = len(all), rest != nil
	if signed != nil && len(signed) != len(all) {
		c.fail(signed[0], "%s has %d parameters, and :args names %d types", fn.title(), len(all), len(signed))
		return
	}
	for i, typ := range signed {
		if all[i].typ == nil {
			all[i].typ = typ
		}
	}
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
			bind := c.parameter(a.pattern, p)
			fn.bind = append(fn.bind, func(f *frame) error { return bind(f, f.slots[i]) })
		}
	}
}

func isTypeKeyword(n *form.Node) bool {
	k, ok := n.Atom.(form.Keyword)
	return ok && slices.Contains(typeKeywords, k)
}

// isName reports whether a pattern is only a name.
func isName(n *form.Node) bool {
	name, ok := n.Atom.(form.Symbol)
	return ok && name != ":" && name != "&"
}

// restOf binds a list of the arguments from index i.
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

// letfn compiles (letfn [(name [params] body…) …] body…). The functions can refer to each
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
		for _, slot := range slots { // all functions exist at this point
			f.slots[slot].(*Func).capture(f)
		}
		return body(f)
	}
}
