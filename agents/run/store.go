package run

import (
	"context"
	"time"

	"glasshouse/id"
)

// A Store stores the objects of this package. Lists are paged: a call returns at most limit
// objects after the last of the previous page.
type Store interface {
	// Write applies a Change atomically. It returns fault.Conflict and changes nothing if an
	// object has another version than the Change expects, or if a new object already exists.
	// It sets the numbers of Events and Messages, which have no gaps. After any other error,
	// the Change may or may not have been applied.
	Write(ctx context.Context, c *Change) error

	Session(ctx context.Context, sid string) (Session, error)                                   // fault.NotFound, like all methods that return one object
	Sessions(ctx context.Context, f SessionFilter) ([]Session, error)                           // newest first
	Run(ctx context.Context, rid id.Run) (Run, error)                                           //
	RunOf(ctx context.Context, sid, key string) (Run, error)                                    // by idempotency key
	Runs(ctx context.Context, f Filter) ([]Run, error)                                          // newest first
	Step(ctx context.Context, rid id.Run, key string) (Step, error)                             //
	Steps(ctx context.Context, f StepFilter) ([]Step, error)                                    // by N
	Succeeded(ctx context.Context, rid id.Run) (map[string]int64, error)                        // number of successful calls by capability
	Checkpoint(ctx context.Context, cid id.Checkpoint) (Checkpoint, error)                      //
	Checkpoints(ctx context.Context, rid id.Run, after int64, limit int) ([]Checkpoint, error)  // by N, without State and Memory
	Message(ctx context.Context, mid id.Message) (Message, error)                               //
	MessageOf(ctx context.Context, sid string, d Dir, key string) (Message, error)              // by idempotency key
	Messages(ctx context.Context, sid string, d Dir, after int64, limit int) ([]Message, error) // by Seq
	Events(ctx context.Context, sid string, after int64, limit int) ([]Event, error)            // by Seq
	Sealed(ctx context.Context, handle string) (Sealed, error)                                  //
	Purge(ctx context.Context, before time.Time) (int64, error)                                 // deletes Sealed texts that expire before

	// Due returns runs whose NextRunAt has passed, earliest first.
	Due(ctx context.Context, now time.Time, limit int) ([]Run, error)

	// TakeDeliveries returns due deliveries to a connector, earliest first, and postpones each
	// to until, so that only the holder takes it before.
	TakeDeliveries(ctx context.Context, to, holder string, now, until time.Time, limit int) ([]Delivery, error)
	Deliveries(ctx context.Context, mid id.Message) ([]Delivery, error)
	DeliveriesTo(ctx context.Context, f DeliveryFilter) ([]Delivery, error) // by due time
	CountDeliveries(ctx context.Context, to string, s DeliveryState) (int64, error)

	// Claim gives a session to a holder, unless another holder has it. If epoch is not 0, the
	// holder must be a node with a valid lease and this epoch. It reports whether it succeeded.
	Claim(ctx context.Context, sid, holder string, epoch int64) (bool, error)
	// Assign lets another node start the runs of a session. It returns false if that node is not up
	// or the session is claimed.
	Assign(ctx context.Context, sid, node string) (bool, error)
	// Release ends the claim of a holder on a session. If sid is "", it ends all claims of the
	// holder and returns the deliveries that it took without reporting a result.
	Release(ctx context.Context, sid, holder string) error
	// Unclaimed returns runs that need a supervisor, in order of creation: of sessions that
	// holder has claimed, or that are unclaimed and not assigned to another node.
	Unclaimed(ctx context.Context, holder string, after id.Run, limit int) ([]Run, error)

	// PendingRecords returns the pending records of a holder, in the order in which they were written.
	PendingRecords(ctx context.Context, holder string, limit int) ([]Record, error)
	// TakePendingRecords assigns to holder the pending records that other holders have had since before
	// the time before, and returns them in the same order. The new holder has them since now.
	TakePendingRecords(ctx context.Context, holder string, before, now time.Time, limit int) ([]Record, error)
	// MarkRecorded deletes a record after it was appended to the chain, and sets the entry number on
	// the object that it describes.
	MarkRecorded(ctx context.Context, r Record, entry int64) error
}

// A Change is the argument of Write. All objects belong to one session.
type Change struct {
	ID     string // ID of the session
	Holder string // must have claimed the session; "": no claim is required
	Epoch  int64  // of Holder, when it claimed the session

	// Objects with version 1 must not exist; others must follow the stored version.
	Session *Session
	Runs    []Run

	Copy               *Copy        // applied before Steps
	Steps              []Step       // new or changed; their runs are in Runs, or Holder has the lease
	Checkpoints        []Checkpoint // new
	DeletedCheckpoints []id.Checkpoint
	Messages           []Message  // new
	Deliveries         []Delivery // new or changed
	Sealed             []Sealed   // new
	Events             []Event
	Records            []Record
}

// A Copy copies the beginning of a run's step log to another run.
type Copy struct {
	From, To id.Run
	UpTo     int64 // N of the last step
}

// A Filter selects the runs that List returns.
type Filter struct {
	Session string
	Parent  id.Run
	States  []State // nil: any state
	After   id.Run  // id of the last run of the previous page
	Limit   int     // 0: 100
}

// A SessionFilter selects the sessions that Sessions returns.
type SessionFilter struct {
	State SessionState // "": any state
	Group string       // "": any group
	After string       // id of the last session of the previous page
	Limit int          // 0: 100
}

// A StepFilter selects the steps of a run that Steps returns.
type StepFilter struct {
	Run   id.Run
	State StepState // "": any state
	After int64     // only steps with a larger N
	Limit int       // 0: 100
}
