package qcow2_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// The tests read and build images with the code in this file, which is written from the
// specification and shares nothing with the package.

const (
	cluster = 65536
	span    = 512 << 20 // bytes of disk for each L2 table

	copied   = uint64(1) << 63
	zeroFlag = uint64(1)
)

// newFile creates an empty file in memory. QEMU can open it by its name.
func newFile(t testing.TB) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("image", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd))
	t.Cleanup(func() { f.Close() })
	return f
}

// fileOf creates a file with parts at offsets.
func fileOf(t testing.TB, size int64, parts map[int64][]byte) *os.File {
	t.Helper()
	f := newFile(t)
	for at, b := range parts {
		if _, err := f.WriteAt(b, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f
}

// read returns n bytes of a file.
func read(t testing.TB, f *os.File, at, n int64) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatalf("read %d bytes at %d: %v", n, at, err)
	}
	return b
}

// number decodes a big-endian number.
func number(b []byte) uint64 {
	var n uint64
	for _, digit := range b {
		n = n<<8 | uint64(digit)
	}
	return n
}

// An image is the header and the L1 and L2 tables of a hand-built image. The L1 table follows
// the header, L2 tables and data are where the entries say.
type image struct {
	size    int64
	l1      map[int64]uint64           // entries, by index
	l2      map[int64]map[int64]uint64 // entries by index, for each offset of a table
	data    map[int64][]byte           // by offset
	patches map[int64][]byte           // applied last
	end     int64                      // size of the file, if it is not that of the clusters in use
}

// tables returns the offset after the L1 table.
func (m image) tables() int64 {
	entries := (m.size + span - 1) / span
	return cluster + (8*entries+cluster-1)/cluster*cluster
}

// header returns the header of an image as the specification describes it.
func (m image) header() []byte {
	h := make([]byte, 104)
	copy(h, "QFI\xfb")
	binary.BigEndian.PutUint32(h[4:], 3)
	binary.BigEndian.PutUint32(h[20:], 16)
	binary.BigEndian.PutUint64(h[24:], uint64(m.size))
	binary.BigEndian.PutUint32(h[36:], uint32((m.size+span-1)/span))
	binary.BigEndian.PutUint64(h[40:], cluster)
	binary.BigEndian.PutUint32(h[96:], 4)
	binary.BigEndian.PutUint32(h[100:], 104)
	return h
}

