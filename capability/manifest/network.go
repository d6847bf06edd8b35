package manifest

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/idna"

	"glasshouse/capability/rtfs/form"
)

// The modes of a network.
const (
	ModeNone  = "none"
	ModeProxy = "proxy"
)

func (s *sections) network(n *form.Node) {
	w := &s.c.Network
	w.Mode = ModeProxy
	if !s.entries(n, "network", keys{
		"mode":          func(n *form.Node) { w.Mode = s.networkMode(n) },
		"allowed-hosts": func(n *form.Node) { w.Hosts = s.set(n, "network.allowed-hosts", s.host) },
		"allowed-ports": s.ports,
		"egress-rate-limit": func(n *form.Node) {
			w.Rate = int(s.integer(n, "network.egress-rate-limit", 1, 1_000_000))
		},
		"inject": s.inject,
	}) {
		return
	}
	for i := 0; i+1 < len(n.Items); i += 2 {
		if k, ok := n.Items[i].Atom.(form.Keyword); ok {
			s.at["network."+string(k)] = n.Items[i+1]
		}
	}
}

func (s *sections) networkMode(n *form.Node) string {
	if w := n.Atom; n.Kind == form.AtomNode && (w == form.Value(form.Keyword("direct")) || w == form.Value("direct")) {
		s.problem(n, "network.mode", "direct network access is not supported: use :proxy with allowed-hosts")
		return "" // report no mode, so that further problems of :network refer to the text of the manifest
	}
	return s.oneOf(n, "network.mode", ModeNone, ModeProxy)
}

func (s *sections) ports(n *form.Node) {
	const field = "network.allowed-ports"
	for i, item := range s.list(n, field) {
		at := fmt.Sprintf("%s[%d]", field, i)
		p := uint16(s.integer(item, at, 1, 65535))
		if p != 0 && slices.Contains(s.c.Network.Ports, p) {
			s.problem(item, at, "duplicate port %d", p)
		} else if p != 0 {
			s.c.Network.Ports = append(s.c.Network.Ports, p)
		}
	}
}

