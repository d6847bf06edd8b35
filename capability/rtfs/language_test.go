package rtfs_test

import (
	"strings"
	"testing"

	"glasshouse/capability/rtfs"
	"glasshouse/capability/rtfs/form"
)

// A scenario is a program and its value. ! precedes the kind of an expected error, and * is any
// error.
type scenario struct{ src, want string }

func check(t *testing.T, scenarios []scenario) {
	t.Helper()
	for _, s := range scenarios {
		v, err := run(t, s.src)
		if kind, fails := strings.CutPrefix(s.want, "!"); fails {
			if kindOf(err) == "" || kind != "*" && kindOf(err) != kind {
				t.Errorf("%s\n= %s, %v, want %s", s.src, form.Text(v), err, s.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s\nfails with %v, want %s", s.src, err, s.want)
		} else if want := read(t, s.want); !form.Equal(v, want) {
			t.Errorf("%s\n= %s, want %s", s.src, form.Text(v), s.want)
		}
	}
}

func TestCalls(t *testing.T) {
	check(t, []scenario{
		{"(+ 1 2)", "3"},
		{"((fn [x] x) 1)", "1"},
		{"((fn [] 1))", "1"},
		{"((fn [a b c d] [a b c d]) 1 2 3 4)", "[1 2 3 4]"},
		{"((fn [a b c d e f g h i j] [j i h g f e d c b a]) 1 2 3 4 5 6 7 8 9 10)", "[10 9 8 7 6 5 4 3 2 1]"},
		{"(let [f (fn [a b c d e f g h i j k l] l)] ((fn [] (f 1 2 3 4 5 6 7 8 9 10 11 12))))", "12"},
		{"(((fn [x] (fn [y] [x y])) 1) 2)", "[1 2]"},
		{"((if true + -) 1 2)", "3"},
		{"(:k {:k 1})", "1"},
		{"(:k {:j 1})", "nil"},
		{"(:k {:j 1} 2)", "2"},
		{"(:k nil)", "nil"},
		{"(:k nil 5)", "5"},
		{"(:k [1])", "!TypeError"},
		{"(:k)", "!ArityMismatch"},
		{"({:a 1} :a)", "1"},
		{"({:a 1} :b 2)", "2"},
		{"([1 2] 1)", "2"},
		{"([1 2] 5)", "!IndexOutOfBounds"},
		{"([1 2] 5 0)", "0"},
		{"([1 2] :a)", "!TypeError"},
		{"(map :a [{:a 1} {:a 2}])", "[1 2]"},
		{"(map {:a 1} [:a :b])", "[1 nil]"},
		{"(map [4 5] [1 0])", "[5 4]"},
		{"(let [k :a] (k {:a 1}))", "1"},
		{"(let [m {:a 1}] (m :a))", "1"},
		{"(1 2)", "!TypeError"},
		{`("a" 1)`, "!TypeError"},
		{"(nil)", "!TypeError"},
		{"(let [x 5] (x))", "!TypeError"},
		{"()", "()"},
		{"(#(+ % 1) 2)", "3"},
		{"(#(- %2 %1) 1 5)", "4"},
		{"(#(count %&) 1 5)", "2"},
		{"(#(vector) )", "[]"},
		{"(map #(* % %) [1 2 3])", "[1 4 9]"},
		{`(.string-length "abc")`, "3"},
		{"((fn [x] x))", "!ArityMismatch"},
		{"((fn [x] x) 1 2)", "!ArityMismatch"},
		{"(inc 1 2)", "!ArityMismatch"},
		{"(try (inc 1 2) (catch ArityMismatch e 1))", "1"},
		{"(let [fact (fn f [n] (if (< n 2) 1 (* n (f (dec n)))))] (fact 5))", "120"},
		{"((λ [x] (* 2 x)) 4)", "8"},
		{"(apply + [1 2 3])", "6"},
		{"(apply (fn [& xs] (count xs)) (range 0 100))", "100"},
		{"(reduce (fn [a b] (+ a b)) 0 [1 2 3])", "6"},
		{"(reduce and [true false])", "false"},
	})
}

func TestBindings(t *testing.T) {
	check(t, []scenario{
		{"(let [x 1 x (+ x 1)] x)", "2"},
		{"(let [x 1] (let [x (+ x 1)] x))", "2"},
		{"(let [x 1] [(let [x 2] x) x])", "[2 1]"},
		{"(let [] 1)", "1"},
		{"(let [x 1])", "!ParseError"},
		{"(let [x] x)", "!ParseError"},
		{"(let x 1)", "!ParseError"},
		{"(let [5 1] 1)", "!ParseError"},
		{"(let [f (fn [n] (if (= n 0) 0 (f (- n 1))))] (f 10))", "0"},
		{"(def f (fn [n] (if (= n 0) :done (f (- n 1))))) (f 10)", ":done"},
		{"(let [x : int 5] x)", "5"},
		{"(let [x:int 5] x)", "5"},
		{`(let [x : int "a"] x)`, "!TypeValidationError"},
		{"(let [x :a y :b] [x y])", "[:a :b]"},
		{"(def x 5)", "5"},
		{"(def x 5) (def x 6) x", "6"},
		{"(def x : int 5) x", "5"},
		{`(def x : int "a")`, "!TypeValidationError"},
		{"(defn f [] 1) (f)", "1"},
		{`(defn f "what it does" [] 1) (f)`, "1"},
		{"(defn ^:private f [x] x) (f 2)", "2"},
		{`(defn ^:delegation :local-model "m" f [x] x) (f 2)`, "2"},
		{"(defn f [x] (g x)) (defn g [x] (inc x)) (f 1)", "2"},
		{"(defn f [] later) (f)", "!UndefinedSymbol"},
		{"(defn + [a b] (* a b)) (+ 3 4)", "12"},
		{"(defn f [a] (+ a 1)) (defn + [a b] :mine) (f 1)", ":mine"},
		{"(let [+ -] (+ 5 3))", "2"},
		{"(let [x 1] (def x 2) x)", "1"},
		{"(let [x 1] (defn f [] x) (let [x 2] (f)))", "1"},
		{"(letfn [(e? [n] (if (= n 0) true (o? (- n 1)))) (o? [n] (if (= n 0) false (e? (- n 1))))] (e? 10))", "true"},
		{"(letfn [(f [x] (map (fn [y] (g y)) x)) (g [y] (* y 2))] (f [1 2]))", "[2 4]"},
		{"(let [fs (map (fn [i] (fn [] i)) [1 2 3])] (map (fn [f] (f)) fs))", "[1 2 3]"},
		{"(let [a 1 b (fn [] a) c (fn [] (b))] (let [a 5] (c)))", "1"},
		{"(def a 1) (defn f [] a) (def a 2) (f)", "2"},
		{"(let [e? (fn [n] (if (= n 0) true (o? (- n 1)))) o? (fn [n] (if (= n 0) false (e? (- n 1))))] [(e? 10) (o? 10)])", "[true false]"},
		{"(let [a (fn [] (b)) x 5 b (fn [] (c x)) c (fn [y] (* y 2))] (a))", "10"},
		{"(let [a (fn [] (b)) x (try (a) (catch e :not-yet)) b (fn [] 1)] [x (a)])", "[:not-yet 1]"},
		{"(let [b 1 a (fn [] b) b (fn [] 2)] (a))", "1"},
		{"(let [a (fn [] (map (fn [x] (b x)) [1 2])) b #(* % 3)] (a))", "[3 6]"},
		{"(let [x y y (fn [] 1)] x)", "!UndefinedSymbol"},
		{"(let [f (fn [] (g)) f 5 g (fn [] 1)] f)", "5"},
		{"(fn)", "!ParseError"},
		{"(fn [x])", "!ParseError"},
		{"(defn f [x & [a]] x)", "!ParseError"},
		{"(defn f [x & ys zs] x)", "!ParseError"},
		{"(def)", "!ParseError"},
		{"(def 5 5)", "!ParseError"},
	})
}

func TestDestructuring(t *testing.T) {
	check(t, []scenario{
		{"(let [[a b] [1 2]] [a b])", "[1 2]"},
		{"(let [[a b] [1]] [a b])", "[1 nil]"},
		{"(let [[a] [1 2 3]] a)", "1"},
		{"(let [[a & r] [1 2 3]] r)", "[2 3]"},
		{"(let [[a & r] []] [a r])", "[nil []]"},
		{"(let [[a b & r :as all] [1 2 3]] [a b r all])", "[1 2 [3] [1 2 3]]"},
		{"(let [[a b] nil] [a b])", "[nil nil]"},
		{"(let [[a] 5] a)", "!TypeError"},
		{"(let [[_ a _] [1 2 3]] a)", "2"},
		{"(let [{:keys [a b]} {:a 1}] [a b])", "[1 nil]"},
		{"(let [{:keys [a b] :or {b 5}} {:a 1}] [a b])", "[1 5]"},
		{"(let [{:keys [a] :or {a 5}} {:a nil}] a)", "nil"},
		{"(let [{:keys [a] :as m} {:a 1 :b 2}] m)", "{:a 1 :b 2}"},
		{`(let [{:strs [a]} {"a" 1}] a)`, "1"},
		{"(let [{:keys [x/a]} {:x/a 1}] a)", "1"},
		{"(let [{name :name} {:name 1}] name)", "1"},
		{"(let [{:name n} {:name 1}] n)", "1"},
		{"(let [{:p {:q [a b]}} {:p {:q [1 2]}}] [a b])", "[1 2]"},
		{"(let [{[a b] :p} {:p [1 2]}] [a b])", "[1 2]"},
		{"(let [{:a a & others} {:a 1 :b 2}] others)", "{:b 2}"},
		{"(let [{:keys [a]} nil] a)", "nil"},
		{"(let [{:keys [a]} 5] a)", "!TypeError"},
		{"(let [{n :n :or {n 7}} {}] n)", "7"},
		{"((fn [{:keys [a]} [b c]] [a b c]) {:a 1} [2 3])", "[1 2 3]"},
		{"((fn [a & more] [a more]) 1 2 3)", "[1 (2 3)]"},
		{"((fn [& more] more))", "()"},
		{"((fn [[a & b] & c] [a b c]) [1 2] 3)", "[1 [2] [3]]"},
		{"(let [[a b a] [1 2 3]] a)", "3"},
		{"(for [[k v] {:a 1 :b 2}] [v k])", "[[1 :a] [2 :b]]"},
		{"(let [{:keys [5]} {}] 1)", "!ParseError"},
		{"(let [[a &] [1]] a)", "!ParseError"},
	})
}

func TestConditions(t *testing.T) {
	check(t, []scenario{
		{"(if nil 1 2)", "2"},
		{"(if false 1)", "nil"},
		{`(map (fn [x] (if x 1 2)) [0 "" [] {} nil false true])`, "[1 1 1 1 2 2 1]"},
		{"(if)", "!ParseError"},
		{"(if 1 2 3 4)", "!ParseError"},
		{"(and 1 2)", "2"},
		{"(and)", "true"},
		{"(or)", "false"},
		{"(or nil 3)", "3"},
		{"(or nil false)", "false"},
		{"(or false nil)", "nil"},
		{"(and false (/ 1 0))", "false"},
		{"(or 1 (/ 1 0))", "1"},
		{"(when true 1 2)", "2"},
		{"(when false 1)", "nil"},
		{"(unless false 1)", "1"},
		{"(unless true 1)", "nil"},
		{"(cond false 1 true 2)", "2"},
		{"(cond false 1 :else 2)", "2"},
		{"(cond false 1 else 2)", "2"},
		{"(cond)", "nil"},
		{"(cond false 1)", "nil"},
		{"(cond false)", "!ParseError"},
		{"(case 1 1 :a 2 :b)", ":a"},
		{"(case 3 1 :a (2 3) :b)", ":b"},
		{"(case 4 1 :a 2 :b :c)", ":c"},
		{"(case 4 1 :a)", "!MatchError"},
		{`(case "x" "x" 1 0)`, "1"},
		{"(case :k :k 1 0)", "1"},
		{"(case 'a a 1 0)", "1"},
		{"(case [1 2] [1 2] :yes :no)", ":yes"},
		{"(case 1.0 1 :int :other)", ":other"},
		{"(case nil nil 1 2)", "1"},
		{"(-> 5 inc (- 2))", "4"},
		{"(->> [1 2 3] (map inc) (reduce +))", "9"},
		{"(-> {:a {:b 1}} :a :b)", "1"},
		{"(-> 5 (#(* % 2)))", "10"},
		{"(->> 5 (fn [x] x) )", "5"},
		{"(-> 1)", "1"},
		{"(->)", "!ParseError"},
	})
}

func TestMatching(t *testing.T) {
	check(t, []scenario{
		{"(match 1 1 :one _ :other)", ":one"},
		{"(match 5 1 :one x (+ x 1))", "6"},
		{"(match nil nil 1 _ 2)", "1"},
		{"(match :a :b 1 :a 2)", "2"},
		{`(match "s" "t" 1 "s" 2)`, "2"},
		{"(match 1.0 1 :int 1.0 :float)", ":float"},
		{"(match [1 2] [a] 1 [a b] (+ a b))", "3"},
		{"(match [1 2 3] [a b] 1 [a & r] r)", "[2 3]"},
		{"(match [1] [a b & r] 1 [a & r] r)", "[]"},
		{"(match '(1 2) [a b] b)", "2"},
		{"(match [1 2] [a b :as all] all)", "[1 2]"},
		{"(match {:a 1 :b 2} {:a x} x)", "1"},
		{"(match {:a 1} {:a x :b y} 1 {:a x} 2)", "2"},
		{"(match {:type :circle :r 2} {:type :square} 0 {:type :circle :r r} r)", "2"},
		{"(match {:a 1 :b 2} {:a 1 & r} r)", "{:b 2}"},
		{"(match {:a 1} {:keys [a]} a)", "1"},
		{"(match {:a [1 {:b 2}]} {:a [x {:b y}]} [x y])", "[1 2]"},
		{"(match 5 x when (> x 10) :big x when (> x 3) :middle _ :small)", ":middle"},
		{"(match 5 6 1)", "!MatchError"},
		{"(match 5)", "!MatchError"},
		{"(match 5 6)", "!ParseError"},
		{"(match 5 (:as n 5) n)", "5"},
		{"(match 'a 'b 1 'a 2)", "2"},
		{`(match 5 s : string "s" n : int "n")`, `"n"`},
		{"(match [1 [2 3]] [a [b c]] [a b c])", "[1 2 3]"},
		{"(match 5 [a] 1 {:a a} 2 _ 3)", "3"},
		{"(match nil [] 1 {} 2 _ 3)", "3"},
		{"(match [] [] 1)", "1"},
		{"(match {:a 1} {} :any)", ":any"},
		{"(match true false 0 true 1)", "1"},
		{"(try (match 1 2 3) (catch MatchError e :none))", ":none"},
	})
}

func TestCatch(t *testing.T) {
	check(t, []scenario{
		{"(try (/ 1 0) (catch DivisionByZero e 1))", "1"},
		{"(try (/ 1 0) (catch TypeError e 1) (catch DivisionByZero e 2))", "2"},
		{"(try (/ 1 0) (catch TypeError e 1))", "!DivisionByZero"},
		{"(try (/ 1 0) (catch Exception e 1))", "1"},
		{"(try (/ 1 0) (catch Error e 1))", "1"},
		{"(try (/ 1 0) (catch _ e 1))", "1"},
		{"(try (/ 1 0) (catch e 1))", "1"},
		{"(try (/ 1 0) (catch e (getMessage e) 7))", "7"},
		{"(try (/ 1 0) (catch err e (= err e)))", "true"},
		{"(try (/ 1 0) (catch :DivisionByZero e 1))", "1"},
		{"(try (throw {:type :mine :n 5}) (catch :mine e (:n (:data e))))", "5"},
		{"(try (throw :oops) (catch :oops e 1))", "1"},
		{`(try (throw "boom") (catch Exception e (getMessage e)))`, `"boom"`},
		{`(try (throw (ex-info "boom" {:a 1})) (catch Exception e [(ex-message e) (ex-data e)]))`, `["boom" {:a 1}]`},
		{`(throw "boom")`, "!ApplicationError"},
		{`(try (try (throw "a") (catch e (throw "b"))) (catch e (getMessage e)))`, `"b"`},
		{`(try (try (throw "a") (catch e (throw e))) (catch e (getMessage e)))`, `"a"`},
		{`(try (try (throw "a") (finally 5)) (catch e (getMessage e)))`, `"a"`},
		{"(try 1 (finally 2))", "1"},
		{"(try 1 2 (catch e 3))", "2"},
		{"(try (/ 1 0) (catch e 5) (finally (/ 1 0)))", "!DivisionByZero"},
		{"(try 1)", "!ParseError"},
		{"(try (finally 1) (catch e 1))", "!ParseError"},
		{"(try (/ 1 0) (catch))", "!ParseError"},
		{"(try (map (fn [x] (/ 1 x)) [1 0]) (catch DivisionByZero e :no))", ":no"},
		{"(try missing (catch UndefinedSymbol e :no))", ":no"},
		{"(type-name (try (/ 1 0) (catch e e)))", `"error"`},
		{"(try (/ 1 0) (catch e (:kind e)))", `"DivisionByZero"`},
		{"(try (/ 1 0) (catch e (let [{:keys [kind]} e] kind)))", `"DivisionByZero"`},
		{"(+ 1 (try (+ 2 (/ 1 0)) (catch e 10)))", "11"},
		{"(vector 1 (try (vector 2 3 (/ 1 0)) (catch e 10)) 4)", "[1 10 4]"},
		{"(defn f [] (try (/ 1 0) (finally 1))) (try (f) (catch e 2))", "2"},
		{"(let [x 1] (try (let [x 2] (/ x 0)) (catch e x)))", "1"},
	})
}

func TestLoops(t *testing.T) {
	check(t, []scenario{
		{"(loop [i 0 acc 1] (if (= i 5) acc (recur (inc i) (* acc 2))))", "32"},
		{"(loop [] 1)", "1"},
		{"(loop [[a & more] [1 2 3] sum 0] (if a (recur more (+ sum a)) sum))", "6"},
		{"(loop [i 0 fs []] (if (< i 3) (recur (inc i) (conj fs (fn [] i))) (map (fn [f] (f)) fs)))", "[0 1 2]"},
		{"(loop [a 1 b 2 n 0] (if (= n 3) [a b] (recur b a (inc n))))", "[2 1]"},
		{"(loop [_ 0 i 0] (if (= i 3) i (recur 0 (inc i))))", "3"},
		{"((fn [n acc] (if (= n 0) acc (recur (dec n) (+ acc n)))) 10 0)", "55"},
		{"((fn [n & r] (if (= n 0) r (recur (dec n) (conj (vec r) n)))) 3)", "[3 2 1]"},
		{"(loop [i 0] (cond (< i 5) (recur (inc i)) :else i))", "5"},
		{"(loop [i 0] (let [j (inc i)] (when (< j 5) (recur j))))", "nil"},
		{"(loop [i 0] (+ 1 (recur i)))", "!ParseError"},
		{"(recur 1)", "!ParseError"},
		{"(loop [i 0] (recur 1 2))", "!ParseError"},
		{"(loop [i 0] (try (recur 1) (catch e 1)))", "!ParseError"},
		{"(+ 1 (loop [i 0] (if (< i 3) (recur (inc i)) i)))", "4"},
		{"(loop [i 0] (if (= i 2) :end (do (loop [j 0] (when (< j 2) (recur (inc j)))) (recur (inc i)))))", ":end"},
		{"(dotimes [i 3] (* i 10))", "20"},
		{"(dotimes [i 0] i)", "nil"},
		{"(dotimes [i :x] i)", "!TypeError"},
		{"(for [x [1 2 3]] (* x x))", "[1 4 9]"},
		{"(for [x [1 2] y [:a :b]] [x y])", "[[1 :a] [1 :b] [2 :a] [2 :b]]"},
		{"(for [x (range 0 10) :when (even? x)] x)", "[0 2 4 6 8]"},
		{"(for [x (range 0 10) :while (< x 3)] x)", "[0 1 2]"},
		{"(for [x [1 2] :let [y (* x 10)]] y)", "[10 20]"},
		{"(for [x [1 2 3] y (range 0 x) :when (odd? (+ x y))] [x y])", "[[1 0] [2 1] [3 0] [3 2]]"},
		{"(for [x []] x)", "[]"},
		{"(for [x nil] x)", "!TypeError"},
		{"(for [x 5] x)", "!TypeError"},
		{`(for [c "ab"] c)`, `["a" "b"]`},
		{"(for [] 1)", "!ParseError"},
	})
}

func TestMacros(t *testing.T) {
	check(t, []scenario{
		{"(defmacro twice [x] `(do ~x ~x)) (twice 5)", "5"},
		{"(defmacro my-if [c a b] `(cond ~c ~a :else ~b)) (my-if false 1 2)", "2"},
		{"(defmacro sum [& xs] `(+ ~@xs)) (sum 1 2 3)", "6"},
		{"(defmacro const [] 42) (const)", "42"},
		{"(defmacro rev [f] (apply list (reverse f))) (rev (1 2 -))", "1"},
		{"(defmacro m [x] `[~x {:k ~x} ~@[1 2]]) (m 7)", "[7 {:k 7} 1 2]"},
		{"(defmacro inner [x] `(inc ~x)) (defmacro outer [x] `(inner (inner ~x))) (outer 1)", "3"},
		{"(defmacro infix [[a op b]] `(~op ~a ~b)) (infix (1 + 2))", "3"},
		{"(defmacro def2 [n v] `(def ~n ~v)) (def2 x 5) x", "5"},
		{"(defmacro forever [] '(forever)) (forever)", "!ParseError"},
		{"(defmacro bomb [x] `(do (bomb ~x) (bomb ~x))) (bomb 1)", "!ParseError"},
		{"(defmacro bad [] (/ 1 0)) (bad)", "!ParseError"},
		{"(defmacro bad [] (fn [x] x)) (bad)", "!ParseError"},
		{"(defmacro f [x] x) (f)", "!ParseError"},
		{"(defmacro loops [] (loop [] (recur))) 1", "1"},
		{"(defmacro let [x] x)", "!ParseError"},
		{"(defmacro unless2 [c & body] `(if ~c nil (do ~@body))) (unless2 false 1 2)", "2"},
		{"(defmacro w [s] `(let [x# 1] x#))", "!*"},
		{"`(1 ~(+ 1 1) ~@[3 4])", "(1 2 3 4)"},
		{"`[a ~@(map inc [1 2])]", "[a 2 3]"},
		{"`{:a ~(+ 1 2)}", "{:a 3}"},
		{"`(a `(b ~(c ~(+ 1 2))))", "(a (quasiquote (b (unquote (c 3)))))"},
		{"'(a b c)", "(a b c)"},
		{"'a", "a"},
		{"(symbol? 'a)", "true"},
		{"(quote [1 a])", "[1 a]"},
		{"'{:a (b)}", "{:a (b)}"},
		{"~x", "!ParseError"},
		{"`~@[1]", "!ParseError"},
		{"`(a ~@5)", "!TypeError"},
		{"(= (gensym) (gensym))", "false"},
	})
}

func TestModules(t *testing.T) {
	check(t, []scenario{
		{"(module m (:exports [f]) (defn f [x] (g x)) (defn g [x] (* x 2))) (import m :as mm) (mm/f 4)", "8"},
		{"(module m (:exports [f]) (defn f [] 1)) (m/f)", "1"},
		{"(module m (:exports [f]) (defn f [] 1)) (import m :only [f]) (f)", "1"},
		{"(module m (:exports [f]) (defn f [] 1) (defn g [] 2)) (m/g)", "!UndefinedSymbol"},
		{"(module m (:exports [f]) (defn f [] 1)) (import m :only [g])", "!ParseError"},
		{"(module m (defn map [x] :mine)) [(m/map 1) (map inc [1])]", "[:mine [2]]"},
		{"(module a (def x 1)) (module b (import a :as q) (def y (+ q/x 1))) b/y", "2"},
		{"(import nowhere)", "!ModuleNotFound"},
		{"(module m (:exports [nothing]))", "!ParseError"},
		{"(def x 1) (module m (def x 2)) [x m/x]", "[1 2]"},
		{"(module m (def x 2) (defn f [] x)) (def x 9) (m/f)", "2"},
	})
}

func TestDeclarationsAreMaps(t *testing.T) {
	check(t, []scenario{
		{`(capability "c" :description "d" :version "1.0")`, `{"description" "d" "version" "1.0"}`},
		{`(capability "c" :input-schema [:map [:x int]] :effects [:network])`, `{"input-schema" [:map [:x int]] "effects" [:network]}`},
		{`((get (capability "c" :implementation (fn [x] (* x 2))) "implementation") 4)`, "8"},
		{`(plan "p" :steps (+ 1 2))`, `{"steps" 3}`},
		{`(resource files@v1 (property :path "/a") (property :n 2))`, `{"path" "/a" "n" 2}`},
		{`(resource:ref "plan-1")`, `"@plan-1"`},
		{"@plan-1", `"@plan-1"`},
		{"(let [key 5] @:key)", "5"},
		{`(capability "c" :a)`, "!ParseError"},
		{`(capability :a 1 2)`, "!ParseError"},
		{"resource://a/b", "resource://a/b"},
		{"2024-01-02T03:04:05Z", `"2024-01-02T03:04:05Z"`},
	})
}

func TestStructs(t *testing.T) {
	check(t, []scenario{
		{"(defstruct Point :x int :y int) (Point {:x 1 :y 2})", "{:x 1 :y 2}"},
		{"(defstruct Point :x int :y int) (:x (Point {:x 1 :y 2}))", "1"},
		{`(defstruct Point :x int :y int) (Point {:x 1 :y "a"})`, "!TypeValidationError"},
		{"(defstruct Point :x int :y int) (Point {:x 1})", "!TypeValidationError"},
		{"(defstruct Point :x int) (Point 5)", "!TypeError"},
		{"(defstruct Point :x int?) (Point {})", "{}"},
		{"(defstruct Point :x :int) (map Point [{:x 1}])", "[{:x 1}]"},
		{"(defstruct Point :x)", "!ParseError"},
	})
}

func TestAnnotations(t *testing.T) {
	check(t, []scenario{
		{"((fn [x : int] x) 1)", "1"},
		{`((fn [x : int] x) "a")`, "!TypeValidationError"},
		{`((fn [x :int y] y) 1 "a")`, `"a"`},
		{`((fn [x] : int x) "a")`, "!TypeValidationError"},
		{"((fn [x] :int x) 1)", "1"},
		{"((fn [x] :foo x) 1)", "1"},
		{"((fn [] :int))", ":int"},
		{`((fn [& xs : int] xs) 1 2)`, "(1 2)"},
		{`((fn [& xs : int] xs) 1 "b")`, "!TypeValidationError"},
		{"(defn f [n] : int (if (= n 0) 0 (f (- n 1)))) (f 100000)", "0"},
		{"(defn f [n] : int (g n)) (defn g [n] (if (= n 0) \"x\" (g (- n 1)))) (f 10)", "!TypeValidationError"},
		{"(try ((fn [x : int] x) :a) (catch TypeValidationError e :caught))", ":caught"},
		{"(defn f [{:keys [a]} : [:map [:a :int]]] a) (f {:a 1})", "1"},
		{"(fn [x : [:no-such]] x)", "!ParseError"},
	})
}

func TestSteps(t *testing.T) {
	check(t, []scenario{
		{`(step "a" 1 2)`, "2"},
		{`(step "a" :params {"k" (+ 1 2)} (get %params "k"))`, "3"},
		{`(step "a" :expose-context true :context-keys [:x] 5)`, "5"},
		{`(step 5 1)`, "!TypeError"},
		{"(step-if 0 1 2)", "1"},
		{"(step-if nil 1 2)", "2"},
		{"(do (context/set :n 0) (step-loop (< (get :n) 3) (context/set :n (inc (get :n)))))", "3"},
		{"(step-loop true 1)", "!Generic"},
		{"(step-parallel 1 (+ 1 1))", "[1 2]"},
		{"(do (step-parallel (context/set :a 1) (context/set :a 2)) (get :a))", "1"},
		{"(do (step-parallel :merge-policy :overwrite (context/set :a 1) (context/set :a 2)) (get :a))", "2"},
		{"(do (step-parallel :merge-policy :merge (context/set :a {:x 1}) (context/set :a {:y 2})) (get :a))", "{:x 1 :y 2}"},
		{"(get :nothing)", "nil"},
		{"(let [here 1] (get :here))", "1"},
		{"(get {:a 1} :a)", "1"},
	})
}

func TestForms(t *testing.T) {
	for _, name := range rtfs.Forms() {
		// A form without arguments is not a call of an unknown function.
		if _, err := run(t, "("+name+")"); kindOf(err) == "UndefinedSymbol" {
			t.Errorf("%s is not known", name)
		}
	}
}
