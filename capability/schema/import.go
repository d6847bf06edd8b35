package schema

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"glasshouse/capability/rtfs/form"
	"glasshouse/fault"
)

// Limits of FromJSONSchema: the number of types, which references can multiply, and the number
// of entries in lost.
const (
	mostTypes = 20_000
	mostLost  = 100
)

// FromJSONSchema converts a JSON Schema to a type. lost lists the constraints that RTFS types
// cannot express, each with its location: "/properties/n: multipleOf". Where the type differs from
// the schema, it accepts more values, except where lost states the contrary. Form returns the type
// in source form. A recursive reference becomes :any.
func FromJSONSchema(text []byte) (t *Type, lost []string, err error) {
	r := reader{text: text}
	root, err := r.document()
	if err != nil {
		return nil, nil, fault.Newf(fault.Invalid, "schema.FromJSONSchema", "", "JSON at byte %d: %w", r.i, err)
	}
	im := importer{root: root}
	written, err := im.schema(root, "", nil)
	if err == nil {
		t, err = compile([]*form.Node{node(written)})
	}
	if err != nil {
		return nil, nil, fault.New(fault.Invalid, "schema.FromJSONSchema", "", err)
	}
	return t, im.lost, nil
}

// node converts a value to a node without positions.
func node(v form.Value) *form.Node {
	n := &form.Node{}
	switch v := v.(type) {
	case form.Vector:
		n.Kind = form.VectorNode
		for _, item := range v {
			n.Items = append(n.Items, node(item))
		}
	case *form.Map:
		n.Kind = form.MapNode
		for key, value := range v.All() {
			n.Items = append(n.Items, node(key), node(value))
		}
	default:
		n.Atom = v
	}
	return n
}

// An importer converts JSON Schemas to the source form of types.
type importer struct {
	root    form.Value
	open    []string             // references being resolved
	anchors map[string]*form.Map // nil before the first lookup
	depth   int
	types   int
	lost    []string
}

func (im *importer) lose(at, format string, args ...any) {
	what := at + ": " + fmt.Sprintf(format, args...)
	if len(im.lost) < mostLost && !slices.Contains(im.lost, what) {
		im.lost = append(im.lost, what)
	}
}

func typeOf(head string, args ...form.Value) form.Vector {
	return append(form.Vector{form.Keyword(head)}, args...)
}

const (
	anyForm   = form.Keyword("any")
	neverForm = form.Keyword("never")
)

// schema converts one schema at location at. around is the kinds of the enclosing schema. They
// apply if the schema has no type of its own.
func (im *importer) schema(v form.Value, at string, around []string) (form.Value, error) {
	if im.depth++; im.depth > deepest {
		return nil, fmt.Errorf("%s: nested more than %d levels deep", at, deepest)
	}
	defer func() { im.depth-- }()
	if im.types++; im.types > mostTypes {
		return nil, fmt.Errorf("more than %d schemas, including references", mostTypes)
	}
	switch v {
	case true:
		return anyForm, nil
	case false:
		return neverForm, nil
	}
	m, ok := v.(*form.Map)
	if !ok {
		return nil, fmt.Errorf("%s: %s is not a schema", at, describe(v))
	}
	s := &source{importer: im, words: m, at: at}
	return s.document(around)
}

// A source is one schema object during its conversion.
type source struct {
	*importer
	words *form.Map
	at    string
}

// get returns the value of a keyword.
func (s *source) get(word string) (form.Value, bool) { return s.words.Get(word) }

func (s *source) wrong(word string, v form.Value) error {
	return fmt.Errorf("%s/%s: %s is not a valid value", s.at, word, describe(v))
}

// in returns the location of a keyword's value.
func (s *source) in(word string, more ...any) string {
	at := s.at + "/" + word
	for _, m := range more {
		at += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(shorten(fmt.Sprint(m)))
	}
	return at
}

