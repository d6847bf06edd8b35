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

// Rules are the egress rules of a jail. The zero value allows nothing.
type Rules struct {
	Allow     []Rule // the first match applies
	Limit     Limit  // for all traffic of the jail
	Transform []Transform
}

// A Transform sets headers of allowed requests to a host. It applies only to TLS connections,
// which are intercepted for this purpose.
type Transform struct {
	Host    string            // a name, or "*.example.com"; the most specific match applies
	Headers map[string]string // replace the client's headers with the same names

	SecretHeaders map[string][]Part // further headers, which contain secrets
	Owner         string            // owner of these secrets
}

// A Part is a piece of a header value: literal text, or the value of a secret at the time of
// the request.
type Part struct {
	Text   string `json:"text,omitempty"`
	Secret string `json:"secret,omitempty"`
}

// A Rule allows, or with Deny refuses, access to hosts.
type Rule struct {
	Name string // display name for messages; if empty, Host

	// Host is a name, "*.example.com" for all subdomains, "*" for every name, or an address or
	// address prefix. An address matches only rules with an address or prefix. An address that
	// is not an Internet address is reachable only if such a rule lists it. A client that
	// connects to a listed address may send any host name.
	Host  string
	Ports []uint16 // empty: 80 and 443; with Inject only 443

	Methods []string // empty: all except TRACE
	Paths   []string // patterns in which * matches any sequence of characters; empty: all

	// Internet restricts a rule with an address prefix to Internet addresses. Such a rule does
	// not list other addresses. With Internet or Deny, empty Ports mean all ports.
	Internet bool

	// Deny refuses the addresses in Host, even when they are reached by name, unless an earlier
	// rule allows the name or the address.
	Deny bool

	// Capability is the capability that the rule belongs to. All rules of a capability share
	// one Limit and must specify the same one.
	Capability string
	Limit      Limit

	Inject    []Inject
	Intercept bool // intercept TLS; implied by Inject, Methods and Paths
}

// A Limit limits requests and bytes. A connection that is not intercepted counts as one
// request.
type Limit struct {
	Requests int           // per Per, and also the burst size; 0: no limit
	Per      time.Duration // 0: one minute
	Bytes    int64         // sum of both directions, until the rules change; 0: no limit
}

// An As is the place of a secret in a request.
type As string

const (
	Bearer As = "bearer" // Authorization: Bearer VALUE
	Header As = "header" // NAME: VALUE
	Query  As = "query"  // ?NAME=VALUE
	Basic  As = "basic"  // Authorization: Basic, with NAME as the user
)

// An Inject adds a secret to requests. It replaces what the client sent in the same place.
type Inject struct {
	Secret string
	As     As
	Name   string // name of the header, parameter or user
}

// A ruleset is a compiled, immutable form of Rules.
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

	everyPort bool // overrides ports
}

func (r *rule) takes(port uint16) bool { return r.everyPort || slices.Contains(r.ports, port) }

