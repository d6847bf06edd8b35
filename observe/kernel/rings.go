package kernel

import (
	"fmt"
	"runtime"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// spareRings are allocated in advance, so that restored and branched jails do not wait until
// the kernel has cleared megabytes of memory.
const spareRings = 2

// rings are the ring buffers of one jail, one per CPU.
type rings struct {
	m   *ebpf.Map
	id  ebpf.MapID
	mem []byte
}

// openRings maps the memory of m. On success it takes ownership of m.
func openRings(m *ebpf.Map) (*rings, error) {
	info, err := m.Info()
	if err != nil {
		return nil, fmt.Errorf("read the properties of the rings: %w", err)
	}
	r := &rings{m: m}
	r.id, _ = info.ID()
	if r.mem, err = mapMemory(m); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *rings) close() {
	unix.Munmap(r.mem)
	r.m.Close()
}

func (m *machine) newRings() (*rings, error) {
	// The kernel rejects an inner map whose flags or sizes differ from those of the template in
	// prepare (array_map_meta_equal in kernel/bpf/arraymap.c).
	made, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "ring_of_jail", Type: ebpf.Array, KeySize: 4, Flags: unix.BPF_F_MMAPABLE,
		ValueSize: uint32(headerSize + m.ringSize + slackSize), MaxEntries: uint32(m.count),
	})
	if err != nil {
		return nil, fmt.Errorf("create a map: %w", err)
	}
	r, err := openRings(made)
	if err != nil {
		made.Close()
	}
	return r, err
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
