package chain

import (
	"context"
	"time"

	"glasshouse/id"
)

// A Row is an entry in the form of a Store. Line is authoritative; the other fields are copies
// for queries.
type Row struct {
	Seq        int64
	Time       int64 // nanoseconds since 1970
	Kind       string
	Parent     int64
	Jail       string
	Session    string
	Run        string
	Capability string

	Line  string // the canonical entry
	Nodes string // hashes of the subtrees that it completes
}

// A Checkpoint is the signed state of the tree at one size. Note is in the format of C2SP
// tlog-checkpoint: origin, size, root hash, signature.
type Checkpoint struct {
	Size int64
	Note string
}

// A Reader reads a stored chain, even while the chain grows.
type Reader interface {
	// Last returns the last entry, or a Row with Seq 0 if the chain is empty.
	Last(ctx context.Context) (Row, error)
	// Rows returns those of the given entries that exist, in any order.
	Rows(ctx context.Context, seqs []int64) ([]Row, error)
	// Select returns the entries that match q, in its order, at most q.Limit.
	Select(ctx context.Context, q Query) ([]Row, error)
	// Checkpoints returns at most limit checkpoints larger than after, by size.
	Checkpoints(ctx context.Context, after int64, limit int) ([]Checkpoint, error)
	// LastCheckpoint returns the largest checkpoint, or one with Size 0.
	LastCheckpoint(ctx context.Context) (Checkpoint, error)
}

// A Store persists a chain.
type Store interface {
	Reader

	// Claim gives the caller the exclusive right to append, until release or the end of the
	// process. It returns fault.Conflict if another process has it.
	Claim(ctx context.Context) (release func() error, err error)

	// Append adds rows after the entry with Seq last, and the checkpoint if its Size is not 0,
	// in one transaction that is durable when Append returns. It returns fault.Conflict if the
	// last entry is a different one. After any other error the transaction may have been
	// committed; the caller calls Last to find out.
	Append(ctx context.Context, last int64, rows []Row, cp Checkpoint) error
}

// A Query selects entries. A zero field matches any value.
type Query struct {
	Session    string
	Run        string
	Jail       id.Jail
	Capability string
	Kinds      []Kind    // any of these
	Parent     int64     // caused by this entry
	Under      int64     // caused directly or indirectly by this entry
	From       time.Time // not before
	Until      time.Time // before

	Newest bool  // in descending order
	After  int64 // only entries after this one in that order; 0 starts at the beginning
	Limit  int   // maximum number
}
