package lib

import (
	"math"
	"slices"
	"unicode/utf8"

	"glasshouse/capability/rtfs/form"
)

var collections = []Builtin{
	{"vector", 0, -1, "[& xs]", "A vector of the arguments.", vector},
	{"list", 0, -1, "[& xs]", "A list of the arguments.", newList},
	{"vec", 1, 1, "[coll]", "A vector of the elements of a list, the entries of a map, or the characters of a string.", vec},
	{"set", 1, 1, "[coll]", "A vector of the elements without duplicates. RTFS has no other sets.", uniqueElements("set")},
	{"count", 1, 1, "[coll]", "The number of elements, entries or characters.", count("count")},
	{"length", 1, 1, "[coll]", "The same as count.", count("length")},
	{"empty?", 1, 1, "[coll]", "Whether a collection or string is empty; nil is empty.", isEmpty},
	{"not-empty", 1, 1, "[coll]", "The collection or string itself, or nil if it is empty.", notEmpty},
	{"seq", 1, 1, "[coll]", "The result of vec, or nil if that is empty.", seq},
	{"first", 1, 1, "[coll]", "The first element or character, or nil.", first},
	{"second", 1, 1, "[coll]", "The second element or character, or nil.", second},
	{"last", 1, 1, "[coll]", "The last element or character, or nil.", last("last")},
	{"peek", 1, 1, "[coll]", "The same as last.", last("peek")},
	{"rest", 1, 1, "[coll]", "All but the first; empty if the collection is empty.", rest},
	{"next", 1, 1, "[coll]", "All but the first, or nil if there are none.", next},
	{"butlast", 1, 1, "[coll]", "All but the last, or nil if there are none.", butlast},
	{"pop", 1, 1, "[coll]", "All but the last. An empty collection is an error: IndexOutOfBounds.", pop},
	{"nth", 2, 3, "[coll i default?]", "The element or character at an index from 0. Beyond the end it is the default, or IndexOutOfBounds.", nth},
	{"take", 2, 2, "[n coll]", "The first n elements or characters.", cut("take", func(n, length int) (int, int) { return 0, n })},
	{"drop", 2, 2, "[n coll]", "All but the first n.", cut("drop", func(n, length int) (int, int) { return n, length })},
	{"take-last", 2, 2, "[n coll]", "The last n elements or characters.", cut("take-last", func(n, length int) (int, int) { return length - n, length })},
	{"drop-last", 2, 2, "[n coll]", "All but the last n.", cut("drop-last", func(n, length int) (int, int) { return 0, length - n })},
	{"split-at", 2, 2, "[n coll]", "The results of take and drop, in a vector.", splitAt},
	{"subvec", 2, 3, "[v start end?]", "The elements from start up to, not including, end.", subvec},
	{"reverse", 1, 1, "[coll]", "The elements or characters from the last to the first.", reverse},
	{"distinct", 1, 1, "[coll]", "The elements or characters without duplicates.", uniqueElements("distinct")},
	{"cons", 2, 2, "[x coll]", "A vector, or a list, with x before the others.", cons},
	{"conj", 2, -1, "[coll x & more]", "A vector with elements appended, a list with elements prepended, or a map with added entries [key value] or maps.", conj},
	{"concat", 0, -1, "[& colls]", "The elements of all collections in order. A nil argument is an element.", concat},
	{"into", 2, 2, "[to from]", "The result of conj for to and every element of from.", into},
	{"range", 2, 2, "[start end]", "The integers from start up to, not including, end.", integers("range", 0)},
	{"numbers", 2, 2, "[start end]", "The integers from start up to end.", integers("numbers", 1)},
	{"repeat", 2, 2, "[n x]", "A vector of x, n times.", repeat},
	{"flatten", 1, 1, "[coll]", "The elements of vectors and lists, nested to any depth, in one vector.", flatten},
	{"interleave", 1, -1, "[coll & more]", "The first of each, the second of each, up to the end of the shortest.", interleave},
	{"interpose", 2, 2, "[x coll]", "The elements with x between them.", interpose},
	{"partition", 2, 2, "[n coll]", "Vectors of n elements each; the last has the remaining elements.", partition},
	{"partition-all", 2, 2, "[n coll]", "The same as partition.", partition},
}

func vector(c Call, args []form.Value) (form.Value, error) {
	all, err := copied(c, args)
	return form.Vector(all), err
}

func newList(c Call, args []form.Value) (form.Value, error) {
	all, err := copied(c, args)
	return form.List(all), err
}

// elementsOf returns the elements as a vector. A vector argument is returned itself.
func elementsOf(c Call, op string, args []form.Value, i int) (form.Vector, error) {
	s, ok := args[i].(string)
	if !ok {
		all, err := each(c, op, args, i)
		return form.Vector(all), err
	}
	if err := charge(c, utf8.RuneCountInString(s), 2*element); err != nil {
		return nil, err
	}
	all := form.Vector{}
	for len(s) > 0 {
		_, n := utf8.DecodeRuneInString(s)
		all, s = append(all, s[:n]), s[n:]
	}
	return all, nil
}

