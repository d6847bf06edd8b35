package network

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"glasshouse/internal/fork"
)

// A ring is the ring buffer of a jail, with one reader. Records stay in the ring until they
// are released, so that a daemon finds them again if its predecessor was killed before writing
// the log.
type ring struct {
	m        *ebpf.Map
	consumer []byte // page with the consumer position
	producer []byte // page with the producer position, followed by the data, mapped twice
	data     []byte
	read     uint64 // position of the next record
}

const (
	ringBusy      = 1 << 31 // reserved by a program that has not submitted it yet
	ringDiscarded = 1 << 30
	ringHeader    = 8
)

// spareRings are allocated in advance, so that restored and branched jails do not wait until
// the kernel has cleared a megabyte of memory.
const spareRings = 2

func (s *Source) makeRing() (*ring, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "packets", Type: ebpf.RingBuf, MaxEntries: s.bytes})
	if err != nil {
		return nil, fmt.Errorf("create a ring: %w", err)
	}
	r, err := newRing(m)
	if err != nil {
		m.Close()
	}
	return r, err
}

func newRing(m *ebpf.Map) (_ *ring, err error) {
	page, size := os.Getpagesize(), int(m.MaxEntries())
	r := &ring{m: m}
	defer func() {
		if err != nil {
			r.unmap()
		}
	}()
	// The kernel permits a writable mapping of this page only (kernel/bpf/ringbuf.c,
	// ringbuf_map_mmap_kern).
	r.consumer, err = fork.Map(m.FD(), 0, page, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return nil, fmt.Errorf("map the ring: %w", err)
	}
	// The data is mapped twice in succession, so that records are contiguous across the end of
	// the ring.
	r.producer, err = fork.Map(m.FD(), int64(page), page+2*size, unix.PROT_READ)
	if err != nil {
		return nil, fmt.Errorf("map the ring: %w", err)
	}
	r.data = r.producer[page:]
	r.read = r.released()
	return r, nil
}

func word(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(unsafe.SliceData(b))) }

// written returns the producer position.
func (r *ring) written() uint64 { return atomic.LoadUint64(word(r.producer)) }

func (r *ring) released() uint64 { return atomic.LoadUint64(word(r.consumer)) }

// release releases all records before pos to the kernel.
func (r *ring) release(pos uint64) { atomic.StoreUint64(word(r.consumer), pos) }

func (r *ring) empty() bool { return r.read >= r.written() }

func (r *ring) size() uint64 { return uint64(len(r.data) / 2) }

// next returns the next record, or nil if the ring is empty. It is valid until it is released.
func (r *ring) next() []byte {
	for end := r.written(); r.read < end; {
		at := r.read & (r.size() - 1)
		head := atomic.LoadUint32((*uint32)(unsafe.Pointer(&r.data[at])))
		// Records are in the order of their reservation. A busy record delays the later ones,
		// although another processor may have submitted them.
		if head&ringBusy != 0 {
			return nil
		}
		n := uint64(head &^ ringDiscarded)
		r.read += (ringHeader + n + 7) &^ 7
		if head&ringDiscarded == 0 {
			return r.data[at+ringHeader : at+ringHeader+n]
		}
	}
	return nil
}

func (r *ring) unmap() {
	for _, b := range [][]byte{r.consumer, r.producer} {
		if b != nil {
			unix.Munmap(b)
		}
	}
	r.consumer, r.producer, r.data = nil, nil, nil
}

func (r *ring) close() {
	r.unmap()
	r.m.Close()
}

// memory maps an array map. The caller unmaps it.
func memory(m *ebpf.Map) ([]byte, error) {
	page := os.Getpagesize()
	size := (int(m.MaxEntries())*int(m.ValueSize()) + page - 1) &^ (page - 1)
	b, err := fork.Map(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return nil, fmt.Errorf("map an array: %w", err)
	}
	return b, nil
}
