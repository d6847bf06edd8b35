package lib

import (
	"slices"

	"glasshouse/capability/rtfs/form"
)

// functions lists the functions that return functions. The results are of type *Builtin.
var functions = []Builtin{
	{"comp", 0, -1, "[& fs]", "A function that calls the last function with its arguments, the one before with the result, and so on.", comp},
	{"partial", 1, -1, "[f & args]", "A function that calls f with these arguments, followed by its own.", partial},
	{"constantly", 1, 1, "[x]", "A function of any arguments that returns x.", constantly},
	{"complement", 1, 1, "[pred]", "A function that returns true if pred does not.", complement},
	{"juxt", 1, -1, "[f & more]", "A function that returns a vector of the results of each function for its arguments.", juxt},
	{"fnil", 2, 2, "[f x]", "A function that calls f with x in place of a first argument that is nil.", fnil},
}

// made returns a function that a program has created.
func made(name string, least int, fn Func) (form.Value, error) {
	return &Builtin{Name: name, Min: least, Max: -1, Args: "[& args]", Fn: fn}, nil
}

func comp(c Call, args []form.Value) (form.Value, error) {
	fs, err := copied(c, args)
	if err != nil {
		return nil, err
	}
	if len(fs) == 0 {
		return &Builtin{Name: "comp", Min: 1, Max: 1, Args: "[x]", Fn: func(_ Call, args []form.Value) (form.Value, error) { return args[0], nil }}, nil
	}
	last := len(fs) - 1
	return made("comp", 0, func(c Call, args []form.Value) (form.Value, error) {
		v, err := c.Apply(fs[last], args...)
		for i := last - 1; i >= 0 && err == nil; i-- {
			v, err = c.Apply(fs[i], v)
		}
		return v, err
	})
}

func partial(c Call, args []form.Value) (form.Value, error) {
	bound, err := copied(c, args)
	if err != nil {
		return nil, err
	}
	return made("partial", 0, func(c Call, args []form.Value) (form.Value, error) {
		all := slices.Concat(bound[1:], args)
		if err := c.Alloc(int64(len(all)) * element); err != nil {
			return nil, err
		}
		return c.Apply(bound[0], all...)
	})
}

func constantly(_ Call, args []form.Value) (form.Value, error) {
	x := args[0]
	return made("constantly", 0, func(Call, []form.Value) (form.Value, error) { return x, nil })
}

func complement(_ Call, args []form.Value) (form.Value, error) {
	pred := args[0]
	return made("complement", 0, func(c Call, args []form.Value) (form.Value, error) {
		v, err := c.Apply(pred, args...)
		return !truthy(v), err
	})
}

func juxt(c Call, args []form.Value) (form.Value, error) {
	fs, err := copied(c, args)
	if err != nil {
		return nil, err
	}
	return made("juxt", 0, func(c Call, args []form.Value) (form.Value, error) {
		own, err := copied(c, args)
		if err != nil {
			return nil, err
		}
		all := make(form.Vector, len(fs))
		for i, f := range fs {
			if all[i], err = c.Apply(f, slices.Clone(own)...); err != nil {
				return nil, err
			}
		}
		return all, c.Alloc(int64(len(fs)) * element)
	})
}

func fnil(_ Call, args []form.Value) (form.Value, error) {
	f, x := args[0], args[1]
	return made("fnil", 1, func(c Call, args []form.Value) (form.Value, error) {
		own := slices.Clone(args)
		if own[0] == nil {
			own[0] = x
		}
		return c.Apply(f, own...)
	})
}
