package rtfs_test

import (
	"fmt"
	"strings"
	"testing"

	"glasshouse/capability/rtfs"
	"glasshouse/capability/rtfs/form"
)

// Inlined integer operations give the same results as the library for all values.
func TestInlineArithmeticMatchesLibrary(t *testing.T) {
	values := []string{
		"0", "1", "-1", "7", "-3", "2147483647", "-2147483648", "4294967296", "9223372036854775807", "-9223372036854775808",
		"0.0", "-0.0", "2.5", "1.0", "##Inf", "##NaN", `"a"`, `"b"`, "nil", "true", ":k", "[1]", "[1.0]", "{:a 1}", "(fn [x] x)",
	}
	in := rtfs.New(rtfs.Config{})
	result := func(src string) string {
		p, err := in.Compile("", []byte(src))
		if err != nil {
			t.Fatalf("%s: %v", src, err)
		}
		v, err := p.Run(t.Context())
		if err != nil {
			return kindOf(err)
		}
		return form.Text(v)
	}
	for _, op := range []string{"+", "-", "*", "<", ">", "<=", ">=", "=", "!=", "not="} {
		for _, a := range values {
			for _, b := range values {
				want := result(fmt.Sprintf("(apply %s [%s %s])", op, a, b))
				for _, src := range []string{
					fmt.Sprintf("(%s %s %s)", op, a, b),
					fmt.Sprintf("(let [a %s b %s] (%s a b))", a, b, op),
				} {
					if got := result(src); got != want {
						t.Errorf("%s = %s, and the library says %s", src, got, want)
					}
				}
				if !strings.ContainsAny(op, "<>=") {
					continue
				}
				if got := result(fmt.Sprintf("(if (%s %s %s) true false)", op, a, b)); got != want {
					t.Errorf("(if (%s %s %s) …) = %s, and the library says %s", op, a, b, got, want)
				}
			}
		}
	}
	for _, op := range []string{"inc", "dec"} {
		for _, a := range values {
			want := result(fmt.Sprintf("(apply %s [%s])", op, a))
			if got := result(fmt.Sprintf("(%s %s)", op, a)); got != want {
				t.Errorf("(%s %s) = %s, and the library says %s", op, a, got, want)
			}
		}
	}
}

func TestMalformedForms(t *testing.T) {
	for _, src := range []string{
		"(if 1)", "(let)", "(let 5 1)", "(letfn 5 1)", "(letfn [5] 1)", "(letfn [(f)] 1)", "(fn 5)", "(fn [1] 1)", "(defn)", "(defn f)",
		"(defn f 5)", "(defn 5 [] 1)", "(def @x 1)", "(def x)", "(def x 1 2)", "(defmacro)", "(defmacro m)", "(defmacro 5 [] 1)",
		"(defstruct)", "(defstruct P x int)", "(quote)", "(quasiquote)", "(unquote 1)", "(loop)", "(loop [x] 1)", "(try)",
		"(try 1 (catch E))", "(try 1 (finally 1) (finally 2))", "(cond 1)", "(when)", "(unless)", "(case)", "(match)", "(match 1 2)",
		"(match 1 (foo) 2)", "(match 1 [a & b c] 2)", "(->)", "(-> 1 ())", "(for)", "(for [x] 1)", "(for [x [1]])",
		"(for [x [1] :let 5] x)", "(dotimes [i] 1)", "(dotimes [5 5] 1)", "(dotimes 5 1)", "(step)", "(step-loop)",
		"(step-parallel :merge-policy :never 1 2)", "(module)", "(module 5)", "(module m (:exports [5]))", "(let [x 1] (module m))x)",
		"(module m (module n))", "(import)", "(import m x)", "(module m) (import m :with 1)", "(module m) (import m :as 5)",
		"(module m) (import m :only 5)", "(resource)", "(resource 5)", "(resource r (thing))", "(resource:ref 5)", "(plan)", "(plan [1])",
		"(plan \"p\" 1 2)", "{[1] 2}", "{x 1}", "{1.5 2}", "{nil 1}", "[{(f) 1}]", "(let [{:keys 5} {}] 1)", "(let [{a 5.5} {}] 1)",
		"(let [{:or {5 1}} {}] 1)", "(let [[a :as] []] 1)", "(let [[a & b & c] []] 1)", "(fn [&] 1)", "(fn [& 5] 1)", "(defn if2 [x : ] x)",
	} {
		if v, err := run(t, src); kindOf(err) != "ParseError" {
			t.Errorf("%s = %s, %v, want a ParseError", src, form.Text(v), err)
		}
	}
}

func TestModelCallsUseTheHost(t *testing.T) {
	var got string
	host := hostOf(func(id string, input form.Value) (form.Value, error) {
		got = id + " " + form.Text(input)
		return "ok", nil
	})
	for src, want := range map[string]string{
		`(llm-execute "m" "p")`:             `llm.execute {:model "m" :prompt "p"}`,
		`(llm-execute "m" "p" :system "s")`: `llm.execute {:model "m" :prompt "p" :system "s"}`,
	} {
		p, err := rtfs.New(rtfs.Config{Host: host}).Compile("", []byte(src))
		if err != nil {
			t.Fatal(err)
		}
		if v, err := p.Run(t.Context()); err != nil || v != "ok" || got != want {
			t.Errorf("%s = %v, %v, and the host was asked %s, want %s", src, v, err, got, want)
		}
	}
	check(t, []scenario{
		{`(llm-execute 1 2)`, "!TypeError"},
		{`(llm-execute "m" "p" :other "s")`, "!InvalidArgument"},
		{`(call 5)`, "!TypeError"},
		{`(gensym 5)`, "!TypeError"},
		{`(context/set [1] 2)`, "!TypeError"},
		{`(step [1] 2)`, "!TypeError"},
		{`(step "a" :params 5 2)`, "!TypeError"},
		{`(step "a" :expose-context true :context-keys 5 2)`, "!TypeError"},
		{`(step :a 2)`, "2"},
	})
}
