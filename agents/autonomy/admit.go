package autonomy

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"glasshouse/id"
)

// Quotas limit the requests between the members of a group. A field that is 0 has the default.
type Quotas struct {
	Depth   int // maximum depth of a chain of requests; default 4
	FanOut  int // open requests per requester; default 8
	Open    int // open requests per group; default 64
	Hops    int // requests per root; default 64
	Working int // members of a group that work on requests; default 8
	Queue   int // requests of a group that wait for Working; default 32
	Repeats int // equal requests between two members within RepeatWithin, in both directions; default 4

	RepeatWithin time.Duration // default 10 minutes

	GroupRate Rate // per group; default 60 per minute, burst 30
	EdgeRate  Rate // per pair of requester and receiver; default 12 per minute, burst 6
}

// A Rate is a token bucket: Burst tokens, and one more per Every.
type Rate struct {
	Burst int
	Every time.Duration
}

func (q Quotas) orDefault() Quotas {
	q.Depth, q.FanOut, q.Open, q.Hops = positiveOr(q.Depth, 4), positiveOr(q.FanOut, 8), positiveOr(q.Open, 64), positiveOr(q.Hops, 64)
	q.Working, q.Queue, q.Repeats = positiveOr(q.Working, 8), positiveOr(q.Queue, 32), positiveOr(q.Repeats, 4)
	q.RepeatWithin = positiveOr(q.RepeatWithin, 10*time.Minute)
	q.GroupRate = cmp.Or(q.GroupRate, Rate{30, time.Second})
	q.EdgeRate = cmp.Or(q.EdgeRate, Rate{6, 5 * time.Second})
	return q
}

// A Group is the state of a group in a transaction of RequestStore.ChangeGroup, which is
// exclusive across all daemons on one database.
type Group struct {
	Name    string
	Open    []Request // oldest first
	History History
}

// History is the state of a group that outlives its open requests.
type History struct {
	Buckets   map[string]Bucket  `json:"buckets,omitempty"` // "": the group; "a>b": requester and receiver
	Exchanges []Exchange         `json:"said,omitempty"`    // oldest first
	Hops      map[id.Request]int `json:"hops,omitempty"`    // number of requests per root, including the root
}

// A Bucket is the state of a token bucket.
type Bucket struct {
	Tokens float64   `json:"tokens"`
	At     time.Time `json:"at"`
}

// A Exchange records that two members exchanged a topic.
type Exchange struct {
	Pair  string    `json:"pair"`
	Topic string    `json:"topic"`
	At    time.Time `json:"at"`
}

// admit checks a new request and counts it unless it is refused. It sets the fields of r that
// depend on other open requests.
func (g *Group) admit(r *Request, q Quotas, now time.Time) *Refusal {
	g.prune(q, now)
	g.setParent(r)
	for _, check := range []func(*Request, Quotas, time.Time) *Refusal{
		g.cycle, g.depth, g.openLimits, g.repeats, g.queueLimit, g.rateLimits, // rateLimits consumes tokens, so it must be last
	} {
		if no := check(r, q, now); no != nil {
			return no
		}
	}
	g.History.Exchanges = append(g.History.Exchanges, Exchange{pair(r.From, r.To), topic(r.Action, r.Context), now})
	r.Hops = g.History.Hops[r.Root] + 1
	setEntry(&g.History.Hops, r.Root, r.Hops)
	return nil
}

// setParent sets the parent, root and depth of r. The parent is the deepest request that the
// requester is working on; the agent's own claim is not used.
func (g *Group) setParent(r *Request) {
	r.Root, r.Parent, r.Depth = r.ID, "", 0
	for _, o := range g.Open {
		if o.State == Delivered && o.To.Key() == r.From.Key() && o.Depth >= r.Depth {
			r.Parent, r.Root, r.Depth = o.ID, o.Root, o.Depth+1
		}
	}
}

