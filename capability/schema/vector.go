package schema

import (
	"fmt"
	"unicode/utf8"

	"glasshouse/capability/rtfs/form"
)

// elements returns the elements of a vector or a list, which are interchangeable.
func elements(v form.Value) ([]form.Value, bool) {
	switch v := v.(type) {
	case form.Vector:
		return v, true
	case form.List:
		return v, true
	}
	return nil, false
}

// A vector is [:vector T], and one dimension of [:array T [n]].
type vector struct {
	elem     typ
	min, max int // max < 0: no limit
}

// array compiles [:array T [3 ?]] to nested vectors, one for each dimension.
func (c *compiler) array(n *form.Node, args []*form.Node) (typ, error) {
	const rule = "[:array T [n …]] takes a type and the length of each dimension"
	var dims []*form.Node
	if last := len(args) - 1; last > 0 && args[last].Kind == form.VectorNode {
		args, dims = args[:last], args[last].Items
	}
	t, err := c.only(n, args, rule)
	if err != nil {
		return nil, err
	}
	if len(dims) == 0 {
		return &vector{elem: t, max: -1}, nil
	}
	if c.depth+len(dims) > deepest {
		return nil, errorf(n, "an array has more than %d dimensions", deepest)
	}
	for i := len(dims) - 1; i >= 0; i-- {
		if isMark(dims[i]) {
			t = &vector{elem: t, max: -1}
			continue
		}
		size, err := natural(dims[i])
		if err != nil {
			return nil, err
		}
		t = &vector{elem: t, min: size, max: size}
	}
	return t, nil
}

func (t *vector) ok(v form.Value) bool {
	items, ok := elements(v)
	if !ok || len(items) < t.min || t.max >= 0 && len(items) > t.max {
		return false
	}
	if t.elem == anyType {
		return true
	}
	for _, item := range items {
		if !t.elem.ok(item) {
			return false
		}
	}
	return true
}

func (t *vector) explain(v form.Value, r *report) {
	items, ok := elements(v)
	if !ok {
		r.not(v, t.noun())
		return
	}
	if len(items) < t.min || t.max >= 0 && len(items) > t.max {
		r.not(v, t.noun())
	}
	for i, item := range items {
		if r.more {
			return
		}
		r.child(int64(i), t.elem, item)
	}
}

func (t *vector) noun() string {
	if t.max >= 0 {
		return fmt.Sprintf("a vector of %d", t.max)
	}
	return "a vector"
}

func (t *vector) take(v form.Value) form.Value {
	items, ok := elements(v)
	if !ok {
		return v
	}
	taken := make(form.Vector, len(items))
	for i, item := range items {
		taken[i] = t.elem.take(item)
	}
	return taken
}

// A tuple is [:tuple T…].
type tuple []typ

func (t tuple) ok(v form.Value) bool {
	items, ok := elements(v)
	if !ok || len(items) != len(t) {
		return false
	}
	for i, item := range items {
		if !t[i].ok(item) {
			return false
		}
	}
	return true
}

func (t tuple) explain(v form.Value, r *report) {
	items, ok := elements(v)
	if !ok || len(items) != len(t) {
		r.not(v, t.noun())
	}
	for i := range min(len(items), len(t)) {
		r.child(int64(i), t[i], items[i])
	}
}

func (t tuple) noun() string { return fmt.Sprintf("a tuple of %d", len(t)) }

func (t tuple) take(v form.Value) form.Value {
	items, ok := elements(v)
	if !ok {
		return v
	}
	taken := make(form.Vector, len(items))
	for i, item := range items {
		if taken[i] = item; i < len(t) {
			taken[i] = t[i].take(item)
		}
	}
	return taken
}

// A size is a predicate on length: [:min-length n], [:count n], …
type size struct{ min, max int } // max < 0: no limit

// measure counts characters, elements or entries. It returns -1 for values without a length.
func measure(v form.Value) (n int, unit string) {
	switch v := v.(type) {
	case string:
		return utf8.RuneCountInString(v), "characters"
	case *form.Map:
		return v.Len(), "entries"
	}
	if items, ok := elements(v); ok {
		return len(items), "elements"
	}
	return -1, ""
}

func (p size) ok(v form.Value) bool {
	n, _ := measure(v)
	return n >= p.min && (p.max < 0 || n <= p.max)
}

func (p size) explain(v form.Value, r *report) {
	n, unit := measure(v)
	wanted := fmt.Sprintf("not at least %d", p.min)
	switch {
	case p.ok(v):
		return
	case n < 0:
		r.not(v, p.noun())
		return
	case p.min == p.max:
		wanted = fmt.Sprintf("not %d", p.min)
	case p.max >= 0 && n > p.max:
		wanted = fmt.Sprintf("not at most %d", p.max)
	}
	if unit == "characters" {
		r.addf("%s has %d %s, %s", describe(v), n, unit, wanted)
	} else {
		r.addf("%s has %s %s", describe(v), wanted, unit)
	}
}

func (p size) take(v form.Value) form.Value { return v }
func (p size) noun() string                 { return "a string, a vector or a map" }