func vec(c Call, args []form.Value) (form.Value, error) {
	all, err := elementsOf(c, "vec", args, 0)
	if err != nil {
		return nil, err
	}
	return all, nil
}

func seq(c Call, args []form.Value) (form.Value, error) {
	if args[0] == nil {
		return nil, nil
	}
	all, err := elementsOf(c, "seq", args, 0)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all, nil
}

// lengthOf returns the length of a collection or string.
func lengthOf(c Call, op string, v form.Value) (int, error) {
	switch v := v.(type) {
	case string:
		return utf8.RuneCountInString(v), scan(c, v)
	case form.Vector:
		return len(v), nil
	case form.List:
		return len(v), nil
	case *form.Map:
		return v.Len(), nil
	}
	return 0, wrong(op, 0, "a collection or a string", v)
}

func count(op string) Func {
	return func(c Call, args []form.Value) (form.Value, error) {
		n, err := lengthOf(c, op, args[0])
		return int64(n), err
	}
}

func isEmpty(c Call, args []form.Value) (form.Value, error) {
	if args[0] == nil || args[0] == "" {
		return true, nil
	}
	n, err := lengthOf(c, "empty?", args[0])
	return n == 0, err
}

func notEmpty(c Call, args []form.Value) (form.Value, error) {
	if args[0] == nil {
		return nil, nil
	}
	n, err := lengthOf(c, "not-empty", args[0])
	if err != nil || n == 0 {
		return nil, err
	}
	return args[0], nil
}

// part returns the part of a string, vector or list between two indexes, as the same type. at
// computes the indexes from the length; they are clamped to it.
func part(c Call, op string, i int, v form.Value, at func(length int) (from, to int)) (form.Value, error) {
	within := func(length int) (int, int) {
		from, to := at(length)
		from = min(max(from, 0), length)
		return from, min(max(to, from), length)
	}
	switch v := v.(type) {
	case string:
		from, to := within(utf8.RuneCountInString(v))
		return runes(v, from, to), scan(c, v)
	case form.Vector:
		from, to := within(len(v))
		return v[from:to], nil
	case form.List:
		from, to := within(len(v))
		return v[from:to], nil
	}
	return nil, wrong(op, i, "a vector, a list or a string", v)
}

// one returns the element or character at an index, or nil.
func one(op string, v form.Value, at func(length int) int) (form.Value, error) {
	pick := func(all []form.Value) form.Value {
		if i := at(len(all)); i >= 0 && i < len(all) {
			return all[i]
		}
		return nil
	}
	switch v := v.(type) {
	case form.Vector:
		return pick(v), nil
	case form.List:
		return pick(v), nil
	}
	return nil, wrong(op, 0, "a vector, a list or a string", v)
}

func first(_ Call, args []form.Value) (form.Value, error) {
	if s, ok := args[0].(string); ok {
		return orNil(runes(s, 0, 1), s != "")
	}
	return one("first", args[0], func(int) int { return 0 })
}

func second(_ Call, args []form.Value) (form.Value, error) {
	if s, ok := args[0].(string); ok {
		found := runes(s, 1, 2)
		return orNil(found, found != "")
	}
	return one("second", args[0], func(int) int { return 1 })
}

func last(op string) Func {
	return func(_ Call, args []form.Value) (form.Value, error) {
		if s, ok := args[0].(string); ok {
			_, n := utf8.DecodeLastRuneInString(s)
			return orNil(s[len(s)-n:], s != "")
		}
		return one(op, args[0], func(length int) int { return length - 1 })
	}
}

func rest(c Call, args []form.Value) (form.Value, error) {
	if s, ok := args[0].(string); ok {
		return s[offset(s, 1):], nil
	}
	return part(c, "rest", 0, args[0], func(length int) (int, int) { return 1, length })
}

func next(c Call, args []form.Value) (form.Value, error) {
	left, err := part(c, "next", 0, args[0], func(length int) (int, int) { return 1, length })
	return nilIfEmpty(left, err)
}

func butlast(c Call, args []form.Value) (form.Value, error) {
	left, err := part(c, "butlast", 0, args[0], func(length int) (int, int) { return 0, length - 1 })
	return nilIfEmpty(left, err)
}

func nilIfEmpty(v form.Value, err error) (form.Value, error) {
	if err != nil || v == "" || size(v) == 0 && !isText(v) {
		return nil, err
	}
	return v, nil
}

func isText(v form.Value) bool {
	_, ok := v.(string)
	return ok
}

