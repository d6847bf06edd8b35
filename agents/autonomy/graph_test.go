package autonomy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"glasshouse/id"
)

// reachable is a simple reference implementation: it adds nodes until nothing changes.
func reachable(edges map[[2]int]bool, from, to, nodes int) bool {
	found := make([]bool, nodes)
	found[from] = true
	for changed := true; changed; {
		changed = false
		for e := range edges {
			if found[e[0]] && !found[e[1]] {
				found[e[1]], changed = true, true
			}
		}
	}
	return found[to]
}

func node(n int) Member { return Member{Jail: id.Jail(fmt.Sprint("j-", n)), Name: fmt.Sprint(n)} }

// TestCycleDetectionIsExact adds and removes random requests and compares with reachable.
func TestCycleDetectionIsExact(t *testing.T) {
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
			want := q.Wait && reachable(edges, to, from, nodes)
			no := g.cycle(&q, Quotas{}, now)
			if (no != nil) != want {
				t.Fatalf("seed %d: edge from %d to %d (wait %v) in %v: refused %v, want %v", seed, from, to, q.Wait, edges, no, want)
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

func TestTokenBuckets(t *testing.T) {
	rate := Rate{Burst: 3, Every: time.Second}
	now := time.Now()
	var h History
	for i := range 3 {
		if wait := h.delay("a", rate, now); wait != 0 {
			t.Fatalf("delay of token %d = %s, want 0", i, wait)
		}
		h.take("a", rate, now)
	}
	if wait := h.delay("a", rate, now); wait != time.Second {
		t.Errorf("delay of the fourth token = %s, want 1 s", wait)
	}
	if wait := h.delay("a", rate, now.Add(-time.Hour)); wait != time.Second {
		t.Errorf("delay with an earlier clock = %s, want 1 s", wait)
	}
	if wait := h.delay("a", rate, now.Add(time.Second)); wait != 0 {
		t.Errorf("delay after a second = %s, want 0", wait)
	}
	h.Hops = map[id.Request]int{"q-ended": 3, "q-open": 2}
	g := Group{History: h, Open: []Request{{ID: "q-below", Root: "q-open"}}}
	g.prune(Quotas{GroupRate: rate, EdgeRate: rate, RepeatWithin: time.Minute}, now.Add(3*time.Second))
	h = g.History
	if len(h.Hops) != 1 || h.Hops["q-open"] != 2 {
		t.Errorf("hops after prune = %v, want only q-open", h.Hops)
	}
	if len(h.Buckets) != 0 {
		t.Errorf("full buckets after prune = %v, want none", h.Buckets)
	}
}

func TestRequestTransitions(t *testing.T) {
	all := []State{"", Queued, Delivered, Answered, Failed, Expired, Refused}
	for _, from := range all {
		for _, to := range all[1:] {
			r := Request{State: from, Wait: true}
			err := r.setState(to, time.Now(), "why")
			legal := slices.Contains(transitions[from], to)
			if (err == nil) != legal {
				t.Errorf("transition from %q to %q = %v, want legal %v", from, to, err, legal)
			}
			if legal && !r.Open() && (r.Wait || r.Ended.IsZero()) {
				t.Errorf("request in final state %q = %+v", to, r)
			}
		}
	}
}
