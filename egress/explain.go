package egress

import (
	"context"
	"net/netip"

	"glasshouse/fault"
)

// An Answer is what rules say to a request by themselves.
type Answer struct {
	Allow  bool
	Rule   string // that allows it, or comes nearest
	Reason Reason // of a refusal
	Detail string // for people
	Remedy string
	Asks   bool // the Authority decides, if there is one
}

// Explain says what rules would say to a request. Nothing is asked, carried or
// counted; of a name it is not known what its addresses are.
func (r Rules) Explain(ask Request) (Answer, error) {
	// Only what a proxy would be given beside the rules.
	none := fault.Newf(fault.Denied, "egress.Explain", "", "nothing is carried")
	p := Proxy{conf: Config{
		CA:     new(CA),
		Secret: func(context.Context, string, string) ([]byte, error) { return nil, none },
		Owned:  func(context.Context, string, string, string) ([]byte, error) { return nil, none },
	}}
	rules, err := p.compile(r, nil)
	if err != nil {
		return Answer{}, err
	}
	g, ref := rules.settle(ask, netip.AddrPort{})
	if ref == nil {
		return Answer{Allow: true, Rule: g.label}, nil
	}
	_, addr, _ := parseHost(ask.Host)
	return Answer{Rule: ref.Rule, Reason: ref.Reason, Detail: ref.Detail, Remedy: ref.Remedy, Asks: asks(ref.Reason) && !addr.IsValid()}, nil
}
