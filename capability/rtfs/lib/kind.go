package lib

import "glasshouse/capability/rtfs/form"

var kinds = []Builtin{
	{"nil?", 1, 1, "[x]", "Whether x is nil.", is(func(v form.Value) bool { return v == nil })},
	{"true?", 1, 1, "[x]", "Whether x is true itself.", is(func(v form.Value) bool { return v == true })},
	{"false?", 1, 1, "[x]", "Whether x is false itself.", is(func(v form.Value) bool { return v == false })},
	{"bool?", 1, 1, "[x]", "Whether x is true or false.", is(isA[bool])},
	{"boolean?", 1, 1, "[x]", "The same as bool?.", is(isA[bool])},
	{"int?", 1, 1, "[x]", "Whether x is an integer.", is(isA[int64])},
	{"integer?", 1, 1, "[x]", "The same as int?.", is(isA[int64])},
	{"float?", 1, 1, "[x]", "Whether x is a float.", is(isA[float64])},
	{"number?", 1, 1, "[x]", "Whether x is an integer or a float.", is(func(v form.Value) bool { return rank(v) == rank(int64(0)) })},
	{"string?", 1, 1, "[x]", "Whether x is a string.", is(isA[string])},
	{"string-p", 1, 1, "[x]", "The same as string?.", is(isA[string])},
	{"fn?", 1, 1, "[x]", "Whether x is a function. Keywords, maps and vectors can be called, but are not functions.", is(func(v form.Value) bool { return TypeName(v) == "function" })},
	{"symbol?", 1, 1, "[x]", "Whether x is a symbol.", is(isA[form.Symbol])},
	{"keyword?", 1, 1, "[x]", "Whether x is a keyword.", is(isA[form.Keyword])},
	{"vector?", 1, 1, "[x]", "Whether x is a vector.", is(isA[form.Vector])},
	{"list?", 1, 1, "[x]", "Whether x is a list.", is(isA[form.List])},
	{"sequential?", 1, 1, "[x]", "Whether x is a vector or a list.", is(func(v form.Value) bool { return isA[form.Vector](v) || isA[form.List](v) })},
	{"map?", 1, 1, "[x]", "Whether x is a map.", is(isA[*form.Map])},
	{"coll?", 1, 1, "[x]", "Whether x is a vector, a list or a map.", is(func(v form.Value) bool { return isA[form.Vector](v) || isA[form.List](v) || isA[*form.Map](v) })},
	{"error?", 1, 1, "[x]", "Whether x is an error.", is(isA[*form.Error])},
	{"type-name", 1, 1, "[x]", "The name of the type of x: \"integer\", \"float\", \"boolean\", \"string\", \"nil\", \"vector\", \"list\", \"map\", \"keyword\", \"symbol\", \"function\", \"error\", \"resource\".", func(_ Call, args []form.Value) (form.Value, error) { return TypeName(args[0]), nil }},
	{"type", 1, 1, "[x]", "The type of x by its name in schemas: :int, :float, :bool, :string, :nil, :vector, :list, :map, :keyword, :symbol, :fn, :error, :resource.", typeOf},
}

func is(test func(form.Value) bool) Func {
	return func(_ Call, args []form.Value) (form.Value, error) { return test(args[0]), nil }
}

func isA[T any](v form.Value) bool {
	_, ok := v.(T)
	return ok
}

func typeOf(_ Call, args []form.Value) (form.Value, error) {
	switch name := TypeName(args[0]); name {
	case "integer":
		return form.Keyword("int"), nil
	case "boolean":
		return form.Keyword("bool"), nil
	case "function":
		return form.Keyword("fn"), nil
	default:
		return form.Keyword(name), nil
	}
}
