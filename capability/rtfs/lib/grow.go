package lib

import (
	"sync/atomic"

	"glasshouse/capability/rtfs/form"
)

// A spare is stored in the last element of the array behind a vector that conj has created. It
// counts the unused elements before it. A vector that ends at the first unused element can
// append in place without affecting other vectors. Therefore building a vector element by
// element does not copy it each time. The spare is never within the length of a vector, so
// programs cannot observe it.
type spare struct{ free atomic.Int64 }

// push returns v with elements appended.
func push(c Call, v form.Vector, more ...form.Value) (form.Vector, error) {
	if grown, ok := takeSpare(v, more); ok {
		return grown, nil
	}
	n := len(v) + len(more)
	room := max(4, n/2)
	if err := charge(c, n+room+1, element); err != nil {
		return nil, err
	}
	all := make(form.Vector, n+room+1)
	copy(all[copy(all, v):], more)
	end := &spare{}
	end.free.Store(int64(room))
	all[n+room] = end
	return all[:n], nil
}

func takeSpare(v form.Vector, more []form.Value) (form.Vector, bool) {
	behind := cap(v) - 1 - len(v)
	if behind < len(more) {
		return nil, false
	}
	end, ok := v[:cap(v)][cap(v)-1].(*spare)
	// free equals the number of elements after v only if no other vector has used them.
	if !ok || !end.free.CompareAndSwap(int64(behind), int64(behind-len(more))) {
		return nil, false
	}
	grown := v[:len(v)+len(more)]
	copy(grown[len(v):], more)
	return grown, true
}
