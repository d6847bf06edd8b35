package images

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"glasshouse/fault"
)

type sum [sha256.Size]byte

// A location is the checksum of a chunk and its location in a pack.
type location struct {
	sum    sum
	off    int64
	stored int64 // compressed
	raw    int64
}

// An index lists the files of a snapshot as sequences of chunks.
type index struct {
	id     packID
	packs  []packID
	chunks []indexed // each is used by at least one extent
	files  []file    // ordered by name
	size   int64     // size of the encoded index
}

type indexed struct {
	location
	pack int // in index.packs
}

type file struct {
	name    string
	size    int64
	extents []extent
}

// An extent is a piece of a file: a chunk or a hole.
type extent struct {
	chunk int // in index.chunks, if hole is 0
	hole  int64
}

func (x *index) length(e extent) int64 {
	if e.hole > 0 {
		return e.hole
	}
	return x.chunks[e.chunk].raw
}

// digest returns a digest over names, sizes and content. It uses the extents in place of the
// content, because the content alone determines the chunking.
func (x *index) digest() string {
	all := sha256.New()
	for _, f := range x.files {
		h := sha256.New()
		for _, e := range f.extents {
			if e.hole > 0 {
				fmt.Fprintf(h, "%d zeros\n", e.hole)
			} else {
				fmt.Fprintf(h, "%d %x\n", x.chunks[e.chunk].raw, x.chunks[e.chunk].sum)
			}
		}
		fmt.Fprintf(all, "%x %d %s\n", h.Sum(nil), f.size, f.name)
	}
	return hex.EncodeToString(all.Sum(nil))
}

func (x *index) sum() Sum {
	s := Sum{Digest: x.digest()}
	for _, f := range x.files {
		s.Raw += f.size
	}
	for _, c := range x.chunks {
		s.Stored += c.stored
	}
	return s
}

// An index file consists of the magic, the fields in the order of their declaration, with
// numbers as uvarints, and a sha256 over all preceding bytes.
const (
	magic   = "glasshouse pages "
	version = 1

	maxIndex = 256 << 20 // about 250 GB of memory without equal pages
	maxName  = 255
)

func (x *index) encode() []byte {
	b := append([]byte(magic), version)
	b = append(b, x.id[:]...)
	b = binary.AppendUvarint(b, uint64(len(x.packs)))
	for _, id := range x.packs {
		b = append(b, id[:]...)
	}
	b = binary.AppendUvarint(b, uint64(len(x.chunks)))
	for _, c := range x.chunks {
		b = append(b, c.sum[:]...)
		for _, n := range []int64{int64(c.pack), c.off, c.stored, c.raw} {
			b = binary.AppendUvarint(b, uint64(n))
		}
	}
	b = binary.AppendUvarint(b, uint64(len(x.files)))
	for _, f := range x.files {
		b = append(b, byte(len(f.name)))
		b = append(b, f.name...)
		b = binary.AppendUvarint(b, uint64(f.size))
		b = binary.AppendUvarint(b, uint64(len(f.extents)))
		for _, e := range f.extents {
			if e.hole > 0 {
				b = binary.AppendUvarint(b, uint64(e.hole)<<1|1)
			} else {
				b = binary.AppendUvarint(b, uint64(e.chunk)<<1)
			}
		}
	}
	s := sha256.Sum256(b)
	return append(b, s[:]...)
}

// errDamaged reports that stored data was changed or lost.
var errDamaged = errors.New("damaged")

