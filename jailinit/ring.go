package jailinit

import (
	"slices"
	"sort"
	"sync/atomic"

	"glasshouse/jailinit/protocol"
)

// firstRing is the memory a ring starts with, whatever the budget says.
const firstRing = 4 << 10

// A budget bounds the memory of all rings together.
type budget struct{ left atomic.Int64 }

func (b *budget) take(n int) bool {
	if b.left.Add(int64(-n)) >= 0 {
		return true
	}
	b.left.Add(int64(n))
	return false
}

func (b *budget) give(n int) { b.left.Add(int64(n)) }

// A ring keeps the newest output of one command. Its memory grows with the
// output up to limit, less if the budget is used up. It is not safe for
// concurrent use.
type ring struct {
	limit    int
	budget   *budget
	buf      []byte // the byte at offset o is buf[o%len(buf)]
	oldest   int64  // first offset kept
	next     int64  // offset of the next byte
	segments []segment
	gone     int // segments at the front that are dropped already
}

// A segment is a run of bytes of one stream. It begins where the one before it
// ends, the first one at ring.oldest or before.
type segment struct {
	end    int64
	stream protocol.Stream
}

// maxSegments bounds what a command costs that writes single bytes to its two
// streams in turn: with a segment for every 32 bytes, half of the ring again.
func (r *ring) maxSegments() int { return max(64, r.limit/32) }

// memory is what the ring takes.
func (r *ring) memory() int { return len(r.buf) + 16*cap(r.segments) }

// reserve makes room for n bytes, by growing if that is allowed, and returns
// the offset before which output has to go when they are appended.
func (r *ring) reserve(stream protocol.Stream, n int) int64 {
	r.grow(n)
	drop := max(r.oldest, r.next+int64(n)-int64(len(r.buf)))
	if kept := r.segments[r.gone:]; len(kept) >= r.maxSegments() && kept[len(kept)-1].stream != stream {
		drop = max(drop, kept[0].end)
	}
	return drop
}

// fit returns how many of n bytes can be appended at once.
func (r *ring) fit(n int) int {
	r.grow(n)
	return min(n, len(r.buf))
}

func (r *ring) grow(n int) {
	need := r.next - r.oldest + int64(n)
	size := len(r.buf)
	for int64(size) < need && size < r.limit {
		size = min(max(2*size, firstRing), r.limit)
	}
	if size == len(r.buf) {
		return
	}
	if !r.budget.take(size - len(r.buf)) {
		if len(r.buf) > 0 {
			return
		}
		size = min(firstRing, r.limit)
		r.budget.left.Add(int64(-size)) // the first few bytes are never refused
	}
	old := *r
	r.buf = make([]byte, size)
	for at := r.oldest; at < r.next; {
		at += int64(copy(r.buf[at%int64(size):], old.span(at, r.next)))
	}
}

// append adds p, no more than fit has allowed, and drops what it overwrites.
func (r *ring) append(stream protocol.Stream, p []byte) {
	r.drop(r.reserve(stream, len(p)))
	r.next += int64(len(p))
	if last := len(r.segments) - 1; last >= r.gone && r.segments[last].stream == stream {
		r.segments[last].end = r.next
	} else {
		r.segments = append(r.segments, segment{r.next, stream})
	}
	at := r.next - int64(len(p))
	for len(p) > 0 {
		n := copy(r.buf[at%int64(len(r.buf)):], p)
		p, at = p[n:], at+int64(n)
	}
}

func (r *ring) drop(to int64) {
	r.oldest = max(r.oldest, to)
	for r.gone < len(r.segments) && r.segments[r.gone].end <= r.oldest {
		r.gone++
	}
	if r.gone > len(r.segments)/2 { // so that each segment is moved once on average
		r.segments = r.segments[:copy(r.segments, r.segments[r.gone:])]
		r.gone = 0
	}
}

// read copies output from offset from on into p. Lost says how much of what
// was asked for is gone; if all is, there is nothing but that to tell. It
// returns false if there is nothing from there on.
func (r *ring) read(from int64, p []byte) (c protocol.Chunk, ok bool) {
	at := max(from, r.oldest)
	if at >= r.next {
		return protocol.Chunk{Stream: protocol.Stdout, Offset: at, Lost: at - from}, at > from
	}
	kept := r.segments[r.gone:]
	s := kept[sort.Search(len(kept), func(i int) bool { return kept[i].end > at })]
	n := 0
	for n < len(p) && at+int64(n) < s.end {
		n += copy(p[n:], r.span(at+int64(n), s.end))
	}
	return protocol.Chunk{Stream: s.stream, Offset: at, Lost: at - from, Data: p[:n]}, true
}

// span is the memory of the bytes from on, as far as it is contiguous.
func (r *ring) span(from, to int64) []byte {
	size := int64(len(r.buf))
	at := from % size
	return r.buf[at:min(at+to-from, size)]
}

// release gives the memory back. The offsets stay.
func (r *ring) release() {
	r.budget.give(len(r.buf))
	r.buf, r.segments, r.gone, r.oldest = nil, nil, 0, r.next
}

// shrink moves what is kept to memory of its size.
func (r *ring) shrink() {
	r.segments, r.gone = slices.Clone(r.segments[r.gone:]), 0
	kept := int(r.next - r.oldest)
	if kept == 0 {
		r.release()
		return
	}
	if kept == len(r.buf) {
		return
	}
	p := make([]byte, kept)
	for at := r.oldest; at < r.next; {
		at += int64(copy(p[at%int64(kept):], r.span(at, r.next)))
	}
	r.budget.give(len(r.buf) - kept)
	r.buf = p
}
