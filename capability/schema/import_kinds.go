package schema

import (
	"regexp"
	"slices"
	"strconv"

	"glasshouse/capability/rtfs/form"
)

// kind converts the keywords for one kind of value.
func (s *source) kind(kind string) (form.Value, error) {
	switch kind {
	case "null":
		return form.Keyword("nil"), nil
	case "boolean":
		return form.Keyword("bool"), nil
	case "integer":
		return s.number("int")
	case "number":
		return s.number("float")
	case "string":
		return s.string()
	case "array":
		return s.array()
	}
	return s.object()
}

// values converts enum and const.
func (s *source) values(kinds []string) ([]form.Value, error) {
	var all []form.Value
	if v, ok := s.get("enum"); ok {
		items, ok := v.(form.Vector)
		if !ok {
			return nil, s.wrong("enum", v)
		}
		all = append(all, s.literals(items, kinds))
	}
	if v, ok := s.get("const"); ok {
		all = append(all, s.literals(form.Vector{v}, kinds))
	}
	return all, nil
}

func (s *source) literals(values []form.Value, kinds []string) form.Value {
	var fit form.Vector
	for _, v := range values {
		if err := fits(v, nil); err != nil {
			s.lose(s.at, "a value: %v", err)
			continue
		}
		if kinds == nil || slices.ContainsFunc(kinds, func(k string) bool { return isKind(v, k) }) {
			fit = append(fit, v)
		}
	}
	switch len(fit) {
	case 0:
		return neverForm
	case 1:
		return typeOf("val", fit...)
	}
	return typeOf("enum", fit...)
}

func isKind(v form.Value, kind string) bool {
	switch v := v.(type) {
	case nil:
		return kind == "null"
	case bool:
		return kind == "boolean"
	case int64:
		return kind == "integer" || kind == "number"
	case float64:
		return kind == "number" || kind == "integer" && intType.ok(intType.take(v))
	case string:
		return kind == "string"
	case form.Vector:
		return kind == "array"
	}
	return kind == "object"
}

// number converts the keywords for numbers.
func (s *source) number(head string) (form.Value, error) {
	all := []form.Value{form.Keyword(head)}
	for _, b := range []struct{ word, op, strict string }{
		{"minimum", ">=", "exclusiveMinimum"}, {"maximum", "<=", "exclusiveMaximum"},
		{"exclusiveMinimum", ">", ""}, {"exclusiveMaximum", "<", ""},
	} {
		v, ok := s.get(b.word)
		if _, isFlag := v.(bool); !ok || isFlag && b.strict == "" {
			continue // before draft 6, exclusiveMinimum is a boolean that modifies minimum
		}
		if n, isBig := v.(big); isBig {
			v, _ = strconv.ParseFloat(string(n), 64)
		}
		if !isNumber(v) {
			return nil, s.wrong(b.word, v)
		}
		op := b.op
		if strict, _ := s.get(b.strict); strict == true {
			op = op[:1]
		}
		all = append(all, typeOf(op, v))
	}
	return allHold(all), nil
}

// count reads a keyword with a count, or returns -1 if it is absent.
func (s *source) count(word string) (int64, error) {
	v, ok := s.get(word)
	if !ok {
		return -1, nil
	}
	n, ok := intType.take(v).(int64)
	if !ok || n < 0 {
		return 0, s.wrong(word, v)
	}
	return n, nil
}

// counts reads the minimum and maximum count for a keyword suffix.
func (s *source) counts(of string) (least, most int64, err error) {
	if least, err = s.count("min" + of); err != nil {
		return 0, 0, err
	}
	most, err = s.count("max" + of)
	return least, most, err
}

// sizedAs adds size predicates to a type.
func sizedAs(t form.Value, predicate string, least, most int64) form.Value {
	all := []form.Value{t}
	switch {
	case most >= 0 && least > most:
		return neverForm
	case least == most && most >= 0:
		all = append(all, typeOf(predicate, least))
	default:
		if least > 0 {
			all = append(all, typeOf("min-"+predicate, least))
		}
		if most >= 0 {
			all = append(all, typeOf("max-"+predicate, most))
		}
	}
	return allHold(all)
}

