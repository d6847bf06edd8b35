package eventlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"glasshouse/observe/event"
)

// A classReader reads the segments of one class, from the oldest that may contain matching
// records to the one being written. It yields one line at a time.
type classReader struct {
	l     *Log
	class class
	sel   *selector

	queue   []*segment // segments after seg, oldest first
	newest  uint64     // first record of the newest queued segment
	dropped uint64     // drops by retention up to here were handled or precede this reader
	seg     *segment   // being read, or nil
	file    *os.File
	packed  bool
	off     int64   // in the text of seg; everything before it was read or skipped
	blocks  []block // known blocks of seg from off
	buf     []byte  // text; the part from pos was not yet returned
	pos     int
	scratch []byte // for a frame

	line    []byte // the next line; nil if it must be read first
	head    head
	gap     event.Event // a gap to return before line; Type 0 means no gap
	last    uint64      // sequence number of the last line
	damaged bool        // unreadable text was found after last
}

func (l *Log) classReader(c class, w *selector) *classReader {
	t := &classReader{l: l, class: c, sel: w, last: w.after}
	t.enqueue() // sets dropped; the log holds gaps about earlier drops
	// Skip segments that end before the selected range without reading their indexes.
	for len(t.queue) > 1 && t.queue[1].first <= w.after+1 {
		t.queue = t.queue[1:]
	}
	return t
}

// plainPiece is the size of one read of plain text.
const plainPiece = 64 << 10

// at returns the sequence number that orders t among the readers.
func (t *classReader) at() uint64 {
	if t.gap.Type != 0 {
		return t.gap.From
	}
	return t.head.seq
}

// peek finds the next line. It returns false if none is available yet.
func (t *classReader) peek() (bool, error) {
	if t.gap.Type != 0 || t.line != nil {
		return true, nil
	}
	for {
		for t.pos < len(t.buf) {
			text := t.buf[t.pos:]
			i := bytes.IndexByte(text, '\n')
			if i < 0 {
				t.damaged, t.pos = true, len(t.buf)
				break
			}
			t.pos += i + 1
			h, ok := parseHead(text[:i])
			if !ok || h.seq <= t.last {
				// A line before the selected range is not damage.
				t.damaged = t.damaged || !ok
				continue
			}
			t.line, t.head = text[:i:i], h
			if t.damaged {
				t.setDamageGap(h.seq - 1)
			}
			t.last = h.seq
			return true, nil
		}
		ok, err := t.fill()
		if err != nil || !ok {
			return t.gap.Type != 0, err
		}
		if t.gap.Type != 0 {
			return true, nil
		}
	}
}

// setDamageGap sets the gap for unreadable text up to through, if a sequence number is missing
// there.
func (t *classReader) setDamageGap(through uint64) {
	t.damaged = false
	if from := t.last + 1; from <= through {
		t.gap = event.Event{Type: event.Gap, Source: source[t.class], Lost: -1, Reason: "damaged", From: from, Through: through}
	}
}

// atEnd reports damage after the last line.
func (t *classReader) atEnd(upto uint64) {
	if t.damaged {
		t.setDamageGap(upto)
		t.last = max(t.last, upto)
	}
}

// fill loads the next piece of text. It returns false if none is available yet.
func (t *classReader) fill() (bool, error) {
	for {
		if t.seg == nil {
			if ok, err := t.nextSegment(); !ok || err != nil {
				return t.gap.Type != 0, err
			}
		}
		if len(t.blocks) == 0 && !t.packed {
			if err := t.moreBlocks(); err != nil {
				return false, err
			}
		}
		for len(t.blocks) > 0 && t.sel.excludes(&t.blocks[0].span) && t.blocks[0].off >= t.off {
			t.last = max(t.last, t.blocks[0].last)
			t.advance(t.blocks[0].len)
		}
		if len(t.blocks) > 0 {
			return true, t.load()
		}
		if !t.packed {
			// The segment may have grown or been closed since the blocks were read.
			closed, text := t.l.state(t.seg)
			if t.off < text {
				if more, err := t.refreshBlocks(); err != nil {
					return false, err
				} else if more {
					continue
				}
			}
			if !closed {
				return false, nil
			}
		}
		t.closeSegment()
	}
}

// refreshBlocks reads the block list again and returns false if there are no new blocks.
func (t *classReader) refreshBlocks() (bool, error) {
	err := t.moreBlocks()
	return len(t.blocks) > 0, err
}

// state returns whether s is closed and how many bytes of its text may be read.
func (sl *segmentList) state(s *segment) (closed bool, text int64) {
	sl.disk.Lock()
	defer sl.disk.Unlock()
	return s.closed || s.removed, s.text
}

// enqueue adds the segments that are newer than those queued before. If retention dropped
// segments in between, it sets a gap.
func (t *classReader) enqueue() {
	t.l.disk.Lock()
	defer t.l.disk.Unlock()
	if d := t.l.dropped[t.class]; d > t.dropped {
		if t.newest > 0 && d > t.last {
			t.gap = event.Event{Type: event.Gap, Source: source[t.class], Lost: -1, Reason: "retention", From: t.last + 1, Through: d}
			t.last = d
		}
		t.dropped = d
	}
	for _, s := range t.l.segments[t.class] {
		if s.first > t.newest {
			t.queue = append(t.queue, s)
			t.newest = s.first
		}
	}
}

