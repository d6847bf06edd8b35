package kernel

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"glasshouse/observe"
)

const (
	// spareRings are allocated in advance, so that restored and branched jails do not wait until
	// the kernel has cleared megabytes of memory.
	spareRings = 2

	// A jail that waits for room in its rings gets larger ones, of about largeBytes per CPU, as long
	// as all larger rings together use at most 1/largeShare of the host's memory. With 1 MiB rings
	// two busy threads make 1.8 million calls per second, with 16 MiB 2.3 million.
	largeBytes = 16 << 20
	largeShare = 64
)

// calmTime is how long a jail must not have needed its larger rings before they are freed.
var calmTime = 5 * time.Second

// rings are the ring buffers of one jail, one per CPU.
type rings struct {
	m      *ebpf.Map
	id     ebpf.MapID
	mem    []byte
	count  int           // number of rings
	chunks int           // of each ring
	stride int           // from one element of the map to the next
	chunk  uint64        // size of a chunk
	large  *atomic.Int64 // bytes of all larger rings, which include these; nil for others
}

// openRings maps the memory of m, new rings with a number of chunks or, with 0, existing ones. On
// success it takes ownership of m.
func openRings(m *ebpf.Map, chunks int, large *atomic.Int64) (*rings, error) {
	info, err := m.Info()
	if err != nil {
		return nil, fmt.Errorf("read the properties of the rings: %w", err)
	}
	r := &rings{m: m, stride: int(m.ValueSize()+7) &^ 7, chunk: uint64(m.ValueSize()) - headerSize - slackSize}
	r.id, _ = info.ID()
	if r.mem, err = mapMemory(m); err != nil {
		return nil, err
	}
	r.chunks = max(chunks, int(r.ring(0).Chunks))
	r.count = int(m.MaxEntries()) / r.chunks
	if r.chunks > 1 {
		r.large = large
		large.Add(int64(len(r.mem)))
	}
	return r, nil
}

// unmap releases the memory of the rings, but not the map.
func (r *rings) unmap() error {
	if r.large != nil {
		r.large.Add(-int64(len(r.mem)))
	}
	return unix.Munmap(r.mem)
}

func (r *rings) close() {
	r.unmap()
	r.m.Close()
}

// size returns the size of one ring.
func (r *rings) size() uint64 { return r.chunk * uint64(r.chunks) }

func (r *rings) ring(cpu int) *traceRing {
	return (*traceRing)(unsafe.Pointer(&r.mem[cpu*r.stride]))
}

func (r *rings) record(cpu int, pos uint64) *traceRecord {
	element := cpu
	if n := int(pos/r.chunk) & (r.chunks - 1); n > 0 {
		element = r.next(cpu) + n - 1
	}
	return (*traceRecord)(unsafe.Pointer(&r.mem[element*r.stride+headerSize+int(pos&(r.chunk-1))]))
}

// next returns the element of a ring's second chunk.
func (r *rings) next(cpu int) int { return r.count + cpu*(r.chunks-1) }

// used returns how many bytes of a ring contain records that are not released.
func (r *rings) used(cpu int) uint64 {
	ring := r.ring(cpu)
	return atomic.LoadUint64(&ring.Head) - atomic.LoadUint64(&ring.Tail)
}

// empty reports whether all records are released.
func (r *rings) empty() bool {
	for cpu := range r.count {
		if r.used(cpu) > 0 {
			return false
		}
	}
	return true
}

func (m *machine) newRings() (*rings, error) { return m.newRingsOf(1) }

func (m *machine) newRingsOf(chunks int) (*rings, error) {
	// The kernel rejects an inner map whose flags or value size differ from those of the template
	// in prepare (array_map_meta_equal in kernel/bpf/arraymap.c).
	made, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "ring_of_jail", Type: ebpf.Array, KeySize: 4, Flags: unix.BPF_F_MMAPABLE | unix.BPF_F_INNER_MAP,
		ValueSize: uint32(headerSize + m.ringSize + slackSize), MaxEntries: uint32(m.count * chunks),
	})
	if err != nil {
		return nil, fmt.Errorf("create a map: %w", err)
	}
	r, err := openRings(made, chunks, &m.large)
	if err != nil {
		made.Close()
		return nil, err
	}
	for cpu := range r.count {
		ring := r.ring(cpu)
		ring.Chunks, ring.Next = uint32(chunks), uint32(r.next(cpu))
	}
	return r, nil
}

// largeChunks returns the number of chunks of larger rings, or 1 if this host has no memory for
// them.
func (m *machine) largeChunks() int {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 1
	}
	limit := int64(info.Totalram) * int64(info.Unit) / largeShare
	n := max(1, largeBytes/m.ringSize)
	for n > 1 && int64(n*m.count*m.ringSize) > limit-m.large.Load() {
		n /= 2
	}
	return n
}

// install passes a jail's rings to the programs. The update takes effect immediately, but the
// system call waits for an RCU grace period of many milliseconds. Only the end of the watch
// waits for it.
func (w *watch) install(r *rings) error {
	all, index, fd := w.m.rings, uint32(w.index), uint32(r.m.FD())
	failed := make(chan error, 1)
	w.installing.Go(func() { failed <- all.Put(index, fd) })
	for {
		var got uint32
		if all.Lookup(index, &got) == nil && ebpf.MapID(got) == r.id {
			return nil
		}
		select {
		case err := <-failed:
			if err != nil {
				return err
			}
		default:
			runtime.Gosched()
		}
	}
}

