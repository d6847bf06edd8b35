package lib

import (
	"slices"

	"glasshouse/capability/rtfs/form"
)

// sequences lists the functions that take functions and collections. A collection is a vector,
// a list, or a map, which is treated as the vector of its entries.
var sequences = []Builtin{
	{"map", 2, 2, "[f coll]", "A vector of the results of f for each element.", mapping1("map")},
	{"mapv", 2, 2, "[f coll]", "The same as map.", mapping1("mapv")},
	{"map-indexed", 2, 2, "[f coll]", "A vector of the results of f for each index and element.", mapIndexed},
	{"mapcat", 2, 2, "[f coll]", "The concatenated results of f for each element, which must be collections.", mapcat},
	{"keep", 2, 2, "[f coll]", "The results of f for each element, without nils.", keepOnly},
	{"filter", 2, 2, "[pred coll]", "The elements for which pred is true.", filter("filter", true)},
	{"filterv", 2, 2, "[pred coll]", "The same as filter.", filter("filterv", true)},
	{"remove", 2, 2, "[pred coll]", "The elements for which pred is not true.", filter("remove", false)},
	{"reduce", 2, 3, "[f init? coll]", "f of init and the first element, f of that and the second, and so on. Without init it begins with the first two, and an empty collection is an error.", reduce},
	{"reductions", 3, 3, "[f init coll]", "All intermediate results of reduce.", reductions},
	{"apply", 2, -1, "[f & args coll]", "f called with the arguments and the elements of a collection.", apply},
	{"some", 2, 2, "[pred coll]", "The first result of pred that is true, or nil.", some},
	{"some?", 2, 2, "[pred coll]", "Whether pred is true for at least one element.", any1("some?", true, true)},
	{"every?", 2, 2, "[pred coll]", "Whether pred is true for all elements.", any1("every?", false, false)},
	{"not-any?", 2, 2, "[pred coll]", "Whether pred is true for no element.", any1("not-any?", true, false)},
	{"not-every?", 2, 2, "[pred coll]", "Whether pred is not true for at least one element.", any1("not-every?", false, true)},
	{"take-while", 2, 2, "[pred coll]", "The elements up to the first for which pred is not true.", while("take-while", func(all []form.Value, n int) []form.Value { return all[:n] })},
	{"drop-while", 2, 2, "[pred coll]", "The elements from the first for which pred is not true.", while("drop-while", func(all []form.Value, n int) []form.Value { return all[n:] })},
	{"partition-by", 2, 2, "[f coll]", "Vectors of consecutive elements with the same result of f.", partitionBy},
	{"group-by", 2, 2, "[f coll]", "A map from results of f to vectors of the elements with that result. true and false become strings.", groupBy},
	{"frequencies", 1, 1, "[coll]", "A map from each element to its number of occurrences.", frequencies},
	{"sort", 1, 2, "[comparator? coll]", "The sorted elements. A comparator is a function of two arguments that returns whether the first comes first, or a number like compare.", sorted},
	{"sort-by", 2, 3, "[f comparator? coll]", "The elements sorted by the results of f.", sortBy},
	{"max-key", 2, -1, "[f x & more]", "The argument with the largest result of f; the last of several.", extremeBy("max-key", 1)},
	{"min-key", 2, -1, "[f x & more]", "The argument with the smallest result of f; the last of several.", extremeBy("min-key", -1)},
	{"zipmap", 2, 2, "[keys vals]", "A map of the keys and the values at the same index, up to the end of the shorter.", zipmap},
}

// applyEach calls f for each element and passes the result to yield, until yield returns false.
func applyEach(c Call, f form.Value, all []form.Value, yield func(i int, answer form.Value) (more bool, err error)) error {
	for i, v := range all {
		answer, err := c.Apply(f, v)
		if err != nil {
			return err
		}
		if more, err := yield(i, answer); !more || err != nil {
			return err
		}
	}
	return nil
}

func mapping1(op string) Func {
	return func(c Call, args []form.Value) (form.Value, error) {
		all, err := each(c, op, args, 1)
		if err != nil {
			return nil, err
		}
		if err := c.Alloc(int64(len(all)) * element); err != nil {
			return nil, err
		}
		made := make(form.Vector, len(all))
		err = applyEach(c, args[0], all, func(i int, answer form.Value) (bool, error) {
			made[i] = answer
			return true, nil
		})
		return made, err
	}
}

func mapIndexed(c Call, args []form.Value) (form.Value, error) {
	f := args[0]
	all, err := each(c, "map-indexed", args, 1)
	if err != nil {
		return nil, err
	}
	if err := c.Alloc(int64(len(all)) * element); err != nil {
		return nil, err
	}
	made := make(form.Vector, len(all))
	for i, v := range all {
		if made[i], err = c.Apply(f, int64(i), v); err != nil {
			return nil, err
		}
	}
	return made, nil
}