func pop(c Call, args []form.Value) (form.Value, error) {
	n, err := lengthOf(c, "pop", args[0])
	if err == nil && n == 0 {
		return nil, outOfBounds("pop", -1, 0)
	}
	return part(c, "pop", 0, args[0], func(length int) (int, int) { return 0, length - 1 })
}

func nth(c Call, args []form.Value) (form.Value, error) {
	i, err := integer("nth", args, 1)
	if err != nil {
		return nil, err
	}
	var length int
	switch v := args[0].(type) {
	case string:
		if err := scan(c, v); err != nil {
			return nil, err
		}
		if length = utf8.RuneCountInString(v); i >= 0 && i < int64(length) {
			return runes(v, int(i), int(i)+1), nil
		}
	default:
		all, err := items("nth", args, 0)
		if err != nil {
			return nil, wrong("nth", 0, "a vector, a list or a string", v)
		}
		if length = len(all); i >= 0 && i < int64(length) {
			return all[i], nil
		}
	}
	if len(args) > 2 {
		return args[2], nil
	}
	return nil, outOfBounds("nth", i, length)
}

// clamped converts an integer to a number of elements.
func clamped(n int64) int { return int(min(max(n, 0), 1<<40)) }

func cut(op string, at func(n, length int) (from, to int)) Func {
	return func(c Call, args []form.Value) (form.Value, error) {
		n, err := integer(op, args, 0)
		if err != nil {
			return nil, err
		}
		return part(c, op, 1, args[1], func(length int) (int, int) { return at(clamped(n), length) })
	}
}

func splitAt(c Call, args []form.Value) (form.Value, error) {
	n, err := integer("split-at", args, 0)
	if err != nil {
		return nil, err
	}
	head, err := part(c, "split-at", 1, args[1], func(int) (int, int) { return 0, clamped(n) })
	if err != nil {
		return nil, err
	}
	tail, err := part(c, "split-at", 1, args[1], func(length int) (int, int) { return clamped(n), length })
	return form.Vector{head, tail}, err
}

func subvec(_ Call, args []form.Value) (form.Value, error) {
	all, err := items("subvec", args, 0)
	if err != nil {
		return nil, err
	}
	start, err := integer("subvec", args, 1)
	if err != nil {
		return nil, err
	}
	end := int64(len(all))
	if len(args) > 2 {
		if end, err = integer("subvec", args, 2); err != nil {
			return nil, err
		}
	}
	if start < 0 || start > end || end > int64(len(all)) {
		return nil, form.Errorf("IndexOutOfBounds", "subvec: %d to %d is not within the %d elements there are", start, end, len(all))
	}
	return form.Vector(all[start:end]), nil
}

func reverse(c Call, args []form.Value) (form.Value, error) {
	if s, ok := args[0].(string); ok {
		return backwards(c, s)
	}
	all, err := items("reverse", args, 0)
	if err != nil {
		return nil, wrong("reverse", 0, "a vector, a list or a string", args[0])
	}
	all, err = copied(c, all)
	slices.Reverse(all)
	return form.Vector(all), err
}

func backwards(c Call, s string) (form.Value, error) {
	if err := charge(c, len(s), 1); err != nil {
		return nil, err
	}
	b := make([]byte, 0, len(s))
	for len(s) > 0 {
		_, n := utf8.DecodeLastRuneInString(s)
		b, s = append(b, s[len(s)-n:]...), s[:len(s)-n]
	}
	return string(b), nil
}

func uniqueElements(op string) Func {
	return func(c Call, args []form.Value) (form.Value, error) {
		all, err := elementsOf(c, op, args, 0)
		if err != nil {
			return nil, err
		}
		if err := charge(c, len(all), entry); err != nil {
			return nil, err
		}
		var seen numbering
		found := form.Vector{}
		for _, v := range all {
			if _, is, err := seen.number(c, v); err != nil {
				return nil, err
			} else if !is {
				found = append(found, v)
			}
		}
		if isText(args[0]) && op != "set" {
			return joined(c, "", found, display)
		}
		return found, nil
	}
}

func cons(c Call, args []form.Value) (form.Value, error) {
	all, err := items("cons", args, 1)
	if err != nil {
		return nil, err
	}
	if err := charge(c, len(all)+1, element); err != nil {
		return nil, err
	}
	longer := append(append(make([]form.Value, 0, len(all)+1), args[0]), all...)
	if _, ok := args[1].(form.List); ok {
		return form.List(longer), nil
	}
	return form.Vector(longer), nil
}

func conj(c Call, args []form.Value) (form.Value, error) {
	return conjoin(c, "conj", args[0], args[1:])
}