// nextSegment opens the next segment that may contain matching records.
func (t *classReader) nextSegment() (bool, error) {
	for {
		if len(t.queue) == 0 {
			t.enqueue()
			if len(t.queue) == 0 || t.gap.Type != 0 {
				return false, nil
			}
		}
		s := t.queue[0]
		t.l.loadHeader(s)
		if t.skipSegment(s) {
			t.queue = t.queue[1:]
			continue
		}
		f, packed, err := t.l.openSegment(s)
		if errors.Is(err, errRemoved) {
			t.queue = t.queue[1:]
			if t.setRemovedGap(s) {
				return false, nil
			}
			continue
		}
		if err != nil {
			return false, fmt.Errorf("read the event log: %w", err)
		}
		t.seg, t.file, t.packed, t.off, t.blocks = s, f, packed, 0, nil
		t.queue = t.queue[1:]
		if !packed {
			return true, nil // its blocks are read as it grows
		}
		t.blocks, err = t.l.blocksOf(s, f, true, 0)
		if err != nil {
			return false, err
		}
		return true, nil
	}
}

// skipSegment reports whether a closed segment contains no matching records.
func (t *classReader) skipSegment(s *segment) bool {
	t.l.disk.Lock()
	defer t.l.disk.Unlock()
	if !s.closed || !s.known && s.blocks == nil {
		return false
	}
	sp := s.covers()
	if !t.sel.excludes(&sp) {
		return false
	}
	t.last = max(t.last, sp.last)
	return true
}

// setRemovedGap sets the gap for the removed segment s, if its records could match.
func (t *classReader) setRemovedGap(s *segment) bool {
	t.l.disk.Lock()
	sp := s.covers()
	t.l.disk.Unlock()
	if sp.n > 0 && (t.sel.excludes(&sp) || sp.last <= t.last) {
		return false
	}
	t.gap = event.Event{Type: event.Gap, Source: source[t.class], Lost: -1, Reason: "retention", From: max(s.first, t.last+1)}
	if sp.n > 0 {
		t.gap.Through = sp.last
		t.last = sp.last
		if t.gap.From == s.first {
			t.gap.Lost = sp.n
		}
	}
	return true
}

// moreBlocks reads the blocks after off of a plain segment.
func (t *classReader) moreBlocks() error {
	blocks, err := t.l.blocksOf(t.seg, t.file, false, t.off)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(blocks, func(k block) bool { return k.off+k.len > t.off })
	if i < 0 {
		i = len(blocks)
	}
	t.blocks = blocks[i:]
	return nil
}

// advance moves off by n bytes within the first block.
func (t *classReader) advance(n int64) {
	t.off += n
	if k := &t.blocks[0]; t.off >= k.off+k.len {
		t.blocks = t.blocks[1:]
	}
}

// load reads the next piece of the first block, or all of it if it is a compressed frame.
func (t *classReader) load() error {
	k := t.blocks[0]
	t.buf, t.pos = t.buf[:0], 0
	if t.packed {
		// Advance first: a frame that cannot be decoded is skipped, and a gap reports the
		// missing numbers.
		t.advance(k.len)
		t.scratch = slices.Grow(t.scratch[:0], int(k.zlen))[:k.zlen]
		_, err := t.file.ReadAt(t.scratch, k.zoff)
		if err == nil {
			t.buf, err = unpacker().DecodeAll(t.scratch, t.buf)
		}
		if err != nil {
			t.buf, t.damaged = t.buf[:0], true
		}
		return nil
	}
	n := min(k.off+k.len-t.off, plainPiece)
	for {
		t.buf = slices.Grow(t.buf[:0], int(n))[:n]
		got, err := t.file.ReadAt(t.buf, t.off)
		t.buf = t.buf[:got]
		if err != nil && err != io.EOF {
			return fmt.Errorf("read the event log: %w", err)
		}
		if int64(got) < n { // the file was truncated by another program
			t.damaged = true
			t.advance(k.off + k.len - t.off)
			return nil
		}
		if t.off+n == k.off+k.len {
			t.advance(n)
			return nil
		}
		if lineEnd := bytes.LastIndexByte(t.buf, '\n') + 1; lineEnd > 0 {
			t.buf = t.buf[:lineEnd]
			t.advance(int64(lineEnd))
			return nil
		}
		n = min(k.off+k.len-t.off, 2*n) // a line longer than the piece
	}
}

// closeSegment closes the current segment.
func (t *classReader) closeSegment() {
	t.close()
	t.seg, t.blocks, t.packed = nil, nil, false
}

func (t *classReader) close() error {
	if t.file == nil {
		return nil
	}
	err := t.file.Close()
	t.file = nil
	return err
}
