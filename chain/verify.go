package chain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"glasshouse/fault"
)

// A Trust is what a verifier knows from elsewhere than from what it verifies.
type Trust struct {
	Key  Public // the zero value is none
	Seen string // a checkpoint that was seen earlier, "" is none: what it was signed over must be there still
}

// A Report is what verifying has found.
type Report struct {
	Entries     int64  `json:"entries"`     // that are right, from the first
	Checkpoints int64  `json:"checkpoints"` // that were checked
	Signed      int64  `json:"signed"`      // entries that the last of them vouches for
	Key         string `json:"key,omitempty"`
	KeyGiven    bool   `json:"key_given"` // rather than found beside what it vouches for
	Bad         *Bad   `json:"bad,omitempty"`
}

// A Bad is the first thing that is wrong.
type Bad struct {
	Seq    int64  `json:"seq,omitempty"`  // of the entry; 0 if all entries are right
	Line   int64  `json:"line,omitempty"` // of an export
	Reason string `json:"reason"`
}

func (b *Bad) String() string {
	var where []string
	if b.Seq > 0 {
		where = append(where, fmt.Sprintf("entry %d: ", b.Seq))
	}
	if b.Line > 0 {
		where = append(where, fmt.Sprintf("line %d: ", b.Line))
	}
	return strings.Join(where, "") + b.Reason
}

// progress is how far a verifier has got.
type progress struct {
	tip
	signed      int64 // the size of the last checkpoint that was right
	checkpoints int64
}

// A verifier checks entries one after the other.
type verifier struct {
	progress
	mark  progress // as it was at the last checkpoint that was right
	key   Public
	due   func() (*due, error) // the next checkpoint by size; nil is none
	next  *due
	ready bool // next is valid
	nodes []Hash
}

// A due is a checkpoint that is to be checked when the tree has its size.
type due struct {
	size int64
	note string
	seen bool // it is what somebody saw earlier: others may have signed it too
	line int64
}

// A checked is what can be found out of an entry by itself.
type checked struct {
	seq, parent int64
	hash, prev  Hash
	nodes       *string // as stored; nil if they are not
	bad         string  // what is wrong with it
}

// check fills c from a line.
func (c *checked) check(f *fields, line []byte, room *[]byte) {
	if c.bad = f.parse(line); c.bad != "" {
		return
	}
	c.seq, c.parent, c.hash, c.prev = f.seq, f.parent, f.hash, f.prev
	if hashOf(line, f.at, room) != f.hash {
		c.bad = "its hash is not that of its content"
	}
}

// entry checks the next entry.
func (v *verifier) entry(c *checked) (*Bad, error) {
	want := v.seq + 1
	bad := func(format string, args ...any) (*Bad, error) {
		return &Bad{Seq: want, Reason: fmt.Sprintf(format, args...)}, nil
	}
	switch {
	case c.bad != "":
		return bad("%s", c.bad)
	case c.seq > want:
		return bad("it is missing: entry %d is in its place", c.seq)
	case c.seq < want:
		return bad("entry %d is in its place", c.seq)
	case c.prev != v.hash:
		return bad("it does not follow the entry before it: that has another hash")
	case c.parent >= c.seq:
		return bad("its cause is entry %d, which is not before it", c.parent)
	}
	v.nodes = v.push(c.hash, v.nodes[:0])
	if c.nodes != nil && *c.nodes != packNodes(v.nodes) {
		return bad("the hashes of the tree stored with it are wrong")
	}
	return v.checkpointsHere()
}

