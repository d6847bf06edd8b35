package lib

import "glasshouse/capability/rtfs/form"

var maps = []Builtin{
	{"hash-map", 0, -1, "[& keys-and-values]", "A map of alternating keys and values.", hashMap},
	{"get", 2, 3, "[coll key default?]", "The value of a key in a map, or the element at an index; otherwise the default, or nil.", get},
	{"get-in", 2, 3, "[coll path default?]", "The value at the end of a path of keys and indexes.", getIn},
	{"assoc", 3, -1, "[coll key value & more]", "The map with another value for a key, or the vector with another element at an index.", assoc},
	{"assoc-in", 3, 3, "[coll path value]", "The collection with another value at the end of a path. Missing maps on the path are created.", assocIn},
	{"dissoc", 2, -1, "[m key & more]", "The map without keys.", dissoc},
	{"update", 3, -1, "[coll key default? f & args]", "The collection with a value replaced by f of the value and the arguments. A missing value is the default, or nil.", update},
	{"update-in", 3, -1, "[coll path f & args]", "update at the end of a path.", updateIn},
	{"merge", 1, -1, "[m & more]", "The entries of all maps; for a key in several maps, the last value.", merge},
	{"merge-with", 2, -1, "[f m & more]", "The entries of all maps; for a key in several maps, the result of f for its values.", mergeWith},
	{"find", 2, 2, "[m key]", "The entry of a key, [key value], or nil.", findEntry},
	{"contains?", 2, 2, "[coll x]", "Whether a map has a key, or a vector or list an element.", containsValue},
	{"keys", 1, 1, "[m]", "The keys of a map.", parts("keys", func(k, _ form.Value) form.Value { return k })},
	{"vals", 1, 1, "[m]", "The values of a map.", parts("vals", func(_, v form.Value) form.Value { return v })},
	{"select-keys", 2, 2, "[m keys]", "The entries of those keys.", selectKeys},
	{"rename-keys", 2, 2, "[m names]", "The map with keys replaced according to the map names.", renameKeys},
	{"update-vals", 2, 2, "[m f]", "The map with every value replaced by the result of f.", updateVals},
	{"update-keys", 2, 2, "[m f]", "The map with every key replaced by the result of f.", updateKeys},
	{"reduce-kv", 3, 3, "[f init m]", "reduce over a map, or the indexes and elements of a vector, with a function of three: the result so far, key, value.", reduceKV},
}

func hashMap(c Call, args []form.Value) (form.Value, error) {
	if len(args)%2 != 0 {
		return nil, form.Errorf("ArityMismatch", "hash-map expects keys and values in pairs, got %d arguments", len(args))
	}
	return newMap(c, args)
}

// newMap returns a map of alternating keys and values of any type.
func newMap(c Call, pairs []form.Value) (form.Value, error) {
	if err := charge(c, len(pairs)/2, entry); err != nil {
		return nil, err
	}
	for i := 0; i < len(pairs); i += 2 {
		if err := walk(c, pairs[i]); err != nil {
			return nil, err
		}
	}
	return form.NewMap(pairs...), nil
}

// look returns the value of a key or index in a collection, and whether it exists.
func look(c Call, op string, coll, key form.Value) (form.Value, bool, error) {
	if err := walk(c, key); err != nil {
		return nil, false, err
	}
	switch coll := coll.(type) {
	case *form.Map:
		v, ok := coll.Get(key)
		return v, ok, nil
	case *form.Error:
		v, ok := Fields(coll).Get(key)
		return v, ok, nil
	}
	all, err := items(op, []form.Value{coll}, 0)
	if err != nil {
		return nil, false, wrong(op, 0, "a map or a vector", coll)
	}
	i, ok := key.(int64)
	if !ok {
		return nil, false, wrong(op, 1, "an integer, the index in a vector", key)
	}
	if i < 0 || i >= int64(len(all)) {
		return nil, false, nil
	}
	return all[i], true, nil
}

// absent returns the default argument, or nil.
func absent(args []form.Value) form.Value {
	if len(args) > 2 {
		return args[2]
	}
	return nil
}

