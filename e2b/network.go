package e2b

import (
	"context"
	"encoding/json"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"glasshouse/id"
	"glasshouse/policy/egress"
)

// A Network describes a sandbox's egress and the access to its ports, in the protocol's terms.
type Network struct {
	AllowOut []string          `json:"allowOut,omitempty"` // names, addresses and prefixes; they take precedence over DenyOut
	DenyOut  []string          `json:"denyOut,omitempty"`  // addresses and prefixes
	Rules    map[string][]Rule `json:"rules,omitempty"`    // by host
	Public   *bool             `json:"allowPublicTraffic,omitempty"`
	MaskHost string            `json:"maskRequestHost,omitempty"`
	HTTPS    []int             `json:"httpsPorts,omitempty"`
	Proxy    *Proxy            `json:"egressProxy,omitempty"`
}

// A Proxy is a proxy of the client for a sandbox's egress.
type Proxy struct {
	Address  string `json:"address"`
	Username string `json:"username,omitempty"`
}

// A Rule changes requests to a host.
type Rule struct {
	Transform *Transform `json:"transform,omitempty"`
}

// A Transform sets headers.
type Transform struct {
	Headers map[string]string `json:"headers,omitempty"`
}

// These match all addresses.
const (
	allIPv4 = "0.0.0.0/0"
	allIPv6 = "::/0"
)

// marker begins a placeholder that E2B's proxy replaces by a secret or a token. An unsupported
// placeholder must not be forwarded: the destination would see it as a wrong key.
const marker = "${e2b."

func (n Network) check() error {
	denied := slices.Contains(n.DenyOut, allIPv4)
	for _, to := range n.DenyOut {
		if _, ok := prefix(to); !ok {
			return invalid("invalid denied CIDR %q", short(to))
		}
	}
	for _, to := range n.AllowOut {
		if _, ok := prefix(to); ok {
			continue
		}
		if !hostPattern(to) {
			return invalid("invalid allowed host or CIDR %q", short(to))
		}
		if !denied {
			return invalid("When specifying allowed domains in allow out, you must include 'ALL_TRAFFIC' in deny out to block all other traffic.")
		}
	}
	for host, rules := range n.Rules {
		if !hostPattern(host) {
			return invalid("invalid domain %q in network rules", short(host))
		}
		for _, r := range rules {
			if r.Transform == nil {
				continue
			}
			for name, value := range r.Transform.Headers {
				if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
					return invalid("invalid header %q in the network rules of %q", short(name), short(host))
				}
			}
		}
		if err := checkHeaders(host, rules); err != nil {
			return err
		}
	}
	if n.Proxy != nil {
		return invalid("egressProxy is not supported")
	}
	if n.MaskHost != "" && !hostAndPort(strings.ReplaceAll(n.MaskHost, "${PORT}", "1")) {
		return invalid("invalid maskRequestHost %q: want HOST, HOST:PORT or HOST:${PORT}", short(n.MaskHost))
	}
	for _, port := range n.HTTPS {
		if port < 1 || port > 65535 {
			return invalid("invalid port %d in httpsPorts", port)
		}
	}
	return nil
}

// hostAndPort reports whether s is a host name or an address, optionally with a port.
func hostAndPort(s string) bool {
	u, err := url.Parse("http://" + s)
	if err != nil || u.Host != s {
		return false
	}
	_, notAddress := netip.ParseAddr(u.Hostname())
	return notAddress == nil || hostPattern(u.Hostname())
}

// prefix parses an address or a prefix of addresses.
func prefix(s string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(s)
	return p.Masked(), err == nil
}

// hostPattern reports whether s is a host name or, after *., all names below one.
func hostPattern(s string) bool {
	name := strings.TrimPrefix(s, "*.")
	return name != "" && len(name) <= 253 && strings.Trim(strings.ToLower(name), "abcdefghijklmnopqrstuvwxyz0123456789-_.") == "" &&
		!strings.HasPrefix(name, ".") && !strings.Contains(name, "..")
}

