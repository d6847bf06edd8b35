package autonomy

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"glasshouse/id"
)

// Quotas are what the members of a group may ask of each other. A field that is
// 0 has its default.
type Quotas struct {
	Depth   int // how many requests may stand above one; 4
	FanOut  int // how many requests of one asker may be open; 8
	Open    int // how many of a group may be open; 64
	Hops    int // how many there may be below one root; 64
	AtWork  int // how many siblings of a group work on requests at once; 8
	Queue   int // how many requests of a group may wait for one of these places; 32
	Repeats int // how often two may send each other the same, both ways together, within RepeatWithin; 4

	RepeatWithin time.Duration // 10 minutes

	GroupRate Rate // of all requests of a group; 60 a minute, 30 at once
	EdgeRate  Rate // of those from one to another; 12 a minute, 6 at once
}

// A Rate is how often something may happen: Burst times at once, and then once
// in Every.
type Rate struct {
	Burst int
	Every time.Duration
}

func (q Quotas) orDefault() Quotas {
	q.Depth, q.FanOut, q.Open, q.Hops = or(q.Depth, 4), or(q.FanOut, 8), or(q.Open, 64), or(q.Hops, 64)
	q.AtWork, q.Queue, q.Repeats = or(q.AtWork, 8), or(q.Queue, 32), or(q.Repeats, 4)
	q.RepeatWithin = or(q.RepeatWithin, 10*time.Minute)
	q.GroupRate = cmp.Or(q.GroupRate, Rate{30, time.Second})
	q.EdgeRate = cmp.Or(q.EdgeRate, Rate{6, 5 * time.Second})
	return q
}

// A Group is what is known of one group at one moment. Whoever has it is alone
// with it, across all daemons on one database.
type Group struct {
	Name    string
	Open    []Request // oldest first
	History History
}

// History is what is remembered of requests that need not be open any more.
type History struct {
	Buckets map[string]Bucket  `json:"buckets,omitempty"` // "": the group's; "a>b": an edge's
	Said    []Said             `json:"said,omitempty"`    // oldest first
	Hops    map[id.Request]int `json:"hops,omitempty"`    // how many requests each root has led to, and itself
}

// A Bucket holds what is left of a Rate.
type Bucket struct {
	Tokens float64   `json:"tokens"`
	At     time.Time `json:"at"`
}

// A Said is that two talked of something.
type Said struct {
	Pair  string    `json:"pair"`
	Topic string    `json:"topic"`
	At    time.Time `json:"at"`
}

// admit judges a request that its group does not know yet, and counts it if
// nothing is against it. It fills in what follows from what else is open.
func (g *Group) admit(r *Request, q Quotas, now time.Time) *Refusal {
	g.prune(q, now)
	g.place(r)
	for _, judge := range []func(*Request, Quotas, time.Time) *Refusal{
		g.cycle, g.depth, g.counts, g.repeats, g.queue, g.rates, // what takes tokens is last
	} {
		if no := judge(r, q, now); no != nil {
			return no
		}
	}
	g.History.Said = append(g.History.Said, Said{pair(r.From, r.To), topic(r.Action, r.Context), now})
	r.Hops = g.History.Hops[r.Root] + 1
	put(&g.History.Hops, r.Root, r.Hops)
	return nil
}

// place finds the request that r belongs to. An agent could say another, so it
// is not asked: of those that its asker works on, the deepest counts.
func (g *Group) place(r *Request) {
	r.Root, r.Parent, r.Depth = r.ID, "", 0
	for _, o := range g.Open {
		if o.State == Delivered && o.To.Key() == r.From.Key() && o.Depth >= r.Depth {
			r.Parent, r.Root, r.Depth = o.ID, o.Root, o.Depth+1
		}
	}
}

// cycle refuses to wait for who waits, over others or directly, for the asker:
// none of them would ever go on. Who does not wait closes no cycle.
func (g *Group) cycle(r *Request, _ Quotas, now time.Time) *Refusal {
	if !r.Wait {
		return nil
	}
	path := g.path(r.To.Key(), r.From.Key())
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
		Code: "cycle", Reason: "to wait for " + r.To.label() + " would never end: " + describe(path),
		Remedy:     "answer the request you were sent first, or ask without waiting (reply_timeout_ms 0)",
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

// path returns the requests over which from waits for to, or nil if it does not.
func (g *Group) path(from, to string) []Request {
	reached := map[string]Request{} // by whom, over which request it was come to
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
			for at := to; at != from || len(path) == 0; at = reached[at].From.Key() {
				path = append(path, reached[at])
			}
			slices.Reverse(path)
			return path
		}
	}
	return nil
}

func (g *Group) depth(r *Request, q Quotas, _ time.Time) *Refusal {
	if r.Depth > q.Depth {
		return &Refusal{Code: "depth", Reason: fmt.Sprintf("%d requests stand above this one, and %d may", r.Depth, q.Depth),
			Remedy: "do it yourself, or answer that it cannot be done"}
	}
	if hops := g.History.Hops[r.Root]; hops >= q.Hops {
		return &Refusal{Code: "hops", Reason: fmt.Sprintf("one request has led to %d others already", hops),
			Remedy: "answer what is open with what there is"}
	}
	return nil
}

