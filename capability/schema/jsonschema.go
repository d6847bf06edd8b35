package schema

import (
	"regexp"
	"slices"

	"glasshouse/capability/rtfs/form"
)

// Patterns of strings that are converted to a keyword, a symbol or a resource. They match the
// RTFS syntax of these values.
const (
	namePattern     = `^[A-Za-z_$+*/=<>!?%-][A-Za-z0-9_$+*/=<>!?%.@-]*(:v[0-9]+(\.[0-9]+)*/[A-Za-z0-9_$+*/=<>!?%.@-]+)?$`
	intPattern      = `^(0|-?[1-9][0-9]*)$`
	resourcePattern = `^resource://[^\s\[\](){}",;]+$`
)

var (
	nameExpr     = regexp.MustCompile(namePattern)
	resourceExpr = regexp.MustCompile(resourcePattern)
)

// JSONSchema returns t as JSON Schema 2020-12. A type without a JSON form, such as a function,
// becomes a schema that no value matches. RTFS maps allow additional keys, so
// additionalProperties is set only if t has [:* T].
func (t *Type) JSONSchema() ([]byte, error) {
	if t.empty() {
		return []byte("{}"), nil
	}
	return ToJSON(t.root.schema())
}

func object(pairs ...form.Value) *form.Map { return form.NewMap(pairs...) }

func (w word) schema() *form.Map {
	switch w {
	case anyType:
		return object()
	case nilType:
		return object("type", "null")
	case boolType:
		return object("type", "boolean")
	case intType:
		return object("type", "integer")
	case floatType:
		return object("type", "number")
	case stringType:
		return object("type", "string")
	case keywordType, symbolType:
		return object("type", "string", "pattern", namePattern)
	case resource:
		return object("type", "string", "pattern", resourcePattern)
	}
	return object("not", object())
}

func (t *vector) schema() *form.Map {
	s := object("type", "array")
	if t.elem != anyType {
		s = s.With("items", t.elem.schema())
	}
	return ranged(s, "Items", t.min, t.max)
}

// ranged adds the minimum and maximum keywords for a size.
func ranged(s *form.Map, of string, min, max int) *form.Map {
	if min > 0 {
		s = s.With("min"+of, int64(min))
	}
	if max >= 0 {
		s = s.With("max"+of, int64(max))
	}
	return s
}

func (t tuple) schema() *form.Map {
	s := object("type", "array")
	if len(t) > 0 {
		s = s.With("prefixItems", schemas(t))
	}
	return ranged(s, "Items", len(t), len(t))
}

func schemas(types []typ) form.Vector {
	all := make(form.Vector, len(types))
	for i, t := range types {
		all[i] = t.schema()
	}
	return all
}

func (m *fields) schema() *form.Map {
	var properties, needed []form.Value
	for _, f := range m.entries {
		s := f.typ.schema()
		if f.description != "" {
			s = s.With("description", f.description)
		}
		properties = append(properties, f.name, s)
		if !f.optional {
			needed = append(needed, f.name)
		}
	}
	s := object("type", "object")
	if len(properties) > 0 {
		s = s.With("properties", form.NewMap(properties...))
	}
	if len(needed) > 0 {
		s = s.With("required", form.Vector(needed))
	}
	switch m.others {
	case nil, anyType:
	case never:
		s = s.With("additionalProperties", false)
	default:
		s = s.With("additionalProperties", m.others.schema())
	}
	return s
}

func (m *mapOf) schema() *form.Map {
	s := object("type", "object")
	switch m.key {
	case stringType, anyType:
	case intType:
		s = s.With("propertyNames", object("pattern", intPattern))
	default:
		s = s.With("propertyNames", m.key.schema())
	}
	return s.With("additionalProperties", m.value.schema())
}

func (t maybe) schema() *form.Map { return union{t.typ, nilType}.schema() }

