package schema_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/schema"
	"glasshouse/fault"
)

func TestFromJSONSchema(t *testing.T) {
	for _, c := range []struct{ json, want, lost string }{
		{`true`, ":any", ""},
		{`false`, ":never", ""},
		{`{}`, ":any", ""},
		{`{"title": "t", "default": 1, "x-other": {}, "discriminator": {}}`, ":any", ""},
		{`{"type": "string"}`, ":string", ""},
		{`{"type": ["string", "null"]}`, "[:union :string :nil]", ""},
		{`{"type": ["integer", "number"]}`, ":float", ""},
		{`{"type": "string", "nullable": true}`, "[:union :string :nil]", ""},
		{`{"type": "string", "minLength": 1, "maxLength": 5, "pattern": "^a"}`, `[:and [:and :string [:matches-regex "^a"]] [:min-length 1] [:max-length 5]]`, ""},
		{`{"type": "string", "minLength": 2, "maxLength": 2}`, "[:and :string [:length 2]]", ""},
		{`{"type": "string", "maxLength": 1e10}`, "[:and :string [:max-length 10000000000]]", ""},
		{`{"type": "string", "minLength": 3, "maxLength": 2}`, ":never", ""},
		{`{"type": "string", "pattern": "(?=a)"}`, ":string", `: pattern "(?=a)"`},
		{`{"type": "string", "format": "email"}`, "[:and :string [:is-email]]", `: format "email", treated as [:is-email]`},
		{`{"type": "string", "format": "date-time"}`, ":string", `: format "date-time"`},
		{`{"type": "integer", "minimum": 0, "exclusiveMaximum": 10}`, "[:and :int [:>= 0] [:< 10]]", ""},
		{`{"type": "number", "minimum": 0, "exclusiveMinimum": true}`, "[:and :float [:> 0]]", ""},
		{`{"type": "number", "maximum": 1e3, "multipleOf": 2}`, "[:and :float [:<= 1000.0]]", ": multipleOf"},
		{`{"type": "integer", "maximum": 18446744073709551615}`, "[:and :int [:<= 18446744073709552000.0]]", ""},
		{`{"enum": ["a", 1, null]}`, `[:enum "a" 1 nil]`, ""},
		{`{"type": "string", "enum": ["a", 1, "b"]}`, `[:enum "a" "b"]`, ""},
		{`{"type": "string", "enum": [1]}`, ":never", ""},
		{`{"const": {"a": [1]}}`, `[:val {"a" [1]}]`, ""},
		{`{"enum": [1, 18446744073709551615]}`, "[:val 1]", ": a value: 18446744073709551615 does not fit an int"},
		{`{"type": "string", "enum": ["a", "bc"], "minLength": 2}`, `[:and [:enum "a" "bc"] [:and :string [:min-length 2]]]`, ""},
		{`{"type": "array"}`, "[:vector :any]", ""},
		{`{"type": "array", "items": {"type": "string"}, "minItems": 1}`, "[:and [:vector :string] [:min-count 1]]", ""},
		{`{"type": "array", "items": {"type": "string"}, "uniqueItems": true, "contains": {}}`, "[:vector :string]", ": uniqueItems|: contains"},
		{`{"type": "array", "items": {}, "uniqueItems": false}`, "[:vector :any]", ""},
		{`{"type": "array", "prefixItems": [{"type": "string"}, true], "minItems": 2, "maxItems": 2}`, "[:tuple :string :any]", ""},
		{`{"type": "array", "prefixItems": [{"type": "string"}, true], "minItems": 2, "items": false}`, "[:tuple :string :any]", ""},
		{`{"type": "array", "prefixItems": [{"type": "string"}, true], "items": false}`, "[:union [:tuple] [:tuple :string] [:tuple :string :any]]", ""},
		{`{"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}}`, "[:vector [:union :string :int]]", ": order of elements in prefixItems"},
		{`{"type": "array", "items": [{"type": "string"}], "additionalItems": false, "minItems": 1}`, "[:tuple :string]", ""},
		{`{"type": "object"}`, "[:map]", ""},
		{`{"type": "object", "properties": {"a": {"type": "string"}, "b c": true}, "required": ["a", "z"]}`,
			`[:map [:a :string] ["b c" {:optional true} :any] [:z :any]]`, ""},
		{`{"type": "object", "properties": {"a": {"type": "string", "description": "an a"}, "*": {"description": ""}}, "required": ["a"]}`,
			`[:map [:a {:description "an a"} :string] ["*" {:optional true} :any]]`, ""},
		{`{"type": "object", "properties": {"a": {}}, "additionalProperties": false}`, "[:map [:a {:optional true} :any] [:* :never]]", ""},
		{`{"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "integer"}}`, "[:map [:a {:optional true} :any] [:* :int]]", ""},
		{`{"type": "object", "additionalProperties": false}`, "[:map [:* :never]]", ""},
		{`{"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 3}`, "[:and [:map-of :string :int] [:max-count 3]]", ""},
		{`{"type": "object", "propertyNames": {"pattern": "^a"}}`, `[:map-of [:and :string [:matches-regex "^a"]] :any]`, ""},
		{`{"type": "object", "properties": {"a": true}, "propertyNames": {"pattern": "^a"}, "patternProperties": {}}`, `[:map [:a {:optional true} :any]]`, ": propertyNames|: patternProperties"},
		{`{"type": "object", "patternProperties": {"^x": true}, "additionalProperties": false}`, "[:map]", ": patternProperties"},
		{`{"properties": {"a": {"minimum": 1}}}`, "[:map [:a {:optional true} [:and :float [:>= 1]]]]", `: no type, treated as type "object"|/properties/a: no type, treated as type "number"`},
		{`{"type": "object", "allOf": [{"required": ["a"]}, {"properties": {"b": {"type": "integer"}}}]}`,
			"[:and [:map] [:map [:a :any]] [:map [:b {:optional true} :int]]]", ""},
		{`{"type": "integer", "allOf": [{"minimum": 1}]}`, "[:and :int [:and :int [:>= 1]]]", ""},
		{`{"anyOf": [{"type": "string"}, {"type": "integer"}]}`, "[:union :string :int]", ""},
		{`{"anyOf": [{"type": "string"}]}`, ":string", ""},
		{`{"oneOf": [{"type": "string"}, {"type": "null"}]}`, "[:union :string :nil]", ""},
		{`{"oneOf": [{"type": "integer"}, {"type": "number"}]}`, "[:union :int :float]", ": oneOf, treated as anyOf"},
		{`{"oneOf": [{"const": "a"}, {"enum": ["b", "c"]}]}`, `[:union [:val "a"] [:enum "b" "c"]]`, ""},
		{`{"oneOf": [{"type": "object", "properties": {"t": {"const": "a"}}, "required": ["t"]}, {"type": "object", "properties": {"t": {"const": "b"}}, "required": ["t"]}]}`,
			`[:union [:map [:t [:val "a"]]] [:map [:t [:val "b"]]]]`, ""},
		{`{"oneOf": [{"type": "object", "properties": {"t": {"const": "a"}}}, {"type": "object", "properties": {"t": {"const": "b"}}}]}`,
			`[:union [:map [:t {:optional true} [:val "a"]]] [:map [:t {:optional true} [:val "b"]]]]`, ": oneOf, treated as anyOf"},
		{`{"not": {}}`, ":never", ""},
		{`{"not": {"const": 18446744073709551615}}`, ":any", ": not"},
		{`{"not": {"const": 1}}`, "[:and :any [:!= 1]]", ""},
		{`{"type": "string", "not": {"enum": ["a", "b"]}}`, `[:and :string [:!= "a"] [:!= "b"]]`, ""},
		{`{"type": "string", "not": {"minLength": 3}}`, ":string", ": not"},
		{`{"if": {}, "then": {}, "$dynamicRef": "#a"}`, ":any", ": if|: $dynamicRef"},
		{`{"type": "object", "unevaluatedProperties": false, "dependentRequired": {}}`, "[:map]", ": unevaluatedProperties|: dependentRequired"},
		{`{"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "integer"}}}`, ":int", ""},
		{`{"$ref": "#/definitions/a%20b", "definitions": {"a b": {"type": "integer"}}}`, ":int", ""},
		{`{"$ref": "#here", "$defs": {"a": [{"$anchor": "here", "type": "integer"}]}}`, ":int", ""},
		{`{"$ref": "#/allOf/0/not", "allOf": [{"not": {"const": 1}}]}`, "[:and [:val 1] [:and :any [:!= 1]]]", ""},
		{`{"$ref": "#/allOf/7"}`, ":any", `: $ref "#/allOf/7", which is not in this document`},
		{`{"$ref": "#/type/a", "type": "string"}`, ":string", `: $ref "#/type/a", which is not in this document`},
		{`{"type": "array", "prefixItems": [true], "maxItems": 1, "minItems": 2}`, ":never", ""},
		{`{"type": "object", "propertyNames": {"maxLength": 3, "type": "string"}, "additionalProperties": {"type": "null"}}`,
			"[:map-of [:and :string [:max-length 3]] :nil]", ""},
		{`{"type": "object", "propertyNames": {}}`, "[:map-of :string :any]", ""},
		{`{"$ref": "#/nowhere"}`, ":any", `: $ref "#/nowhere", which is not in this document`},
		{`{"$ref": "https://a.example/s"}`, ":any", `: $ref "https://a.example/s", which is not in this document`},
		{`{"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}}}`,
			"[:map [:next {:optional true} :any]]", `#/$defs/node/properties/next: $ref "#/$defs/node", which is recursive`},
		{`{"$ref": "#"}`, ":any", `#: $ref "#", which is recursive`},
	} {
		typ, lost, err := schema.FromJSONSchema([]byte(c.json))
		if err != nil {
			t.Errorf("%s: %v", c.json, err)
			continue
		}
		if got := typ.String(); got != c.want || strings.Join(lost, "|") != c.lost {
			t.Errorf("%s is\n     %s, lost %q\nwant %s, lost %q", c.json, got, lost, c.want, c.lost)
		}
		typeOf(t, typ.String())
	}
}

