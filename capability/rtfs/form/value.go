// Package form defines the values of RTFS, their text, and the nodes of a parsed text with
// their positions.
package form

import (
	"fmt"
	"slices"
)

// A Value is nil, a bool, an int64, a float64, a string, or one of the types below. Values are
// immutable: neither the creator nor a receiver modifies them.
type Value = any

// A Keyword is a keyword without its colon.
type Keyword string

// A Symbol is a name in a program.
type Symbol string

// A Vector is written in brackets, a List in parentheses. They are equal if their elements are
// equal.
type (
	Vector []Value
	List   []Value
)

// A Resource is a handle that the host interprets: resource://…
type Resource string

// A Func is a callable value. Its implementation is known to the evaluator only.
type Func interface {
	FuncName() string // "" if it has none
}

// An Error is the failure of a program, and a value that the program can catch.
type Error struct {
	Kind    string // "DivisionByZero", "TypeError", …
	Message string
	Data    Value   // from ex-info and throw; nil: none
	Pos     Pos     // where the error occurred
	Stack   []Frame // the active calls, innermost first
	Cause   error   // the error of the host; nil: none
	Host    bool    // the host failed to perform a call
}

// A Frame is one call.
type Frame struct {
	Func string
	Pos  Pos
}

func (e *Error) Error() string {
	if e.Pos.Line > 0 {
		return fmt.Sprintf("%s: %s: %s", e.Pos, e.Kind, e.Message)
	}
	return e.Kind + ": " + e.Message
}

func (e *Error) Unwrap() error { return e.Cause }

// Errorf returns an error of the given kind.
func Errorf(kind, format string, args ...any) *Error {
	return &Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// A Pos is a position in a text. Lines and columns count from 1, columns in runes.
type Pos struct {
	File   string
	Offset int
	Line   int
	Col    int
}

func (p Pos) String() string {
	if p.File == "" {
		return fmt.Sprintf("%d:%d", p.Line, p.Col)
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Col)
}

// A Kind is the kind of a Node.
type Kind uint8

const (
	AtomNode   Kind = iota // Atom is its value: nil, bool, int64, float64, string, Keyword, Symbol, Resource
	ListNode               // also used for abbreviations: 'x is (quote x)
	VectorNode             //
	MapNode                // Items are alternating keys and values
)

// A Node is a parsed value with its position.
type Node struct {
	Kind  Kind
	Atom  Value
	Items []*Node
	Meta  []*Node // metadata written before it with ^; nil: none
	Pos   Pos
	End   int // offset after its last byte
}

// Value returns the value of n without positions.
func (n *Node) Value() Value {
	switch n.Kind {
	case ListNode:
		return List(n.values())
	case VectorNode:
		return Vector(n.values())
	case MapNode:
		m := &Map{}
		for i := 0; i+1 < len(n.Items); i += 2 {
			m.put(n.Items[i].Value(), n.Items[i+1].Value())
		}
		return m
	}
	return n.Atom
}

func (n *Node) values() []Value {
	all := make([]Value, len(n.Items))
	for i, item := range n.Items {
		all[i] = item.Value()
	}
	return all
}

// Equal reports whether two values are deeply equal. A vector can equal a list; an integer
// never equals a float.
func Equal(a, b Value) bool {
	if x, ok := elements(a); ok {
		y, ok := elements(b)
		return ok && slices.EqualFunc(x, y, Equal)
	}
	switch a := a.(type) {
	case *Map:
		b, ok := b.(*Map)
		if !ok || a.Len() != b.Len() {
			return false
		}
		for k, v := range a.All() {
			if w, ok := b.Get(k); !ok || !Equal(v, w) {
				return false
			}
		}
		return true
	case *Error:
		b, ok := b.(*Error)
		return ok && a == b
	case nil, bool, int64, float64, string, Keyword, Symbol, Resource:
		return a == b
	}
	if _, ok := elements(b); ok {
		return false
	}
	if _, ok := b.(*Map); ok {
		return false
	}
	return same(a, b)
}

// same compares values that have only an identity: functions.
func same(a, b Value) (is bool) {
	defer func() { recover() }() // comparing uncomparable types panics
	return a == b
}

// elements returns the elements of a vector or list.
func elements(v Value) ([]Value, bool) {
	switch v := v.(type) {
	case Vector:
		return v, true
	case List:
		return v, true
	}
	return nil, false
}