// SetRules replaces the rules. Before it returns, it aborts all flows that the new rules do
// not allow, including flows that the Authority had allowed; the Authority is called again
// when the client reconnects. The usage of a limit is kept if the new rules contain the same
// capability or the same rule. The usage of a rule that is removed and added again later
// starts at zero.
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
		// The proxy can neither see nor change requests in the encrypted data of an established tunnel.
		if ref == nil && f.ask.Kind == KindConnect && g.needsIntercept() && !f.grant.needsIntercept() {
			ref = refuse("", g.label, "requests to %s are now intercepted", f.ask.Host)
		}
		if ref != nil {
			f.stop(refuse(ReasonRules, ref.Rule, "the jail's rules changed: %s", ref.Detail).with(ref.Remedy))
		}
	}
	p.upstream.CloseIdleConnections() // the new rules may not allow their servers
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
			return nil, fault.Fieldf(op, field("deny"), "%q: only addresses can be denied; to deny a name, remove the rule that allows it", given.Host)
		}
		if given.Deny && (c.needsIntercept() || given.Limit != Limit{}) {
			return nil, fault.Fieldf(op, field("deny"), "a deny rule cannot have other settings")
		}
		c.everyPort = len(c.ports) == 0 && (given.Internet || given.Deny)
		if len(c.ports) == 0 {
			c.ports = []uint16{80, 443}
			// On port 80 the secret would be sent in plaintext.
			if len(given.Inject) > 0 {
				c.ports = []uint16{443}
			}
		}
		for _, in := range given.Inject {
			if err := in.check(); err != nil {
				return nil, fault.Fieldf(op, field("inject"), "%v", err)
			}
			if p.conf.Secret == nil {
				return nil, fault.Fieldf(op, field("inject"), "no secret store is configured")
			}
		}
		for _, path := range given.Paths {
			if !strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "*") {
				return nil, fault.Fieldf(op, field("paths"), "%q does not begin with /", path)
			}
		}
		if c.needsIntercept() && p.conf.CA == nil && slices.ContainsFunc(c.ports, func(n uint16) bool { return n != 80 }) {
			return nil, fault.Fieldf(op, field("intercept"), "TLS interception needs a certificate authority of the jail")
		}
		if given.Limit.Requests < 0 || given.Limit.Per < 0 || given.Limit.Bytes < 0 {
			return nil, fault.Fieldf(op, field("limit"), "a limit must not be negative")
		}
		key := c.meterKey()
		if l, again := seen[key]; again && l != given.Limit {
			return nil, fault.Fieldf(op, field("limit"), "rules of %s have different limits", key)
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
		if len(t.SecretHeaders) > 0 && p.conf.OwnerSecret == nil {
			return nil, fault.Fieldf(op, fmt.Sprintf("transform[%d]", i), "no secret store is configured")
		}
		if p.conf.CA == nil {
			return nil, fault.Fieldf(op, fmt.Sprintf("transform[%d]", i), "TLS interception needs a certificate authority of the jail")
		}
		next.transforms = append(next.transforms, c)
	}
	return next, nil
}

