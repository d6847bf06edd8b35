// Package qcow2 creates, reads and merges disk images of virtual machines in QEMU's format
// (docs/interop/qcow2.txt in QEMU).
//
// An image is self-contained or an overlay: a layer with the clusters that differ from the layers
// below it. No image contains the name of another file. QEMU gets each layer's backing node
// explicitly, and this package gets all layers.
//
// QEMU writes to images, and a guest may have compromised it. So everything in a file is
// untrusted. The package accepts only what it and QEMU write into such images: version 3,
// clusters of 64 KiB, and no optional features. Some features make QEMU open another file. Memory
// use does not depend on the content of a file. Reference counts are written for QEMU and never
// read.
package qcow2

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

const (
	clusterBits = 16
	cluster     = 1 << clusterBits
	perTable    = cluster / 8 // entries of an L2 table, which has one cluster
	span        = perTable * cluster
	sector      = 512 // QEMU's unit of virtual sizes

	// maxSize is the largest virtual size, and that of ext4 with blocks of 4 KiB and 32-bit block
	// numbers. It limits how long an untrusted image can keep Flatten busy.
	maxSize = 16 << 40
)

// header is the header of version 3, in big-endian byte order. The names are those of the
// specification.
type header struct {
	Magic                 uint32
	Version               uint32
	BackingFileOffset     uint64
	BackingFileSize       uint32
	ClusterBits           uint32
	Size                  uint64
	CryptMethod           uint32
	L1Size                uint32
	L1TableOffset         uint64
	RefcountTableOffset   uint64
	RefcountTableClusters uint32
	NbSnapshots           uint32
	SnapshotsOffset       uint64
	IncompatibleFeatures  uint64
	CompatibleFeatures    uint64
	AutoclearFeatures     uint64
	RefcountOrder         uint32
	HeaderLength          uint32
}

const (
	magic         = 'Q'<<24 | 'F'<<16 | 'I'<<8 | 0xfb
	version       = 3
	headerLength  = 104 // without optional fields
	refcountOrder = 4   // reference counts of 1<<4 bits
)

// Create writes an image of size bytes without data to the empty file f. It reads as zeros, or as
// an overlay like its backing node. The size is a multiple of 512, at most 16 TiB. Create returns
// fault.Conflict if f is not empty, as all functions of this package that write an image.
func Create(f *os.File, size int64) error {
	w, err := newWriter(f, size)
	if err != nil {
		return err
	}
	return w.finish()
}

// Zeros says what an image has where its disk has zeros.
type Zeros bool

const (
	Omit      Zeros = false // nothing, which takes no space
	HideBelow Zeros = true  // entries that hide what layers below the image have there
)

// FromRaw writes an image with the content of the file raw to the empty file f. It moves the offset of
// raw. If it fails, the content of f is undefined.
func FromRaw(ctx context.Context, f, raw *os.File, zeros Zeros) error {
	info, err := raw.Stat()
	if err != nil {
		return fmt.Errorf("make qcow2 image: %w", err)
	}
	size := info.Size()
	w, err := newWriter(f, size)
	if err != nil {
		return err
	}
	w.zeros = zeros
	buf := make([]byte, cluster)
	for pos := int64(0); pos < size; pos += cluster {
		data, err := raw.Seek(pos, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // only a hole remains (lseek(2))
		}
		if err != nil {
			return fmt.Errorf("find data for qcow2 image: %w", err)
		}
		pos = data / cluster * cluster
		n := min(cluster, size-pos)
		if n <= 0 {
			break // the file has grown since
		}
		clear(buf[n:])
		if _, err := io.ReadFull(io.NewSectionReader(raw, pos, n), buf[:n]); err != nil {
			return fmt.Errorf("read %s for qcow2 image: %w", raw.Name(), err)
		}
		if err := w.put(ctx, pos, buf); err != nil {
			return err
		}
	}
	return w.finish()
}

// Size returns the virtual size of the image f, after checking its header. Call it before QEMU
// opens a file that another QEMU has written: it returns fault.Invalid if the image has features
// that could make QEMU open other files. Compare the result with the size that the disk was
// created with. QEMU may have changed it, and it limits the time and space that Flatten takes.
func Size(f *os.File) (int64, error) {
	l, err := openLayer(f)
	if err != nil {
		return 0, err
	}
	return l.size, nil
}

// Flatten writes a self-contained image with the merged content of layers to the empty file to.
// The topmost layer is the first one. Clusters that are in no layer are zeros. Clusters of zeros
// take no space in the result. Nothing may write to the layers meanwhile. Flatten returns
// fault.Invalid if it does not accept a layer, or if the layers have different sizes. If it fails,
// the content of the file to is undefined.
func Flatten(ctx context.Context, layers []*os.File, to *os.File) error {
	chain, err := openChain(layers)
	if err != nil {
		return err
	}
	w, err := newWriter(to, chain[0].size)
	if err != nil {
		return err
	}
	if err := merge(ctx, chain, func(pos int64, data []byte) error { return w.put(ctx, pos, data) }); err != nil {
		return err
	}
	return w.finish()
}

// ToRaw writes the merged content of layers, as Flatten merges them, to the empty file to, which is as
// large as the disk. Zeros are holes.
func ToRaw(ctx context.Context, to *os.File, layers []*os.File) error {
	chain, err := openChain(layers)
	if err != nil {
		return err
	}
	size := chain[0].size
	if err := to.Truncate(size); err != nil {
		return fmt.Errorf("set size of disk: %w", err)
	}
	return merge(ctx, chain, func(pos int64, data []byte) error {
		if bytes.Equal(data, zeroCluster[:]) {
			return nil
		}
		if _, err := to.WriteAt(data[:min(cluster, size-pos)], pos); err != nil {
			return fmt.Errorf("write disk: %w", err)
		}
		return context.Cause(ctx)
	})
}

// merge calls put with each cluster that a layer has and that does not read as zeros, in the order of
// virtual offsets.
func merge(ctx context.Context, chain []*layer, put func(pos int64, data []byte) error) error {
	size := chain[0].size
	buf := make([]byte, cluster)
	for start := int64(0); start < size; start += span {
		if ctx.Err() != nil {
			return fmt.Errorf("merge disk images: %w", context.Cause(ctx))
		}
		empty := true
		for _, l := range chain {
			if err := l.loadTable(start / span); err != nil {
				return err
			}
			empty = empty && l.empty
		}
		for pos := start; !empty && pos < min(start+span, size); pos += cluster {
			data, err := readCluster(chain, pos, buf)
			if err == nil && data {
				err = put(pos, buf)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// checkSize returns an error if an image cannot have this virtual size.
func checkSize(op, on string, size int64) error {
	if size <= 0 || size > maxSize || size%sector != 0 {
		return fault.Newf(fault.Invalid, op, on, "virtual size of %d bytes: want a multiple of %d up to %d", size, sector, int64(maxSize))
	}
	return nil
}

// tables returns the number of L2 tables, and of entries of the L1 table, for a virtual size.
func tables(size int64) int64 { return (size + span - 1) / span }

// clusters returns the number of clusters that n bytes take.
func clusters(n int64) int64 { return n/cluster + min(1, n%cluster) }
