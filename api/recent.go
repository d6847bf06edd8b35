package api

import (
	"slices"
	"sync"
)

// A recent is a cache of computed values. It evicts the least recently used value, which is
// computed again on demand.
type recent[K comparable, V any] struct {
	most int // maximum number of entries; it bounds the memory

	mu sync.Mutex
	// +checklocks:mu
	list []kept[K, V] // most recently used last
}

type kept[K comparable, V any] struct {
	key  K
	made V
}

func (r *recent[K, V]) of(key K, make func() V) V {
	r.mu.Lock()
	defer r.mu.Unlock()
	var k kept[K, V]
	if i := slices.IndexFunc(r.list, func(k kept[K, V]) bool { return k.key == key }); i >= 0 {
		k = r.list[i]
		r.list = slices.Delete(r.list, i, i+1)
	} else {
		k = kept[K, V]{key, make()}
	}
	r.list = append(r.list, k)
	if len(r.list) > r.most {
		r.list = slices.Delete(r.list, 0, 1)
	}
	return k.made
}
