package eventlog

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"glasshouse/internal/atomicfile"
	"glasshouse/observe/event"
)

// A span is the range of sequence numbers and times of consecutive records.
type span struct {
	first, last  uint64 // sequence numbers
	minTS, maxTS int64
	maxNS        int64
	n            int64
}

func (s *span) add(seq uint64, ts, ns int64) {
	if s.n == 0 {
		s.first, s.minTS, s.maxTS, s.maxNS = seq, ts, ts, ns
	}
	s.last = seq
	s.n++
	s.minTS, s.maxTS, s.maxNS = min(s.minTS, ts), max(s.maxTS, ts), max(s.maxNS, ns)
}

func (s *span) join(o span) {
	if o.n == 0 {
		return
	}
	if s.n == 0 {
		*s = o
		return
	}
	s.last = max(s.last, o.last)
	s.n += o.n
	s.minTS, s.maxTS, s.maxNS = min(s.minTS, o.minTS), max(s.maxTS, o.maxTS), max(s.maxNS, o.maxNS)
}

// A block is a part of a segment at which reading can start: complete lines, which form one
// frame of a compressed file.
type block struct {
	span
	off, len   int64 // in the text
	zoff, zlen int64 // in the compressed file
}

// blockSize is the size of the text of a block; a block may exceed it by one line. Blocks of
// twice the size compress 2 % better, but a reader that opens a window has to decompress twice
// as much for each of the four files.
const blockSize = 512 << 10

// maxLine is the maximum length of a line. Sources truncate strings far below it. maxBlock is
// the maximum size of a block that contains such a line.
const (
	maxLine  = 4 << 20
	maxBlock = 2*maxLine + blockSize
)

// An index lists the blocks of one segment. It is stored in a file next to the segment.
type index struct {
	complete uint64 // all records up to this number were in the files when the index was written
	packed   int64  // length of the compressed file; 0 if there is no such file
	textLen  int64
	sum      [32]byte // checksum of the text
	hasSum   bool
	gapLoss  gapLoss
	blocks   []block
}

// gapLoss sums the losses that the gaps in a segment report. When retention drops the segment,
// the gap about the segment has to report these losses again.
type gapLoss struct {
	lost int64
	from uint64 // the lowest From of the gaps; 0 if no gap has one
}

func (x *index) add(k block, text []byte) {
	x.blocks = append(x.blocks, k)
	x.textLen += k.len
	x.packed += k.zlen
	const gap = `{"type":"gap"`
	// Quotes inside strings are escaped, so the text occurs only at the beginning of a line.
	for i := bytes.Index(text, []byte(gap)); i >= 0; i = bytes.Index(text, []byte(gap)) {
		text = text[i:]
		line, _, _ := bytes.Cut(text, []byte{'\n'})
		text = text[len(line):]
		var e event.Event
		if event.Parse(line, &e) != nil {
			continue
		}
		x.gapLoss.lost += max(e.Lost, 0)
		if x.gapLoss.from == 0 || e.From > 0 && e.From < x.gapLoss.from {
			x.gapLoss.from = e.From
		}
	}
}

func (x *index) span() (s span) {
	for i := range x.blocks {
		s.join(x.blocks[i].span)
	}
	return s
}

