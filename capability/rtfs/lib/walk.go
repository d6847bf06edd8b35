package lib

import "glasshouse/capability/rtfs/form"

// deepest is the maximum nesting depth of values that are compared and written.
const deepest = 20 * form.MaxNesting

// walk charges for traversing a value and refuses values that are nested too deeply. It must be
// called before any recursive traversal: a value with shared parts can be small and yet take
// exponential time to traverse.
func walk(c Call, v form.Value) error { return walkTo(c, v, 0) }

// Walk exports walk for the evaluator, which calls it before checking types.
func Walk(c Call, v form.Value) error { return walk(c, v) }

// Weigh charges for the text of a value that leaves the program, because its receiver may print
// it. The text of a value with shared strings can be much larger than the value.
func Weigh(c Call, v form.Value) error { return measure(c, v, 0) }

func tooDeep() error {
	return form.Errorf("InvalidArgument", "a value is nested more than %d levels deep", deepest)
}

func walkTo(c Call, v form.Value, depth int) error {
	n := size(v)
	if n == 0 {
		return nil
	}
	if depth > deepest {
		return tooDeep()
	}
	if err := c.Step(int64(n)); err != nil {
		return err
	}
	switch v := v.(type) {
	case form.Vector:
		return walkAll(c, v, depth+1)
	case form.List:
		return walkAll(c, v, depth+1)
	case *form.Map:
		for k, item := range v.All() {
			if err := walkTo(c, k, depth+1); err != nil {
				return err
			}
			if err := walkTo(c, item, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

func walkAll(c Call, all []form.Value, depth int) error {
	for _, v := range all {
		if err := walkTo(c, v, depth); err != nil {
			return err
		}
	}
	return nil
}

// size returns the top-level length of a value for accounting. Values of different sizes are
// not equal.
func size(v form.Value) int {
	switch v := v.(type) {
	case string:
		return len(v) / 64
	case form.Keyword:
		return len(v) / 64
	case form.Symbol:
		return len(v) / 64
	case form.Vector:
		return len(v)
	case form.List:
		return len(v)
	case *form.Map:
		return v.Len()
	}
	return 0
}

// same is form.Equal with accounting.
func same(c Call, a, b form.Value) (bool, error) {
	if size(a) != size(b) {
		return false, nil
	}
	if err := walk(c, a); err != nil {
		return false, err
	}
	return form.Equal(a, b), nil
}

// A numbering numbers distinct values in the order of their occurrence. Its zero value is
// empty.
type numbering struct {
	byHash map[uint64][]int
	values []form.Value
}

// number returns the number of a value, and whether the value already had one.
func (x *numbering) number(c Call, v form.Value) (int, bool, error) {
	if err := walk(c, v); err != nil {
		return 0, false, err
	}
	h := form.Hash(v)
	for _, i := range x.byHash[h] {
		if is, err := same(c, x.values[i], v); is || err != nil {
			return i, is, err
		}
	}
	if x.byHash == nil {
		x.byHash = map[uint64][]int{}
	}
	x.byHash[h] = append(x.byHash[h], len(x.values))
	x.values = append(x.values, v)
	return len(x.values) - 1, false, nil
}
