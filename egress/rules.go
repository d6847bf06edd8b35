package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/idna"

	"glasshouse/fault"
	"glasshouse/internal/text"
)

// Rules are what a jail may reach. The zero value is nothing.
type Rules struct {
	Allow     []Rule // the first that matches counts
	Limit     Limit  // for everything together
	Transform []Transform
}

// A Transform sets headers of requests to a host, wherever a rule lets these go. Only
// what goes by TLS is changed, into which is looked for it.
type Transform struct {
	Host    string            // a name, or "*.example.com"; the most exact that matches counts
	Headers map[string]string // what the client sent by these names is taken out

	Filled map[string][]Part // more headers, which have secrets in them
	Owner  string            // whose secrets those are
}

// A Part is a piece of a header's value: a text, or the value that a secret has when the
// header is sent.
type Part struct {
	Text   string `json:"text,omitempty"`
	Secret string `json:"secret,omitempty"`
}

// A Rule allows something.
type Rule struct {
	Name string // as people know it, for messages; if empty, Host

	// Host is a name, "*.example.com" for all names below that one, "*" for
	// every name, or an address or a prefix of addresses. Addresses are matched by
	// the last form alone, and only what is so listed may be an address that is
	// not one of the Internet. A program that connects to a listed address may
	// name any host to it.
	Host  string
	Ports []uint16 // none: 80 and 443; with Inject only 443

	Methods []string // none: all but TRACE
	Paths   []string // patterns, in which * is any run of characters; none: all

	// Internet has a rule for addresses be about those on the Internet alone, and not
	// list them. With it or Deny, no Ports are all.
	Internet bool

	// Deny refuses the addresses that Host has, by whatever name they are reached,
	// unless a rule before this one allows the name or the address.
	Deny bool

	// Capability is whose rule it is. Rules of one capability have one Limit
	// between them, and must agree on it.
	Capability string
	Limit      Limit

	Inject    []Inject
	Intercept bool // look into TLS; implied by Inject, Methods and Paths
}

// A Limit bounds requests and bytes. Connections into which is not looked are one
// request each.
type Limit struct {
	Requests int           // as many in Per, and as many at once; 0: no limit
	Per      time.Duration // 0: a minute
	Bytes    int64         // both ways together, until other rules; 0: no limit
}

// An As is how a secret is shown to a server.
type As string

const (
	Bearer As = "bearer" // Authorization: Bearer VALUE
	Header As = "header" // NAME: VALUE
	Query  As = "query"  // ?NAME=VALUE
	Basic  As = "basic"  // Authorization: Basic, with NAME for the user
)

// An Inject puts a secret into requests. What the client sent in that place is
// taken out.
type Inject struct {
	Secret string
	As     As
	Name   string // of the header, parameter or user
}

// A ruleset is Rules made ready to be asked. It does not change.
type ruleset struct {
	rules      []*rule
	transforms []*transform
	all        *meter
}

type rule struct {
	Rule
	label  string
	exact  string
	suffix string // ".example.com"
	any    bool
	prefix netip.Prefix
	ports  []uint16
	meter  *meter

	everyPort bool // in place of ports
}

func (r *rule) takes(port uint16) bool { return r.everyPort || slices.Contains(r.ports, port) }

// SetRules makes these the rules from now on. What is being carried and they do
// not allow is cut before SetRules returns, also what the Authority had allowed,
// which is asked again when the client comes back. What was spent of a limit
// stays spent if the same capability, or the same rule, is among them; one that
// was left out and comes back begins anew.
func (p *Proxy) SetRules(r Rules) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	next, err := p.compile(r, p.rules.Load())
	if err != nil {
		return err
	}
	p.rules.Store(next)
	for f := range p.flows {
		g, ref := next.settle(f.ask, f.dst)
		if to := f.connected(); ref == nil && to.IsValid() {
			ref = next.denial(to, g.rule)
		}
		if ref == nil && f.ask.Kind == KindConnect && g.transform != nil && f.grant.transform == nil {
			ref = refuse("", g.label, "what is sent to %s is changed from now on", f.ask.Host)
		}
		if ref != nil {
			f.stop(refuse(ReasonRules, ref.Rule, "the jail's rules changed: %s", ref.Detail).with(ref.Remedy))
		}
	}
	p.upstream.CloseIdleConnections() // they lead where it may not be allowed any more
	return nil
}

