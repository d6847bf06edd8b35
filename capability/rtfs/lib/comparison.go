package lib

import (
	"cmp"
	"math"

	"glasshouse/capability/rtfs/form"
)

var comparison = []Builtin{
	{"=", 1, -1, "[x & more]", "Whether all are equal, deeply. An integer is never equal to a float; a list is equal to a vector of the same elements.", equal},
	{"!=", 2, 2, "[x y]", "Whether two values are not equal.", unequal},
	{"not=", 2, 2, "[x y]", "The same as !=.", unequal},
	{">", 2, 2, "[x y]", "Whether x is larger than y: two numbers, or two strings.", order(">", func(c int) bool { return c > 0 })},
	{"<", 2, 2, "[x y]", "Whether x is smaller than y.", order("<", func(c int) bool { return c < 0 })},
	{">=", 2, 2, "[x y]", "Whether x is not smaller than y.", order(">=", func(c int) bool { return c >= 0 })},
	{"<=", 2, 2, "[x y]", "Whether x is not larger than y.", order("<=", func(c int) bool { return c <= 0 })},
	{"compare", 2, 2, "[x y]", "-1, 0 or 1: the sort order of x and y. Values of different types are sorted by type.", compared},
}

var logic = []Builtin{
	{"not", 1, 1, "[x]", "true for false and nil, otherwise false.", func(_ Call, args []form.Value) (form.Value, error) { return !truthy(args[0]), nil }},
	{"and", 0, -1, "[& xs]", "The first argument that is false or nil, otherwise the last; true without arguments. Called by name, it evaluates only as many arguments as needed.", and},
	{"or", 0, -1, "[& xs]", "The first argument that is neither false nor nil, otherwise the last; false without arguments. Called by name, it evaluates only as many arguments as needed.", or},
	{"identity", 1, 1, "[x]", "x itself.", func(_ Call, args []form.Value) (form.Value, error) { return args[0], nil }},
	{"boolean", 1, 1, "[x]", "false for false and nil, otherwise true.", func(_ Call, args []form.Value) (form.Value, error) { return truthy(args[0]), nil }},
}

func equal(c Call, args []form.Value) (form.Value, error) {
	for i := 1; i < len(args); i++ {
		same, err := same(c, args[i-1], args[i])
		if err != nil || !same {
			return false, err
		}
	}
	return true, nil
}

func unequal(c Call, args []form.Value) (form.Value, error) {
	same, err := same(c, args[0], args[1])
	return !same, err
}

func and(_ Call, args []form.Value) (form.Value, error) {
	var last form.Value = true
	for _, last = range args {
		if !truthy(last) {
			break
		}
	}
	return last, nil
}

func or(_ Call, args []form.Value) (form.Value, error) {
	var last form.Value = false
	for _, last = range args {
		if truthy(last) {
			break
		}
	}
	return last, nil
}

func order(op string, holds func(int) bool) Func {
	return func(c Call, args []form.Value) (form.Value, error) {
		if a, ok := args[0].(string); ok {
			b, ok := args[1].(string)
			if !ok {
				return nil, wrong(op, 1, "a string like argument 1", args[1])
			}
			if err := scan(c, a); err != nil {
				return nil, err
			}
			return holds(cmp.Compare(a, b)), nil
		}
		if _, ok := toFloat(args[0]); !ok {
			return nil, wrong(op, 0, "a number or a string", args[0])
		}
		if _, ok := toFloat(args[1]); !ok {
			return nil, notANumber(op, 1, args[1])
		}
		if isNaN(args[0]) || isNaN(args[1]) {
			return false, nil
		}
		return holds(compareNumbers(args[0], args[1])), nil
	}
}

func isNaN(v form.Value) bool {
	f, ok := v.(float64)
	return ok && math.IsNaN(f)
}

func compareInts(a, b int64) int { return cmp.Compare(a, b) }

// compareNumbers orders numbers by value, without converting large integers to floats. NaN
// precedes all other numbers.
func compareNumbers(a, b form.Value) int {
	switch x := a.(type) {
	case int64:
		switch y := b.(type) {
		case int64:
			return compareInts(x, y)
		case float64:
			return compareMixed(x, y)
		}
	case float64:
		switch y := b.(type) {
		case int64:
			return -compareMixed(y, x)
		case float64:
			return cmp.Compare(x, y)
		}
	}
	return 0
}

func compareMixed(x int64, y float64) int {
	switch {
	case math.IsNaN(y) || y < -(1<<63):
		return 1
	case y >= 1<<63:
		return -1
	}
	if c := compareInts(x, int64(y)); c != 0 {
		return c
	}
	return cmp.Compare(0, y-math.Trunc(y))
}

func compared(c Call, args []form.Value) (form.Value, error) {
	n, err := compare(c, "compare", args[0], args[1], 0)
	return int64(n), err
}

// rank returns the sort position of a type among the other types.
func rank(v form.Value) int {
	switch v.(type) {
	case nil:
		return 0
	case bool:
		return 1
	case int64, float64:
		return 2
	case string:
		return 3
	case form.Keyword:
		return 4
	case form.Symbol:
		return 5
	case form.Resource:
		return 6
	case form.Vector, form.List:
		return 7
	}
	return -1
}

// compare orders two values.
func compare(c Call, op string, a, b form.Value, depth int) (int, error) {
	ra, rb := rank(a), rank(b)
	switch {
	case ra < 0:
		return 0, form.Errorf("TypeError", "%s: %s has no order", op, describe(a))
	case rb < 0:
		return 0, form.Errorf("TypeError", "%s: %s has no order", op, describe(b))
	case ra != rb:
		return cmp.Compare(ra, rb), nil
	}
	switch x := a.(type) {
	case bool:
		return truth(x) - truth(b.(bool)), nil
	case int64, float64:
		return compareNumbers(a, b), nil
	case string:
		return cmp.Compare(x, b.(string)), scan(c, x)
	case form.Keyword:
		return cmp.Compare(x, b.(form.Keyword)), nil
	case form.Symbol:
		return cmp.Compare(x, b.(form.Symbol)), nil
	case form.Resource:
		return cmp.Compare(x, b.(form.Resource)), nil
	case form.Vector, form.List:
		return compareItems(c, op, a, b, depth+1)
	}
	return 0, nil
}

func compareItems(c Call, op string, a, b form.Value, depth int) (int, error) {
	if depth > deepest {
		return 0, tooDeep()
	}
	x, _ := items(op, []form.Value{a}, 0)
	y, _ := items(op, []form.Value{b}, 0)
	for i := range min(len(x), len(y)) {
		if err := c.Step(1); err != nil {
			return 0, err
		}
		if n, err := compare(c, op, x[i], y[i], depth); n != 0 || err != nil {
			return n, err
		}
	}
	return cmp.Compare(len(x), len(y)), nil
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}
