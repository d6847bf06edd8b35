package chain

import (
	"context"
	"fmt"
	"strconv"

	"golang.org/x/mod/sumdb/tlog"

	"glasshouse/fault"
)

// An Inclusion proves, to a holder of the public key, that an entry is in the chain. Path
// leads from the entry to the root hash of the checkpoint (RFC 6962, section 2.1.1). In JSON
// the hashes of the path are base64, as in the checkpoint.
type Inclusion struct {
	Entry      Entry       `json:"entry"`
	Path       []tlog.Hash `json:"path"`
	Checkpoint string      `json:"checkpoint"`
}

// A Consistency proves that the chain covered by checkpoint From is a prefix of the chain
// covered by To: that no entry was changed or removed in between (RFC 6962, section 2.1.2).
type Consistency struct {
	From string      `json:"from"` // checkpoints
	To   string      `json:"to"`
	Path []tlog.Hash `json:"path"`
}

// Check returns fault.Invalid unless the proof is valid.
func (p Inclusion) Check(key PublicKey) error {
	const op = "chain.Inclusion.Check"
	head, err := key.Open(p.Checkpoint)
	if err != nil {
		return err
	}
	if err := p.Entry.Check(); err != nil {
		return err
	}
	if p.Entry.Seq < 1 || p.Entry.Seq > head.Size {
		return fault.Newf(fault.Invalid, op, "", "entry %d is not among the %d entries of the checkpoint", p.Entry.Seq, head.Size)
	}
	if err := tlog.CheckRecord(p.Path, head.Size, tlog.Hash(head.Root), p.Entry.Seq-1, tlog.Hash(p.Entry.Hash)); err != nil {
		return fault.Newf(fault.Invalid, op, strconv.FormatInt(p.Entry.Seq, 10), "the path does not lead to the signed root hash")
	}
	return nil
}

// Check returns fault.Invalid unless the proof is valid.
func (p Consistency) Check(key PublicKey) error {
	from, err := key.Open(p.From)
	if err != nil {
		return fmt.Errorf("open the earlier checkpoint: %w", err)
	}
	to, err := key.Open(p.To)
	if err != nil {
		return fmt.Errorf("open the later checkpoint: %w", err)
	}
	if from.Size <= to.Size {
		err = tlog.CheckTree(p.Path, to.Size, tlog.Hash(to.Root), from.Size, tlog.Hash(from.Root))
	} else {
		err = fmt.Errorf("a checkpoint of %d entries is not contained in one of %d", from.Size, to.Size)
	}
	if err != nil {
		return fault.Newf(fault.Invalid, "chain.Consistency.Check", "", "the later checkpoint does not contain the earlier: %w", err)
	}
	return nil
}

// Prove returns a proof that an entry is in the chain, based on the newest checkpoint, or on a
// new one if the newest does not cover the entry.
func (c *Chain) Prove(ctx context.Context, seq int64) (Inclusion, error) {
	e, err := c.Entry(ctx, seq)
	if err != nil {
		return Inclusion{}, err
	}
	cp := c.Latest()
	if cp.Size < seq {
		cp, err = c.Checkpoint(ctx)
		if err != nil {
			return Inclusion{}, err
		}
	}
	p := Inclusion{Entry: e, Checkpoint: cp.Note}
	p.Path, err = tlog.ProveRecord(cp.Size, seq-1, hashes(ctx, c.store))
	if err != nil {
		return Inclusion{}, fmt.Errorf("prove entry %d: %w", seq, err)
	}
	if err := p.Check(c.key.public); err != nil {
		return Inclusion{}, damaged(fmt.Errorf("prove entry %d: %w", seq, err))
	}
	return p, nil
}

// ProveConsistency returns a proof that the newest checkpoint contains an earlier one of the
// same chain.
func (c *Chain) ProveConsistency(ctx context.Context, earlier string) (Consistency, error) {
	from, err := c.key.public.Open(earlier)
	if err != nil {
		return Consistency{}, fmt.Errorf("open the earlier checkpoint: %w", err)
	}
	cp := c.Latest()
	if cp.Size < from.Size {
		return Consistency{}, damaged(fmt.Errorf("a checkpoint of %d entries was signed, but the newest has only %d", from.Size, cp.Size))
	}
	p := Consistency{From: earlier, To: cp.Note}
	p.Path, err = tlog.ProveTree(cp.Size, from.Size, hashes(ctx, c.store))
	if err != nil {
		return Consistency{}, fmt.Errorf("prove the checkpoint of %d entries: %w", from.Size, err)
	}
	if err := p.Check(c.key.public); err != nil {
		return Consistency{}, damaged(err)
	}
	return p, nil
}

// damaged returns the error for stored data that differs from the appended entries.
func damaged(err error) error {
	return &fault.Error{
		Op: "chain.damaged", Kind: fault.Conflict, Err: fmt.Errorf("the chain is damaged: %w", err),
		Remedy: "to find the first wrong entry, run: glasshouse audit verify --offline",
	}
}
