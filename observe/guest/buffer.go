package guest

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"
)

// A buffer contains the encoded events that the daemon has not written, one per line. Its memory is
// not part of Go's heap, whose collector would reserve the same amount again.
type buffer struct {
	mem        []byte
	start, end int    // offsets of the content
	first      uint64 // position of the event before the content
	last       uint64 // position of the last event

	read    uint64 // position of the last event that was read
	readEnd int    // offset of its end
}

func newBuffer(size int) (*buffer, error) {
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("allocate the buffer of events: %w", err)
	}
	return &buffer{mem: mem}, nil
}

func (b *buffer) used() int { return b.end - b.start }

// put appends a line, with its newline, and reports whether it fits.
func (b *buffer) put(line []byte) bool {
	if len(line) > len(b.mem)-b.used() {
		return false
	}
	if len(line) > len(b.mem)-b.end {
		copy(b.mem, b.mem[b.start:b.end])
		b.end, b.readEnd, b.start = b.end-b.start, b.readEnd-b.start, 0
	}
	b.end += copy(b.mem[b.end:], line)
	b.last++
	return true
}

// seek returns the offset of the end of the event at a position.
func (b *buffer) seek(position uint64) int {
	at, n := b.start, b.first
	if b.read <= position && b.read >= b.first {
		at, n = b.readEnd, b.read
	}
	for ; n < position; n++ {
		at += bytes.IndexByte(b.mem[at:b.end], '\n') + 1
	}
	return at
}

// after returns the events after a position, up to a size or one event. The result is valid until the
// next call of put.
func (b *buffer) after(position uint64, size int) (lines []byte, n int) {
	position = min(max(position, b.first), b.last)
	from := b.seek(position)
	to := from
	for to < b.end && to-from < size {
		to += bytes.IndexByte(b.mem[to:b.end], '\n') + 1
		n++
	}
	b.read, b.readEnd = position+uint64(n), to
	return b.mem[from:to], n
}

// drop removes the events up to a position.
func (b *buffer) drop(position uint64) {
	position = min(position, b.last)
	if position <= b.first {
		return
	}
	b.start = b.seek(position)
	b.first = position
	if b.read < position {
		b.read, b.readEnd = position, b.start
	}
	if b.start == b.end { // the same pages are used again
		b.start, b.end, b.readEnd = 0, 0, 0
	}
}
