package egress

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A Kind is what is asked for.
type Kind string

const (
	KindName    Kind = "name"    // the address of a host, asked of DNS
	KindConnect Kind = "connect" // a connection into which is not looked, or not yet
	KindRequest Kind = "request" // a request of HTTP
)

// A Request is what a program in the jail asks for.
type Request struct {
	Jail   string `json:"jail,omitempty"`
	Kind   Kind   `json:"kind"`
	Host   string `json:"host,omitempty"`
	Port   uint16 `json:"port,omitempty"`
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"` // without the query, unless Config says otherwise
	TLS    bool   `json:"tls,omitempty"`
}

// A Verdict is what the Authority says. The zero Verdict leaves it at what the
// rules said.
type Verdict struct {
	Allow  bool
	Rule   string // that decided, for records and for the agent
	Reason string // for people
	Remedy string
}

// An Authority decides what no rule settles: a name that is not listed, or a
// port, method or path that is not allowed there. It is not asked about
// addresses, nor about what is malformed or too much.
//
// Judge may wait for a person: the program in the jail waits meanwhile, until ctx
// ends, which it does when the program gives up. For KindName it must not wait:
// nobody has connected yet, and to allow means only that a connection is worth
// asking about. An error is a refusal.
type Authority interface {
	Judge(ctx context.Context, r Request) (Verdict, error)
}

// asks reports whether the Authority is asked about what was refused so.
func asks(r Reason) bool {
	return r == ReasonHost || r == ReasonPort || r == ReasonMethod || r == ReasonPath
}

// settle decides by the rules, and where they do not allow by the Authority.
func (v *visit) settle(ctx context.Context, ask Request) (grant, *refusal) {
	p := v.p
	ask.Jail = p.conf.Jail
	g, ref := p.rules.Load().settle(ask, v.dst)
	if ref == nil {
		return g, nil
	}
	if _, addr, _ := parseHost(ask.Host); addr.IsValid() || p.conf.Authority == nil || !asks(ref.Reason) || ask.Method == "TRACE" || ask.Method == "TRACK" {
		return grant{}, ref
	}
	if v.granted != nil && v.granted.rule == nil && v.declared == ask.Host && v.port == ask.Port {
		return *v.granted, nil // asked when the connection was asked for
	}
	ctx, stop := context.WithTimeoutCause(ctx, p.times.ask, errors.New("nobody answered in time"))
	defer stop()
	defer p.whileThere(ctx, v.client, stop)()
	verdict, err := p.conf.Authority.Judge(ctx, ask)
	switch {
	case err != nil && ctx.Err() != nil:
		return grant{}, refuse(ReasonDenied, ref.Rule, "%s; it was asked, and nobody answered in time", ref.Detail).with("try again later")
	case err != nil:
		return grant{}, refuse(ReasonDenied, ref.Rule, "%s, and could not be asked about", ref.Detail).with("try again later")
	case verdict == Verdict{}:
		return grant{}, ref
	case !verdict.Allow:
		deny := refuse(ReasonDenied, verdict.Rule, "%s", verdict.Reason).with(verdict.Remedy)
		if deny.Detail == "" {
			deny.Detail = ref.Detail
		}
		return grant{}, deny
	}
	return grant{label: verdict.Rule, dial: ask.Host, verdict: verdict}, nil
}

// whileThere calls stop when the client's connection is gone, until the function
// it returns is called.
func (p *Proxy) whileThere(ctx context.Context, c tcpConn, stop func()) (done func()) {
	if c == nil {
		return func() {}
	}
	over := make(chan struct{})
	p.wg.Go(func() {
		t := time.NewTicker(500 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-over:
				return
			case <-ctx.Done():
				return
			case <-t.C:
				if state(c) != unix.BPF_TCP_ESTABLISHED {
					stop()
					return
				}
			}
		}
	})
	return func() { close(over) }
}

// A flow is something being carried: a request, or a connection.
type flow struct {
	p     *Proxy
	visit *visit
	ask   Request
	dst   netip.AddrPort
	grant grant
	began time.Time

	sent     atomic.Int64
	received atomic.Int64
	addr     atomic.Pointer[string] // that was connected to
	secrets  []string
	server   *serverConn // that answers, in the clear
	short    bool        // the answer could not be passed on to its end

	dead atomic.Bool // it was stopped: nothing more is passed on
	mu   sync.Mutex
	// +checklocks:mu
	why    error // why it was stopped
	cancel func()
	gone   time.Duration // how long the client has been half gone; the sweeper's
}

// connected returns the address that the flow is connected to, if it is.
func (f *flow) connected() netip.AddrPort {
	s := f.addr.Load()
	if s == nil {
		return netip.AddrPort{}
	}
	to, _ := netip.ParseAddrPort(*s) // what cannot be read is none
	return to
}

