// Package lib is the standard library of RTFS: functions of values, and of nothing
// else. The same arguments give the same answer everywhere and at any time.
package lib

import "glasshouse/rtfs/form"

// A Call is what runs a function: the way back into the evaluator, and the meters.
type Call interface {
	// Apply calls whatever can be called: a function, a keyword, a map, a vector.
	// An error it returns is handed on as it is.
	Apply(f form.Value, args ...form.Value) (form.Value, error)

	// Alloc is asked before memory is taken that grows with what a program gives:
	// the bytes of strings, 16 for an element of a vector or list, 48 for one of a map.
	Alloc(bytes int64) error

	// Step is asked before n steps of work that do not go through Apply. With 0 it
	// looks whether there is time left: for work of which nobody knows how much it is.
	Step(n int64) error
}

// A Func is what a builtin does. It does not change its arguments, and it does not
// keep args itself: the slice is the caller's, and used again.
type Func func(c Call, args []form.Value) (form.Value, error)

// A Builtin is a function of the library. The evaluator has counted the arguments
// before Fn is called.
type Builtin struct {
	Name     string
	Min, Max int    // how many arguments; Max -1: any number
	Args     string // "[f coll]"
	Doc      string // one sentence, for people
	Fn       Func
}

// FuncName makes a *Builtin a function of programs: those that come out of comp,
// partial and their kin are given to Call.Apply again, arity check and all.
func (b *Builtin) FuncName() string { return b.Name }
