package lib_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"glasshouse/capability/rtfs"
	"glasshouse/capability/rtfs/form"
)

// bombs are short programs that would exhaust memory or time.
func TestFunctionsRespectLimits(t *testing.T) {
	// A value of sixty small vectors whose text has 2^60 elements.
	const shared = "(reduce (fn [a _] [a a]) 1 (range 0 60))"
	bombs := []string{
		"(range 0 9223372036854775807)",
		"(range -9223372036854775808 9223372036854775807)",
		"(numbers -9223372036854775808 9223372036854775807)",
		"(repeat 9223372036854775807 1)",
		"(reduce (fn [a _] (str a a)) \"ab\" (range 0 60))",
		"(reduce (fn [a _] (concat a a)) [1] (range 0 60))",
		"(reduce (fn [a _] (into a a)) [1] (range 0 60))",
		"(reduce (fn [a _] (join a [a a a])) \"ab\" (range 0 60))",
		"(reduce (fn [a _] (replace a \"a\" \"aaaa\")) \"a\" (range 0 60))",
		"(reduce (fn [a _] (replace a \"\" \"aaaa\")) \"a\" (range 0 60))",
		"(reduce (fn [a _] (re-replace \"a\" a \"$0$0$0$0\")) \"a\" (range 0 60))",
		"(reduce (fn [a _] (format \"%s%s\" a a)) \"a\" (range 0 60))",
		"(reduce (fn [a _] (interleave a a)) [1 2] (range 0 60))",
		"(reduce (fn [a _] (interpose 0 (concat a a))) [1 2] (range 0 60))",
		"(reduce (fn [a _] (mapcat (fn [x] [x x]) a)) [1 2] (range 0 60))",
		"(reduce (fn [a _] (vec (partition 1 (concat a a)))) [1 2] (range 0 60))",
		"(loop [a []] (recur (conj a 1)))",
		"(loop [m {} i 0] (recur (assoc m i i) (inc i)))",
		"(loop [a (list)] (recur (conj a 1)))",
		"(split (join \"\" (repeat 200000 \"a\")) \"\")",
		"(re-seq \"\" (join \"\" (repeat 200000 \"a\")))",
		"(re-find \"(x+x+)+y\" (join \"\" (repeat 2000000 \"x\")))",
		"(sort (range 0 200000))",
		"(sort-by (fn [x] x) (range 0 200000))",
		"(str " + shared + ")",
		"(pr-str " + shared + ")",
		"(= " + shared + " " + shared + ")",
		"(compare " + shared + " " + shared + ")",
		"(sort [" + shared + " " + shared + "])",
		"(flatten " + shared + ")",
		"(serialize-json " + shared + ")",
		"(distinct [" + shared + " 1])",
		"(frequencies [" + shared + " 1])",
		"(group-by (fn [x] " + shared + ") [1])",
		"(contains? [" + shared + "] " + shared + ")",
		"(get {} " + shared + ")",
		"(hash-map " + shared + " 1)",
		"(assoc {} " + shared + " 1)",
		"(zipmap [" + shared + "] [1])",
		"(into {} [[" + shared + " 1]])",
		"(join \",\" [" + shared + "])",
		"(let [s (join \"\" (repeat 30000 \"abcdefgh\"))] (repeat 300 s))",
		"(let [k (keyword (join \"\" (repeat 30000 \"abcdefgh\")))] (repeat 300 k))",
		"(parse-json (join \"\" [\"[\" (join \",\" (repeat 200000 \"1\")) \"]\"]))",
		"(map inc (range 0 200000))",
		"(parse-int (join \"\" (repeat 2000000 \"1\")))",
	}
	in := rtfs.New(rtfs.Config{Limits: rtfs.Limits{Steps: 100_000, Alloc: 4 << 20, Time: time.Minute}})
	for _, src := range bombs {
		v, err := run(t, in, src)
		if _, ok := rtfs.Exhausted(err); !ok {
			text, _ := form.Within(v, 40)
			t.Errorf("%s = %s, %v; want a limit", src, text, err)
		}
	}
}

// Excessive nesting is refused and does not crash the process.
func TestDeepNestingIsRefused(t *testing.T) {
	const deep = "(reduce (fn [a _] [a]) [] (range 0 30000))"
	in := rtfs.New(rtfs.Config{})
	for src, want := range map[string]string{
		"(= " + deep + " " + deep + ")":                "InvalidArgument",
		"(compare " + deep + " " + deep + ")":          "InvalidArgument",
		"(serialize-json " + deep + ")":                "JsonError",
		"(get {} " + deep + ")":                        "InvalidArgument",
		"(distinct [" + deep + "])":                    "InvalidArgument",
		"(count (flatten " + deep + "))":               "",
		"(string? (str " + deep + "))":                 "InvalidArgument",
		"(assoc-in {} (range 0 5000) 1)":               "InvalidArgument",
		"(string? (re-find \"a\" \"a\"))":              "",
		"(throw (ex-info \"m\" " + deep + "))":         "ApplicationError",
		"(type-name (throw " + deep + "))":             "ApplicationError",
		"(parse-int " + deep + ")":                     "",
		"(inc " + deep + ")":                           "TypeError",
		"(match " + deep + " [[[x]]] 2 _ 1)":           "",
		"(case " + deep + " 1 2 3)":                    "",
		"(count (get-in " + deep + " (repeat 100 0)))": "",
		"(contains? [1 " + deep + "] " + deep + ")":    "InvalidArgument",
	} {
		_, err := run(t, in, src)
		kind := ""
		if e, ok := errors.AsType[*form.Error](err); ok {
			kind = e.Kind
		}
		if kind != want {
			t.Errorf("%s: %v; want %q", src, err, want)
		}
	}
}

