package schema

import (
	"maps"
	"slices"

	"glasshouse/capability/rtfs/form"
)

// A word is a type without arguments.
type word uint8

const (
	anyType word = iota
	never
	nilType
	boolType
	intType
	floatType
	stringType
	keywordType
	symbolType
	function
	resource
)

// words maps the names of the word types. Capitalised names are those of annotations in
// programs.
var words = map[string]word{
	"any": anyType, "Any": anyType,
	"never": never, "Never": never,
	"nil": nilType, "Nil": nilType,
	"bool": boolType, "Bool": boolType, "Boolean": boolType,
	"int": intType, "Int": intType, "Integer": intType,
	"float": floatType, "Float": floatType, "Number": floatType,
	"string": stringType, "String": stringType,
	"keyword": keywordType, "Keyword": keywordType,
	"symbol": symbolType, "Symbol": symbolType,
}

var wordList = slices.Sorted(maps.Keys(words))

func (w word) ok(v form.Value) bool {
	switch w {
	case anyType:
		return true
	case nilType:
		return v == nil
	case boolType:
		_, ok := v.(bool)
		return ok
	case intType:
		_, ok := v.(int64)
		return ok
	case floatType: // ints are accepted too
		switch v.(type) {
		case float64, int64:
			return true
		}
	case stringType:
		_, ok := v.(string)
		return ok
	case keywordType:
		_, ok := v.(form.Keyword)
		return ok
	case symbolType:
		_, ok := v.(form.Symbol)
		return ok
	case resource:
		_, ok := v.(form.Resource)
		return ok
	case function: // keywords, maps and vectors are callable
		switch v.(type) {
		case form.Func, form.Keyword, *form.Map, form.Vector:
			return true
		}
	}
	return false
}

func (w word) noun() string {
	return [...]string{
		"anything", "allowed", "nil", "a bool", "an int", "a float", "a string",
		"a keyword", "a symbol", "a function", "a resource",
	}[w]
}

func (w word) explain(v form.Value, r *report) {
	switch {
	case w.ok(v):
	case w == never:
		r.addf("nothing is allowed here")
	default:
		r.not(v, w.noun())
	}
}
