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

// A pending is a queued request: to add an entry or to sign a checkpoint.
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

// send queues p and waits until it is done.
func (c *Chain) send(ctx context.Context, p *pending) error {
	if err := c.enqueue(ctx, p); err != nil {
		return err
	}
	return p.wait(ctx)
}

// enqueue adds p to the queue. It blocks while the queue is full.
func (c *Chain) enqueue(ctx context.Context, p *pending) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return errClosed
	}
	c.senders.Add(1) // under mu, so never after Close waits for it
	c.mu.Unlock()

	var err error
	select {
	case c.queue <- p:
	case <-ctx.Done():
		err = notAdded(ctx)
	case <-c.quit:
		err = errClosed
	}
	c.senders.Done()
	return err
}

// wait blocks until p is done.
func (p *pending) wait(ctx context.Context) error {
	select {
	case <-p.done:
	case <-ctx.Done():
		if p.state.CompareAndSwap(waiting, abandoned) {
			return notAdded(ctx)
		}
		<-p.done // bounded by the timeout of the transaction
	}
	return p.err
}

var errClosed = fault.Newf(fault.Unavailable, "chain.Append", "", "the chain is closed")

func notAdded(ctx context.Context) error {
	return fmt.Errorf("chain.Append: not added: %w", context.Cause(ctx))
}

// A batch is the content of one transaction.
type batch struct {
	todo   []*pending
	before tip
	after  tip
	rows   []Row
	cp     Checkpoint // Size 0 means no checkpoint
}

// write is the writer's goroutine. It commits queued requests until Close.
func (c *Chain) write() {
	defer close(c.done)
	timer := time.NewTimer(c.interval)
	defer timer.Stop()
	for {
		select {
		case p := <-c.queue:
			c.commit(c.collectBatch(p), false)
			c.publish(false)
		case <-timer.C:
			c.commit(nil, true)
			c.publish(false)
			timer.Reset(c.interval)
		case <-c.quit:
			c.drain()
			return
		}
	}
}

// drain commits the requests that were queued before Close, and signs a checkpoint.
func (c *Chain) drain() {
	c.senders.Wait()
	for {
		select {
		case p := <-c.queue:
			c.commit(c.collectBatch(p), false)
		default:
			c.commit(nil, true)
			c.publish(true)
			return
		}
	}
}

// collectBatch returns the queued requests, starting with p. It yields a few times, so that
// callers that waited for the last transaction can join this one.
func (c *Chain) collectBatch(p *pending) []*pending {
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
		yields++
		if yields > 2 {
			break
		}
		runtime.Gosched()
	}
	return todo
}

// commit writes requests in one transaction and notifies the waiters. With sign it also signs
// a checkpoint if there are unsigned entries.
func (c *Chain) commit(todo []*pending, sign bool) {
	for _, p := range todo {
		sign = sign || p.sign
	}
	err := c.resolveUncertain()
	if err == nil {
		err = c.appendBatch(todo, sign)
	}
	if err != nil && len(todo) == 0 {
		c.log.Error("cannot sign a checkpoint of the audit log", "error", err)
	}
	for _, p := range todo {
		p.err = err
		close(p.done)
	}
}

func (c *Chain) appendBatch(todo []*pending, sign bool) error {
	b, err := c.prepare(todo, sign)
	if err != nil {
		return err
	}
	if len(b.rows) == 0 && b.cp.Size == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), txTimeout)
	defer cancel()
	err = c.store.Append(ctx, b.before.seq, b.rows, b.cp)
	if err == nil {
		c.setAppended(b)
		return nil
	}
	err = fmt.Errorf("append to the chain: %w", err)
	c.uncertain = b
	if why := c.resolveUncertain(); why != nil {
		return fault.New(fault.Unavailable, "chain.Append", "", errors.Join(err, why))
	}
	if c.tip.seq == b.after.seq && c.tip.hash == b.after.hash && c.Latest().Size >= b.cp.Size {
		return nil // it was committed, and only the response was lost
	}
	return fault.New(fault.Unavailable, "chain.Append", "", err)
}

// prepare assigns numbers and hashes to entries.
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

// setAppended updates the state after b became durable.
func (c *Chain) setAppended(b *batch) {
	c.tip = b.after
	c.last.Store(b.after.seq)
	if b.cp.Size > 0 {
		c.signed.Store(&b.cp)
	}
}

// Err returns the reason if the chain permanently rejects entries, or nil.
func (c *Chain) Err() error {
	if lost := c.conflict.Load(); lost != nil {
		return *lost
	}
	return nil
}

// resolveUncertain determines whether a transaction that returned an error was committed
// anyway, because the connection may fail after the commit. No entries are added before that
// is known.
func (c *Chain) resolveUncertain() error {
	if err := c.Err(); err != nil || c.uncertain == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), txTimeout)
	defer cancel()
	now, err := readTip(ctx, c.store)
	if err != nil {
		return fmt.Errorf("cannot determine whether the entry was added: %w", err)
	}
	b := c.uncertain
	switch {
	case now.seq == b.after.seq && now.hash == b.after.hash:
		cp, err := c.store.LastCheckpoint(ctx)
		if err != nil {
			return fmt.Errorf("cannot determine whether the entry was added: %w", err)
		}
		if b.cp.Size > 0 && cp.Size < b.cp.Size {
			break // the batch had only a checkpoint and was not committed
		}
		c.setAppended(b)
	case now.seq == b.before.seq && now.hash == b.before.hash:
	default:
		lost := fault.Newf(fault.Conflict, "chain.Append", "", "another process changed the chain: the last entry is %d, want %d", now.seq, b.before.seq)
		c.conflict.Store(&lost)
		c.log.Error("the audit log rejects further entries", "error", lost)
		return lost
	}
	c.uncertain = nil
	return nil
}
