package rtfs

import (
	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/rtfs/lib"
)

// field looks up a key in a map or an error. nil has no keys.
func field(target, key form.Value, other []form.Value) (form.Value, error) {
	switch t := target.(type) {
	case *form.Map:
		if v, ok := t.Get(key); ok {
			return v, nil
		}
	case *form.Error:
		if v, ok := lib.Fields(t).Get(key); ok {
			return v, nil
		}
	case nil:
	default:
		return nil, form.Errorf("TypeError", "%s is looked up in a map, got %s", brief(key), brief(target))
	}
	if len(other) > 0 {
		return other[0], nil
	}
	return nil, nil
}

func element(v form.Vector, index form.Value, other []form.Value) (form.Value, error) {
	i, ok := index.(int64)
	if !ok {
		return nil, form.Errorf("TypeError", "a vector must be called with an index, got %s", brief(index))
	}
	if 0 <= i && i < int64(len(v)) {
		return v[i], nil
	}
	if len(other) > 0 {
		return other[0], nil
	}
	return nil, form.Errorf("IndexOutOfBounds", "%d is not an index of a vector of %d", i, len(v))
}
