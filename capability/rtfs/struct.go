package rtfs

import (
	"strings"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/rtfs/lib"
)

// A fieldType is one :field Type of a struct.
type fieldType struct {
	name     form.Keyword
	check    checker
	optional bool // written T?
}

// defstruct compiles (defstruct Name :field Type …): a function that checks a map
// and returns it.
func (c *compiler) defstruct(n *form.Node, _ spot) code {
	if len(n.Items) < 2 || len(n.Items)%2 != 0 {
		return c.fail(n, "defstruct takes a name, and fields with their types")
	}
	i, name, ok := c.define(n.Items[1])
	if !ok {
		return nil
	}
	var fields []fieldType
	for items := n.Items[2:]; len(items) > 0; items = items[2:] {
		key, ok := items[0].Atom.(form.Keyword)
		if !ok {
			return c.fail(items[0], "a field is a keyword")
		}
		fields = append(fields, fieldType{key, c.check(items[1], name+" "+form.Text(key)), strings.HasSuffix(form.Text(items[1].Value()), "?")})
	}
	constructor := &lib.Builtin{Name: name, Min: 1, Max: 1, Args: "[map]", Fn: func(c lib.Call, args []form.Value) (form.Value, error) {
		return construct(machineOf(c), name, fields, args[0])
	}}
	return func(f *frame) (form.Value, error) {
		f.m.setGlobal(i, constructor)
		return constructor, nil
	}
}

func construct(m *machine, name string, fields []fieldType, v form.Value) (form.Value, error) {
	fieldsOf, ok := v.(*form.Map)
	if !ok {
		return nil, form.Errorf("TypeError", "%s takes a map, got %s", name, brief(v))
	}
	for _, field := range fields {
		value, ok := fieldsOf.Get(field.name)
		if !ok {
			if field.optional {
				continue
			}
			return nil, form.Errorf("TypeValidationError", "%s has no %s", name, form.Text(field.name))
		}
		if err := field.check(m, value); err != nil {
			return nil, err
		}
	}
	return fieldsOf, nil
}
