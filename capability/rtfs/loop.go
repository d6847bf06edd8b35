package rtfs

import "glasshouse/capability/rtfs/form"

// A target is the loop or function that recur jumps to.
type target struct {
	n     int
	rest  bool     // for a function: an additional value holds the list of the remaining arguments
	call  bool     // it is a function
	binds []binder // bindings of a loop
	slots []int    // slots of a loop whose bindings are all names; otherwise nil
}

// loopForm compiles (loop [pattern value …] body…).
func (c *compiler) loopForm(n *form.Node, p spot) code {
	bindings, ok := c.brackets(n, 1)
	if !ok {
		return nil
	}
	if len(bindings)%2 != 0 {
		return c.fail(bindings[len(bindings)-1], "%s has no value", brief(bindings[len(bindings)-1].Value()))
	}
	defer p.release(p.mark())
	t := &target{n: len(bindings) / 2}
	first := make([]code, t.n)
	for i := range first {
		first[i] = c.expr(bindings[2*i+1], p.inner())
		pattern := bindings[2*i]
		if isName(pattern) && pattern.Atom != form.Symbol("_") && len(t.slots) == i {
			t.slots = append(t.slots, p.height)
		}
		t.binds = append(t.binds, c.placed(pattern, p))
	}
	if len(t.slots) < t.n {
		t.slots = nil
	}
	since := c.count
	body := c.body(n, n.Items[2:], spot{scope: p.scope, tail: p.tail, loop: t})
	cost := c.cost(since)
	return func(f *frame) (form.Value, error) {
		for i, value := range first {
			v, err := value(f)
			if err == nil {
				err = t.binds[i](f, v)
			}
			if err != nil {
				return nil, failed(err, n)
			}
		}
		for {
			v, err := body(f)
			if err != nil {
				return nil, err
			}
			if _, ok := v.(*turnMark); !ok {
				return v, nil
			}
			if err := f.m.Step(cost); err != nil {
				return nil, failed(err, n)
			}
		}
	}
}

// recur compiles (recur value…).
func (c *compiler) recur(n *form.Node, p spot) code {
	t := p.loop
	if t == nil {
		return c.fail(n, "recur must be in tail position of its loop or function")
	}
	args := c.exprs(n.Items[1:], p)
	want := t.n
	if t.rest {
		want++
	}
	if len(args) != want {
		return c.fail(n, "recur takes %d values here, got %d", want, len(args))
	}
	switch {
	case t.call:
		return recurCall(n, t, args)
	case t.slots != nil && len(args) == 1:
		only, slot := args[0], t.slots[0]
		return func(f *frame) (form.Value, error) {
			v, err := only(f)
			f.slots[slot] = v
			return nextTurn, err
		}
	}
	return func(f *frame) (form.Value, error) {
		values, base, err := f.argumentsOf(n, args)
		if err != nil {
			return nil, err
		}
		if t.slots != nil {
			for i, slot := range t.slots {
				f.slots[slot] = values[i]
			}
		} else {
			for i, bind := range t.binds {
				if err := bind(f, values[i]); err != nil {
					return nil, failed(err, n)
				}
			}
		}
		f.m.args = f.m.args[:base]
		return nextTurn, nil
	}
}

// recurCall compiles recur to a function as a call of itself.
func recurCall(n *form.Node, t *target, args []code) code {
	return func(f *frame) (form.Value, error) {
		values, base, err := f.argumentsOf(n, args)
		if err != nil {
			return nil, err
		}
		if t.rest {
			rest, ok := sequence(values[t.n])
			if !ok {
				return nil, failed(form.Errorf("TypeError", "the rest of the arguments must be a list, got %s", brief(values[t.n])), n)
			}
			values = append(values[:t.n:t.n], rest...)
		}
		f.m.args = f.m.args[:base]
		return f.tail(f.fn, values, n)
	}
}

