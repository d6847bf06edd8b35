package jailinit

import (
	"slices"
	"sort"
	"sync/atomic"

	"glasshouse/jail/init/protocol"
)

// firstRing is the initial size of a ring, independent of the budget.
const firstRing = 4 << 10

// A budget bounds the total memory of all rings.
type budget struct{ left atomic.Int64 }

func (b *budget) take(n int) bool {
	if b.left.Add(int64(-n)) >= 0 {
		return true
	}
	b.left.Add(int64(n))
	return false
}

func (b *budget) give(n int) { b.left.Add(int64(n)) }

// A ring is a buffer with the newest output of one command. It grows with the output up to
// limit, or less if the budget is exhausted. It is not safe for concurrent use.
type ring struct {
	limit    int
	budget   *budget
	buf      []byte // the byte at offset o is buf[o%len(buf)]
	oldest   int64  // first offset kept
	next     int64  // offset of the next byte
	segments []segment
	dropped  int // dropped segments at the front of segments
}

// A segment is a sequence of bytes of one stream. It begins at the end of the previous
// segment, the first one at ring.oldest or before.
type segment struct {
	end    int64
	stream protocol.Stream
}

// maxSegments bounds the memory for a command that alternates single bytes between its two
// streams: one segment per 32 bytes adds half of the ring's size.
func (r *ring) maxSegments() int { return max(64, r.limit/32) }

// memory returns the size of the ring.
func (r *ring) memory() int { return len(r.buf) + 16*cap(r.segments) }

// reserve makes room for n bytes, by growth if possible, and returns the offset before which
// output is dropped when they are appended.
func (r *ring) reserve(stream protocol.Stream, n int) int64 {
	r.grow(n)
	drop := max(r.oldest, r.next+int64(n)-int64(len(r.buf)))
	if kept := r.segments[r.dropped:]; len(kept) >= r.maxSegments() && kept[len(kept)-1].stream != stream {
		drop = max(drop, kept[0].end)
	}
	return drop
}

// fit returns how many of n bytes can be appended in one call.
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
		r.budget.left.Add(int64(-size)) // firstRing bytes are always available
	}
	old := *r
	r.buf = make([]byte, size)
	for at := r.oldest; at < r.next; {
		at += int64(copy(r.buf[at%int64(size):], old.span(at, r.next)))
	}
}

// append appends p, which is not longer than fit has returned, and drops overwritten output.
func (r *ring) append(stream protocol.Stream, p []byte) {
	r.drop(r.reserve(stream, len(p)))
	r.next += int64(len(p))
	if last := len(r.segments) - 1; last >= r.dropped && r.segments[last].stream == stream {
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
	for r.dropped < len(r.segments) && r.segments[r.dropped].end <= r.oldest {
		r.dropped++
	}
	if r.dropped > len(r.segments)/2 { // amortized: each segment is moved once on average
		r.segments = r.segments[:copy(r.segments, r.segments[r.dropped:])]
		r.dropped = 0
	}
}

// read copies output from offset from on into p. Lost is the number of requested bytes that
// are no longer available; a chunk may consist of Lost only. It returns false if there is no
// output at or after from.
func (r *ring) read(from int64, p []byte) (c protocol.Chunk, ok bool) {
	at := max(from, r.oldest)
	if at >= r.next {
		return protocol.Chunk{Stream: protocol.Stdout, Offset: at, Lost: at - from}, at > from
	}
	kept := r.segments[r.dropped:]
	s := kept[sort.Search(len(kept), func(i int) bool { return kept[i].end > at })]
	n := 0
	for n < len(p) && at+int64(n) < s.end {
		n += copy(p[n:], r.span(at+int64(n), s.end))
	}
	return protocol.Chunk{Stream: s.stream, Offset: at, Lost: at - from, Data: p[:n]}, true
}

// span returns the bytes at offset from, up to to, as far as they are contiguous in memory.
func (r *ring) span(from, to int64) []byte {
	size := int64(len(r.buf))
	at := from % size
	return r.buf[at:min(at+to-from, size)]
}

// release frees the memory. The offsets stay.
func (r *ring) release() {
	r.budget.give(len(r.buf))
	r.buf, r.segments, r.dropped, r.oldest = nil, nil, 0, r.next
}

// shrink reduces the memory to the size of the output.
func (r *ring) shrink() {
	r.segments, r.dropped = slices.Clone(r.segments[r.dropped:]), 0
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
