package rtfs

import (
	"errors"
	"fmt"
	"slices"

	"glasshouse/rtfs/form"
)

// stackShown is how many calls an error names.
const stackShown = 32

// A failure is an error on its way out of a program.
type failure struct {
	err   *form.Error
	pos   form.Pos
	stack []form.Frame
	fatal bool // the program cannot catch it
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// failed makes a failure of what went wrong at a node. It is given what the library
// or the host returned, or what is a failure already.
func failed(err error, n *form.Node) *failure {
	f, ok := err.(*failure)
	if !ok {
		f = &failure{}
		if f.err, ok = errors.AsType[*form.Error](err); !ok {
			f.err = &form.Error{Kind: "InternalError", Message: err.Error(), Cause: err}
		}
		if inner, ok := errors.AsType[*failure](err); ok {
			f = inner
		}
	}
	if f.pos.Line == 0 && n != nil {
		f.pos = n.Pos
	}
	return f
}

// called is failed, and the call at n was on the way.
func (f *frame) called(err error, n *form.Node) error {
	e := failed(err, n)
	if len(e.stack) < stackShown {
		name := ""
		if f.next != nil && f.next.fn != nil {
			name = f.next.fn.p.title()
		}
		e.stack = append(e.stack, form.Frame{Func: name, Pos: n.Pos})
	}
	return e
}

// value is the failure as a value. An error that was caught and is thrown again
// keeps the place where it happened.
func (f *failure) value() *form.Error {
	if f.err.Pos.Line != 0 || f.pos.Line == 0 {
		return f.err
	}
	e := *f.err
	e.Pos, e.Stack = f.pos, slices.Clip(f.stack)
	return &e
}

// exhausted is the failure of a program that takes more than it may.
func exhausted(dimension string, limit form.Value, format string, args ...any) *failure {
	return &failure{fatal: true, err: &form.Error{
		Kind:    "BudgetExhausted",
		Message: dimension + ": " + fmt.Sprintf(format, args...),
		Data:    form.NewMap(form.Keyword("dimension"), form.Keyword(dimension), form.Keyword("limit"), limit),
	}}
}

// Exhausted says which limit an error is about: "steps", "depth", "alloc" or "time".
func Exhausted(err error) (dimension string, ok bool) {
	e, ok := errors.AsType[*form.Error](err)
	if !ok || e.Kind != "BudgetExhausted" {
		return "", false
	}
	data, _ := e.Data.(*form.Map)
	d, _ := data.Get(form.Keyword("dimension"))
	name, ok := d.(form.Keyword)
	return string(name), ok
}

// reason is what an error says, without its kind.
func reason(err error) string {
	if e, ok := err.(*form.Error); ok {
		return e.Message
	}
	return err.Error()
}

// brief is a value in a message.
func brief(v form.Value) string {
	const most = 80
	text, whole := form.Within(v, most)
	if !whole {
		text += "…"
	}
	return text
}
