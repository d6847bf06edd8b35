package schema_test

import (
	"math"
	"strings"
	"testing"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/schema"
	"glasshouse/fault"
)

func TestFromJSON(t *testing.T) {
	for _, c := range []struct{ typ, json, want string }{
		{":any", `{"a": [1, 1.5, "x", true, null, {}]}`, `{"a" [1 1.5 "x" true nil {}]}`},
		{":any", `"\"\\\/\b\f\n\r\t\u00e4\ud83d\ude00"`, "\"\\\"\\\\/\b\f\\n\\r\\tä😀\""},
		{":any", "9223372036854775807", "9223372036854775807"},
		{":any", "-9223372036854775808", "-9223372036854775808"},
		{":any", "1e2", "100.0"},
		{":int", "5", "5"},
		{":int", "5.0", "5"},
		{":int", "1e3", "1000"},
		{":int", "5.5", "5.5"},
		{":float", "5", "5.0"},
		{":float", "-0.5e1", "-5.0"},
		{":float", "9007199254740993", "9007199254740993"},
		{":float", "100000000000000000000", "100000000000000000000.0"},
		{":float?", "5", "5.0"},
		{":string", `"a"`, `"a"`},
		{":keyword", `"a.b/c"`, ":a.b/c"},
		{":keyword", `"a b"`, `"a b"`},
		{":keyword", `"a} (x"`, `"a} (x"`},
		{":symbol", `"foo"`, "foo"},
		{":symbol", `"nil"`, `"nil"`},
		{"[:resource R]", `"resource://r/1"`, "resource://r/1"},
		{"[:enum :red \"blue\" 1]", `"red"`, ":red"},
		{"[:enum :red \"blue\" 1]", `"blue"`, `"blue"`},
		{"[:enum :red \"blue\" 1]", "1.0", "1"},
		{"[:val {:a [:b]}]", `{"a": ["b"]}`, "{:a [:b]}"},
		{"[:and :keyword [:= :a]]", `"a"`, ":a"},
		{"[:map [:a :int] [\"b c\" :keyword]]", `{"x": 1, "b c": "k", "a": 2}`, `{"x" 1 "b c" :k :a 2}`},
		{"[:map [:a [:map [:b :float]]]]", `{"a": {"b": 1}}`, "{:a {:b 1.0}}"},
		{"[:map [:* :keyword]]", `{"a": "b"}`, `{"a" :b}`},
		{"[:map-of :keyword :float]", `{"a": 1, "b c": 2}`, `{:a 1.0 "b c" 2.0}`},
		{"[:map-of :int :any]", `{"1": 1, "01": 2}`, `{1 1 "01" 2}`},
		{"[:vector :float]", "[1, 2.5]", "[1.0 2.5]"},
		{"[:array :float [1 2]]", "[[1, 2]]", "[[1.0 2.0]]"},
		{"[:tuple :float :keyword]", `[1, "a", 3]`, "[1.0 :a 3]"},
		{"[:union :int :float]", "1.0", "1.0"},
		{"[:union :float :int]", "1", "1"},
		{"[:union :float :string]", "1", "1.0"},
		{"[:union :int :string]", "1.0", "1"},
		{"[:union [:vector :int] [:vector :float]]", "[1.0]", "[1.0]"},
		{"[:union [:map [:a :int]] [:map [:a :float]]]", `{"a": 1.0}`, "{:a 1.0}"},
		{"[:union [:map [:type [:val :a]] [:n :float]] [:map [:type [:val :b]] [:k :keyword]]]", `{"type": "b", "k": "x"}`, "{:type :b :k :x}"},
		{"[:union :keyword :string]", `"a b"`, `"a b"`},
		{"[:union :int :nil]", `"neither"`, `"neither"`},
		{"[:and [:map [:a :keyword]] [:map [:b :keyword]]]", `{"a": "x", "b": "y"}`, "{:a :x :b :y}"},
	} {
		v, err := typeOf(t, c.typ).FromJSON([]byte(c.json))
		if err != nil {
			t.Errorf("%s as %s: %v", c.json, c.typ, err)
			continue
		}
		if got := form.Text(v); got != c.want {
			t.Errorf("%s as %s is %s, want %s", c.json, c.typ, got, c.want)
		}
	}
}

func TestFromJSONWithoutType(t *testing.T) {
	var none *schema.Type
	v, err := none.FromJSON([]byte(` {"a" : {"b":[ ]}} `))
	if err != nil || form.Text(v) != `{"a" {"b" []}}` {
		t.Errorf("%s, %v", form.Text(v), err)
	}
}