func mapcat(c Call, args []form.Value) (form.Value, error) {
	f := args[0]
	all, err := each(c, "mapcat", args, 1)
	if err != nil {
		return nil, err
	}
	made := form.Vector{}
	err = applyEach(c, f, all, func(_ int, answer form.Value) (bool, error) {
		more, err := each(c, "mapcat: what the function makes", []form.Value{answer}, 0)
		if err != nil {
			return false, err
		}
		made = append(made, more...)
		return true, c.Alloc(int64(len(more)) * element)
	})
	return made, err
}

func keepOnly(c Call, args []form.Value) (form.Value, error) {
	f := args[0]
	all, err := each(c, "keep", args, 1)
	if err != nil {
		return nil, err
	}
	made := form.Vector{}
	err = applyEach(c, f, all, func(_ int, answer form.Value) (bool, error) {
		if answer != nil {
			made = append(made, answer)
		}
		return true, c.Alloc(element)
	})
	return made, err
}

func filter(op string, want bool) Func {
	return func(c Call, args []form.Value) (form.Value, error) {
		pred := args[0]
		all, err := each(c, op, args, 1)
		if err != nil {
			return nil, err
		}
		kept := form.Vector{}
		err = applyEach(c, pred, all, func(i int, answer form.Value) (bool, error) {
			if truthy(answer) == want {
				kept = append(kept, all[i])
			}
			return true, c.Alloc(element)
		})
		return kept, err
	}
}

func reduce(c Call, args []form.Value) (form.Value, error) {
	f, last := args[0], len(args)-1
	all, err := each(c, "reduce", args, last)
	if err != nil {
		return nil, err
	}
	var sum form.Value
	switch {
	case last == 2:
		sum = args[1]
	case len(all) == 0:
		return nil, invalid("reduce", "an empty collection needs an initial value")
	default:
		sum, all = all[0], all[1:]
	}
	for _, v := range all {
		if sum, err = c.Apply(f, sum, v); err != nil {
			return nil, err
		}
	}
	return sum, nil
}

func reductions(c Call, args []form.Value) (form.Value, error) {
	f, sum := args[0], args[1]
	all, err := each(c, "reductions", args, 2)
	if err != nil {
		return nil, err
	}
	if err := c.Alloc(int64(len(all)+1) * element); err != nil {
		return nil, err
	}
	made := append(make(form.Vector, 0, len(all)+1), sum)
	for _, v := range all {
		if sum, err = c.Apply(f, sum, v); err != nil {
			return nil, err
		}
		made = append(made, sum)
	}
	return made, nil
}

func apply(c Call, args []form.Value) (form.Value, error) {
	last := len(args) - 1
	all, err := each(c, "apply", args, last)
	if err != nil {
		return nil, err
	}
	if last == 1 {
		// A copy, because a function may retain its arguments.
		all, err = copied(c, all)
	} else {
		all = slices.Concat(args[1:last], all)
		err = c.Alloc(int64(len(all)) * element)
	}
	if err != nil {
		return nil, err
	}
	return c.Apply(args[0], all...)
}

func some(c Call, args []form.Value) (form.Value, error) {
	pred := args[0]
	all, err := each(c, "some", args, 1)
	if err != nil {
		return nil, err
	}
	var found form.Value
	err = applyEach(c, pred, all, func(_ int, answer form.Value) (bool, error) {
		if truthy(answer) {
			found = answer
		}
		return found == nil, nil
	})
	return found, err
}

// any1 searches for an element whose result of pred is lookFor.
func any1(op string, lookFor, ifFound bool) Func {
	return func(c Call, args []form.Value) (form.Value, error) {
		pred := args[0]
		all, err := each(c, op, args, 1)
		if err != nil {
			return nil, err
		}
		found := false
		err = applyEach(c, pred, all, func(_ int, answer form.Value) (bool, error) {
			found = truthy(answer) == lookFor
			return !found, nil
		})
		return found == ifFound, err
	}
}

func while(op string, pick func(all []form.Value, n int) []form.Value) Func {
	return func(c Call, args []form.Value) (form.Value, error) {
		pred := args[0]
		all, err := each(c, op, args, 1)
		if err != nil {
			return nil, err
		}
		n := 0
		err = applyEach(c, pred, all, func(i int, answer form.Value) (bool, error) {
			if truthy(answer) {
				n = i + 1
			}
			return truthy(answer), nil
		})
		return form.Vector(pick(all, n)), err
	}
}

func partitionBy(c Call, args []form.Value) (form.Value, error) {
	f := args[0]
	all, err := each(c, "partition-by", args, 1)
	if err != nil {
		return nil, err
	}
	parts := form.Vector{}
	start := 0
	var before form.Value
	err = applyEach(c, f, all, func(i int, answer form.Value) (bool, error) {
		if i > 0 {
			is, err := same(c, before, answer)
			if err != nil {
				return false, err
			}
			if !is {
				parts = append(parts, form.Vector(all[start:i]))
				start = i
			}
		}
		before = answer
		return true, c.Alloc(2 * element)
	})
	if err != nil || len(all) == 0 {
		return parts, err
	}
	return append(parts, form.Vector(all[start:])), nil
}

