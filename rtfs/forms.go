package rtfs

import (
	"glasshouse/rtfs/form"
	"glasshouse/rtfs/lib"
)

// A special is a form that is not a call.
type special struct {
	compile func(c *compiler, n *form.Node, p spot) code
	fixed   bool                    // the name means this form whatever else is called so
	when    func(n *form.Node) bool // it is this form only then; nil: always
}

// formNamed finds a special form. Names that are fixed cannot be taken for something
// else; of the others a program may make its own.
func formNamed(name string) (special, bool) {
	fixed := func(compile func(*compiler, *form.Node, spot) code) (special, bool) {
		return special{compile: compile, fixed: true}, true
	}
	free := func(compile func(*compiler, *form.Node, spot) code) (special, bool) {
		return special{compile: compile}, true
	}
	switch name {
	case "let":
		return fixed((*compiler).let)
	case "letfn":
		return fixed((*compiler).letfn)
	case "if":
		return fixed((*compiler).branch)
	case "do":
		return fixed((*compiler).do)
	case "fn", "λ":
		return fixed((*compiler).fn)
	case "def":
		return fixed((*compiler).def)
	case "defn":
		return fixed((*compiler).defn)
	case "defmacro":
		return fixed((*compiler).defmacro)
	case "defstruct":
		return fixed((*compiler).defstruct)
	case "quote":
		return fixed((*compiler).quote)
	case "quasiquote":
		return fixed((*compiler).quasiquote)
	case "unquote", "unquote-splicing":
		return fixed((*compiler).unquote)
	case "loop":
		return fixed((*compiler).loopForm)
	case "recur":
		return fixed((*compiler).recur)
	case "try":
		return fixed((*compiler).try)
	case "cond":
		return free((*compiler).cond)
	case "when":
		return free((*compiler).when)
	case "unless":
		return free((*compiler).unless)
	case "case":
		return free((*compiler).caseForm)
	case "match":
		return free((*compiler).match)
	case "and":
		return free((*compiler).and)
	case "or":
		return free((*compiler).or)
	case "->":
		return free((*compiler).threadFirst)
	case "->>":
		return free((*compiler).threadLast)
	case "for":
		return free((*compiler).comprehension)
	case "dotimes":
		return free((*compiler).dotimes)
	case "step":
		return free((*compiler).step)
	case "step-if":
		return free((*compiler).branch)
	case "step-loop":
		return free((*compiler).stepLoop)
	case "step-parallel":
		return free((*compiler).stepParallel)
	case "get":
		return special{compile: (*compiler).getContext, when: isShortGet}, true
	case "module":
		return free((*compiler).moduleForm)
	case "import":
		return free((*compiler).importForm)
	case "resource":
		return free((*compiler).resource)
	case "capability", "plan":
		return free((*compiler).declaration)
	}
	return special{}, false
}

// Forms are the names of the special forms.
func Forms() []string {
	return []string{
		"let", "letfn", "if", "do", "fn", "λ", "def", "defn", "defmacro", "defstruct", "quote", "quasiquote",
		"unquote", "unquote-splicing", "loop", "recur", "try", "cond", "when", "unless", "case", "match", "and", "or",
		"->", "->>", "for", "dotimes", "step", "step-if", "step-loop", "step-parallel", "module", "import", "resource",
		"capability", "plan",
	}
}

func (c *compiler) do(n *form.Node, p spot) code { return c.sequence(n.Items[1:], p) }

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

// brackets are the items of the vector that a form has at an index.
func (c *compiler) brackets(n *form.Node, i int) ([]*form.Node, bool) {
	if len(n.Items) <= i || n.Items[i].Kind != form.VectorNode {
		c.fail(n, "%s needs a vector: (%s […] …)", headOf(n), headOf(n))
		return nil, false
	}
	return n.Items[i].Items, true
}

// binding compiles one pattern and its value, and returns what comes after. Between
// the two it calls back.
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

// annotation returns the type that stands behind the first item, and what comes
// after: x : int, x:int, and among parameters also x :int.
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

// A checker returns why a value is not of a type.
type checker func(m *machine, v form.Value) error

// check compiles a type. It answers nil if there is none.
func (c *compiler) check(typ *form.Node, what string) checker {
	if typ == nil || c.err != nil {
		return nil
	}
	if c.in.cfg.Check == nil {
		c.fail(typ, "there is nothing here that could check the type of %s", what)
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

// branch compiles (if c then else).
func (c *compiler) branch(n *form.Node, p spot) code {
	if len(n.Items) < 3 || len(n.Items) > 4 {
		return c.fail(n, "%s takes a condition, what then, and what else", headOf(n))
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
			return nil, failed(form.Errorf("MatchError", "no case is for %s", brief(v)), n)
		}
		return other(f)
	}
}

// constants are those of a case, and which of its bodies is for each.
type constants struct {
	atoms       map[form.Value]int
	collections []form.Value
	bodies      []int // of the collections
}

func (t *constants) add(k form.Value, body int) {
	if _, ok := t.find(k); ok {
		return // the first of two that are equal counts
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

// find follows a constant down, and never the value, which may be without end.
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

// isAtom reports whether Go compares a value as form.Equal does.
func isAtom(v form.Value) bool {
	switch v.(type) {
	case nil, bool, int64, float64, string, form.Keyword, form.Symbol, form.Resource:
		return true
	}
	return false
}

// quoted is a constant of case or match: 'x is x.
func quoted(n *form.Node) form.Value {
	if n.Kind == form.ListNode && len(n.Items) == 2 && headOf(n) == "quote" {
		return n.Items[1].Value()
	}
	return n.Value()
}

// and, or stop at the value that decides.
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

// threadFirst compiles (-> x (f a) g), which is (g (f x a)).
func (c *compiler) threadFirst(n *form.Node, p spot) code { return c.thread(n, p, true) }

// threadLast compiles (->> x (f a) g), which is (g (f a x)).
func (c *compiler) threadLast(n *form.Node, p spot) code { return c.thread(n, p, false) }

func (c *compiler) thread(n *form.Node, p spot, first bool) code {
	if len(n.Items) < 2 {
		return c.fail(n, "%s needs a value", headOf(n))
	}
	value := n.Items[1]
	for _, next := range n.Items[2:] {
		list := &form.Node{Kind: form.ListNode, Pos: next.Pos, End: next.End}
		switch {
		case next.Kind != form.ListNode || isFn(next):
			list.Items = []*form.Node{next, value}
		case len(next.Items) == 0:
			return c.fail(next, "a value cannot go through ()")
		case first:
			list.Items = append([]*form.Node{next.Items[0], value}, next.Items[1:]...)
		default:
			list.Items = append(append([]*form.Node{}, next.Items...), value)
		}
		value = list
	}
	return c.expr(value, p)
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
		f.m.globals[i] = v
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
		f.m.globals[i] = fn
		return fn, nil
	}
}
