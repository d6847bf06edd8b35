package lib

import (
	"math"
	"math/bits"

	"glasshouse/capability/rtfs/form"
)

var arithmetic = []Builtin{
	{"+", 0, -1, "[& xs]", "The sum, 0 without arguments. A float makes it a float; an integer that does not fit 64 bits is an error.", fold("+", 0, addInt, func(a, b float64) float64 { return a + b })},
	{"-", 1, -1, "[x & more]", "x minus the others; with one argument, its negation.", minus},
	{"*", 0, -1, "[& xs]", "The product, 1 without arguments.", fold("*", 1, mulInt, func(a, b float64) float64 { return a * b })},
	{"/", 1, -1, "[x & more]", "The quotient: an integer if it is whole, otherwise a float. A single argument is returned unchanged.", divide},
	{"mod", 2, 2, "[x y]", "The remainder of a division that truncates towards zero: it has the sign of x.", remainder("mod")},
	{"rem", 2, 2, "[x y]", "The same as mod.", remainder("rem")},
	{"quot", 2, 2, "[x y]", "The quotient without its fraction.", quotient},
	{"inc", 1, 1, "[x]", "x plus 1.", func(_ Call, args []form.Value) (form.Value, error) { return plus("inc", args[0], 1) }},
	{"dec", 1, 1, "[x]", "x minus 1.", func(_ Call, args []form.Value) (form.Value, error) { return plus("dec", args[0], -1) }},
	{"max", 1, -1, "[x & more]", "The largest number.", best("max", 1)},
	{"min", 1, -1, "[x & more]", "The smallest number.", best("min", -1)},
	{"abs", 1, 1, "[x]", "The absolute value.", absolute},
	{"sqrt", 1, 1, "[x]", "The square root, a float; ##NaN for a negative number.", root},
	{"pow", 2, 2, "[x y]", "x to the power of y: an integer if both are integers and y is not negative.", power},
	{"factorial", 1, 1, "[n]", "The product of the integers from 1 to n.", factorial},
	{"floor", 1, 1, "[x]", "The largest integer that is not larger than x.", rounded("floor", math.Floor)},
	{"ceil", 1, 1, "[x]", "The smallest integer that is not smaller than x.", rounded("ceil", math.Ceil)},
	{"round", 1, 1, "[x]", "The nearest integer; halves are rounded away from zero.", rounded("round", math.Round)},
	{"even?", 1, 1, "[x]", "Whether an integer is a multiple of 2; false for a float.", parity("even?", 0)},
	{"odd?", 1, 1, "[x]", "Whether an integer is not a multiple of 2; false for a float.", parity("odd?", 1)},
	{"zero?", 1, 1, "[x]", "Whether a number is 0.", sign("zero?", 0)},
	{"pos?", 1, 1, "[x]", "Whether a number is larger than 0.", sign("pos?", 1)},
	{"neg?", 1, 1, "[x]", "Whether a number is smaller than 0.", sign("neg?", -1)},
}

func notANumber(op string, i int, v form.Value) error { return wrong(op, i, "a number", v) }

func overflow(op string, args ...form.Value) error {
	msg := "the result of (" + op
	for _, a := range args {
		msg += " " + form.Text(a)
	}
	return form.Errorf("InvalidArgument", "integer overflow: %s) does not fit 64 bits", msg)
}

