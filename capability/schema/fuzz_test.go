package schema_test

import (
	"encoding/json"
	"math"
	"regexp"
	"testing"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/schema"
)

// someValues contains values of all kinds.
var someValues = []form.Value{
	nil, true, int64(0), int64(7), int64(math.MinInt64), 0.5, math.NaN(), "", "abc", "me@a.example", form.Keyword("a"), form.Symbol("a"),
	form.Resource("resource://r"), fn{}, form.Vector{}, form.Vector{int64(1), "a"}, form.List{form.Vector{int64(1)}}, form.NewMap(),
	form.NewMap(form.Keyword("a"), int64(1)), form.NewMap("a", form.NewMap(form.Keyword("b"), nil)), form.NewMap("a", "x", form.Keyword("a"), "x"),
	form.NewMap(int64(1), form.Vector{nil}, form.Vector{}, nil), &form.Error{Kind: "TypeError"},
}

func FuzzParse(f *testing.F) {
	f.Add(places)
	f.Add(`[:map {:a T? :b [:enum :x 1 "y"]} [:* [:map-of int [:fn [:any & :any] nil]]]]`)
	f.Add(`[:and [:array [:tuple :int] [2 ?]] [:count 3] [:has-key :k] [:required-keys [:a "b"]] [:in-range 1 2.5] [:= [1]] [:!= {:a 1}]]`)
	f.Add("[:or :string? [:val ##NaN] [:resource R] [:and :string [:matches-regex \"^a\"] [:is-url] :is-email]]")
	f.Fuzz(func(t *testing.T, text string) {
		typ, err := schema.Parse("", text)
		if err != nil {
			if _, ok := err.(*form.Error); !ok {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		if again := typeOf(t, typ.String()); again.String() != typ.String() {
			t.Fatalf("%s is written %s, and then %s", text, typ, again)
		}
		for _, v := range someValues {
			if err := typ.Check(v); err != nil && err.Error() == "" {
				t.Fatalf("%s of %s is invalid, but without an explanation", form.Text(v), typ)
			}
		}
		judge(t, jsonSchema(t, typ))
	})
}

// strict matches the errors for valid JSON that FromJSON refuses in order not to lose data.
var strict = regexp.MustCompile("does not fit|duplicate key|unpaired surrogate|not UTF-8|nested more than")

func FuzzFromJSON(f *testing.F) {
	types := []*schema.Type{
		nil, typeOf(f, places),
		typeOf(f, "[:union [:map-of :int :float] [:vector [:enum :a 1 nil]] [:tuple :keyword :symbol] [:and :any [:= {:a [1.5]}]]]"),
	}
	for _, text := range []string{
		`{"query":"coffee","location":{"lat":51.5,"lng":-1},"filters":{"types":["a","\u00e4\ud83d\ude00"]}}`,
		`[1, -0, 1.50, 1e3, 1E-7, 9223372036854775808, true, false, null, "\\\/\b\f\n\r\t"]`,
		`{"1": 1, "01": 100000000000000000000}`, `["a", "nil"]`, "\"\xff\"", `{"a":[1.5]}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, typ := range types {
			v, err := typ.FromJSON(text)
			if valid := json.Valid(text); (err == nil) != valid && (!valid || !strict.MatchString(err.Error())) {
				t.Fatalf("%q: %v, but valid is %v", text, err, valid)
			}
			if err != nil {
				continue
			}
			written, err := schema.ToJSON(v)
			if err != nil {
				t.Fatalf("%q: %v", text, err)
			}
			again, err := typ.FromJSON(written)
			if err != nil || !form.Equal(again, v) {
				t.Fatalf("%q is %s, written %s, and then %s: %v", text, form.Text(v), written, form.Text(again), err)
			}
			typ.Check(v)
		}
	})
}

func FuzzFromJSONSchema(f *testing.F) {
	for _, text := range []string{
		`{"type":"object","properties":{"a":{"type":["string","null"],"description":"d"},"b c":{"$ref":"#/$defs/x"}},"required":["a"],"additionalProperties":false,"$defs":{"x":{"enum":[1,null,{"k":[]}]}}}`,
		`{"oneOf":[{"const":1},{"type":"array","prefixItems":[{},true],"items":false}],"not":{"enum":[2]},"nullable":true}`,
		`{"allOf":[{"minimum":1,"exclusiveMinimum":true},{"pattern":"a","format":"email"},{"propertyNames":{"minLength":1}}],"multipleOf":2}`,
		`{"$ref":"#"}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		typ, _, err := schema.FromJSONSchema(text)
		if err != nil {
			return
		}
		if again := typeOf(t, typ.String()); again.String() != typ.String() {
			t.Fatalf("%s is read as %s", typ, again)
		}
		for _, v := range someValues {
			if err := typ.Check(v); err != nil && err.Error() == "" {
				t.Fatalf("%s of %s is invalid, but without an explanation", form.Text(v), typ)
			}
		}
		judge(t, jsonSchema(t, typ))
	})
}