// schema returns a schema with several types if all branches are single words.
func (t union) schema() *form.Map {
	var types form.Vector
	for _, branch := range t {
		s := branch.schema()
		kind, ok := s.Get("type")
		if !ok || s.Len() > 1 {
			return object("anyOf", schemas(t))
		}
		names, ok := kind.(form.Vector)
		if !ok {
			names = form.Vector{kind}
		}
		for _, name := range names {
			if !slices.Contains(types, name) {
				types = append(types, name)
			}
		}
	}
	if len(types) == 1 {
		return object("type", types[0])
	}
	return object("type", types)
}

func (t enum) schema() *form.Map {
	var all, texts form.Vector
	seen := map[string]bool{}
	for _, v := range t {
		written, err := ToJSON(v)
		if err != nil || seen[string(written)] {
			continue
		}
		seen[string(written)] = true
		all = append(all, v)
		if _, ok := text(v); ok {
			texts = append(texts, v)
		}
	}
	s := object()
	if len(texts) == len(t) {
		s = object("type", "string")
	}
	switch len(all) {
	case 0:
		return never.schema()
	case 1:
		return s.With("const", all[0])
	}
	return s.With("enum", all)
}

// schema merges the schemas of the members into one schema if that has the same meaning.
func (t and) schema() *form.Map {
	s := t[0].schema()
	var apart form.Vector
	for _, member := range t[1:] {
		add := member.schema()
		if p, ok := member.(size); ok {
			kind, _ := s.Get("type")
			add = p.of(kind)
		}
		if joined, ok := join(s, add); ok {
			s = joined
		} else {
			apart = append(apart, add)
		}
	}
	if len(apart) > 0 {
		if _, taken := s.Get("allOf"); taken {
			s = object("allOf", append(form.Vector{s}, apart...))
		} else {
			s = s.With("allOf", apart)
		}
	}
	return s
}

// alone lists the JSON Schema keywords whose meaning does not depend on adjacent keywords.
var alone = []string{
	"type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "pattern",
	"format", "minItems", "maxItems", "minProperties", "maxProperties", "required", "const", "not",
}

// join merges add into s if this changes the meaning of neither schema.
func join(s, add *form.Map) (*form.Map, bool) {
	for word, v := range add.All() {
		old, taken := s.Get(word)
		switch {
		case !slices.Contains(alone, word.(string)):
			return nil, false
		case !taken:
			s = s.With(word, v)
		case form.Equal(old, v), word == "type" && old == "integer" && v == "number":
		default:
			return nil, false
		}
	}
	return s, true
}

func (p bound) schema() *form.Map {
	words := map[string]string{">": "exclusiveMinimum", ">=": "minimum", "<": "exclusiveMaximum", "<=": "maximum"}
	if _, err := ToJSON(p.limit); err != nil { // infinity has no JSON form
		if positive, _ := compare(p.limit, int64(0)); positive > 0 == (p.op[0] == '<') {
			return object("type", "number")
		}
		return never.schema()
	}
	return object("type", "number", words[p.op], p.limit)
}

func (p equal) schema() *form.Map {
	s := enum{p.value}.schema()
	if p.is {
		return s
	}
	if v, ok := s.Get("const"); ok {
		return object("not", object("const", v))
	}
	return object()
}

// of returns the size keywords for a kind of value, if it is known.
func (p size) of(kind form.Value) *form.Map {
	switch kind {
	case "string":
		return ranged(object("type", kind), "Length", p.min, p.max)
	case "array":
		return ranged(object("type", kind), "Items", p.min, p.max)
	case "object":
		return ranged(object("type", kind), "Properties", p.min, p.max)
	}
	return p.schema()
}

func (p size) schema() *form.Map {
	return object("anyOf", form.Vector{p.of("string"), p.of("array"), p.of("object")})
}

func (p pattern) schema() *form.Map {
	s := object("type", "string", "pattern", p.expr.String())
	if p.format != "" {
		s = s.With("format", p.format)
	}
	return s
}

func (p required) schema() *form.Map {
	names := form.Vector{}
	for _, key := range p.keys {
		if name := spelling(key); !slices.Contains(names, form.Value(name)) {
			names = append(names, name)
		}
	}
	return object("type", "object", "required", names)
}