func TestFromJSONSchemaErrors(t *testing.T) {
	wide := `{"$ref": "#/$defs/a0", "$defs": {`
	for i := range 40 {
		wide += fmt.Sprintf(`"a%d": {"allOf": [{"$ref": "#/$defs/a%[2]d"}, {"$ref": "#/$defs/a%[2]d"}]}, `, i, i+1)
	}
	wide += `"a40": {}}}`
	for text, want := range map[string]string{
		`{`:                  "JSON at byte 1: unexpected end of text",
		`5`:                  "5 is not a schema",
		`{"type": "strin"}`:  `/type: "strin" is not a valid value`,
		`{"type": 5}`:        "/type: 5",
		`{"properties": []}`: "/properties: a vector of 0",
		`{"properties": {"a/b": {"type": "object", "required": [1]}}}`: "/properties/a~1b/required: a vector of 1",
		`{"required": "a"}`:                             "/required",
		`{"enum": 5}`:                                   "/enum: 5",
		`{"type": "string", "minLength": -1}`:           "/minLength: -1",
		`{"type": "string", "minLength": 1e300}`:        "/minLength",
		`{"type": "string", "pattern": 1}`:              "/pattern: 1",
		`{"type": "integer", "minimum": "1"}`:           `/minimum: "1"`,
		`{"type": "array", "prefixItems": {}}`:          "/prefixItems",
		`{"type": "array", "items": 5}`:                 "/items: 5 is not a schema",
		`{"allOf": []}`:                                 "/allOf: a vector of 0",
		`{"anyOf": [5]}`:                                "/anyOf/0: 5 is not a schema",
		`{"type": "object", "propertyNames": 5}`:        "/propertyNames: 5 is not a schema",
		`{"type": "object", "additionalProperties": 5}`: "/additionalProperties: 5 is not a schema",
		`{"type": "object", "maxProperties": "5"}`:      "/maxProperties",
		`{"type": "array", "maxItems": "5"}`:            "/maxItems",
		`{"type": "array", "prefixItems": [5]}`:         "/prefixItems/0: 5 is not a schema",
		`{"not": 5}`:                                    "/not: 5",
		`{"$ref": 5}`:                                   "/$ref: 5",
		wide:                                            "more than 20000 schemas",
		strings.Repeat(`{"not":{"not":`, 400):           "nested more than",
		strings.Repeat(`{"items":`, 400) + "true":       "unexpected end of text",
	} {
		typ, _, err := schema.FromJSONSchema([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || fault.KindOf(err) != fault.Invalid {
			t.Errorf("%.60s: %v, %v; want %s", text, typ, err, want)
		}
	}
}

// randomSchema returns a JSON Schema of a common form.
func (s sampler) randomSchema(depth int) form.Value {
	m := form.NewMap()
	put := func(word string, v form.Value) { m = m.With(word, v) }
	sub := func() form.Value { return s.randomSchema(depth - 1) }
	subs := func() form.Value { return append(s.some(sub), sub()) }
	n := s.IntN(15)
	if depth <= 0 {
		n %= 5
	}
	switch n {
	case 0:
		return s.IntN(4) > 0
	case 1:
		put("type", s.pick("string", "integer", "number", "boolean", "null"))
	case 2:
		put("enum", form.Vector{s.any(1), s.any(1)})
		if s.IntN(2) == 0 {
			put("type", form.Vector{s.pick("string", "integer"), "null"})
		}
	case 3:
		put("type", "string")
		put(s.pick("minLength", "maxLength"), int64(s.IntN(4)))
		if s.IntN(3) == 0 {
			put("pattern", s.pick("a", "^[a-z]+$"))
		}
	case 4:
		put("type", s.pick("integer", "number"))
		put(s.pick("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), s.float())
	case 5, 6, 7:
		put("type", "object")
		properties := form.NewMap()
		for range s.IntN(4) {
			properties = properties.With(s.pick("a", "b", "name", "a b"), sub())
		}
		put("properties", properties)
		if s.IntN(2) == 0 {
			put("required", form.Vector{s.pick("a", "b", "name")})
		}
		if s.IntN(3) == 0 {
			put("additionalProperties", sub())
		}
		if s.IntN(4) == 0 {
			put(s.pick("minProperties", "maxProperties"), int64(s.IntN(3)))
		}
	case 8, 9:
		put("type", form.Vector{"array", s.pick("null", "string")})
		put("items", sub())
		if s.IntN(3) == 0 {
			put("prefixItems", subs())
		}
		if s.IntN(2) == 0 {
			put(s.pick("minItems", "maxItems"), int64(s.IntN(3)))
		}
	case 10:
		put("type", s.pick("object", "array", "number"))
		for _, c := range []struct {
			word string
			v    form.Value
		}{
			{"unevaluatedProperties", false},
			{"additionalProperties", false},
			{"patternProperties", form.NewMap("^[a-n]", s.randomSchema(0))},
			{"propertyNames", form.NewMap("minLength", int64(s.IntN(3)))},
			{"dependentRequired", form.NewMap("a", form.Vector{"b"})},
			{"required", form.Vector{s.pick("a", "b", "name")}},
			{"uniqueItems", true},
			{"contains", true},
			{"multipleOf", int64(2)},
			{"if", s.randomSchema(0)},
			{"then", s.randomSchema(0)},
		} {
			if s.IntN(3) == 0 {
				put(c.word, c.v)
			}
		}
	case 11:
		put(s.pick("anyOf", "oneOf", "allOf"), subs())
	case 12:
		put("type", s.pick("object", "string", "integer"))
		put(s.pick("anyOf", "oneOf", "allOf"), subs())
	case 13:
		if put("not", form.NewMap("const", s.any(1))); s.IntN(3) == 0 {
			put("not", form.NewMap("type", "string"))
		}
		if s.IntN(2) == 0 {
			put("type", "string")
		}
	case 14:
		put("$ref", "#/$defs/d")
	}
	return m
}

// like returns a value that a schema may accept.
func (s sampler) like(schema form.Value) form.Value {
	m, ok := schema.(*form.Map)
	if !ok || s.IntN(6) == 0 {
		return s.any(2)
	}
	if values, ok := m.Get("enum"); ok {
		return values.(form.Vector)[s.IntN(2)]
	}
	for _, word := range []string{"anyOf", "oneOf", "allOf"} {
		if list, ok := m.Get(word); ok {
			return s.like(list.(form.Vector)[s.IntN(len(list.(form.Vector)))])
		}
	}
	kind, _ := m.Get("type")
	if kinds, ok := kind.(form.Vector); ok {
		kind = kinds[s.IntN(2)]
	}
	switch kind {
	case "array":
		items, _ := m.Get("items")
		return s.some(func() form.Value { return s.like(items) })
	case "object":
		v := form.NewMap()
		properties, _ := m.Get("properties")
		entries, _ := properties.(*form.Map)
		for name, property := range entries.All() {
			v = v.With(name, s.like(property))
		}
		if needed, ok := m.Get("required"); ok {
			v = v.With(needed.(form.Vector)[0], s.any(1))
		}
		return v
	case "string":
		return s.word()
	case "integer", "number":
		return s.float()
	case "null":
		return nil
	}
	return s.any(2)
}

func importLikeTheLibrary(t testing.TB, seed uint64) (exact bool) {
	s := sampler{rand.New(rand.NewPCG(seed, 2))}
	root, ok := s.randomSchema(3).(*form.Map)
	if !ok {
		return false
	}
	text, err := schema.ToJSON(root.With("$defs", form.NewMap("d", s.randomSchema(1))))
	if err != nil {
		t.Fatal(err)
	}
	typ, lost, err := schema.FromJSONSchema(text)
	if err != nil {
		t.Fatalf("seed %d: %s: %v", seed, text, err)
	}
	back := typeOf(t, typ.String())
	if slices.ContainsFunc(lost, func(l string) bool { return strings.Contains(l, "treated as type") }) {
		return false
	}
	other := judge(t, text)
	for range 8 {
		doc, err := schema.ToJSON(s.like(root))
		if err != nil {
			t.Fatal(err)
		}
		want := accepts(t, other, doc)
		_, err = check(t, typ, doc)
		if _, other := check(t, back, doc); (other == nil) != (err == nil) {
			t.Fatalf("seed %d: %s is not what is written", seed, typ)
		}
		if err == nil != want && (want || len(lost) == 0) {
			t.Fatalf("seed %d: %s\nis %s\nlost %q\nof %s: %v; the library says %v", seed, text, typ, lost, doc, err, want)
		}
	}
	return len(lost) == 0
}

func TestImportedSchemaMatchesLibrary(t *testing.T) {
	exact := 0
	for seed := range uint64(300) {
		if importLikeTheLibrary(t, seed) {
			exact++
		}
	}
	if exact < 100 {
		t.Errorf("only %d of the schemas were imported exactly", exact)
	}
}

func FuzzImportedSchemaMatchesLibrary(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { importLikeTheLibrary(t, seed) })
}
