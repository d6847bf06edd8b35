package schema_test

import (
	"bytes"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/schema"
)

// judge compiles a JSON Schema with an independent library.
func judge(t testing.TB, text []byte) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("mem:schema", doc); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	s, err := c.Compile("mem:schema")
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return s
}

func accepts(t testing.TB, s *jsonschema.Schema, text []byte) bool {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return s.Validate(doc) == nil
}

// check parses a JSON text as a type and checks it.
func check(t testing.TB, typ *schema.Type, text []byte) (form.Value, error) {
	t.Helper()
	v, err := typ.FromJSON(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v, typ.Check(v)
}

func jsonSchema(t testing.TB, typ *schema.Type) []byte {
	t.Helper()
	text, err := typ.JSONSchema()
	if err != nil {
		t.Fatalf("%s: %v", typ, err)
	}
	return text
}

// compareWithTheLibrary compares a random type with its JSON Schema, and the schema with the type
// that is imported from it.
func compareWithTheLibrary(t testing.TB, seed uint64) (fit, all int) {
	s := newSampler(seed)
	of := s.typ(3)
	typ := typeOf(t, of.typ)
	text := jsonSchema(t, typ)
	other := judge(t, text)
	back, lost, err := schema.FromJSONSchema(text)
	if err != nil || len(lost) > 0 {
		t.Fatalf("seed %d: %s: %s: lost %q, %v", seed, typ, text, lost, err)
	}
	for range 8 {
		doc, err := schema.ToJSON(s.json(of))
		if err != nil {
			t.Fatal(err)
		}
		all++
		want := accepts(t, other, doc)
		v, err := check(t, typ, doc)
		if (err == nil) != want {
			t.Fatalf("seed %d: %s\nis %s\nof %s: read as %s: %v; the library says %v", seed, typ, text, doc, form.Text(v), err, want)
		}
		if err != nil && err.Error() == "" {
			t.Fatalf("seed %d: %s of %s is invalid, but without an explanation", seed, doc, typ)
		}
		if _, err := check(t, back, doc); (err == nil) != want {
			t.Fatalf("seed %d: %s\nis %s\nis %s\nof %s: %v; the library says %v", seed, typ, text, back, doc, err, want)
		}
		if !want {
			continue
		}
		fit++
		again, err := schema.ToJSON(v)
		if err != nil || !accepts(t, other, again) {
			t.Fatalf("seed %d: %s: %s is written %s: %v", seed, typ, form.Text(v), again, err)
		}
		if w, err := check(t, typ, again); err != nil || !form.Equal(v, w) {
			t.Fatalf("seed %d: %s: %s is written %s, and read as %s: %v", seed, typ, form.Text(v), again, form.Text(w), err)
		}
	}
	return fit, all
}

func TestJSONSchemaMatchesType(t *testing.T) {
	fit, all := 0, 0
	for seed := range uint64(300) {
		f, a := compareWithTheLibrary(t, seed)
		fit, all = fit+f, all+a
	}
	if fit < all/5 || fit > all*4/5 {
		t.Errorf("%d of %d values fit: too one-sided to tell anything", fit, all)
	}
}

func FuzzJSONSchemaMatchesType(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { compareWithTheLibrary(t, seed) })
}

func TestJSONSchema(t *testing.T) {
	for typ, want := range map[string]string{
		places: `{"type":"object","properties":{` +
			`"query":{"type":"string"},` +
			`"location":{"type":"object","properties":{"lat":{"type":"number"},"lng":{"type":"number"}},"required":["lat","lng"]},` +
			`"filters":{"type":"object","properties":{"open_now":{"type":"boolean"},` +
			`"min_rating":{"type":"number","minimum":0,"maximum":5},` +
			`"types":{"type":"array","items":{"type":"string"}}}}},` +
			`"required":["query","location"]}`,
		":any":                   `{}`,
		":never":                 `{"not":{}}`,
		":int?":                  `{"type":["integer","null"]}`,
		"[:union :int :string]":  `{"type":["integer","string"]}`,
		"[:union :int [:val 1]]": `{"anyOf":[{"type":"integer"},{"const":1}]}`,
		"[:enum :a \"b\"]":       `{"type":"string","enum":["a","b"]}`,
		"[:enum :a \"a\" 1]":     `{"enum":["a",1]}`,
		"[:val :a]":              `{"type":"string","const":"a"}`,
		"[:tuple :int :any]":     `{"type":"array","prefixItems":[{"type":"integer"},{}],"minItems":2,"maxItems":2}`,
		"[:array :int [? 2]]":    `{"type":"array","items":{"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":2}}`,
		"[:map-of :string :int]": `{"type":"object","additionalProperties":{"type":"integer"}}`,
		"[:map [:* :never]]":     `{"type":"object","additionalProperties":false}`,
		`[:map [:q {:description "what to look for"} :string]]`:     `{"type":"object","properties":{"q":{"type":"string","description":"what to look for"}},"required":["q"]}`,
		"[:and :string [:min-length 1] [:max-length 9]]":            `{"type":"string","minLength":1,"maxLength":9}`,
		"[:and :string [:length 3] [:matches-regex \"^a\"]]":        `{"type":"string","minLength":3,"maxLength":3,"pattern":"^a"}`,
		"[:and [:vector :int] [:non-empty]]":                        `{"type":"array","items":{"type":"integer"},"minItems":1}`,
		"[:and :int [:> 0] [:!= 5]]":                                `{"type":"integer","exclusiveMinimum":0,"not":{"const":5}}`,
		"[:and :int [:> 0] [:> 1]]":                                 `{"type":"integer","exclusiveMinimum":0,"allOf":[{"type":"number","exclusiveMinimum":1}]}`,
		"[:and [:map [:a :int]] [:has-key :b]]":                     `{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"allOf":[{"type":"object","required":["b"]}]}`,
		"[:and [:map] [:required-keys [:a :b]] [:min-count 3]]":     `{"type":"object","required":["a","b"],"minProperties":3}`,
		"[:and [:map [:a :int]] [:map [:b :int] [:* :never]]]":      `{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"allOf":[{"type":"object","properties":{"b":{"type":"integer"}},"required":["b"],"additionalProperties":false}]}`,
		"[:fn [:int] :int]":                                         `{"not":{}}`,
		"[:map [:f [:fn [] :int] ?] [:b [:and :float [:< ##Inf]]]]": `{"type":"object","properties":{"f":{"not":{}},"b":{"type":"number"}},"required":["b"]}`,
		"[:and :float [:> ##Inf]]":                                  `{"type":"number","not":{}}`,
		"[:and :any [:min-count 2]]":                                `{"allOf":[{"anyOf":[{"type":"string","minLength":2},{"type":"array","minItems":2},{"type":"object","minProperties":2}]}]}`,
	} {
		got := jsonSchema(t, typeOf(t, typ))
		if string(got) != want {
			t.Errorf("%s is\n     %s\nwant %s", typ, got, want)
		}
		judge(t, got)
	}
	var none *schema.Type
	if got := jsonSchema(t, none); string(got) != "{}" {
		t.Errorf("no type is %s", got)
	}
}