// string converts the keywords for strings.
func (s *source) string() (form.Value, error) {
	least, most, err := s.counts("Length")
	if err != nil {
		return nil, err
	}
	t, known, err := s.pattern()
	if err != nil {
		return nil, err
	}
	if v, ok := s.get("format"); ok && !known {
		if v == "email" {
			t = allHold([]form.Value{t, typeOf("is-email")})
			s.lose(s.at, "format \"email\", treated as [:is-email]")
		} else {
			s.lose(s.at, "format %s", describe(v))
		}
	}
	return sizedAs(t, "length", least, most), nil
}

// pattern converts a pattern to a type of strings. known reports whether it is a pattern that
// JSONSchema generates.
func (s *source) pattern() (t form.Value, known bool, err error) {
	text := form.Keyword("string")
	v, ok := s.get("pattern")
	if !ok {
		return text, false, nil
	}
	expr, ok := v.(string)
	if !ok {
		return nil, false, s.wrong("pattern", v)
	}
	switch expr {
	case namePattern:
		return form.Keyword("keyword"), true, nil
	case resourcePattern:
		return typeOf("resource"), true, nil
	case urls.String():
		return typeOf("and", text, typeOf("is-url")), true, nil
	case emails.String():
		return typeOf("and", text, typeOf("is-email")), true, nil
	}
	if _, err := regexp.Compile(expr); err != nil {
		s.lose(s.at, "pattern %s", form.Text(expr))
		return text, false, nil
	}
	return typeOf("and", text, typeOf("matches-regex", expr)), false, nil
}

func isPredicateOf(t form.Value, names ...string) bool {
	v, ok := t.(form.Vector)
	if !ok {
		return false
	}
	head, _ := v[0].(form.Keyword)
	return slices.Contains(names, string(head))
}

// array converts the keywords for arrays.
func (s *source) array() (form.Value, error) {
	first, rest, err := s.items()
	if err != nil {
		return nil, err
	}
	least, most, err := s.counts("Items")
	if err != nil {
		return nil, err
	}
	size := int64(len(first))
	if rest == neverForm && (most < 0 || most > size) {
		most = size
	}
	if size > 0 && most >= 0 && most <= size && most-least < 16 {
		return tuples(first, max(least, 0), most), nil
	}
	if size > 0 {
		s.lose(s.at, "order of elements in prefixItems")
		rest = typeOf("union", append(first, rest)...)
	}
	return sizedAs(typeOf("vector", rest), "count", least, most), nil
}

// tuples returns a union of tuples whose trailing elements may be missing.
func tuples(first []form.Value, least, most int64) form.Value {
	var branches []form.Value
	for n := least; n <= most; n++ {
		branches = append(branches, typeOf("tuple", first[:n]...))
	}
	switch len(branches) {
	case 0:
		return neverForm
	case 1:
		return branches[0]
	}
	return typeOf("union", branches...)
}

// items converts the schemas of the first elements and of all further elements.
func (s *source) items() (first []form.Value, rest form.Value, err error) {
	word, restWord := "prefixItems", "items"
	v, _ := s.get(word)
	if items, ok := s.get("items"); ok {
		if list, ok := items.(form.Vector); ok { // before draft 2020-12, items may be a list
			v, word, restWord = list, "items", "additionalItems"
		}
	}
	if list, ok := v.(form.Vector); ok {
		for i, item := range list {
			t, err := s.schema(item, s.in(word, i), nil)
			if err != nil {
				return nil, nil, err
			}
			first = append(first, t)
		}
	} else if v != nil {
		return nil, nil, s.wrong(word, v)
	}
	rest = anyForm
	if v, ok := s.get(restWord); ok {
		rest, err = s.schema(v, s.in(restWord), nil)
	}
	return first, rest, err
}

