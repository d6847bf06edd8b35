package chain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"glasshouse/fault"
)

// A TrustedInput is the data that a verifier has from a trusted source.
type TrustedInput struct {
	Key  PublicKey // the zero value is no key
	Seen string    // an earlier checkpoint, or "": the entries that it covers must still exist
}

// A Report is the result of a verification.
type Report struct {
	Entries     int64   `json:"entries"`     // number of valid entries, from the first
	Checkpoints int64   `json:"checkpoints"` // number of valid checkpoints
	Signed      int64   `json:"signed"`      // number of entries that the last of them covers
	Key         string  `json:"key,omitempty"`
	KeyGiven    bool    `json:"key_given"` // the key was given, not taken from the export
	Bad         *Defect `json:"bad,omitempty"`
}

// A Defect is the first defect of a chain.
type Defect struct {
	Seq    int64  `json:"seq,omitempty"`  // sequence number of the entry; 0 if all entries are valid
	Line   int64  `json:"line,omitempty"` // line of an export
	Reason string `json:"reason"`
}

func (b *Defect) String() string {
	var where []string
	if b.Seq > 0 {
		where = append(where, fmt.Sprintf("entry %d: ", b.Seq))
	}
	if b.Line > 0 {
		where = append(where, fmt.Sprintf("line %d: ", b.Line))
	}
	return strings.Join(where, "") + b.Reason
}

// progress is the position of a verifier.
type progress struct {
	tip
	signed      int64 // the size of the last valid checkpoint
	checkpoints int64
}

// A verifier checks entries sequentially.
type verifier struct {
	progress
	lastGood       progress // position of the last valid checkpoint
	key            PublicKey
	nextCheckpoint func() (*pendingCheckpoint, error) // returns the next checkpoint by size, or nil
	next           *pendingCheckpoint
	ready          bool // next is valid
	nodes          []Hash
}

// A pendingCheckpoint is a checkpoint that is checked when the tree has its size.
type pendingCheckpoint struct {
	size int64
	note string
	seen bool // it is TrustedInput.Seen and may have additional signatures
	line int64
}

// A checked is the result of the checks of a single entry.
type checked struct {
	seq, parent int64
	hash, prev  Hash
	nodes       *string // stored tree hashes; nil in an export
	bad         string  // the defect, or ""
}

// check sets c from a line.
func (c *checked) check(f *fields, line []byte, room *[]byte) {
	c.bad = f.parse(line)
	if c.bad != "" {
		return
	}
	c.seq, c.parent, c.hash, c.prev = f.seq, f.parent, f.hash, f.prev
	if hashOf(line, f.at, room) != f.hash {
		c.bad = "hash does not match the content"
	}
}

// entry checks the next entry.
func (v *verifier) entry(c *checked) (*Defect, error) {
	want := v.seq + 1
	bad := func(format string, args ...any) (*Defect, error) {
		return &Defect{Seq: want, Reason: fmt.Sprintf(format, args...)}, nil
	}
	switch {
	case c.bad != "":
		return bad("%s", c.bad)
	case c.seq > want:
		return bad("missing: entry %d is in its place", c.seq)
	case c.seq < want:
		return bad("entry %d is in its place", c.seq)
	case c.prev != v.hash:
		return bad("previous hash does not match the entry before it")
	case c.parent >= c.seq:
		return bad("parent %d is not an earlier entry", c.parent)
	}
	v.nodes = v.push(c.hash, v.nodes[:0])
	if c.nodes != nil && *c.nodes != packNodes(v.nodes) {
		return bad("stored tree hashes are wrong")
	}
	return v.checkpointsHere()
}

// checkpointsHere checks the checkpoints of the current size of the tree.
func (v *verifier) checkpointsHere() (*Defect, error) {
	for {
		if !v.ready {
			var err error
			v.next, err = v.nextCheckpoint()
			if err != nil {
				return nil, err
			}
			v.ready = true
		}
		if v.next == nil || v.next.size > v.seq {
			return nil, nil
		}
		v.ready = false
		if bad := v.checkpoint(v.next); bad != nil {
			return bad, nil
		}
	}
}

