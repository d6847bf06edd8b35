package lib

import (
	"hash/maphash"

	"glasshouse/rtfs/form"
)

// An index64 numbers values that are not equal in the order in which they come. Its
// zero value is empty.
type index64 struct {
	byHash map[uint64][]int
	values []form.Value
}

// place is the number of a value, and whether it had one already.
func (x *index64) place(c Call, v form.Value) (int, bool, error) {
	h, err := hash(c, v, 0)
	if err != nil {
		return 0, false, err
	}
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

// seed differs from process to process, so that nobody can prepare values of one hash.
var seed = maphash.MakeSeed()

// hash is the same for values that are equal. What is nested deeper than anybody
// means is not looked at.
func hash(c Call, v form.Value, depth int) (uint64, error) {
	if depth > 64 {
		return 0, nil
	}
	if err := c.Step(1 + int64(size(v))); err != nil {
		return 0, err
	}
	switch v := v.(type) {
	case form.Vector:
		return hashAll(c, v, depth)
	case form.List:
		return hashAll(c, v, depth)
	case *form.Map:
		sum := uint64(v.Len())
		for k, item := range v.All() {
			h, err := hashAll(c, []form.Value{k, item}, depth)
			if err != nil {
				return 0, err
			}
			sum += h // in whatever order they come
		}
		return sum, nil
	case nil, bool, int64, float64, string, form.Keyword, form.Symbol, form.Resource:
		return maphash.Comparable(seed, v), nil
	}
	return 0, nil // functions and errors
}

func hashAll(c Call, all []form.Value, depth int) (uint64, error) {
	sum := uint64(len(all))
	for _, v := range all {
		h, err := hash(c, v, depth+1)
		if err != nil {
			return 0, err
		}
		sum = sum*0x9E3779B97F4A7C15 + h
	}
	return sum, nil
}