// object converts the keywords for objects.
func (s *source) object() (form.Value, error) {
	least, most, err := s.counts("Properties")
	if err != nil {
		return nil, err
	}
	var others form.Value = anyForm
	if v, ok := s.get("additionalProperties"); ok && !s.says([]string{"patternProperties"}) { // patternProperties would exempt keys from additionalProperties
		if others, err = s.schema(v, s.in("additionalProperties"), nil); err != nil {
			return nil, err
		}
	}
	entries, err := s.entries(others)
	if err != nil {
		return nil, err
	}
	t := form.Value(typeOf("map", entries...))
	names, named := s.get("propertyNames")
	switch {
	case len(entries) == 0 && (named || others != anyForm && others != neverForm):
		key, err := s.keyType(names, named)
		if err != nil {
			return nil, err
		}
		t = typeOf("map-of", key, others)
	case others != anyForm:
		t = typeOf("map", append(entries, typeOf("*", others))...)
	}
	if named && len(entries) > 0 {
		s.lose(s.at, "propertyNames")
	}
	return sizedAs(t, "count", least, most), nil
}

// keyType returns the key type of a map without named entries.
func (s *source) keyType(names form.Value, named bool) (form.Value, error) {
	if !named {
		return form.Keyword("string"), nil
	}
	if m, ok := names.(*form.Map); ok {
		if expr, _ := m.Get("pattern"); expr == intPattern && m.Len() == 1 {
			return form.Keyword("int"), nil
		}
		if _, ok := m.Get("type"); !ok {
			names = m.With("type", "string")
		}
	}
	key, err := s.schema(names, s.in("propertyNames"), []string{"string"})
	if key == anyForm {
		key = form.Keyword("string")
	}
	return key, err
}

// entries returns the entries of [:map …]. A required property without a schema has the type of
// the other entries.
func (s *source) entries(others form.Value) ([]form.Value, error) {
	needed, err := s.required()
	if err != nil {
		return nil, err
	}
	var entries []form.Value
	v, ok := s.get("properties")
	properties, isMap := v.(*form.Map)
	if ok && !isMap {
		return nil, s.wrong("properties", v)
	}
	for key, property := range properties.All() {
		name := key.(string)
		t, err := s.schema(property, s.in("properties", name), nil)
		if err != nil {
			return nil, err
		}
		_, isNeeded := needed.Get(name)
		entry := form.Vector{keyOf(name)}
		if props := describedAs(property, !isNeeded); props.Len() > 0 {
			entry = append(entry, props)
		}
		entries = append(entries, append(entry, t))
	}
	for key := range needed.All() {
		if _, described := properties.Get(key); !described {
			entries = append(entries, form.Vector{keyOf(key.(string)), others})
		}
	}
	return entries, nil
}

// required returns the names of the required properties, as the keys of a map.
func (s *source) required() (*form.Map, error) {
	v, ok := s.get("required")
	if _, isFlag := v.(bool); !ok || isFlag { // in draft 3, required is a boolean in the property
		return nil, nil
	}
	list, ok := v.(form.Vector)
	if !ok {
		return nil, s.wrong("required", v)
	}
	var pairs []form.Value
	for _, name := range list {
		if !stringType.ok(name) {
			return nil, s.wrong("required", v)
		}
		pairs = append(pairs, name, true)
	}
	return form.NewMap(pairs...), nil
}

// keyOf returns name as a keyword if it is a valid keyword, and otherwise as a string.
func keyOf(name string) form.Value {
	if name != "*" && nameExpr.MatchString(name) {
		return form.Keyword(name)
	}
	return name
}

// describedAs returns the property map between a key and its type.
func describedAs(property form.Value, optional bool) *form.Map {
	props := form.NewMap()
	if optional {
		props = props.With(form.Keyword("optional"), true)
	}
	if m, ok := property.(*form.Map); ok {
		if v, _ := m.Get("description"); v != nil && v != "" && stringType.ok(v) {
			props = props.With(form.Keyword("description"), v)
		}
	}
	return props
}
