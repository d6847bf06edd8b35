package rtfs

import (
	"context"

	"glasshouse/capability/rtfs/form"
)

const (
	// maxExpansions is the maximum number of macro calls in a text.
	maxExpansions = 10_000
	// maxExpanded is the maximum number of nodes that macros produce.
	maxExpanded = 1 << 20
)

// An expander runs macros while a text is compiled.
type expander struct {
	machine
	calls, nodes int
	origin       map[*form.Value]*form.Node // nodes of the source, as opposed to those produced by macros
}

// defmacro compiles (defmacro name [params] body…). Subsequent calls of the name are replaced
// by the result of the macro.
func (c *compiler) defmacro(n *form.Node, _ spot) code {
	if len(n.Items) < 4 || !isName(n.Items[1]) {
		return c.fail(n, "defmacro takes a name, parameters and a body")
	}
	name := n.Items[1].Atom.(form.Symbol)
	if special, ok := formNamed(string(name)); ok && special.fixed {
		return c.fail(n.Items[1], "%s cannot be a macro: it is a form of the language", name)
	}
	at := 2
	if _, doc := n.Items[2].Atom.(string); doc {
		at = 3
	}
	top := newScope(nil, "", c.depth)
	make := c.closure(n, at, spot{scope: top}, string(name), "")
	if c.err != nil {
		return nil
	}
	f := &frame{m: &machine{world: &world{unit: c.unit}, limits: c.in.cfg.Limits}, slots: []form.Value{nil}}
	fn, err := make(f)
	if err != nil {
		return c.fail(n, "%s", reason(err))
	}
	c.macros[string(name)] = fn.(*Func)
	return constant(name)
}

// expanded compiles the expansion of a macro call.
func (c *compiler) expanded(n *form.Node, macro *Func, p spot) code {
	if c.expand == nil {
		c.expand = newExpander(c.unit)
	}
	made, err := c.expand.call(n, macro)
	if err != nil {
		e := failed(err, n).value()
		return c.fail(n, "macro %s: %s: %s", macro.p.title(), e.Kind, e.Message)
	}
	return c.expr(made, p)
}

func newExpander(u *unit) *expander {
	x := &expander{origin: map[*form.Value]*form.Node{}}
	x.machine = machine{world: &world{unit: u}, ctx: context.Background(), limits: u.in.cfg.Limits}
	x.root.m = &x.machine
	x.begin()
	return x
}

// call runs a macro with the unevaluated arguments of its call.
func (x *expander) call(n *form.Node, macro *Func) (*form.Node, error) {
	if x.calls++; x.calls > maxExpansions {
		return nil, form.Errorf("ParseError", "macros are expanded more than %d times", maxExpansions)
	}
	x.globals = append(x.globals, x.unit.initial[len(x.globals):]...)
	args := make([]form.Value, 0, len(n.Items)-1)
	for _, item := range n.Items[1:] {
		if x.count(item); x.nodes > maxExpanded {
			return nil, form.Errorf("ParseError", "macros are given more than %d nodes", maxExpanded)
		}
		args = append(args, x.value(item))
	}
	v, err := x.apply(&x.root, macro, args)
	if err != nil {
		return nil, err
	}
	return x.node(v, n, 0)
}

// count counts a node and its descendants.
func (x *expander) count(n *form.Node) {
	x.nodes++
	for _, item := range n.Items {
		if x.nodes <= maxExpanded {
			x.count(item)
		}
	}
}

// value returns a node's value and records the node, so that node can restore its position.
func (x *expander) value(n *form.Node) form.Value {
	v := n.Value()
	x.remember(v, n)
	return v
}

func (x *expander) remember(v form.Value, n *form.Node) {
	if n.Kind == form.MapNode {
		return
	}
	items, _ := sequence(v)
	if len(items) == 0 {
		return
	}
	x.origin[&items[0]] = n
	for i, item := range items {
		x.remember(item, n.Items[i])
	}
}

