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

// A Kind is the kind of a Request.
type Kind string

const (
	KindName    Kind = "name"    // a DNS query for the addresses of a host
	KindConnect Kind = "connect" // a connection that is not intercepted, or not yet intercepted
	KindRequest Kind = "request" // an HTTP request
)

// A Request describes an egress attempt of a program in the jail.
type Request struct {
	Jail   string `json:"jail,omitempty"`
	Kind   Kind   `json:"kind"`
	Host   string `json:"host,omitempty"`
	Port   uint16 `json:"port,omitempty"`
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"` // without the query, unless Config.KeepQuery is set
	TLS    bool   `json:"tls,omitempty"`
}

// A Verdict is the decision of an Authority. The zero Verdict keeps the result of the rules.
type Verdict struct {
	Allow  bool
	Rule   string // the rule that decided, for records and for the agent
	Reason string // human-readable
	Remedy string
}

// An Authority decides requests that no rule allows: a host that is not listed, or a port,
// method or path that is not allowed for a host. It is not called for addresses, malformed
// requests or exceeded limits.
//
// Evaluate may block until a person decides. The program in the jail waits until ctx ends; ctx
// also ends when the program closes its connection. For KindName, Evaluate must not block: no
// connection exists yet, and Allow means only that a connection may be requested. An error
// refuses the request.
type Authority interface {
	Evaluate(ctx context.Context, r Request) (Verdict, error)
}

// authorityDecides reports whether the Authority is called after a refusal with this reason.
func authorityDecides(r Reason) bool {
	return r == ReasonHost || r == ReasonPort || r == ReasonMethod || r == ReasonPath
}

// settle decides by the rules first. If they refuse the request, the Authority decides.
func (v *visit) settle(ctx context.Context, ask Request) (grant, *refusal) {
	p := v.p
	ask.Jail = p.conf.Jail
	rules := p.rules.Load()
	g, ref := rules.settle(ask, v.dst)
	if ref == nil {
		return g, nil
	}
	if _, addr, _ := parseHost(ask.Host); addr.IsValid() || p.conf.Authority == nil || !authorityDecides(ref.Reason) || ask.Method == "TRACE" || ask.Method == "TRACK" {
		return grant{}, ref
	}
	// The Authority decided when the connection was opened. After a change of the rules it has to
	// decide again, because SetRules ends only the connections that are in use.
	if v.granted != nil && v.granted.asked == rules && v.declared == ask.Host && v.port == ask.Port {
		return *v.granted, nil
	}
	ctx, stop := context.WithTimeoutCause(ctx, p.times.ask, errors.New("the decision timed out"))
	defer stop()
	defer p.cancelOnClose(ctx, v.client, stop)()
	verdict, err := p.conf.Authority.Evaluate(ctx, ask)
	switch {
	case err != nil && ctx.Err() != nil:
		return grant{}, refuse(ReasonDenied, ref.Rule, "%s; the approval request timed out", ref.Detail).with("try again later")
	case err != nil:
		return grant{}, refuse(ReasonDenied, ref.Rule, "%s, and the approval request failed", ref.Detail).with("try again later")
	case verdict == Verdict{}:
		return grant{}, ref
	case !verdict.Allow:
		deny := refuse(ReasonDenied, verdict.Rule, "%s", verdict.Reason).with(verdict.Remedy)
		if deny.Detail == "" {
			deny.Detail = ref.Detail
		}
		return grant{}, deny
	}
	return grant{asked: rules, label: verdict.Rule, dial: ask.Host, verdict: verdict}, nil
}

// cancelOnClose calls stop if the client closes its connection before done is called.
func (p *Proxy) cancelOnClose(ctx context.Context, c tcpConn, stop func()) (done func()) {
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
				// A read would also detect the close, but would consume the client's data.
				if state(c) != unix.BPF_TCP_ESTABLISHED {
					stop()
					return
				}
			}
		}
	})
	return func() { close(over) }
}

