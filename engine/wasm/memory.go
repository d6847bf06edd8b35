package wasm

import "github.com/tetratelabs/wazero/experimental"

const page = 1 << 16

// A memory is the linear memory of one instance, and its limit. The collector frees
// it: whoever still holds a piece of it when the instance has ended holds memory.
type memory struct {
	limit  uint64
	bytes  []byte
	denied bool // more was asked for than there may be
}

var _ experimental.MemoryAllocator = (*memory)(nil)

// Allocate makes the one memory that a module has.
func (m *memory) Allocate(_, _ uint64) experimental.LinearMemory { return m }

// Reallocate makes it larger. It never becomes smaller.
func (m *memory) Reallocate(size uint64) []byte {
	if size > m.limit {
		m.denied = true
		return nil
	}
	if size > uint64(cap(m.bytes)) {
		room := min(max(size, 2*uint64(len(m.bytes))), m.limit)
		grown := make([]byte, len(m.bytes), room)
		copy(grown, m.bytes)
		m.bytes = grown
	}
	m.bytes = m.bytes[:size]
	return m.bytes
}

func (m *memory) Free() {}
