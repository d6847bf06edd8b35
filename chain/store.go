package chain

import (
	"context"
	"time"

	"glasshouse/id"
)

// A Row is an entry as a Store keeps it. Line is what counts; the fields before
// it say the same again, to be asked for.
type Row struct {
	Seq        int64
	Time       int64 // nanoseconds since 1970
	Kind       string
	Parent     int64
	Jail       string
	Session    string
	Run        string
	Capability string

	Line  string // the entry, canonically
	Nodes string // hashes of the tree that it completes
}

// A Checkpoint is the state of the tree at one size, signed. Note is in the
// format of C2SP tlog-checkpoint: origin, size, root hash, signature.
type Checkpoint struct {
	Size int64
	Note string
}

// A Reader is a chain that can be read. Everything it is asked for may be read
// while the chain grows.
type Reader interface {
	// Last returns the last entry, or a Row whose Seq is 0 if there is none.
	Last(ctx context.Context) (Row, error)
	// Rows returns those of the given entries that are there, in any order.
	Rows(ctx context.Context, seqs []int64) ([]Row, error)
	// Select returns the entries that q asks for, in its order, at most q.Limit.
	Select(ctx context.Context, q Query) ([]Row, error)
	// Checkpoints returns at most limit checkpoints larger than after, by size.
	Checkpoints(ctx context.Context, after int64, limit int) ([]Checkpoint, error)
	// LastCheckpoint returns the largest, or one whose Size is 0.
	LastCheckpoint(ctx context.Context) (Checkpoint, error)
}

// A Store keeps a chain.
type Store interface {
	Reader

	// Claim makes the caller the only one who appends, until release. While
	// another process does it is a Conflict. A process that ends has released it.
	Claim(ctx context.Context) (release func() error, err error)

	// Append adds rows, which follow the entry whose Seq is last, and the
	// checkpoint if its Size is not 0: all of it or nothing, and durable when
	// Append returns. If the last entry is another one it is a Conflict.
	// After any other error it may have been added; Last tells.
	Append(ctx context.Context, last int64, rows []Row, cp Checkpoint) error
}

// A Query says which entries are asked for. The zero value of a field asks for
// any.
type Query struct {
	Session    string
	Run        string
	Jail       id.Jail
	Capability string
	Kinds      []Kind    // any of these
	Parent     int64     // caused by this entry
	Under      int64     // caused by this entry, or by what it caused, and so on
	From       time.Time // not before
	Until      time.Time // before

	Newest bool  // the last first, not the first
	After  int64 // those that follow this one in that order; 0: from its beginning
	Limit  int   // at most so many
}
