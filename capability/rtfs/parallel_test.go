package rtfs_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"glasshouse/capability/rtfs"
	"glasshouse/capability/rtfs/form"
)

// A meeting is a host whose call "meet" returns when the given number of calls wait. A program
// that runs its branches one after the other would wait until its time limit.
type meeting struct {
	of      int
	mu      sync.Mutex
	waiting int
	all     chan struct{}

	most, now atomic.Int64 // concurrent calls
}

func newMeeting(of int) *meeting { return &meeting{of: of, all: make(chan struct{})} }

func (m *meeting) Call(ctx context.Context, id string, input form.Value) (form.Value, error) {
	now := m.now.Add(1)
	defer m.now.Add(-1)
	for most := m.most.Load(); now > most && !m.most.CompareAndSwap(most, now); most = m.most.Load() {
	}
	switch id {
	case "meet":
		m.mu.Lock()
		m.waiting++
		if m.waiting == m.of {
			close(m.all)
		}
		m.mu.Unlock()
		select {
		case <-m.all:
			return input, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	case "hang":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return input, nil
}

func runOn(t *testing.T, h rtfs.Host, limits rtfs.Limits, src string) (form.Value, rtfs.Usage, error) {
	t.Helper()
	p, err := rtfs.New(rtfs.Config{Host: h, Check: types, Limits: limits}).Compile("t.rtfs", []byte(src))
	if err != nil {
		t.Fatalf("Compile(%s) = %v", src, err)
	}
	var used rtfs.Usage
	v, err := p.With(rtfs.Env{Used: &used}).Run(t.Context())
	return v, used, err
}

func TestStepParallelRunsBranchesConcurrently(t *testing.T) {
	src := `(let [x 1] (step-parallel (call "meet" x) (call "meet" 2) [(call "meet" 3)]))`
	v, _, err := runOn(t, newMeeting(3), rtfs.Limits{Time: time.Minute}, src)
	if want := "[1 2 [3]]"; err != nil || form.Text(v) != want {
		t.Errorf("%s = %s, %v, want %s", src, form.Text(v), err, want)
	}
}

func TestStepParallelBoundsConcurrency(t *testing.T) {
	h := newMeeting(0)
	branches := strings.Repeat(` (do (call "a" 1) (step-parallel (call "b" 1) (call "c" 1) (call "d" 1)))`, 40)
	_, _, err := runOn(t, h, rtfs.Limits{Time: time.Minute}, "(step-parallel"+branches+")")
	if err != nil {
		t.Fatal(err)
	}
	// Eight goroutines and the caller's.
	if most := h.most.Load(); most > 9 {
		t.Errorf("calls at the same time = %d, want at most 9", most)
	}
}

func TestStepParallelReturnsTheFirstErrorInOrder(t *testing.T) {
	for _, c := range []struct{ src, kind string }{
		// The last branch fails before the first one has ended.
		{`(step-parallel (do (call "meet" 1) (/ 1 0)) (do (call "meet" 1) (throw "late")))`, "DivisionByZero"},
		{`(step-parallel 1 (throw (ex-info "odd" {:type :odd})) (/ 1 0))`, "odd"},
		// A branch that was cancelled does not cancel those before the one that failed.
		{`(step-parallel (do (call "meet" 1) (nth [] (count (map inc (range 0 90000))))) (do (call "meet" 1) (throw "b")) (call "hang" 1))`, "IndexOutOfBounds"},
		// The branch after the failed one is cancelled: it would hang for a minute.
		{`(step-parallel (throw "now") (call "hang" 1))`, "ApplicationError"},
		{`(step-parallel 1 (step-parallel (/ 1 0) (call "hang" 1)) (call "hang" 2))`, "DivisionByZero"},
		{`(step-parallel (loop [] (recur)) (call "hang" 1))`, "BudgetExhausted"},
		{`(step-parallel (call "hang" 1) (loop [] (recur)))`, "BudgetExhausted"},
	} {
		begun := time.Now()
		_, _, err := runOn(t, newMeeting(2), rtfs.Limits{Steps: 400_000, Time: time.Minute}, c.src)
		if kindOf(err) != c.kind {
			t.Errorf("%s = %v, want %s", c.src, err, c.kind)
		}
		if took := time.Since(begun); took > 50*time.Second {
			t.Errorf("%s took %v, want no wait for cancelled branches", c.src, took)
		}
	}
}

func TestStepParallelEndsWithItsCaller(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	h := newMeeting(3)
	p, err := rtfs.New(rtfs.Config{Host: h, Limits: rtfs.Limits{Time: time.Minute}}).Compile("", []byte(
		`(step-parallel (call "meet" 1) (do (call "meet" 2) (call "hang" 2)) (do (call "meet" 3) (loop [] (recur))))`))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-h.all
		cancel()
	}()
	if _, err := p.Run(ctx); kindOf(err) != "Cancelled" {
		t.Errorf("Run = %v, want Cancelled", err)
	}
	if now := h.now.Load(); now != 0 {
		t.Errorf("calls after Run = %d, want 0", now)
	}
}

// The branches of a run can use exactly its limits: one step or byte less is not enough, and a
// branch that finds the budget empty waits for the portions of the others.
func TestStepParallelSharesTheLimits(t *testing.T) {
	const busy = `(loop [n 0] (if (< n 2000) (recur (inc n)) n))`
	const large = `(count (repeat 20000 1))`
	const nested = `(step-parallel ` + busy + large + `)`
	for _, src := range []string{
		`(step-parallel ` + strings.Repeat(busy, 6) + strings.Repeat(large, 6) + `)`,
		`(step-parallel ` + nested + busy + nested + large + `(step-parallel ` + strings.Repeat(nested, 3) + `))`,
		`(do ` + nested + busy + nested + `)`,
		`(step-parallel (do (call "double" 1) ` + busy + `) (do ` + large + `(call "double" 2) ` + busy + `(call "double" 3)) ` + nested + `)`,
	} {
		_, all, err := runOn(t, newMeeting(0), rtfs.Limits{}, src)
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			_, used, err := runOn(t, newMeeting(0), rtfs.Limits{Steps: all.Steps, Alloc: all.Alloc}, src)
			if err != nil || used != all {
				t.Fatalf("%s within %+v = %v, used %+v", src, all, err, used)
			}
			for want, limits := range map[string]rtfs.Limits{
				"steps": {Steps: all.Steps - 1, Alloc: all.Alloc},
				"alloc": {Steps: all.Steps, Alloc: all.Alloc - 1},
			} {
				_, _, err := runOn(t, newMeeting(0), limits, src)
				if got, _ := rtfs.Exhausted(err); got != want {
					t.Fatalf("%s within %+v = %v, exhausted %q, want %q", src, limits, err, got, want)
				}
			}
		}
	}
	for _, c := range []struct {
		limits rtfs.Limits
		src    string
		want   string
	}{
		{rtfs.Limits{Steps: 100_000}, `(do (step-parallel ` + busy + busy + `) (loop [] (recur)))`, "steps"},
		{rtfs.Limits{Steps: 100_000}, `(step-parallel (call "hang" 1) (loop [] (recur)))`, "steps"},
		{rtfs.Limits{Steps: 100_000}, `(step-parallel (step-parallel (call "hang" 1) (call "hang" 2)) (step-parallel (loop [] (recur))))`, "steps"},
		{rtfs.Limits{Depth: 50}, `(defn down [n] (if (= n 0) 0 (inc (down (dec n))))) (step-parallel (down 40) (down 60))`, "depth"},
		{rtfs.Limits{Time: 50 * time.Millisecond, Steps: 1 << 40}, `(step-parallel (loop [] (recur)) (loop [] (recur)))`, "time"},
	} {
		_, _, err := runOn(t, newMeeting(0), c.limits, c.src)
		if got, _ := rtfs.Exhausted(err); got != c.want || c.want == "" && err != nil {
			t.Errorf("%s with %+v = %v, exhausted %q, want %q", c.src, c.limits, err, got, c.want)
		}
	}
}

