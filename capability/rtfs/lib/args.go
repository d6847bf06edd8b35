package lib

import (
	"fmt"

	"glasshouse/capability/rtfs/form"
)

// Bytes charged for values; see Call.Alloc.
const (
	element = 16
	entry   = 48
)

// wrong returns the error for an argument of the wrong type.
func wrong(op string, i int, want string, got form.Value) error {
	return form.Errorf("TypeError", "%s expects %s as argument %d, got %s", op, want, i+1, describe(got))
}

// invalid returns the error for an invalid argument of the right type.
func invalid(op, format string, args ...any) error {
	return form.Errorf("InvalidArgument", "%s: %s", op, fmt.Sprintf(format, args...))
}

func outOfBounds(op string, i int64, n int) error {
	return form.Errorf("IndexOutOfBounds", "%s: index %d is not within the %d there are", op, i, n)
}

// describe describes a value for messages: its type, and its text if that is short.
func describe(v form.Value) string {
	name := article(TypeName(v))
	switch v := v.(type) {
	case nil:
		return "nil"
	case bool, int64, float64, string, form.Keyword, form.Symbol, form.Resource:
		text, complete := form.Within(v, 60)
		if !complete {
			text += "…"
		}
		return name + " " + text
	case form.Func:
		if v.FuncName() != "" {
			return name + " " + v.FuncName()
		}
	}
	return name
}

func article(noun string) string {
	switch noun[0] {
	case 'a', 'e', 'i', 'o', 'u':
		return "an " + noun
	}
	return "a " + noun
}

// TypeName returns the name of the type of a value, as type-name does.
func TypeName(v form.Value) string {
	switch v.(type) {
	case nil:
		return "nil"
	case bool:
		return "boolean"
	case int64:
		return "integer"
	case float64:
		return "float"
	case string:
		return "string"
	case form.Keyword:
		return "keyword"
	case form.Symbol:
		return "symbol"
	case form.Resource:
		return "resource"
	case form.Vector:
		return "vector"
	case form.List:
		return "list"
	case *form.Map:
		return "map"
	case *form.Error:
		return "error"
	}
	return "function"
}

// truthy reports whether a condition holds: every value except false and nil.
func truthy(v form.Value) bool { return v != nil && v != false }

func text(op string, args []form.Value, i int) (string, error) {
	if s, ok := args[i].(string); ok {
		return s, nil
	}
	return "", wrong(op, i, "a string", args[i])
}

func integer(op string, args []form.Value, i int) (int64, error) {
	if n, ok := args[i].(int64); ok {
		return n, nil
	}
	return 0, wrong(op, i, "an integer", args[i])
}

func mapping(op string, args []form.Value, i int) (*form.Map, error) {
	if m, ok := args[i].(*form.Map); ok {
		return m, nil
	}
	return nil, wrong(op, i, "a map", args[i])
}

// items returns the elements of a vector or a list. Callers must not modify them.
func items(op string, args []form.Value, i int) ([]form.Value, error) {
	switch v := args[i].(type) {
	case form.Vector:
		return v, nil
	case form.List:
		return v, nil
	}
	return nil, wrong(op, i, "a vector or a list", args[i])
}

// each returns the elements of a vector or list, or the entries of a map as vectors. It charges
// a step for each, because callers iterate over all of them.
func each(c Call, op string, args []form.Value, i int) ([]form.Value, error) {
	m, ok := args[i].(*form.Map)
	if !ok {
		all, err := items(op, args, i)
		if err != nil {
			return nil, wrong(op, i, "a vector, a list or a map", args[i])
		}
		return all, steps(c, len(all))
	}
	if err := charge(c, m.Len(), entry); err != nil {
		return nil, err
	}
	all := make([]form.Value, 0, m.Len())
	for k, v := range m.All() {
		all = append(all, form.Vector{k, v})
	}
	return all, nil
}

// charge accounts for n values of the given size before they are allocated.
func charge(c Call, n int, bytes int64) error {
	if err := c.Alloc(int64(n) * bytes); err != nil {
		return err
	}
	return steps(c, n)
}

// steps is like Call.Step, but does nothing if n is 0.
func steps(c Call, n int) error {
	if n == 0 {
		return nil
	}
	return c.Step(int64(n))
}

// scan charges for reading a text.
func scan(c Call, s string) error { return steps(c, len(s)/64) }

// copied charges for a copy of arguments and returns it.
func copied(c Call, args []form.Value) ([]form.Value, error) {
	if err := charge(c, len(args), element); err != nil {
		return nil, err
	}
	return append(make([]form.Value, 0, len(args)), args...), nil
}