func get(c Call, args []form.Value) (form.Value, error) {
	v, ok, err := look(c, "get", args[0], args[1])
	if err != nil || !ok {
		return absent(args), err
	}
	return v, nil
}

func getIn(c Call, args []form.Value) (form.Value, error) {
	path, err := items("get-in", args, 1)
	if err != nil {
		return nil, err
	}
	v := args[0]
	for _, key := range path {
		if err := c.Step(1); err != nil {
			return nil, err
		}
		var ok bool
		if rank(v) >= 0 && rank(v) < rank(form.Vector{}) {
			return absent(args), nil // numbers and strings have no entries
		}
		if v, ok, err = look(c, "get-in", v, key); err != nil || !ok {
			return absent(args), err
		}
	}
	return v, nil
}

func assoc(c Call, args []form.Value) (form.Value, error) {
	if len(args)%2 == 0 {
		return nil, form.Errorf("ArityMismatch", "assoc expects keys and values in pairs after its first argument, got %d", len(args)-1)
	}
	coll := args[0]
	for i := 1; i < len(args); i += 2 {
		var err error
		if coll, err = with(c, "assoc", coll, args[i], args[i+1]); err != nil {
			return nil, err
		}
	}
	return coll, nil
}

// with returns a collection with another value for one key.
func with(c Call, op string, coll, key, value form.Value) (form.Value, error) {
	if m, ok := coll.(*form.Map); ok {
		if err := chargeWith(c, m, key); err != nil {
			return nil, err
		}
		return m.With(key, value), nil
	}
	all, err := items(op, []form.Value{coll}, 0)
	if err != nil {
		return nil, wrong(op, 0, "a map or a vector", coll)
	}
	i, ok := key.(int64)
	if !ok {
		return nil, wrong(op, 1, "an integer, the index in a vector", key)
	}
	if i < 0 || i >= int64(len(all)) {
		return nil, outOfBounds(op, i, len(all))
	}
	if all, err = copied(c, all); err != nil {
		return nil, err
	}
	all[i] = value
	if _, ok := coll.(form.List); ok {
		return form.List(all), nil
	}
	return form.Vector(all), nil
}

// chargeWith charges for a map with one more entry. A large map shares most of its memory with
// the original.
func chargeWith(c Call, m *form.Map, key form.Value) error {
	if err := walk(c, key); err != nil {
		return err
	}
	return charge(c, min(m.Len()+1, 24), entry)
}

// change replaces the value at the end of a path by the result of f.
func change(c Call, op string, coll form.Value, path []form.Value, f func(form.Value) (form.Value, error)) (form.Value, error) {
	if len(path) == 0 {
		return f(coll)
	}
	if len(path) > deepestPath {
		return nil, invalid(op, "a path of more than %d keys", deepestPath)
	}
	coll = orEmpty(coll)
	inner, _, err := look(c, op, coll, path[0])
	if err != nil {
		return nil, err
	}
	if inner, err = change(c, op, inner, path[1:], f); err != nil {
		return nil, err
	}
	return with(c, op, coll, path[0], inner)
}

// orEmpty replaces a missing collection by an empty map.
func orEmpty(coll form.Value) form.Value {
	if coll == nil {
		return form.NewMap()
	}
	return coll
}

func isFunction(v form.Value) bool {
	_, ok := v.(form.Func)
	return ok
}

// deepestPath bounds the recursion of change.
const deepestPath = 1000

func assocIn(c Call, args []form.Value) (form.Value, error) {
	path, err := thePath("assoc-in", args)
	if err != nil {
		return nil, err
	}
	return change(c, "assoc-in", args[0], path, func(form.Value) (form.Value, error) { return args[2], nil })
}

func thePath(op string, args []form.Value) ([]form.Value, error) {
	path, err := items(op, args, 1)
	if err == nil && len(path) == 0 {
		err = invalid(op, "expects a path of one key or more, got none")
	}
	return path, err
}