// A vector may share its array with the one it was created from, but the values stay
// independent.
func TestVectorsWithSharedPrefixAreIndependent(t *testing.T) {
	v, err := run(t, rtfs.New(rtfs.Config{}), `
		(let [a (conj [1] 2)
		      b (conj a :b)
		      c (conj a :c)
		      d (conj (rest a) :d)
		      e (conj (pop b) :e)
		      f (conj (subvec b 0 1) :f)
		      g (conj (take 2 c) :g :h :i :j :k :l :m)]
		  [a b c d e f g])`)
	want := "[[1 2] [1 2 :b] [1 2 :c] [2 :d] [1 2 :e] [1 :f] [1 2 :g :h :i :j :k :l :m]]"
	if err != nil || form.Text(v) != want {
		t.Errorf("got %s, %v\nwant %s", form.Text(v), err, want)
	}
}

func TestConcurrentConj(t *testing.T) {
	p, err := rtfs.New(rtfs.Config{}).Compile("", []byte("(fn [v x] (reduce conj v (repeat 50 x)))"))
	if err != nil {
		t.Fatal(err)
	}
	v, err := p.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f := v.(*rtfs.Func)
	shared, err := f.Call(t.Context(), form.Vector{}, int64(0))
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan error)
	for x := range int64(8) {
		go func() {
			grown, err := f.Call(t.Context(), shared, x)
			if err == nil {
				for i, e := range grown.(form.Vector)[50:] {
					if e != x {
						err = fmt.Errorf("element %d is %v, want %d", i, e, x)
					}
				}
			}
			results <- err
		}()
	}
	for range 8 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}

func FuzzParseJSON(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5,null,true,"x\u00e4"]}`, `[[[`, `1e999`, `{"a":1}x`, `"\ud800"`, `-`, ``} {
		f.Add(s)
	}
	in := rtfs.New(rtfs.Config{Limits: rtfs.Limits{Steps: 1_000_000, Alloc: 64 << 20}})
	p, err := in.Compile("", []byte("(fn [s] (let [v (parse-json s)] [v (parse-json (serialize-json v)) (parse-json (serialize-json-pretty v))]))"))
	if err != nil {
		f.Fatal(err)
	}
	made, err := p.Run(f.Context())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := made.(*rtfs.Func).Call(t.Context(), s)
		if err != nil {
			if e, ok := errors.AsType[*form.Error](err); !ok || e.Kind != "JsonError" {
				t.Fatalf("parse-json of %q: %v", s, err)
			}
			return
		}
		all := v.(form.Vector)
		if !form.Equal(all[0], all[1]) || !form.Equal(all[0], all[2]) {
			t.Fatalf("%q is %s, and written and read again %s and %s", s, form.Text(all[0]), form.Text(all[1]), form.Text(all[2]))
		}
	})
}

func FuzzPatterns(f *testing.F) {
	for _, s := range [][3]string{{"a(b|c)*", "abcbc", "$1"}, {"", "äö", "${x}"}, {"(?P<x>.)\\b", "a b", "<$x>"}, {"\\Q", "a", "$"}, {"(((", "", ""}, {"(?i)^A$|x{2,3}", "axxx", "$0$9"}} {
		f.Add(s[0], s[1], s[2])
	}
	in := rtfs.New(rtfs.Config{Limits: rtfs.Limits{Steps: 5_000_000, Alloc: 64 << 20}})
	p, err := in.Compile("", []byte("(fn [p s t] [(re-matches p s) (re-find p s) (re-seq p s) (re-groups p s) (re-replace p s t)])"))
	if err != nil {
		f.Fatal(err)
	}
	made, err := p.Run(f.Context())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, pattern, s, template string) {
		v, err := made.(*rtfs.Func).Call(t.Context(), pattern, s, template)
		if err != nil {
			if e, ok := errors.AsType[*form.Error](err); !ok || e.Kind != "InvalidArgument" && e.Kind != "BudgetExhausted" {
				t.Fatalf("%q in %q: %v", pattern, s, err)
			}
			return
		}
		all := v.(form.Vector)
		matches, found, seq := all[0].(bool), all[1], all[2].(form.Vector)
		if (found == nil) != (len(seq) == 0) || found != nil && found != seq[0] || matches && found == nil {
			t.Fatalf("%q in %q: matches %v, finds %v, all %v", pattern, s, matches, found, seq)
		}
		if groups, ok := all[3].(form.Vector); ok && groups[0] != found {
			t.Fatalf("%q in %q: finds %v, with groups %v", pattern, s, found, groups)
		}
	})
}
