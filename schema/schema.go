// Package schema says what values look like: the types of RTFS, compiled once,
// and checked often.
package schema

import (
	"slices"

	"glasshouse/rtfs/form"
)

// deepest is how deep types, JSON texts and values to be written may nest.
const deepest = 512

// A Type is a compiled type. It is safe for concurrent use. A nil *Type and the zero
// Type are :any.
type Type struct {
	root    typ
	written form.Value
	unknown []string
}

// A typ is one node of a compiled type.
type typ interface {
	// ok reports whether v is of this type.
	ok(v form.Value) bool

	// explain adds to r what is wrong with v, and nothing if it is ok.
	explain(v form.Value, r *report)

	// take returns v, which was read from JSON, as this type would have it: a
	// keyword for a string, a float for an int. What cannot be had stays as it is.
	take(v form.Value) form.Value

	// schema is the type as JSON Schema.
	schema() *form.Map

	// noun is what an explanation calls it: "an int".
	noun() string
}

// Compile compiles a type as it stands in a program: :int, [:map [:k :string]], T?.
// An error is a *form.Error with the place.
func Compile(n *form.Node) (*Type, error) {
	return compile([]*form.Node{n})
}

// Parse compiles a type from its text. An error is a *form.Error with the place.
func Parse(file, text string) (*Type, error) {
	nodes, err := form.Read(file, []byte(text))
	if err != nil {
		return nil, err
	}
	if len(nodes) == 0 {
		return nil, form.Errorf("ParseError", "there is no type")
	}
	return compile(nodes)
}

func compile(nodes []*form.Node) (*Type, error) {
	var c compiler
	root, err := c.only(nodes[0], nodes, "there must be one type")
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

// Unknown lists the names in t of types and predicates that are not part of the
// language: [:and :int [:lucky]]. No value fits them.
func (t *Type) Unknown() []string {
	if t.empty() {
		return nil
	}
	return slices.Clone(t.unknown)
}

// Check returns nil if v is of type t. Otherwise it returns a *Mismatch, which says
// of every place what is wrong there: "at [:filters :min_rating]: 6 is not <= 5".
func (t *Type) Check(v form.Value) error {
	if t.empty() || t.root.ok(v) {
		return nil
	}
	var r report
	t.root.explain(v, &r)
	return &Mismatch{Problems: r.problems, More: r.more}
}

// Form is t as it is written.
func (t *Type) Form() form.Value {
	if t.empty() {
		return form.Keyword("any")
	}
	return t.written
}

// String is the text of t.
func (t *Type) String() string { return form.Text(t.Form()) }
