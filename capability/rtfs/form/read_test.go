package form_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"glasshouse/capability/rtfs/form"
)

func one(t *testing.T, src string) form.Value {
	t.Helper()
	nodes, err := form.Read("", []byte(src))
	if err != nil {
		t.Fatalf("Read(%q): %v", src, err)
	}
	if len(nodes) != 1 {
		t.Fatalf("Read(%q) = %d nodes, want 1", src, len(nodes))
	}
	return nodes[0].Value()
}

func TestReadLexemes(t *testing.T) {
	sym := func(s string) form.Symbol { return form.Symbol(s) }
	for src, want := range map[string]form.Value{
		"nil": nil, "true": true, "false": false,
		"0": int64(0), "-17": int64(-17), "+5": int64(5), "007": int64(7), "0x1F": int64(31), "-0x10": int64(-16),
		"9223372036854775807": int64(math.MaxInt64), "-9223372036854775808": int64(math.MinInt64),
		"1.23e4": 12300.0, "1e5": 1e5, "1E-2": 0.01, "-2.5": -2.5, "1.5e+3": 1500.0,
		"##Inf": math.Inf(1), "##-Inf": math.Inf(-1),
		`"a\n\t\r\\\"b"`: "a\n\t\r\\\"b", "\"two\nlines\"": "two\nlines", `"häß🙂"`: "häß🙂", `"a,b"`: "a,b",
		":name": form.Keyword("name"), ":ns.a/b": form.Keyword("ns.a/b"), ":com.acme:v1.0/foo": form.Keyword("com.acme:v1.0/foo"),
		":a-b?": form.Keyword("a-b?"), ":int?": form.Keyword("int?"), ":404": form.Keyword("404"),
		"foo-bar!": sym("foo-bar!"), "a.b/c": sym("a.b/c"), "ns:v1/fn": sym("ns:v1/fn"), "+": sym("+"), "-": sym("-"), "->>": sym("->>"),
		"/": sym("/"), "%params": sym("%params"), "λ": sym("λ"), "&": sym("&"), ":": sym(":"), "nilly": sym("nilly"), "-x": sym("-x"),
		"@name": sym("@name"), "@:key": sym("@:key"),
		"2024-01-02T03:04:05Z":                 "2024-01-02T03:04:05Z",
		"2024-01-02T03:04:05_123Z":             "2024-01-02T03:04:05_123Z",
		"deadbeef-0000-4000-8000-00000000000a": "deadbeef-0000-4000-8000-00000000000a",
		"123e4567-e89b-12d3-a456-426614174000": "123e4567-e89b-12d3-a456-426614174000",
		"resource://files/a.txt":               form.Resource("resource://files/a.txt"),
		"()":                                   form.List{}, "[]": form.Vector{}, "{}": form.NewMap(),
		"(f [1 2] {:a 1 \"b\" 2 3 x})": form.List{sym("f"), form.Vector{int64(1), int64(2)},
			form.NewMap(form.Keyword("a"), int64(1), "b", int64(2), int64(3), sym("x"))},
		"{:a 1 :a 2}":                       form.NewMap(form.Keyword("a"), int64(2)),
		"[x:int]":                           form.Vector{sym("x"), form.Keyword("int")},
		"[x : int]":                         form.Vector{sym("x"), sym(":"), sym("int")},
		"[x :[:vector :int]]":               form.Vector{sym("x"), sym(":"), form.Vector{form.Keyword("vector"), form.Keyword("int")}},
		"'x":                                form.List{sym("quote"), sym("x")},
		"`(a ~b ~@c)":                       form.List{sym("quasiquote"), form.List{sym("a"), form.List{sym("unquote"), sym("b")}, form.List{sym("unquote-splicing"), sym("c")}}},
		"#(+ % 1)":                          form.List{sym("fn"), form.Vector{sym("%1")}, form.List{sym("+"), sym("%1"), int64(1)}},
		"#(f %2)":                           form.List{sym("fn"), form.Vector{sym("%1"), sym("%2")}, form.List{sym("f"), sym("%2")}},
		"#(f %&)":                           form.List{sym("fn"), form.Vector{sym("&"), sym("%&")}, form.List{sym("f"), sym("%&")}},
		"(.length s)":                       form.List{sym("length"), sym("s")},
		"; a comment\n1 ; more":             int64(1),
		"#| one\ntwo |# 2":                  int64(2),
		"^{:a 1} x":                         sym("x"),
		"^:delegation :local-model \"m\" x": sym("x"),
	} {
		if got := one(t, src); !form.Equal(got, want) {
			t.Errorf("Read(%q) = %s, want %s", src, form.Text(got), form.Text(want))
		}
	}
}