func (v *verifier) checkpoint(d *pendingCheckpoint) *Defect {
	open := v.key.openOwn
	if d.seen {
		open = v.key.Open
	}
	head, err := open(d.note)
	if err == nil && head.Size != d.size {
		err = fmt.Errorf("the checkpoint is stored with size %d", d.size)
	}
	switch {
	case err != nil:
		return &Defect{Line: d.line, Reason: fmt.Sprintf("checkpoint of %d entries: %v", d.size, err)}
	case d.size < v.seq:
		return &Defect{Line: d.line, Reason: fmt.Sprintf("checkpoint of %d entries is out of order", d.size)}
	case head.Root != v.root():
		return &Defect{Seq: v.signed + 1, Reason: fmt.Sprintf("entries %d to %d do not match the signed checkpoint", v.signed+1, d.size)}
	}
	v.signed = d.size
	v.checkpoints++
	v.lastGood = v.progress
	v.lastGood.tip = v.clone()
	return nil
}

// end checks that no entries are missing at the end.
func (v *verifier) end() (*Defect, error) {
	bad, err := v.checkpointsHere()
	if bad != nil || err != nil || v.next == nil {
		return bad, err
	}
	who := "were signed"
	if v.next.seen {
		who = "were in the chain at the given checkpoint"
	}
	if _, err := v.key.Open(v.next.note); err != nil { // do not trust its size without a valid signature
		return &Defect{Line: v.next.line, Reason: fmt.Sprintf("checkpoint of %d entries: %v", v.next.size, err)}, nil
	}
	return &Defect{Seq: v.seq + 1, Reason: fmt.Sprintf("missing: %d entries %s", v.next.size, who)}, nil
}

func (v *verifier) report(key PublicKey, given bool, bad *Defect) Report {
	r := Report{Entries: v.seq, Checkpoints: v.checkpoints, Signed: v.signed, Key: key.text, KeyGiven: given, Bad: bad}
	if bad != nil && bad.Seq > 0 {
		r.Entries = min(r.Entries, bad.Seq-1)
	}
	return r
}

// withSeen inserts the checkpoint TrustedInput.Seen into the sequence that next returns.
func withSeen(t TrustedInput, next func() (*pendingCheckpoint, error)) (func() (*pendingCheckpoint, error), error) {
	if t.Seen == "" {
		return next, nil
	}
	head, err := t.Key.Open(t.Seen)
	if err != nil {
		return nil, fmt.Errorf("the earlier checkpoint is invalid: %w", err)
	}
	seen := &pendingCheckpoint{size: head.Size, note: t.Seen, seen: true}
	var held *pendingCheckpoint
	done := false
	return func() (*pendingCheckpoint, error) {
		if held == nil && !done {
			var err error
			held, err = next()
			if err != nil {
				return nil, err
			}
			done = held == nil
		}
		if seen != nil && (held == nil || seen.size <= held.size) {
			d := seen
			seen = nil
			return d, nil
		}
		d := held
		held = nil
		return d, nil
	}, nil
}

// VerifyStore verifies a stored chain completely: every entry, its indexed columns, the tree,
// and the checkpoints, with the key in t, which is required. An error means that the chain
// cannot be read. Defects of the content are in the report.
func VerifyStore(ctx context.Context, r Reader, t TrustedInput) (Report, error) {
	if t.Key.text == "" {
		return Report{}, fault.Fieldf("chain.VerifyStore", "key", "no key to verify with")
	}
	// Read the checkpoint first. In a growing chain it then covers no more entries than are
	// verified.
	cp, err := r.LastCheckpoint(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("verify the chain: %w", err)
	}
	last, err := r.Last(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("verify the chain: %w", err)
	}
	var v verifier
	return v.stored(ctx, r, t, last.Seq, cp.Size)
}

// Verify verifies the entries that were appended since the last successful call, or all on the
// first call. It does not detect later changes of verified entries; VerifyAll does.
func (c *Chain) Verify(ctx context.Context) (Report, error) {
	c.verifyMu.Lock()
	defer c.verifyMu.Unlock()
	return c.verifyFrom(ctx, c.verified)
}

// VerifyAll verifies the chain from its first entry.
func (c *Chain) VerifyAll(ctx context.Context) (Report, error) {
	c.verifyMu.Lock()
	defer c.verifyMu.Unlock()
	return c.verifyFrom(ctx, progress{})
}

