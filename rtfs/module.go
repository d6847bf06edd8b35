package rtfs

import (
	"strings"

	"glasshouse/rtfs/form"
)

// moduleForm compiles (module name (:exports [a b]) forms…). Its names are its own;
// others reach those that it exports. The value says what they are.
func (c *compiler) moduleForm(n *form.Node, p spot) code {
	if len(n.Items) < 2 || !isName(n.Items[1]) {
		return c.fail(n, "module takes a name and forms")
	}
	if p.outer != nil || c.module != c.top {
		return c.fail(n, "a module stands in nothing else")
	}
	m := newModule(string(n.Items[1].Atom.(form.Symbol)))
	forms := n.Items[2:]
	if len(forms) > 0 && forms[0].Kind == form.ListNode && len(forms[0].Items) > 0 && forms[0].Items[0].Atom == form.Keyword("exports") {
		if !c.exports(m, forms[0]) {
			return nil
		}
		forms = forms[1:]
	}
	c.modules[m.name] = m
	c.scan(m, forms)
	outside := c.module
	c.module = m
	body := c.sequence(forms, p.inner())
	c.module = outside
	for name := range m.exports {
		if !m.names[name] {
			return c.fail(n, "module %s exports %s, and does not define it", m.name, name)
		}
	}
	value := form.NewMap("name", m.name, "exports", exported(n))
	return func(f *frame) (form.Value, error) {
		if _, err := body(f); err != nil {
			return nil, err
		}
		return value, nil
	}
}

func (c *compiler) exports(m *module, n *form.Node) bool {
	m.exports = map[string]bool{}
	names := n.Items[1:]
	if len(names) == 1 && names[0].Kind == form.VectorNode {
		names = names[0].Items
	}
	for _, item := range names {
		name, ok := item.Atom.(form.Symbol)
		if !ok {
			c.fail(item, "a module exports names, and this is %s", brief(item.Value()))
			return false
		}
		m.exports[string(name)] = true
	}
	return true
}

// exported are the names that a module form says it exports, in their order.
func exported(n *form.Node) form.Vector {
	names := form.Vector{}
	if len(n.Items) > 2 && len(n.Items[2].Items) > 1 && n.Items[2].Items[0].Atom == form.Keyword("exports") {
		for _, item := range n.Items[2].Items[1].Items {
			if name, ok := item.Atom.(form.Symbol); ok {
				names = append(names, string(name))
			}
		}
	}
	return names
}

// importForm compiles (import module), (import module :as alias) and
// (import module :only [names]).
func (c *compiler) importForm(n *form.Node, _ spot) code {
	if len(n.Items) < 2 || !isName(n.Items[1]) || len(n.Items)%2 != 0 {
		return c.fail(n, "import takes a module, and then :as or :only")
	}
	name := string(n.Items[1].Atom.(form.Symbol))
	m, ok := c.modules[name]
	if !ok {
		return func(*frame) (form.Value, error) {
			return nil, failed(form.Errorf("ModuleNotFound", "there is no module %s here", name), n)
		}
	}
	c.module.aliases[name] = m
	for items := n.Items[2:]; len(items) > 0; items = items[2:] {
		switch items[0].Atom {
		case form.Keyword("as"):
			alias, ok := items[1].Atom.(form.Symbol)
			if !ok {
				return c.fail(items[1], ":as takes a name")
			}
			c.module.aliases[string(alias)] = m
		case form.Keyword("only"), form.Keyword("refer"):
			if !c.importOnly(m, items[1]) {
				return nil
			}
		default:
			return c.fail(items[0], "import knows :as and :only")
		}
	}
	return constant(nil)
}

func (c *compiler) importOnly(m *module, names *form.Node) bool {
	if names.Kind != form.VectorNode {
		c.fail(names, ":only takes a vector of names")
		return false
	}
	for _, item := range names.Items {
		name, ok := item.Atom.(form.Symbol)
		if !ok || !m.gives(string(name)) {
			c.fail(item, "module %s does not export %s", m.name, brief(item.Value()))
			return false
		}
		c.module.only[string(name)] = m.whole(string(name))
	}
	return true
}

// resource compiles (resource:ref "id") and (resource name (property :k v) …).
func (c *compiler) resource(n *form.Node, p spot) code {
	if len(n.Items) == 3 && n.Items[1].Atom == form.Keyword("ref") {
		id, ok := n.Items[2].Atom.(string)
		if !ok {
			return c.fail(n.Items[2], "resource:ref takes the id of a resource, a string")
		}
		return func(f *frame) (form.Value, error) {
			if v, ok := f.m.around(form.Keyword(id)); ok {
				return v, nil
			}
			return "@" + id, nil
		}
	}
	if len(n.Items) < 2 || !isName(n.Items[1]) {
		return c.fail(n, "resource takes a name and properties")
	}
	var pairs []*form.Node
	for _, item := range n.Items[2:] {
		if item.Kind != form.ListNode || len(item.Items) != 3 || headOf(item) != "property" {
			return c.fail(item, "a property is written (property :key value)")
		}
		pairs = append(pairs, item.Items[1:]...)
	}
	return c.properties(n, pairs, p)
}

// declaration compiles (capability "id" :key value …) and (plan "name" :key value …).
func (c *compiler) declaration(n *form.Node, p spot) code {
	if len(n.Items) < 2 {
		return c.fail(n, "%s takes a name, and keys with their values", headOf(n))
	}
	switch n.Items[1].Atom.(type) {
	case string, form.Symbol, form.Keyword:
	default:
		return c.fail(n.Items[1], "%s takes a name first, and this is %s", headOf(n), brief(n.Items[1].Value()))
	}
	return c.properties(n, n.Items[2:], p)
}

// properties compiles keys and values to a map with the keys as strings. Types are
// not computed, but kept as they are written.
func (c *compiler) properties(n *form.Node, pairs []*form.Node, p spot) code {
	if len(pairs)%2 != 0 {
		return c.fail(pairs[len(pairs)-1], "this key has no value")
	}
	keys, values := make([]form.Value, len(pairs)/2), make([]code, len(pairs)/2)
	for i := range keys {
		key, ok := pairs[2*i].Atom.(form.Keyword)
		if !ok {
			return c.fail(pairs[2*i], "a keyword belongs here, and this is %s", brief(pairs[2*i].Value()))
		}
		keys[i] = string(key)
		if value := pairs[2*i+1]; strings.HasSuffix(string(key), "schema") {
			values[i] = constant(value.Value())
		} else {
			values[i] = c.expr(value, p.inner())
		}
	}
	return func(f *frame) (form.Value, error) {
		if err := f.m.Alloc(int64(len(keys)*48 + 48)); err != nil {
			return nil, failed(err, n)
		}
		all := make([]form.Value, 0, 2*len(keys))
		for i, value := range values {
			v, err := value(f)
			if err != nil {
				return nil, err
			}
			all = append(all, keys[i], v)
		}
		return form.NewMap(all...), nil
	}
}
