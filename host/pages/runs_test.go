package pages

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// The model is a slice of pages, each missing with an offset, or present. It performs the same
// operations in a simple way.
func TestRunsMatchModel(t *testing.T) {
	const n = 64
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var rs runs
		var simple [n]int64
		for i := range simple {
			simple[i] = -1
		}
		for i := uint64(0); i < n; {
			size := 1 + rng.Uint64N(9)
			if end := min(n, i+size); rng.IntN(3) > 0 {
				rs = append(rs, Run{Start: i, End: end, Off: int64(i) * 3})
				for k := i; k < end; k++ {
					simple[k] = int64(i)*3 + int64(k-i)
				}
			}
			i += size
		}
		for range 60 {
			start := rng.Uint64N(n)
			end := min(n, start+rng.Uint64N(12))
			if rng.IntN(2) == 0 {
				rs.cut(start, end)
				for k := start; k < end; k++ {
					simple[k] = -1
				}
			} else if to := rng.Uint64N(n); to >= end && to+end-start <= n || to+end-start <= start {
				rs.move(start, to, end-start)
				for k := range end - start {
					simple[to+k], simple[start+k] = simple[start+k], -1
				}
			}
			last, missing := uint64(0), int64(0)
			for _, r := range rs {
				if r.Start < last || r.End <= r.Start {
					t.Fatalf("runs are not sorted: %v", rs)
				}
				last = r.End
			}
			for k := range uint64(n) {
				r, ok := rs.find(k)
				if got := r.Off + int64(k-r.Start); ok != (simple[k] >= 0) || ok && got != simple[k] {
					t.Fatalf("page %d is at %d, %v, want %d, of %v", k, got, ok, simple[k], rs)
				}
				if ok {
					missing++
				}
			}
			if rs.bytes() != missing {
				t.Fatalf("%d bytes are missing, bytes() = %d", missing, rs.bytes())
			}
			if at := rs.present(0, 1); at < n && simple[at] >= 0 {
				t.Fatalf("page %d is missing, but present() returned it", at)
			}
		}
	}
}

func FuzzDecodeAcceptsOnlyCanonicalMaps(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(Map{}.Encode())
	f.Add(Map{{PID: 1, File: "pages-1.img", Runs: []Run{{Start: 4096, End: 8192}, {Start: 8192, End: 16384, Off: 4096}}, Eager: []uint64{5000}}}.Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Decode(b, 4096)
		if err != nil {
			return
		}
		if !bytes.Equal(m.Encode(), b) {
			t.Errorf("%v was read from %x", m, b)
		}
	})
}