func (r *rule) meterKey() string {
	if r.Capability != "" {
		return "capability " + r.Capability
	}
	// The key omits Limit and Inject: a rule in which only these change keeps its usage.
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
	// Clients send international names as A-labels (RFC 5890, 2.3.2.1).
	name, err := idna.Lookup.ToASCII(below)
	if err != nil {
		name = below // for example, a name with an underscore; parseHost validates it
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

// needsIntercept reports whether the rule needs TLS interception.
func (r *rule) needsIntercept() bool {
	return r.Intercept || len(r.Inject) > 0 || len(r.Methods) > 0 || len(r.Paths) > 0
}

func (r *rule) matchesHost(host string, addr netip.Addr) bool {
	if addr.IsValid() {
		return r.prefix.IsValid() && r.prefix.Contains(addr) && (!r.Internet || public(addr))
	}
	return r.any || r.exact != "" && host == r.exact || r.suffix != "" && strings.HasSuffix(host, r.suffix)
}

// listed reports whether a rule lists the address.
func (s *ruleset) listed(a netip.Addr, port uint16) bool {
	return slices.ContainsFunc(s.rules, func(r *rule) bool { return r.lists(a) && r.takes(port) })
}

// listedForAnyPort reports whether a rule lists the address, for any port.
func (s *ruleset) listedForAnyPort(a netip.Addr) bool {
	return slices.ContainsFunc(s.rules, func(r *rule) bool { return r.lists(a) })
}

// lists reports whether the rule allows the address also if it is not on the Internet.
func (r *rule) lists(a netip.Addr) bool { return !r.Deny && !r.Internet && r.matchesHost("", a) }

// direct reports whether a client may use the address as the host: a rule lists it, or allows
// it as an Internet address.
func (s *ruleset) direct(a netip.Addr, port uint16) bool {
	i := slices.IndexFunc(s.rules, func(r *rule) bool { return r.matchesHost("", a) && r.takes(port) })
	return i >= 0 && !s.rules[i].Deny
}

// denial returns the refusal of an address that a rule denies to connections that rule by
// allowed, or nil. The Authority's permission (by is nil) ranks after all rules.
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

// names reports whether a rule allows anything for the host name.
func (s *ruleset) names(host string) bool {
	return slices.ContainsFunc(s.rules, func(r *rule) bool { return r.matchesHost(host, netip.Addr{}) })
}

// A grant states that a rule or the Authority allowed a request, and which host is dialed for
// it.
type grant struct {
	rule      *rule    // nil: the Authority allowed it
	asked     *ruleset // the rules that were in force when the Authority was asked; nil if it was not
	label     string
	dial      string // the host of the request, or the listed address that the client connected to
	verdict   Verdict
	transform *transform // for requests over TLS; nil: none
}

// needsIntercept reports whether TLS must be intercepted.
func (g grant) needsIntercept() bool {
	return g.transform != nil || g.rule != nil && g.rule.needsIntercept()
}

// settle returns the grant of the rule that allows the request, or a refusal. A client that
// connected to a listed address may send any host name.
func (s *ruleset) settle(ask Request, dst netip.AddrPort) (grant, *refusal) {
	_, addr, err := parseHost(ask.Host)
	if err != nil {
		return grant{}, refuse(ReasonName, "", "%q is not a valid host: %v", ask.Host, err)
	}
	r, ref := s.match(ask, addr)
	if ref == nil {
		return grant{rule: r, label: r.label, dial: ask.Host, transform: s.transformOf(ask)}, nil
	}
	if ref.Reason == ReasonHost && dst.IsValid() && dst.Addr() != addr && dst.Port() == ask.Port {
		if r, listed := s.match(ask, dst.Addr()); listed == nil {
			// No transform: the server proves only that it has this address. It must not receive
			// the secrets of the host that the client names.
			return grant{rule: r, label: r.label, dial: dst.Addr().String()}, nil
		}
	}
	return grant{}, ref
}

// match checks host, port, method and path in this order. The refusal is for the first of them
// that no rule allows.
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
		if ask.Kind != KindRequest { // the content is not visible, or not yet
			return r, nil
		}
		// A TRACE response contains the request, including injected secrets (RFC 9110, 9.3.8).
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
		return nil, refuse(ReasonHost, "", "%s is not in this jail's list of allowed hosts", ask.Host).with(s.remedy(addr))
	case byPort == nil:
		return nil, refuse(ReasonPort, byHost.label, "port %d of %s is not allowed, only %s", ask.Port, ask.Host, joinPorts(byHost.ports))
	case byMethod == nil:
		return nil, refuse(ReasonMethod, byPort.label, "%s is not allowed at %s", ask.Method, ask.Host)
	}
	return nil, refuse(ReasonPath, byMethod.label, "the path %s is not allowed at %s", text.Clip(ask.Path, 200), ask.Host)
}

// remedy returns the remedy for a host that is not allowed.
func (s *ruleset) remedy(addr netip.Addr) string {
	if addr.IsValid() {
		return "use the host name instead of the address, or ask an administrator to allow the address"
	}
	var hosts []string
	for _, r := range s.rules {
		if !r.Deny && !slices.Contains(hosts, r.Host) {
			hosts = append(hosts, r.Host)
		}
	}
	switch {
	case len(hosts) == 0:
		return "ask an administrator to allow the host; this jail has no allowed hosts"
	case len(hosts) > 8:
		hosts = append(hosts[:8], "…")
	}
	return "ask an administrator to allow the host, or use one of " + strings.Join(hosts, ", ")
}

// matchesPath reports whether a pattern matches the path. It returns false for paths that
// servers might normalize differently.
func matchesPath(patterns []string, path string) bool {
	path, _, _ = strings.Cut(path, "?") // Config.KeepQuery adds the query, which is not part of the path
	// A server may resolve dot segments, encoded separators and path parameters (RFC 3986, 3.3
	// and 6.2.2), so that /open/%2e%2e/closed matches /open/* here and is /closed there.
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

// glob reports whether s matches a pattern in which * matches any sequence of characters.
func glob(pattern, s string) bool {
	// Backtracking only to the last * bounds the time by len(pattern)*len(s). The jail chooses s.
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