func (p *Proxy) compile(r Rules, old *ruleset) (*ruleset, error) {
	const op = "egress.SetRules"
	meters := map[string]*meter{}
	if old != nil {
		for _, o := range old.rules {
			meters[o.meterKey()] = o.meter
		}
	}
	next := &ruleset{all: newMeter(r.Limit)}
	if old != nil {
		next.all = old.all.with(r.Limit)
	}
	seen := map[string]Limit{}
	for i, given := range r.Allow {
		field := func(name string) string { return fmt.Sprintf("allow[%d].%s", i, name) }
		c := &rule{Rule: given, label: given.Name, ports: given.Ports}
		if c.label == "" {
			c.label = given.Host
		}
		if err := c.parseHost(); err != nil {
			return nil, fault.Fieldf(op, field("host"), "%q: %v", given.Host, err)
		}
		if given.Deny && !c.prefix.IsValid() {
			return nil, fault.Fieldf(op, field("deny"), "%q: only addresses are denied, names by not being allowed", given.Host)
		}
		if given.Deny && (c.looksInside() || given.Limit != Limit{}) {
			return nil, fault.Fieldf(op, field("deny"), "what is denied has nothing else")
		}
		if c.everyPort = len(c.ports) == 0 && (given.Internet || given.Deny); len(c.ports) == 0 {
			c.ports = []uint16{80, 443}
			if len(given.Inject) > 0 {
				c.ports = []uint16{443}
			}
		}
		for _, in := range given.Inject {
			if err := in.check(); err != nil {
				return nil, fault.Fieldf(op, field("inject"), "%v", err)
			}
			if p.conf.Secret == nil {
				return nil, fault.Fieldf(op, field("inject"), "there is nowhere to get secrets from")
			}
		}
		for _, path := range given.Paths {
			if !strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "*") {
				return nil, fault.Fieldf(op, field("paths"), "%q does not begin with /", path)
			}
		}
		if c.looksInside() && p.conf.CA == nil && slices.ContainsFunc(c.ports, func(n uint16) bool { return n != 80 }) {
			return nil, fault.Fieldf(op, field("intercept"), "looking into TLS needs a certificate authority of the jail's")
		}
		if given.Limit.Requests < 0 || given.Limit.Per < 0 || given.Limit.Bytes < 0 {
			return nil, fault.Fieldf(op, field("limit"), "a limit is not negative")
		}
		key := c.meterKey()
		if l, again := seen[key]; again && l != given.Limit {
			return nil, fault.Fieldf(op, field("limit"), "rules of %s do not agree on their limit", key)
		} else if again {
			c.meter = meters[key]
		} else if m := meters[key]; m != nil {
			c.meter = m.with(given.Limit)
		} else {
			c.meter = newMeter(given.Limit)
		}
		seen[key], meters[key] = given.Limit, c.meter
		next.rules = append(next.rules, c)
	}
	for i, t := range r.Transform {
		c, err := t.compile()
		if err != nil {
			return nil, fault.Fieldf(op, fmt.Sprintf("transform[%d]", i), "%v", err)
		}
		if len(t.Filled) > 0 && p.conf.Owned == nil {
			return nil, fault.Fieldf(op, fmt.Sprintf("transform[%d]", i), "there is nowhere to get secrets from")
		}
		if p.conf.CA == nil {
			return nil, fault.Fieldf(op, fmt.Sprintf("transform[%d]", i), "looking into TLS needs a certificate authority of the jail's")
		}
		next.transforms = append(next.transforms, c)
	}
	return next, nil
}

