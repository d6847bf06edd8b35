package rtfs

import "glasshouse/capability/rtfs/form"

// branch compiles (if c then else).
func (c *compiler) branch(n *form.Node, p spot) code {
	if len(n.Items) < 3 || len(n.Items) > 4 {
		return c.fail(n, "%s takes a condition, a form if it holds, and an optional form if not", headOf(n))
	}
	test := c.test(n.Items[1], p)
	then, other := c.expr(n.Items[2], p), constant(nil)
	if len(n.Items) == 4 {
		other = c.expr(n.Items[3], p)
	}
	return func(f *frame) (form.Value, error) {
		yes, err := test(f)
		if err != nil {
			return nil, err
		}
		if yes {
			return then(f)
		}
		return other(f)
	}
}

// when compiles (when c body…).
func (c *compiler) when(n *form.Node, p spot) code { return c.guarded(n, p, true) }

// unless compiles (unless c body…).
func (c *compiler) unless(n *form.Node, p spot) code { return c.guarded(n, p, false) }

func (c *compiler) guarded(n *form.Node, p spot, want bool) code {
	if len(n.Items) < 2 {
		return c.fail(n, "%s needs a condition", headOf(n))
	}
	test, body := c.test(n.Items[1], p), c.sequence(n.Items[2:], p)
	return func(f *frame) (form.Value, error) {
		yes, err := test(f)
		if err != nil || yes != want {
			return nil, err
		}
		return body(f)
	}
}

// cond compiles (cond c value … :else value).
func (c *compiler) cond(n *form.Node, p spot) code {
	clauses := n.Items[1:]
	if len(clauses)%2 != 0 {
		return c.fail(clauses[len(clauses)-1], "this condition has no value")
	}
	tests, values := make([]condition, len(clauses)/2), make([]code, len(clauses)/2)
	for i := range tests {
		if clauses[2*i].Atom == form.Symbol("else") {
			tests[i] = func(*frame) (bool, error) { return true, nil }
		} else {
			tests[i] = c.test(clauses[2*i], p)
		}
		values[i] = c.expr(clauses[2*i+1], p)
	}
	return func(f *frame) (form.Value, error) {
		for i, test := range tests {
			yes, err := test(f)
			if err != nil {
				return nil, err
			}
			if yes {
				return values[i](f)
			}
		}
		return nil, nil
	}
}

// caseForm compiles (case x constant value (a b) value default).
func (c *compiler) caseForm(n *form.Node, p spot) code {
	if len(n.Items) < 2 {
		return c.fail(n, "case needs a value to compare")
	}
	subject := c.expr(n.Items[1], p.inner())
	clauses := n.Items[2:]
	var table constants
	var bodies []code
	for len(clauses) > 1 {
		constants := []*form.Node{clauses[0]}
		if clauses[0].Kind == form.ListNode && headOf(clauses[0]) != "quote" {
			constants = clauses[0].Items
		}
		for _, k := range constants {
			table.add(quoted(k), len(bodies))
		}
		if len(table.collections) > maxCollections {
			return c.fail(clauses[0], "a case has more than %d collections as constants", maxCollections)
		}
		bodies = append(bodies, c.expr(clauses[1], p))
		clauses = clauses[2:]
	}
	var other code
	if len(clauses) == 1 {
		other = c.expr(clauses[0], p)
	}
	return func(f *frame) (form.Value, error) {
		v, err := subject(f)
		if err != nil {
			return nil, err
		}
		if i, ok := table.find(v); ok {
			return bodies[i](f)
		}
		if other == nil {
			return nil, failed(form.Errorf("MatchError", "no case matches %s", brief(v)), n)
		}
		return other(f)
	}
}

// maxCollections is the maximum number of collections among the constants of a case, which are
// compared one by one.
const maxCollections = 1000

// constants holds the constants of a case and the index of the body for each.
type constants struct {
	atoms       map[form.Value]int
	collections []form.Value
	bodies      []int // index of the body for each collection
}

func (t *constants) add(k form.Value, body int) {
	if _, ok := t.find(k); ok {
		return // the first of several equal constants takes precedence
	}
	if isCollection(k) {
		t.collections, t.bodies = append(t.collections, k), append(t.bodies, body)
		return
	}
	if t.atoms == nil {
		t.atoms = map[form.Value]int{}
	}
	t.atoms[k] = body
}

// find looks v up. It recurses into the constants and not into v, which may be nested without
// bound.
func (t *constants) find(v form.Value) (int, bool) {
	if !isCollection(v) {
		if !isAtom(v) {
			return 0, false
		}
		body, ok := t.atoms[v]
		return body, ok
	}
	for i, k := range t.collections {
		if form.Equal(k, v) {
			return t.bodies[i], true
		}
	}
	return 0, false
}

func isCollection(v form.Value) bool {
	switch v.(type) {
	case form.Vector, form.List, *form.Map:
		return true
	}
	return false
}

// isAtom reports whether the Go operator == compares a value as form.Equal does.
func isAtom(v form.Value) bool {
	switch v.(type) {
	case nil, bool, int64, float64, string, form.Keyword, form.Symbol, form.Resource:
		return true
	}
	return false
}

// quoted returns the value of a constant of case or match: 'x is x.
func quoted(n *form.Node) form.Value {
	if n.Kind == form.ListNode && len(n.Items) == 2 && headOf(n) == "quote" {
		return n.Items[1].Value()
	}
	return n.Value()
}

// and, or stop at the first value that decides the result.
func (c *compiler) and(n *form.Node, p spot) code { return c.deciding(n, p, false) }
func (c *compiler) or(n *form.Node, p spot) code  { return c.deciding(n, p, true) }

func (c *compiler) deciding(n *form.Node, p spot, decides bool) code {
	if len(n.Items) == 1 {
		return constant(!decides)
	}
	first := c.exprs(n.Items[1:len(n.Items)-1], p)
	last := c.expr(n.Items[len(n.Items)-1], p)
	return func(f *frame) (form.Value, error) {
		for _, one := range first {
			v, err := one(f)
			if err != nil || truthy(v) == decides {
				return v, err
			}
		}
		return last(f)
	}
}

func truthy(v form.Value) bool {
	switch v := v.(type) {
	case nil:
		return false
	case bool:
		return v
	}
	return true
}