func (g *Group) counts(r *Request, q Quotas, _ time.Time) *Refusal {
	mine := 0
	for _, o := range g.Open {
		if o.From.Key() == r.From.Key() {
			mine++
		}
	}
	if mine >= q.FanOut {
		return &Refusal{Code: "fan-out", Reason: fmt.Sprintf("%d requests of yours are open, and %d may be", mine, q.FanOut),
			Remedy: "wait for an answer to one of them", RetryAfter: 5 * time.Second}
	}
	if len(g.Open) >= q.Open {
		return &Refusal{Code: "open", Reason: fmt.Sprintf("%d requests of this group are open, and %d may be", len(g.Open), q.Open),
			Remedy: "wait until some are answered", RetryAfter: 10 * time.Second}
	}
	return nil
}

// repeats finds two who send each other the same again and again.
func (g *Group) repeats(r *Request, q Quotas, now time.Time) *Refusal {
	p, t := pair(r.From, r.To), topic(r.Action, r.Context)
	n := 0
	var first time.Time
	for _, s := range g.History.Said {
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
		Reason: fmt.Sprintf("you and %s have sent each other the same %d times within %s", r.To.label(), n, q.RepeatWithin),
		Remedy: "say what is new since, or decide it yourself", RetryAfter: max(first.Add(q.RepeatWithin).Sub(now), time.Second),
	}
}

// queue refuses what would wait for a place behind too many.
func (g *Group) queue(r *Request, q Quotas, _ time.Time) *Refusal {
	w := g.work(q)
	if w.mayStart(r.To) {
		return nil
	}
	waiting := len(g.places(q))
	if waiting < q.Queue {
		return nil
	}
	return &Refusal{Code: "busy", Reason: fmt.Sprintf("%d siblings are at work, which is as many as may be, and %d requests wait for a place", w.at, waiting),
		Remedy: "do it yourself, or ask again later", RetryAfter: 30 * time.Second}
}

func (g *Group) rates(r *Request, q Quotas, now time.Time) *Refusal {
	edge := r.From.Key() + ">" + r.To.Key()
	wait := max(g.History.peek("", q.GroupRate, now), g.History.peek(edge, q.EdgeRate, now))
	if wait > 0 {
		return &Refusal{Code: "rate", Reason: "too many requests in a short time", Remedy: "put what you want into fewer requests", RetryAfter: wait}
	}
	g.History.take("", q.GroupRate, now)
	g.History.take(edge, q.EdgeRate, now)
	return nil
}

// peek says how long it takes until there is a token: 0 if there is one.
func (h *History) peek(key string, rate Rate, now time.Time) time.Duration {
	left := h.left(key, rate, now)
	if left >= 1 {
		return 0
	}
	return max(time.Duration(math.Ceil((1-left)*float64(rate.Every))), time.Millisecond)
}

func (h *History) take(key string, rate Rate, now time.Time) {
	put(&h.Buckets, key, Bucket{h.left(key, rate, now) - 1, now})
}

func (h *History) left(key string, rate Rate, now time.Time) float64 {
	b, ok := h.Buckets[key]
	if !ok {
		return float64(rate.Burst)
	}
	passed := max(now.Sub(b.At), 0) // another daemon's clock may be ahead
	return min(b.Tokens+float64(passed)/float64(rate.Every), float64(rate.Burst))
}

// prune forgets what makes no difference any more.
func (g *Group) prune(q Quotas, now time.Time) {
	h := &g.History
	for key := range h.Buckets {
		rate := q.EdgeRate
		if key == "" {
			rate = q.GroupRate
		}
		if h.left(key, rate, now) >= float64(rate.Burst) {
			delete(h.Buckets, key)
		}
	}
	h.Said = slices.DeleteFunc(h.Said, func(s Said) bool { return now.Sub(s.At) >= q.RepeatWithin })
	for root := range h.Hops {
		// Nothing new comes below a root of which nothing is open.
		if !slices.ContainsFunc(g.Open, func(o Request) bool { return o.Root == root }) {
			delete(h.Hops, root)
		}
	}
}

// work is who works on requests at one moment.
type work struct {
	on   map[string]bool // the members that have a request
	at   int             // how many of them are at work
	most int
}

// work says who works on requests. Who waits for an answer itself is not at work,
// else those who wait could keep away whom they wait for.
func (g *Group) work(q Quotas) work {
	waits := map[string]bool{}
	for _, o := range g.Open {
		if o.Wait {
			waits[o.From.Key()] = true
		}
	}
	w := work{on: map[string]bool{}, most: q.AtWork}
	for _, o := range g.Open {
		k := o.To.Key()
		if o.State != Delivered || w.on[k] {
			continue
		}
		w.on[k] = true
		if !waits[k] {
			w.at++
		}
	}
	return w
}

// mayStart reports whether a member may be given a request to work on: it has
// one already, or there is a place.
func (w work) mayStart(m Member) bool { return w.on[m.Key()] || w.at < w.most }

// places numbers the requests that wait for a place to work in.
func (g *Group) places(q Quotas) map[id.Request]int {
	w, places := g.work(q), map[id.Request]int{}
	for _, o := range g.Open {
		if o.State == Queued && !w.mayStart(o.To) {
			places[o.ID] = len(places) + 1
		}
	}
	return places
}

// pair names two members, whichever of them asks.
func pair(a, b Member) string {
	x, y := a.Key(), b.Key()
	return min(x, y) + "<>" + max(x, y)
}

func put[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[k] = v
}
