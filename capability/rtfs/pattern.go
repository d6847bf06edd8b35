package rtfs

import (
	"strings"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/rtfs/lib"
)

// A binder binds the names of a pattern.
type binder func(f *frame, v form.Value) error

// pattern compiles the left side of a binding. Missing elements are bound to nil, and
// additional ones are ignored.
func (c *compiler) pattern(n *form.Node, p spot) binder {
	c.count++
	switch {
	case c.err != nil:
	case n.Kind == form.VectorNode:
		return c.vectorPattern(n, p)
	case n.Kind == form.MapNode:
		return c.mapPattern(n, p)
	case !isName(n):
		c.fail(n, "expected a name, a vector or a map, got %s", brief(n.Value()))
	case n.Atom == form.Symbol("_"):
		return func(*frame, form.Value) error { return nil }
	default:
		slot := p.declare(string(n.Atom.(form.Symbol)))
		return func(f *frame, v form.Value) error {
			f.slots[slot] = v
			return nil
		}
	}
	return nil
}

// parameter compiles the pattern of a parameter. The number of arguments is checked, and for a
// vector that is destructured as a parameter also the number of its elements.
func (c *compiler) parameter(n *form.Node, p spot) binder {
	outer := c.counted
	c.counted = true
	defer func() { c.counted = outer }()
	return c.placed(n, p)
}

// placed adds the position of the pattern to the errors of a binder.
func (c *compiler) placed(n *form.Node, p spot) binder {
	bind := c.pattern(n, p)
	if isName(n) {
		return bind // a name accepts every value
	}
	return func(f *frame, v form.Value) error {
		if err := bind(f, v); err != nil {
			return failed(err, n)
		}
		return nil
	}
}

// A sequencePieces is the parsed pattern [a b & rest :as whole].
type sequencePieces struct {
	items     []*form.Node
	rest, all *form.Node
}

func (c *compiler) splitSequence(n *form.Node) (s sequencePieces) {
	for i := 0; i < len(n.Items); i++ {
		item := n.Items[i]
		marks := item.Atom == form.Symbol("&") || item.Atom == form.Keyword("as")
		if !marks {
			if s.rest != nil || s.all != nil {
				c.fail(item, "no pattern may follow & rest and :as")
			}
			s.items = append(s.items, item)
			continue
		}
		if i++; i == len(n.Items) {
			c.fail(item, "%s must be followed by a name", brief(item.Atom))
			return s
		}
		if item.Atom == form.Symbol("&") && s.rest == nil {
			s.rest = n.Items[i]
		} else if item.Atom == form.Keyword("as") && s.all == nil && isName(n.Items[i]) {
			s.all = n.Items[i]
		} else {
			c.fail(n.Items[i], "%s takes one name", brief(item.Atom))
		}
	}
	return s
}

func (c *compiler) vectorPattern(n *form.Node, p spot) binder {
	s := c.splitSequence(n)
	binds := make([]binder, len(s.items))
	for i, item := range s.items {
		binds[i] = c.pattern(item, p)
	}
	var rest, all binder
	if s.rest != nil {
		rest = c.pattern(s.rest, p)
	}
	if s.all != nil {
		all = c.pattern(s.all, p)
	}
	counted := c.counted && rest == nil
	return func(f *frame, v form.Value) error {
		items, ok := sequence(v)
		if !ok {
			return form.Errorf("TypeError", "%s destructures a vector, got %s", brief(n.Value()), brief(v))
		}
		if counted && len(items) != len(binds) {
			return arity(brief(n.Value()), len(binds), len(binds), false, len(items))
		}
		for i, bind := range binds {
			var item form.Value
			if i < len(items) {
				item = items[i]
			}
			if err := bind(f, item); err != nil {
				return err
			}
		}
		if rest != nil {
			if err := rest(f, form.List(items[min(len(binds), len(items)):])); err != nil {
				return err
			}
		}
		if all != nil {
			return all(f, v)
		}
		return nil
	}
}

// sequence returns the elements of a vector or list, or none for nil. Callers must not append
// to the result.
func sequence(v form.Value) ([]form.Value, bool) {
	switch v := v.(type) {
	case form.Vector:
		return v[:len(v):len(v)], true
	case form.List:
		return v[:len(v):len(v)], true
	case nil:
		return nil, true
	}
	return nil, false
}

// An entry is one key of a map pattern.
type entry struct {
	key   form.Value
	bind  binder
	match matcher // used instead of bind in a match
	other code    // the default of :or; nil: none
}

// A mapPieces is a parsed map pattern.
type mapPieces struct {
	keys     []form.Value
	patterns []*form.Node
	others   map[string]*form.Node // defaults from :or
	rest     *form.Node
	all      *form.Node
}