func conjoin(c Call, op string, to form.Value, more []form.Value) (form.Value, error) {
	switch to := to.(type) {
	case form.Vector:
		v, err := push(c, to, more...)
		return v, err
	case form.List:
		if err := charge(c, len(to)+len(more), element); err != nil {
			return nil, err
		}
		longer := append(make(form.List, 0, len(to)+len(more)), more...)
		slices.Reverse(longer)
		return append(longer, to...), nil
	case *form.Map:
		return conjoinMap(c, op, to, more)
	}
	return nil, wrong(op, 0, "a vector, a list or a map", to)
}

func concat(c Call, args []form.Value) (form.Value, error) {
	n := 0
	for _, arg := range args {
		n += max(1, size(arg))
	}
	if err := charge(c, n, element); err != nil {
		return nil, err
	}
	all := make(form.Vector, 0, n)
	for i, arg := range args {
		if arg == nil {
			all = append(all, nil)
			continue
		}
		more, err := each(c, "concat", args, i)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	return all, nil
}

func into(c Call, args []form.Value) (form.Value, error) {
	from, err := elementsOf(c, "into", args, 1)
	if err != nil {
		return nil, err
	}
	return conjoin(c, "into", args[0], from)
}

// integers returns the integers of a range. If more is 1, the range includes its end.
func integers(op string, more uint64) Func {
	return func(c Call, args []form.Value) (form.Value, error) {
		start, err := integer(op, args, 0)
		if err != nil {
			return nil, err
		}
		end, err := integer(op, args, 1)
		if err != nil {
			return nil, err
		}
		if end < start {
			return form.Vector{}, nil
		}
		n := uint64(end) - uint64(start)
		if n < math.MaxUint64 {
			n += more
		}
		if err := many(c, op, n); err != nil {
			return nil, err
		}
		all := make(form.Vector, n)
		for i := range all {
			all[i] = start + int64(i)
		}
		return all, nil
	}
}

// many charges for a number of elements that a program has specified, which may be huge.
func many(c Call, op string, n uint64) error {
	if n > 1<<40 {
		n = 1 << 40
	}
	if err := charge(c, int(n), element+8); err != nil {
		return err
	}
	if n == 1<<40 {
		return invalid(op, "too many elements")
	}
	return nil
}

func repeat(c Call, args []form.Value) (form.Value, error) {
	n, err := integer("repeat", args, 0)
	if err != nil {
		return nil, err
	}
	if err := many(c, "repeat", uint64(max(n, 0))); err != nil {
		return nil, err
	}
	return form.Vector(slices.Repeat([]form.Value{args[1]}, clamped(n))), nil
}

func flatten(c Call, args []form.Value) (form.Value, error) {
	if _, err := items("flatten", args, 0); err != nil {
		return nil, err
	}
	all := form.Vector{}
	// An explicit stack: a program may nest values deeper than the Go stack allows.
	left := []form.Value{args[0]}
	for len(left) > 0 {
		v := left[len(left)-1]
		left = left[:len(left)-1]
		inner, err := items("flatten", []form.Value{v}, 0)
		if err := charge(c, 1+len(inner), element); err != nil {
			return nil, err
		}
		if err != nil {
			all = append(all, v)
			continue
		}
		for _, v := range slices.Backward(inner) {
			left = append(left, v)
		}
	}
	return all, nil
}

func interleave(c Call, args []form.Value) (form.Value, error) {
	shortest := -1
	all := make([][]form.Value, len(args))
	for i := range args {
		var err error
		if all[i], err = each(c, "interleave", args, i); err != nil {
			return nil, err
		}
		if shortest < 0 || len(all[i]) < shortest {
			shortest = len(all[i])
		}
	}
	if err := charge(c, shortest*len(args), element); err != nil {
		return nil, err
	}
	mixed := make(form.Vector, 0, shortest*len(args))
	for i := range shortest {
		for _, coll := range all {
			mixed = append(mixed, coll[i])
		}
	}
	return mixed, nil
}

func interpose(c Call, args []form.Value) (form.Value, error) {
	all, err := each(c, "interpose", args, 1)
	if err != nil {
		return nil, err
	}
	if err := charge(c, 2*len(all), element); err != nil {
		return nil, err
	}
	mixed := form.Vector{}
	for i, v := range all {
		if i > 0 {
			mixed = append(mixed, args[0])
		}
		mixed = append(mixed, v)
	}
	return mixed, nil
}

func partition(c Call, args []form.Value) (form.Value, error) {
	n, err := integer("partition", args, 0)
	if err != nil {
		return nil, err
	}
	if n < 1 {
		return nil, invalid("partition", "expects a size of 1 or more, got %d", n)
	}
	all, err := each(c, "partition", args, 1)
	if err != nil {
		return nil, err
	}
	if err := charge(c, len(all)/clamped(n)+1, 2*element); err != nil {
		return nil, err
	}
	parts := form.Vector{}
	for chunk := range slices.Chunk(all, clamped(n)) {
		parts = append(parts, form.Vector(chunk))
	}
	return parts, nil
}