func groupBy(c Call, args []form.Value) (form.Value, error) {
	f := args[0]
	all, err := each(c, "group-by", args, 1)
	if err != nil {
		return nil, err
	}
	var keys numbering
	var groups []form.Vector
	err = applyEach(c, f, all, func(i int, key form.Value) (bool, error) {
		if b, ok := key.(bool); ok {
			key = form.Text(b)
		}
		at, old, err := keys.number(c, key)
		if err != nil {
			return false, err
		}
		if !old {
			groups = append(groups, nil)
		}
		groups[at] = append(groups[at], all[i])
		return true, c.Alloc(entry)
	})
	if err != nil {
		return nil, err
	}
	return mapOf(c, keys.values, func(i int) form.Value { return groups[i] })
}

func frequencies(c Call, args []form.Value) (form.Value, error) {
	all, err := elementsOf(c, "frequencies", args, 0)
	if err != nil {
		return nil, err
	}
	if err := c.Alloc(int64(len(all)) * entry); err != nil {
		return nil, err
	}
	var keys numbering
	var counts []int64
	for _, v := range all {
		at, old, err := keys.number(c, v)
		if err != nil {
			return nil, err
		}
		if !old {
			counts = append(counts, 0)
		}
		counts[at]++
	}
	return mapOf(c, keys.values, func(i int) form.Value { return counts[i] })
}

// mapOf returns a map of keys to values by index.
func mapOf(c Call, keys []form.Value, value func(i int) form.Value) (form.Value, error) {
	if err := charge(c, len(keys), 2*element); err != nil {
		return nil, err
	}
	pairs := make([]form.Value, 0, 2*len(keys))
	for i, k := range keys {
		pairs = append(pairs, k, value(i))
	}
	return newMap(c, pairs)
}

func zipmap(c Call, args []form.Value) (form.Value, error) {
	keys, err := each(c, "zipmap", args, 0)
	if err != nil {
		return nil, err
	}
	values, err := each(c, "zipmap", args, 1)
	if err != nil {
		return nil, err
	}
	return mapOf(c, keys[:min(len(keys), len(values))], func(i int) form.Value { return values[i] })
}

func sorted(c Call, args []form.Value) (form.Value, error) {
	last := len(args) - 1
	all, err := each(c, "sort", args, last)
	if err != nil {
		return nil, err
	}
	if all, err = copied(c, all); err != nil {
		return nil, err
	}
	before := natural(c, "sort")
	if last == 1 {
		before = by(c, "sort", args[0])
	}
	err = sortStable(all, before)
	return form.Vector(all), err
}

func sortBy(c Call, args []form.Value) (form.Value, error) {
	f, last := args[0], len(args)-1
	all, err := each(c, "sort-by", args, last)
	if err != nil {
		return nil, err
	}
	if err := charge(c, len(all), 3*element); err != nil {
		return nil, err
	}
	order := natural(c, "sort-by")
	if last == 2 {
		order = by(c, "sort-by", args[1])
	}
	type keyed struct{ key, v form.Value }
	pairs := make([]keyed, len(all))
	err = applyEach(c, f, all, func(i int, key form.Value) (bool, error) {
		pairs[i] = keyed{key, all[i]}
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	err = sortStable(pairs, func(a, b keyed) (int, error) { return order(a.key, b.key) })
	made := make(form.Vector, len(pairs))
	for i, p := range pairs {
		made[i] = p.v
	}
	return made, err
}

// An ordering compares two values like compare.
type ordering = func(a, b form.Value) (int, error)

func natural(c Call, op string) ordering {
	return func(a, b form.Value) (int, error) {
		if err := c.Step(1); err != nil {
			return 0, err
		}
		return compare(c, op, a, b, 0)
	}
}

// by returns the ordering of a comparator, which returns a number or whether its first argument
// comes first.
func by(c Call, op string, f form.Value) ordering {
	return func(a, b form.Value) (int, error) {
		answer, err := c.Apply(f, a, b)
		if err != nil {
			return 0, err
		}
		if _, ok := toFloat(answer); ok {
			return compareNumbers(answer, int64(0)), nil
		}
		if truthy(answer) {
			return -1, nil
		}
		if answer, err = c.Apply(f, b, a); err != nil {
			return 0, err
		}
		return truth(truthy(answer)), nil
	}
}

// sortStable sorts stably. It returns the first error of order.
func sortStable[T any](all []T, order func(a, b T) (int, error)) error {
	var failed error
	slices.SortStableFunc(all, func(a, b T) int {
		if failed != nil {
			return 0
		}
		n, err := order(a, b)
		failed = err
		return n
	})
	return failed
}

func extremeBy(op string, want int) Func {
	return func(c Call, args []form.Value) (form.Value, error) {
		f := args[0]
		// args is reused as soon as f is called.
		all, err := copied(c, args[1:])
		if err != nil {
			return nil, err
		}
		var found, foundKey form.Value
		err = applyEach(c, f, all, func(i int, key form.Value) (bool, error) {
			if _, ok := toFloat(key); !ok {
				return false, form.Errorf("TypeError", "%s expects a number from its function, got %s", op, describe(key))
			}
			if i == 0 || compareNumbers(key, foundKey) != -want {
				found, foundKey = all[i], key
			}
			return true, nil
		})
		return found, err
	}
}
