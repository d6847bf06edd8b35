package lib

// All returns the whole library, in the order of its documentation.
func All() []Builtin { return nil }
