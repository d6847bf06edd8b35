package rtfs

import (
	"errors"
	"fmt"
	"slices"

	"glasshouse/capability/rtfs/form"
)

// stackShown is the maximum number of calls in the stack of an error.
const stackShown = 32

// A failure is an error during its propagation.
type failure struct {
	err   *form.Error
	pos   form.Pos
	stack []form.Frame
	fatal bool // the program cannot catch it
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// failed converts an error to a failure at node n. err comes from the library or the host, or
// is already a failure.
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

// called is like failed, but also adds the call at n to the stack.
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

// value returns the failure as an error value. An error that was caught and thrown again keeps
// its original position.
func (f *failure) value() *form.Error {
	if f.err.Pos.Line != 0 || f.pos.Line == 0 {
		return f.err
	}
	e := *f.err
	e.Pos, e.Stack = f.pos, slices.Clip(f.stack)
	return &e
}

// exhausted returns the failure of a program that exceeds a limit.
func exhausted(dimension string, limit form.Value, format string, args ...any) *failure {
	return &failure{fatal: true, err: &form.Error{
		Kind:    "BudgetExhausted",
		Message: dimension + ": " + fmt.Sprintf(format, args...),
		Data:    form.NewMap(form.Keyword("dimension"), form.Keyword(dimension), form.Keyword("limit"), limit),
	}}
}

// Exhausted returns the limit that an error reports as exceeded: "steps", "depth", "alloc" or
// "time".
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

// reason returns the message of an error without its kind.
func reason(err error) string {
	if e, ok := err.(*form.Error); ok {
		return e.Message
	}
	return err.Error()
}

// brief returns a value for a message, truncated.
func brief(v form.Value) string {
	const most = 80
	text, complete := form.Within(v, most)
	if !complete {
		text += "…"
	}
	return text
}