func TestStepParallelMergesInOrder(t *testing.T) {
	check(t, []scenario{
		{`(def x 1) (step-parallel (def x 2) [x (def y 5)] (def x 3)) [x y]`, "[3 5]"},
		{`(def x 1) (try (step-parallel (def x 2) (throw "no")) (catch _ e x))`, "1"},
		{`(defn f [] 1) (step-parallel (defn f [] 2) (f)) (f)`, "2"},
		{`(step-parallel (step-parallel (def a 1) (def b 2)) (def c 3)) [a b c]`, "[1 2 3]"},
		{`(let [names (step-parallel (gensym) [(gensym) (gensym)] (gensym))] (count (distinct (flatten (conj names (gensym))))))`, "5"},
		{`(context/set :k 1) (step-parallel (do (context/set :k 2) (get :k)) (get :k))`, "[2 1]"},
		{`(step-parallel)`, "[]"},
		{`(let [f (fn [n] (* n 2))] (step-parallel (f 1) (map f [2 3])))`, "[2 [4 6]]"},
		{`(loop [n 0] (step-parallel (recur 1)))`, "!ParseError"},
		{`(defn f [n] (step-parallel (recur n))) (f 1)`, "!ParseError"},
		{`(map (fn [n] (step-parallel n (inc n))) [1 2])`, "[[1 2] [2 3]]"},
	})
}