// An index file consists of the magic, seven numbers, the digest, the span of all blocks, a
// checksum of this header, the blocks, and a checksum of all preceding bytes. All numbers are
// little endian. If a segment is only skipped, only its header is read. In a log of gigabytes
// that applies to all segments except one.
const (
	indexMagic  = "glasidx2"
	indexHeader = len(indexMagic) + 7*8 + 32 + 6*8 + 4
	blockBytes  = 10 * 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (x *index) encode() []byte {
	le := binary.LittleEndian
	b := make([]byte, 0, indexHeader+len(x.blocks)*blockBytes+4)
	b = append(b, indexMagic...)
	hasSum := uint64(0)
	if x.hasSum {
		hasSum = 1
	}
	for _, v := range []uint64{x.complete, uint64(x.packed), uint64(x.textLen), hasSum, uint64(x.gapLoss.lost), x.gapLoss.from, uint64(len(x.blocks))} {
		b = le.AppendUint64(b, v)
	}
	b = append(b, x.sum[:]...)
	b = x.span().encode(b)
	b = le.AppendUint32(b, crc32.Checksum(b, castagnoli))
	for i := range x.blocks {
		k := &x.blocks[i]
		b = k.span.encode(b)
		for _, v := range []int64{k.off, k.len, k.zoff, k.zlen} {
			b = le.AppendUint64(b, uint64(v))
		}
	}
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func (s span) encode(b []byte) []byte {
	for _, v := range []uint64{s.first, s.last, uint64(s.minTS), uint64(s.maxTS), uint64(s.maxNS), uint64(s.n)} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

// numbers decodes the numbers of an index one by one.
type numbers []byte

func (b *numbers) next() uint64 {
	v := binary.LittleEndian.Uint64(*b)
	*b = (*b)[8:]
	return v
}

func (b *numbers) int() int64 { return int64(b.next()) }

func (b *numbers) span() span {
	return span{first: b.next(), last: b.next(), minTS: b.int(), maxTS: b.int(), maxNS: b.int(), n: b.int()}
}

var errIndex = errors.New("damaged index")

// checksumOK reports whether b ends with the checksum of the preceding bytes.
func checksumOK(b []byte) bool {
	n := len(b) - 4
	return binary.LittleEndian.Uint32(b[n:]) == crc32.Checksum(b[:n], castagnoli)
}

// decodeHeader decodes the header of an index. It returns an index without blocks, the span of
// the blocks and their number.
func decodeHeader(b []byte) (x *index, sp span, blocks uint64, err error) {
	if len(b) < indexHeader || string(b[:len(indexMagic)]) != indexMagic || !checksumOK(b[:indexHeader]) {
		return nil, span{}, 0, errIndex
	}
	v := numbers(b[len(indexMagic):])
	x = &index{complete: v.next(), packed: v.int(), textLen: v.int(), hasSum: v.next() == 1, gapLoss: gapLoss{v.int(), v.next()}}
	blocks = v.next()
	v = v[copy(x.sum[:], v):]
	return x, v.span(), blocks, nil
}

func decodeIndex(b []byte) (*index, error) {
	x, sp, n, err := decodeHeader(b)
	if err != nil {
		return nil, err
	}
	if len(b) < indexHeader+4 || !checksumOK(b) {
		return nil, errIndex
	}
	v := numbers(b[indexHeader : len(b)-4])
	// The first comparison keeps the product from wrapping.
	if n > uint64(len(v)) || n*blockBytes != uint64(len(v)) {
		return nil, errIndex
	}
	x.blocks = make([]block, n)
	var off, zoff int64
	for i := range x.blocks {
		k := &x.blocks[i]
		*k = block{span: v.span(), off: v.int(), len: v.int(), zoff: v.int(), zlen: v.int()}
		// Check the properties that readers rely on. The checksum detects damage, but not an
		// index that belongs to another file.
		if k.off != off || k.zoff != zoff || k.len <= 0 || k.zlen < 0 || k.len > maxBlock || k.zlen > 2*maxBlock ||
			k.n < 0 || k.n > 0 && (k.first > k.last || k.first == 0) {
			return nil, errIndex
		}
		off += k.len
		zoff += k.zlen
	}
	if off != x.textLen || zoff != x.packed || x.span() != sp {
		return nil, errIndex
	}
	return x, nil
}

// maxIndex bounds the size of an index file. It suffices for the blocks of 64 GiB of text.
const maxIndex = int64(indexHeader + 4 + (64<<30/blockSize)*blockBytes)

func readIndex(name string) (*index, error) {
	f, err := openRegular(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxIndex))
	if err != nil {
		return nil, err
	}
	return decodeIndex(b)
}

// readHeader reads and decodes only the header of an index file.
func readHeader(name string) (*index, span, error) {
	f, err := openRegular(name)
	if err != nil {
		return nil, span{}, err
	}
	defer f.Close()
	b := make([]byte, indexHeader)
	if _, err := io.ReadFull(f, b); err != nil {
		return nil, span{}, fmt.Errorf("read the header of %s: %w", name, err)
	}
	x, sp, _, err := decodeHeader(b)
	return x, sp, err
}

func (x *index) write(name string) error {
	if err := atomicfile.Write(name, x.encode(), 0o600); err != nil {
		return fmt.Errorf("write index %s: %w", name, err)
	}
	return nil
}

// scan reads the text of a segment from r, which starts at offset off, and calls fn for each
// block. Lines that are not records are part of the blocks but not of their spans. It returns
// the offset after the last complete line.
func scan(r io.Reader, off int64, fn func(k block, text []byte) error) (int64, error) {
	buf := make([]byte, 0, blockSize+64<<10)
	for {
		n, err := io.ReadFull(r, buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		end := err == io.EOF || err == io.ErrUnexpectedEOF
		if err != nil && !end {
			return off, err
		}
		for len(buf) > 0 {
			lineEnd := bytes.LastIndexByte(buf[:min(len(buf), blockSize)], '\n') + 1
			if lineEnd == 0 { // one line is longer than a block
				lineEnd = bytes.IndexByte(buf, '\n') + 1
			}
			if lineEnd == 0 || lineEnd < blockSize/2 && len(buf) < blockSize && !end {
				break // read more text first
			}
			k := block{off: off, len: int64(lineEnd)}
			spanOf(buf[:lineEnd], &k.span)
			if err := fn(k, buf[:lineEnd]); err != nil {
				return off, err
			}
			off += int64(lineEnd)
			buf = append(buf[:0], buf[lineEnd:]...)
		}
		if end {
			return off, nil
		}
		if len(buf) >= maxLine { // not a line
			if err := fn(block{off: off, len: int64(len(buf))}, buf); err != nil {
				return off, err
			}
			off += int64(len(buf))
			buf = buf[:0]
		}
		if len(buf) == cap(buf) {
			buf = append(make([]byte, 0, 2*cap(buf)), buf...)
		}
	}
}

// spanOf adds the records in text to s.
func spanOf(text []byte, s *span) {
	for len(text) > 0 {
		i := bytes.IndexByte(text, '\n')
		if i < 0 {
			return
		}
		// Numbers ascend within a file. A line with a lower one is damaged or foreign.
		if h, ok := parseHead(text[:i]); ok && h.seq > s.last {
			s.add(h.seq, h.ts, h.ns)
		}
		text = text[i+1:]
	}
}

var errNotFile = errors.New("not a regular file")

// openRegular opens a file for reading and fails if it is not a regular file. A name in the
// log's directory may have been replaced. With O_NONBLOCK, open(2) does not wait for a writer of
// a FIFO: see fifo(7).
func openRegular(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	// open(2): ELOOP for a symbolic link, ENXIO for a socket.
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
		return nil, fmt.Errorf("%s: %w", name, errNotFile)
	}
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, fmt.Errorf("%s: %w", name, cmp.Or(err, errNotFile))
	}
	return f, nil
}
