package images

import (
	"bufio"
	"hash/crc32"
	"io"
)

// Parameters of the chunking. They are part of the format: other values give other digests for
// the same files, and chunks that older snapshots do not contain.
//
// Changes in a heap are scattered over single pages, and each creates a new chunk. Consider
// three dumps of a process of 200 MB, with 1 % of its objects and then all of them changed in
// between. They take, with their indexes, 41 MB if one page in 4 may end a chunk, 42 MB with
// one in 8, 47 MB with one in 32, and also 47 MB when cut at every page. One in 8 gives half
// as many chunks as one in 4.
const (
	page     = 4096
	minChunk = 2 * page
	maxChunk = 64 * page
	cutMask  = 1<<3 - 1
	minHole  = 8 * page // this many zeros end a chunk and are stored as a hole
)

var (
	zeros [page]byte
	crc   = crc32.MakeTable(crc32.Castagnoli) // supported by CPU instructions
)

// A cutter splits the pages of a file into pieces. The content of a page decides whether it
// ends a chunk, so moved or inserted pages change only the chunks around them.
type cutter struct {
	// get returns an empty buffer for a chunk. emit takes ownership of it.
	get func() []byte
	// emit is called with the next piece: a number of zeros, or data.
	emit func(hole int64, data []byte) error

	data []byte // the current chunk, or nil
	hole int64  // number of zeros after it
}

// cut splits r up to its end.
func (c *cutter) cut(r io.Reader) error {
	in := bufio.NewReaderSize(r, 256<<10)
	var p [page]byte
	for {
		n, err := io.ReadFull(in, p[:])
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			return err
		}
		if n == 0 {
			return c.flush()
		}
		if err := c.add(p[:n]); err != nil {
			return err
		}
	}
}

func (c *cutter) add(p []byte) error {
	if isZero(p) {
		c.hole += int64(len(p))
		return nil
	}
	if c.hole > 0 && !c.fill(len(p)) {
		if err := c.flush(); err != nil {
			return err
		}
	}
	if c.data == nil {
		c.data = c.get()
	}
	c.data = append(c.data, p...)
	if len(c.data) > maxChunk-page || len(c.data) >= minChunk && crc32.Checksum(p, crc)&cutMask == 0 {
		return c.flush()
	}
	return nil
}

// fill appends a short hole to the current chunk if a chunk exists and n more bytes fit.
func (c *cutter) fill(n int) bool {
	if c.data == nil || c.hole >= minHole || len(c.data)+int(c.hole)+n > maxChunk {
		return false
	}
	for ; c.hole > 0; c.hole -= min(c.hole, page) {
		c.data = append(c.data, zeros[:min(c.hole, page)]...)
	}
	return true
}

// flush emits the current chunk and the zeros after it.
func (c *cutter) flush() error {
	data, hole := c.data, c.hole
	c.data, c.hole = nil, 0
	if data != nil {
		if err := c.emit(0, data); err != nil {
			return err
		}
	}
	if hole > 0 {
		return c.emit(hole, nil)
	}
	return nil
}