func TestFromJSONErrors(t *testing.T) {
	typ := typeOf(t, "[:map [:a {:optional true} [:vector :any]]]")
	for text, want := range map[string]string{
		`{"a":[9223372036854775808]}`:    "at [:a 0]: 9223372036854775808 does not fit an int",
		`1e999`:                          "1e999 does not fit a float",
		`{"a":1,"b":2,"a":3}`:            `duplicate key "a"`,
		`{"a":1,"\u0061":3}`:             `duplicate key "a"`,
		`"\ud800"`:                       "unpaired surrogate",
		`"\ud800\u0041"`:                 "unpaired surrogate",
		"\"\xff\"":                       "not UTF-8",
		"\"a\\n\xff\"":                   "not UTF-8",
		"\"a\nb\"":                       `'\n' is not expected`,
		`{"a":1`:                         "unexpected end of text",
		`{"a" 1}`:                        "JSON at byte 5: '1' is not expected here",
		`{"a":1,}`:                       "'}' is not expected",
		`[1,]`:                           "']' is not expected",
		`{a:1}`:                          "'a' is not expected",
		`01`:                             "must not have leading zeros",
		`-`:                              "unexpected end of text",
		`1.`:                             "unexpected end of text",
		`1.e5`:                           "'e' is not expected",
		`.5`:                             "'.' is not expected",
		`+1`:                             "'+' is not expected",
		`NaN`:                            "'N' is not expected",
		`nul`:                            "'n' is not expected",
		`"\x"`:                           "'x' is not expected",
		`"\u00g0"`:                       "four hexadecimal digits",
		`"\u00`:                          "unexpected end of text",
		`"a`:                             "unexpected end of text",
		`"a\`:                            "unexpected end of text",
		`1 2`:                            "more than one value",
		``:                               "unexpected end of text",
		strings.Repeat("[", 600):         "nested more than",
		strings.Repeat(`{"a":`, 100_000): "nested more than",
		"[" + strings.Repeat("1,", 100) + "1" + "}": "'}' is not expected",
	} {
		_, err := typ.FromJSON([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || fault.KindOf(err) != fault.Invalid {
			t.Errorf("%.40s: %v, want %s", text, err, want)
		}
	}
	var many strings.Builder
	for _, c := range strings.Repeat("abcdefghijklmnopqrstuvwxyz", 2) {
		many.WriteString(`,"` + string(c) + `":1`)
	}
	if _, err := typ.FromJSON([]byte("{" + many.String()[1:] + "}")); err == nil || !strings.Contains(err.Error(), "duplicate") {
		t.Errorf("%v", err)
	}
}

func TestToJSON(t *testing.T) {
	for value, want := range map[string]string{
		"nil":                                    "null",
		"[true false 1 -2]":                      "[true,false,1,-2]",
		"[1.0 1.5 1e21 0.0000001 -0.0 1e20 1e6]": "[1.0,1.5,1e+21,1e-07,-0.0,100000000000000000000.0,1000000.0]",
		`"a\"\\\n\tä<&"`:                         `"a\"\\\n\tä<&"`,
		"\"\x01\"":                               `"\u0001"`,
		":a.b/c":                                 `"a.b/c"`,
		"sym":                                    `"sym"`,
		"resource://r/1":                         `"resource://r/1"`,
		"{:b 1 \"a\" {3 [nil]}}":                 `{"b":1,"a":{"3":[null]}}`,
	} {
		got, err := schema.ToJSON(valueOf(t, value))
		if err != nil || string(got) != want {
			t.Errorf("%s is %s (%v), want %s", value, got, err, want)
		}
	}
	got, err := schema.ToJSON(form.List{&form.Error{Kind: "DivisionByZero", Message: "no"}})
	if want := `[{"kind":"DivisionByZero","message":"no","data":null}]`; err != nil || string(got) != want {
		t.Errorf("%s, %v", got, err)
	}
}

type fn struct{}

func (fn) FuncName() string { return "f" }

func TestToJSONErrors(t *testing.T) {
	deep := form.Value(nil)
	for range 1000 {
		deep = form.Vector{deep}
	}
	for want, v := range map[string]form.Value{
		"a function cannot be encoded as JSON": form.NewMap(form.Keyword("a"), fn{}),
		"##NaN cannot be encoded as JSON":      math.NaN(),
		"##-Inf cannot be encoded as JSON":     form.Vector{math.Inf(-1)},
		"the key a vector of 0 cannot":         form.NewMap(form.Vector{}, int64(1)),
		`duplicate key "a"`:                    form.NewMap("a", int64(1), form.Keyword("a"), int64(1)),
		"is not UTF-8":                         "\xff",
		"nested more than":                     deep,
	} {
		text, err := schema.ToJSON(v)
		if err == nil || !strings.Contains(err.Error(), want) || fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s, %v, want %s", text, err, want)
		}
	}
}
