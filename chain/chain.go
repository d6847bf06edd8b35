// Package chain is the causal chain: the record of everything that was decided
// and done, to which one can only append, and of which nothing can be changed,
// taken away or put in between without everybody who looks seeing it.
//
// Every entry holds the hash of the one before. All entries are the leaves of a
// Merkle tree, whose root is signed again and again; who has one of these
// checkpoints and the public key can prove what was in the chain, and that it is
// still in it. An entry names the one that caused it, so the chain is also a
// tree of causes.
//
// Append returns when an entry is on the disk. What an agent does waits for that:
// what cannot be recorded must not be done.
package chain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"glasshouse/fault"
)

// Config is what a Chain is made of.
type Config struct {
	Store    Store
	Key      *Key
	Every    int64         // a checkpoint is signed after so many entries; 0 is 1000
	Interval time.Duration // and so long after an entry at the latest; 0 is 10 s
	Log      *slog.Logger  // nil is slog.Default

	// HeadFile is a file outside of the data directory to which signed checkpoints are
	// appended, and with which the store is compared when it is opened. "" is none.
	HeadFile string
}

// A Chain is open for appending. It is safe for concurrent use.
type Chain struct {
	store    Store
	key      *Key
	every    int64
	interval time.Duration
	log      *slog.Logger
	release  func() error

	queue   chan *pending
	quit    chan struct{} // closed by Close
	done    chan struct{} // closed when the writer has ended
	sending sync.WaitGroup

	last   atomic.Int64               // Seq of the last entry that is durable
	signed atomic.Pointer[Checkpoint] // the newest that is durable
	lost   atomic.Pointer[error]      // another process appends: nothing is added after that; only the writer sets it

	mu sync.Mutex
	// +checklocks:mu
	closed bool

	verifying sync.Mutex
	// verified is the position that Verify has reached.
	// +checklocks:verifying
	verified progress

	headFile string

	// The writer's own.
	published   int64     // size of the checkpoint that was last copied out of the store
	publishedAt time.Time // when that was
	tip         tip
	unsure      *batch // whether it was added is not known; nil if all is
}

// Queue and batches are bounded, so that a database that is slow makes who
// appends wait, and nothing else.
const (
	queueLen   = 1024
	batchLen   = 1024
	batchBytes = 4 << 20
	patience   = 30 * time.Second // that a database has for one transaction
)

// Open returns the chain that cfg.Store keeps, ready to go on. It is a Conflict if
// another process appends to it, or if its end is not as it was written. The rest
// of it is not read; Verify does.
func Open(ctx context.Context, cfg Config) (_ *Chain, err error) {
	c := &Chain{
		store: cfg.Store, key: cfg.Key, headFile: cfg.HeadFile, every: cfg.Every, interval: cfg.Interval, log: cfg.Log,
		queue: make(chan *pending, queueLen), quit: make(chan struct{}), done: make(chan struct{}),
	}
	if c.every <= 0 {
		c.every = 1000
	}
	if c.interval <= 0 {
		c.interval = 10 * time.Second
	}
	if c.log == nil {
		c.log = slog.Default()
	}
	if c.release, err = c.store.Claim(ctx); err != nil {
		return nil, fmt.Errorf("open the chain: %w", err)
	}
	if err := c.begin(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open the chain: %w", err), c.release())
	}
	go c.write()
	return c, nil
}

// begin reads where the chain has got to, and that what was signed last is in it.
func (c *Chain) begin(ctx context.Context) error {
	var err error
	if c.tip, err = readTip(ctx, c.store); err != nil {
		return damagedUnless(ctx, err)
	}
	cp, err := c.store.LastCheckpoint(ctx)
	if err != nil {
		return err
	}
	if cp.Size > 0 {
		if err := c.checkSigned(ctx, cp); err != nil {
			return err
		}
	}
	if err := c.checkHead(ctx); err != nil {
		return err
	}
	c.signed.Store(&cp)
	c.last.Store(c.tip.seq)
	if n := c.tip.seq - cp.Size; n > 0 {
		// As after a kill. But nobody vouches that it was us who wrote them.
		c.log.Warn("the chain's last entries were not signed when it was opened", "from", cp.Size+1, "entries", n)
	}
	return nil
}

func (c *Chain) checkSigned(ctx context.Context, cp Checkpoint) error {
	head, err := c.key.public.openOwn(cp.Note)
	if err != nil {
		return &fault.Error{
			Op: "chain.Open", Kind: fault.Conflict, Err: fmt.Errorf("its last checkpoint: %w", err),
			Remedy: "put back the " + KeyFile + " that this chain was signed with, or the database that belongs to this key",
		}
	}
	if head.Size != cp.Size || head.Size > c.tip.seq {
		return damaged(fmt.Errorf("%d entries were signed, and there are %d", head.Size, c.tip.seq))
	}
	root, err := rootAt(ctx, c.store, head.Size)
	if err != nil {
		return damagedUnless(ctx, err)
	}
	if root != head.Root {
		return damaged(fmt.Errorf("its first %d entries are not those that were signed", head.Size))
	}
	return nil
}

