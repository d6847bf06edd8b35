package rtfs

import (
	"slices"

	"glasshouse/rtfs/form"
	"glasshouse/rtfs/lib"
)

// call compiles (f args…).
func (c *compiler) call(n *form.Node, p spot) code {
	head := n.Items[0]
	switch name := head.Atom.(type) {
	case form.Keyword:
		return c.keywordCall(n, name, p)
	case form.Symbol:
		if _, local := p.find(string(name)); !local && name[0] != '@' {
			if b, _ := c.resolve(head, string(name)); b != nil {
				return c.builtinCall(n, b, p)
			}
		}
	}
	fn, args := c.expr(head, p.inner()), c.exprs(n.Items[1:], p)
	if c.err != nil {
		return nil
	}
	if p.tail {
		return tailCode(n, fn, args)
	}
	return callCode(n, fn, args)
}

// keywordCall compiles (:k m) and (:k m other).
func (c *compiler) keywordCall(n *form.Node, key form.Keyword, p spot) code {
	args := c.exprs(n.Items[1:], p)
	if c.err != nil {
		return nil
	}
	if len(args) != 1 {
		return callCode(n, constant(key), args)
	}
	of := args[0]
	return func(f *frame) (form.Value, error) {
		m, err := of(f)
		if err != nil {
			return nil, err
		}
		v, err := field(m, key, nil)
		if err != nil {
			return nil, failed(err, n)
		}
		return v, nil
	}
}

// builtinCall compiles a call of the library.
func (c *compiler) builtinCall(n *form.Node, b *lib.Builtin, p spot) code {
	if made := c.inline(n, b, p); made != nil || c.err != nil {
		return made
	}
	args := c.exprs(n.Items[1:], p)
	return func(f *frame) (form.Value, error) {
		m := f.m
		base := len(m.args)
		for _, arg := range args {
			v, err := arg(f)
			if err != nil {
				return nil, err
			}
			m.args = append(m.args, v)
		}
		v, err := m.builtin(f, b, m.args[base:len(m.args):len(m.args)])
		m.args = m.args[:base]
		if err != nil {
			return nil, failed(err, n)
		}
		return v, nil
	}
}

// callCode is a call whose value is needed here.
func callCode(n *form.Node, fn code, args []code) code {
	switch len(args) {
	case 0:
		return func(f *frame) (form.Value, error) {
			fv, err := fn(f)
			if err != nil {
				return nil, err
			}
			g, c, err := f.callee(fv)
			if c == nil {
				return f.other(n, fv, err)
			}
			c.argc = 0
			return f.result(c, g, n)
		}
	case 1:
		a := args[0]
		return func(f *frame) (form.Value, error) {
			fv, err := fn(f)
			if err != nil {
				return nil, err
			}
			x, err := a(f)
			if err != nil {
				return nil, err
			}
			g, c, err := f.callee(fv)
			if c == nil {
				return f.other(n, fv, err, x)
			}
			c.slots[0], c.argc = x, 1
			return f.result(c, g, n)
		}
	case 2:
		a, b := args[0], args[1]
		return func(f *frame) (form.Value, error) {
			fv, err := fn(f)
			if err != nil {
				return nil, err
			}
			x, err := a(f)
			if err != nil {
				return nil, err
			}
			y, err := b(f)
			if err != nil {
				return nil, err
			}
			g, c, err := f.callee(fv)
			if c == nil {
				return f.other(n, fv, err, x, y)
			}
			c.slots[0], c.slots[1], c.argc = x, y, 2
			return f.result(c, g, n)
		}
	}
	return func(f *frame) (form.Value, error) {
		fv, err := fn(f)
		if err != nil {
			return nil, err
		}
		m, base := f.m, len(f.m.args)
		for _, arg := range args {
			v, err := arg(f)
			if err != nil {
				return nil, err
			}
			m.args = append(m.args, v)
		}
		values := m.args[base:len(m.args):len(m.args)]
		g, c, err := f.callee(fv)
		if c == nil {
			v, err := f.other(n, fv, err, values...)
			m.args = m.args[:base]
			return v, err
		}
		c.room(len(values))
		c.argc = copy(c.slots, values)
		m.args = m.args[:base]
		return f.result(c, g, n)
	}
}

// tailCode is a call that its function ends in: the frame is set up for it, and enter
// goes on from there.
func tailCode(n *form.Node, fn code, args []code) code {
	if len(args) == 1 {
		a := args[0]
		return func(f *frame) (form.Value, error) {
			fv, err := fn(f)
			if err != nil {
				return nil, err
			}
			x, err := a(f)
			if err != nil {
				return nil, err
			}
			g, ok := fv.(*Func)
			if !ok || g.w.unit != f.m.unit {
				return f.other(n, fv, nil, x)
			}
			f.slots[0], f.argc, f.m.tail = x, 1, g
			return tailCall, nil
		}
	}
	return func(f *frame) (form.Value, error) {
		fv, err := fn(f)
		if err != nil {
			return nil, err
		}
		m, base := f.m, len(f.m.args)
		for _, arg := range args {
			v, err := arg(f)
			if err != nil {
				return nil, err
			}
			m.args = append(m.args, v)
		}
		values := m.args[base:len(m.args):len(m.args)]
		m.args = m.args[:base]
		g, ok := fv.(*Func)
		if !ok || g.w.unit != m.unit {
			return f.other(n, fv, nil, slices.Clone(values)...)
		}
		f.tail(g, values)
		return tailCall, nil
	}
}

// tail sets a frame up for the function that comes next in it.
func (f *frame) tail(g *Func, args []form.Value) {
	f.room(len(args))
	copy(f.slots, args)
	f.argc, f.m.tail = len(args), g
}

// callee returns the function that fv is and the frame for it. Without a frame fv is
// something else, or the error says why there is none.
func (f *frame) callee(fv form.Value) (*Func, *frame, error) {
	g, ok := fv.(*Func)
	if !ok || g.w.unit != f.m.unit {
		return nil, nil, nil
	}
	if f.next == nil {
		c, err := f.extend()
		return g, c, err
	}
	return g, f.next, nil
}

// result runs a function in a frame that is set up.
func (f *frame) result(c *frame, g *Func, n *form.Node) (form.Value, error) {
	v, err := c.enter(g)
	if err != nil {
		return nil, f.called(err, n)
	}
	return v, nil
}

// other calls what is not a function of the program, or fails with err.
func (f *frame) other(n *form.Node, fv form.Value, err error, args ...form.Value) (form.Value, error) {
	if err != nil {
		return nil, failed(err, n)
	}
	v, err := f.m.apply(f, fv, args)
	if err != nil {
		return nil, failed(err, n)
	}
	return v, nil
}
