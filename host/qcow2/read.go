package qcow2

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"

	"glasshouse/fault"
)

// Bits of entries of L1 and L2 tables. Offsets have the bits 16 to 55, because all clusters are
// aligned.
const (
	copied     = 1 << 63 // the cluster has one reference, so QEMU may write to it
	zero       = 1 << 0  // the cluster reads as zeros, whatever its offset
	offsetMask = 1<<56 - cluster
)

// A layer is an image that is read.
type layer struct {
	f        *os.File
	fileSize int64
	size     int64  // virtual
	l1       int64  // offset of the L1 table
	unused   int64  // clusters of the file to which no entry has referred yet
	l2       []byte // the loaded L2 table
	empty    bool   // there is no L2 table
}

// refuse returns an error about the content of the file.
func (l *layer) refuse(format string, args ...any) error {
	return fault.Newf(fault.Invalid, "qcow2.read", l.f.Name(), format, args...)
}

// openLayer checks the header of f. The layer needs a buffer for an L2 table before loadTable.
func openLayer(f *os.File) (*layer, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read qcow2 image: %w", err)
	}
	l := &layer{f: f, fileSize: info.Size(), unused: clusters(info.Size())}
	if l.fileSize < cluster {
		return nil, l.refuse("a file of %d bytes is no qcow2 image", l.fileSize)
	}
	var h header
	if err := binary.Read(io.NewSectionReader(f, 0, headerLength), binary.BigEndian, &h); err != nil {
		return nil, fmt.Errorf("read header of qcow2 image %s: %w", f.Name(), err)
	}
	if h.Magic != magic || h.Version != version {
		return nil, l.refuse("the file is no qcow2 image of version %d", version)
	}
	// These fields have the same value in all images of this package, also after QEMU has written
	// to them. The incompatible features include those of a dirty and of a corrupt image.
	for _, field := range []struct {
		name      string
		got, want uint64
	}{
		{"offset of backing file name", h.BackingFileOffset, 0},
		{"length of backing file name", uint64(h.BackingFileSize), 0},
		{"cluster bits", uint64(h.ClusterBits), clusterBits},
		{"encryption method", uint64(h.CryptMethod), 0},
		{"number of internal snapshots", uint64(h.NbSnapshots), 0},
		{"incompatible features", h.IncompatibleFeatures, 0},
		{"compatible features", h.CompatibleFeatures, 0},
		{"autoclear features", h.AutoclearFeatures, 0},
		{"refcount order", uint64(h.RefcountOrder), refcountOrder},
	} {
		if field.got != field.want {
			return nil, l.refuse("%s: got %#x, want %#x", field.name, field.got, field.want)
		}
	}
	l.size, l.l1 = int64(h.Size), int64(h.L1TableOffset)
	if err := checkSize("qcow2.read", f.Name(), l.size); err != nil {
		return nil, err
	}
	entries := tables(l.size)
	if int64(h.L1Size) != entries || !l.contains(h.L1TableOffset, 8*entries) {
		return nil, l.refuse("L1 table of %d entries at offset %#x in a file of %d bytes, want %d entries",
			h.L1Size, h.L1TableOffset, l.fileSize, entries)
	}
	return l, nil
}

// contains reports whether n bytes at offset are in the file and begin with a cluster that is not
// the header.
func (l *layer) contains(offset uint64, n int64) bool {
	return offset >= cluster && offset%cluster == 0 && offset <= uint64(l.fileSize) && n <= l.fileSize-int64(offset)
}

// refer counts a reference to a cluster. Without internal snapshots each cluster has one. An image
// with more references than clusters is damaged, and merging it could take very long.
func (l *layer) refer() error {
	l.unused--
	if l.unused < 0 {
		return l.refuse("its tables refer to more clusters than the file has")
	}
	return nil
}

// loadTable reads the L2 table with the given index.
func (l *layer) loadTable(index int64) error {
	var b [8]byte
	if _, err := l.f.ReadAt(b[:], l.l1+8*index); err != nil {
		return fmt.Errorf("read L1 table of qcow2 image %s: %w", l.f.Name(), err)
	}
	entry := binary.BigEndian.Uint64(b[:])
	l.empty = entry == 0
	if l.empty {
		return nil
	}
	offset := entry &^ copied
	if offset&^offsetMask != 0 || !l.contains(offset, cluster) {
		return l.refuse("L1 entry %d is %#x in a file of %d bytes", index, entry, l.fileSize)
	}
	if err := l.refer(); err != nil {
		return err
	}
	if _, err := l.f.ReadAt(l.l2, int64(offset)); err != nil {
		return fmt.Errorf("read L2 table of qcow2 image %s: %w", l.f.Name(), err)
	}
	return nil
}

// readCluster reads the cluster at the virtual offset pos. Its L2 table must be loaded. If the layer
// does not have the cluster, found is false. If the cluster reads as zeros, data is false.
func (l *layer) readCluster(pos int64, buf []byte) (found, data bool, err error) {
	if l.empty {
		return false, false, nil
	}
	entry := binary.BigEndian.Uint64(l.l2[pos%span/cluster*8:])
	offset := entry & offsetMask
	switch {
	case entry == 0:
		return false, false, nil
	case entry&^(copied|zero|offsetMask) != 0: // compressed, or reserved bits
		return false, false, l.refuse("L2 entry of virtual offset %#x is %#x", pos, entry)
	case entry&zero != 0:
		return true, false, nil
	case !l.contains(offset, 1): // QEMU need not have written all of the last cluster
		return false, false, l.refuse("L2 entry of virtual offset %#x is %#x in a file of %d bytes", pos, entry, l.fileSize)
	}
	if err := l.refer(); err != nil {
		return false, false, err
	}
	n := min(cluster, l.fileSize-int64(offset), l.size-pos)
	if _, err := l.f.ReadAt(buf[:n], int64(offset)); err != nil {
		return false, false, fmt.Errorf("read qcow2 image %s: %w", l.f.Name(), err)
	}
	clear(buf[n:])
	return true, true, nil
}

// openChain opens layers, the topmost first.
func openChain(files []*os.File) ([]*layer, error) {
	if len(files) == 0 {
		return nil, fault.Newf(fault.Invalid, "qcow2.read", "", "no layers")
	}
	var chain []*layer
	for _, f := range files {
		l, err := openLayer(f)
		if err != nil {
			return nil, err
		}
		l.l2 = make([]byte, cluster)
		chain = append(chain, l)
		if l.size != chain[0].size {
			return nil, l.refuse("virtual size of %d bytes, but that of %s is %d", l.size, files[0].Name(), chain[0].size)
		}
	}
	return chain, nil
}

// readCluster reads the cluster at the virtual offset pos from the topmost layer that has it. It
// returns false if the cluster reads as zeros.
func readCluster(chain []*layer, pos int64, buf []byte) (data bool, err error) {
	for _, l := range chain {
		found, data, err := l.readCluster(pos, buf)
		if found || err != nil {
			return data, err
		}
	}
	return false, nil
}
