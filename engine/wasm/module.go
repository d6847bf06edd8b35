package wasm

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Limits of what a module may be.
const (
	maxModule = 64 << 20
	maxTable  = 1 << 20 // entries of a table, of 8 bytes each
)

// Sections of a module that are looked into.
const (
	sectionTable  = 4
	sectionMemory = 5
)

var errModule = errors.New("it is no WebAssembly module")

// bounded returns a module with its tables bounded: they grow outside of linear
// memory, where no limit of the manifest holds, and the runtime sets none. memory is
// how many bytes the module begins with.
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
				return nil, 0, err
			}
		case sectionTable:
			if body, err = boundTables(body); err != nil {
				return nil, 0, err
			}
		}
		out = append(out, id)
		out = binary.AppendUvarint(out, uint64(len(body)))
		out = append(out, body...)
	}
	return out, memory, nil
}

// sections reads the binary format: what is left of it.
type sections struct{ left []byte }

func (r *sections) next() (id byte, body []byte, err error) {
	id, r.left = r.left[0], r.left[1:]
	size, err := r.u32()
	if err != nil || uint64(size) > uint64(len(r.left)) {
		return 0, nil, fmt.Errorf("%w: section %d ends too early", errModule, id)
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

// limits are how much there is at the beginning and at most.
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

// boundTables writes a table section anew, each table with a maximum.
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
			return nil, fmt.Errorf("%w that is run here: it has more or larger tables than %d entries", errModule, maxTable)
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