// reachable returns an error if n allows a destination that is not in reach, the hosts that all
// sandboxes can reach; nil is the Internet.
func (n Network) reachable(reach []string) error {
	if reach == nil {
		return nil
	}
	for _, to := range n.AllowOut {
		if !covered(reach, to) {
			return invalid("allowed host or CIDR %q is not in e2b.reach of the server's configuration", short(to))
		}
	}
	return nil
}

// covered reports whether one of hosts includes the name or addresses in to.
func covered(hosts []string, to string) bool {
	to = strings.ToLower(to)
	of, isPrefix := prefix(to)
	return slices.ContainsFunc(hosts, func(host string) bool {
		host = strings.ToLower(host)
		if p, ok := prefix(host); ok || isPrefix {
			return ok && isPrefix && p.Bits() <= of.Bits() && p.Contains(of.Addr())
		}
		below, wildcard := strings.CutPrefix(host, "*.")
		return host == "*" || host == to || wildcard && strings.HasSuffix(to, "."+below)
	})
}

// rules returns the egress rules of a sandbox's jail: allow the allowed names and addresses,
// deny the denied ones, then allow the hosts in reach, or the rest of the Internet if it is nil.
func (b Sandbox) rules(reach []string) egress.Rules {
	var r egress.Rules
	allow := func(name, host string) {
		r.Allow = append(r.Allow, egress.Rule{Name: name, Host: host, Internet: true})
	}
	deny := func(name, host string) {
		r.Allow = append(r.Allow, egress.Rule{Name: name, Host: host, Deny: true})
	}
	for _, to := range b.Network.AllowOut {
		switch {
		case reach == nil:
			allow("allowOut "+to, strings.ToLower(to))
		case covered(reach, to): // applies to a sandbox that was created before the current configuration
			r.Allow = append(r.Allow, egress.Rule{Name: "allowOut " + to, Host: strings.ToLower(to)})
		}
	}
	for _, to := range b.Network.DenyOut {
		deny("denyOut "+to, to)
		if to == allIPv4 {
			deny("denyOut "+to, allIPv6)
		}
	}
	if b.Internet == nil || *b.Internet {
		if reach == nil {
			for _, all := range []string{"*", allIPv4, allIPv6} {
				allow("the Internet", all)
			}
		}
		for _, host := range reach {
			r.Allow = append(r.Allow, egress.Rule{Name: "e2b.reach " + host, Host: host})
		}
	}
	for _, host := range slices.Sorted(maps.Keys(b.Network.Rules)) {
		if t := transformOf(b.Team, host, b.Network.Rules[host]); len(t.Headers)+len(t.SecretHeaders) > 0 {
			r.Transform = append(r.Transform, t)
		}
	}
	return r
}

// withEgressRules returns a function that replaces the egress rules in a jail's policy by those
// of b.
func (s *Sandboxes) withEgressRules(b Sandbox) func(json.RawMessage) (json.RawMessage, error) {
	return func(was json.RawMessage) (json.RawMessage, error) { return s.cfg.Govern(was, b.rules(s.cfg.Reach)) }
}

// SetNetwork changes the egress rules of a running sandbox. The change takes effect immediately.
// The access to its ports does not change.
func (s *Sandboxes) SetNetwork(ctx context.Context, team id.Token, sandbox string, n Network, internet *bool) error {
	if err := n.check(); err != nil {
		return err
	}
	if err := n.reachable(s.cfg.Reach); err != nil {
		return err
	}
	c, err := s.find(team, sandbox)
	if err != nil {
		return err
	}
	return s.change(ctx, c, func(ctx context.Context, b Sandbox) error {
		if b.State != Running {
			return notRunning(sandbox)
		}
		n.Public, n.MaskHost, n.HTTPS = b.Network.Public, b.Network.MaskHost, b.Network.HTTPS
		b.Network, b.Internet = n, internet
		// The jail's record is authoritative; the sandbox's record is informational.
		if _, err := s.cfg.Jails.ReplacePolicy(ctx, b.Jail, s.withEgressRules(b)); err != nil {
			return err
		}
		return s.save(ctx, c, b)
	})
}
