package images

import (
	"bufio"
	"hash/crc32"
	"io"
)

// How files are cut. It is part of the format: other numbers give other digests
// for the same files, and chunks that no older snapshot has.
//
// Changes in a heap are scattered, one page here and one there, and each makes a
// new chunk. Three dumps of one process of 200 MB, between which a hundredth of
// its objects and then all were changed, take with their indexes 41 MB if one
// page in 4 may be the last of a chunk, 42 MB with one in 8, 47 MB with one in
// 32, and also 47 MB cut at every page. One in 8 has half the chunks of one in 4.
const (
	page     = 4096
	minChunk = 2 * page
	maxChunk = 64 * page
	cutMask  = 1<<3 - 1
	minHole  = 8 * page // so many zeros end a chunk and take no room
)

var (
	zeros [page]byte
	crc   = crc32.MakeTable(crc32.Castagnoli) // which the processor computes
)

// A cutter takes a file's pages and emits its pieces. Where a chunk ends is told
// by the content of its last page, so that pages that were moved or inserted
// change the chunks around them and no others.
type cutter struct {
	// get returns an empty buffer for a chunk, which is emit's to keep.
	get func() []byte
	// emit is called with the next piece: so many zeros, or else data.
	emit func(hole int64, data []byte) error

	data []byte // nil, or a chunk that has begun
	hole int64  // zeros behind it
}

// cut reads r to its end.
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

// fill makes a few zeros part of the chunk, if there is one and n bytes more fit.
func (c *cutter) fill(n int) bool {
	if c.data == nil || c.hole >= minHole || len(c.data)+int(c.hole)+n > maxChunk {
		return false
	}
	for ; c.hole > 0; c.hole -= min(c.hole, page) {
		c.data = append(c.data, zeros[:min(c.hole, page)]...)
	}
	return true
}

// flush emits the chunk and the zeros behind it.
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
