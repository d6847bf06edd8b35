// Package schema says what values look like: the types of RTFS, compiled once,
// and checked often.
package schema

import (
	"errors"

	"glasshouse/rtfs/form"
)

// A Type is a compiled type. It is safe for concurrent use.
type Type struct{}

// Compile compiles a type as it stands in a program: :int, [:map [:k :string]], T?.
// An error is a *form.Error with the place.
func Compile(n *form.Node) (*Type, error) { return nil, errors.New("schema: not written yet") }

// Check returns nil if v is of type t, or an error that says of every place what is
// wrong there: "at [:filters :min_rating]: 6 is not <= 5".
func (t *Type) Check(v form.Value) error { return nil }

// FromJSON reads a JSON text as a value of type t: keys of objects become keywords
// where t names them so, strings where it is a keyword or an enum of them, and
// numbers what t wants. It does not check more than that. A nil t gives string keys.
func (t *Type) FromJSON(text []byte) (form.Value, error) { return nil, nil }

// ToJSON writes a value as JSON: keywords without their colon.
func ToJSON(v form.Value) ([]byte, error) { return nil, nil }

// JSONSchema is t as JSON Schema 2020-12.
func (t *Type) JSONSchema() ([]byte, error) { return nil, nil }

// FromJSONSchema is the type that a JSON Schema describes, and what of it no type can
// say. Form returns it as it is written.
func FromJSONSchema(text []byte) (t *Type, lost []string, err error) { return nil, nil, nil }

// Form is t as it is written.
func (t *Type) Form() form.Value { return nil }
