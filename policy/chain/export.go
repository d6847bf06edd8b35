package chain

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// An export is the complete chain as lines of canonical JSON: the entries, then
// {"checkpoint":"…"} for each checkpoint (the last one covers all entries), then
// {"key":"…"}, the public key that verifies them.

const (
	CheckpointStart = `{"checkpoint":`
	KeyStart        = `{"key":`
	MaxLine         = MaxBody + 16<<10
)

// Export writes the current chain and returns the last checkpoint in it. It signs that
// checkpoint if necessary.
func (c *Chain) Export(ctx context.Context, w io.Writer) (Checkpoint, error) {
	cp, err := c.Checkpoint(ctx)
	if err != nil {
		return cp, err
	}
	return cp, c.ExportRange(ctx, 0, cp.Size, w)
}

// CheckpointAfter returns the newest checkpoint that covers at most n entries after the given one,
// or the first if it covers more. Its Size is 0 if no checkpoint follows.
func (c *Chain) CheckpointAfter(ctx context.Context, after, n int64) (Checkpoint, error) {
	var found Checkpoint
	for {
		list, err := c.store.Checkpoints(ctx, max(after, found.Size), 1000)
		if err != nil {
			return found, fmt.Errorf("read the checkpoints: %w", err)
		}
		for _, cp := range list {
			if found.Size > 0 && cp.Size > after+n {
				return found, nil
			}
			found = cp
		}
		if len(list) == 0 {
			return found, nil
		}
	}
}

// ExportRange is like Export for the entries after one up to another, which a checkpoint covers.
func (c *Chain) ExportRange(ctx context.Context, after, last int64, w io.Writer) error {
	b := bufio.NewWriterSize(w, 1<<20)
	if err := c.export(ctx, b, after, last); err != nil {
		return fmt.Errorf("export the chain: %w", err)
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("export the chain: %w", err)
	}
	return nil
}

func (c *Chain) export(ctx context.Context, w *bufio.Writer, first, last int64) error {
	for after := first; after < last; {
		rows, err := c.store.Select(ctx, Query{After: after, Limit: int(min(pageLen, last-after))})
		if err != nil {
			return err
		}
		if len(rows) == 0 || rows[len(rows)-1].Seq > last {
			return damaged(fmt.Errorf("entries are missing after %d", after))
		}
		for _, r := range rows {
			w.WriteString(r.Line) // Flush returns the error
			w.WriteByte('\n')
			after = r.Seq
		}
	}
	next := checkpointsOf(ctx, c.store, first, last)
	for {
		d, err := next()
		if err != nil {
			return err
		}
		if d == nil {
			break
		}
		w.Write(tailLine(CheckpointStart, d.note))
	}
	if _, err := w.Write(tailLine(KeyStart, c.key.public.text)); err != nil {
		return fmt.Errorf("write the key: %w", err)
	}
	return nil
}

// tailLine returns a line of the tail, which follows the entries.
func tailLine(start, text string) []byte {
	return append(appendString([]byte(start), text), "}\n"...)
}

// VerifyExport verifies an export. If t has no key, it uses the key in the export and states that
// in the report: then the result only shows that the export was not changed since someone signed
// it. An error means that the export cannot be read. Defects of the content are in the report.
func VerifyExport(ctx context.Context, f io.ReadSeeker, t TrustedInput) (Report, error) {
	tail, err := readTail(f)
	if err != nil {
		return Report{}, fmt.Errorf("verify an export: %w", err)
	}
	given := t.Key.text != ""
	if !given {
		t.Key, err = ParsePublic(tail.key)
		if err != nil {
			tail.dropCheckpoints()
		}
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return Report{}, fmt.Errorf("verify an export: %w", err)
	}
	v := verifier{key: t.Key}
	v.nextCheckpoint, err = withSeen(t, tail.next())
	if err != nil {
		return Report{}, err
	}
	bad, err := v.lines(ctx, f, tail.offset)
	if bad == nil && err == nil {
		bad = tail.bad
	}
	if bad == nil && err == nil {
		bad, err = v.end()
	}
	if err != nil {
		return Report{}, fmt.Errorf("verify an export: %w", err)
	}
	switch {
	case bad != nil:
	case tail.key != t.Key.text:
		bad = &Defect{Line: tail.keyLine, Reason: "the export is signed with a key other than the given one"}
	case v.signed < v.seq:
		bad = &Defect{Seq: v.signed + 1, Line: v.signed + 1, Reason: "not covered by a checkpoint"}
	}
	return v.report(t.Key, given, bad), nil
}

// lines verifies the entries of an export, which occupy its first n bytes.
func (v *verifier) lines(ctx context.Context, r io.Reader, n int64) (*Defect, error) {
	var bad *Defect
	chunks := &chunker{r: r, left: n}
	err := inOrder(ctx, func() (func() ([]checked, error), error) {
		text, err := chunks.next()
		if err != nil || len(text) == 0 {
			return nil, err
		}
		return func() ([]checked, error) { return checkLines(text), nil }, nil
	}, func(page []checked) (err error) {
		for i := range page {
			bad, err = v.entry(&page[i])
			if err != nil {
				return err
			}
			if bad != nil {
				if bad.Line == 0 {
					bad.Line = bad.Seq
				}
				return errStop
			}
		}
		return nil
	})
	if bad != nil {
		return bad, nil
	}
	return nil, err
}

