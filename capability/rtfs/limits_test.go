package rtfs_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/capability/rtfs"
	"glasshouse/capability/rtfs/form"
	"glasshouse/fault"
)

// within runs a program with limits.
func within(t *testing.T, l rtfs.Limits, src string) (form.Value, error) {
	t.Helper()
	p, err := rtfs.New(rtfs.Config{Limits: l}).Compile("t.rtfs", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	return p.Run(t.Context())
}

func wantExhausted(t *testing.T, err error, dimension string) {
	t.Helper()
	if got, ok := rtfs.Exhausted(err); !ok || got != dimension {
		t.Errorf("fails with %v, want %s to be exhausted", err, dimension)
	}
}

func TestTailCallsDoNotGrowStack(t *testing.T) {
	for _, src := range []string{
		"(defn f [n] (if (= n 0) :done (f (- n 1)))) (f 1000000)",
		"(defn e? [n] (if (= n 0) :done (o? (- n 1)))) (defn o? [n] (if (= n 0) :odd (e? (- n 1)))) (e? 100000)",
		"(defn f [n] (cond (= n 0) :done :else (f (- n 1)))) (f 100000)",
		"(defn f [n] (let [m (- n 1)] (do 1 (when true (unless false (if (= n 0) :done (f m))))))) (f 100000)",
		"(defn f [n] (case n 0 :done (f (- n 1)))) (f 100000)",
		"(defn f [n] (match n 0 :done m (f (- m 1)))) (f 100000)",
		"(defn f [n] (and true (or false (if (= n 0) :done (f (- n 1)))))) (f 100000)",
		"(defn f [n] (letfn [(g [] (if (= n 0) :done (f (- n 1))))] (g))) (f 100000)",
		"(defn f [n a b c] (if (= n 0) :done (f (- n 1) a b c))) (f 100000 1 2 3)",
		"(defn f [[n] & r] (if (= n 0) :done (f [(- n 1)]))) (f [100000])",
		"(defn f [n] (-> n (- 1) g)) (defn g [n] (if (= n 0) :done (f n))) (f 100000)",
		"(defn f [n k] (if (= n 0) (k :done) (f (- n 1) k))) (f 100000 (fn [x] x))",
		"(defn f [n] (loop [i 0] (if (< i 2) (recur (inc i)) (if (= n 0) :done (f (- n 1)))))) (f 50000)",
		"(loop [n 100000] (if (= n 0) :done (recur (- n 1))))",
		"((fn [n] (if (= n 0) :done (recur (- n 1)))) 100000)",
		"(let [f (fn [n] (if (= n 0) :done (f (- n 1))))] (f 100000))",
	} {
		v, err := within(t, rtfs.Limits{Depth: 20, Time: time.Minute}, src)
		if err != nil || v != form.Keyword("done") {
			t.Errorf("%s\n= %s, %v", src, form.Text(v), err)
		}
	}
}

func TestTooDeepRecursionIsAnError(t *testing.T) {
	for _, src := range []string{
		"(defn f [n] (+ 1 (f n))) (f 1)",
		"(defn f [n] [(f n)]) (f 1)",
		"(defn f [n] (map f [n])) (f 1)",
		"(defn f [n] (apply f [n]) 1) (f 1)",
		"(defn f [n] (try (f n) (finally 1))) (f 1)",
		"(defn f [n] (try (f n) (catch e 1))) (f 1)",
		"(defn f [n] (let [x (f n)] x)) (f 1)",
		"(defn f [n] (sort-by (fn [x] (f n)) [1 2])) (f 1)",
		"(let [f (fn [n] (reduce (fn [a x] (f a)) n [1 2]))] (f 1))",
	} {
		_, err := within(t, rtfs.Limits{Time: time.Minute}, src)
		wantExhausted(t, err, "depth")
	}
}

// Without a useful depth limit the program still must not exceed the maximum Go stack, which
// would end the process.
func TestStackIsBoundedForAnyDepthLimit(t *testing.T) {
	_, err := within(t, rtfs.Limits{Depth: 1 << 40, Time: time.Minute}, "(defn f [n] (let [x [(+ 1 (f n))]] x)) (f 1)")
	wantExhausted(t, err, "depth")
}

func TestDeepRecursionWithinLimit(t *testing.T) {
	v, err := within(t, rtfs.Limits{}, "(defn sum [n] (if (= n 0) 0 (+ n (sum (- n 1))))) (sum 9000)")
	if err != nil || v != int64(40504500) {
		t.Errorf("= %v, %v", v, err)
	}
}

func TestStepLimit(t *testing.T) {
	for _, src := range []string{
		"(loop [] (recur))",
		"(defn f [] (f)) (f)",
		"(dotimes [i 1000000000000] i)",
		"(try (loop [] (recur)) (catch e :caught))",
		"(try (loop [] (recur)) (finally (loop [] (recur))))",
		"(let [v (range 0 1000)] (for [a v b v c v] nil))",
		"(loop [i 0] (recur (reduce + (range 0 1000))))",
	} {
		_, err := within(t, rtfs.Limits{Steps: 100_000, Time: time.Minute}, src)
		wantExhausted(t, err, "steps")
	}
}

func TestTimeLimit(t *testing.T) {
	_, err := within(t, rtfs.Limits{Steps: 1 << 60, Time: 20 * time.Millisecond}, "(loop [] (recur))")
	wantExhausted(t, err, "time")

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	p, err := rtfs.New(rtfs.Config{Limits: rtfs.Limits{Steps: 1 << 60, Time: time.Hour}}).Compile("", []byte("(loop [] (recur))"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Run(ctx)
	wantExhausted(t, err, "time")

	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Run(gone); !errors.Is(err, context.Canceled) || kindOf(err) != "Cancelled" {
		t.Errorf("a cancelled run ends with %v", err)
	}
}

func TestTimeLimitCancelsHostCalls(t *testing.T) {
	var host again = func(ctx context.Context, _ form.Value) (form.Value, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	p, err := rtfs.New(rtfs.Config{Host: host, Limits: rtfs.Limits{Time: 20 * time.Millisecond}}).Compile("", []byte(`(try (call "slow") (catch e 1))`))
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Run(t.Context())
	wantExhausted(t, err, "time")
}

func TestAllocLimit(t *testing.T) {
	for _, src := range []string{
		`(loop [s "x"] (recur (str s s)))`,
		`(reduce (fn [s i] (str s s)) "x" (range 0 100))`,
		"(range 0 1000000000000)",
		"(loop [v [1]] (recur (concat v v)))",
		"(loop [v []] (recur [v v v v]))",
		"(loop [m {} i 0] (recur (assoc m i i) (inc i)))",
		"(loop [v [] i 0] (recur (conj v i) (inc i)))",
		"(loop [f 1] (recur (fn [] f)))",
		"(loop [x '()] (recur `(~@x ~@x 1)))",
		`(try (loop [s "x"] (recur (str s s))) (catch e :caught))`,
		"(defn f [& xs] (apply f (concat xs xs))) (f 1)",
		"(for [a (range 0 10000) b (range 0 10000)] [a b])",
		`(join "," (repeat 100000000 "abc"))`,
		"(defn f [n] (+ 1 (vector " + strings.Repeat("n ", 1000) + " (f n)))) (f 1)",
		"(defn f [n] (let [" + strings.Repeat("x n ", 1000) + "] (+ x (f n)))) (f 1)",
	} {
		_, err := within(t, rtfs.Limits{Alloc: 8 << 20, Steps: 1 << 40, Time: time.Minute}, src)
		wantExhausted(t, err, "alloc")
	}
}

func TestUsage(t *testing.T) {
	p, err := rtfs.New(rtfs.Config{}).Compile("", []byte("(dotimes [i 100] [i])"))
	if err != nil {
		t.Fatal(err)
	}
	var used, again rtfs.Usage
	for _, u := range []*rtfs.Usage{&used, &again} {
		if _, err := p.With(rtfs.Env{Used: u}).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if used != again || used.Steps < 100 || used.Steps > 300 || used.Alloc < 1600 {
		t.Errorf("the same run takes %+v and %+v", used, again)
	}
}

func TestConcurrentRuns(t *testing.T) {
	p, err := rtfs.New(rtfs.Config{}).Compile("", []byte("(def n 0) (defn f [x] (def n (+ n x)) n) f"))
	if err != nil {
		t.Fatal(err)
	}
	v, err := p.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f := v.(*rtfs.Func)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range int64(200) {
				if v, err := f.Call(t.Context(), i); err != nil || v != i {
					t.Errorf("(f %d) = %v, %v: what another call defines is seen", i, v, err)
				}
				if v, err := p.Run(t.Context()); err != nil || v.(*rtfs.Func).FuncName() != "f" {
					t.Errorf("Run = %v, %v", v, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestErrorPositionAndStack(t *testing.T) {
	_, err := run(t, "(defn inner [x]\n  (/ 1 x))\n(defn outer [x]\n  (+ 1 (inner x)))\n(+ 1\n   (outer 0))")
	e, ok := errors.AsType[*form.Error](err)
	if !ok || e.Kind != "DivisionByZero" {
		t.Fatalf("fails with %v", err)
	}
	if e.Pos.String() != "t.rtfs:2:3" {
		t.Errorf("it happened at %s, want t.rtfs:2:3", e.Pos)
	}
	var way []string
	for _, f := range e.Stack {
		way = append(way, f.Func+" "+f.Pos.String())
	}
	if got, want := strings.Join(way, ", "), "inner t.rtfs:4:8, outer t.rtfs:6:4"; got != want {
		t.Errorf("the calls are %s, want %s", got, want)
	}
}

func TestErrorStackIsBounded(t *testing.T) {
	_, err := within(t, rtfs.Limits{}, "(defn f [n] (+ 1 (f n))) (f 1)")
	e, _ := errors.AsType[*form.Error](err)
	if n := len(e.Stack); n == 0 || n > 64 {
		t.Errorf("%d calls", n)
	}
}

func TestCompileError(t *testing.T) {
	_, err := run(t, "(let [x 1]\n  (if))")
	e, ok := errors.AsType[*form.Error](err)
	if !ok || e.Kind != "ParseError" || e.Pos.Line != 2 || !strings.Contains(e.Message, "2 |   (if))") {
		t.Errorf("fails with %v, want a ParseError that shows line 2", err)
	}
}

// A hostOf is a Host that calls a function.
type hostOf func(id string, input form.Value) (form.Value, error)

func (h hostOf) Call(_ context.Context, id string, input form.Value) (form.Value, error) {
	return h(id, input)
}

func TestCapabilityInput(t *testing.T) {
	var got []string
	host := hostOf(func(id string, input form.Value) (form.Value, error) {
		got = append(got, id+" "+form.Text(input))
		return int64(len(got)), nil
	})
	p, err := rtfs.New(rtfs.Config{Host: host}).Compile("", []byte(
		`[(call "a.b" {:x 1}) (call :c.d 1 2) (call "e") (println "hi") (println "a" 1) (println ["a" 1]) (println) (map call ["f"])]`))
	if err != nil {
		t.Fatal(err)
	}
	v, err := p.Run(t.Context())
	if err != nil || form.Text(v) != "[1 2 3 4 5 6 7 [8]]" {
		t.Errorf("= %s, %v", form.Text(v), err)
	}
	want := `a.b {:x 1}; c.d [1 2]; e {}; ccos.io.println ["hi"]; ccos.io.println ["a" 1]; ccos.io.println [["a" 1]]; ccos.io.println []; f {}`
	if calls := strings.Join(got, "; "); calls != want {
		t.Errorf("the host is asked %s, want %s", calls, want)
	}
}

func TestHostErrorsCanBeCaught(t *testing.T) {
	host := hostOf(func(id string, _ form.Value) (form.Value, error) {
		switch id {
		case "none":
			return nil, fault.Newf(fault.NotFound, "kernel.Call", id, "no such capability")
		case "denied":
			return nil, fault.Newf(fault.Denied, "kernel.Call", id, "not for you")
		case "own":
			return nil, form.Errorf("NetworkError", "no route")
		}
		return nil, errors.New("broken")
	})
	p, err := rtfs.New(rtfs.Config{Host: host}).Compile("", []byte(
		`(map (fn [id] (try (call id) (catch e (:kind e)))) ["none" "denied" "own" "other"])`))
	if err != nil {
		t.Fatal(err)
	}
	v, err := p.Run(t.Context())
	if want := `["UnknownCapability" "SecurityViolation" "NetworkError" "ApplicationError"]`; err != nil || form.Text(v) != want {
		t.Errorf("= %s, %v, want %s", form.Text(v), err, want)
	}
	if _, err := p.With(rtfs.Env{Host: nil}).Run(t.Context()); err != nil {
		t.Error(err)
	}
	pure, err := rtfs.New(rtfs.Config{}).Compile("", []byte(`(call "x")`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pure.Run(t.Context()); kindOf(err) != "SecurityViolation" {
		t.Errorf("a pure program that calls fails with %v", err)
	}
}

// A reporter records steps.
type reporter struct {
	quiet
	steps *[]string
}

func (r reporter) Step(_ context.Context, s rtfs.Step) {
	line := s.Name + " " + string(s.Phase)
	if s.Phase == rtfs.Completed {
		line += " " + form.Text(s.Value)
	}
	*r.steps = append(*r.steps, line)
}

func TestReporter(t *testing.T) {
	var steps []string
	p, err := rtfs.New(rtfs.Config{Host: reporter{steps: &steps}}).Compile("", []byte(
		`(step "a" (step "b" 1)) (try (step "c" (/ 1 0)) (catch e 2))`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(steps, ", "), "a start, b start, b complete 1, a complete 1, c start, c fail"; got != want {
		t.Errorf("steps %s, want %s", got, want)
	}
}

func TestContext(t *testing.T) {
	p, err := rtfs.New(rtfs.Config{}).Compile("", []byte(`(def before (get :user)) (context/set :user "b") [before (get :user) @user (context/get :none 5)]`))
	if err != nil {
		t.Fatal(err)
	}
	around := form.NewMap(form.Keyword("user"), "a")
	for range 2 {
		v, err := p.With(rtfs.Env{Context: around}).Run(t.Context())
		if want := `["a" "b" "b" 5]`; err != nil || form.Text(v) != want {
			t.Errorf("= %s, %v, want %s", form.Text(v), err, want)
		}
	}
}

func TestSessionKeepsDefinitions(t *testing.T) {
	s := rtfs.New(rtfs.Config{}).Session()
	for _, line := range []struct{ src, want string }{
		{"(def x 1)", "1"},
		{"(defn f [] (+ x 1))", ""},
		{"(f)", "2"},
		{"(def x 10)", "10"},
		{"(f)", "11"},
		{"(defmacro twice [e] `(do ~e ~e))", "twice"},
		{"(twice (f))", "11"},
		{"(let [x", "!"},
		{"(undefined)", "!"},
		{"x", "10"},
		{"(def inc (fn [x] :mine))", ""},
		{"(inc 1)", ":mine"},
		{"(module m (def y 5))", ""},
		{"(import m :as n)", "nil"},
		{"n/y", "5"},
	} {
		v, err := s.Eval(t.Context(), "repl", []byte(line.src))
		if (err != nil) != (line.want == "!") || line.want != "" && err == nil && form.Text(v) != line.want {
			t.Errorf("%s = %s, %v, want %s", line.src, form.Text(v), err, line.want)
		}
	}
	if got := strings.Join(s.Names(), " "); !strings.Contains(got, "f") || !strings.Contains(got, "x") {
		t.Errorf("names %s", got)
	}
}

// bomb is a small value with exponentially many parts: it contains the same part twice at each
// level.
const bomb = "(def bomb (loop [x [1] i 0] (if (< i 200) (recur [x x] (inc i)) x))) "

func TestSharedValuesAreBounded(t *testing.T) {
	for src, want := range map[string]string{
		"bomb":                                          "steps",
		"{:a bomb}":                                     "steps",
		`(call "x" bomb)`:                               "steps",
		"((fn [x : [:vector :any]] 1) bomb)":            "steps",
		"((fn [] : [:vector :any] bomb))":               "steps",
		"(defstruct P :x :any) (P {:x bomb}) 1":         "steps",
		"(match bomb x : [:vector :any] 1)":             "steps",
		"`{~bomb 1}":                                    "steps",
		"({1 2} bomb)":                                  "steps",
		"(= bomb bomb)":                                 "steps",
		"(match bomb [[1] 2] 1 _ 2)":                    "",
		"(case bomb [1] 1 [[1] [1]] 2 3)":               "",
		"(try (throw bomb) (catch :k e 1) (catch e 2))": "",
		"(let [[[a]] bomb] 1)":                          "",
		"(:k {:k bomb}) 1":                              "",
		"(context/get bomb)":                            "",
		"(do (step-parallel (context/set :a bomb) (context/set :a bomb)) 1)": "",
		"(try (bomb) (catch e 1))": "",
	} {
		p, err := rtfs.New(rtfs.Config{Host: quiet{}, Check: types, Limits: rtfs.Limits{Steps: 100_000, Time: time.Minute}}).Compile("", []byte(bomb+src))
		if err != nil {
			t.Fatalf("%s: %v", src, err)
		}
		_, err = p.Run(t.Context())
		if want != "" {
			wantExhausted(t, err, want)
		} else if err != nil {
			t.Errorf("%s fails with %v", src, err)
		}
	}
	v, err := within(t, rtfs.Limits{Steps: 100_000}, bomb+"(throw {:type :k :data bomb})")
	e, _ := errors.AsType[*form.Error](err)
	if e == nil || e.Kind != "k" || e.Data != nil {
		t.Errorf("the data of the error is %v, %v, want it removed", v, err)
	}
}

func TestDeepResultIsRefused(t *testing.T) {
	_, err := within(t, rtfs.Limits{}, "(loop [x [] i 0] (if (< i 100000) (recur [x] (inc i)) x))")
	if kindOf(err) != "InvalidArgument" {
		t.Errorf("a value nested 100000 deep leaves with %v", err)
	}
}

// Programs that call each other through the host share one stack limit.
func TestMutualHostCallsAreBounded(t *testing.T) {
	var f *rtfs.Func
	p, err := rtfs.New(rtfs.Config{}).Compile("", []byte(`(fn [x] [(call "self" x)])`))
	if err != nil {
		t.Fatal(err)
	}
	v, err := p.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f = v.(*rtfs.Func)
	calls := 0
	var host again = func(ctx context.Context, input form.Value) (form.Value, error) {
		calls++
		return f.Call(ctx, input)
	}
	f = f.With(rtfs.Env{Host: host})
	_, err = f.Call(t.Context(), int64(1))
	wantExhausted(t, err, "depth")
	if calls < 100 {
		t.Errorf("ended after %d calls", calls)
	}
}

type again func(ctx context.Context, input form.Value) (form.Value, error)

func (a again) Call(ctx context.Context, _ string, input form.Value) (form.Value, error) {
	return a(ctx, input)
}
