package form

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// pairs is a simple reference implementation of a map.
type pairs struct{ keys, values []Value }

func (p *pairs) with(k, v Value) {
	if i := slices.IndexFunc(p.keys, func(o Value) bool { return Equal(o, k) }); i >= 0 {
		p.values[i] = v
		return
	}
	p.keys, p.values = append(p.keys, k), append(p.values, v)
}

func (p *pairs) without(k Value) {
	if i := slices.IndexFunc(p.keys, func(o Value) bool { return Equal(o, k) }); i >= 0 {
		p.keys, p.values = slices.Delete(p.keys, i, i+1), slices.Delete(p.values, i, i+1)
	}
}

func (p *pairs) check(t *testing.T, m *Map) {
	t.Helper()
	if m.Len() != len(p.keys) {
		t.Fatalf("it has %d entries, want %d", m.Len(), len(p.keys))
	}
	i := 0
	for k, v := range m.All() {
		if !Equal(k, p.keys[i]) || !Equal(v, p.values[i]) {
			t.Fatalf("entry %d is %v %v, want %v %v", i, k, v, p.keys[i], p.values[i])
		}
		if got, ok := m.Get(k); !ok || !Equal(got, v) {
			t.Fatalf("Get(%v) = %v, %v; want %v", k, got, ok, v)
		}
		i++
	}
}

func TestMapOrder(t *testing.T) {
	key := func(r *rand.Rand) Value {
		n := int64(r.IntN(60))
		switch r.IntN(5) {
		case 0:
			return Keyword(string(rune('a' + n)))
		case 1:
			return float64(n)
		case 2:
			return Vector{n, NewMap(n, "x")}
		case 3:
			return List{n} // equal to a vector
		}
		return n
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		m, want := &Map{}, &pairs{}
		for i := range 300 {
			k := key(r)
			before, was := m, slices.Clone(want.keys)
			if r.IntN(3) == 0 {
				m = m.Without(k)
				want.without(k)
			} else {
				m = m.With(k, int64(i))
				want.with(k, int64(i))
			}
			want.check(t, m)
			if before.Len() != len(was) {
				t.Fatal("With modified its receiver")
			}
		}
	}
}

func TestHashCollisions(t *testing.T) {
	// Values that differ only below deepestHash have equal hashes.
	deep := func(v Value) Value {
		for range deepestHash + 5 {
			v = Vector{v}
		}
		return v
	}
	m, want := &Map{}, &pairs{}
	for i := range 20 {
		m = m.With(deep(int64(i)), int64(i))
		want.with(deep(int64(i)), int64(i))
	}
	m = m.With(deep(int64(3)), "again")
	want.with(deep(int64(3)), "again")
	want.check(t, m)
	for i := range 20 {
		m = m.Without(deep(int64(i)))
		want.without(deep(int64(i)))
		want.check(t, m)
	}
}

func TestEqualValuesHaveEqualHashes(t *testing.T) {
	same := [][2]Value{
		{Vector{int64(1), "a"}, List{int64(1), "a"}},
		{NewMap("a", int64(1), "b", int64(2)), NewMap("b", int64(2), "a", int64(1))},
		{0.0, math.Copysign(0, -1)},
	}
	for _, p := range same {
		if !Equal(p[0], p[1]) || Hash(p[0]) != Hash(p[1]) {
			t.Errorf("%v and %v: equal %v, hashes %x and %x", p[0], p[1], Equal(p[0], p[1]), Hash(p[0]), Hash(p[1]))
		}
	}
	if Hash(int64(1)) == Hash(1.0) {
		t.Error("1 and 1.0 are not equal, and have one hash")
	}
}

func BenchmarkMapWith(b *testing.B) {
	for b.Loop() {
		m := &Map{}
		for i := range int64(10_000) {
			m = m.With(i, i)
		}
	}
}