// dotimes compiles (dotimes [i n] body…).
func (c *compiler) dotimes(n *form.Node, p spot) code {
	bindings, ok := c.brackets(n, 1)
	if !ok {
		return nil
	}
	if len(bindings) != 2 || !isName(bindings[0]) {
		return c.fail(n, "dotimes takes a name and a number: (dotimes [i n] …)")
	}
	count := c.expr(bindings[1], p.inner())
	defer p.release(p.mark())
	slot := p.declare(string(bindings[0].Atom.(form.Symbol)))
	since := c.count
	body := c.sequence(n.Items[2:], p.inner())
	cost := c.cost(since)
	return func(f *frame) (form.Value, error) {
		v, err := count(f)
		if err != nil {
			return nil, err
		}
		times, ok := v.(int64)
		if !ok {
			return nil, failed(form.Errorf("TypeError", "dotimes takes an integer, got %s", brief(v)), n)
		}
		var last form.Value
		for i := range times {
			if err := f.m.Step(cost); err != nil {
				return nil, failed(err, n)
			}
			f.slots[slot] = integer(i)
			if last, err = body(f); err != nil {
				return nil, err
			}
		}
		return last, nil
	}
}

// comprehension compiles (for [x xs y ys] body): the values of body for each combination of x
// and y. The bindings may contain :when, :while and :let.
func (c *compiler) comprehension(n *form.Node, p spot) code {
	bindings, ok := c.brackets(n, 1)
	if !ok {
		return nil
	}
	if len(bindings) == 0 || len(bindings)%2 != 0 {
		return c.fail(n, "for takes names and collections: (for [x xs] …)")
	}
	defer p.release(p.mark())
	loop := c.nested(n, bindings, p.inner())
	return func(f *frame) (form.Value, error) {
		made := form.Vector{}
		if _, err := loop(f, &made); err != nil {
			return nil, failed(err, n)
		}
		return made, nil
	}
}

// A nest runs the inner part of a for. It returns false to end the surrounding loop.
type nest func(f *frame, made *form.Vector) (bool, error)

func (c *compiler) nested(n *form.Node, items []*form.Node, p spot) nest {
	if len(items) == 0 {
		since := c.count
		body := c.body(n, n.Items[2:], p)
		cost := c.cost(since)
		return func(f *frame, made *form.Vector) (bool, error) {
			v, err := body(f)
			if err == nil {
				err = f.m.Alloc(2 * 16) // append grows a vector by half
			}
			if err == nil {
				err = f.m.Step(cost)
			}
			if err == nil {
				*made = append(*made, v)
			}
			return true, err
		}
	}
	switch items[0].Atom {
	case form.Keyword("when"), form.Keyword("while"):
		goOn := items[0].Atom == form.Keyword("when")
		test, then := c.test(items[1], p), c.nested(n, items[2:], p)
		return func(f *frame, made *form.Vector) (bool, error) {
			if yes, err := test(f); !yes || err != nil {
				return goOn, err
			}
			return then(f, made)
		}
	case form.Keyword("let"):
		return c.nestedLet(n, items, p)
	}
	source := c.expr(items[1], p)
	bind := c.placed(items[0], p)
	then := c.nested(n, items[2:], p)
	return func(f *frame, made *form.Vector) (bool, error) {
		v, err := source(f)
		if err != nil {
			return false, err
		}
		all, err := f.m.each(v)
		if err != nil {
			return false, err
		}
		for _, one := range all {
			if err := f.m.Step(1); err != nil {
				return false, err
			}
			if err := bind(f, one); err != nil {
				return false, err
			}
			if goOn, err := then(f, made); !goOn || err != nil {
				return true, err
			}
		}
		return true, nil
	}
}

func (c *compiler) nestedLet(n *form.Node, items []*form.Node, p spot) nest {
	if items[1].Kind != form.VectorNode {
		c.fail(items[1], ":let takes a vector")
		return nil
	}
	steps := c.bindings(n, items[1].Items, p)
	then := c.nested(n, items[2:], p)
	return func(f *frame, made *form.Vector) (bool, error) {
		for _, step := range steps {
			if err := step(f); err != nil {
				return false, err
			}
		}
		return then(f, made)
	}
}

// each returns the items that for iterates over: elements, entries of a map, or characters.
func (m *machine) each(v form.Value) ([]form.Value, error) {
	switch v := v.(type) {
	case form.Vector, form.List:
		all, _ := sequence(v)
		return all, nil
	case *form.Map:
		if err := m.Alloc(int64(v.Len()) * 72); err != nil {
			return nil, err
		}
		var all []form.Value
		for k, e := range v.All() {
			all = append(all, form.Vector{k, e})
		}
		return all, nil
	case string:
		if err := m.Alloc(int64(len(v)) * 32); err != nil {
			return nil, err
		}
		var all []form.Value
		for _, r := range v {
			all = append(all, string(r))
		}
		return all, nil
	}
	return nil, form.Errorf("TypeError", "for takes a collection, got %s", brief(v))
}