func (r *rule) meterKey() string {
	if r.Capability != "" {
		return "capability " + r.Capability
	}
	return fmt.Sprintf("rule %q for %s %v %v %v %v %v", r.Name, r.Host, r.Ports, r.Methods, r.Paths, r.Internet, r.Deny)
}

func (r *rule) parseHost() error {
	if r.Host == "*" {
		r.any = true
		return nil
	}
	if p, err := netip.ParsePrefix(r.Host); err == nil {
		r.prefix = p.Masked()
		return nil
	}
	below, wild := strings.CutPrefix(r.Host, "*.")
	name, err := idna.Lookup.ToASCII(below)
	if err != nil {
		name = below // a name with an underscore, say; what is wrong is found out next
	}
	name, addr, err := parseHost(name)
	switch {
	case err != nil:
		return err
	case addr.IsValid() && wild:
		return errHost
	case addr.IsValid():
		r.prefix = netip.PrefixFrom(addr, addr.BitLen())
	case wild:
		r.suffix = "." + name
	default:
		r.exact = name
	}
	return nil
}

// looksInside reports whether TLS has to be looked into for this rule.
func (r *rule) looksInside() bool {
	return r.Intercept || len(r.Inject) > 0 || len(r.Methods) > 0 || len(r.Paths) > 0
}

func (r *rule) matchesHost(host string, addr netip.Addr) bool {
	if addr.IsValid() {
		return r.prefix.IsValid() && r.prefix.Contains(addr) && (!r.Internet || public(addr))
	}
	return r.any || r.exact != "" && host == r.exact || r.suffix != "" && strings.HasSuffix(host, r.suffix)
}

// listed reports whether a rule lists the address itself.
func (s *ruleset) listed(a netip.Addr, port uint16) bool {
	return slices.ContainsFunc(s.rules, func(r *rule) bool {
		return !r.Deny && !r.Internet && r.matchesHost("", a) && r.takes(port)
	})
}

// direct reports whether the address may be meant by itself: a rule lists it, or allows
// it as one on the Internet.
func (s *ruleset) direct(a netip.Addr, port uint16) bool {
	i := slices.IndexFunc(s.rules, func(r *rule) bool { return r.matchesHost("", a) && r.takes(port) })
	return i >= 0 && !s.rules[i].Deny
}

// denial returns why an address is not connected to for what a rule allowed; nil is the
// Authority's leave, which is behind all rules.
func (s *ruleset) denial(to netip.AddrPort, by *rule) *refusal {
	for _, r := range s.rules {
		switch {
		case r == by:
			return nil
		case !r.prefix.IsValid() || !r.matchesHost("", to.Addr().Unmap()) || !r.takes(to.Port()):
		case r.Deny:
			return refuse(ReasonAddress, r.label, "%s is denied", to.Addr())
		default:
			return nil
		}
	}
	return nil
}

// names reports whether anything is allowed at the host of that name.
func (s *ruleset) names(host string) bool {
	return slices.ContainsFunc(s.rules, func(r *rule) bool { return r.matchesHost(host, netip.Addr{}) })
}

// A grant is that something is allowed: by which rule, or by the Authority, and
// which host is dialled for it.
type grant struct {
	rule      *rule // nil: the Authority allowed it
	label     string
	dial      string // the host that was named, or the listed address that was connected to
	verdict   Verdict
	transform *transform // of what goes by TLS; nil: none
}

// looksInside reports whether TLS has to be looked into.
func (g grant) looksInside() bool { return g.transform != nil || g.rule != nil && g.rule.looksInside() }

