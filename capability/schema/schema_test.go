package schema_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/schema"
	"glasshouse/fault"
)

func typeOf(t testing.TB, text string) *schema.Type {
	t.Helper()
	typ, err := schema.Parse("", text)
	if err != nil {
		t.Fatalf("type %s: %v", text, err)
	}
	return typ
}

func valueOf(t testing.TB, text string) form.Value {
	t.Helper()
	nodes, err := form.Read("", []byte(text))
	if err != nil || len(nodes) != 1 {
		t.Fatalf("value %s: %d nodes, %v", text, len(nodes), err)
	}
	return nodes[0].Value()
}

// problem returns the message of Check, or "".
func problem(typ *schema.Type, v form.Value) string {
	if err := typ.Check(v); err != nil {
		return err.Error()
	}
	return ""
}

func TestProbes(t *testing.T) { holds(t, "testdata/probes.jsonl") }

// holds checks the cases of a file.
func holds(t *testing.T, name string) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	n := 0
	for ; lines.Scan(); n++ {
		var c struct {
			ID, Type, Value string
			Valid, Parses   *bool
		}
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		typ, err := schema.Parse("", c.Type)
		if c.Parses != nil {
			if (err == nil) != *c.Parses {
				t.Errorf("%s: %s parses: %v", c.ID, c.Type, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %s: %v", c.ID, c.Type, err)
			continue
		}
		if err := typ.Check(valueOf(t, c.Value)); (err == nil) != *c.Valid {
			t.Errorf("%s: %s of %s: %v, want valid %v", c.ID, c.Value, c.Type, err, *c.Valid)
		}
	}
	if n == 0 || lines.Err() != nil {
		t.Errorf("%d cases, %v", n, lines.Err())
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct{ typ, yes, no string }{
		{":int", "[42 -1]", `[1.0 "1" nil true]`},
		{"int", "[42]", "[1.5]"},
		{"Int", "[42]", "[1.5]"},
		{":float", "[1.5 1 ##Inf]", `["1.5" nil]`},
		{":string", `["" "a"]`, "[:a 1 nil]"},
		{":bool", "[true false]", `[nil 0 "true"]`},
		{":nil", "[nil]", "[false]"},
		{"nil", "[nil]", "[0]"},
		{":keyword", "[:a :a/b]", `["a"]`},
		{":symbol", "[a]", `["a" :a]`},
		{":any", `[1 nil {} []]`, "[]"},
		{":never", "[]", `[1 nil {}]`},
		{"String?", `["a" nil]`, "[1]"},
		{":int?", "[1 nil]", "[1.5]"},
		{"[:vector :int] ?", "[[1] nil]", "[1]"},
		{"[:tuple [:vector :int]? :int]", "[[nil 1] [[1] 1]]", "[[1 nil]]"},
		{"[:vector :int]", "[[] [1 2]]", `[nil {} ["1"] [1 nil]]`},
		{"[:vector :any]", "[[] [1 nil]]", `["ab"]`},
		{"[:array :int]", "[[] [1]]", "[1]"},
		{"[:array :int [2]]", "[[1 2]]", "[[1] [1 2 3] [1 nil]]"},
		{"[:array :int [2 ?]]", "[[[1] []] [[1 2] [3]]]", "[[1 2] [[1]] [[1] [nil]]]"},
		{"[:array :int [? 2]]", "[[] [[1 2]]]", "[[[1]] [[1 2] 3]]"},
		{"[:tuple :int :string]", `[[1 "a"]]`, `[[1] [1 "a" 2] ["a" 1] nil]`},
		{"[:tuple]", "[[]]", "[[1]]"},
		{"[:map]", "[{} {:a 1}]", "[[] nil]"},
		{"[:map [:a :int]]", `[{:a 1} {"a" 1} {:a 1 :b 2}]`, `[{} {:a "1"} {:b 1} {:a 1 "a" 2} {:a nil}]`},
		{`[:map ["a b" :int]]`, `[{"a b" 1}]`, `[{}]`},
		{"[:map [:a :int ?]]", "[{} {:a 1}]", `[{:a nil} {:a "x"}]`},
		{"[:map [:a {:optional true} :int]]", "[{} {:a 1}]", "[{:a nil}]"},
		{"[:map [:a {:optional false} :int]]", "[{:a 1}]", "[{}]"},
		{"[:map [:a int?]]", "[{} {:a 1} {:a nil}]", `[{:a "x"}]`},
		{"[:map [:a [:vector :int]?]]", "[{} {:a [1]} {:a nil}]", `[{:a 1}]`},
		{"[:map [:a [:vector :int] ?]]", "[{} {:a [1]}]", "[{:a nil}]"},
		{"[:map [:a [:union :int :nil]]]", "[{:a nil}]", "[{}]"},
		{"[:map {:host :string :port :int?}]", `[{:host "h"} {:host "h" :port 1}]`, `[{} {:host 1} {:host "h" :port "1"}]`},
		{"[:map {:a :int} [:b :int]]", "[{:a 1 :b 2}]", "[{:a 1} {:b 1}]"},
		{"[:record [:a :int]]", "[{:a 1}]", "[{}]"},
		{"[:map [:a :int] [:* :string]]", `[{:a 1 :b "x"}]`, "[{:a 1 :b 2}]"},
		{"[:map {:a :int :* :string}]", `[{:a 1 :b "x"}]`, "[{:a 1 :b 2}]"},
		{"[:map [:a :int] [:* :never]]", "[{:a 1}]", "[{:a 1 :b 2}]"},
		{"[:map-of :string :int]", `[{} {"a" 1}]`, `[{:a 1} {"a" "1"} []]`},
		{"[:dict :keyword :int]", "[{:a 1}]", `[{"a" 1}]`},
		{"[:map-of :int :any]", "[{1 2}]", "[{:a 1}]"},
		{"[:enum :red 1 nil \"x\"]", `[:red 1 nil "x"]`, `["red" 1.0 :x false]`},
		{"[:val 5]", "[5]", "[5.0 6]"},
		{"[:val [1 {:a 2}]]", "[[1 {:a 2}]]", "[[1 {:a 3}]]"},
		{"[:union :int :string]", `[1 "a"]`, "[nil 1.5]"},
		{"[:or :int :string]", `[1 "a"]`, "[nil 1.5]"},
		{"[:union :int]", "[1]", "[nil]"},
		{"[:and :int]", "[1]", "[nil]"},
		{"[:and :int [:> 0]]", "[1]", `[0 -1 1.5 "1"]`},
		{"[:and :float [:>= 0] [:<= 5]]", "[0 5 4.5 0.0]", "[-0.1 5.1 6 -1]"},
		{"[:and :int [:>= 0.5]]", "[1]", "[0]"},
		{"[:and :int [:< 3]]", "[2]", "[3 4]"},
		{"[:and :float [:= 5]]", "[5 5.0]", "[5.1]"},
		{"[:and :any [:= \"a\"]]", `["a"]`, `[:a "b"]`},
		{"[:and :float [:!= 0]]", "[1 0.5]", "[0 0.0]"},
		{"[:and :float [:in-range 1 100]]", "[1 100 1.5]", "[0 101 100.5]"},
		{"[:and :float [:<= 9007199254740992.0]]", "[9007199254740992]", "[9007199254740993]"},
		{"[:and :float [:> ##-Inf]]", "[0 -1.5]", "[##-Inf ##NaN]"},
		{"[:and :string [:min-length 2]]", `["ab" "äö"]`, `["a" "ä" ""]`},
		{"[:and :string [:max-length 2]]", `["" "ab" "äö"]`, `["abc"]`},
		{"[:and :string [:length 2]]", `["ab"]`, `["a" "abc"]`},
		{"[:and :any [:min-length 2]]", `["ab" [1 2]]`, `[1 nil [1]]`},
		{"[:and :string [:matches-regex \"^a+$\"]]", `["aa"]`, `["ab" ""]`},
		{"[:and :string [:matches-regex \"b\"]]", `["abc"]`, `["ac"]`},
		{"[:and :string [:is-url]]", `["http://a.example" "https://a.example/b?c#d"]`, `["a.example" "http://" "ftp://a.example" "http:// a"]`},
		{"[:and :string [:is-email]]", `["a@b.example" "a.b+c@d-e.example"]`, `["a@b" "a" "@b.example" "a b@c.example"]`},
		{"[:and :string :is-email]", `["a@b.example"]`, `["a"]`},
		{"[:and [:vector :int] [:min-count 2]]", "[[1 2]]", "[[1] []]"},
		{"[:and [:vector :int] [:max-count 1]]", "[[1] []]", "[[1 2]]"},
		{"[:and [:vector :int] [:count 1]]", "[[1]]", "[[1 2] []]"},
		{"[:and [:map] [:count 1]]", "[{:a 1}]", "[{}]"},
		{"[:and :any [:non-empty]]", `["a" [1] {:a 1}]`, `["" [] {} nil 1]`},
		{"[:and [:map] [:has-key :a]]", `[{:a 1} {"a" 1} {:a nil}]`, "[{:b 1}]"},
		{"[:and [:map] [:required-keys [:a :b]]]", `[{:a 1 "b" 1}]`, "[{:a 1} {}]"},
		{"[:and [:map [:a :int]] [:map [:b :int]]]", "[{:a 1 :b 2}]", "[{:a 1} {:b 2}]"},
		{"[:and :int [:and :float [:> 1]]]", "[2]", "[1 2.5]"},
		{"[:and :int [:lucky 7]]", "[]", "[7]"},
		{"[:and [:vector :int]? [:or [:val nil] [:vector :any]]]", "[[1] nil]", `["a" ["a"]]`},
		{"Wombat", "[]", "[7 nil]"},
		{"Book", "[]", "[true]"},
		{"[:fn [:int & :any] :int]", "[:a {}]", `[1 "a" nil]`},
		{"[:=> [] :nil]", "[:a]", "[nil]"},
		{"[:resource File]", "[resource://file/1]", `["resource://file/1"]`},
		{"[:vector [:and :int [:> 0]]]", "[[1 2]]", "[[1 0]]"},
		{"[:map [:a [:tuple [:and :string [:non-empty]]]]]", `[{:a ["x"]}]`, `[{:a [""]}]`},
		{"[:union [:and :int [:> 0]] :string]", `[1 "a"]`, "[0]"},
	} {
		typ := typeOf(t, c.typ)
		for _, v := range valueOf(t, c.yes).(form.Vector) {
			if err := typ.Check(v); err != nil {
				t.Errorf("%s of %s: %v", form.Text(v), c.typ, err)
			}
		}
		for _, v := range valueOf(t, c.no).(form.Vector) {
			if err := typ.Check(v); err == nil || err.Error() == "" {
				t.Errorf("%s of %s: %v, want an explanation", form.Text(v), c.typ, err)
			}
		}
		if again := typeOf(t, form.Text(typ.Form())); form.Text(again.Form()) != typ.String() {
			t.Errorf("%s is written %s, which is read as %s", c.typ, typ, again)
		}
	}
}

func TestListsAndNilType(t *testing.T) {
	if err := typeOf(t, "[:vector :int]").Check(form.List{int64(1)}); err != nil {
		t.Error(err)
	}
	for _, none := range []*schema.Type{nil, {}} {
		if err := none.Check(int64(1)); err != nil {
			t.Error(err)
		}
		if got, lost := none.String(), none.Unknown(); got != ":any" || lost != nil {
			t.Errorf("no type is written %s, unknown %q", got, lost)
		}
	}
}

const places = `[:map
    [:query :string]
    [:location [:map [:lat :float] [:lng :float]]]
    [:filters {:optional true} [:map
      [:open_now {:optional true} :bool]
      [:min_rating {:optional true} [:and :float [:>= 0] [:<= 5]]]
      [:types {:optional true} [:vector :string]]]]]`

func TestExplanations(t *testing.T) {
	here := `{:query "coffee" :location {:lat 51.5 :lng -0.1}`
	for _, c := range []struct{ typ, value, want string }{
		{places, here + "}", ""},
		{places, here + " :filters {:min_rating 6}}", "at [:filters :min_rating]: 6 is not <= 5"},
		{places, here + ` "filters" {"min_rating" 6}}`, "at [:filters :min_rating]: 6 is not <= 5"},
		{places, here + ` :filters {:open_now "yes" :types [1 "cafe" nil]}}`,
			`at [:filters :open_now]: "yes" is not a bool; at [:filters :types 0]: 1 is not a string; at [:filters :types 2]: nil is not a string`},
		{places, `{:query "coffee" :locaton {:lat 1 :lng 2}}`, "at [:location]: missing (there is :locaton: did you mean :location?)"},
		{places, `{:location {:lat "x"}}`, `at [:location :lat]: "x" is not a float; at [:location :lng]: missing; at [:query]: missing`},
		{places, `[]`, "a vector of 0 is not a map"},
		{"[:map [:a :int]]", `{:a 1 "a" 2}`, "at [:a]: duplicate key, as a keyword and as a string"},
		{"[:map [:size :int] [:* :never]]", "{:size 1 :siez 1}", "at [:siez]: not allowed here: did you mean :size?"},
		{"[:vector :int]", `["a"]`, `at [0]: "a" is not an int`},
		{"[:union :int :string]", "nil", "nil is not an int or a string"},
		{"[:union [:map [:type [:val 1]] [:a :int]] [:map [:type [:val 2]] [:b :int]]]", `{:type 2 :b "x"}`, `at [:b]: "x" is not an int`},
		{"[:and :int [:> 0]]", `"a"`, `"a" is not an int`},
		{"[:and :int? [:> 0]]", "nil", "nil is not a number"},
		{"[:and :int [:> 0] [:!= -1]]", "-1", "-1 is not > 0; -1 is not allowed"},
		{"[:and :string [:min-length 3]]", `"ab"`, `"ab" has 2 characters, not at least 3`},
		{"[:and :string [:max-length 1]]", `"ab"`, `"ab" has 2 characters, not at most 1`},
		{"[:and [:vector :int] [:count 3]]", `[1 2]`, `a vector of 2 has not 3 elements`},
		{"[:and :string [:matches-regex \"^a\"]]", `"b"`, `"b" does not match "^a"`},
		{"[:and :string [:is-url]]", `"b"`, `"b" is not a URL`},
		{"[:and [:map] [:has-key :k]]", "{}", "at [:k]: missing"},
		{"[:enum :red :green]", `"red"`, `"red" is not one of :red, :green`},
		{"[:tuple :int :int]", `[1]`, "a vector of 1 is not a tuple of 2"},
		{"[:array :int [3]]", `[1 2]`, "a vector of 2 is not a vector of 3"},
		{"[:and :any [:non-empty]]", "1", "1 is not a string, a vector or a map"},
		{"[:and :any [:matches-regex \"a\"]]", "1", "1 is not a string"},
		{"[:and :any [:has-key :k]]", "1", "1 is not a map"},
		{"[:and :any [:= 5]]", "6", "6 is not 5"},
		{"[:union :nil [:map-of :int :int] [:and :string [:is-email]]]", "1", "1 is not nil, a map or a string"},
		{"[:union [:enum 1 2] [:val :a] [:tuple :int] [:fn [] :int] Wombat :never]", `"x"`,
			`"x" is not one of 1, 2, :a, a tuple of 1, a function or a Wombat`},
		{"[:enum 1 2 3 4 5 6 7 8 9 10 11 12 13 14]", "0", "0 is not one of 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, …"},
		{"[:map-of :string :int]", `{:a 1}`, "at [:a]: the key :a is not a string"},
		{":never", "1", "nothing is allowed here"},
		{"[:and :int [:lucky]]", "1", "unknown predicate lucky"},
		{"Wombat", "1", "unknown type Wombat"},
		{":int", `"` + strings.Repeat("x", 100) + `"`, `"` + strings.Repeat("x", 60) + `…" is not an int`},
	} {
		if got := problem(typeOf(t, c.typ), valueOf(t, c.value)); got != c.want {
			t.Errorf("%s of %s:\n got %s\nwant %s", c.value, c.typ, got, c.want)
		}
	}
}

func TestExplanationIsBounded(t *testing.T) {
	all := make(form.Vector, 100_000)
	err := typeOf(t, "[:vector :int]").Check(all)
	m, ok := errors.AsType[*schema.Mismatch](err)
	if !ok || !m.More || len(m.Problems) > 100 || !strings.HasSuffix(err.Error(), "; and more") {
		t.Errorf("%v", err)
	}
	if fault.KindOf(err) != fault.Invalid {
		t.Errorf("kind %q, want invalid", fault.KindOf(err))
	}
}

func TestCompileErrors(t *testing.T) {
	for _, c := range []struct{ typ, want string }{
		{"", "the type is missing"},
		{":strng", "t:1:1: ParseError: there is no type :strng: did you mean :string?"},
		{"strng", "did you mean string?"},
		{"[:map\n [:a :itn]]", "t:2:6: ParseError: there is no type :itn: did you mean :int?"},
		{"Strng", "did you mean String?"},
		{":number", "did you mean :float?"},
		{":vector", "[:vector …]"},
		{"[:vectr :int]", "did you mean [:vector …]?"},
		{"[:set :int]", "did you mean [:vector T]?"},
		{"[:zebra]", "there is no type [:zebra …]"},
		{"[:vector]", "[:vector T] takes one type, not 0"},
		{"[:vector :int :int]", "[:vector T] takes one type, not 2"},
		{"[]", "[] is not a type"},
		{"[[:int]]", "begins with a word"},
		{"{:a :int}", "did you mean [:map {…}]?"},
		{"(int)", "a list is not a type"},
		{"42", "did you mean [:val 42]?"},
		{":int :int", "expected exactly one type, not 2"},
		{"[:map-of :int]", "a key type and a value type"},
		{"[:map :a]", "the entries of a map are written"},
		{"[:map [a :int]]", "did you mean :a?"},
		{"[:map [1 :int]]", "a key must be a keyword or a string"},
		{"[:map [:a]]", "an entry of a map takes one type, not 0"},
		{"[:map [:a :int] [\"a\" :int]]", "duplicate key \"a\""},
		{"[:map [:* :int] [:* :int]]", "duplicate"},
		{"[:map [:* {:optional true} :int]]", "only a type"},
		{"[:map [:a {:optinal true} :int]]", "did you mean :optional?"},
		{"[:map [:a {:optional 1} :int]]", ":optional is not 1"},
		{"[:map []]", "the entries of a map are written [:key T]"},
		{"[:map [:a {:zebra 1} :int]]", "it may have :optional and :description"},
		{"[:int]", "[:int] takes no arguments: write :int"},
		{"[:fn [:itn] :int]", "did you mean :int?"},
		{"[:resource a b]", "takes one name"},
		{"[:tuple (x)]", "a list is not a type"},
		{"[:and [:min-count 1]]", "did you mean [:and [:vector T] [:min-count 1]]?"},
		{"[:and [:has-key :a]]", "did you mean [:and [:map] [:has-key :a]]?"},
		{"[:and [:is-url]]", "did you mean [:and :string [:is-url]]?"},
		{"[:and :int [:vectr :int]]", "did you mean [:vector …]?"},
		{"[:and :int [:set :int]]", "did you mean [:vector T]?"},
		{"[:and :int [:>]]", "[:> n] takes one number"},
		{"[:and :int [:> ##NaN]]", "##NaN is not a number"},
		{"[:and :int [:=]]", "takes one value"},
		{"[:and :int [:in-range 1]]", "takes two numbers"},
		{"[:and :int [:in-range 1 a]]", "a is not a number"},
		{"[:and :int [:in-range a 1]]", "a is not a number"},
		{"[:and :string [:length]]", "takes one number"},
		{"[:and :string [:is-url 1]]", "takes no arguments"},
		{"[:and :string [:matches-regex]]", "takes one expression"},
		{"[:and [:map] [:has-key]]", "takes one key"},
		{"[:and [:map] [:has-key 1]]", "1 is not a key"},
		{"[:enum]", "at least one value"},
		{"[:val]", "one value"},
		{"[:union]", "at least one type"},
		{"[:and]", "takes a type"},
		{"[:and [:> 0]]", "did you mean [:and :float [:> 0]]?"},
		{"[:> 0]", "use it in [:and T …]"},
		{"[:and :string [:min-lenght 3]]", "did you mean [:min-length …]?"},
		{"[:and :string [:min-length \"3\"]]", "\"3\" is not a valid count"},
		{"[:and :string [:min-length -3]]", "-3 is not a valid count"},
		{"[:and :int [:> :a]]", ":a is not a number"},
		{"[:and :int [:in-range 5 1]]", "is empty"},
		{"[:and :string [:matches-regex \"(\"]]", "missing closing"},
		{"[:and :string [:matches-regex 1]]", "1 is not a string"},
		{"[:and [:map] [:required-keys :a]]", "a vector of keys"},
		{"[:fn :int :int]", "a vector of parameter types"},
		{"[:fn [:int]]", "one result type"},
		{"[:fn [& :int :int] :int]", "& is followed by one type"},
		{"[:array :int [-1]]", "-1 is not a valid count"},
		{"[:array :int [a]]", "a is not a valid count"},
		{strings.Repeat("[:vector ", 600) + ":int" + strings.Repeat("]", 600), "nested more than"},
	} {
		_, err := schema.Parse("t", c.typ)
		e, ok := errors.AsType[*form.Error](err)
		if !ok || e.Kind != "ParseError" || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60s: %v, want %s", c.typ, err, c.want)
		}
	}
}

func TestLongTypesCompileInLinearTime(t *testing.T) {
	marks := strings.Repeat("?", 100_000)
	for _, text := range []string{":int" + marks, "[:tuple :int " + strings.ReplaceAll(marks, "?", "? ") + "]"} {
		if err := typeOf(t, text).Check(true); err == nil {
			t.Error("true fits")
		}
	}
	var fields strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&fields, "[:k%d :int ?]", i)
	}
	if got := problem(typeOf(t, "[:map "+fields.String()+"]"), form.NewMap("k19999", "x")); got != `at [:k19999]: "x" is not an int` {
		t.Error(got)
	}
}

func TestTypeInProgram(t *testing.T) {
	nodes, err := form.Read("p.rtfs", []byte("(defn f [x : [:vector :itn]] x)"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = schema.Compile(nodes[0].Items[2].Items[2])
	if want := "p.rtfs:1:23: ParseError: there is no type :itn: did you mean :int?"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestUnknown(t *testing.T) {
	typ := typeOf(t, "[:map [:a Wombat] [:b [:and :int [:lucky 7]]]]")
	if got := strings.Join(typ.Unknown(), " "); got != "Wombat lucky" {
		t.Errorf("unknown: %s", got)
	}
}
