package wasm

import "github.com/tetratelabs/wazero/experimental"

const page = 1 << 16

// A memory is the linear memory of one instance with its limit. The garbage collector frees
// it, so a slice of it keeps the memory allocated after the instance has ended.
type memory struct {
	limit  uint64
	bytes  []byte
	denied bool // the module has requested more than limit
}

var _ experimental.MemoryAllocator = (*memory)(nil)

// Allocate implements experimental.MemoryAllocator. A module has one memory.
func (m *memory) Allocate(_, _ uint64) experimental.LinearMemory { return m }

// Reallocate grows the memory. It returns nil if size exceeds the limit.
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