// checkpointsHere checks what was signed when the chain was as long as it is now.
func (v *verifier) checkpointsHere() (*Bad, error) {
	for {
		if !v.ready {
			var err error
			if v.next, err = v.due(); err != nil {
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

func (v *verifier) checkpoint(d *due) *Bad {
	open := v.key.openOwn
	if d.seen {
		open = v.key.Open
	}
	head, err := open(d.note)
	if err == nil && head.Size != d.size {
		err = fmt.Errorf("it is stored as one of %d", d.size)
	}
	switch {
	case err != nil:
		return &Bad{Line: d.line, Reason: fmt.Sprintf("the checkpoint of %d entries: %v", d.size, err)}
	case d.size < v.seq:
		return &Bad{Line: d.line, Reason: fmt.Sprintf("the checkpoint of %d entries is out of order", d.size)}
	case head.Root != v.root():
		return &Bad{Seq: v.signed + 1, Reason: fmt.Sprintf("entries %d to %d are not those that were signed", v.signed+1, d.size)}
	}
	v.signed = d.size
	v.checkpoints++
	v.mark = v.progress
	v.mark.tip = v.clone()
	return nil
}

// end checks that nothing is missing at the end.
func (v *verifier) end() (*Bad, error) {
	bad, err := v.checkpointsHere()
	if bad != nil || err != nil || v.next == nil {
		return bad, err
	}
	who := "were signed"
	if v.next.seen {
		who = "were in the chain when the checkpoint given was seen"
	}
	if _, err := v.key.Open(v.next.note); err != nil { // do not believe it what it says of entries
		return &Bad{Line: v.next.line, Reason: fmt.Sprintf("the checkpoint of %d entries: %v", v.next.size, err)}, nil
	}
	return &Bad{Seq: v.seq + 1, Reason: fmt.Sprintf("it is missing: %d entries %s", v.next.size, who)}, nil
}

func (v *verifier) report(key Public, given bool, bad *Bad) Report {
	r := Report{Entries: v.seq, Checkpoints: v.checkpoints, Signed: v.signed, Key: key.text, KeyGiven: given, Bad: bad}
	if bad != nil && bad.Seq > 0 {
		r.Entries = min(r.Entries, bad.Seq-1)
	}
	return r
}

// seenAmong puts the checkpoint that t knows of among those that next returns.
func seenAmong(t Trust, next func() (*due, error)) (func() (*due, error), error) {
	if t.Seen == "" {
		return next, nil
	}
	head, err := t.Key.Open(t.Seen)
	if err != nil {
		return nil, fmt.Errorf("the checkpoint that was seen earlier: %w", err)
	}
	seen := &due{size: head.Size, note: t.Seen, seen: true}
	var held *due
	done := false
	return func() (*due, error) {
		if held == nil && !done {
			var err error
			if held, err = next(); err != nil {
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

// VerifyStore verifies all of a chain that a store keeps: every entry, what it is
// found by, the tree, and the checkpoints, with the key that t must have. If it
// cannot be read that is an error; if it is wrong, the report says so.
func VerifyStore(ctx context.Context, r Reader, t Trust) (Report, error) {
	if t.Key.text == "" {
		return Report{}, fault.Fieldf("chain.VerifyStore", "key", "no key to verify with")
	}
	// In this order, so that of a chain that grows no checkpoint is of more
	// entries than are looked at.
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

// Verify verifies what was appended since it last found everything right, and
// before that all. VerifyAll begins anew: it also finds what was changed later.
func (c *Chain) Verify(ctx context.Context) (Report, error) {
	c.verifying.Lock()
	defer c.verifying.Unlock()
	return c.verifyFrom(ctx, c.verified)
}

// VerifyAll verifies the chain from its first entry.
func (c *Chain) VerifyAll(ctx context.Context) (Report, error) {
	c.verifying.Lock()
	defer c.verifying.Unlock()
	return c.verifyFrom(ctx, progress{})
}

// verifyFrom verifies what is behind from, against what is in memory: a database
// that was put back to an earlier state is found out. The caller holds c.verifying.
//
// +checklocks:c.verifying
func (c *Chain) verifyFrom(ctx context.Context, from progress) (Report, error) {
	v := verifier{progress: from, mark: from}
	v.tip = from.clone()             // mark stays as it is
	cp, last := c.Latest(), c.Last() // in this order, as in VerifyStore
	t := Trust{Key: c.key.public}
	if cp.Size > from.signed {
		t.Seen = cp.Note
	}
	report, err := v.stored(ctx, c.store, t, last, cp.Size)
	if err == nil && report.Bad == nil {
		// From a checkpoint: entries behind it are looked at again when they are
		// signed too.
		c.verified = v.mark
	}
	return report, err
}

// pageLen is how many entries are read at once to be verified or exported: few
// enough to be held several times when all are as large as they can be.
const pageLen = 512

// stored verifies what r keeps behind where v is: the entries up to last, and the
// checkpoints up to that of signed entries.
func (v *verifier) stored(ctx context.Context, r Reader, t Trust, last, signed int64) (Report, error) {
	v.key = t.Key
	var err error
	if v.due, err = seenAmong(t, checkpointsOf(ctx, r, v.signed, signed)); err != nil {
		return Report{}, err
	}
	var bad *Bad
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
			if bad, err = v.entry(&page[i]); bad != nil || err != nil {
				return errors.Join(err, errStop)
			}
		}
		if v.seq < end {
			bad = &Bad{Seq: v.seq + 1, Reason: "it is missing"}
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

var errStop = errors.New("something is wrong")

// checkpointsOf returns checkpoints larger than after, up to last, one by one.
func checkpointsOf(ctx context.Context, r Reader, after, last int64) func() (*due, error) {
	var page []Checkpoint
	ended := false
	return func() (*due, error) {
		if len(page) == 0 && !ended {
			var err error
			if page, err = r.Checkpoints(ctx, after, 1000); err != nil {
				return nil, err
			}
		}
		if ended = ended || len(page) == 0 || page[0].Size > last; ended {
			return nil, nil
		}
		cp := page[0]
		page, after = page[1:], cp.Size
		return &due{size: cp.Size, note: cp.Note}, nil
	}
}

// readChecked reads n entries and checks each by itself.
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
		if c.check(&f, line, &room); c.bad == "" && !row.says(&f) {
			c.bad = "what it is found by is not what it says"
		}
	}
	return out, nil
}

// says reports whether the row is of the entry that its line is.
func (r *Row) says(f *fields) bool {
	same := func(column string, raw []byte) bool {
		if bytes.IndexByte(raw, '\\') >= 0 {
			return column == unquote(raw)
		}
		return column == string(raw)
	}
	return r.Seq == f.seq && r.Time == f.ms*1e6 && r.Parent == f.parent && same(r.Kind, f.kind) &&
		same(r.Jail, f.jail) && same(r.Session, f.session) && same(r.Run, f.run) && same(r.Capability, f.capability)
}
