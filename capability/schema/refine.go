package schema

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"

	"glasshouse/capability/rtfs/form"
)

// An and is [:and T …]: a type and further constraints.
type and []typ

// A predicate compiles the arguments of a predicate such as [:min-length 3].
type predicate func(n *form.Node, args []*form.Node) (typ, error)

// predicates maps the names of predicates to their compilers.
var predicates = map[string]predicate{
	">":  comparison(">"),
	">=": comparison(">="),
	"<":  comparison("<"),
	"<=": comparison("<="),
	"=":  equality(true),
	"!=": equality(false),

	"in-range": inRange,

	"min-length": sized(func(n int) size { return size{n, -1} }),
	"max-length": sized(func(n int) size { return size{0, n} }),
	"length":     sized(func(n int) size { return size{n, n} }),
	"min-count":  sized(func(n int) size { return size{n, -1} }),
	"max-count":  sized(func(n int) size { return size{0, n} }),
	"count":      sized(func(n int) size { return size{n, n} }),
	"non-empty":  bare(size{1, -1}),

	"matches-regex": matching,
	"is-url":        bare(pattern{urls, "a URL", "uri"}),
	"is-email":      bare(pattern{emails, "an e-mail address", "email"}),

	"has-key":       hasKey,
	"required-keys": requiredKeys,
}

var predicateList = slices.Sorted(maps.Keys(predicates))