// verifyFrom verifies the entries after from against the state in memory, which detects a
// database that was reset to an earlier state. The caller holds c.verifyMu.
// +checklocks:c.verifyMu
func (c *Chain) verifyFrom(ctx context.Context, from progress) (Report, error) {
	v := verifier{progress: from, lastGood: from}
	v.tip = from.clone()             // a copy, so that lastGood does not change
	cp, last := c.Latest(), c.Last() // in this order, for the same reason as in VerifyStore
	t := TrustedInput{Key: c.key.public}
	if cp.Size > from.signed {
		t.Seen = cp.Note
	}
	report, err := v.stored(ctx, c.store, t, last, cp.Size)
	if err == nil && report.Bad == nil {
		// Continue from a checkpoint. The entries after it are verified again when they are
		// signed.
		c.verified = v.lastGood
	}
	return report, err
}

// pageLen is the number of entries that are read together for verification or export: few
// enough to hold several pages of maximum-size entries in memory.
const pageLen = 512

// stored verifies the entries in r from the position of v up to last, and the checkpoints up
// to that of signed entries.
func (v *verifier) stored(ctx context.Context, r Reader, t TrustedInput, last, signed int64) (Report, error) {
	v.key = t.Key
	var err error
	v.nextCheckpoint, err = withSeen(t, checkpointsOf(ctx, r, v.signed, signed))
	if err != nil {
		return Report{}, err
	}
	var bad *Defect
	after := v.seq
	err = inOrder(ctx, func() (func() ([]checked, error), error) {
		from, n := after, int(min(pageLen, last-after))
		if n <= 0 {
			return nil, nil
		}
		after += int64(n)
		return func() ([]checked, error) { return readChecked(ctx, r, from, n) }, nil
	}, func(page []checked) (err error) {
		end := min(v.seq+pageLen, last)
		for i := range page {
			bad, err = v.entry(&page[i])
			if bad != nil || err != nil {
				return errors.Join(err, errStop)
			}
		}
		if v.seq < end {
			bad = &Defect{Seq: v.seq + 1, Reason: "missing"}
			return errStop
		}
		return nil
	})
	if err == nil {
		bad, err = v.end()
	}
	if err != nil && !(bad != nil && errors.Is(err, errStop)) {
		return Report{}, fmt.Errorf("verify the chain: %w", err)
	}
	return v.report(t.Key, true, bad), nil
}

var errStop = errors.New("verification stopped at a defect")

// checkpointsOf returns an iterator over the checkpoints larger than after, up to last.
func checkpointsOf(ctx context.Context, r Reader, after, last int64) func() (*pendingCheckpoint, error) {
	var page []Checkpoint
	ended := false
	return func() (*pendingCheckpoint, error) {
		if len(page) == 0 && !ended {
			var err error
			page, err = r.Checkpoints(ctx, after, 1000)
			if err != nil {
				return nil, err
			}
		}
		ended = ended || len(page) == 0 || page[0].Size > last
		if ended {
			return nil, nil
		}
		cp := page[0]
		page, after = page[1:], cp.Size
		return &pendingCheckpoint{size: cp.Size, note: cp.Note}, nil
	}
}

// readChecked reads n entries and checks each one individually.
func readChecked(ctx context.Context, r Reader, after int64, n int) ([]checked, error) {
	rows, err := r.Select(ctx, Query{After: after, Limit: n})
	if err != nil {
		return nil, err
	}
	out := make([]checked, len(rows))
	var line, room []byte
	var f fields
	for i := range rows {
		row, c := &rows[i], &out[i]
		c.nodes = &row.Nodes
		line = append(line[:0], row.Line...)
		c.check(&f, line, &room)
		if c.bad == "" && !row.matches(&f) {
			c.bad = "indexed columns do not match the entry"
		}
	}
	return out, nil
}

// matches reports whether the columns of the row match its line.
func (r *Row) matches(f *fields) bool {
	same := func(column string, raw []byte) bool {
		if bytes.IndexByte(raw, '\\') >= 0 {
			return column == unquote(raw)
		}
		return column == string(raw)
	}
	return r.Seq == f.seq && r.Time == f.ms*1e6 && r.Parent == f.parent && same(r.Kind, f.kind) &&
		same(r.Jail, f.jail) && same(r.Session, f.session) && same(r.Run, f.run) && same(r.Capability, f.capability)
}
