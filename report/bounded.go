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

// A table keeps what weighs most of however many things there are. It holds at
// most twice keep of them; then the lightest half is dropped, the later before
// the earlier where they weigh the same. Sums over all of them are kept beside it
// by whoever needs them, so that they stay exact.
type table[K comparable, V any] struct {
	keep    int
	weight  func(*V) int64
	own     func(K) K   // a copy of a key that shares no memory with an event
	dropped func(K, *V) // is told what is let go; may be nil

	m    map[K]*row[K, V]
	n    uint64 // rows ever made
	lost bool   // something was dropped
	ever sketch
}

type row[K comparable, V any] struct {
	key  K
	v    V
	n    uint64 // in which order rows were made
	late bool   // made when others had been dropped: an earlier row of this key may have been among them
}

// find returns the row of k, or nil.
func (t *table[K, V]) find(k K) *V {
	if r := t.m[k]; r != nil {
		return &r.v
	}
	return nil
}

// get returns the row of k, and whether it was made for this call.
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
	if t.own != nil {
		k = t.own(k)
	}
	t.n++
	r := &row[K, V]{key: k, n: t.n, late: t.lost}
	t.m[k] = r
	t.ever.add(maphash.Comparable(hashSeed, k))
	return &r.v, true
}

// remove takes the row of k out, as if it had never been.
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

// rows returns what is kept, the heaviest first.
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

// clone returns a table that goes its own way from here.
func (t *table[K, V]) clone() *table[K, V] {
	c := *t
	c.m = make(map[K]*row[K, V], len(t.m))
	for k, r := range t.m {
		r := *r
		c.m[k] = &r
	}
	c.ever.rank = slices.Clone(t.ever.rank)
	return &c
}

// distinct says how many keys there were. Once rows have been dropped that is an
// estimate, good to a few hundredths.
func (t *table[K, V]) distinct() Count {
	if !t.lost {
		return Count{N: int64(len(t.m))}
	}
	return Count{N: max(t.ever.estimate(), int64(len(t.m))), About: true}
}

// A Count is how many different things there were.
type Count struct {
	N     int64 `json:"count"`
	About bool  `json:"about,omitempty"` // N is an estimate, good to a few hundredths
}

// String is the number as it is read: "about 1,020,000".
func (c Count) String() string {
	if c.About {
		return "about " + number(c.N)
	}
	return number(c.N)
}

// A sketch estimates how many different values were added to it, in four
// kilobytes: HyperLogLog, by Flajolet and others, 2007.
type sketch struct {
	rank []uint8
}

// hashSeed is random, so that a jail cannot choose names that mislead an estimate. All
// reports of a process have the same one, so that a report of the same events gives the
// same numbers.
var hashSeed = maphash.MakeSeed()

const sketchBits = 12

func (s *sketch) add(h uint64) {
	if s.rank == nil {
		s.rank = make([]uint8, 1<<sketchBits)
	}
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
	n := 0.7213 / (1 + 1.079/m) * m * m / sum
	if n <= 2.5*m && zeros > 0 {
		n = m * math.Log(m/zeros)
	}
	unit := math.Pow(10, max(0, math.Floor(math.Log10(max(n, 1)))-2)) // more digits would be a pretence
	return int64(math.Round(n/unit) * unit)
}

// maxText bounds a string that is kept: no path the kernel takes is longer.
const maxText = 4096

func cut(s string) string { return text.Prefix(s, maxText) }

// keep is a copy of s, cut, that holds nothing else in memory.
func keep(s string) string { return strings.Clone(cut(s)) }

// sum adds two counts of things, and stays at the largest there is: a log that
// was tampered with may hold any numbers.
func sum(a, b int64) int64 {
	if b <= 0 {
		return a
	}
	if s := a + b; s >= a {
		return s
	}
	return math.MaxInt64
}
