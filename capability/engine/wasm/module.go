package wasm

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Limits for modules.
const (
	maxModule = 64 << 20
	maxTable  = 1 << 20 // entries of a table, of 8 bytes each
)

// Ids of the sections that are inspected.
const (
	sectionTable  = 4
	sectionMemory = 5
)

var errModule = errors.New("invalid WebAssembly module")

// bounded returns a copy of a module with a maximum for each table. Tables are outside of
// linear memory, so the memory limit of the manifest does not apply, and wazero has no limit.
// memory is the initial size of the module's memory in bytes.
func bounded(module []byte) (out []byte, memory uint64, err error) {
	if len(module) < 8 || string(module[:8]) != "\x00asm\x01\x00\x00\x00" {
		return nil, 0, errModule
	}
	out = append(out, module[:8]...)
	r := &sections{left: module[8:]}
	for len(r.left) > 0 {
		id, body, err := r.next()
		if err != nil {
			return nil, 0, err
		}
		switch id {
		case sectionMemory:
			if memory, err = initialMemory(body); err != nil {
				return nil, 0, fmt.Errorf("read the memory section: %w", err)
			}
		case sectionTable:
			if body, err = boundTables(body); err != nil {
				return nil, 0, fmt.Errorf("read the table section: %w", err)
			}
		}
		out = append(out, id)
		out = binary.AppendUvarint(out, uint64(len(body)))
		out = append(out, body...)
	}
	return out, memory, nil
}

// sections is a reader of the WebAssembly binary format. left is the unread rest.
type sections struct{ left []byte }

func (r *sections) next() (id byte, body []byte, err error) {
	id, r.left = r.left[0], r.left[1:]
	size, err := r.u32()
	if err != nil || uint64(size) > uint64(len(r.left)) {
		return 0, nil, fmt.Errorf("%w: section %d is truncated", errModule, id)
	}
	body, r.left = r.left[:size], r.left[size:]
	return id, body, nil
}

func (r *sections) byte() (byte, error) {
	if len(r.left) == 0 {
		return 0, errModule
	}
	b := r.left[0]
	r.left = r.left[1:]
	return b, nil
}

func (r *sections) u32() (uint32, error) {
	v, n := binary.Uvarint(r.left)
	if n <= 0 || n > 5 || v > 1<<32-1 {
		return 0, errModule
	}
	r.left = r.left[n:]
	return uint32(v), nil
}

// limits reads the initial and the maximum size of a table or memory.
func (r *sections) limits() (flags byte, low, high uint32, err error) {
	if flags, err = r.byte(); err != nil {
		return
	}
	if low, err = r.u32(); err != nil || flags&1 == 0 {
		return
	}
	high, err = r.u32()
	return
}

func initialMemory(body []byte) (uint64, error) {
	r := &sections{left: body}
	count, err := r.u32()
	if err != nil || count == 0 {
		return 0, err
	}
	_, low, _, err := r.limits()
	return uint64(low) * page, err
}

// boundTables returns a table section in which each table has a maximum.
func boundTables(body []byte) ([]byte, error) {
	r := &sections{left: body}
	count, err := r.u32()
	if err != nil {
		return nil, err
	}
	out := binary.AppendUvarint(nil, uint64(count))
	for range count {
		kind, err := r.byte()
		if err != nil {
			return nil, err
		}
		flags, low, high, err := r.limits()
		if err != nil {
			return nil, err
		}
		if flags&1 == 0 || high > maxTable {
			high = maxTable
		}
		if flags > 1 || low > maxTable || count > 16 {
			return nil, fmt.Errorf("%w: too many tables, or a table with more than %d entries", errModule, maxTable)
		}
		out = append(out, kind, 1)
		out = binary.AppendUvarint(out, uint64(low))
		out = binary.AppendUvarint(out, uint64(high))
	}
	if len(r.left) > 0 {
		return nil, errModule
	}
	return out, nil
}