// document returns the conjunction of all keywords of a schema.
func (s *source) document(around []string) (form.Value, error) {
	kinds, err := s.kinds(around)
	if err != nil {
		return nil, err
	}
	var all []form.Value
	for _, part := range []func([]string) ([]form.Value, error){s.values, s.byKind, s.reference, s.allOf, s.choices, s.not} {
		types, err := part(kinds)
		if err != nil {
			return nil, err
		}
		all = append(all, types...)
	}
	s.others()
	t := allHold(all)
	if null, _ := s.get("nullable"); null == true {
		t = typeOf("union", t, form.Keyword("nil"))
	}
	return t, nil
}

// allHold returns the type [:and …] of all types. Some of them may be predicates.
func allHold(all []form.Value) form.Value {
	all = slices.DeleteFunc(all, func(t form.Value) bool { return t == anyForm })
	if len(all) == 0 {
		return anyForm
	}
	if isPredicate(all[0]) {
		all = slices.Insert(all, 0, form.Value(anyForm))
	}
	if len(all) == 1 {
		return all[0]
	}
	return typeOf("and", all...)
}

func isPredicate(t form.Value) bool {
	v, ok := t.(form.Vector)
	if !ok {
		return false
	}
	head, _ := v[0].(form.Keyword)
	_, ok = predicates[string(head)]
	return ok
}

// kinds returns the JSON types that a schema applies to.
func (s *source) kinds(around []string) ([]string, error) {
	v, ok := s.get("type")
	if !ok {
		return around, nil
	}
	names, ok := v.(form.Vector)
	if !ok {
		names = form.Vector{v}
	}
	var kinds []string
	for _, n := range names {
		name, _ := n.(string)
		if !slices.Contains([]string{"null", "boolean", "object", "array", "number", "string", "integer"}, name) {
			return nil, s.wrong("type", v)
		}
		if !slices.Contains(kinds, name) {
			kinds = append(kinds, name)
		}
	}
	if len(kinds) == 0 {
		return nil, s.wrong("type", v)
	}
	if slices.Contains(kinds, "number") {
		kinds = slices.DeleteFunc(kinds, func(k string) bool { return k == "integer" })
	}
	return kinds, nil
}

