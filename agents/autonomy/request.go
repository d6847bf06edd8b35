package autonomy

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

// A State is the state of a request between siblings.
type State string

const (
	Queued    State = "queued"    // stored, not delivered
	Delivered State = "delivered" // delivered, or being delivered
	Answered  State = "answered"
	Failed    State = "failed"  // undeliverable, or a member has ended
	Expired   State = "expired" // not answered before the deadline
	Refused   State = "refused" // never sent
)

// transitions lists the legal state transitions of a request.
var transitions = map[State][]State{
	"":        {Queued, Refused},
	Queued:    {Delivered, Answered, Failed, Expired},
	Delivered: {Queued, Answered, Failed, Expired}, // Queued: the delivery failed
	Answered:  {},
	Failed:    {},
	Expired:   {},
	Refused:   {},
}

// A Request is a request from one sibling to another.
type Request struct {
	ID      id.Request `json:"id"`
	From    Member     `json:"from"`
	To      Member     `json:"to"`
	Action  string     `json:"action"`
	Context string     `json:"context,omitempty"`
	Key     string     `json:"key,omitempty"` // idempotency key of the requester

	State    State     `json:"state"`
	Answer   string    `json:"answer,omitempty"`
	Refusal  *Refusal  `json:"refusal,omitempty"` // set in state Refused
	Why      string    `json:"why,omitempty"`     // reason of failure or expiry
	Created  time.Time `json:"created"`
	Deadline time.Time `json:"deadline"`
	Ended    time.Time `json:"ended,omitzero"`

	// Parent is the request that the requester was working on, and Root the first request of the
	// chain. Depth is the number of ancestors. Hops counts the requests of a root; the root
	// has 1.
	Parent id.Request `json:"parent,omitempty"`
	Root   id.Request `json:"root"`
	Depth  int        `json:"depth"`
	Hops   int        `json:"hops"`

	Wait          bool `json:"wait,omitempty"`  // the requester is blocked until the answer
	QueuePosition int  `json:"place,omitempty"` // position in the queue for a free slot, from 1; 0: not queued

	Deliveries int       `json:"tries,omitempty"` // number of deliveries; if more than 1, the receiver may have seen it
	Lease      time.Time `json:"lease,omitzero"`  // deadline for the acknowledgement
	Next       time.Time `json:"next,omitzero"`   // time of the next delivery
	Acked      bool      `json:"acked,omitempty"` // the receiver has it durably
	Inbox      bool      `json:"inbox,omitempty"` // it was pushed to the inbox; Waiting still lists it
}

// Open reports whether the request can still be answered.
func (r Request) Open() bool { return r.State == Queued || r.State == Delivered }

// setState changes the state of a request. Final states clear the waiting fields.
func (r *Request) setState(to State, now time.Time, why string) error {
	if !slices.Contains(transitions[r.State], to) {
		return fault.Newf(fault.Conflict, "autonomy.setState", string(r.ID), "the request is already %s", r.State)
	}
	r.State = to
	if len(transitions[to]) == 0 {
		r.Ended, r.Why, r.Wait, r.Lease, r.Next = now, why, false, time.Time{}, time.Time{}
	}
	return nil
}

// An Ask is a new request to a sibling.
type Ask struct {
	To      string // jail, session or name
	Action  string
	Context string

	// ReplyWithin is how long Ask blocks for the answer. 0: it does not block.
	ReplyWithin time.Duration

	// Key identifies the request when it is repeated after a restart of the requester. "": always
	// a new request.
	Key string
}

// Maximum sizes in an Ask.
const (
	maxAction  = 256
	maxContext = 64 << 10
	maxAnswer  = 256 << 10
	maxKey     = 256
	maxWait    = time.Hour
)

func (a Ask) check() error {
	const op = "autonomy.Ask"
	switch {
	case strings.TrimSpace(a.Action) == "" || len(a.Action) > maxAction:
		return fault.Fieldf(op, "action", "is missing or exceeds %d bytes", maxAction)
	case len(a.Context) > maxContext:
		return fault.Newf(fault.TooLarge, op, "", "the context exceeds %d bytes: write it to a file and send the path", maxContext)
	case len(a.Key) > maxKey:
		return fault.Fieldf(op, "key", "exceeds %d bytes", maxKey)
	case a.ReplyWithin < 0 || a.ReplyWithin > maxWait:
		return fault.Fieldf(op, "reply_timeout_ms", "want 0 to %d", maxWait.Milliseconds())
	}
	return nil
}

// topic identifies equal requests: a hash of the context without differences in spacing and
// case, or of the action if there is no context.
func topic(action, context string) string {
	s := strings.Join(strings.Fields(strings.ToLower(context)), " ")
	if s == "" {
		s = "action " + strings.Join(strings.Fields(strings.ToLower(action)), " ")
	}
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:12])
}
