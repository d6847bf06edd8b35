package rtfs

import (
	"slices"
	"strings"

	"glasshouse/capability/rtfs/form"
)

// moduleForm compiles (module name (:exports [a b]) forms…). Its names are separate from those
// of other modules, which can use only the names that it exports, with :exports or (export a
// b). The value is a map of the name and the exports.
func (c *compiler) moduleForm(n *form.Node, p spot) code {
	if len(n.Items) < 2 || !isName(n.Items[1]) {
		return c.fail(n, "module takes a name and forms")
	}
	if p.outer != nil || c.module != c.top {
		return c.fail(n, "a module must be at the top level")
	}
	m := newModule(string(n.Items[1].Atom.(form.Symbol)))
	var forms, exports []*form.Node
	for i, item := range n.Items[2:] {
		switch {
		case headOf(item) == "export" && item.Kind == form.ListNode:
			exports = append(exports, item.Items[1:]...)
		case i == 0 && item.Kind == form.ListNode && len(item.Items) > 0 && item.Items[0].Atom == form.Keyword("exports"):
			exports = append(exports, item.Items[1:]...)
			m.exports = map[string]bool{} // no exports unless some are named
		default:
			forms = append(forms, item)
		}
	}
	names, ok := c.exports(m, exports)
	if !ok {
		return nil
	}
	c.modules[m.name] = m
	c.scan(m, forms)
	outside := c.module
	c.module = m
	body := c.sequence(forms, p.inner())
	c.module = outside
	for _, name := range names {
		if !m.names[name.(string)] && c.macros[name.(string)] == nil {
			return c.fail(n, "module %s exports %s but does not define it", m.name, name)
		}
	}
	value := form.NewMap("name", m.name, "exports", names)
	return func(f *frame) (form.Value, error) {
		if _, err := body(f); err != nil {
			return nil, err
		}
		return value, nil
	}
}

// exports parses the exported names: symbols, vectors of symbols, or :all.
func (c *compiler) exports(m *module, items []*form.Node) (form.Vector, bool) {
	names, all := form.Vector{}, false
	for len(items) > 0 {
		item := items[0]
		items = items[1:]
		switch name := item.Atom.(type) {
		case form.Symbol:
			if m.exports == nil {
				m.exports = map[string]bool{}
			}
			if !m.exports[string(name)] {
				names = append(names, string(name))
			}
			m.exports[string(name)] = true
			continue
		case form.Keyword:
			if name == "all" {
				all = true
				continue
			}
		}
		if item.Kind != form.VectorNode {
			c.fail(item, "a module exports names, got %s", brief(item.Value()))
			return nil, false
		}
		items = append(slices.Clone(item.Items), items...)
	}
	if all {
		m.exports = nil
	}
	return names, true
}

// exportForm reports an export outside of a module.
func (c *compiler) exportForm(n *form.Node, _ spot) code {
	return c.fail(n, "export must be directly inside a module")
}

// importForm compiles (import m), (import m :as alias), (import m :only [names]) and
// (import [m :as alias] [n :refer [names]]).
func (c *compiler) importForm(n *form.Node, _ spot) code {
	specs := [][]*form.Node{n.Items[1:]}
	if len(n.Items) > 1 && n.Items[1].Kind == form.VectorNode {
		specs = nil
		for _, item := range n.Items[1:] {
			if item.Kind != form.VectorNode {
				return c.fail(item, "import takes vectors here: [module :as alias]")
			}
			specs = append(specs, item.Items)
		}
	}
	missing := ""
	for _, spec := range specs {
		if len(spec) == 0 || !isName(spec[0]) || len(spec)%2 == 0 {
			return c.fail(n, "import takes a module, and then :as, :only or :refer")
		}
		name := string(spec[0].Atom.(form.Symbol))
		m, ok := c.modules[name]
		switch {
		case !ok && missing == "":
			missing = name
		case ok && !c.importModule(m, spec[1:]):
			return nil
		}
	}
	if missing == "" {
		return constant(nil)
	}
	return func(*frame) (form.Value, error) {
		return nil, failed(form.Errorf("ModuleNotFound", "there is no module %s", missing), n)
	}
}

// importModule declares the names of a module according to the options.
func (c *compiler) importModule(m *module, options []*form.Node) bool {
	c.module.aliases[m.name] = m
	for ; len(options) > 0; options = options[2:] {
		switch options[0].Atom {
		case form.Keyword("as"):
			alias, ok := options[1].Atom.(form.Symbol)
			if !ok {
				c.fail(options[1], ":as takes a name")
				return false
			}
			c.module.aliases[string(alias)] = m
		case form.Keyword("only"), form.Keyword("refer"):
			if !c.importOnly(m, options[1]) {
				return false
			}
		default:
			c.fail(options[0], "import knows :as, :only and :refer")
			return false
		}
	}
	return true
}

func (c *compiler) importOnly(m *module, names *form.Node) bool {
	if names.Kind != form.VectorNode {
		c.fail(names, ":only and :refer take a vector of names")
		return false
	}
	for _, item := range names.Items {
		name, ok := item.Atom.(form.Symbol)
		if ok && m.exports[string(name)] && c.macros[string(name)] != nil {
			continue // macros are visible in the whole text
		}
		if !ok || !m.gives(string(name)) {
			c.fail(item, "module %s does not export %s", m.name, brief(item.Value()))
			return false
		}
		c.module.only[string(name)] = m.qualified(string(name))
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
		return c.fail(n.Items[1], "%s takes a name first, got %s", headOf(n), brief(n.Items[1].Value()))
	}
	return c.properties(n, n.Items[2:], p)
}

// properties compiles keys and values to a map with strings as keys. Types are not evaluated.
func (c *compiler) properties(n *form.Node, pairs []*form.Node, p spot) code {
	if len(pairs)%2 != 0 {
		return c.fail(pairs[len(pairs)-1], "this key has no value")
	}
	keys, values := make([]form.Value, len(pairs)/2), make([]code, len(pairs)/2)
	for i := range keys {
		key, ok := pairs[2*i].Atom.(form.Keyword)
		if !ok {
			return c.fail(pairs[2*i], "expected a keyword, got %s", brief(pairs[2*i].Value()))
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