// about lists the keywords that apply to one kind of value only.
var about = []struct {
	kind  string
	words []string
}{
	{"object", []string{"properties", "required", "additionalProperties", "propertyNames", "minProperties", "maxProperties", "patternProperties", "dependentRequired", "dependentSchemas", "unevaluatedProperties"}},
	{"array", []string{"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems"}},
	{"string", []string{"minLength", "maxLength", "pattern"}},
	{"number", []string{"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
}

func (s *source) says(words []string) bool {
	return slices.ContainsFunc(words, func(w string) bool { _, ok := s.get(w); return ok })
}

// byKind converts the keywords that depend on the kind of value.
func (s *source) byKind(kinds []string) ([]form.Value, error) {
	_, typed := s.get("type")
	if !typed {
		kinds = s.implied(kinds)
	}
	if len(kinds) == 0 || typed && s.settled() {
		return nil, nil
	}
	var branches []form.Value
	for _, kind := range kinds {
		t, err := s.kind(kind)
		if err != nil {
			return nil, err
		}
		branches = append(branches, t)
	}
	if len(branches) == 1 {
		return branches, nil
	}
	return []form.Value{typeOf("union", branches...)}, nil
}

// implied returns the kinds of a schema without type, derived from its keywords. In JSON Schema
// such keywords do not restrict values of other kinds, but authors rarely intend that.
func (s *source) implied(around []string) []string {
	var kinds []string
	for _, a := range about {
		if !s.says(a.words) {
			continue
		}
		switch {
		case slices.Contains(around, a.kind):
			kinds = append(kinds, a.kind)
		case a.kind == "number" && slices.Contains(around, "integer"):
			kinds = append(kinds, "integer")
		case around == nil:
			kinds = append(kinds, a.kind)
			s.lose(s.at, "no type, treated as type %q", a.kind)
		}
	}
	if len(kinds) > 0 && around != nil { // the remaining kinds have no further constraints
		return around
	}
	return kinds
}

// settled reports whether enum or const makes other type constraints redundant: the values are
// filtered by kind, and no keyword restricts them further.
func (s *source) settled() bool {
	if !s.says([]string{"enum", "const"}) {
		return false
	}
	for _, a := range about {
		if s.says(a.words) {
			return false
		}
	}
	_, has := s.get("format")
	return !has
}

// reference converts the target of $ref.
func (s *source) reference([]string) ([]form.Value, error) {
	v, ok := s.get("$ref")
	if !ok {
		return nil, nil
	}
	ref, ok := v.(string)
	if !ok {
		return nil, s.wrong("$ref", v)
	}
	target, ok := s.follow(ref)
	switch {
	case !ok:
		s.lose(s.at, "$ref %s, which is not in this document", form.Text(ref))
		return nil, nil
	case slices.Contains(s.open, ref):
		s.lose(s.at, "$ref %s, which is recursive", form.Text(ref))
		return nil, nil
	}
	s.open = append(s.open, ref)
	defer func() { s.open = s.open[:len(s.open)-1] }()
	t, err := s.schema(target, ref, nil)
	return []form.Value{t}, err
}

// follow resolves a reference within this text.
func (im *importer) follow(ref string) (form.Value, bool) {
	pointer, ok := strings.CutPrefix(ref, "#")
	if !ok {
		return nil, false
	}
	if pointer == "" {
		return im.root, true
	}
	if pointer[0] != '/' {
		if im.anchors == nil {
			im.anchors = map[string]*form.Map{}
			im.anchor(im.root)
		}
		target, ok := im.anchors[pointer]
		return target, ok
	}
	pointer, err := url.PathUnescape(pointer)
	if err != nil {
		return nil, false
	}
	at := im.root
	for _, step := range strings.Split(pointer[1:], "/") {
		step = strings.NewReplacer("~1", "/", "~0", "~").Replace(step)
		switch v := at.(type) {
		case *form.Map:
			if at, ok = v.Get(step); !ok {
				return nil, false
			}
		case form.Vector:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(v) {
				return nil, false
			}
			at = v[i]
		default:
			return nil, false
		}
	}
	return at, true
}

// anchor records every $anchor in v.
func (im *importer) anchor(v form.Value) {
	switch v := v.(type) {
	case *form.Map:
		if name, _ := v.Get("$anchor"); stringType.ok(name) {
			im.anchors[name.(string)] = v
		}
		for _, value := range v.All() {
			im.anchor(value)
		}
	case form.Vector:
		for _, item := range v {
			im.anchor(item)
		}
	}
}

// silent lists the keywords that do not constrain values, and those that are converted for
// every kind of value.
var silent = []string{
	"$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "$vocabulary", "$ref", "id",
	"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly",
	"type", "enum", "const", "allOf", "anyOf", "oneOf", "not", "nullable", "format", "externalDocs", "xml", "discriminator", "$dynamicAnchor",
	"contentEncoding", "contentMediaType", "contentSchema", "then", "else",
}

// unsaid lists the keywords of about that RTFS types cannot express.
var unsaid = []string{
	"multipleOf", "uniqueItems", "contains", "unevaluatedItems", "patternProperties", "dependentRequired",
	"dependentSchemas", "unevaluatedProperties",
}

// others records the unknown keywords as lost.
func (s *source) others() {
	for key, v := range s.words.All() {
		word := key.(string)
		known := slices.Contains(silent, word) || strings.HasPrefix(word, "x-")
		for _, a := range about {
			known = known || slices.Contains(a.words, word)
		}
		if word == "uniqueItems" && v == false {
			continue
		}
		if !known || slices.Contains(unsaid, word) {
			s.lose(s.at, "%s", shorten(word))
		}
	}
}
