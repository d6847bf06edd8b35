package rtfs

import (
	"fmt"
	"slices"
	"strings"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/rtfs/lib"
)

// maxDepth is the maximum nesting depth of forms after macro expansion.
const maxDepth = 4 * form.MaxNesting

// A compiler generates code from nodes. It stops at the first error; the code that it returns
// afterwards is never run.
type compiler struct {
	*unit
	module  *module
	depth   int
	count   int             // number of compiled forms
	assumed map[string]bool // names that were resolved to the library
	counted bool            // vector patterns must have as many elements as their value, as in parameters
	err     error
	expand  *expander           // nil until a macro is used
	fixed   map[*form.Node]bool // whether a collection is a literal
}

// fail records the first error.
func (c *compiler) fail(n *form.Node, format string, args ...any) code {
	if c.err == nil {
		c.err = &form.Error{Kind: "ParseError", Message: fmt.Sprintf(format, args...), Pos: n.Pos}
	}
	return nil
}

// program compiles the forms of a text.
func (c *compiler) program(nodes []*form.Node) *proto {
	c.scan(c.module, nodes)
	s := newScope(nil, "", 0)
	body := c.sequence(nodes, spot{scope: s})
	return &proto{name: "main", body: body, slots: s.slots, nest: s.nest, cost: c.cost(0)}
}

// expr compiles one form.
func (c *compiler) expr(n *form.Node, p spot) code {
	if c.err != nil {
		return nil
	}
	if c.depth++; c.depth > maxDepth {
		return c.fail(n, "forms are nested more than %d levels deep", maxDepth)
	}
	defer func() { c.depth-- }()
	c.count++
	p.nest = max(p.nest, c.depth-p.start)
	switch n.Kind {
	case form.VectorNode:
		return c.vector(n, p)
	case form.MapNode:
		return c.mapping(n, p)
	case form.ListNode:
		return c.list(n, p)
	}
	if name, ok := n.Atom.(form.Symbol); ok {
		return c.symbol(n, string(name), p)
	}
	return constant(n.Atom)
}

// cost returns the number of steps of the code compiled since a count. It is more than one for
// long code, because the time limit is checked only between steps.
func (c *compiler) cost(since int) int64 { return 1 + int64(c.count-since)/64 }

func constant(v form.Value) code {
	return func(*frame) (form.Value, error) { return v, nil }
}

// exprs compiles forms whose values are all used.
func (c *compiler) exprs(nodes []*form.Node, p spot) []code {
	all := make([]code, len(nodes))
	for i, n := range nodes {
		all[i] = c.expr(n, p.inner())
	}
	return all
}

// sequence compiles forms. Its value is that of the last form.
func (c *compiler) sequence(nodes []*form.Node, p spot) code {
	if len(nodes) == 0 {
		return constant(nil)
	}
	first := c.exprs(nodes[:len(nodes)-1], p)
	last := c.expr(nodes[len(nodes)-1], p)
	switch len(first) {
	case 0:
		return last
	case 1:
		one := first[0]
		return func(f *frame) (form.Value, error) {
			if _, err := one(f); err != nil {
				return nil, err
			}
			return last(f)
		}
	}
	return func(f *frame) (form.Value, error) {
		for _, do := range first {
			if _, err := do(f); err != nil {
				return nil, err
			}
		}
		return last(f)
	}
}

// body compiles a non-empty sequence.
func (c *compiler) body(form *form.Node, nodes []*form.Node, p spot) code {
	if len(nodes) == 0 {
		return c.fail(form, "%s needs a body", headOf(form))
	}
	return c.sequence(nodes, p)
}

func headOf(n *form.Node) string {
	if len(n.Items) > 0 {
		if name, ok := n.Items[0].Atom.(form.Symbol); ok {
			return string(name)
		}
	}
	return "this"
}

// list compiles a form in parentheses.
func (c *compiler) list(n *form.Node, p spot) code {
	if len(n.Items) == 0 {
		return constant(form.List{})
	}
	name, ok := n.Items[0].Atom.(form.Symbol)
	if !ok {
		return c.call(n, p)
	}
	special, isForm := formNamed(string(name))
	if isForm && special.fixed {
		return special.compile(c, n, p)
	}
	if _, local := p.find(string(name)); local {
		return c.call(n, p)
	}
	if macro, ok := c.macros[string(name)]; ok {
		return c.expanded(n, macro, p)
	}
	if isForm && !c.defs[c.module.qualified(string(name))] && (special.when == nil || special.when(n)) {
		return special.compile(c, n, p)
	}
	return c.call(n, p)
}

// symbol compiles a name.
func (c *compiler) symbol(n *form.Node, name string, p spot) code {
	if r, ok := p.find(name); ok {
		return r.read()
	}
	if strings.HasPrefix(name, "@") {
		return c.reference(n, name, p)
	}
	b, fullName := c.resolve(n, name)
	if b != nil {
		return constant(b)
	}
	i := c.global(fullName)
	return func(f *frame) (form.Value, error) {
		v := f.m.globals[i]
		if _, ok := v.(unbound); ok {
			return nil, failed(form.Errorf("UndefinedSymbol", "%s is not defined", name), n)
		}
		return v, nil
	}
}