// A flow is one active request or tunneled connection.
type flow struct {
	p     *Proxy
	visit *visit
	ask   Request
	dst   netip.AddrPort
	grant grant
	began time.Time

	sent     atomic.Int64
	received atomic.Int64
	addr     atomic.Pointer[string] // the server's address
	secrets  []string
	server   *serverConn // the connection that delivers the response; nil with TLS
	short    bool        // the response was not forwarded completely

	dead atomic.Bool // stop was called: no more bytes are forwarded
	mu   sync.Mutex
	// +checklocks:mu
	cause  error // the first argument of stop
	cancel func()
	gone   time.Duration // how long the client has been half-closed; used by the sweeper only
}

// connected returns the address of the flow's server connection, if there is a connection.
func (f *flow) connected() netip.AddrPort {
	s := f.addr.Load()
	if s == nil {
		return netip.AddrPort{}
	}
	to, _ := netip.ParseAddrPort(*s) // zero if it cannot be parsed
	return to
}

// open starts a flow for a granted request. It checks the rate limit and the byte budget. The
// caller must call end on the flow. The flow calls cancel, which must not block, when it must
// stop.
func (v *visit) open(ask Request, g grant, cancel func()) (*flow, *refusal) {
	p := v.p
	ask.Jail = p.conf.Jail
	f := &flow{p: p, visit: v, ask: ask, dst: v.dst, grant: g, began: time.Now(), cancel: cancel}
	// SetRules stores the rules and aborts refused flows with p.mu held. A flow that a rule allows
	// is therefore either in p.flows at that time or checked against the new rules here.
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return nil, refuse(ReasonClosed, "", "the jail's proxy is closing")
	}
	rules := p.rules.Load()
	if g.rule != nil {
		if !slices.Contains(rules.rules, g.rule) { // SetRules was called since the grant
			again, ref := rules.settle(ask, v.dst)
			if ref != nil {
				return nil, ref
			}
			if again.dial != g.dial || again.needsIntercept() != g.needsIntercept() {
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

// charge takes one request from the limits of the rule and of the jail.
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
			m.refund()
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

// take charges up to n bytes and returns how many may be forwarded.
func (f *flow) take(n int) int {
	all := f.p.rules.Load().all
	got := n
	if f.grant.rule != nil {
		got = f.grant.rule.meter.take(n)
	}
	rest := all.take(got)
	if rest < got && f.grant.rule != nil {
		f.grant.rule.meter.refundBytes(got - rest)
	}
	return rest
}

// up counts n bytes from the jail, and down n bytes to it. They return how many bytes may be
// forwarded. If that is fewer than n, the budget is spent and the flow stops.
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

// stop stops the flow. Only the first reason is kept.
func (f *flow) stop(why error) {
	f.mu.Lock()
	first := f.cause == nil
	if first {
		f.cause = why
	}
	f.mu.Unlock()
	if first {
		f.dead.Store(true)
		f.cancel()
	}
}

// stopped returns the reason passed to stop, or nil.
func (f *flow) stopped() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cause
}

// end removes the flow and records it. err is its error, if stop was not called.
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
	p.record(r)
}

// abortClosed stops HTTP flows whose client closed its connection. A half-closed client has
// times.halfClosed to receive the response.
func (p *Proxy) abortClosed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for f := range p.flows {
		// A tunnel reads from its client all the time and detects the close itself.
		if f.ask.Kind != KindRequest {
			continue
		}
		switch state(f.visit.client) {
		case unix.BPF_TCP_ESTABLISHED:
			f.gone = 0
			continue
		// The client has sent FIN. TCP does not show whether it still reads (half-closed, RFC
		// 9293, 3.6.1) or has closed the socket.
		case unix.BPF_TCP_CLOSE_WAIT:
			f.gone += time.Second
			if f.gone < p.times.halfClosed {
				continue
			}
		}
		f.stop(errGone)
	}
}

var errGone = refuse(ReasonClient, "", "the client closed the connection")