func readIndex(name string) (*index, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxIndex {
		return nil, fmt.Errorf("index: %w: not a regular file, or too large", errDamaged)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return decodeIndex(b)
}

// decodeIndex returns errDamaged if b was not written by encode, and fault.Unsupported if a
// newer version wrote it.
func decodeIndex(b []byte) (*index, error) {
	body := b[:max(0, len(b)-sha256.Size)]
	if s := sha256.Sum256(body); len(b) == len(body) || !bytes.Equal(s[:], b[len(body):]) {
		return nil, fmt.Errorf("index: %w: checksum mismatch", errDamaged)
	}
	x, err := decodeBody(body)
	if err != nil {
		return nil, err
	}
	x.size = int64(len(b))
	return x, nil
}

func decodeBody(b []byte) (*index, error) {
	d := &decoder{b: b}
	if string(d.bytes(len(magic))) != magic {
		return nil, fmt.Errorf("index: %w: not an index", errDamaged)
	}
	if v := d.bytes(1); v != nil && v[0] != version {
		return nil, fault.Cannot("index", fmt.Sprintf("index version %d, but this program supports %d", v[0], version), "use the version of glasshouse that took the snapshot")
	}
	x := &index{}
	copy(x.id[:], d.bytes(len(x.id)))
	x.packs = make([]packID, d.count(len(packID{})))
	for i := range x.packs {
		copy(x.packs[i][:], d.bytes(len(packID{})))
	}
	x.chunks = make([]indexed, d.count(len(sum{})+4))
	for i := range x.chunks {
		d.chunk(x, &x.chunks[i])
	}
	x.files = make([]file, d.count(3))
	for i := range x.files {
		d.file(x, &x.files[i])
	}
	d.check(len(d.b) == 0, "trailing data")
	d.check(slices.IsSortedFunc(x.files, func(a, b file) int { return strings.Compare(a.name, b.name) }), "files out of order")
	for i := 1; i < len(x.files); i++ {
		d.check(x.files[i-1].name != x.files[i].name, "duplicate file")
	}
	if d.err != nil {
		return nil, d.err
	}
	return x, nil
}

// A decoder decodes fields from b and records the first error.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) check(ok bool, wrong string) {
	if !ok && d.err == nil {
		d.b, d.err = nil, fmt.Errorf("index: %w: %s", errDamaged, wrong)
	}
}

func (d *decoder) bytes(n int) []byte {
	d.check(n <= len(d.b), "too short")
	if d.err != nil {
		return nil
	}
	b := d.b[:n]
	d.b = d.b[n:]
	return b
}

// number decodes a number of at most max.
func (d *decoder) number(max int64) int64 {
	v, n := binary.Uvarint(d.b)
	d.check(n > 0 && v <= uint64(max), "number out of range")
	if d.err != nil {
		return 0
	}
	d.b = d.b[n:]
	return int64(v)
}

// count decodes the number of elements of at least size bytes. It bounds allocations by the
// size of the index.
func (d *decoder) count(size int) int { return int(d.number(int64(len(d.b) / size))) }

const maxFile = 1 << 50

func (d *decoder) chunk(x *index, c *indexed) {
	copy(c.sum[:], d.bytes(len(c.sum)))
	c.pack = int(d.number(maxFile))
	c.off = d.number(maxFile)
	c.stored = d.number(2 * maxChunk)
	c.raw = d.number(maxChunk)
	d.check(c.pack < len(x.packs), "chunk without a pack")
	d.check(c.raw > 0 && c.stored > 0, "empty chunk")
}

func (d *decoder) file(x *index, f *file) {
	if n := d.bytes(1); n != nil {
		f.name = string(d.bytes(int(n[0])))
	}
	d.check(plainName(f.name), "invalid file name")
	f.size = d.number(maxFile)
	f.extents = make([]extent, d.count(1))
	left := f.size
	for i := range f.extents {
		v := d.number(maxFile<<1 | 1)
		if v&1 == 1 {
			f.extents[i].hole = v >> 1
			d.check(v>>1 > 0, "empty hole")
		} else {
			f.extents[i].chunk = int(v >> 1)
			d.check(int(v>>1) < len(x.chunks), "unknown chunk in a file")
		}
		if d.err != nil {
			return
		}
		left -= x.length(f.extents[i])
		d.check(left >= 0, "file longer than its size")
	}
	d.check(left == 0, "file shorter than its size")
}

// plainName reports whether s is a file name without a directory.
func plainName(s string) bool {
	return s != "" && s != "." && s != ".." && len(s) <= maxName && !strings.ContainsAny(s, "/\x00\n")
}
