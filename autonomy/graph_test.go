package autonomy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"glasshouse/id"
)

// reaches looks for a way from one to another as simply as can be: over and
// over, until nothing new is found.
func reaches(edges map[[2]int]bool, from, to, nodes int) bool {
	found := make([]bool, nodes)
	found[from] = true
	for again := true; again; {
		again = false
		for e := range edges {
			if found[e[0]] && !found[e[1]] {
				found[e[1]], again = true, true
			}
		}
	}
	return found[to]
}

func node(n int) Member { return Member{Jail: id.Jail(fmt.Sprint("j-", n)), Name: fmt.Sprint(n)} }

// TestNeverACycleAndNeverLessThanAllElse admits and ends requests at random.
func TestNeverACycleAndNeverLessThanAllElse(t *testing.T) {
	now := time.Now()
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 7))
		nodes := 2 + r.IntN(8)
		g := &Group{}
		edges := map[[2]int]bool{}
		for step := range 60 {
			if len(g.Open) > 0 && r.IntN(3) == 0 {
				i := r.IntN(len(g.Open))
				g.Open = slices.Delete(g.Open, i, i+1)
				clear(edges)
				for _, o := range g.Open {
					if o.Wait {
						var from, to int
						fmt.Sscan(o.From.Name, &from)
						fmt.Sscan(o.To.Name, &to)
						edges[[2]int{from, to}] = true
					}
				}
				continue
			}
			from, to := r.IntN(nodes), r.IntN(nodes)
			if from == to {
				continue
			}
			q := Request{ID: id.Request(fmt.Sprint(step)), From: node(from), To: node(to), Wait: r.IntN(4) > 0, State: Queued, Deadline: now.Add(time.Minute)}
			would := q.Wait && reaches(edges, to, from, nodes)
			no := g.cycle(&q, Quotas{}, now)
			if (no != nil) != would {
				t.Fatalf("seed %d: %d waits for %d, %v with %v: refused %v, a cycle %v", seed, from, to, q.Wait, edges, no, would)
			}
			if no == nil {
				g.Open = append(g.Open, q)
				if q.Wait {
					edges[[2]int{from, to}] = true
				}
			}
		}
	}
}

func TestBucketsGiveWhatTheRateSays(t *testing.T) {
	rate := Rate{Burst: 3, Every: time.Second}
	now := time.Now()
	var h History
	for i := range 3 {
		if wait := h.peek("a", rate, now); wait != 0 {
			t.Fatalf("token %d takes %s", i, wait)
		}
		h.take("a", rate, now)
	}
	if wait := h.peek("a", rate, now); wait != time.Second {
		t.Errorf("the fourth takes %s, want a second", wait)
	}
	if wait := h.peek("a", rate, now.Add(-time.Hour)); wait != time.Second {
		t.Errorf("with a clock that is behind: %s", wait)
	}
	if wait := h.peek("a", rate, now.Add(time.Second)); wait != 0 {
		t.Errorf("after a second: %s", wait)
	}
	h.Hops = map[id.Request]int{"q-ended": 3, "q-open": 2}
	g := Group{History: h, Open: []Request{{ID: "q-below", Root: "q-open"}}}
	g.prune(Quotas{GroupRate: rate, EdgeRate: rate, RepeatWithin: time.Minute}, now.Add(3*time.Second))
	h = g.History
	if len(h.Hops) != 1 || h.Hops["q-open"] != 2 {
		t.Errorf("of the hops these are kept: %v", h.Hops)
	}
	if len(h.Buckets) != 0 {
		t.Errorf("full again, and kept: %v", h.Buckets)
	}
}

func TestEveryStateMovesAsTheTableSays(t *testing.T) {
	all := []State{"", Queued, Delivered, Answered, Failed, Expired, Refused}
	for _, from := range all {
		for _, to := range all[1:] {
			r := Request{State: from, Wait: true}
			err := r.move(to, time.Now(), "why")
			legal := slices.Contains(next[from], to)
			if (err == nil) != legal {
				t.Errorf("%q to %q: %v", from, to, err)
			}
			if legal && !r.Open() && (r.Wait || r.Ended.IsZero()) {
				t.Errorf("%q ended as %+v", to, r)
			}
		}
	}
}
