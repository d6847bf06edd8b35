package rtfs

import (
	"slices"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/rtfs/lib"
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

// few is the number of arguments of a call up to which the argument stack is not counted as
// memory.
const few = 16

// argumentsOf evaluates arguments and pushes them on the machine's argument stack. The caller
// pops them.
func (f *frame) argumentsOf(n *form.Node, args []code) (values []form.Value, base int, err error) {
	m, base := f.m, len(f.m.args)
	if len(args) > few {
		if err := m.Alloc(int64(len(args)) * 16); err != nil {
			return nil, base, failed(err, n)
		}
	}
	for _, arg := range args {
		v, err := arg(f)
		if err != nil {
			return nil, base, err
		}
		m.args = append(m.args, v)
	}
	return m.args[base:len(m.args):len(m.args)], base, nil
}

// builtinCall compiles a call of a library function.
func (c *compiler) builtinCall(n *form.Node, b *lib.Builtin, p spot) code {
	if made := c.inline(n, b, p); made != nil || c.err != nil {
		return made
	}
	args := c.exprs(n.Items[1:], p)
	return func(f *frame) (form.Value, error) {
		values, base, err := f.argumentsOf(n, args)
		if err != nil {
			return nil, err
		}
		v, err := f.m.builtin(f, b, values)
		f.m.args = f.m.args[:base]
		if err != nil {
			return nil, failed(err, n)
		}
		return v, nil
	}
}

// callCode returns the code of a call that is not a tail call.
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
		values, base, err := f.argumentsOf(n, args)
		if err != nil {
			return nil, err
		}
		g, c, err := f.callee(fv)
		if c == nil {
			v, err := f.other(n, fv, err, values...)
			f.m.args = f.m.args[:base]
			return v, err
		}
		if err := c.room(len(values)); err != nil {
			return nil, failed(err, n)
		}
		c.argc = copy(c.slots, values)
		f.m.args = f.m.args[:base]
		return f.result(c, g, n)
	}
}

// tailCode returns the code of a tail call. It prepares the frame, and enter then runs the
// function in it.
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
		values, base, err := f.argumentsOf(n, args)
		if err != nil {
			return nil, err
		}
		f.m.args = f.m.args[:base]
		g, ok := fv.(*Func)
		if !ok || g.w.unit != f.m.unit {
			return f.other(n, fv, nil, slices.Clone(values)...)
		}
		return f.tail(g, values, n)
	}
}

// tail prepares frame f for a tail call of g.
func (f *frame) tail(g *Func, args []form.Value, n *form.Node) (form.Value, error) {
	if err := f.room(len(args)); err != nil {
		return nil, failed(err, n)
	}
	f.argc, f.m.tail = copy(f.slots, args), g
	return tailCall, nil
}

// callee returns fv as a function with a new frame. If the frame is nil, fv is not a function
// of the program, or err is the reason why no frame can be created.
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

// result runs a function in a prepared frame.
func (f *frame) result(c *frame, g *Func, n *form.Node) (form.Value, error) {
	v, err := c.enter(g)
	if err != nil {
		return nil, f.called(err, n)
	}
	return v, nil
}

// other calls a value that is not a function of the program. It returns err if that is not nil.
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