// and compiles [:and T pred…]. T may be followed by further types.
func (c *compiler) and(n *form.Node, args []*form.Node) (typ, error) {
	if len(args) == 0 {
		return nil, errorf(n, "[:and T …] takes a type, followed by predicates")
	}
	var all and
	for i, arg := range args {
		if isMark(arg) && i > 0 {
			all[len(all)-1] = orNil(all[len(all)-1])
			continue
		}
		t, err := c.member(arg, i == 0)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	if len(all) == 1 {
		return all[0], nil
	}
	return all, nil
}

// member compiles one member of [:and …]. The first one must be a type.
func (c *compiler) member(n *form.Node, first bool) (typ, error) {
	word, args := n, []*form.Node(nil)
	if n.Kind == form.VectorNode && len(n.Items) > 0 {
		word, args = n.Items[0], n.Items[1:]
	}
	var name string
	switch atom := word.Atom.(type) {
	case form.Keyword:
		name = string(atom)
	case form.Symbol:
		name = string(atom)
	}
	p, known := predicates[name]
	_, isWord := words[name]
	switch {
	case known && first:
		return nil, errorf(n, "[:and …] must begin with a type: did you mean [:and %s %s]?", base(name), form.Text(n.Value()))
	case known:
		return p(n, args)
	case first || word == n || isWord || slices.Contains(heads, name) || name == "=>" || foreign[name] != "" || name == "":
		return c.typ(n)
	}
	if meant := nearest(name, predicateList); meant != "" {
		return nil, errorf(n, "there is no predicate [:%s …]: did you mean [:%s …]?", name, meant)
	}
	if meant := nearest(name, heads); meant != "" {
		return nil, errorf(n, "there is no type [:%s …]: did you mean [:%s …]?", name, meant)
	}
	c.unknown = append(c.unknown, name)
	return unknown{"predicate", name}, nil
}

// base returns the type that a predicate is most often used with.
func base(predicate string) string {
	switch predicate {
	case ">", ">=", "<", "<=", "=", "!=", "in-range":
		return ":float"
	case "min-count", "max-count", "count":
		return "[:vector T]"
	case "has-key", "required-keys":
		return "[:map]"
	}
	return ":string"
}

func (t and) ok(v form.Value) bool {
	for _, member := range t {
		if !member.ok(v) {
			return false
		}
	}
	return true
}

// explain reports the problems of all members. If v is not of the first type, it reports only
// that.
func (t and) explain(v form.Value, r *report) {
	for i, member := range t {
		if member.ok(v) {
			continue
		}
		member.explain(v, r)
		if i == 0 {
			return
		}
	}
}

func (t and) noun() string { return t[0].noun() }

// take lets each member convert v, unless the result no longer matches a preceding member: in
// [:and :int :float] an int stays an int.
func (t and) take(v form.Value) form.Value {
	v = t[0].take(v)
	for i, member := range t[1:] {
		switch member.(type) {
		case bound, size, pattern, required, unknown:
			continue // predicates do not convert values
		}
		taken := member.take(v)
		spoilt := func(m typ) bool { return m.ok(v) && !m.ok(taken) }
		if !slices.ContainsFunc(t[:i+1], spoilt) {
			v = taken
		}
	}
	return v
}

// A bound is a predicate that compares numbers. Ints and floats are comparable.
type bound struct {
	op    string
	limit form.Value
}

func comparison(op string) predicate {
	return func(n *form.Node, args []*form.Node) (typ, error) {
		if len(args) != 1 {
			return nil, errorf(n, "[:%s n] takes one number", op)
		}
		limit, err := number(args[0])
		return bound{op, limit}, err
	}
}

func inRange(n *form.Node, args []*form.Node) (typ, error) {
	if len(args) != 2 {
		return nil, errorf(n, "[:in-range from to] takes two numbers")
	}
	from, err := number(args[0])
	if err != nil {
		return nil, err
	}
	to, err := number(args[1])
	if err != nil {
		return nil, err
	}
	if order, _ := compare(from, to); order > 0 {
		return nil, errorf(n, "the range %s to %s is empty", form.Text(from), form.Text(to))
	}
	return and{bound{">=", from}, bound{"<=", to}}, nil
}

func (p bound) ok(v form.Value) bool {
	order, ok := compare(v, p.limit)
	if !ok {
		return false
	}
	switch p.op {
	case ">":
		return order > 0
	case ">=":
		return order >= 0
	case "<":
		return order < 0
	}
	return order <= 0
}

func (p bound) explain(v form.Value, r *report) {
	if isNumber(v) {
		r.addf("%s is not %s %s", describe(v), p.op, form.Text(p.limit))
	} else {
		r.not(v, p.noun())
	}
}

func (p bound) take(v form.Value) form.Value { return v }
func (p bound) noun() string                 { return "a number" }

// number parses the number of a predicate. ##NaN is refused, because it has no order.
func number(n *form.Node) (form.Value, error) {
	if f, ok := n.Atom.(float64); ok && f != f || !isNumber(n.Atom) {
		return nil, errorf(n, "%s is not a number", form.Text(n.Value()))
	}
	return n.Atom, nil
}

func isNumber(v form.Value) bool {
	switch v.(type) {
	case int64, float64:
		return true
	}
	return false
}

// natural parses a count.
func natural(n *form.Node) (int, error) {
	i, ok := n.Atom.(int64)
	if !ok || i < 0 || i > math.MaxInt {
		return 0, errorf(n, "%s is not a valid count", form.Text(n.Value()))
	}
	return int(i), nil
}

// compare orders two numbers exactly.
func compare(a, b form.Value) (order int, ok bool) {
	switch a := a.(type) {
	case int64:
		switch b := b.(type) {
		case int64:
			return sign(a < b, a > b), true
		case float64:
			order, ok = compareFloat(b, a)
			return -order, ok
		}
	case float64:
		switch b := b.(type) {
		case int64:
			return compareFloat(a, b)
		case float64:
			return sign(a < b, a > b), a == a && b == b
		}
	}
	return 0, false
}

func compareFloat(f float64, i int64) (order int, ok bool) {
	switch {
	case f != f:
		return 0, false
	case f >= 1<<63:
		return 1, true
	case f < -1<<63:
		return -1, true
	}
	integer := int64(f)
	if integer != i {
		return sign(integer < i, integer > i), true
	}
	rest := f - float64(integer)
	return sign(rest < 0, rest > 0), true
}

func sign(less, more bool) int {
	switch {
	case less:
		return -1
	case more:
		return 1
	}
	return 0
}

// sized returns a predicate on the number of elements.
func sized(of func(n int) size) predicate {
	return func(n *form.Node, args []*form.Node) (typ, error) {
		if len(args) != 1 {
			return nil, errorf(n, "%s takes one number", form.Text(n.Value()))
		}
		count, err := natural(args[0])
		return of(count), err
	}
}

// bare returns a predicate without arguments.
func bare(t typ) predicate {
	return func(n *form.Node, args []*form.Node) (typ, error) {
		if len(args) > 0 {
			return nil, errorf(n, "%s takes no arguments", form.Text(n.Value()))
		}
		return t, nil
	}
}

func hasKey(n *form.Node, args []*form.Node) (typ, error) {
	if len(args) != 1 {
		return nil, errorf(n, "[:has-key :k] takes one key")
	}
	return keys(args)
}

func requiredKeys(n *form.Node, args []*form.Node) (typ, error) {
	if len(args) != 1 || args[0].Kind != form.VectorNode {
		return nil, errorf(n, "[:required-keys [:k …]] takes a vector of keys")
	}
	return keys(args[0].Items)
}

func keys(nodes []*form.Node) (typ, error) {
	var all []form.Value
	for _, n := range nodes {
		switch n.Atom.(type) {
		case form.Keyword, string:
			all = append(all, n.Atom)
		default:
			return nil, errorf(n, "%s is not a key", form.Text(n.Value()))
		}
	}
	return required{all}, nil
}

// The syntax that [:is-url] and [:is-email] accept: common URLs and addresses, a subset of the
// standards.
var (
	urls   = regexp.MustCompile(`^https?://[^\s/?#]+[^\s]*$`)
	emails = regexp.MustCompile(`^[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}$`)
)

// A pattern is a predicate that matches a regular expression.
type pattern struct {
	expr   *regexp.Regexp
	what   string // "a URL"; "": it is matched
	format string // "format" in JSON Schema; "": none
}

func matching(n *form.Node, args []*form.Node) (typ, error) {
	if len(args) != 1 {
		return nil, errorf(n, "[:matches-regex \"…\"] takes one expression")
	}
	text, ok := args[0].Atom.(string)
	if !ok {
		return nil, errorf(args[0], "%s is not a string", form.Text(args[0].Value()))
	}
	expr, err := regexp.Compile(text)
	if err != nil {
		return nil, errorf(args[0], "%v", err)
	}
	return pattern{expr: expr}, nil
}

func (p pattern) ok(v form.Value) bool {
	s, ok := v.(string)
	return ok && p.expr.MatchString(s)
}

func (p pattern) explain(v form.Value, r *report) {
	switch _, ok := v.(string); {
	case p.ok(v):
	case !ok:
		r.not(v, "a string")
	case p.what != "":
		r.not(v, p.what)
	default:
		r.addf("%s does not match %s", describe(v), form.Text(p.expr.String()))
	}
}

func (p pattern) take(v form.Value) form.Value { return v }

func (p pattern) noun() string {
	if p.what != "" {
		return p.what
	}
	return fmt.Sprintf("a string that matches %s", form.Text(p.expr.String()))
}