var secretName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]{0,127}$`)

// secret parses the name of a secret.
func (s *sections) secret(n *form.Node, field string) string {
	w := s.word(n, field)
	if w == "" {
		return ""
	}
	if err := CheckSecret(w); err != nil {
		s.problem(n, field, "%v", err)
		return ""
	}
	return w
}

// CheckSecret returns an error if the name of a secret is invalid.
func CheckSecret(name string) error {
	if !secretName.MatchString(name) {
		return fmt.Errorf("%.80q is not a valid secret name: use a letter or _, then letters, digits, _ . -", name)
	}
	return nil
}

// host parses a host in the proxy's syntax: a name, *.NAME for all subdomains, * for every
// name, an address, or an address prefix.
func (s *sections) host(n *form.Node, field string) string {
	h := s.str(n, field)
	if h == "" {
		return ""
	}
	plain, err := parseHost(h)
	if err != nil {
		s.problem(n, field, "%.80q %v", h, err)
		return ""
	}
	return plain
}

var errHost = errors.New("is not a host name, *.NAME or an address")

// parseHost returns the canonical form of a host.
func parseHost(h string) (string, error) {
	if h == "*" {
		return h, nil
	}
	if p, err := netip.ParsePrefix(h); err == nil {
		return p.Masked().String(), nil
	}
	if a, err := netip.ParseAddr(h); err == nil && a.Zone() == "" {
		return a.Unmap().String(), nil
	}
	switch {
	case strings.Contains(h, "://"):
		return "", errors.New("is a URL: give the host name only")
	case strings.Contains(h, ":"):
		return "", errors.New("contains a port: use allowed-ports")
	case strings.Contains(h, "/"):
		return "", errors.New("has a path: give the host name only")
	}
	below, wild := strings.CutPrefix(h, "*.")
	if ascii, err := idna.Lookup.ToASCII(below); err == nil {
		below = ascii
	}
	below = strings.ToLower(strings.TrimSuffix(below, "."))
	if err := checkName(below); err != nil {
		return "", err
	}
	if wild {
		return "*." + below, nil
	}
	return below, nil
}

var hostLabel = regexp.MustCompile(`^[a-z0-9_-]{1,63}$`)

func checkName(name string) error {
	labels := strings.Split(name, ".")
	if len(name) > 253 || slices.ContainsFunc(labels, func(l string) bool { return !hostLabel.MatchString(l) }) {
		return errHost
	}
	// Lenient parsers interpret such a name as an IPv4 address.
	last := labels[len(labels)-1]
	if strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") && strings.Trim(last[2:], "0123456789abcdef") == "" {
		return errors.New("ends in a number but is not an address in canonical form")
	}
	return nil
}

// coversHost reports whether pattern matches every host that host matches.
func coversHost(pattern, host string) bool {
	if pattern == host {
		return true
	}
	if outer, ok := prefixOf(pattern); ok {
		inner, ok := prefixOf(host)
		return ok && outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
	}
	if _, address := prefixOf(host); address || host == "*" {
		return false
	}
	if pattern == "*" {
		return true
	}
	below, wild := strings.CutPrefix(pattern, "*.")
	return wild && strings.HasSuffix(strings.TrimPrefix(host, "*."), "."+below)
}

func prefixOf(host string) (netip.Prefix, bool) {
	if p, err := netip.ParsePrefix(host); err == nil {
		return p, true
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	return netip.Prefix{}, false
}

// inject parses how the proxy adds secrets to requests.
func (s *sections) inject(n *form.Node) {
	const field = "network.inject"
	for i, item := range s.list(n, field) {
		at := fmt.Sprintf("%s[%d]", field, i)
		in := Inject{As: "bearer"}
		ways := 0
		direction := func(as string) func(n *form.Node) {
			return func(n *form.Node) {
				ways++
				in.As, in.Name = as, s.str(n, at+"."+as)
			}
		}
		if !s.entries(item, at, keys{
			"secret": func(n *form.Node) { in.Secret = s.secret(n, at+".secret") },
			"host":   func(n *form.Node) { in.Host = s.host(n, at+".host") },
			"bearer": func(n *form.Node) {
				ways++
				if !s.flag(n, at+".bearer") {
					s.problem(n, at+".bearer", "must be true or absent")
				}
			},
			"basic":  direction("basic"),
			"header": direction("header"),
			"query":  direction("query"),
		}) {
			continue
		}
		switch {
		case ways > 1:
			s.problem(item, at, "specify exactly one of bearer, basic, header or query")
		case in.As == "header" && in.Name != "" && !headerForSecret(in.Name):
			s.problem(item, at+".header", "%.60q is not a valid header for a secret", in.Name)
		case in.As == "basic" && strings.ContainsAny(in.Name, ":\r\n"):
			s.problem(item, at+".basic", "%.60q is not a valid user name", in.Name)
		}
		s.c.Network.Inject = append(s.c.Network.Inject, in)
		s.at[at] = item
	}
}

// framing are the headers that delimit or route a message.
var framing = []string{"host", "content-length", "transfer-encoding", "connection", "trailer", "te", "upgrade", "keep-alive", "proxy-connection"}

func headerForSecret(name string) bool {
	return httpguts.ValidHeaderFieldName(name) && !slices.Contains(framing, strings.ToLower(name))
}

// SecretFiles returns the secrets that are mounted as files. Secrets that the proxy adds to
// requests are not included.
func (c *Capability) SecretFiles() []string {
	return slices.DeleteFunc(slices.Clone(c.Secrets), func(name string) bool {
		return slices.ContainsFunc(c.Network.Inject, func(in Inject) bool { return in.Secret == name })
	})
}

func (s *sections) egress(n *form.Node) {
	words := s.set(n, "egress", func(n *form.Node, field string) string {
		if w := s.word(n, field); w == "" || w == "none" {
			return w
		}
		s.problem(n, field, "must be [:none], which disables the network; list hosts in network.allowed-hosts")
		return ""
	})
	if n.Kind == form.VectorNode && len(n.Items) == 0 {
		s.problem(n, "egress", "must not be empty: use [:none], or omit it")
	}
	s.c.NoEgress = len(words) == 1
}

// agreeNetwork checks the consistency of :network.
func (s *sections) agreeNetwork() {
	w, n := s.c.Network, s.at["network"]
	if n == nil || n.Kind != form.MapNode {
		return
	}
	if w.Mode == ModeNone {
		for _, key := range []string{"allowed-hosts", "allowed-ports", "egress-rate-limit", "inject"} {
			if at := s.at["network."+key]; at != nil {
				s.problem(at, "network."+key, "it has no effect with mode :none")
			}
		}
		return
	}
	if w.Mode == ModeProxy && s.at["network.allowed-hosts"] == nil || w.Mode == ModeProxy && len(s.at["network.allowed-hosts"].Items) == 0 {
		s.problem(n, "network.allowed-hosts", "no host is listed: list hosts, or use :mode :none")
	}
	if len(w.Hosts) > 0 && !slices.Contains(s.c.Effects, "network") {
		s.problem(n, "network", "it reaches hosts, but effects lacks :network")
	}
	for i, in := range w.Inject {
		at := fmt.Sprintf("network.inject[%d]", i)
		switch {
		case in.Secret == "":
			s.problem(s.at[at], at+".secret", "the secret is required")
		case !slices.Contains(s.c.Secrets, in.Secret):
			s.problem(s.at[at], at+".secret", "%s is not listed in secrets", in.Secret)
		}
		if in.Host != "" && !slices.ContainsFunc(w.Hosts, func(h string) bool { return coversHost(h, in.Host) }) {
			s.problem(s.at[at], at+".host", "%s is not listed in allowed-hosts", in.Host)
		}
	}
}