// damagedUnless calls err damage, unless it is that the database does not answer.
func damagedUnless(ctx context.Context, err error) error {
	if ctx.Err() != nil || fault.KindOf(err) != "" {
		return err
	}
	return damaged(err)
}

// Key returns the public key that the chain's checkpoints are verified with.
func (c *Chain) Key() Public { return c.key.public }

// Last returns the number of the last entry, which is how many there are.
func (c *Chain) Last() int64 { return c.last.Load() }

// Latest returns the newest checkpoint; its Size is 0 if there is none yet.
func (c *Chain) Latest() Checkpoint { return *c.signed.Load() }

// Append adds an entry, and returns it as it was added when it is durable. Seq,
// Time, Prev and Hash are the chain's to give; what e says of them is ignored.
//
// If too much waits to be added, Append waits too. When ctx ends while it does,
// the entry is not added, and Append says so. An entry that is being added is
// waited for.
func (c *Chain) Append(ctx context.Context, e Entry) (Entry, error) {
	if err := e.check(); err != nil {
		return Entry{}, err
	}
	if e.Parent < 0 || e.Parent > c.last.Load() {
		return Entry{}, fault.Fieldf("chain.Append", "parent", "there is no entry %d", e.Parent)
	}
	p := &pending{entry: e, done: make(chan struct{})}
	if err := c.send(ctx, p); err != nil {
		return Entry{}, err
	}
	return p.entry, nil
}

// AppendAll adds entries in their order, in as few transactions as hold them, and
// returns when the last is durable. The errors are those of the entries that are not
// added, at their places; nil: all are.
func (c *Chain) AppendAll(ctx context.Context, entries []Entry) []error {
	var errs []error
	failed := func(i int, err error) {
		if errs == nil {
			errs = make([]error, len(entries))
		}
		errs[i] = err
	}
	sent := make([]*pending, len(entries))
	for i, e := range entries {
		err := e.check()
		if err == nil && (e.Parent < 0 || e.Parent > c.last.Load()) {
			err = fault.Fieldf("chain.Append", "parent", "there is no entry %d", e.Parent)
		}
		p := &pending{entry: e, done: make(chan struct{})}
		if err == nil {
			err = c.queued(ctx, p)
		}
		if err != nil {
			failed(i, err)
			continue
		}
		sent[i] = p
	}
	for i, p := range sent {
		if p == nil {
			continue
		}
		if err := p.wait(ctx); err != nil {
			failed(i, err)
		}
	}
	return errs
}

// Checkpoint returns one that all entries are under that were appended before.
// If there are none, its Size is 0.
func (c *Chain) Checkpoint(ctx context.Context) (Checkpoint, error) {
	p := &pending{sign: true, done: make(chan struct{})}
	if err := c.send(ctx, p); err != nil {
		return Checkpoint{}, err
	}
	return c.Latest(), nil
}

// Close adds what waits, signs what is not signed, and lets go of the store. It may
// be called twice.
func (c *Chain) Close() error {
	c.mu.Lock()
	again := c.closed
	c.closed = true
	c.mu.Unlock()
	if again {
		<-c.done
		return nil
	}
	close(c.quit)
	<-c.done
	return c.release()
}

// Entry returns one entry.
func (c *Chain) Entry(ctx context.Context, seq int64) (Entry, error) {
	rows, err := c.store.Rows(ctx, []int64{seq})
	if err != nil {
		return Entry{}, fmt.Errorf("read entry %d: %w", seq, err)
	}
	if len(rows) == 0 {
		return Entry{}, fault.Newf(fault.NotFound, "chain.Entry", strconv.FormatInt(seq, 10), "there is no such entry")
	}
	return parseRow(rows[0])
}

// maxPage is the most entries that one query returns.
const maxPage = 1000

// Entries returns the entries that q asks for, by Seq, at most 1000. The next
// page is what follows the last of them: q with After.
func (c *Chain) Entries(ctx context.Context, q Query) ([]Entry, error) {
	if q.Limit <= 0 || q.Limit > maxPage {
		q.Limit = maxPage
	}
	rows, err := c.store.Select(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("read the chain: %w", err)
	}
	list := make([]Entry, len(rows))
	for i, r := range rows {
		if list[i], err = parseRow(r); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// maxCauses is how many causes are followed: a chain of causes is as long as a
// run has steps, and nobody reads more.
const maxCauses = 1000

// Causes returns what caused an entry, what caused that, and so on to what
// nothing caused, from the first to the entry itself.
func (c *Chain) Causes(ctx context.Context, seq int64) ([]Entry, error) {
	var list []Entry
	for range maxCauses {
		e, err := c.Entry(ctx, seq)
		if err != nil {
			return nil, err
		}
		list = append(list, e)
		if e.Parent <= 0 || e.Parent >= seq {
			break
		}
		seq = e.Parent
	}
	for i, j := 0, len(list)-1; i < j; i, j = i+1, j-1 {
		list[i], list[j] = list[j], list[i]
	}
	return list, nil
}

func parseRow(r Row) (Entry, error) {
	e, err := ParseEntry([]byte(r.Line))
	if err != nil {
		return Entry{}, damaged(fmt.Errorf("entry %d: %w", r.Seq, err))
	}
	return e, nil
}