// element returns the index in the map rings of a slot's first or second element.
func element(slot int, second uint32) uint32 { return uint32(slot) + second*slotCount }

// fit begins to replace the rings of a jail by larger ones if programs have waited for room in them,
// and larger ones by ordinary ones when the jail no longer needs them. A round calls it last.
//
// +checklocks:w.mu
func (w *watch) fit() {
	if w.exchanging {
		w.retire()
		return
	}
	now, r := observe.Now(), w.sets[0]
	var waits uint64
	for cpu := range r.count {
		waits += atomic.LoadUint64(&r.ring(cpu).Waits)
		if r.used(cpu) > r.chunk/8 {
			w.busy = now
		}
	}
	if now < w.refit || w.frozen || w.stuck() { // larger rings would fill, too
		return
	}
	held, chunks := waits > w.held, 1
	w.held = waits
	switch {
	case held && r.chunks == 1:
		chunks = w.m.largeChunks()
	case r.chunks == 1 || now-w.busy <= int64(calmTime):
		return
	}
	w.refit = now + int64(calmTime)
	if chunks == r.chunks {
		return
	}
	w.exchanging = true
	w.installing.Go(func() {
		if err := w.exchange(chunks); err != nil {
			w.source.cfg.Log.Debug("cannot replace the rings of a jail", "jail", w.target.Jail, "err", err)
		}
	})
}

// exchange replaces the rings of the jail. The earlier ones are freed when their records are
// written (retire).
func (w *watch) exchange(chunks int) error {
	r, err := w.m.newRingsOf(chunks)
	if err == nil {
		err = w.m.rings.Put(element(w.index, 1-w.slot.Second), uint32(r.m.FD()))
		r.m.Close() // the map rings and the mapping keep the memory
		if err != nil {
			r.unmap()
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.exchanging = false
		return err
	}
	if len(w.sets) == 0 { // closed meanwhile; the next daemon or the end of the watch removes the element
		return r.unmap()
	}
	w.add(r)
	atomic.StoreUint32(&w.slot.Second, 1-w.slot.Second)
	w.installing.Go(w.settle)
	return nil
}

// add adds rings to those that are read.
//
// +checklocks:w.mu
func (w *watch) add(r *rings) {
	w.sets = append(w.sets, r)
	for cpu := range r.count {
		w.pos = append(w.pos, atomic.LoadUint64(&r.ring(cpu).Tail))
	}
	n := len(w.pos)
	w.limits, w.scratch, w.looks = append(w.limits, make([]uint64, r.count)...), make([]*traceRecord, n), append(w.looks, make([]look, r.count)...)
}

// settle waits for the programs that have chosen rings before the last exchange.
func (w *watch) settle() {
	waitForPrograms()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.retiring = true
}

// waitForPrograms waits until the programs that run now have written their records. They choose rings
// and write with preemption disabled.
func waitForPrograms() {
	unix.Syscall(unix.SYS_MEMBARRIER, 1 /* MEMBARRIER_CMD_GLOBAL */, 0, 0)
}

// retire stops reading the replaced rings once their records are written, and frees them.
//
// +checklocks:w.mu
func (w *watch) retire() {
	old := w.sets[0]
	if !w.retiring || !old.empty() {
		return
	}
	for cpu := range old.count {
		ring := old.ring(cpu)
		for i := range sources { // a daemon that is killed in between records a loss twice
			w.slot.Retired[i] += ring.Lost[i]
			ring.Lost[i] = 0
		}
		w.waits.Add(ring.Waits)
	}
	w.sets, w.pos, w.limits, w.scratch, w.looks = w.sets[1:], w.pos[old.count:], w.limits[old.count:], w.scratch[old.count:], w.looks[old.count:]
	for i := range w.unsaved {
		w.unsaved[i].pos = w.unsaved[i].pos[old.count:]
	}
	w.retiring = false
	w.held = 0
	second := 1 - w.slot.Second
	w.installing.Go(func() { w.free(old, second) })
}

// free frees replaced rings.
func (w *watch) free(old *rings, second uint32) {
	err := w.m.rings.Delete(element(w.index, second))
	if err == nil {
		err = old.unmap()
	}
	if err != nil {
		w.source.cfg.Log.Warn("cannot free the replaced rings of a jail", "jail", w.target.Jail, "err", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.exchanging = false
}

// openElement opens the rings in an element of the map rings. It returns nil if there are none.
func (m *machine) openElement(at uint32) (*rings, error) {
	var inner uint32
	err := m.rings.Lookup(at, &inner)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	of, err := ebpf.NewMapFromID(ebpf.MapID(inner))
	if err != nil {
		return nil, err
	}
	defer of.Close()
	return openRings(of, 0, &m.large)
}

// foundRings opens the rings of a slot of an earlier daemon, those in use last.
func (m *machine) foundRings(slot int) ([]*rings, error) {
	second := m.slot(slot).Second
	current, err := m.openElement(element(slot, second))
	if err != nil {
		return nil, err
	}
	if current == nil {
		return nil, errors.New("they do not exist")
	}
	waitForPrograms() // that have chosen the others before the exchange
	other, err := m.openElement(element(slot, 1-second))
	if err != nil {
		current.unmap()
		return nil, err
	}
	if other == nil {
		return []*rings{current}, nil
	}
	return []*rings{other, current}, nil
}
