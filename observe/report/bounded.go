package report

import (
	"cmp"
	"hash/maphash"
	"math"
	"math/bits"
	"slices"
	"strings"

	"glasshouse/internal/text"
)

// A table keeps the heaviest of any number of rows. It holds at most twice keep rows; when it
// is full, it drops the lighter half. Of rows with equal weight, the later ones are dropped
// first. Callers that need exact sums over all rows maintain them separately.
type table[K comparable, V any] struct {
	keep    int
	weight  func(*V) int64
	copyKey func(K) K   // a copy of a key that shares no memory with an event
	dropped func(K, *V) // called for each dropped row; may be nil

	m         map[K]*row[K, V]
	n         uint64 // rows ever created
	lost      bool   // a row was dropped
	keySketch sketch
}

type row[K comparable, V any] struct {
	key  K
	v    V
	n    uint64 // creation order
	late bool   // created after rows were dropped, which may have included an earlier row of this key
}

// find returns the row of k, or nil.
func (t *table[K, V]) find(k K) *V {
	if r := t.m[k]; r != nil {
		return &r.v
	}
	return nil
}

// get returns the row of k, and whether this call created it.
func (t *table[K, V]) get(k K) (v *V, fresh bool) {
	if r := t.m[k]; r != nil {
		return &r.v, false
	}
	if t.m == nil {
		t.m = map[K]*row[K, V]{}
	}
	if len(t.m) >= 2*t.keep {
		t.halve()
	}
	// k may be a part of a long string of the event, which the map would keep in memory.
	if t.copyKey != nil {
		k = t.copyKey(k)
	}
	t.n++
	r := &row[K, V]{key: k, n: t.n, late: t.lost}
	t.m[k] = r
	t.keySketch.add(maphash.Comparable(hashSeed, k))
	return &r.v, true
}

// remove deletes the row of k.
func (t *table[K, V]) remove(k K) { delete(t.m, k) }

func (t *table[K, V]) halve() {
	for _, r := range t.rows()[t.keep:] {
		if t.dropped != nil {
			t.dropped(r.key, &r.v)
		}
		delete(t.m, r.key)
	}
	t.lost = true
}

// rows returns the rows, the heaviest first.
func (t *table[K, V]) rows() []*row[K, V] {
	type weighed struct {
		w int64
		r *row[K, V]
	}
	all := make([]weighed, 0, len(t.m))
	for _, r := range t.m {
		all = append(all, weighed{t.weight(&r.v), r})
	}
	slices.SortFunc(all, func(a, b weighed) int {
		return cmp.Or(cmp.Compare(b.w, a.w), cmp.Compare(a.r.n, b.r.n))
	})
	rs := make([]*row[K, V], len(all))
	for i, w := range all {
		rs[i] = w.r
	}
	return rs
}

// clone returns an independent copy.
func (t *table[K, V]) clone() *table[K, V] {
	c := *t
	c.m = make(map[K]*row[K, V], len(t.m))
	for k, r := range t.m {
		r := *r
		c.m[k] = &r
	}
	c.keySketch.rank = slices.Clone(t.keySketch.rank)
	return &c
}

// distinct returns the number of distinct keys. Once rows have been dropped, it is an estimate
// with an error of a few percent.
func (t *table[K, V]) distinct() Count {
	if !t.lost {
		return Count{N: int64(len(t.m))}
	}
	return Count{N: max(t.keySketch.estimate(), int64(len(t.m))), About: true}
}

// A Count is a number of distinct things.
type Count struct {
	N     int64 `json:"count"`
	About bool  `json:"about,omitempty"` // N is an estimate with an error of a few percent
}

// String formats the count: "about 1,020,000".
func (c Count) String() string {
	if c.About {
		return "about " + number(c.N)
	}
	return number(c.N)
}

// A sketch estimates the number of distinct values added to it, in 4 KiB of memory
// (HyperLogLog, Flajolet et al., 2007).
type sketch struct {
	rank []uint8
}

// hashSeed is random, so that a jail cannot choose names that distort an estimate. All reports
// of a process share it, so that reports of the same events have the same numbers.
var hashSeed = maphash.MakeSeed()

const sketchBits = 12

func (s *sketch) add(h uint64) {
	if s.rank == nil {
		s.rank = make([]uint8, 1<<sketchBits)
	}
	// The highest bits select the register. The bit that is added to the others bounds the rank
	// if they are all 0.
	i := h >> (64 - sketchBits)
	s.rank[i] = max(s.rank[i], uint8(bits.LeadingZeros64(h<<sketchBits|1<<(sketchBits-1)))+1)
}

func (s *sketch) estimate() int64 {
	m := float64(len(s.rank))
	sum, zeros := 0.0, 0.0
	for _, r := range s.rank {
		sum += math.Ldexp(1, -int(r))
		if r == 0 {
			zeros++
		}
	}
	// The constants are those for m >= 128. Up to 2.5m, linear counting is more accurate. The
	// paper's correction for large numbers is needed only for hashes of 32 bits.
	n := 0.7213 / (1 + 1.079/m) * m * m / sum
	if n <= 2.5*m && zeros > 0 {
		n = m * math.Log(m/zeros)
	}
	unit := math.Pow(10, max(0, math.Floor(math.Log10(max(n, 1)))-2)) // three significant digits; more would suggest false precision
	return int64(math.Round(n/unit) * unit)
}

// maxText bounds a kept string. It is PATH_MAX, the longest path that Linux accepts.
const maxText = 4096

func cut(s string) string { return text.Prefix(s, maxText) }

// keep returns a truncated copy of s that shares no memory with it.
func keep(s string) string { return strings.Clone(cut(s)) }

// sum adds two counts and saturates at math.MaxInt64, because a tampered log may contain any
// numbers.
func sum(a, b int64) int64 {
	if b <= 0 {
		return a
	}
	if s := a + b; s >= a {
		return s
	}
	return math.MaxInt64
}
