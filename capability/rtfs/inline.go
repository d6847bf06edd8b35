package rtfs

import (
	"math"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/rtfs/lib"
)

// A condition is a compiled form that is used only as true or false.
type condition func(f *frame) (bool, error)

// small contains preallocated integers.
var small = func() (all [2048]form.Value) {
	for i := range all {
		all[i] = int64(i - len(all)/2)
	}
	return all
}()

func integer(i int64) form.Value {
	if k := uint64(i + int64(len(small)/2)); k < uint64(len(small)) {
		return small[k]
	}
	return i
}

// test compiles a condition.
func (c *compiler) test(n *form.Node, p spot) condition {
	if b := c.libraryHead(n, p); b != nil && len(n.Items) == 3 {
		if compare := c.comparison(n, b, p); compare != nil {
			return compare
		}
	}
	value := c.expr(n, p.inner())
	return func(f *frame) (bool, error) {
		v, err := value(f)
		return truthy(v), err
	}
}

// libraryHead returns the library function that a node calls, or nil.
func (c *compiler) libraryHead(n *form.Node, p spot) *lib.Builtin {
	if c.err != nil || n.Kind != form.ListNode || len(n.Items) == 0 {
		return nil
	}
	name, ok := n.Items[0].Atom.(form.Symbol)
	if !ok {
		return nil
	}
	if _, local := p.find(string(name)); local || c.macros[string(name)] != nil {
		return nil
	}
	if _, special := formNamed(string(name)); special {
		return nil
	}
	b, _ := c.resolve(n.Items[0], string(name))
	return b
}

// inline compiles the most frequent operations on integers without a library call. The library
// handles other values. inline returns nil for other functions.
func (c *compiler) inline(n *form.Node, b *lib.Builtin, p spot) code {
	switch {
	case len(n.Items) == 2 && (b.Name == "inc" || b.Name == "dec"):
		one := &form.Node{Atom: int64(1), Pos: n.Pos, End: n.End}
		if b.Name == "inc" {
			return c.arithmetic(n, b, "+", n.Items[1], one, p)
		}
		return c.arithmetic(n, b, "-", n.Items[1], one, p)
	case len(n.Items) == 3:
		if made := c.arithmetic(n, b, b.Name, n.Items[1], n.Items[2], p); made != nil || c.err != nil {
			return made
		}
		if compare := c.comparison(n, b, p); compare != nil {
			return func(f *frame) (form.Value, error) {
				yes, err := compare(f)
				if err != nil {
					return nil, err
				}
				return yes, nil
			}
		}
	}
	return nil
}

// slowly calls the library for operands that are not integers.
func (f *frame) slowly(n *form.Node, b *lib.Builtin, x, y form.Value) (form.Value, error) {
	m, base := f.m, len(f.m.args)
	m.args = append(m.args, x, y)
	args := m.args[base : base+len(n.Items)-1 : base+2] // (inc x) has one
	v, err := m.builtin(f, b, args)
	m.args = m.args[:base]
	if err != nil {
		return nil, failed(err, n)
	}
	return v, nil
}

// arithmetic compiles an operation with two operands. On overflow it calls the library, which
// returns the error.
func (c *compiler) arithmetic(n *form.Node, b *lib.Builtin, op string, left, right *form.Node, p spot) code {
	if op != "+" && op != "-" && op != "*" {
		return nil
	}
	x := c.expr(left, p.inner())
	k, constant := right.Atom.(int64)
	if constant && op == "-" && k != math.MinInt64 {
		op, k = "+", -k
	}
	if constant && op == "+" {
		return func(f *frame) (form.Value, error) {
			v, err := x(f)
			if err != nil {
				return nil, err
			}
			if i, ok := v.(int64); ok {
				if sum := i + k; (sum > i) == (k > 0) {
					return integer(sum), nil
				}
			}
			return f.slowly(n, b, v, right.Atom)
		}
	}
	y := c.expr(right, p.inner())
	both := func(f *frame) (v, w form.Value, i, j int64, ok bool, err error) {
		if v, err = x(f); err != nil {
			return
		}
		if w, err = y(f); err != nil {
			return
		}
		if i, ok = v.(int64); ok {
			j, ok = w.(int64)
		}
		return
	}
	switch op {
	case "+":
		return func(f *frame) (form.Value, error) {
			v, w, i, j, ok, err := both(f)
			if err != nil {
				return nil, err
			}
			if sum := i + j; ok && (sum > i) == (j > 0) {
				return integer(sum), nil
			}
			return f.slowly(n, b, v, w)
		}
	case "-":
		return func(f *frame) (form.Value, error) {
			v, w, i, j, ok, err := both(f)
			if err != nil {
				return nil, err
			}
			if diff := i - j; ok && (diff < i) == (j > 0) {
				return integer(diff), nil
			}
			return f.slowly(n, b, v, w)
		}
	}
	return func(f *frame) (form.Value, error) {
		v, w, i, j, ok, err := both(f)
		if err != nil {
			return nil, err
		}
		if ok && int64(int32(i)) == i && int64(int32(j)) == j {
			return integer(i * j), nil
		}
		return f.slowly(n, b, v, w)
	}
}

// comparison compiles a comparison of two operands.
func (c *compiler) comparison(n *form.Node, b *lib.Builtin, p spot) condition {
	switch b.Name {
	case "<", ">", "<=", ">=", "=", "!=", "not=":
	default:
		return nil
	}
	x, y := c.expr(n.Items[1], p.inner()), c.expr(n.Items[2], p.inner())
	slowly := func(f *frame, v, w form.Value) (bool, error) {
		r, err := f.slowly(n, b, v, w)
		return truthy(r), err
	}
	if k, ok := n.Items[2].Atom.(int64); ok {
		return compareConstant(b.Name, x, k, slowly)
	}
	name := b.Name
	return func(f *frame) (bool, error) {
		v, err := x(f)
		if err != nil {
			return false, err
		}
		w, err := y(f)
		if err != nil {
			return false, err
		}
		i, ok := v.(int64)
		j, ok2 := w.(int64)
		if !ok || !ok2 {
			return slowly(f, v, w)
		}
		return compareIntegers(name, i, j), nil
	}
}

func compareIntegers(name string, i, j int64) bool {
	switch name {
	case "<":
		return i < j
	case ">":
		return i > j
	case "<=":
		return i <= j
	case ">=":
		return i >= j
	case "=":
		return i == j
	}
	return i != j
}

// compareConstant compiles a comparison with an integer constant.
func compareConstant(name string, x code, k int64, slowly func(f *frame, v, w form.Value) (bool, error)) condition {
	boxed := integer(k)
	operand := func(f *frame) (i int64, ok, yes bool, err error) {
		v, err := x(f)
		if err != nil {
			return 0, false, false, err
		}
		if i, ok = v.(int64); ok {
			return i, true, false, nil
		}
		yes, err = slowly(f, v, boxed)
		return 0, false, yes, err
	}
	switch name {
	case "<":
		return func(f *frame) (bool, error) {
			i, ok, yes, err := operand(f)
			return ok && i < k || yes, err
		}
	case "<=":
		return func(f *frame) (bool, error) {
			i, ok, yes, err := operand(f)
			return ok && i <= k || yes, err
		}
	case "=":
		return func(f *frame) (bool, error) {
			i, ok, yes, err := operand(f)
			return ok && i == k || yes, err
		}
	}
	return func(f *frame) (bool, error) {
		i, ok, yes, err := operand(f)
		return ok && compareIntegers(name, i, k) || yes, err
	}
}
