package eventlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"glasshouse/event"
)

// A track reads the segments of one class, from the oldest that may hold
// something wanted to what is being written. It hands out one line at a time.
type track struct {
	l     *Log
	class class
	want  *want

	queue   []*segment // after seg, from the oldest
	newest  uint64     // first of the newest segment that was queued
	dropped uint64     // up to here what retention has dropped is known, or was not there when we began
	seg     *segment   // being read; nil is none
	file    *os.File
	packed  bool
	off     int64   // in seg's text: what is before it was read or skipped
	blocks  []block // of seg, from off on, as far as they are known
	buf     []byte  // text, of which pos on is not yet handed out
	pos     int
	scratch []byte // for a frame

	line    []byte // the next line; nil if it is to be looked for
	head    head
	gap     event.Event // to be told before line; Type 0 is none
	last    uint64      // sequence number of the last line
	damaged bool        // since then something could not be read
}

func (l *Log) track(c class, w *want) *track {
	t := &track{l: l, class: c, want: w, last: w.after}
	t.enqueue() // sets dropped: what was dropped before is told in the log
	// Those that end before what is wanted begin are not even looked at.
	for len(t.queue) > 1 && t.queue[1].first <= w.after+1 {
		t.queue = t.queue[1:]
	}
	return t
}

// plainPiece is how much plain text is read at once.
const plainPiece = 64 << 10

// at is the sequence number that orders t among the tracks.
func (t *track) at() uint64 {
	if t.gap.Type != 0 {
		return t.gap.From
	}
	return t.head.seq
}

// peek finds the next line, and returns false if there is none for now.
func (t *track) peek() (bool, error) {
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
				// A line before what is wanted is no damage.
				t.damaged = t.damaged || !ok
				continue
			}
			t.line, t.head = text[:i:i], h
			if t.damaged {
				t.tellDamage(h.seq - 1)
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

// tellDamage says that something up to through could not be read, if a number
// is missing there.
func (t *track) tellDamage(through uint64) {
	t.damaged = false
	if from := t.last + 1; from <= through {
		t.gap = event.Event{Type: event.Gap, Source: source[t.class], Lost: -1, Reason: "damaged", From: from, Through: through}
	}
}

// atEnd tells of damage that no line follows.
func (t *track) atEnd(upto uint64) {
	if t.damaged {
		t.tellDamage(upto)
		t.last = max(t.last, upto)
	}
}

// fill loads the next piece of text. It returns false if there is none for now.
func (t *track) fill() (bool, error) {
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
		for len(t.blocks) > 0 && t.want.skips(&t.blocks[0].span) && t.blocks[0].off >= t.off {
			t.last = max(t.last, t.blocks[0].last)
			t.pass(t.blocks[0].len)
		}
		if len(t.blocks) > 0 {
			return true, t.load()
		}
		if !t.packed {
			// The segment may have grown or been closed since we looked.
			closed, text := t.l.state(t.seg)
			if t.off < text {
				if more, err := t.grown(); err != nil {
					return false, err
				} else if more {
					continue
				}
			}
			if !closed {
				return false, nil
			}
		}
		t.leave()
	}
}

// grown asks again for blocks, and returns false if there are none after all.
func (t *track) grown() (bool, error) {
	err := t.moreBlocks()
	return len(t.blocks) > 0, err
}

// state says whether s is closed, and how much text of it may be read.
func (l *Log) state(s *segment) (closed bool, text int64) {
	l.disk.Lock()
	defer l.disk.Unlock()
	return s.closed || s.gone, s.text
}

// enqueue adds the segments that are newer than those queued before. If some of
// those came and went meanwhile, that is to be told.
func (t *track) enqueue() {
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

// nextSegment opens the next segment that may hold something wanted.
func (t *track) nextSegment() (bool, error) {
	for {
		if len(t.queue) == 0 {
			if t.enqueue(); len(t.queue) == 0 || t.gap.Type != 0 {
				return false, nil
			}
		}
		s := t.queue[0]
		if t.l.glance(s); t.skipWhole(s) {
			t.queue = t.queue[1:]
			continue
		}
		f, packed, err := t.l.openSegment(s)
		if errors.Is(err, errGone) {
			t.queue = t.queue[1:]
			if t.tellGone(s) {
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
			return true, nil // its blocks are had as it grows
		}
		if t.blocks, err = t.l.blocksOf(s, f, true, 0); err != nil {
			return false, err
		}
		return true, nil
	}
}

// skipWhole reports whether nothing of a closed segment is wanted.
func (t *track) skipWhole(s *segment) bool {
	t.l.disk.Lock()
	defer t.l.disk.Unlock()
	if !s.closed || !s.known && s.blocks == nil {
		return false
	}
	sp := s.covers()
	if !t.want.skips(&sp) {
		return false
	}
	t.last = max(t.last, sp.last)
	return true
}

// tellGone says what was lost with s, if any of it was wanted.
func (t *track) tellGone(s *segment) bool {
	t.l.disk.Lock()
	sp := s.covers()
	t.l.disk.Unlock()
	if sp.n > 0 && (t.want.skips(&sp) || sp.last <= t.last) {
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

// moreBlocks looks for blocks behind off in a plain segment.
func (t *track) moreBlocks() error {
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

// pass goes n bytes of text on in the first block.
func (t *track) pass(n int64) {
	t.off += n
	if k := &t.blocks[0]; t.off >= k.off+k.len {
		t.blocks = t.blocks[1:]
	}
}

// load reads the next piece of the first block: all of it if it is a frame.
func (t *track) load() error {
	k := t.blocks[0]
	t.buf, t.pos = t.buf[:0], 0
	if t.packed {
		t.pass(k.len)
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
		if int64(got) < n { // somebody cut the file
			t.damaged = true
			t.pass(k.off + k.len - t.off)
			return nil
		}
		if t.off+n == k.off+k.len {
			t.pass(n)
			return nil
		}
		if whole := bytes.LastIndexByte(t.buf, '\n') + 1; whole > 0 {
			t.buf = t.buf[:whole]
			t.pass(int64(whole))
			return nil
		}
		n = min(k.off+k.len-t.off, 2*n) // a line longer than the piece
	}
}

// leave is done with a segment.
func (t *track) leave() {
	t.close()
	t.seg, t.blocks, t.packed = nil, nil, false
}

func (t *track) close() error {
	if t.file == nil {
		return nil
	}
	err := t.file.Close()
	t.file = nil
	return err
}
