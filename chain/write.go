package chain

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"glasshouse/fault"
)

// A pending is what somebody waits for: an entry to be added, or a checkpoint to
// be signed.
type pending struct {
	entry Entry
	sign  bool
	state atomic.Int32  // waiting, then taken or abandoned
	done  chan struct{} // closed when err is set
	err   error
}

const (
	waiting int32 = iota
	taken
	abandoned
)

// send has p done, and returns when it is.
func (c *Chain) send(ctx context.Context, p *pending) error {
	if err := c.queued(ctx, p); err != nil {
		return err
	}
	return p.wait(ctx)
}

// queued returns when p waits to be done.
func (c *Chain) queued(ctx context.Context, p *pending) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return errClosed
	}
	c.sending.Add(1) // under mu: not after Close waits for it
	c.mu.Unlock()

	var err error
	select {
	case c.queue <- p:
	case <-ctx.Done():
		err = notAdded(ctx)
	case <-c.quit:
		err = errClosed
	}
	c.sending.Done()
	return err
}

// wait returns when p is done.
func (p *pending) wait(ctx context.Context) error {
	select {
	case <-p.done:
	case <-ctx.Done():
		if p.state.CompareAndSwap(waiting, abandoned) {
			return notAdded(ctx)
		}
		<-p.done // the writer does not wait for ever
	}
	return p.err
}

var errClosed = fault.Newf(fault.Unavailable, "chain.Append", "", "the chain is closed")

func notAdded(ctx context.Context) error {
	return fmt.Errorf("chain.Append: not added: %w", context.Cause(ctx))
}

// A batch is what one transaction adds.
type batch struct {
	todo   []*pending
	before tip
	after  tip
	rows   []Row
	cp     Checkpoint // Size 0 is none
}

// write adds what is sent, until Close.
func (c *Chain) write() {
	defer close(c.done)
	timer := time.NewTimer(c.interval)
	defer timer.Stop()
	for {
		select {
		case p := <-c.queue:
			c.commit(c.gather(p), false)
			c.publish(false)
		case <-timer.C:
			c.commit(nil, true)
			c.publish(false)
			timer.Reset(c.interval)
		case <-c.quit:
			c.finish()
			return
		}
	}
}

// finish adds what was sent before Close, and signs it.
func (c *Chain) finish() {
	c.sending.Wait()
	for {
		select {
		case p := <-c.queue:
			c.commit(c.gather(p), false)
		default:
			c.commit(nil, true)
			c.publish(true)
			return
		}
	}
}

// gather takes what waits, beginning with p. Who waited for the last transaction
// and is about to send again gets the chance to be in this one.
func (c *Chain) gather(p *pending) []*pending {
	var todo []*pending
	size := 0
	take := func(p *pending) {
		if p.state.CompareAndSwap(waiting, taken) {
			todo = append(todo, p)
			size += len(p.entry.Body)
		}
	}
	take(p)
	for yields := 0; len(todo) < batchLen && size < batchBytes; {
		select {
		case p := <-c.queue:
			take(p)
			continue
		default:
		}
		if yields++; yields > 2 {
			break
		}
		runtime.Gosched()
	}
	return todo
}

// commit adds what is to be added in one transaction, and tells who waits. With
// sign it signs a checkpoint if there is anything to sign.
func (c *Chain) commit(todo []*pending, sign bool) {
	for _, p := range todo {
		sign = sign || p.sign
	}
	err := c.settle()
	if err == nil {
		err = c.add(todo, sign)
	}
	if err != nil && len(todo) == 0 {
		c.log.Error("no checkpoint of the chain can be signed", "error", err)
	}
	for _, p := range todo {
		p.err = err
		close(p.done)
	}
}

func (c *Chain) add(todo []*pending, sign bool) error {
	b, err := c.prepare(todo, sign)
	if err != nil {
		return err
	}
	if len(b.rows) == 0 && b.cp.Size == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err = c.store.Append(ctx, b.before.seq, b.rows, b.cp)
	if err == nil {
		c.added(b)
		return nil
	}
	err = fmt.Errorf("append to the chain: %w", err)
	c.unsure = b
	if why := c.settle(); why != nil {
		return fault.New(fault.Unavailable, "chain.Append", "", errors.Join(err, why))
	}
	if c.tip.seq == b.after.seq && c.tip.hash == b.after.hash && c.Latest().Size >= b.cp.Size {
		return nil // it was added, and only the answer was lost
	}
	return fault.New(fault.Unavailable, "chain.Append", "", err)
}

// prepare numbers and hashes entries.
func (c *Chain) prepare(todo []*pending, sign bool) (*batch, error) {
	b := &batch{todo: todo, before: c.tip, after: c.tip.clone()}
	now := time.Now().UTC().Truncate(time.Millisecond)
	for _, p := range todo {
		if p.sign {
			continue
		}
		e := &p.entry
		e.Seq, e.Time, e.Prev = b.after.seq+1, now, b.after.hash
		line := e.seal()
		nodes := b.after.push(e.Hash, nil)
		b.rows = append(b.rows, Row{
			Seq: e.Seq, Time: now.UnixNano(), Kind: string(e.Kind), Parent: e.Parent,
			Jail: string(e.Jail), Session: e.Session, Run: e.Run, Capability: e.Capability,
			Line: string(line), Nodes: packNodes(nodes),
		})
	}
	signed := c.Latest().Size
	if b.after.seq-signed < c.every && !sign || b.after.seq == signed {
		return b, nil
	}
	var err error
	b.cp, err = c.key.sign(Head{Size: b.after.seq, Root: b.after.root()})
	return b, err
}

// added makes known that b is durable.
func (c *Chain) added(b *batch) {
	c.tip = b.after
	c.last.Store(b.after.seq)
	if b.cp.Size > 0 {
		c.signed.Store(&b.cp)
	}
}

// Err returns why entries are no longer added, for good, or nil.
func (c *Chain) Err() error {
	if lost := c.lost.Load(); lost != nil {
		return *lost
	}
	return nil
}

// settle finds out whether a transaction whose answer was an error was committed
// all the same: a network may fail between the two. Nothing is added before that
// is known.
func (c *Chain) settle() error {
	if err := c.Err(); err != nil || c.unsure == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	now, err := readTip(ctx, c.store)
	if err != nil {
		return fmt.Errorf("whether it was added is not known: %w", err)
	}
	b := c.unsure
	switch {
	case now.seq == b.after.seq && now.hash == b.after.hash:
		cp, err := c.store.LastCheckpoint(ctx)
		if err != nil {
			return fmt.Errorf("whether it was added is not known: %w", err)
		}
		if b.cp.Size > 0 && cp.Size < b.cp.Size {
			break // there were only checkpoints in it, and it was not added
		}
		c.added(b)
	case now.seq == b.before.seq && now.hash == b.before.hash:
	default:
		lost := fault.Newf(fault.Conflict, "chain.Append", "", "another process has changed the chain: its last entry is %d, and should be %d", now.seq, b.before.seq)
		c.lost.Store(&lost)
		c.log.Error("the chain is not continued", "error", lost)
		return lost
	}
	c.unsure = nil
	return nil
}
