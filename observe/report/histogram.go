package report

import "math/bits"

// A histogram counts durations in nanoseconds. Each of its buckets reaches twice
// as far as the one before, the last to all there is.
type histogram struct {
	n, sum, min, max int64
	buckets          [48]int64
}

func (h *histogram) add(ns int64) {
	if h.n == 0 || ns < h.min {
		h.min = ns
	}
	h.max = max(h.max, ns)
	h.n++
	h.sum = sum(h.sum, ns)
	// The last bucket begins at 2^46 ns, about 20 hours.
	h.buckets[min(bits.Len64(uint64(ns)), len(h.buckets)-1)]++
}

// quantile estimates the q-quantile of the durations. It assumes that durations are
// distributed evenly within a bucket.
func (h *histogram) quantile(q float64) int64 {
	rank := q * float64(h.n)
	for i, n := range h.buckets {
		if rank > float64(n) {
			rank -= float64(n)
			continue
		}
		lo, hi := bucket(i)
		lo, hi = max(lo, h.min), min(hi, h.max)
		if i == len(h.buckets)-1 {
			hi = h.max
		}
		return lo + int64(float64(hi-lo)*rank/float64(max(n, 1)))
	}
	return h.max
}

// bucket returns the smallest and the largest duration of bucket i.
func bucket(i int) (lo, hi int64) {
	if i == 0 {
		return 0, 0
	}
	return 1 << (i - 1), 1<<i - 1
}

// Latency summarizes the durations of calls.
type Latency struct {
	Total   int64    `json:"total_ns"`
	Min     int64    `json:"min_ns"`
	P50     int64    `json:"p50_ns"` // estimated from the buckets, as are P90 and P99
	P90     int64    `json:"p90_ns"`
	P99     int64    `json:"p99_ns"`
	Max     int64    `json:"max_ns"`
	Buckets []Bucket `json:"buckets"` // from the first to the last bucket that is not empty
}

// A Bucket counts the calls that took from FromNS up to twice that.
type Bucket struct {
	FromNS int64 `json:"from_ns"`
	Count  int64 `json:"count"`
}

func (h *histogram) latency() Latency {
	l := Latency{Total: h.sum, Min: h.min, P50: h.quantile(.5), P90: h.quantile(.9), P99: h.quantile(.99), Max: h.max, Buckets: []Bucket{}}
	empty := 0
	for i, n := range h.buckets {
		if n == 0 {
			empty++
			continue
		}
		for ; empty > 0 && len(l.Buckets) > 0; empty-- {
			lo, _ := bucket(i - empty)
			l.Buckets = append(l.Buckets, Bucket{lo, 0})
		}
		empty = 0
		lo, _ := bucket(i)
		l.Buckets = append(l.Buckets, Bucket{lo, n})
	}
	return l
}