// toFloat converts a number to a float.
func toFloat(v form.Value) (float64, bool) {
	switch v := v.(type) {
	case int64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

// binary applies ints to two integers, and floats to other numbers.
func binary(op string, i int, a, b form.Value, ints func(a, b int64) (int64, bool), floats func(a, b float64) float64) (form.Value, error) {
	if x, ok := a.(int64); ok {
		if y, ok := b.(int64); ok {
			n, ok := ints(x, y)
			if !ok {
				return nil, overflow(op, a, b)
			}
			return n, nil
		}
	}
	x, ok := toFloat(a)
	if !ok {
		return nil, notANumber(op, i-1, a)
	}
	y, ok := toFloat(b)
	if !ok {
		return nil, notANumber(op, i, b)
	}
	return floats(x, y), nil
}

// fold combines all arguments with a binary operation; without arguments the result is empty.
func fold(op string, empty int64, ints func(a, b int64) (int64, bool), floats func(a, b float64) float64) Func {
	return func(_ Call, args []form.Value) (form.Value, error) {
		if len(args) == 0 {
			return empty, nil
		}
		sum := args[0]
		if _, ok := toFloat(sum); !ok {
			return nil, notANumber(op, 0, sum)
		}
		for i, arg := range args[1:] {
			var err error
			if sum, err = binary(op, i+1, sum, arg, ints, floats); err != nil {
				return nil, err
			}
		}
		return sum, nil
	}
}

func addInt(a, b int64) (int64, bool) {
	sum := a + b
	return sum, (sum > a) == (b > 0)
}

func subInt(a, b int64) (int64, bool) {
	diff := a - b
	return diff, (diff < a) == (b > 0)
}

func mulInt(a, b int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(magnitude(a)), uint64(magnitude(b)))
	if (a < 0) != (b < 0) {
		return -int64(lo), hi == 0 && lo <= 1<<63
	}
	return int64(lo), hi == 0 && lo < 1<<63
}

// magnitude returns |n|. The smallest integer wraps to itself, which is its magnitude as an
// unsigned number.
func magnitude(n int64) int64 {
	if n < 0 {
		return -n
	}
	return n
}

func minus(c Call, args []form.Value) (form.Value, error) {
	if len(args) > 1 {
		return subtract(c, args)
	}
	switch x := args[0].(type) {
	case int64:
		if x == math.MinInt64 {
			return nil, overflow("-", x)
		}
		return -x, nil
	case float64:
		return -x, nil
	}
	return nil, notANumber("-", 0, args[0])
}

var subtract = fold("-", 0, subInt, func(a, b float64) float64 { return a - b })

func divisionByZero() error { return form.Errorf("DivisionByZero", "Division by zero") }

func divide(_ Call, args []form.Value) (form.Value, error) {
	left := args[0]
	if _, ok := toFloat(left); !ok {
		return nil, notANumber("/", 0, left)
	}
	for i, right := range args[1:] {
		y, ok := toFloat(right)
		if !ok {
			return nil, notANumber("/", i+1, right)
		}
		if y == 0 {
			return nil, divisionByZero()
		}
		a, aInt := left.(int64)
		b, bInt := right.(int64)
		switch {
		case aInt && bInt && b == -1 && a == math.MinInt64:
			return nil, overflow("/", a, b)
		case aInt && bInt && a%b == 0:
			left = a / b
		default:
			x, _ := toFloat(left)
			left = x / y
		}
	}
	if f, ok := left.(float64); ok && len(args) > 1 && f == math.Trunc(f) && math.Abs(f) <= maxExact {
		return int64(f), nil
	}
	return left, nil
}

// maxExact bounds the quotients that become integers: a float64 represents every integer up to
// 2^53; larger quotients are not exact.
const maxExact = 1 << 53

// zeroDivisor reports whether b is 0 or 0.0.
func zeroDivisor(b form.Value) bool {
	y, ok := toFloat(b)
	return ok && y == 0
}

func remainder(op string) Func {
	return func(_ Call, args []form.Value) (form.Value, error) {
		if zeroDivisor(args[1]) {
			return nil, divisionByZero()
		}
		return binary(op, 1, args[0], args[1], func(a, b int64) (int64, bool) { return a % b, true }, math.Mod)
	}
}

func quotient(_ Call, args []form.Value) (form.Value, error) {
	if zeroDivisor(args[1]) {
		return nil, divisionByZero()
	}
	return binary("quot", 1, args[0], args[1],
		func(a, b int64) (int64, bool) { return a / b, a != math.MinInt64 || b != -1 },
		func(a, b float64) float64 { return math.Trunc(a / b) })
}

func plus(op string, v form.Value, d int64) (form.Value, error) {
	switch x := v.(type) {
	case int64:
		n, ok := addInt(x, d)
		if !ok {
			return nil, overflow(op, x)
		}
		return n, nil
	case float64:
		return x + float64(d), nil
	}
	return nil, notANumber(op, 0, v)
}

func best(op string, want int) Func {
	return func(_ Call, args []form.Value) (form.Value, error) {
		found := args[0]
		for i, arg := range args {
			if _, ok := toFloat(arg); !ok {
				return nil, notANumber(op, i, arg)
			}
			if compareNumbers(arg, found) == want {
				found = arg
			}
		}
		return found, nil
	}
}

func absolute(_ Call, args []form.Value) (form.Value, error) {
	switch x := args[0].(type) {
	case int64:
		if x == math.MinInt64 {
			return nil, overflow("abs", x)
		}
		return magnitude(x), nil
	case float64:
		return math.Abs(x), nil
	}
	return nil, notANumber("abs", 0, args[0])
}

func root(_ Call, args []form.Value) (form.Value, error) {
	x, ok := toFloat(args[0])
	if !ok {
		return nil, notANumber("sqrt", 0, args[0])
	}
	return math.Sqrt(x), nil
}

func power(_ Call, args []form.Value) (form.Value, error) {
	base, isInt := args[0].(int64)
	if exp, ok := args[1].(int64); ok && isInt && exp >= 0 {
		return powInt(base, exp)
	}
	x, ok := toFloat(args[0])
	if !ok {
		return nil, notANumber("pow", 0, args[0])
	}
	y, ok := toFloat(args[1])
	if !ok {
		return nil, notANumber("pow", 1, args[1])
	}
	if x == 0 && y < 0 {
		return nil, divisionByZero()
	}
	return math.Pow(x, y), nil
}

func powInt(base, exp int64) (form.Value, error) {
	result, factor, fits := int64(1), base, true
	for n := exp; n > 0; n >>= 1 {
		if n&1 == 1 {
			var ok bool
			if result, ok = mulInt(result, factor); !ok || !fits {
				return nil, overflow("pow", base, exp)
			}
		}
		// The overflow of the last square matters only if that square is used.
		var ok bool
		factor, ok = mulInt(factor, factor)
		fits = fits && ok
	}
	return result, nil
}

func factorial(_ Call, args []form.Value) (form.Value, error) {
	n, err := integer("factorial", args, 0)
	if err != nil {
		return nil, err
	}
	if n < 0 {
		return nil, invalid("factorial", "expects an integer that is not negative, got %d", n)
	}
	product := int64(1)
	for i := int64(2); i <= n; i++ {
		var ok bool
		if product, ok = mulInt(product, i); !ok {
			return nil, overflow("factorial", n)
		}
	}
	return product, nil
}

func rounded(op string, round func(float64) float64) Func {
	return func(_ Call, args []form.Value) (form.Value, error) {
		switch x := args[0].(type) {
		case int64:
			return x, nil
		case float64:
			n, ok := wholeInt(round(x))
			if !ok {
				return nil, invalid(op, "%s has no nearest integer", form.Text(x))
			}
			return n, nil
		}
		return nil, notANumber(op, 0, args[0])
	}
}

// wholeInt converts a float to an integer, if it is integral and in range.
func wholeInt(f float64) (int64, bool) {
	if f >= -(1<<63) && f < 1<<63 {
		return int64(f), true
	}
	return 0, false
}

func parity(op string, want int64) Func {
	return func(_ Call, args []form.Value) (form.Value, error) {
		switch x := args[0].(type) {
		case int64:
			return x&1 == want, nil
		case float64:
			return false, nil
		}
		return nil, notANumber(op, 0, args[0])
	}
}

func sign(op string, want int) Func {
	return func(_ Call, args []form.Value) (form.Value, error) {
		switch x := args[0].(type) {
		case int64:
			return compareInts(x, 0) == want, nil
		case float64:
			// NaN compares false with every number: it has no sign and is not 0.
			return x == 0 && want == 0 || x > 0 && want == 1 || x < 0 && want == -1, nil
		}
		return nil, notANumber(op, 0, args[0])
	}
}