func update(c Call, args []form.Value) (form.Value, error) {
	// (update m k default f …): only a value that is not a function can be a default.
	if len(args) > 3 && !isFunction(args[2]) && isFunction(args[3]) {
		other, key := args[2], args[1]
		args = append(args[:2:2], args[3:]...)
		apply := applied(c, args)
		_, found, err := look(c, "update", orEmpty(args[0]), key)
		if err != nil {
			return nil, err
		}
		if !found {
			apply = func(form.Value) (form.Value, error) { return applied(c, args)(other) }
		}
		return change(c, "update", args[0], []form.Value{key}, apply)
	}
	return change(c, "update", args[0], []form.Value{args[1]}, applied(c, args))
}

func updateIn(c Call, args []form.Value) (form.Value, error) {
	path, err := thePath("update-in", args)
	if err != nil {
		return nil, err
	}
	return change(c, "update-in", args[0], path, applied(c, args))
}

// applied returns a function that calls args[2] with a value and the remaining arguments.
func applied(c Call, args []form.Value) func(form.Value) (form.Value, error) {
	return func(v form.Value) (form.Value, error) {
		return c.Apply(args[2], append([]form.Value{v}, args[3:]...)...)
	}
}

func dissoc(c Call, args []form.Value) (form.Value, error) {
	m, err := mapping("dissoc", args, 0)
	if err != nil {
		return nil, err
	}
	for _, key := range args[1:] {
		if err := chargeWith(c, m, key); err != nil {
			return nil, err
		}
		m = m.Without(key)
	}
	return m, nil
}

// pairsOf returns the alternating keys and values of all maps among the arguments from index
// from.
func pairsOf(c Call, op string, args []form.Value, from int) ([]form.Value, error) {
	var pairs []form.Value
	for i := from; i < len(args); i++ {
		m, err := mapping(op, args, i)
		if err != nil {
			return nil, err
		}
		if err := charge(c, m.Len(), entry); err != nil {
			return nil, err
		}
		for k, v := range m.All() {
			pairs = append(pairs, k, v)
		}
	}
	return pairs, nil
}

func merge(c Call, args []form.Value) (form.Value, error) {
	if m, ok := args[0].(*form.Map); ok && len(args) == 2 {
		// A few entries are added to a large map.
		if more, ok := args[1].(*form.Map); ok && more.Len() < m.Len()/4 {
			return mergeFew(c, m, more)
		}
	}
	pairs, err := pairsOf(c, "merge", args, 0)
	if err != nil {
		return nil, err
	}
	return newMap(c, pairs)
}

func mergeFew(c Call, m, more *form.Map) (form.Value, error) {
	for k, v := range more.All() {
		if err := chargeWith(c, m, k); err != nil {
			return nil, err
		}
		m = m.With(k, v)
	}
	return m, nil
}

func mergeWith(c Call, args []form.Value) (form.Value, error) {
	f := args[0]
	pairs, err := pairsOf(c, "merge-with", args, 1)
	if err != nil {
		return nil, err
	}
	var keys numbering
	var values []form.Value
	for i := 0; i < len(pairs); i += 2 {
		at, old, err := keys.number(c, pairs[i])
		if err != nil {
			return nil, err
		}
		if !old {
			values = append(values, pairs[i+1])
			continue
		}
		if values[at], err = c.Apply(f, values[at], pairs[i+1]); err != nil {
			return nil, err
		}
	}
	return mapOf(c, keys.values, func(i int) form.Value { return values[i] })
}

// conjoinMap adds elements to a map. Each is [key value] or a map.
func conjoinMap(c Call, op string, m *form.Map, elements []form.Value) (form.Value, error) {
	var pairs []form.Value
	for _, v := range elements {
		if inner, ok := v.(*form.Map); ok {
			found, err := pairsOf(c, op, []form.Value{inner}, 0)
			if err != nil {
				return nil, err
			}
			pairs = append(pairs, found...)
			continue
		}
		kv, err := items(op, []form.Value{v}, 0)
		if err != nil || len(kv) != 2 {
			return nil, wrong(op, 1, "a vector [key value] or a map, for a map,", v)
		}
		pairs = append(pairs, kv...)
	}
	more, err := newMap(c, pairs)
	if err != nil {
		return nil, err
	}
	return merge(c, []form.Value{m, more})
}

