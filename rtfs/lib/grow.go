package lib

import (
	"sync/atomic"

	"glasshouse/rtfs/form"
)

// A spare lies in the last element of the memory behind a vector that conj made, and
// counts the elements between that nobody has. A vector whose end is the first of them
// can take them and leave every other vector as it is: so a vector that is built one by
// one is not copied every time. Nobody sees a spare: it is never within the length.
type spare struct{ free atomic.Int64 }

// push is v with more elements behind it.
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
	// The count is as large as what lies behind v if and only if nobody was here.
	if !ok || !end.free.CompareAndSwap(int64(behind), int64(behind-len(more))) {
		return nil, false
	}
	grown := v[:len(v)+len(more)]
	copy(grown[len(v):], more)
	return grown, true
}
