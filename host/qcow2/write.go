package qcow2

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"

	"glasshouse/fault"
)

const (
	l1Offset = cluster                            // after the header
	perBlock = cluster / (1 << refcountOrder / 8) // entries of a refcount block
)

// A writer writes an image from its beginning to its end: the header, the L1 table, L2 tables each
// followed by its data, refcount blocks, and the refcount table.
type writer struct {
	f     *os.File
	size  int64
	next  int64 // offset of the first free cluster
	l2    []byte
	l2At  int64 // offset of the L2 table, 0 before the first one
	index int64 // of the L2 table
	zeros Zeros
}

// newWriter prepares an image of size bytes in the empty file f.
func newWriter(f *os.File, size int64) (*writer, error) {
	if err := checkSize("qcow2.write", f.Name(), size); err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("write qcow2 image: %w", err)
	}
	if info.Size() != 0 {
		return nil, fault.Newf(fault.Conflict, "qcow2.write", f.Name(), "the file is not empty")
	}
	return &writer{f: f, size: size, next: l1Offset + clusters(8*tables(size))*cluster, l2: make([]byte, cluster)}, nil
}

var zeroCluster [cluster]byte

// put writes the cluster with the virtual offset pos, unless it is all zeros. The offsets of
// successive calls ascend.
func (w *writer) put(ctx context.Context, pos int64, data []byte) error {
	if ctx.Err() != nil {
		return fmt.Errorf("write qcow2 image %s: %w", w.f.Name(), context.Cause(ctx))
	}
	if bytes.Equal(data, zeroCluster[:]) {
		return nil
	}
	if err := w.enterTable(pos / span); err != nil {
		return err
	}
	at := w.allocate()
	binary.BigEndian.PutUint64(w.l2[pos%span/cluster*8:], uint64(at)|copied)
	return w.write(data, at)
}

// enterTable makes the L2 table with the given index the current one.
func (w *writer) enterTable(index int64) error {
	if w.l2At != 0 && index == w.index {
		return nil
	}
	from := index
	if w.zeros == HideBelow { // tables without data hide as well
		from = 0
		if w.l2At != 0 {
			from = w.index + 1
		}
	}
	for at := from; at <= index; at++ {
		if err := w.flushTable(); err != nil {
			return err
		}
		clear(w.l2)
		for n := int64(0); w.zeros == HideBelow && n < min(perTable, clusters(w.size-at*span)); n++ {
			binary.BigEndian.PutUint64(w.l2[8*n:], zero)
		}
		w.index, w.l2At = at, w.allocate()
	}
	return nil
}

// allocate returns the offset of a new cluster.
func (w *writer) allocate() int64 {
	at := w.next
	w.next += cluster
	return at
}

func (w *writer) write(b []byte, at int64) error {
	if _, err := w.f.WriteAt(b, at); err != nil {
		return fmt.Errorf("write qcow2 image: %w", err)
	}
	return nil
}

// flushTable writes the L2 table and its entry in the L1 table.
func (w *writer) flushTable() error {
	if w.l2At == 0 {
		return nil
	}
	if err := w.write(w.l2, w.l2At); err != nil {
		return err
	}
	return w.write(binary.BigEndian.AppendUint64(nil, uint64(w.l2At)|copied), l1Offset+8*w.index)
}

// refcountClusters returns the numbers of refcount blocks and of clusters of the refcount table for
// an image that uses the given number of other clusters. Blocks and table have refcounts too.
func refcountClusters(used int64) (blocks, table int64) {
	for {
		b := (used + blocks + table + perBlock - 1) / perBlock
		t := clusters(8 * b)
		if b == blocks && t == table {
			return blocks, table
		}
		blocks, table = b, t
	}
}

// finish writes the refcounts and the header. The header is last, because a file without one is no
// image.
func (w *writer) finish() error {
	if w.zeros == HideBelow {
		if err := w.enterTable(tables(w.size) - 1); err != nil {
			return err
		}
	}
	if err := w.flushTable(); err != nil {
		return err
	}
	used := w.next / cluster
	blocks, table := refcountClusters(used)
	tableAt := w.next + blocks*cluster
	block := make([]byte, cluster)
	for i := range blocks {
		clear(block)
		for j := range min(perBlock, used+blocks+table-i*perBlock) {
			binary.BigEndian.PutUint16(block[2*j:], 1)
		}
		at := w.allocate()
		if err := w.write(block, at); err != nil {
			return err
		}
		if err := w.write(binary.BigEndian.AppendUint64(nil, uint64(at)), tableAt+8*i); err != nil {
			return err
		}
	}
	if err := w.f.Truncate(tableAt + table*cluster); err != nil {
		return fmt.Errorf("set size of qcow2 image: %w", err)
	}
	// The zeros after the header end the list of its extensions.
	b, err := binary.Append(nil, binary.BigEndian, header{
		Magic: magic, Version: version, ClusterBits: clusterBits, Size: uint64(w.size),
		L1Size: uint32(tables(w.size)), L1TableOffset: l1Offset,
		RefcountTableOffset: uint64(tableAt), RefcountTableClusters: uint32(table),
		RefcountOrder: refcountOrder, HeaderLength: headerLength,
	})
	if err != nil {
		return fmt.Errorf("encode qcow2 header: %w", err)
	}
	return w.write(b, 0)
}
