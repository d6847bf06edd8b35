// Package form is what RTFS is written in and computes with: values, their text,
// and the place in a text where each stands.
package form

import (
	"fmt"
	"slices"
)

// A Value is nil, a bool, an int64, a float64, a string, or one of the types
// below. Nobody changes a value that he was given or has handed out.
type Value = any

// A Keyword is kept without its colon.
type Keyword string

// A Symbol is a name in a program.
type Symbol string

// A Vector is written in brackets, a List in parentheses. They are equal if their
// elements are.
type (
	Vector []Value
	List   []Value
)

// A Resource is a handle that the host understands: resource://…
type Resource string

// A Func is a value that can be called. What it is made of the evaluator knows.
type Func interface {
	FuncName() string // "" if it has none
}

// An Error is what a program failed with, and a value that it can catch.
type Error struct {
	Kind    string // "DivisionByZero", "TypeError", …
	Message string
	Data    Value   // of ex-info and throw; nil: none
	Pos     Pos     // where it happened
	Stack   []Frame // the calls it happened in, the innermost first
	Cause   error   // what the host said; nil: none
	Host    bool    // the host failed to do what a call asked for
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

// Errorf returns an error of a kind.
func Errorf(kind, format string, args ...any) *Error {
	return &Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// A Pos is a place in a text. Lines and columns count from 1, columns in runes.
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

// A Kind says what a Node is.
type Kind uint8

const (
	AtomNode   Kind = iota // Atom is its value: nil, bool, int64, float64, string, Keyword, Symbol, Resource
	ListNode               // what the reader abbreviates is a list too: 'x is (quote x)
	VectorNode             //
	MapNode                // Items are keys and values in turn
)

// A Node is a piece of a text that was read: a value, and where it stands.
type Node struct {
	Kind  Kind
	Atom  Value
	Items []*Node
	Meta  []*Node // written before it by ^; nil: none
	Pos   Pos
	End   int // the offset behind it
}

// Value is what n stands for, without places.
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

// Equal reports whether two values are: deeply, a vector as a list, and an integer
// never as a float.
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

// same compares what has an identity only: functions.
func same(a, b Value) (is bool) {
	defer func() { recover() }() // of what cannot be compared
	return a == b
}

// elements returns those of a vector or list.
func elements(v Value) ([]Value, bool) {
	switch v := v.(type) {
	case Vector:
		return v, true
	case List:
		return v, true
	}
	return nil, false
}
