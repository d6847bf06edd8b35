// Package chain implements the causal chain: the append-only, tamper-evident audit log of all
// decisions and actions. Verification detects every changed, removed or inserted entry.
//
// Every entry contains the hash of the previous one. All entries are the leaves of a Merkle
// tree, whose root is signed regularly. With such a checkpoint and the public key, anyone can
// prove that an entry was in the chain and still is. An entry names the entry that caused it,
// so the chain also records causality as a tree.
//
// Append returns when an entry is durable. Actions of an agent wait for that, because an
// action that cannot be recorded must not happen.
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

// Config holds the parameters of a Chain.
type Config struct {
	Store    Store
	Key      *Key
	Every    int64         // number of entries after which a checkpoint is signed; 0 is 1000
	Interval time.Duration // maximum time between an entry and its checkpoint; 0 is 10 s
	Log      *slog.Logger  // nil is slog.Default

	// HeadFile is a file outside of the data directory. Signed checkpoints are appended to it,
	// and Open compares the store with it. "" disables it.
	HeadFile string
}

// A Chain is an open chain that can be appended to. It is safe for concurrent use.
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
	senders sync.WaitGroup

	last     atomic.Int64               // Seq of the last entry that is durable
	signed   atomic.Pointer[Checkpoint] // the newest durable checkpoint
	conflict atomic.Pointer[error]      // set by the writer if another process appends; the chain then rejects entries

	mu sync.Mutex
	// +checklocks:mu
	closed bool

	verifyMu sync.Mutex
	// verified is the position that Verify has reached.
	// +checklocks:verifyMu
	verified progress

	headFile string

	// The following fields are used only by the writer.
	published   int64     // size of the checkpoint that was last copied to the head file
	publishedAt time.Time // time of that copy
	tip         tip
	uncertain   *batch // a batch whose commit status is unknown, or nil
}

// The queue and the batches are bounded, so a slow database only delays the callers of Append.
const (
	queueLen   = 1024
	batchLen   = 1024
	batchBytes = 4 << 20
	txTimeout  = 30 * time.Second // timeout of one transaction
)

// Open returns the chain in cfg.Store, ready for appending. It returns fault.Conflict if
// another process appends to it, or if its end was changed. It does not read the other
// entries; Verify does.
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
	c.release, err = c.store.Claim(ctx)
	if err != nil {
		return nil, fmt.Errorf("open the chain: %w", err)
	}
	if err := c.loadState(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open the chain: %w", err), c.release())
	}
	go c.write()
	return c, nil
}

// loadState reads the end of the chain and checks that the last checkpoint matches it.
func (c *Chain) loadState(ctx context.Context) error {
	var err error
	c.tip, err = readTip(ctx, c.store)
	if err != nil {
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
		// This is normal after a kill, but without a signature the author of the entries is unknown.
		c.log.Warn("the last entries of the audit log were not signed when it was opened", "from", cp.Size+1, "entries", n)
	}
	return nil
}

func (c *Chain) checkSigned(ctx context.Context, cp Checkpoint) error {
	head, err := c.key.public.openOwn(cp.Note)
	if err != nil {
		return &fault.Error{
			Op: "chain.Open", Kind: fault.Conflict, Err: fmt.Errorf("read the last checkpoint: %w", err),
			Remedy: "restore the " + KeyFile + " that this chain was signed with, or the database that belongs to this key",
		}
	}
	if head.Size != cp.Size || head.Size > c.tip.seq {
		return damaged(fmt.Errorf("%d entries were signed, but only %d exist", head.Size, c.tip.seq))
	}
	root, err := rootAt(ctx, c.store, head.Size)
	if err != nil {
		return damagedUnless(ctx, err)
	}
	if root != head.Root {
		return damaged(fmt.Errorf("the first %d entries do not match the signed checkpoint", head.Size))
	}
	return nil
}

// damagedUnless marks err as damage, unless it is a failure of the database.
func damagedUnless(ctx context.Context, err error) error {
	if ctx.Err() != nil || fault.KindOf(err) != "" {
		return err
	}
	return damaged(err)
}

// Key returns the public key that verifies the chain's checkpoints.
func (c *Chain) Key() PublicKey { return c.key.public }

// Last returns the number of the last entry, which is also the number of entries.
func (c *Chain) Last() int64 { return c.last.Load() }

// Latest returns the newest checkpoint. Its Size is 0 if none was signed yet.
func (c *Chain) Latest() Checkpoint { return *c.signed.Load() }

// Append adds an entry and returns it when it is durable. The chain assigns Seq, Time, Prev
// and Hash and ignores their values in e.
//
// Append blocks while the queue is full. If ctx ends while the entry is queued, the entry is
// not added and Append returns an error. If the entry is already being written, Append waits
// for the result.
func (c *Chain) Append(ctx context.Context, e Entry) (Entry, error) {
	if err := e.check(); err != nil {
		return Entry{}, err
	}
	if e.Parent < 0 || e.Parent > c.last.Load() {
		return Entry{}, fault.Fieldf("chain.Append", "parent", "no such entry: %d", e.Parent)
	}
	p := &pending{entry: e, done: make(chan struct{})}
	if err := c.send(ctx, p); err != nil {
		return Entry{}, err
	}
	return p.entry, nil
}

// AppendAll adds entries in order, in as few transactions as possible, and returns when the
// last one is durable. The result has the error of each rejected entry at its index, or is nil
// if all entries were added.
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
			err = fault.Fieldf("chain.AppendAll", "parent", "no such entry: %d", e.Parent)
		}
		p := &pending{entry: e, done: make(chan struct{})}
		if err == nil {
			err = c.enqueue(ctx, p)
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

// Checkpoint returns a checkpoint that covers all entries that were appended before the call.
// Its Size is 0 if the chain is empty.
func (c *Chain) Checkpoint(ctx context.Context) (Checkpoint, error) {
	p := &pending{sign: true, done: make(chan struct{})}
	if err := c.send(ctx, p); err != nil {
		return Checkpoint{}, err
	}
	return c.Latest(), nil
}

// Close adds the queued entries, signs a final checkpoint, and releases the store. It may be
// called twice.
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
		return Entry{}, fault.Newf(fault.NotFound, "chain.Entry", strconv.FormatInt(seq, 10), "no such entry")
	}
	return parseRow(rows[0])
}

// maxPage is the maximum number of entries that one query returns.
const maxPage = 1000

// Entries returns the entries that match q, at most 1000. To get the next page, set q.After to
// the Seq of the last one.
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
		list[i], err = parseRow(r)
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// maxCauses bounds the number of causes that are followed. A causal path has as many entries
// as a run has steps, and longer ones are not readable.
const maxCauses = 1000

// Causes returns the causal path of an entry: from the entry without a cause to the entry
// itself.
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
