// Package schema implements the types of RTFS. A type is compiled once and checks values,
// converts JSON to values, and converts to and from JSON Schema.
package schema

import (
	"slices"

	"glasshouse/capability/rtfs/form"
)

// deepest is the maximum nesting depth of types, JSON texts and encoded values.
const deepest = 512

// A Type is a compiled type. It is safe for concurrent use. A nil *Type and the zero Type mean
// :any.
type Type struct {
	root    typ
	written form.Value
	unknown []string
}

// A typ is one node of a compiled type.
type typ interface {
	// ok reports whether v is of this type.
	ok(v form.Value) bool

	// explain adds the problems of v to r. It adds none if ok(v).
	explain(v form.Value, r *report)

	// take converts v, which was parsed from JSON, to this type: a string to a keyword, an int
	// to a float. It returns v unchanged if the conversion is not possible.
	take(v form.Value) form.Value

	// schema returns the type as JSON Schema.
	schema() *form.Map

	// noun returns the name of the type in messages: "an int".
	noun() string
}

// Compile compiles a type from its source form: :int, [:map [:k :string]], T?. An error is a
// *form.Error with a position.
func Compile(n *form.Node) (*Type, error) {
	return compile([]*form.Node{n})
}

// Parse compiles a type from its text. An error is a *form.Error with a position.
func Parse(file, text string) (*Type, error) {
	nodes, err := form.Read(file, []byte(text))
	if err != nil {
		return nil, err
	}
	if len(nodes) == 0 {
		return nil, form.Errorf("ParseError", "the type is missing")
	}
	return compile(nodes)
}

func compile(nodes []*form.Node) (*Type, error) {
	var c compiler
	root, err := c.only(nodes[0], nodes, "expected exactly one type")
	if err != nil {
		return nil, err
	}
	t := &Type{root: root, written: nodes[0].Value(), unknown: c.unknown}
	if len(nodes) > 1 { // T ?
		t.written = form.Vector{form.Keyword("union"), t.written, form.Keyword("nil")}
	}
	return t, nil
}

func (t *Type) empty() bool { return t == nil || t.root == nil }

// Unknown returns the names of types and predicates in t that the language does not define, as
// in [:and :int [:lucky]]. No value matches them.
func (t *Type) Unknown() []string {
	if t.empty() {
		return nil
	}
	return slices.Clone(t.unknown)
}

// Check returns nil if v is of type t. Otherwise it returns a *Mismatch that lists every
// problem with its position: "at [:filters :min_rating]: 6 is not <= 5".
func (t *Type) Check(v form.Value) error {
	if t.empty() || t.root.ok(v) {
		return nil
	}
	var r report
	t.root.explain(v, &r)
	return &Mismatch{Problems: r.problems, More: r.more}
}

// Form returns the source form of t.
func (t *Type) Form() form.Value {
	if t.empty() {
		return form.Keyword("any")
	}
	return t.written
}

// String returns the text of t.
func (t *Type) String() string { return form.Text(t.Form()) }