func TestReadErrors(t *testing.T) {
	for src, says := range map[string]string{
		"(":                      "never closed",
		"(+ 1 2":                 "never closed",
		")":                      "unexpected )",
		"(]":                     "does not close the ( of 1:1",
		`"abc`:                   "never closed",
		`"a\xb"`:                 `\x is not an escape`,
		`"\u0041"`:               `\u is not an escape`,
		`"abc\`:                  "never closed",
		"#| x":                   "never closed",
		"1e5x":                   "1e5x is not a number",
		"1/2":                    "1/2 is not a number",
		"5.":                     "5. is not a number",
		".5":                     "unexpected '.'",
		"0x":                     "0x is not a number",
		"0x-5":                   "not a number",
		"1_000":                  "not a number",
		"9223372036854775808":    "too large",
		"1e999":                  "too large",
		"[1, 2]":                 "a comma is not a separator",
		"{:a}":                   "this key has no value",
		"#{1 2}":                 "unknown # syntax",
		"#_x":                    "unknown # syntax",
		"##inf":                  "unknown # syntax",
		"#(a #(b))":              "#( cannot be nested in #(",
		"'":                      "' must be followed by a form",
		"(a ~@)":                 "~@ must be followed by a form",
		"^{:a 1}":                "must be followed by a form",
		"^5 x":                   "metadata must be a map or a keyword",
		"^:delegation :remote x": "needs the name of a model",
		"^:delegation 5 x":       "the target of :delegation must be",
		"(a .b)":                 ".b calls a method",
		"@":                      "@ must be followed by a name",
		"\"\xff\"":               "not UTF-8",
		"\\a":                    `unexpected '\\'`,
		"resource://":            "of what",
		strings.Repeat("[", form.MaxNesting+1) + strings.Repeat("]", form.MaxNesting+1): "nested more than",
	} {
		_, err := form.Read("f.rtfs", []byte(src))
		e, ok := errors.AsType[*form.Error](err)
		if !ok || e.Kind != "ParseError" || !strings.Contains(e.Message, says) {
			t.Errorf("Read(%.40q) = %v, want a ParseError that says %q", src, err, says)
		}
	}
}

func TestErrorExcerpt(t *testing.T) {
	_, err := form.Read("f.rtfs", []byte("(let [x 1]\n\t(äh x, 2))\n"))
	want := "f.rtfs:2:7: ParseError: a comma is not a separator: use a space\n  2 |  (äh x, 2))\n    |       ^"
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	long := strings.Repeat("x", 500) + " , " + strings.Repeat("y", 500)
	if _, err := form.Read("", []byte(long)); len(err.Error()) > 400 {
		t.Errorf("the excerpt of a long line has %d bytes", len(err.Error()))
	}
}

func TestNodePositions(t *testing.T) {
	src := "(a\n  [b \"ç\" :d])"
	nodes, err := form.Read("f", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	var check func(n *form.Node)
	check = func(n *form.Node) {
		text := src[n.Pos.Offset:n.End]
		if got := one(t, text); !form.Equal(got, n.Value()) {
			t.Errorf("%s is said to stand at %q", form.Text(n.Value()), text)
		}
		for _, item := range n.Items {
			check(item)
		}
	}
	check(nodes[0])
	d := nodes[0].Items[1].Items[2]
	if d.Pos.Line != 2 || d.Pos.Col != 10 {
		t.Errorf(":d is at %s, want f:2:10", d.Pos)
	}
}

func TestMetadata(t *testing.T) {
	nodes, err := form.Read("", []byte("^{:a 1} ^:private ^:delegation :remote \"m\" (fn [x] x)"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range nodes[0].Meta {
		got = append(got, form.Text(m.Value()))
	}
	if want := `{:a 1} :private {:delegation [:remote "m"]}`; strings.Join(got, " ") != want {
		t.Errorf("metadata %s, want %s", got, want)
	}
}

func TestTextIsCanonical(t *testing.T) {
	for want, v := range map[string]form.Value{
		"3.0": 3.0, "-0.0": math.Copysign(0, -1), "1.0e21": 1e21, "1.5e-7": 1.5e-7, "100000000000000000000.0": 1e20, "0.1": 0.1,
		"##Inf": math.Inf(1), "##NaN": math.NaN(), `"a\n\"\\"`: "a\n\"\\",
		"{:b 1 :a (1 [2.0])}": form.NewMap(form.Keyword("b"), int64(1), form.Keyword("a"), form.List{int64(1), form.Vector{2.0}}),
		"#<error E: m>":       form.Errorf("E", "m"),
	} {
		if got := form.Text(v); got != want {
			t.Errorf("Text = %s, want %s", got, want)
		}
	}
}

func TestTextOfDeepValueIsBounded(t *testing.T) {
	v := form.Value(int64(1))
	for range 1_000_000 {
		v = form.Vector{v}
	}
	if n := len(form.Text(v)); n > 100_000 {
		t.Errorf("%d bytes", n)
	}
}
