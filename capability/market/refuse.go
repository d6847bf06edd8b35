package market

import (
	"errors"
	"fmt"

	"glasshouse/fault"
)

// A Reason is why an index or an offer is refused. It is an error: errors.Is(err,
// market.Rollback) works at any depth of wrapping.
type Reason string

func (r Reason) Error() string { return string(r) }

const (
	BadIndex        Reason = "bad index"       // malformed or invalid
	WrongKey        Reason = "wrong signature" // not the market's key signed it
	Expired         Reason = "expired"         // the validity period is over
	NotYet          Reason = "made in the future"
	Rollback        Reason = "rollback"          // a newer index was seen before
	Forked          Reason = "forked"            // another index with the same serial was seen
	TooLarge        Reason = "too large"         // more bytes than the limit or the declared size
	Slow            Reason = "too slow"          // the server sends too slowly
	OffHostRedirect Reason = "leads elsewhere"   // redirect to another host
	WrongBytes      Reason = "wrong digest"      // the bytes do not match the digest in the index
	WrongBundle     Reason = "another bundle"    // the bundle is not the one in the index
	Absent          Reason = "not in the market" // no market offers it
)

var rules = map[Reason]struct {
	kind   fault.Kind
	remedy string
}{
	BadIndex:        {fault.Invalid, "ask the market's maintainer to write a new index with glasshouse market index"},
	WrongKey:        {fault.Denied, "ask the market's maintainer over another channel whether the key has changed"},
	Expired:         {fault.Denied, "ask the market's maintainer to sign a new index with glasshouse market index"},
	NotYet:          {fault.Denied, "check the clocks of this host and of the market"},
	Rollback:        {fault.Denied, "an old index was served: check the connection and ask the market's maintainer"},
	Forked:          {fault.Denied, "different clients are served different indexes: ask the market's maintainer"},
	TooLarge:        {fault.TooLarge, "report this to the market's maintainer"},
	Slow:            {fault.Timeout, "try again later"},
	OffHostRedirect: {fault.Denied, "ask the market's maintainer for its new address"},
	WrongBytes:      {fault.Denied, "do not use this file: it is not the one in the index"},
	WrongBundle:     {fault.Denied, "report this to the market's maintainer"},
	Absent:          {fault.NotFound, "run glasshouse market search to list the offers"},
}

func refuse(r Reason, on, format string, args ...any) error {
	rule := rules[r]
	return &fault.Error{
		Op: "market.refuse", On: on, Kind: rule.kind, Remedy: rule.remedy,
		Err: fmt.Errorf("%w: "+format, append([]any{r}, args...)...),
	}
}

// ReasonOf returns the reason of a refusal, or "" if err has none.
func ReasonOf(err error) Reason {
	r, _ := errors.AsType[Reason](err)
	return r
}
