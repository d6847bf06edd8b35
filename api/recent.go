package api

import (
	"slices"
	"sync"
)

// A recent keeps what was made of what for who looks at it. The least recently used is
// forgotten, and made anew when it is asked for again.
type recent[K comparable, V any] struct {
	most int // bounds the memory that looking takes

	mu sync.Mutex
	// +checklocks:mu
	list []kept[K, V] // the most recently used last
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