// resolve resolves a name that is not a local variable: to a library function or to a global
// name.
func (c *compiler) resolve(n *form.Node, name string) (*lib.Builtin, string) {
	fullName := name
	switch m, base := c.owner(name); {
	case m != nil && m != c.module && !m.gives(base):
		return nil, name + " is not exported" // no name: it is never defined
	case m != nil:
		fullName = m.qualified(base)
	case c.module.only[name] != "":
		fullName = c.module.only[name]
	}
	if b, ok := c.in.names[fullName]; ok && !c.defs[fullName] {
		c.assumed[fullName] = true
		return b, fullName
	}
	return nil, fullName
}

// owner returns the module of a qualified name, and the name within the module.
func (c *compiler) owner(name string) (*module, string) {
	if c.module.names[name] {
		return c.module, name
	}
	i := strings.LastIndexByte(name, '/')
	if i <= 0 || i == len(name)-1 {
		return nil, ""
	}
	if m, ok := c.module.aliases[name[:i]]; ok {
		return m, name[i+1:]
	}
	if m, ok := c.modules[name[:i]]; ok {
		return m, name[i+1:]
	}
	return nil, ""
}

// vector compiles [a b c]. A literal vector is created only once.
func (c *compiler) vector(n *form.Node, p spot) code {
	if c.literal(n) {
		return constant(n.Value())
	}
	items := c.exprs(n.Items, p)
	size := int64(len(items)*16 + 24)
	return func(f *frame) (form.Value, error) {
		if err := f.m.Alloc(size); err != nil {
			return nil, failed(err, n)
		}
		all := make(form.Vector, len(items))
		for i, item := range items {
			v, err := item(f)
			if err != nil {
				return nil, err
			}
			all[i] = v
		}
		return all, nil
	}
}

// mapping compiles {k v}. Keys are not evaluated.
func (c *compiler) mapping(n *form.Node, p spot) code {
	for i := 0; i < len(n.Items); i += 2 {
		if !isKey(n.Items[i]) {
			return c.fail(n.Items[i], "a key in a map is a keyword, a string or an integer: use hash-map for another")
		}
	}
	if c.literal(n) {
		return constant(n.Value())
	}
	keys, values := make([]form.Value, len(n.Items)/2), make([]code, len(n.Items)/2)
	for i := range keys {
		keys[i] = n.Items[2*i].Atom
		values[i] = c.expr(n.Items[2*i+1], p.inner())
	}
	size := int64(len(keys)*48 + 48)
	return func(f *frame) (form.Value, error) {
		if err := f.m.Alloc(size); err != nil {
			return nil, failed(err, n)
		}
		pairs := make([]form.Value, 2*len(keys))
		for i, value := range values {
			v, err := value(f)
			if err != nil {
				return nil, err
			}
			pairs[2*i], pairs[2*i+1] = keys[i], v
		}
		return form.NewMap(pairs...), nil
	}
}

// literal reports whether a node evaluates to the same value each time.
func (c *compiler) literal(n *form.Node) bool {
	switch n.Kind {
	case form.ListNode:
		return len(n.Items) == 0
	case form.AtomNode:
		_, ok := n.Atom.(form.Symbol)
		return !ok
	}
	known, ok := c.fixed[n]
	if !ok {
		known = !slices.ContainsFunc(n.Items, func(item *form.Node) bool { return !c.literal(item) })
		for i := 0; i < len(n.Items) && n.Kind == form.MapNode; i += 2 {
			known = known && isKey(n.Items[i])
		}
		c.fixed[n] = known
	}
	return known
}

// isKey reports whether a node can be an unevaluated key of a map.
func isKey(n *form.Node) bool {
	switch n.Atom.(type) {
	case form.Keyword, string, int64:
		return true
	}
	return false
}

// define declares a global name.
func (c *compiler) define(n *form.Node) (int, string, bool) {
	name, ok := n.Atom.(form.Symbol)
	if !ok || strings.HasPrefix(string(name), "@") || name == ":" || name == "&" {
		c.fail(n, "expected a name, got %s", brief(n.Value()))
		return 0, "", false
	}
	fullName := string(name)
	if m := c.module; m.name != "" {
		m.names[fullName] = true
		fullName = m.qualified(fullName)
	}
	c.defs[fullName] = true
	return c.global(fullName), string(name), true
}

// scan declares the names that a module defines, so that they can be used before their
// definition.
func (c *compiler) scan(m *module, nodes []*form.Node) {
	for _, n := range nodes {
		if n.Kind != form.ListNode || len(n.Items) < 2 {
			continue
		}
		switch headOf(n) {
		case "do":
			c.scan(m, n.Items[1:])
		case "def", "defn", "defn-", "defstruct":
			if name, ok := n.Items[1].Atom.(form.Symbol); ok && m.name != "" {
				m.names[string(name)] = true
				m.private[string(name)] = headOf(n) == "defn-"
			}
		}
	}
}