func checkLines(text []byte) []checked {
	out := make([]checked, 0, len(text)/300)
	var room []byte
	var f fields
	for len(text) > 0 {
		line := text
		i := bytes.IndexByte(text, '\n')
		c := checked{}
		switch {
		case i > MaxLine || i < 0 && len(text) > MaxLine:
			c.bad = "line too long"
			text = nil
		case i < 0:
			c.bad = "line is not terminated"
			text = nil
		default:
			line, text = text[:i], text[i+1:]
			c.check(&f, line, &room)
		}
		out = append(out, c)
	}
	return out
}

// A chunker splits the first left bytes of r into chunks of complete lines. The last line, and
// a line that exceeds the maximum length, may be incomplete.
type chunker struct {
	r    io.Reader
	left int64
	rest []byte // read, and not yet returned
}

const chunkLen = 512 << 10 // must exceed the maximum length of a line

func (c *chunker) next() ([]byte, error) {
	n := int(min(c.left, chunkLen))
	buf := make([]byte, len(c.rest)+n)
	copy(buf, c.rest)
	if _, err := io.ReadFull(c.r, buf[len(c.rest):]); err != nil {
		return nil, err // including EOF: readTail has read this far before
	}
	c.left -= int64(n)
	c.rest = nil
	end := bytes.LastIndexByte(buf, '\n') + 1
	if c.left == 0 || end == 0 {
		c.left = 0 // ignore the data after an overlong line
		return buf, nil
	}
	c.rest = buf[end:]
	return buf[:end:end], nil
}

// A tail is the part of an export after its entries.
type tail struct {
	offset      int64 // start of the tail
	checkpoints []*pendingCheckpoint
	key         string
	keyLine     int64
	bad         *Defect // first syntax error
}

// dropCheckpoints removes the checkpoints, because no key can verify them.
func (t *tail) dropCheckpoints() {
	t.checkpoints = nil
	if t.bad == nil {
		t.bad = &Defect{Line: t.keyLine, Reason: "invalid public key"}
	}
}

func (t *tail) next() func() (*pendingCheckpoint, error) {
	rest := t.checkpoints
	return func() (*pendingCheckpoint, error) {
		if len(rest) == 0 {
			return nil, nil
		}
		d := rest[0]
		rest = rest[1:]
		return d, nil
	}
}

// readTail finds and parses the tail of an export. It must be read before the entries, because
// a checkpoint can be checked only while the tree has its size.
func readTail(f io.ReadSeeker) (*tail, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("find the start of the export: %w", err)
	}
	t := &tail{}
	lines := int64(0)
	b := bufio.NewReaderSize(f, 128<<10)
	began := false
	long := false // inside of a line that exceeds the buffer
	for {
		line, err := b.ReadSlice('\n')
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, fmt.Errorf("find the tail of the export: %w", err)
		}
		if !long {
			lines++
			began = began || bytes.HasPrefix(line, []byte(CheckpointStart)) || bytes.HasPrefix(line, []byte(KeyStart))
			if began && len(line) > 0 {
				t.line(line, lines)
			}
		}
		if !began {
			t.offset += int64(len(line))
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			break
		}
		long = err != nil
	}
	if t.bad == nil && t.key == "" {
		t.bad = &Defect{Line: lines, Reason: "the export is incomplete: no public key"}
	}
	return t, nil
}

// line reads one line of the tail.
func (t *tail) line(line []byte, number int64) {
	if t.bad != nil {
		return
	}
	var text struct {
		Checkpoint *string `json:"checkpoint"`
		Key        *string `json:"key"`
	}
	err := json.Unmarshal(line, &text)
	switch {
	case err == nil && t.key == "" && text.Checkpoint != nil && bytes.Equal(line, tailLine(CheckpointStart, *text.Checkpoint)):
		size, ok := claimedSize(*text.Checkpoint)
		if !ok || len(t.checkpoints) > 0 && size <= t.checkpoints[len(t.checkpoints)-1].size {
			t.bad = &Defect{Line: number, Reason: "invalid checkpoint, or checkpoint out of order"}
			return
		}
		t.checkpoints = append(t.checkpoints, &pendingCheckpoint{size: size, note: *text.Checkpoint, line: number})
	case err == nil && t.key == "" && text.Key != nil && *text.Key != "" && bytes.Equal(line, tailLine(KeyStart, *text.Key)):
		t.key, t.keyLine = *text.Key, number
	default:
		t.bad = &Defect{Line: number, Reason: "neither a checkpoint nor the public key"}
	}
}

// claimedSize returns the size in a checkpoint before its signature is verified.
func claimedSize(note string) (int64, bool) {
	first, _, _ := bytes.Cut([]byte(note), []byte("\n"))
	head, err := parseHead(note, string(first))
	return head.Size, err == nil
}
