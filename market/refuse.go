package market

import (
	"errors"
	"fmt"

	"glasshouse/fault"
)

// A Reason is why an index, or what it offers, is refused. It is an error itself:
// errors.Is(err, market.Rollback) works at any depth of wrapping.
type Reason string

func (r Reason) Error() string { return string(r) }

const (
	BadIndex   Reason = "bad index"       // it cannot be read, or says what no index may say
	WrongKey   Reason = "wrong signature" // not the market's key signed it
	Expired    Reason = "expired"         // nobody has signed it anew for too long
	NotYet     Reason = "made in the future"
	Rollback   Reason = "rollback"          // a newer one was seen already
	Forked     Reason = "forked"            // another one with the same number was seen
	TooLarge   Reason = "too large"         // more bytes than there may be, or than were said
	Slow       Reason = "too slow"          // the server keeps us waiting
	OffHost    Reason = "leads elsewhere"   // a redirection to another host
	WrongBytes Reason = "wrong digest"      // not the bytes that the index promised
	OtherThing Reason = "another bundle"    // not the bundle that the index promised
	Absent     Reason = "not in the market" // nobody offers it
)

var rules = map[Reason]struct {
	kind   fault.Kind
	remedy string
}{
	BadIndex:   {fault.Invalid, "tell who keeps the market; glasshouse market index writes a right one"},
	WrongKey:   {fault.Denied, "ask who keeps the market, on another way, whether the key has changed"},
	Expired:    {fault.Denied, "tell who keeps the market: glasshouse market index signs it anew"},
	NotYet:     {fault.Denied, "look at the clocks, here and there"},
	Rollback:   {fault.Denied, "somebody shows an old index: look at the way to the market, and ask who keeps it"},
	Forked:     {fault.Denied, "somebody shows different people different indexes: ask who keeps the market"},
	TooLarge:   {fault.TooLarge, "tell who keeps the market"},
	Slow:       {fault.Timeout, "try again later"},
	OffHost:    {fault.Denied, "ask who keeps the market where it is now"},
	WrongBytes: {fault.Denied, "do not use it: the index does not vouch for it"},
	OtherThing: {fault.Denied, "tell who keeps the market"},
	Absent:     {fault.NotFound, "glasshouse market search shows what there is"},
}

func refuse(r Reason, on, format string, args ...any) error {
	rule := rules[r]
	return &fault.Error{
		Op: "market", On: on, Kind: rule.kind, Remedy: rule.remedy,
		Err: fmt.Errorf("%w: "+format, append([]any{r}, args...)...),
	}
}

// ReasonOf returns why something was refused, or "" if that is not what err says.
func ReasonOf(err error) Reason {
	r, _ := errors.AsType[Reason](err)
	return r
}
