package egress

import (
	"context"
	"net/netip"

	"glasshouse/fault"
)

// An Explanation is the result of evaluating the rules for a request, without the Authority.
type Explanation struct {
	Allow          bool
	Rule           string // the rule that allows it, or the closest match
	Reason         Reason // reason of the refusal
	Detail         string // human-readable
	Remedy         string
	NeedsAuthority bool // a configured Authority would decide the request
}

// Explain evaluates the rules for a request. It makes no connection, resolves no names, does
// not call the Authority, and does not charge limits.
func (r Rules) Explain(ask Request) (Explanation, error) {
	// compile requires a CA and secret functions for some rules. Explain never calls them.
	none := fault.Newf(fault.Denied, "egress.Explain", "", "explain does not send requests")
	p := Proxy{conf: Config{
		CA:          new(CA),
		Secret:      func(context.Context, string, string) ([]byte, error) { return nil, none },
		OwnerSecret: func(context.Context, string, string, string) ([]byte, error) { return nil, none },
	}}
	rules, err := p.compile(r, nil)
	if err != nil {
		return Explanation{}, err
	}
	g, ref := rules.settle(ask, netip.AddrPort{})
	if ref == nil {
		return Explanation{Allow: true, Rule: g.label}, nil
	}
	_, addr, _ := parseHost(ask.Host)
	return Explanation{Rule: ref.Rule, Reason: ref.Reason, Detail: ref.Detail, Remedy: ref.Remedy, NeedsAuthority: authorityDecides(ref.Reason) && !addr.IsValid()}, nil
}