func (c *compiler) splitMap(n *form.Node) (s mapPieces) {
	add := func(key form.Value, pattern *form.Node) {
		s.keys, s.patterns = append(s.keys, key), append(s.patterns, pattern)
	}
	for i := 0; i+1 < len(n.Items); i += 2 {
		k, v := n.Items[i], n.Items[i+1]
		switch key := k.Atom.(type) {
		case form.Keyword:
			switch {
			case key == "keys" && v.Kind == form.VectorNode:
				c.named(v, add, func(name string) form.Value { return form.Keyword(name) })
			case key == "strs" && v.Kind == form.VectorNode:
				c.named(v, add, func(name string) form.Value { return name })
			case key == "as" && isName(v):
				s.all = v
			case key == "or" && v.Kind == form.MapNode:
				s.others = c.defaults(v)
			default:
				add(key, v)
			}
		case string, int64:
			add(key, v)
		case form.Symbol: // {name :key}
			if key == "&" {
				s.rest = v
				continue
			}
			c.keyBehind(k, v, add)
		default: // {[a b] :key}
			c.keyBehind(k, v, add)
		}
	}
	return s
}

func (c *compiler) keyBehind(pattern, key *form.Node, add func(form.Value, *form.Node)) {
	switch key.Atom.(type) {
	case form.Keyword, string, int64:
		add(key.Atom, pattern)
	default:
		c.fail(key, "a key must follow %s: a keyword, a string or an integer", brief(pattern.Value()))
	}
}

// named adds the names of :keys and :strs. Qualified names are bound without their namespace.
func (c *compiler) named(n *form.Node, add func(form.Value, *form.Node), key func(string) form.Value) {
	for _, item := range n.Items {
		name := ""
		switch a := item.Atom.(type) {
		case form.Symbol:
			name = string(a)
		case form.Keyword:
			name = string(a)
		}
		if name == "" || name == "&" || name == ":" {
			c.fail(item, "expected names, got %s", brief(item.Value()))
			return
		}
		bound := *item
		bound.Kind, bound.Atom = form.AtomNode, form.Symbol(name[strings.LastIndexByte(name, '/')+1:])
		add(key(name), &bound)
	}
}

func (c *compiler) defaults(n *form.Node) map[string]*form.Node {
	others := map[string]*form.Node{}
	for i := 0; i+1 < len(n.Items); i += 2 {
		switch name := n.Items[i].Atom.(type) {
		case form.Symbol:
			others[string(name)] = n.Items[i+1]
		case form.Keyword:
			others[string(name)] = n.Items[i+1]
		default:
			c.fail(n.Items[i], ":or maps names to defaults, got %s", brief(n.Items[i].Value()))
		}
	}
	return others
}

func (c *compiler) mapPattern(n *form.Node, p spot) binder {
	s := c.splitMap(n)
	entries := make([]entry, len(s.keys))
	for i, key := range s.keys {
		entries[i] = entry{key: key, other: c.other(s, i, p), bind: c.pattern(s.patterns[i], p)}
	}
	rest, all := c.restAndAll(s, p)
	return func(f *frame, v form.Value) error {
		m, err := record(v, n)
		if err != nil {
			return err
		}
		for _, e := range entries {
			value, found := m.Get(e.key)
			if !found && e.other != nil {
				if value, err = e.other(f); err != nil {
					return err
				}
			}
			if err := e.bind(f, value); err != nil {
				return err
			}
		}
		if rest != nil {
			if err := rest(f, without(m, s.keys)); err != nil {
				return err
			}
		}
		if all != nil {
			return all(f, v)
		}
		return nil
	}
}

// other compiles the default of :or for a key.
func (c *compiler) other(s mapPieces, i int, p spot) code {
	if !isName(s.patterns[i]) {
		return nil
	}
	if other, ok := s.others[string(s.patterns[i].Atom.(form.Symbol))]; ok {
		outer := c.counted
		c.counted = false
		defer func() { c.counted = outer }()
		return c.expr(other, p.inner())
	}
	return nil
}

func (c *compiler) restAndAll(s mapPieces, p spot) (rest, all binder) {
	if s.rest != nil {
		rest = c.pattern(s.rest, p)
	}
	if s.all != nil {
		all = c.pattern(s.all, p)
	}
	return rest, all
}

// record returns the value that a map pattern destructures as a map: a map, an error, or nil,
// which is empty.
func record(v form.Value, n *form.Node) (*form.Map, error) {
	switch v := v.(type) {
	case *form.Map:
		return v, nil
	case *form.Error:
		return lib.Fields(v), nil
	case nil:
		return nil, nil
	}
	return nil, form.Errorf("TypeError", "%s destructures a map, got %s", brief(n.Value()), brief(v))
}

func without(m *form.Map, keys []form.Value) *form.Map {
	if m == nil {
		return form.NewMap()
	}
	for _, k := range keys {
		m = m.Without(k)
	}
	return m
}
