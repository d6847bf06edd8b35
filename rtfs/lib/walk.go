package lib

import "glasshouse/rtfs/form"

// deepest is how far down values are compared and written.
const deepest = 20 * form.MaxNesting

// walk charges for going through all of a value, and refuses one that is nested too
// deeply. Whatever follows values down has this done first: a value whose parts are
// the same one again and again is small, and takes for ever to go through.
func walk(c Call, v form.Value) error { return walkTo(c, v, 0) }

// Walk is the same for the evaluator, of values that meet a type.
func Walk(c Call, v form.Value) error { return walk(c, v) }

// Weigh charges for the text of a value, which whoever is given it may write. A value
// whose parts are long strings again and again is soon gone through, and its text takes
// more memory than there is.
func Weigh(c Call, v form.Value) error { return measure(c, v, 0) }

func tooDeep() error {
	return form.Errorf("InvalidArgument", "a value is nested more than %d deep", deepest)
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

// size is how much there is to look at, at least, in a value.
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

// same is form.Equal, paid for.
func same(c Call, a, b form.Value) (bool, error) {
	if size(a) != size(b) {
		return false, nil // each is of a type and length of its own
	}
	if err := walk(c, a); err != nil {
		return false, err
	}
	return form.Equal(a, b), nil
}

// A numbering numbers values that are not equal in the order in which they come. Its
// zero value is empty.
type numbering struct {
	byHash map[uint64][]int
	values []form.Value
}

// place is the number of a value, and whether it had one already.
func (x *numbering) place(c Call, v form.Value) (int, bool, error) {
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
