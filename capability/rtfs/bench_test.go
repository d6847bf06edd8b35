package rtfs_test

import (
	"testing"
	"time"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"

	"glasshouse/capability/rtfs"
	"glasshouse/capability/rtfs/form"
)

const fibRTFS = "(defn fib [n] (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2))))) fib"

const fibStarlark = `
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
`

func functionOf(tb testing.TB, src string) *rtfs.Func {
	tb.Helper()
	p, err := rtfs.New(rtfs.Config{}).Compile("bench", []byte(src))
	if err != nil {
		tb.Fatal(err)
	}
	v, err := p.Run(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return v.(*rtfs.Func)
}

func starlarkFib(tb testing.TB) func() {
	tb.Helper()
	thread := &starlark.Thread{}
	globals, err := starlark.ExecFileOptions(&syntax.FileOptions{Recursion: true}, thread, "fib.star", fibStarlark, nil)
	if err != nil {
		tb.Fatal(err)
	}
	args := starlark.Tuple{starlark.MakeInt(25)}
	return func() {
		v, err := starlark.Call(thread, globals["fib"], args, nil)
		if err != nil || v.String() != "75025" {
			tb.Fatalf("%v, %v", v, err)
		}
	}
}

// BenchmarkFib runs the same program in RTFS and in Starlark, and reports the ratio of the
// times.
func BenchmarkFib(b *testing.B) {
	f, other := functionOf(b, fibRTFS), starlarkFib(b)
	var here, there time.Duration
	for b.Loop() {
		start := time.Now()
		v, err := f.Call(b.Context(), int64(25))
		if err != nil || v != int64(75025) {
			b.Fatalf("%v, %v", v, err)
		}
		between := time.Now()
		other()
		here += between.Sub(start)
		there += time.Since(between)
	}
	b.ReportMetric(float64(here)/float64(there), "x-starlark")
	b.ReportMetric(float64(here.Microseconds())/float64(b.N), "us-rtfs")
	b.ReportMetric(float64(there.Microseconds())/float64(b.N), "us-starlark")
}

// BenchmarkCall measures one call of a typical capability function.
func BenchmarkCall(b *testing.B) {
	f := functionOf(b, `(fn [{:keys [query limit] :or {limit 10}}] {:query (str "q=" query) :limit (min limit 50)})`)
	input := form.NewMap(form.Keyword("query"), "coffee")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.Call(b.Context(), input); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkReduce measures a library function that calls back.
func BenchmarkReduce(b *testing.B) {
	f := functionOf(b, "(fn [n] (reduce (fn [a x] (+ a (* x x))) 0 (range 0 n)))")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.Call(b.Context(), int64(1000)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	in := rtfs.New(rtfs.Config{Check: types})
	for b.Loop() {
		for _, p := range programs {
			if _, err := in.Compile("bench", []byte(p)); err != nil {
				b.Fatal(err)
			}
		}
	}
}