// cycle refuses a request that would create a cycle in the wait-for graph, that is, a
// deadlock. A request without waiting creates no edge.
func (g *Group) cycle(r *Request, _ Quotas, now time.Time) *Refusal {
	if !r.Wait {
		return nil
	}
	path := g.waitPath(r.To.Key(), r.From.Key())
	if path == nil {
		return nil
	}
	first := path[0].Deadline
	for _, o := range path {
		if o.Deadline.Before(first) {
			first = o.Deadline
		}
	}
	return &Refusal{
		Code: "cycle", Reason: "waiting for " + r.To.label() + " would be a deadlock: " + describe(path),
		Remedy:     "answer the request that you received first, or ask without waiting (reply_timeout_ms 0)",
		RetryAfter: max(first.Sub(now), time.Second),
	}
}

func describe(path []Request) string {
	text := ""
	for i, o := range path {
		if i > 0 {
			text += ", "
		}
		text += o.From.label() + " waits for " + o.To.label()
	}
	return text
}

// waitPath returns the requests along which from waits for to, or nil (breadth-first search).
func (g *Group) waitPath(from, to string) []Request {
	reached := map[string]Request{} // member to the request that reached it
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		for _, o := range g.Open {
			if !o.Wait || o.From.Key() != queue[0] {
				continue
			}
			k := o.To.Key()
			if _, seen := reached[k]; seen {
				continue
			}
			reached[k] = o
			if k != to {
				queue = append(queue, k)
				continue
			}
			var path []Request
			for member := to; member != from || len(path) == 0; member = reached[member].From.Key() {
				path = append(path, reached[member])
			}
			slices.Reverse(path)
			return path
		}
	}
	return nil
}

func (g *Group) depth(r *Request, q Quotas, _ time.Time) *Refusal {
	if r.Depth > q.Depth {
		return &Refusal{Code: "depth", Reason: fmt.Sprintf("the request has depth %d, and the maximum is %d", r.Depth, q.Depth),
			Remedy: "do the work yourself, or answer that it cannot be done"}
	}
	if hops := g.History.Hops[r.Root]; hops >= q.Hops {
		return &Refusal{Code: "hops", Reason: fmt.Sprintf("the root request has already led to %d requests", hops),
			Remedy: "answer the open requests with the results so far"}
	}
	return nil
}

func (g *Group) openLimits(r *Request, q Quotas, _ time.Time) *Refusal {
	mine := 0
	for _, o := range g.Open {
		if o.From.Key() == r.From.Key() {
			mine++
		}
	}
	if mine >= q.FanOut {
		return &Refusal{Code: "fan-out", Reason: fmt.Sprintf("you have %d open requests, and the maximum is %d", mine, q.FanOut),
			Remedy: "wait for an answer to one of your requests", RetryAfter: 5 * time.Second}
	}
	if len(g.Open) >= q.Open {
		return &Refusal{Code: "open", Reason: fmt.Sprintf("the group has %d open requests, and the maximum is %d", len(g.Open), q.Open),
			Remedy: "wait until some requests are answered", RetryAfter: 10 * time.Second}
	}
	return nil
}

// repeats refuses a request that two members have exchanged too often.
func (g *Group) repeats(r *Request, q Quotas, now time.Time) *Refusal {
	p, t := pair(r.From, r.To), topic(r.Action, r.Context)
	n := 0
	var first time.Time
	for _, s := range g.History.Exchanges {
		if s.Pair == p && s.Topic == t {
			if n++; n == 1 {
				first = s.At
			}
		}
	}
	if n < q.Repeats {
		return nil
	}
	return &Refusal{
		Code:   "ping-pong",
		Reason: fmt.Sprintf("you and %s have exchanged the same request %d times within %s", r.To.label(), n, q.RepeatWithin),
		Remedy: "describe what has changed, or decide yourself", RetryAfter: max(first.Add(q.RepeatWithin).Sub(now), time.Second),
	}
}

// queueLimit refuses a request that would have to wait behind too many others.
func (g *Group) queueLimit(r *Request, q Quotas, _ time.Time) *Refusal {
	w := g.workload(q)
	if w.canStart(r.To) {
		return nil
	}
	waiting := len(g.queuePositions(q))
	if waiting < q.Queue {
		return nil
	}
	return &Refusal{Code: "busy", Reason: fmt.Sprintf("%d siblings are at work, which is the maximum, and %d requests are queued", w.active, waiting),
		Remedy: "do the work yourself, or ask again later", RetryAfter: 30 * time.Second}
}

