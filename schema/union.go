package schema

import (
	"slices"

	"glasshouse/rtfs/form"
)

// A maybe is T?: nil will do too.
type maybe struct{ typ }

// orNil is T? of a T, which may be one already.
func orNil(t typ) typ {
	if _, ok := t.(maybe); ok {
		return t
	}
	return maybe{t}
}

func (t maybe) ok(v form.Value) bool { return v == nil || t.typ.ok(v) }

func (t maybe) explain(v form.Value, r *report) {
	if v != nil {
		t.typ.explain(v, r)
	}
}

func (t maybe) noun() string { return or([]string{t.typ.noun(), "nil"}) }

func (t maybe) take(v form.Value) form.Value {
	if v == nil {
		return nil
	}
	return t.typ.take(v)
}

// A union is [:union T…].
type union []typ

func (t union) ok(v form.Value) bool {
	for _, branch := range t {
		if branch.ok(v) {
			return true
		}
	}
	return false
}

// explain takes the branch that v is nearest to, if it is of the same kind: the
// one that finds the least wrong, and finds it inside v.
func (t union) explain(v form.Value, r *report) {
	if t.ok(v) {
		return
	}
	var best *report
	for _, branch := range t {
		try := &report{path: slices.Clone(r.path)}
		branch.explain(v, try)
		inside := !slices.ContainsFunc(try.problems, func(p Problem) bool { return len(p.Path) == len(r.path) })
		if inside && (best == nil || len(try.problems) < len(best.problems)) {
			best = try
		}
	}
	if best == nil {
		r.not(v, t.noun())
		return
	}
	for _, p := range best.problems {
		if len(r.problems) == listed {
			r.more = true
			return
		}
		r.problems = append(r.problems, p)
	}
	r.more = r.more || best.more
}

func (t union) noun() string {
	var nouns []string
	for _, branch := range t {
		if n := branch.noun(); branch != never && !slices.Contains(nouns, n) {
			nouns = append(nouns, n)
		}
	}
	if len(nouns) == 0 {
		return never.noun()
	}
	return or(nouns)
}

// take takes the first branch that fits, and before it the first that fits without
// an int becoming a float or a float an int.
func (t union) take(v form.Value) form.Value {
	var fits []form.Value
	for _, branch := range t {
		taken := branch.take(v)
		if !branch.ok(taken) {
			continue
		}
		if kept(v, taken) {
			return taken
		}
		fits = append(fits, taken)
	}
	if len(fits) > 0 {
		return fits[0]
	}
	return v
}

// kept reports whether all numbers in what was read are still of their kind in what
// was made of it.
func kept(read, made form.Value) bool {
	switch read := read.(type) {
	case int64:
		_, ok := made.(int64)
		return ok
	case float64:
		_, ok := made.(float64)
		return ok
	case form.Vector:
		made, ok := made.(form.Vector)
		return ok && slices.EqualFunc(read, made, kept)
	case *form.Map: // keys come in the same order
		made, ok := made.(*form.Map)
		if !ok || made.Len() != read.Len() {
			return false
		}
		var values []form.Value
		for _, v := range made.All() {
			values = append(values, v)
		}
		for _, v := range read.All() {
			if !kept(v, values[0]) {
				return false
			}
			values = values[1:]
		}
	}
	return true
}