func findEntry(c Call, args []form.Value) (form.Value, error) {
	v, ok, err := look(c, "find", args[0], args[1])
	if err != nil || !ok {
		return nil, err
	}
	return form.Vector{args[1], v}, nil
}

func containsValue(c Call, args []form.Value) (form.Value, error) {
	if m, ok := args[0].(*form.Map); ok {
		_, ok, err := look(c, "contains?", m, args[1])
		return ok, err
	}
	all, err := items("contains?", args, 0)
	if err != nil {
		return nil, wrong("contains?", 0, "a map, a vector or a list", args[0])
	}
	for _, v := range all {
		if err := c.Step(1); err != nil {
			return nil, err
		}
		if is, err := same(c, v, args[1]); is || err != nil {
			return is, err
		}
	}
	return false, nil
}

func parts(op string, pick func(k, v form.Value) form.Value) Func {
	return func(c Call, args []form.Value) (form.Value, error) {
		m, err := mapping(op, args, 0)
		if err != nil {
			return nil, err
		}
		if err := charge(c, m.Len(), element); err != nil {
			return nil, err
		}
		all := make(form.Vector, 0, m.Len())
		for k, v := range m.All() {
			all = append(all, pick(k, v))
		}
		return all, nil
	}
}

func selectKeys(c Call, args []form.Value) (form.Value, error) {
	m, err := mapping("select-keys", args, 0)
	if err != nil {
		return nil, err
	}
	wanted, err := each(c, "select-keys", args, 1)
	if err != nil {
		return nil, err
	}
	var pairs []form.Value
	for _, k := range wanted {
		if v, ok, err := look(c, "select-keys", m, k); err != nil {
			return nil, err
		} else if ok {
			pairs = append(pairs, k, v)
		}
	}
	return newMap(c, pairs)
}

func renameKeys(c Call, args []form.Value) (form.Value, error) {
	m, err := mapping("rename-keys", args, 0)
	if err != nil {
		return nil, err
	}
	names, err := mapping("rename-keys", args, 1)
	if err != nil {
		return nil, err
	}
	return rebuilt(c, m, func(k, v form.Value) (form.Value, form.Value, error) {
		name, ok, err := look(c, "rename-keys", names, k)
		if ok {
			k = name
		}
		return k, v, err
	})
}

func updateVals(c Call, args []form.Value) (form.Value, error) {
	m, err := mapping("update-vals", args, 0)
	if err != nil {
		return nil, err
	}
	f := args[1]
	return rebuilt(c, m, func(k, v form.Value) (form.Value, form.Value, error) {
		v, err := c.Apply(f, v)
		return k, v, err
	})
}

func updateKeys(c Call, args []form.Value) (form.Value, error) {
	m, err := mapping("update-keys", args, 0)
	if err != nil {
		return nil, err
	}
	f := args[1]
	return rebuilt(c, m, func(k, v form.Value) (form.Value, form.Value, error) {
		k, err := c.Apply(f, k)
		return k, v, err
	})
}

// rebuilt returns a map of the results of f for every entry.
func rebuilt(c Call, m *form.Map, f func(k, v form.Value) (form.Value, form.Value, error)) (form.Value, error) {
	if err := charge(c, m.Len(), entry); err != nil {
		return nil, err
	}
	pairs := make([]form.Value, 0, 2*m.Len())
	for k, v := range m.All() {
		k, v, err := f(k, v)
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, k, v)
	}
	return newMap(c, pairs)
}

func reduceKV(c Call, args []form.Value) (form.Value, error) {
	f, sum := args[0], args[1]
	if m, ok := args[2].(*form.Map); ok {
		for k, v := range m.All() {
			var err error
			if sum, err = c.Apply(f, sum, k, v); err != nil {
				return nil, err
			}
		}
		return sum, nil
	}
	all, err := items("reduce-kv", args, 2)
	if err != nil {
		return nil, wrong("reduce-kv", 2, "a map or a vector", args[2])
	}
	for i, v := range all {
		if sum, err = c.Apply(f, sum, int64(i), v); err != nil {
			return nil, err
		}
	}
	return sum, nil
}
