package kernel

import (
	"runtime"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// spareRings are made before a jail needs them: that a jail which is taken back
// or branched off runs again does not wait for the kernel to clear megabytes.
const spareRings = 2

// rings are those of one jail, one for each processor.
type rings struct {
	m   *ebpf.Map
	id  ebpf.MapID
	mem []byte
}

// openRings maps the memory of m, which is the caller's until it succeeds.
func openRings(m *ebpf.Map) (*rings, error) {
	info, err := m.Info()
	if err != nil {
		return nil, err
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
	made, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "ring_of_a_jail", Type: ebpf.Array, KeySize: 4, Flags: unix.BPF_F_MMAPABLE,
		ValueSize: uint32(headerSize + m.ringSize + slackSize), MaxEntries: uint32(m.count),
	})
	if err != nil {
		return nil, err
	}
	r, err := openRings(made)
	if err != nil {
		made.Close()
	}
	return r, err
}

// install gives the programs a jail's rings. The kernel does it at once, but the
// call returns only when no program can know of the state before, many
// milliseconds later; nobody waits for that until the watch ends.
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