// write writes the image to a file.
func (m image) write(t testing.TB) *os.File {
	t.Helper()
	parts := map[int64][]byte{0: m.header()}
	end := m.tables()
	table := func(at int64, entries map[int64]uint64) {
		for i, e := range entries {
			parts[at+8*i] = binary.BigEndian.AppendUint64(nil, e)
		}
		end = max(end, at+cluster)
	}
	table(cluster, m.l1)
	for at, entries := range m.l2 {
		table(at, entries)
	}
	for at, b := range m.data {
		parts[at] = b
		end = max(end, at+cluster)
	}
	if m.end != 0 {
		end = m.end
	}
	f := fileOf(t, end, parts)
	for at, b := range m.patches {
		if _, err := f.WriteAt(b, at); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// layer returns an image in which the clusters of a disk are data, or zeros if they are nil.
func layer(size int64, clusters map[int64][]byte) image {
	m := image{size: size, l1: map[int64]uint64{}, l2: map[int64]map[int64]uint64{}, data: map[int64][]byte{}}
	next := m.tables()
	allocate := func() int64 {
		next += cluster
		return next - cluster
	}
	for i, b := range clusters {
		at := int64(m.l1[i/8192] &^ copied)
		if at == 0 {
			at = allocate()
			m.l1[i/8192] = uint64(at) | copied
			m.l2[at] = map[int64]uint64{}
		}
		if b == nil {
			m.l2[at][i%8192] = zeroFlag
			continue
		}
		data := allocate()
		m.l2[at][i%8192] = uint64(data) | copied
		m.data[data] = b
	}
	return m
}

// contents reads the clusters of a self-contained image, by index, and checks the image: each
// cluster of the file is used exactly once, and its reference count says so.
func contents(t testing.TB, f *os.File) (size int64, disk map[int64][]byte) {
	t.Helper()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	used := map[uint64]string{}
	use := func(offset uint64, what string) {
		if offset%cluster != 0 || offset+cluster > uint64(info.Size()) {
			t.Fatalf("%s is at offset %#x in a file of %#x bytes", what, offset, info.Size())
		}
		if other, ok := used[offset]; ok {
			t.Fatalf("%s and %s are both at offset %#x", what, other, offset)
		}
		used[offset] = what
	}
	use(0, "the header")
	h := read(t, f, 0, 112)
	for _, field := range []struct {
		name     string
		from, to int
		want     uint64
	}{
		{"magic", 0, 4, 0x514649fb}, {"version", 4, 8, 3}, {"backing file", 8, 20, 0}, {"cluster bits", 20, 24, 16},
		{"encryption", 32, 36, 0}, {"internal snapshots", 60, 72, 0}, {"features", 72, 96, 0},
		{"refcount order", 96, 100, 4}, {"header length", 100, 104, 104}, {"header extensions", 104, 112, 0},
	} {
		if got := number(h[field.from:field.to]); got != field.want {
			t.Errorf("%s in the header = %#x, want %#x", field.name, got, field.want)
		}
	}
	size = int64(number(h[24:32]))
	entries := number(h[36:40])
	if want := uint64(size+span-1) / span; entries != want {
		t.Errorf("L1 table has %d entries, want %d", entries, want)
	}
	l1 := number(h[40:48])
	for at := l1; at < l1+8*entries; at += cluster {
		use(at, "L1 table")
	}
	disk = map[int64][]byte{}
	for i, table := int64(0), read(t, f, int64(l1), int64(8*entries)); i < int64(entries); i++ {
		l2 := binary.BigEndian.Uint64(table[8*i:])
		if l2 == 0 {
			continue
		}
		if l2&copied == 0 {
			t.Errorf("L1 entry %d = %#x, want it marked as copied", i, l2)
		}
		use(l2&^copied, fmt.Sprintf("L2 table %d", i))
		for j, table := int64(0), read(t, f, int64(l2&^copied), cluster); j < 8192; j++ {
			entry := binary.BigEndian.Uint64(table[8*j:])
			if entry == 0 {
				continue
			}
			if entry&copied == 0 {
				t.Errorf("L2 entry %d of table %d = %#x, want it marked as copied", j, i, entry)
			}
			use(entry&^copied, fmt.Sprintf("cluster %d", 8192*i+j))
			disk[8192*i+j] = read(t, f, int64(entry&^copied), cluster)
		}
	}
	table, length := number(h[48:56]), number(h[56:60])
	counts := map[uint64]uint16{}
	for i := range length {
		use(table+i*cluster, "refcount table")
	}
	for i, b := int64(0), read(t, f, int64(table), int64(length*cluster)); i < int64(length*cluster/8); i++ {
		block := binary.BigEndian.Uint64(b[8*i:])
		if block == 0 {
			continue
		}
		use(block, fmt.Sprintf("refcount block %d", i))
		for j, b := int64(0), read(t, f, int64(block), cluster); j < cluster/2; j++ {
			if n := binary.BigEndian.Uint16(b[2*j:]); n != 0 {
				counts[uint64(i*cluster/2+j)*cluster] = n
			}
		}
	}
	for offset, n := range counts {
		if used[offset] == "" || n != 1 {
			t.Errorf("reference count of offset %#x, %s = %d", offset, used[offset], n)
		}
	}
	for offset, what := range used {
		if counts[offset] == 0 {
			t.Errorf("%s at offset %#x has no reference count", what, offset)
		}
	}
	if len(used) != int(info.Size()/cluster) {
		t.Errorf("%d clusters are used in a file of %d", len(used), info.Size()/cluster)
	}
	return size, disk
}