func (g *Group) rateLimits(r *Request, q Quotas, now time.Time) *Refusal {
	edge := r.From.Key() + ">" + r.To.Key()
	wait := max(g.History.delay("", q.GroupRate, now), g.History.delay(edge, q.EdgeRate, now))
	if wait > 0 {
		return &Refusal{Code: "rate", Reason: "too many requests in a short time", Remedy: "combine your questions into fewer requests", RetryAfter: wait}
	}
	g.History.take("", q.GroupRate, now)
	g.History.take(edge, q.EdgeRate, now)
	return nil
}

// delay returns the time until a token is available; 0 if one is.
func (h *History) delay(key string, rate Rate, now time.Time) time.Duration {
	left := h.tokens(key, rate, now)
	if left >= 1 {
		return 0
	}
	return max(time.Duration(math.Ceil((1-left)*float64(rate.Every))), time.Millisecond)
}

func (h *History) take(key string, rate Rate, now time.Time) {
	setEntry(&h.Buckets, key, Bucket{h.tokens(key, rate, now) - 1, now})
}

func (h *History) tokens(key string, rate Rate, now time.Time) float64 {
	b, ok := h.Buckets[key]
	if !ok {
		return float64(rate.Burst)
	}
	passed := max(now.Sub(b.At), 0) // the clock of another daemon may be ahead
	return min(b.Tokens+float64(passed)/float64(rate.Every), float64(rate.Burst))
}

// prune removes state that no longer has an effect.
func (g *Group) prune(q Quotas, now time.Time) {
	h := &g.History
	for key := range h.Buckets {
		rate := q.EdgeRate
		if key == "" {
			rate = q.GroupRate
		}
		if h.tokens(key, rate, now) >= float64(rate.Burst) {
			delete(h.Buckets, key)
		}
	}
	h.Exchanges = slices.DeleteFunc(h.Exchanges, func(s Exchange) bool { return now.Sub(s.At) >= q.RepeatWithin })
	for root := range h.Hops {
		// A root without open requests gets no new ones.
		if !slices.ContainsFunc(g.Open, func(o Request) bool { return o.Root == root }) {
			delete(h.Hops, root)
		}
	}
}

// workload counts the members that work on requests.
type workload struct {
	assigned map[string]bool // members that have a delivered request
	active   int             // members at work, without those that wait for an answer
	limit    int
}

// workload computes the workload of the group. A member that waits for an answer does not
// count as working; otherwise waiting members could use up the slots that their receivers
// need.
func (g *Group) workload(q Quotas) workload {
	waiting := map[string]bool{}
	for _, o := range g.Open {
		if o.Wait {
			waiting[o.From.Key()] = true
		}
	}
	w := workload{assigned: map[string]bool{}, limit: q.Working}
	for _, o := range g.Open {
		k := o.To.Key()
		if o.State != Delivered || w.assigned[k] {
			continue
		}
		w.assigned[k] = true
		if !waiting[k] {
			w.active++
		}
	}
	return w
}

// canStart reports whether a member may be given a request: it has one already, or a slot is
// free.
func (w workload) canStart(m Member) bool { return w.assigned[m.Key()] || w.active < w.limit }

// queuePositions numbers the requests that wait for a free slot, from 1.
func (g *Group) queuePositions(q Quotas) map[id.Request]int {
	w, positions := g.workload(q), map[id.Request]int{}
	for _, o := range g.Open {
		if o.State == Queued && !w.canStart(o.To) {
			positions[o.ID] = len(positions) + 1
		}
	}
	return positions
}

// pair returns a key for two members that does not depend on their order.
func pair(a, b Member) string {
	x, y := a.Key(), b.Key()
	return min(x, y) + "<>" + max(x, y)
}

func setEntry[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[k] = v
}
