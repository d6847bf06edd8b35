package form

import "errors"

// Read reads a text whole: the nodes it is made of, in their order. An error is an
// *Error of kind "ParseError" with its place, and its message shows the line.
func Read(file string, src []byte) ([]*Node, error) {
	return nil, errors.New("form: not written yet")
}

// Text is a value as a program would write it: what Read reads is the same value.
func Text(v Value) string { return string(Append(nil, v)) }

// Append appends the text of a value.
func Append(b []byte, v Value) []byte { return b }