// open begins to carry what was granted, after rate and budget are looked at.
// Whoever opens a flow ends it. cancel, which must not wait, is called if it is
// to stop.
func (v *visit) open(ask Request, g grant, cancel func()) (*flow, *refusal) {
	p := v.p
	ask.Jail = p.conf.Jail
	f := &flow{p: p, visit: v, ask: ask, dst: v.dst, grant: g, began: time.Now(), cancel: cancel}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return nil, refuse(ReasonClosed, "", "the jail's proxy is closing")
	}
	rules := p.rules.Load()
	if g.rule != nil {
		if !slices.Contains(rules.rules, g.rule) { // they changed since
			again, ref := rules.settle(ask, v.dst)
			if ref != nil {
				return nil, ref
			}
			if again.dial != g.dial || again.looksInside() != g.looksInside() {
				return nil, refuse(ReasonRules, again.label, "the jail's rules changed").with("try again")
			}
			f.grant = again
		}
	}
	if ref := f.charge(rules); ref != nil {
		return nil, ref
	}
	p.flows[f] = struct{}{}
	return f, nil
}

// charge takes one request from what there is for the rule and for the jail.
func (f *flow) charge(rules *ruleset) *refusal {
	var m *meter
	if f.grant.rule != nil {
		m = f.grant.rule.meter
	}
	if m != nil {
		if wait := m.request(); wait > 0 {
			return tooMany(f.grant.label, m.limit, wait)
		}
	}
	if wait := rules.all.request(); wait > 0 {
		if m != nil {
			m.back()
		}
		return tooMany("limit of the jail", rules.all.limit, wait)
	}
	if m != nil && m.empty() || rules.all.empty() {
		return f.spentRefusal()
	}
	return nil
}

func tooMany(rule string, l Limit, wait time.Duration) *refusal {
	ref := refuse(ReasonRate, rule, "more than %d requests in %v", l.Requests, l.Per).with("try again in " + wait.Round(time.Millisecond).String())
	ref.wait = wait
	return ref
}

func (f *flow) spentRefusal() *refusal {
	label, limit := "limit of the jail", f.p.rules.Load().all.limit.Bytes
	if r := f.grant.rule; r != nil && r.meter.empty() {
		label, limit = r.label, r.meter.limit.Bytes
	}
	return refuse(ReasonBytes, label, "the budget of %d bytes is spent", limit).with("ask for a larger budget")
}

// take spends up to n bytes and returns how many may be passed on.
func (f *flow) take(n int) int {
	all := f.p.rules.Load().all
	got := n
	if f.grant.rule != nil {
		got = f.grant.rule.meter.take(n)
	}
	rest := all.take(got)
	if rest < got && f.grant.rule != nil {
		f.grant.rule.meter.untake(got - rest)
	}
	return rest
}

// up counts n bytes from the jail, and down n bytes to it. They return how many
// may be passed on; if that is less, the budget is spent and the flow stops.
func (f *flow) up(n int) int   { return f.pass(n, &f.sent, &f.p.count.sent) }
func (f *flow) down(n int) int { return f.pass(n, &f.received, &f.p.count.received) }

func (f *flow) pass(n int, one, all *atomic.Int64) int {
	if f.dead.Load() {
		return 0
	}
	got := f.take(n)
	one.Add(int64(got))
	all.Add(int64(got))
	if got < n {
		f.stop(f.spentRefusal())
	}
	return got
}

// stop ends the flow, for the first reason given.
func (f *flow) stop(why error) {
	f.mu.Lock()
	first := f.why == nil
	if first {
		f.why = why
	}
	f.mu.Unlock()
	if first {
		f.dead.Store(true)
		f.cancel()
	}
}

// stopped returns why the flow was stopped, or nil.
func (f *flow) stopped() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.why
}

// end records the flow. err is what went wrong, if it was not stopped.
func (f *flow) end(status int, err error) {
	p := f.p
	p.mu.Lock()
	delete(p.flows, f)
	if p.closing && len(p.flows) == 0 {
		select {
		case <-p.drained:
		default:
			close(p.drained)
		}
	}
	p.mu.Unlock()
	if why := f.stopped(); why != nil {
		err = why
	}
	r := Record{
		At: f.began, Took: time.Since(f.began), Request: f.ask, Status: status,
		Sent: f.sent.Load(), Received: f.received.Load(),
		Rule: f.grant.label, Allowed: true, Secrets: f.secrets,
	}
	if a := f.addr.Load(); a != nil {
		r.Addr = *a
	}
	if err != nil {
		r.Reason, r.Detail = ReasonUpstream, err.Error()
		if ref, ok := errors.AsType[*refusal](err); ok {
			r.Reason, r.Detail = ref.Reason, ref.Detail
			if ref.Rule != "" {
				r.Rule = ref.Rule
			}
			r.Allowed = ref.Reason == ReasonClosed || ref.Reason == ReasonClient || ref.Reason == ReasonUpstream
		}
	}
	p.keep(r)
}

// dropGone stops flows of HTTP whose client is not there any more. A client that
// has only said its last word is given some time for the answer.
func (p *Proxy) dropGone() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for f := range p.flows {
		if f.ask.Kind != KindRequest {
			continue
		}
		switch state(f.visit.client) {
		case unix.BPF_TCP_ESTABLISHED:
			f.gone = 0
			continue
		case unix.BPF_TCP_CLOSE_WAIT:
			if f.gone += time.Second; f.gone < p.times.gone {
				continue
			}
		}
		f.stop(errGone)
	}
}

var errGone = refuse(ReasonClient, "", "the client went away")
