package schema

import (
	"slices"

	"glasshouse/capability/rtfs/form"
)

// A maybe is T?: T or nil.
type maybe struct{ typ }

// orNil returns T? for T, which may be of the form T? already.
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

// explain reports the problems of the branch that is closest to v, if it accepts values of the
// same kind: the one with the fewest problems, all of them inside v.
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

// take converts v by the first matching branch that does not change ints to floats or floats to
// ints, otherwise by the first matching branch.
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

// kept reports whether all numbers in made have the same kind as in read.
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
	case *form.Map: // conversion keeps the order of the keys
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
