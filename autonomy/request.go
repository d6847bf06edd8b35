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

// A State is where a request between siblings is in its life.
type State string

const (
	Queued    State = "queued"    // kept; nobody has it yet
	Delivered State = "delivered" // its receiver has it, or is being handed it
	Answered  State = "answered"
	Failed    State = "failed"  // it cannot be delivered, or one of the two has ended
	Expired   State = "expired" // its time was over before there was an answer
	Refused   State = "refused" // it was never sent
)

// next lists the legal moves.
var next = map[State][]State{
	"":        {Queued, Refused},
	Queued:    {Delivered, Answered, Failed, Expired},
	Delivered: {Queued, Answered, Failed, Expired}, // Queued: it could not be handed over
	Answered:  {},
	Failed:    {},
	Expired:   {},
	Refused:   {},
}

// A Request is what one sibling wants of another.
type Request struct {
	ID      id.Request `json:"id"`
	From    Member     `json:"from"`
	To      Member     `json:"to"`
	Action  string     `json:"action"`
	Context string     `json:"context,omitempty"`
	Key     string     `json:"key,omitempty"` // the asker's, by which it asks for the same again

	State    State     `json:"state"`
	Answer   string    `json:"answer,omitempty"`
	Refusal  *Refusal  `json:"refusal,omitempty"` // of one that is refused
	Why      string    `json:"why,omitempty"`     // it failed, or expired
	Created  time.Time `json:"created"`
	Deadline time.Time `json:"deadline"`
	Ended    time.Time `json:"ended,omitzero"`

	// Parent is the request that its asker was working on when it asked, and
	// Root the first of that line. Depth is how many stand above it. Hops counts
	// the requests of one root: the root is 1.
	Parent id.Request `json:"parent,omitempty"`
	Root   id.Request `json:"root"`
	Depth  int        `json:"depth"`
	Hops   int        `json:"hops"`

	Wait  bool `json:"wait,omitempty"`  // its asker does nothing else until it is answered
	Place int  `json:"place,omitempty"` // in the queue for a place to work in, from 1; 0: it need not wait for one

	Tries int       `json:"tries,omitempty"` // how often it was handed over: more than once, and its receiver may have seen it
	Lease time.Time `json:"lease,omitzero"`  // until when whoever took it has time to say that it is there
	Next  time.Time `json:"next,omitzero"`   // when delivery is tried again
	Acked bool      `json:"acked,omitempty"` // its receiver has it for certain
	Inbox bool      `json:"inbox,omitempty"` // it was put into the receiver's inbox, and is listed all the same
}

// Open reports whether there can still be an answer.
func (r Request) Open() bool { return r.State == Queued || r.State == Delivered }

// move takes a request to another state.
func (r *Request) move(to State, now time.Time, why string) error {
	if !slices.Contains(next[r.State], to) {
		return fault.Newf(fault.Conflict, "autonomy.move", string(r.ID), "it is %s already", r.State)
	}
	r.State = to
	if len(next[to]) == 0 {
		r.Ended, r.Why, r.Wait, r.Lease, r.Next = now, why, false, time.Time{}, time.Time{}
	}
	return nil
}

// An Ask is what a member wants of a sibling.
type Ask struct {
	To      string // its jail, its session or its name
	Action  string
	Context string

	// ReplyWithin is how long the asker waits for the answer, doing nothing
	// else. 0: it does not wait, and looks for the answer later.
	ReplyWithin time.Duration

	// Key makes it the same request when it is asked again, by an asker that was
	// restarted. "": it is another.
	Key string
}

// Most there may be of an ask.
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
		return fault.Fieldf(op, "action", "is missing, or longer than %d bytes", maxAction)
	case len(a.Context) > maxContext:
		return fault.Newf(fault.TooLarge, op, "", "the context is longer than %d bytes: put it in a file and name that", maxContext)
	case len(a.Key) > maxKey:
		return fault.Fieldf(op, "key", "is longer than %d bytes", maxKey)
	case a.ReplyWithin < 0 || a.ReplyWithin > maxWait:
		return fault.Fieldf(op, "reply_timeout_ms", "want 0 to %d", maxWait.Milliseconds())
	}
	return nil
}

// topic is what two requests have in common that say the same: the context,
// however it is spaced and capitalized, and without one the action.
func topic(action, context string) string {
	s := strings.Join(strings.Fields(strings.ToLower(context)), " ")
	if s == "" {
		s = "action " + strings.Join(strings.Fields(strings.ToLower(action)), " ")
	}
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:12])
}