// A stepLog logs steps. It has no lock: Step must not be called concurrently.
type stepLog struct {
	*meeting
	lines []string
}

func (l *stepLog) Step(_ context.Context, s rtfs.Step) {
	l.lines = append(l.lines, fmt.Sprint(s.Name, " ", s.Phase, " ", s.Branch))
}

func TestStepParallelReportsStepsInOrder(t *testing.T) {
	l := &stepLog{meeting: newMeeting(2)}
	_, _, err := runOn(t, l, rtfs.Limits{Time: time.Minute}, `
		(step "all"
		  (step-parallel
		    (do (step "a1" (call "meet" 1)) (step "a2" 1))
		    (do (step "b1" (call "meet" 1)) (step "b2" 1))))`)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(l.lines); n != 10 || l.lines[0] != "all start " || l.lines[n-1] != "all complete " {
		t.Fatalf("steps = %q, want 10, all of them within those of \"all\"", l.lines)
	}
	for branch, name := range map[string]string{"1-0": "a", "1-1": "b"} {
		var got []string
		for _, line := range l.lines {
			if rest, ok := strings.CutSuffix(line, " "+branch); ok {
				got = append(got, rest)
			}
		}
		want := fmt.Sprintf("%[1]s1 start, %[1]s1 complete, %[1]s2 start, %[1]s2 complete", name)
		if strings.Join(got, ", ") != want {
			t.Errorf("steps of branch %s = %q, want %s", branch, got, want)
		}
	}
}

type crashing struct{}

func (crashing) Call(context.Context, string, form.Value) (form.Value, error) { panic("crash") }

func TestStepParallelPanicsInItsCaller(t *testing.T) {
	defer func() {
		if got := recover(); got != "crash" {
			t.Errorf("recover() = %v, want crash", got)
		}
	}()
	_, _, err := runOn(t, crashing{}, rtfs.Limits{}, `(step-parallel (call "x") 1)`)
	t.Errorf("Run = %v, want a panic", err)
}

func TestStepParallelOfSessionsKeepsDefinitions(t *testing.T) {
	s := rtfs.New(rtfs.Config{}).Session()
	for _, src := range []string{"(step-parallel (defn f [] g) (def g 4))", "(f)"} {
		v, err := s.Eval(t.Context(), "", []byte(src))
		if err != nil {
			t.Fatalf("%s = %v", src, err)
		}
		if src == "(f)" && form.Text(v) != "4" {
			t.Errorf("(f) = %s, want 4", form.Text(v))
		}
	}
	if _, err := s.Eval(t.Context(), "", []byte(`(step-parallel (throw "x"))`)); errors.Is(err, context.Canceled) {
		t.Errorf("Eval = %v, want the error of the branch", err)
	}
}
