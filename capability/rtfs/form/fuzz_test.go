package form_test

import (
	"errors"
	"math"
	"testing"

	"glasshouse/capability/rtfs/form"
)

var seeds = []string{
	"(let [x 1 y 2.5] (+ x y)) ; sum", "{:a [1 2] \"b\" {3 nil}}", "`(a ~b ~@c) 'd #(+ % %2)", "^{:a 1} (defn f [x:int & rest] : int x)",
	"#| c |# (.m t) @ctx :ns/k:v1 ns:v1/f", "1e5 0x10 -1 1.5e-3 ##Inf ##-Inf ##NaN", "2024-01-02T03:04:05Z resource://a/b",
	"deadbeef-0000-4000-8000-00000000000a", "\"a\\n\\\"b\"", "(match x [a & b] when (> a 1) b _ nil)",
}

// The text of a parsed value is parsed as the same value.
func FuzzRead(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		nodes, err := form.Read("f", src)
		if err != nil {
			e, ok := errors.AsType[*form.Error](err)
			if !ok || e.Kind != "ParseError" || e.Pos.Line < 1 || e.Pos.Col < 1 {
				t.Fatalf("an error without kind or place: %#v", err)
			}
			return
		}
		for _, n := range nodes {
			if n.Pos.Offset < 0 || n.End > len(src) || n.Pos.Offset >= n.End {
				t.Fatalf("stands from %d to %d", n.Pos.Offset, n.End)
			}
			roundTrip(t, n.Value())
		}
	})
}

// The text of every computable value is parsed as the same value.
func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
	f.Add([]byte("\x08\x03\x07a\x02\x01\xff\xff\xff\xff\xff\xff\xff\x7f"))
	f.Fuzz(func(t *testing.T, data []byte) { roundTrip(t, build(&data, 0)) })
}

func roundTrip(t *testing.T, v form.Value) {
	t.Helper()
	text := form.Text(v)
	nodes, err := form.Read("", []byte(text))
	if err != nil || len(nodes) != 1 {
		t.Fatalf("%s is read as %d nodes, %v", text, len(nodes), err)
	}
	back := nodes[0].Value()
	if form.Text(back) != text {
		t.Fatalf("%s is read as %s", text, form.Text(back))
	}
	if !hasNaN(v) && !form.Equal(back, v) {
		t.Fatalf("%s is not what was written", text)
	}
}

func build(data *[]byte, depth int) form.Value {
	take := func(n int) []byte {
		n = min(n, len(*data))
		b := (*data)[:n]
		*data = (*data)[n:]
		return b
	}
	b := take(1)
	if len(b) == 0 || depth > 20 {
		return nil
	}
	number := func() (n uint64) {
		for _, c := range take(8) {
			n = n<<8 | uint64(c)
		}
		return n
	}
	many := func() (vs []form.Value) {
		for range int(b[0]) / 16 {
			vs = append(vs, build(data, depth+1))
		}
		return vs
	}
	switch b[0] % 10 {
	case 0:
		return b[0] > 99
	case 1:
		return int64(number())
	case 2:
		return math.Float64frombits(number())
	case 3:
		return string([]rune(string(take(int(b[0]))))) // valid UTF-8
	case 4:
		return form.Keyword("k/" + string('a'+rune(b[0]%26)))
	case 5:
		return form.Symbol("s" + string('a'+rune(b[0]%26)))
	case 6:
		return form.Vector(many())
	case 7:
		return form.List(many())
	case 8:
		return form.NewMap(many()...)
	}
	return nil
}

func hasNaN(v form.Value) bool {
	switch v := v.(type) {
	case float64:
		return math.IsNaN(v)
	case form.Vector:
		for _, e := range v {
			if hasNaN(e) {
				return true
			}
		}
	case form.List:
		return hasNaN(form.Vector(v))
	case *form.Map:
		for k, e := range v.All() {
			if hasNaN(k) || hasNaN(e) {
				return true
			}
		}
	}
	return false
}