// node converts a value to a node. Its position is that of the macro call, unless it is an
// unchanged part of the call.
func (x *expander) node(v form.Value, at *form.Node, depth int) (*form.Node, error) {
	if x.nodes++; x.nodes > maxExpanded || depth > maxDepth {
		return nil, form.Errorf("ParseError", "the expansion exceeds %d nodes or %d levels", maxExpanded, maxDepth)
	}
	n := &form.Node{Pos: at.Pos, End: at.End}
	var items []form.Value
	switch v := v.(type) {
	case form.List:
		n.Kind, items = form.ListNode, v
	case form.Vector:
		n.Kind, items = form.VectorNode, v
	case *form.Map:
		n.Kind = form.MapNode
		for k, e := range v.All() {
			items = append(items, k, e)
		}
	case nil, bool, int64, float64, string, form.Keyword, form.Symbol, form.Resource:
		n.Atom = v
	default:
		return nil, form.Errorf("TypeError", "the expansion contains a value without source form: %s", brief(v))
	}
	if len(items) > 0 {
		if was, ok := x.origin[&items[0]]; ok && len(was.Items) == len(items) && was.Kind == n.Kind {
			return was, nil
		}
	}
	for _, item := range items {
		child, err := x.node(item, at, depth+1)
		if err != nil {
			return nil, err
		}
		n.Items = append(n.Items, child)
	}
	return n, nil
}

// quote compiles 'x.
func (c *compiler) quote(n *form.Node, _ spot) code {
	if len(n.Items) != 2 {
		return c.fail(n, "quote takes one form")
	}
	return constant(n.Items[1].Value())
}

// unquote reports an unquote outside of a quasi-quotation.
func (c *compiler) unquote(n *form.Node, _ spot) code {
	return c.fail(n, "%s is only valid in a quasi-quotation", headOf(n))
}

// quasiquote compiles `x: the form x with its unquoted parts evaluated.
func (c *compiler) quasiquote(n *form.Node, p spot) code {
	if len(n.Items) != 2 {
		return c.fail(n, "quasiquote takes one form")
	}
	return c.template(n.Items[1], p.inner(), 1)
}

// template compiles a form inside level nested quasi-quotations.
func (c *compiler) template(n *form.Node, p spot, level int) code {
	if c.depth++; c.depth > maxDepth {
		return c.fail(n, "forms are nested more than %d levels deep", maxDepth)
	}
	defer func() { c.depth-- }()
	c.count++
	p.nest = max(p.nest, c.depth-p.start)
	switch {
	case n.Kind == form.AtomNode:
		return constant(n.Atom)
	case n.Kind == form.MapNode:
		parts := c.templates(n.Items, p, level)
		return func(f *frame) (form.Value, error) {
			pairs, err := parts(f)
			if err != nil {
				return nil, err
			}
			v, err := f.m.builtin(f, c.in.names["hash-map"], pairs)
			if err != nil {
				return nil, failed(err, n)
			}
			return v, nil
		}
	}
	switch head := headOf(n); {
	case n.Kind == form.ListNode && len(n.Items) == 2 && head == "unquote" && level == 1:
		return c.expr(n.Items[1], p)
	case n.Kind == form.ListNode && len(n.Items) == 2 && head == "unquote-splicing" && level == 1:
		return c.fail(n, "~@ is only valid in a list, a vector or a map")
	case n.Kind == form.ListNode && (head == "unquote" || head == "unquote-splicing"):
		level--
	case n.Kind == form.ListNode && head == "quasiquote":
		level++
	}
	parts := c.templates(n.Items, p, level)
	list := n.Kind == form.ListNode
	return func(f *frame) (form.Value, error) {
		all, err := parts(f)
		if list {
			return form.List(all), err
		}
		return form.Vector(all), err
	}
}

// templates compiles the items of a collection, including splices.
func (c *compiler) templates(nodes []*form.Node, p spot, level int) func(f *frame) ([]form.Value, error) {
	parts, splice := make([]code, len(nodes)), make([]bool, len(nodes))
	for i, n := range nodes {
		if n.Kind == form.ListNode && len(n.Items) == 2 && headOf(n) == "unquote-splicing" && level == 1 {
			parts[i], splice[i] = c.expr(n.Items[1], p), true
		} else {
			parts[i] = c.template(n, p, level)
		}
	}
	return func(f *frame) ([]form.Value, error) {
		all := make([]form.Value, 0, len(parts))
		for i, part := range parts {
			v, err := part(f)
			if err != nil {
				return nil, err
			}
			more := []form.Value{v}
			if splice[i] {
				var ok bool
				if more, ok = sequence(v); !ok {
					return nil, failed(form.Errorf("TypeError", "~@ takes a vector or a list, got %s", brief(v)), nodes[i])
				}
			}
			if err := f.m.Alloc(int64(len(more)) * 16); err != nil {
				return nil, failed(err, nodes[i])
			}
			all = append(all, more...)
		}
		return all, nil
	}
}
