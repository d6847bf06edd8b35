package rtfs

import (
	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/rtfs/lib"
)

// A matcher reports whether a value matches a pattern, and binds the names in the pattern.
type matcher func(f *frame, v form.Value) (bool, error)

// A clause is one pattern of a match.
type clause struct {
	shape matcher
	guard condition // nil: none
	body  code
}

// match compiles (match value pattern body pattern when guard body …). A vector must have the
// length of its pattern, unless the pattern has a rest. A map may have additional keys.
func (c *compiler) match(n *form.Node, p spot) code {
	if len(n.Items) < 2 {
		return c.fail(n, "match needs a value")
	}
	subject := c.expr(n.Items[1], p.inner())
	var clauses []clause
	for items := n.Items[2:]; len(items) > 0 && c.err == nil; {
		var cl clause
		cl, items = c.clause(items, p)
		clauses = append(clauses, cl)
	}
	return func(f *frame) (form.Value, error) {
		v, err := subject(f)
		if err != nil {
			return nil, err
		}
		for _, cl := range clauses {
			ok, err := cl.shape(f, v)
			if err == nil && ok && cl.guard != nil {
				ok, err = cl.guard(f)
			}
			if err != nil {
				return nil, failed(err, n)
			}
			if ok {
				return cl.body(f)
			}
		}
		return nil, failed(form.Errorf("MatchError", "no pattern matches %s", brief(v)), n)
	}
}

func (c *compiler) clause(items []*form.Node, p spot) (clause, []*form.Node) {
	defer p.release(p.mark())
	pattern := items[0]
	typ, items := c.annotation(items, false)
	cl := clause{shape: c.typed(c.shape(pattern, p), typ)}
	if len(items) > 1 && items[0].Atom == form.Symbol("when") {
		cl.guard = c.test(items[1], p)
		items = items[2:]
	}
	if len(items) == 0 {
		c.fail(pattern, "this pattern has no body")
		return cl, nil
	}
	cl.body = c.expr(items[0], p)
	return cl, items[1:]
}

// typed restricts a matcher to values of a type.
func (c *compiler) typed(shape matcher, typ *form.Node) matcher {
	valid := c.check(typ, "the value")
	if valid == nil {
		return shape
	}
	return func(f *frame, v form.Value) (bool, error) {
		if err := valid(f.m, v); err != nil {
			if e, ok := err.(*form.Error); ok && e.Kind == "TypeValidationError" {
				err = nil
			}
			return false, err
		}
		return shape(f, v)
	}
}

func (c *compiler) shape(n *form.Node, p spot) matcher {
	c.count++
	switch n.Kind {
	case form.VectorNode:
		return c.vectorShape(n, p)
	case form.MapNode:
		return c.mapShape(n, p)
	case form.ListNode:
		if len(n.Items) == 3 && n.Items[0].Atom == form.Keyword("as") && isName(n.Items[1]) {
			return all(c.shape(n.Items[2], p), bound(c.pattern(n.Items[1], p)))
		}
		if len(n.Items) == 2 && isType(n.Items[0]) {
			return c.typePattern(n, p)
		}
		if headOf(n) != "quote" || len(n.Items) != 2 {
			c.fail(n, "this is not a pattern: %s", brief(n.Value()))
		}
	default:
		if isName(n) {
			return bound(c.pattern(n, p))
		}
	}
	want := quoted(n)
	return func(_ *frame, v form.Value) (bool, error) { return form.Equal(want, v), nil }
}

// isType reports whether a node is a type: a keyword, or a vector such as [:vector :int].
func isType(n *form.Node) bool {
	if n.Kind == form.VectorNode && len(n.Items) > 0 {
		n = n.Items[0]
	}
	_, ok := n.Atom.(form.Keyword)
	return ok
}

// typePattern compiles (:int pattern), which matches values of the type that also match the
// pattern.
func (c *compiler) typePattern(n *form.Node, p spot) matcher {
	shape := c.shape(n.Items[1], p)
	switch kind := n.Items[0].Atom; kind {
	// A float type accepts integers, and collection types need element types. These patterns
	// test the kind of the value instead.
	case form.Keyword("float"), form.Keyword("vector"), form.Keyword("list"), form.Keyword("map"):
		want := string(kind.(form.Keyword))
		return all(func(_ *frame, v form.Value) (bool, error) { return lib.TypeName(v) == want, nil }, shape)
	}
	return c.typed(shape, n.Items[0])
}

// bound returns a matcher that matches every value and binds it.
func bound(bind binder) matcher {
	return func(f *frame, v form.Value) (bool, error) { return true, bind(f, v) }
}

// all returns a matcher that requires both a and b.
func all(a, b matcher) matcher {
	return func(f *frame, v form.Value) (bool, error) {
		if ok, err := a(f, v); !ok || err != nil {
			return false, err
		}
		return b(f, v)
	}
}

func (c *compiler) vectorShape(n *form.Node, p spot) matcher {
	s := c.splitSequence(n)
	shapes := make([]matcher, len(s.items))
	for i, item := range s.items {
		shapes[i] = c.shape(item, p)
	}
	var rest, all matcher
	if s.rest != nil {
		rest = c.shape(s.rest, p)
	}
	if s.all != nil {
		all = c.shape(s.all, p)
	}
	return func(f *frame, v form.Value) (bool, error) {
		items, ok := sequence(v)
		if !ok || v == nil || len(items) < len(shapes) || rest == nil && len(items) > len(shapes) {
			return false, nil
		}
		for i, shape := range shapes {
			if ok, err := shape(f, items[i]); !ok || err != nil {
				return false, err
			}
		}
		if rest != nil {
			if ok, err := rest(f, form.List(items[len(shapes):])); !ok || err != nil {
				return false, err
			}
		}
		if all != nil {
			return all(f, v)
		}
		return true, nil
	}
}

func (c *compiler) mapShape(n *form.Node, p spot) matcher {
	s := c.splitMap(n)
	entries := make([]entry, len(s.keys))
	for i, key := range s.keys {
		entries[i] = entry{key: key, other: c.other(s, i, p), match: c.shape(s.patterns[i], p)}
	}
	rest, all := c.restAndAll(s, p)
	return func(f *frame, v form.Value) (bool, error) {
		m, ok := v.(*form.Map)
		if e, failed := v.(*form.Error); failed {
			m, ok = lib.Fields(e), true
		}
		if !ok {
			return false, nil
		}
		for _, e := range entries {
			value, found := m.Get(e.key)
			if !found {
				if e.other == nil {
					return false, nil
				}
				var err error
				if value, err = e.other(f); err != nil {
					return false, err
				}
			}
			if ok, err := e.match(f, value); !ok || err != nil {
				return false, err
			}
		}
		if rest != nil {
			if err := rest(f, without(m, s.keys)); err != nil {
				return false, err
			}
		}
		if all != nil {
			return true, all(f, v)
		}
		return true, nil
	}
}
