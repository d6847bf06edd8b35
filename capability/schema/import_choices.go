package schema

import (
	"slices"

	"glasshouse/capability/rtfs/form"
)

// list converts a keyword whose value is a list of schemas.
func (s *source) list(word string, kinds []string) ([]form.Value, error) {
	v, ok := s.get(word)
	if !ok {
		return nil, nil
	}
	list, ok := v.(form.Vector)
	if !ok || len(list) == 0 {
		return nil, s.wrong(word, v)
	}
	var all []form.Value
	for i, item := range list {
		t, err := s.schema(item, s.in(word, i), kinds)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

func (s *source) allOf(kinds []string) ([]form.Value, error) { return s.list("allOf", kinds) }

// choices converts anyOf and oneOf.
func (s *source) choices(kinds []string) ([]form.Value, error) {
	var all []form.Value
	for _, word := range []string{"anyOf", "oneOf"} {
		branches, err := s.list(word, kinds)
		if err != nil {
			return nil, err
		}
		if word == "oneOf" && len(branches) > 1 && !disjoint(branches) {
			s.lose(s.at, "oneOf, treated as anyOf")
		}
		switch len(branches) {
		case 0:
		case 1:
			all = append(all, branches[0])
		default:
			all = append(all, typeOf("union", branches...))
		}
	}
	return all, nil
}

// disjoint reports whether provably no value matches two of these types: they have different
// kinds, different values, or are maps that differ in a required field.
func disjoint(types []form.Value) bool {
	if len(types) > 100 {
		return false
	}
	for i, a := range types {
		for _, b := range types[i+1:] {
			if !apart(a, b) {
				return false
			}
		}
	}
	return true
}

func apart(a, b form.Value) bool {
	x, y := values(a), values(b)
	if x != nil && y != nil {
		return len(x)*len(y) < 10_000 && !slices.ContainsFunc(x, func(v form.Value) bool {
			return slices.ContainsFunc(y, func(w form.Value) bool { return alike(v, w) })
		})
	}
	if k, l := kindOf(a), kindOf(b); k != "" && l != "" && k != l {
		return true
	}
	others := neededFields(b)
	for name, t := range neededFields(a) {
		u, ok := others[name]
		if ok && values(t) != nil && values(u) != nil && apart(t, u) {
			return true
		}
	}
	return false
}

// values returns the values of an enum, or nil for other types.
func values(t form.Value) []form.Value {
	if v, ok := t.(form.Vector); ok && isPredicateOf(t, "enum", "val") {
		return v[1:]
	}
	return nil
}

// kindOf returns the kind of value that a type accepts, or "" if it is not a single known kind.
func kindOf(t form.Value) string {
	switch t {
	case form.Keyword("int"), form.Keyword("float"):
		return "number"
	case form.Keyword("string"), form.Keyword("keyword"):
		return "string"
	case form.Keyword("bool"), form.Keyword("nil"):
		return string(t.(form.Keyword))
	}
	v, ok := t.(form.Vector)
	if !ok {
		return ""
	}
	switch v[0] {
	case form.Keyword("map"), form.Keyword("map-of"):
		return "map"
	case form.Keyword("vector"), form.Keyword("tuple"):
		return "vector"
	case form.Keyword("and"):
		return kindOf(v[1])
	case form.Keyword("enum"), form.Keyword("val"):
		kind := ""
		for _, value := range v[1:] {
			k := map[bool]string{true: "string", false: ""}[stringType.ok(value)]
			if isNumber(value) {
				k = "number"
			}
			if k == "" || kind != "" && kind != k {
				return ""
			}
			kind = k
		}
		return kind
	}
	return ""
}

// neededFields returns the required entries of a map type.
func neededFields(t form.Value) map[form.Value]form.Value {
	v, ok := t.(form.Vector)
	if !ok || len(v) == 0 || v[0] != form.Keyword("map") {
		return nil
	}
	fields := map[form.Value]form.Value{}
	for _, e := range v[1:] {
		entry := e.(form.Vector)
		if props, ok := entry[1].(*form.Map); ok {
			if optional, _ := props.Get(form.Keyword("optional")); optional == true {
				continue
			}
		}
		fields[entry[0]] = entry[len(entry)-1]
	}
	return fields
}

// not converts not to predicates.
func (s *source) not([]string) ([]form.Value, error) {
	v, ok := s.get("not")
	if !ok {
		return nil, nil
	}
	m, isMap := v.(*form.Map)
	switch {
	case v == true || isMap && m.Len() == 0:
		return []form.Value{neverForm}, nil
	case v == false:
		return nil, nil
	case !isMap:
		return nil, s.wrong("not", v)
	}
	var values form.Vector
	if value, ok := m.Get("const"); ok {
		values = form.Vector{value}
	} else if v, ok := m.Get("enum"); ok {
		values, _ = v.(form.Vector)
	}
	if values != nil && m.Len() == 1 && fits(values, nil) == nil {
		var all []form.Value
		for _, value := range values {
			all = append(all, typeOf("!=", value))
		}
		return all, nil
	}
	s.lose(s.at, "not")
	return nil, nil
}
