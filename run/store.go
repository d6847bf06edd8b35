package run

import (
	"context"
	"time"

	"glasshouse/id"
)

// A Store keeps all of this. What it lists comes in pages: at most limit, after the
// last of the page before.
type Store interface {
	// Write carries out a Change: all of it, or nothing with a fault.Conflict if
	// something is not any more as the Change was made for, or there is already
	// what it makes. It fills in the numbers of Events and Messages, which have
	// no gaps. After any other error it may have been carried out.
	Write(ctx context.Context, c *Change) error

	Session(ctx context.Context, sid string) (Session, error)                                   // fault.NotFound, as all that return one
	Sessions(ctx context.Context, f SessionFilter) ([]Session, error)                           // newest first
	Run(ctx context.Context, rid id.Run) (Run, error)                                           //
	RunOf(ctx context.Context, sid, key string) (Run, error)                                    // that was asked for with a key
	Runs(ctx context.Context, f Filter) ([]Run, error)                                          // newest first
	Step(ctx context.Context, rid id.Run, key string) (Step, error)                             //
	Steps(ctx context.Context, f StepFilter) ([]Step, error)                                    // by N
	Succeeded(ctx context.Context, rid id.Run) (map[string]int64, error)                        // how often each capability was done
	Checkpoint(ctx context.Context, cid id.Checkpoint) (Checkpoint, error)                      //
	Checkpoints(ctx context.Context, rid id.Run, after int64, limit int) ([]Checkpoint, error)  // by N, without State and Memory
	Message(ctx context.Context, mid id.Message) (Message, error)                               //
	MessageOf(ctx context.Context, sid string, d Dir, key string) (Message, error)              // that was sent with a key
	Messages(ctx context.Context, sid string, d Dir, after int64, limit int) ([]Message, error) // by Seq
	Events(ctx context.Context, sid string, after int64, limit int) ([]Event, error)            // by Seq
	Sealed(ctx context.Context, handle string) (Sealed, error)                                  //
	Purge(ctx context.Context, before time.Time) (int64, error)                                 // forgets what is Sealed until then

	// Due returns runs that wait for a time which has come, earliest first.
	Due(ctx context.Context, now time.Time, limit int) ([]Run, error)

	// TakeDeliveries returns deliveries to a connector whose time has come, earliest
	// first, and puts each off until a moment, so that nobody but the holder takes
	// it before.
	TakeDeliveries(ctx context.Context, to, holder string, now, until time.Time, limit int) ([]Delivery, error)
	Deliveries(ctx context.Context, mid id.Message) ([]Delivery, error)
	DeliveriesTo(ctx context.Context, f DeliveryFilter) ([]Delivery, error) // by when they are due
	CountDeliveries(ctx context.Context, to string, s DeliveryState) (int64, error)

	// Claim claims a session for a holder until a moment, unless another has a
	// claim on it that is not over now. It reports whether it did.
	Claim(ctx context.Context, sid, holder string, now, until time.Time) (bool, error)
	// Renew puts off the end of all claims of a holder, and returns of which
	// sessions they are.
	Renew(ctx context.Context, holder string, until time.Time) ([]string, error)
	// Release ends the claim of a holder on a session; on all if sid is "", and then
	// also gives back the deliveries that it took and has not said what came of.
	Release(ctx context.Context, sid, holder string) error
	// Unclaimed returns active runs of sessions that nobody but the holder has a
	// claim on, by when they were made.
	Unclaimed(ctx context.Context, holder string, now time.Time, after id.Run, limit int) ([]Run, error)

	// Owed returns the records that the chain is owed by a holder, in the order in
	// which they were written.
	Owed(ctx context.Context, holder string, limit int) ([]Record, error)
	// TakeOwed makes a holder's what others have owed since before a moment, as
	// of now, and returns it in the same order.
	TakeOwed(ctx context.Context, holder string, before, now time.Time, limit int) ([]Record, error)
	// Paid forgets a record, and writes its number on what it is about.
	Paid(ctx context.Context, r Record, entry int64) error
}

// A Change is what Write writes at once. All of it belongs to one session.
type Change struct {
	ID     string // of the session
	Holder string // who must have a claim on it; "": anybody may write this

	// Of a version 1 there is none yet; any other follows the one before.
	Session *Session
	Runs    []Run

	Copy        *Copy        // is done before Steps
	Steps       []Step       // new or changed; their runs are among Runs, or the Holder's
	Checkpoints []Checkpoint // new
	Forgotten   []id.Checkpoint
	Messages    []Message  // new
	Deliveries  []Delivery // new or changed
	Sealed      []Sealed   // new
	Events      []Event
	Records     []Record
}

// A Copy is the journal of a run as the beginning of another's.
type Copy struct {
	From, To id.Run
	UpTo     int64 // N of the last step
}

// A Filter says which runs are listed.
type Filter struct {
	Session string
	Parent  id.Run
	States  []State // none: in any
	After   id.Run  // of the page before, the last
	Limit   int     // 0: 100
}

// A SessionFilter says which sessions are listed.
type SessionFilter struct {
	State SessionState // "": in any
	Group string       // "": of any
	After string       // of the page before, the last
	Limit int          // 0: 100
}

// A StepFilter says which steps of a run are listed.
type StepFilter struct {
	Run   id.Run
	State StepState // "": in any
	After int64     // N larger than this
	Limit int       // 0: 100
}
