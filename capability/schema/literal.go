package schema

import (
	"slices"

	"glasshouse/capability/rtfs/form"
)

// An enum is [:enum v…] or [:val v]: one of several values.
type enum []form.Value

// literals compiles the values of an enum.
func literals(n *form.Node, args []*form.Node) (typ, error) {
	if len(args) == 0 {
		return nil, errorf(n, "[:enum v …] has at least one value")
	}
	all := make(enum, len(args))
	for i, arg := range args {
		all[i] = arg.Value()
	}
	return all, nil
}

func (t enum) ok(v form.Value) bool {
	for _, one := range t {
		if form.Equal(one, v) {
			return true
		}
	}
	return false
}

func (t enum) explain(v form.Value, r *report) {
	switch {
	case t.ok(v):
	case len(t) == 1:
		r.not(v, t.noun())
	default:
		r.addf("%s is not one of %s", describe(v), t.list())
	}
}

func (t enum) noun() string {
	if len(t) == 1 {
		return describe(t[0])
	}
	return "one of " + t.list()
}

// list returns the values, truncated.
func (t enum) list() string {
	const most = 12
	var b []byte
	for i, v := range t {
		if i > 0 {
			b = append(b, ", "...)
		}
		if i == most {
			return string(b) + "…"
		}
		b = append(b, describe(v)...)
	}
	return string(b)
}

func (t enum) take(v form.Value) form.Value {
	if t.ok(v) {
		return v
	}
	for _, one := range t {
		if alike(v, one) {
			return one
		}
	}
	return v
}

// An equal is [:= v] or [:!= v]. Integers and floats are compared by numeric value.
type equal struct {
	value form.Value
	is    bool
}

func equality(is bool) predicate {
	return func(n *form.Node, args []*form.Node) (typ, error) {
		if len(args) != 1 {
			return nil, errorf(n, "%s takes one value", form.Text(n.Value()))
		}
		return equal{args[0].Value(), is}, nil
	}
}

func (p equal) ok(v form.Value) bool { return equalValues(v, p.value) == p.is }

func (p equal) explain(v form.Value, r *report) {
	switch {
	case p.ok(v):
	case p.is:
		r.not(v, p.noun())
	default:
		r.addf("%s is not allowed", describe(v))
	}
}

func (p equal) noun() string {
	if p.is {
		return describe(p.value)
	}
	return "anything but " + describe(p.value)
}

func (p equal) take(v form.Value) form.Value {
	if p.is && alike(v, p.value) && !equalValues(v, p.value) {
		return p.value
	}
	return v
}

// equalValues reports whether a and b are equal. Integers and floats are compared by numeric value.
func equalValues(a, b form.Value) bool {
	return same(a, b, form.Equal)
}

// alike reports whether a and b have the same JSON form: numbers by numeric value, keywords and
// symbols as strings.
func alike(a, b form.Value) bool {
	return same(a, b, func(a, b form.Value) bool {
		x, ok := text(a)
		y, also := text(b)
		return ok && also && x == y || !ok && !also && form.Equal(a, b)
	})
}

// same compares deeply: numbers by numeric value, and other scalars by scalar.
func same(a, b form.Value, scalar func(a, b form.Value) bool) bool {
	if x, ok := elements(a); ok {
		y, ok := elements(b)
		return ok && slices.EqualFunc(x, y, func(a, b form.Value) bool { return same(a, b, scalar) })
	}
	if x, ok := a.(*form.Map); ok {
		y, ok := b.(*form.Map)
		if !ok || x.Len() != y.Len() {
			return false
		}
		for k, v := range x.All() {
			w, ok := lookup(y, k, scalar)
			if !ok || !same(v, w, scalar) {
				return false
			}
		}
		return true
	}
	if isNumber(a) && isNumber(b) {
		order, ok := compare(a, b)
		return ok && order == 0
	}
	return scalar(a, b)
}

// lookup finds a key by scalar equality.
func lookup(m *form.Map, key form.Value, scalar func(a, b form.Value) bool) (form.Value, bool) {
	if v, ok := m.Get(key); ok {
		return v, true
	}
	for k, v := range m.All() {
		if scalar(k, key) {
			return v, true
		}
	}
	return nil, false
}

// text returns the JSON string for a value, if JSON encodes it as a string.
func text(v form.Value) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case form.Keyword:
		return string(v), true
	case form.Symbol:
		return string(v), true
	case form.Resource:
		return string(v), true
	}
	return "", false
}
