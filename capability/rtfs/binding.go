package rtfs

import (
	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/rtfs/lib"
)

// let compiles (let [pattern value …] body…).
func (c *compiler) let(n *form.Node, p spot) code {
	bindings, ok := c.brackets(n, 1)
	if !ok {
		return nil
	}
	defer p.release(p.mark())
	steps := c.bindings(n, bindings, p)
	body := c.body(n, n.Items[2:], p)
	if c.err != nil {
		return nil
	}
	if len(steps) == 1 {
		step := steps[0]
		return func(f *frame) (form.Value, error) {
			if err := step(f); err != nil {
				return nil, err
			}
			return body(f)
		}
	}
	return func(f *frame) (form.Value, error) {
		for _, step := range steps {
			if err := step(f); err != nil {
				return nil, err
			}
		}
		return body(f)
	}
}

// brackets returns the items of the vector at index i of a form.
func (c *compiler) brackets(n *form.Node, i int) ([]*form.Node, bool) {
	if len(n.Items) <= i || n.Items[i].Kind != form.VectorNode {
		c.fail(n, "%s needs a vector: (%s […] …)", headOf(n), headOf(n))
		return nil, false
	}
	return n.Items[i].Items, true
}

// binding compiles one pattern and its value, and returns the remaining items. It calls between
// after compiling the value and before declaring the pattern.
func (c *compiler) binding(n *form.Node, items []*form.Node, p spot, between func()) (func(f *frame) error, []*form.Node) {
	pattern := items[0]
	typ, items := c.annotation(items, false)
	if len(items) == 0 {
		c.fail(pattern, "%s has no value", brief(pattern.Value()))
		return nil, nil
	}
	name, plain := pattern.Atom.(form.Symbol)
	var value code
	if plain && isFn(items[0]) {
		value = c.function(items[0], p, string(name))
	} else {
		value = c.expr(items[0], p.inner())
	}
	between()
	check := c.check(typ, brief(pattern.Value()))
	bind := c.placed(pattern, p)
	if c.err != nil {
		return nil, nil
	}
	where := items[0]
	if check == nil {
		return func(f *frame) error {
			v, err := value(f)
			if err != nil {
				return err
			}
			return bind(f, v)
		}, items[1:]
	}
	return func(f *frame) error {
		v, err := value(f)
		if err != nil {
			return err
		}
		if err := check(f.m, v); err != nil {
			return failed(err, where)
		}
		return bind(f, v)
	}, items[1:]
}

// annotation returns the type after the first item, and the remaining items. A type is written
// x : int or x:int, and in parameters also x :int.
func (c *compiler) annotation(items []*form.Node, parameter bool) (*form.Node, []*form.Node) {
	if len(items) < 2 {
		return nil, items[1:]
	}
	next := items[1]
	switch next.Atom.(type) {
	case form.Symbol:
		if next.Atom == form.Symbol(":") && len(items) > 2 {
			return items[2], items[3:]
		}
	case form.Keyword:
		if parameter || next.Pos.Offset == items[0].End {
			return next, items[2:]
		}
	}
	return nil, items[1:]
}

// A checker returns an error if a value is not of a type.
type checker func(m *machine, v form.Value) error

// check compiles a type. It returns nil if typ is nil.
func (c *compiler) check(typ *form.Node, what string) checker {
	if typ == nil || c.err != nil {
		return nil
	}
	if c.in.cfg.Check == nil {
		c.fail(typ, "type annotations are not supported here: the type of %s", what)
		return nil
	}
	valid, err := c.in.cfg.Check(typ)
	if err != nil {
		c.fail(typ, "the type of %s: %s", what, reason(err))
		return nil
	}
	return func(m *machine, v form.Value) error {
		if err := lib.Walk(m, v); err != nil {
			return err
		}
		if err := valid(v); err != nil {
			return form.Errorf("TypeValidationError", "%s: %s", what, reason(err))
		}
		return nil
	}
}

// def compiles (def name [: T] value).
func (c *compiler) def(n *form.Node, p spot) code {
	if len(n.Items) < 3 {
		return c.fail(n, "def takes a name and a value")
	}
	i, name, ok := c.define(n.Items[1])
	if !ok {
		return nil
	}
	typ, rest := c.annotation(n.Items[1:], len(n.Items) == 4)
	if len(rest) != 1 {
		return c.fail(n, "def takes a name and a value")
	}
	var value code
	if isFn(rest[0]) {
		value = c.function(rest[0], p, name)
	} else {
		value = c.expr(rest[0], p.inner())
	}
	check := c.check(typ, name)
	return func(f *frame) (form.Value, error) {
		v, err := value(f)
		if err != nil {
			return nil, err
		}
		if check != nil {
			if err := check(f.m, v); err != nil {
				return nil, failed(err, n)
			}
		}
		f.m.setGlobal(i, v)
		return v, nil
	}
}

// defn compiles (defn name [params] body…).
func (c *compiler) defn(n *form.Node, p spot) code {
	if len(n.Items) < 3 {
		return c.fail(n, "defn takes a name, parameters and a body")
	}
	i, name, ok := c.define(n.Items[1])
	if !ok {
		return nil
	}
	at := 2
	if _, doc := n.Items[2].Atom.(string); doc {
		at = 3
	}
	make := c.closure(n, at, p, name, "")
	return func(f *frame) (form.Value, error) {
		fn, err := make(f)
		if err != nil {
			return nil, err
		}
		f.m.setGlobal(i, fn)
		return fn, nil
	}
}
