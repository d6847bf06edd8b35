// Package lib is the standard library of RTFS. Its functions are pure: their results depend
// only on the arguments.
package lib

import "glasshouse/capability/rtfs/form"

// A Call connects a library function to the evaluator: it calls functions of the program and
// accounts for resources.
type Call interface {
	// Apply calls a callable value: a function, a keyword, a map or a vector. Library functions
	// return its error unchanged.
	Apply(f form.Value, args ...form.Value) (form.Value, error)

	// Alloc must be called before memory is allocated whose size depends on the program: the
	// bytes of strings, 16 for each element of a vector or list, 48 for each entry of a map.
	Alloc(bytes int64) error

	// Step must be called before n steps of work that do not call Apply. With n = 0 it only
	// checks the time limit, for work whose amount is unknown.
	Step(n int64) error
}

// A Func implements a builtin. It must not modify its arguments or retain args: the caller
// reuses the slice.
type Func func(c Call, args []form.Value) (form.Value, error)

// A Builtin is a library function. The evaluator checks the number of arguments before it calls
// Fn.
type Builtin struct {
	Name     string
	Min, Max int    // number of arguments; Max -1: unlimited
	Args     string // "[f coll]"
	Doc      string // one sentence for users
	Fn       Func
}

// FuncName implements form.Func. The functions that comp, partial and similar functions return
// are values that programs call through Call.Apply, including the check of the number of
// arguments.
func (b *Builtin) FuncName() string { return b.Name }
