package rtfs_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"glasshouse/capability/rtfs"
	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/rtfs/lib"
)

var programs = []string{
	"(defn f [n] (if (< n 2) n (+ (f (- n 1)) (f (- n 2))))) (f 10)",
	"(let [{:keys [a b] :or {b 2} :as m} {:a 1} [x & r] [1 2 3]] [a b m x r])",
	"(match [1 {:a 2}] [x {:a y}] when (> y 1) (+ x y) _ nil)",
	"(try (throw {:type :k}) (catch :k e (:data e)) (finally (println 1)))",
	"(defmacro m [x & ys] `(do ~x ~@ys)) (m 1 2 3)",
	"(loop [i 0 acc []] (if (= i 10) acc (recur (inc i) (conj acc i))))",
	"(for [x [1 2 3] y (range 0 x) :when (odd? y) :let [z 1]] [x y z])",
	"(letfn [(a [n] (b n)) (b [n] (if (= n 0) 0 (a (dec n))))] (a 10))",
	"(module m (:exports [f]) (defn f [] 1)) (import m :as q) (q/f)",
	"(case 1 (1 2) :a :b) (cond false 1 :else 2) (-> 1 inc (+ 2)) (->> [1] (map inc))",
	`(step "s" :params {"a" 1} (step-parallel (context/set :a 1) 2)) (get :a)`,
	"(defstruct P :x int) (P {:x 1}) (dotimes [i 3] i) (#(+ % %2) 1 2)",
	`(str "a" :b 'c 1.5 nil [1 2] {:a 1} (list 1)) (reduce + (map count (split "a b" " ")))`,
	"(defn f [x : int & r : string] : int x) (f 1 \"a\")",
	"(group-by even? (range 0 10)) (sort-by - [3 1 2]) (update-in {:a {:b 1}} [:a :b] inc)",
	`(serialize-json {:a [1 2.5 nil true "x"]}) (parse-json "{\"a\":[1]}")`,
}

// Every program ends within its limits and is deterministic.
func FuzzRun(f *testing.F) {
	for _, p := range programs {
		f.Add(p)
	}
	in := rtfs.New(rtfs.Config{
		Host: quiet{}, Check: types,
		Limits: rtfs.Limits{Steps: 20_000, Depth: 200, Alloc: 4 << 20, Time: time.Minute},
	})
	f.Fuzz(func(t *testing.T, src string) { runTwice(t, in, src) })
}

func runTwice(t *testing.T, in *rtfs.Interp, src string) {
	t.Helper()
	p, err := in.Compile("f", []byte(src))
	if err != nil {
		if kindOf(err) == "" {
			t.Fatalf("compiling fails with %v", err)
		}
		return
	}
	first, used := outcome(t, p)
	again, usedAgain := outcome(t, p)
	if strings.Contains(src, "step-parallel") && strings.Contains(first, "BudgetExhausted") && strings.Contains(again, "BudgetExhausted") {
		return // which branch exhausts the limits depends on timing
	}
	if first != again || used != usedAgain {
		t.Fatalf("one run is %s and takes %+v, the next is %s and takes %+v", first, used, again, usedAgain)
	}
}

func outcome(t *testing.T, p *rtfs.Program) (string, rtfs.Usage) {
	t.Helper()
	var used rtfs.Usage
	v, err := p.With(rtfs.Env{Used: &used}).Run(context.Background())
	if err != nil {
		if kindOf(err) == "" || kindOf(err) == "InternalError" {
			t.Fatalf("running fails with %v", err)
		}
		text, _ := form.Within(err.Error(), 10_000)
		return text, used
	}
	text, _ := form.Within(v, 10_000)
	return text, used
}

// FuzzProgram generates programs from random bytes that usually compile: library calls with all
// kinds of values in all kinds of forms.
func FuzzProgram(f *testing.F) {
	f.Add([]byte("\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"))
	f.Add([]byte("reduce map filter and what else there is to fold into a program"))
	in := rtfs.New(rtfs.Config{
		Host: quiet{}, Check: types,
		Limits: rtfs.Limits{Steps: 20_000, Depth: 200, Alloc: 4 << 20, Time: time.Minute},
	})
	names := []string{"and", "or", "call", "println"}
	for _, b := range lib.All() {
		names = append(names, b.Name)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		g := &generator{data: data, names: names}
		runTwice(t, in, "(defn f [x] (if (< x 3) (f (inc x)) "+g.expr(0)+")) "+g.expr(0)+" "+g.expr(0))
	})
}

// A generator consumes bytes for its choices.
type generator struct {
	data  []byte
	names []string
}

func (g *generator) pick(n int) int {
	if len(g.data) == 0 {
		return 0
	}
	b := int(g.data[0])
	g.data = g.data[1:]
	if n > 256 && len(g.data) > 0 {
		b = b<<8 | int(g.data[0])
		g.data = g.data[1:]
	}
	return b % n
}

var atoms = []string{
	"nil", "true", "1", "x", "f", "-7", "0", "2.5", `""`, `"a b"`, `"é"`, ":a", "'s", "[]", "{}", "[1 2 3]", `{:a 1 "b" 2}`,
	"'(1 2)", "9223372036854775807", "1e300", "##NaN", "##Inf", "inc", "+", "(fn [x] x)", "(range 0 9)", `"[a-z]+"`, "100000",
}

func (g *generator) expr(depth int) string {
	if depth > 6 || len(g.data) == 0 {
		return atoms[g.pick(len(atoms))]
	}
	e := func() string { return g.expr(depth + 1) }
	switch g.pick(16) {
	case 0, 1:
		return atoms[g.pick(len(atoms))]
	case 2:
		return "(let [x " + e() + " [y & z] " + e() + "] " + e() + ")"
	case 3:
		return "(if " + e() + " " + e() + " " + e() + ")"
	case 4:
		return "(try " + e() + " (catch TypeError x " + e() + ") (catch _ x " + e() + "))"
	case 5:
		return "[" + e() + " " + e() + "]"
	case 6:
		return "{:a " + e() + " :b " + e() + "}"
	case 7:
		return "(match " + e() + " [x y] " + e() + " {:a x} " + e() + " x " + e() + ")"
	case 8:
		return "(fn [x & y] " + e() + ")"
	case 9:
		return "(loop [x 0 y " + e() + "] (if (< x 5) (recur (inc x) " + e() + ") y))"
	case 10:
		return "(for [x " + e() + "] " + e() + ")"
	}
	name := g.names[g.pick(len(g.names))]
	call := "(" + name
	for range g.pick(4) {
		call += " " + e()
	}
	return call + ")"
}