// settle returns the grant of the rule that allows what is asked, or why none
// does. A program that connected to a listed address may name any host.
func (s *ruleset) settle(ask Request, dst netip.AddrPort) (grant, *refusal) {
	_, addr, err := parseHost(ask.Host)
	if err != nil {
		return grant{}, refuse(ReasonName, "", "%q cannot be a host: %v", ask.Host, err)
	}
	r, ref := s.match(ask, addr)
	if ref == nil {
		return grant{rule: r, label: r.label, dial: ask.Host, transform: s.transformOf(ask)}, nil
	}
	if ref.Reason == ReasonHost && dst.IsValid() && dst.Addr() != addr && dst.Port() == ask.Port {
		if r, listed := s.match(ask, dst.Addr()); listed == nil {
			return grant{rule: r, label: r.label, dial: dst.Addr().String()}, nil
		}
	}
	return grant{}, ref
}

// match checks host, port, method and path in this order; the refusal is for the
// first of them that no rule allows.
func (s *ruleset) match(ask Request, addr netip.Addr) (*rule, *refusal) {
	var byHost, byPort, byMethod *rule
	for _, r := range s.rules {
		if !r.matchesHost(ask.Host, addr) {
			continue
		}
		if r.Deny {
			if r.takes(ask.Port) {
				return nil, refuse(ReasonAddress, r.label, "%s is denied", ask.Host)
			}
			continue
		}
		byHost = r
		if !r.takes(ask.Port) {
			continue
		}
		byPort = r
		if ask.Kind != KindRequest { // what is inside is not seen, or not yet
			return r, nil
		}
		if ask.Method == "TRACE" || ask.Method == "TRACK" || len(r.Methods) > 0 && !slices.Contains(r.Methods, ask.Method) {
			continue
		}
		byMethod = r
		if len(r.Paths) == 0 || matchesPath(r.Paths, ask.Path) {
			return r, nil
		}
	}
	switch {
	case byHost == nil:
		return nil, refuse(ReasonHost, "", "%s is not among the hosts this jail may reach", ask.Host).with(s.remedy(addr))
	case byPort == nil:
		return nil, refuse(ReasonPort, byHost.label, "port %d of %s is not allowed, only %s", ask.Port, ask.Host, joinPorts(byHost.ports))
	case byMethod == nil:
		return nil, refuse(ReasonMethod, byPort.label, "%s is not allowed at %s", ask.Method, ask.Host)
	}
	return nil, refuse(ReasonPath, byMethod.label, "the path %s is not allowed at %s", text.Clip(ask.Path, 200), ask.Host)
}

// remedy says what can be done instead of reaching a host that is not allowed.
func (s *ruleset) remedy(addr netip.Addr) string {
	if addr.IsValid() {
		return "name the host instead of its address, or ask for the address itself to be allowed"
	}
	var hosts []string
	for _, r := range s.rules {
		if !r.Deny && !slices.Contains(hosts, r.Host) {
			hosts = append(hosts, r.Host)
		}
	}
	switch {
	case len(hosts) == 0:
		return "ask for the host to be allowed; this jail may reach none"
	case len(hosts) > 8:
		hosts = append(hosts[:8], "…")
	}
	return "ask for the host to be allowed, or use one of " + strings.Join(hosts, ", ")
}

// matchesPath reports whether a pattern matches the path. A path that servers
// read in different ways matches none.
func matchesPath(patterns []string, path string) bool {
	low := strings.ToLower(path)
	for _, odd := range []string{"//", "/./", "/../", "\\", "%2e", "%2f", "%5c", "%00", ";", "%25"} {
		if strings.Contains(low, odd) {
			return false
		}
	}
	if strings.HasSuffix(path, "/.") || strings.HasSuffix(path, "/..") {
		return false
	}
	return slices.ContainsFunc(patterns, func(p string) bool { return glob(p, path) })
}

// glob reports whether s matches a pattern in which * is any run of characters.
func glob(pattern, s string) bool {
	star, back := -1, 0
	p, i := 0, 0
	for i < len(s) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, back = p, i
			p++
		case p < len(pattern) && pattern[p] == s[i]:
			p++
			i++
		case star >= 0:
			back++
			p, i = star+1, back
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

func joinPorts(ports []uint16) string {
	var s []string
	for _, n := range ports {
		s = append(s, fmt.Sprint(n))
	}
	return strings.Join(s, ", ")
}
