package form

import (
	"cmp"
	"iter"
	"math/bits"
	"slices"
	"sync/atomic"
)

// A Map is an immutable map that keeps the insertion order of its entries. A small map consists
// of two slices. A larger one is a hash array mapped trie: maps with one more entry share most
// of its branches, so building a map entry by entry is efficient.
type Map struct {
	keys   []Value // keys of a small map
	values []Value

	root  *branch // root of a larger map
	count int
	next  int // number of the next entry

	order atomic.Pointer[[]*leaf] // entries of root in order; nil until the first request
}

// small is the number of keys up to which a linear search is faster.
const small = 8

// A leaf is an entry of a larger map. It is immutable.
type leaf struct {
	hash       uint64
	number     int // position in the order of the map
	key, value Value
}

// A branch divides entries by five bits of the hash. A slot is a *branch, a *leaf, or, if all
// bits of the hash are used, a []*leaf.
type branch struct {
	mask  uint32
	slots []any
}

// level is the number of hash bits per branch. A hash has 64 bits.
const level = 5

// NewMap returns a map of alternating keys and values. The last value of equal keys is used.
func NewMap(pairs ...Value) *Map {
	n := min(len(pairs)/2, small)
	m := &Map{keys: make([]Value, 0, n), values: make([]Value, 0, n)}
	for i := 0; i+1 < len(pairs); i += 2 {
		m.put(pairs[i], pairs[i+1])
	}
	return m
}

// Len returns the number of entries. A nil map is empty.
func (m *Map) Len() int {
	switch {
	case m == nil:
		return 0
	case m.root != nil:
		return m.count
	}
	return len(m.keys)
}

// Get returns the value of a key.
func (m *Map) Get(key Value) (Value, bool) {
	if m == nil {
		return nil, false
	}
	if m.root != nil {
		if l := m.root.get(Hash(key), key); l != nil {
			return l.value, true
		}
		return nil, false
	}
	if i := m.find(key); i >= 0 {
		return m.values[i], true
	}
	return nil, false
}

// All yields the entries in order.
func (m *Map) All() iter.Seq2[Value, Value] {
	return func(yield func(Value, Value) bool) {
		if m == nil {
			return
		}
		for _, l := range m.ordered() {
			if !yield(l.key, l.value) {
				return
			}
		}
		for i := range m.keys {
			if !yield(m.keys[i], m.values[i]) {
				return
			}
		}
	}
}

// With returns a copy of m in which key has the given value.
func (m *Map) With(key, value Value) *Map {
	if m == nil || m.root == nil {
		n := &Map{}
		if m != nil {
			n.keys, n.values = slices.Clone(m.keys), slices.Clone(m.values)
		}
		n.put(key, value)
		return n
	}
	n := &Map{count: m.count, next: m.next}
	n.insert(m.root, key, value, false)
	return n
}

// Without returns a copy of m without a key.
func (m *Map) Without(key Value) *Map {
	if m == nil || m.root != nil {
		return m.prune(key)
	}
	i := m.find(key)
	if i < 0 {
		return m
	}
	return &Map{
		keys:   slices.Concat(m.keys[:i], m.keys[i+1:]),
		values: slices.Concat(m.values[:i], m.values[i+1:]),
	}
}

func (m *Map) prune(key Value) *Map {
	if m == nil {
		return nil
	}
	root, found := m.root.without(Hash(key), key, 0)
	if !found {
		return m
	}
	n := &Map{root: root, count: m.count - 1, next: m.next}
	if n.count > small {
		return n
	}
	few := &Map{}
	for k, v := range n.All() {
		few.put(k, v)
	}
	return few
}

// find returns the index of a key in a small map, or -1.
func (m *Map) find(key Value) int {
	return slices.IndexFunc(m.keys, func(k Value) bool { return Equal(k, key) })
}

// put modifies a map that is not shared yet.
func (m *Map) put(key, value Value) {
	if m.root != nil {
		m.insert(m.root, key, value, true)
		return
	}
	if i := m.find(key); i >= 0 {
		m.values[i] = value
		return
	}
	if len(m.keys) < small {
		m.keys, m.values = append(m.keys, key), append(m.values, value)
		return
	}
	keys, values := m.keys, m.values
	m.keys, m.values, m.root = nil, nil, &branch{}
	for i := range keys {
		m.insert(m.root, keys[i], values[i], true)
	}
	m.insert(m.root, key, value, true)
}

// insert sets m to the map of root and one more entry. If own is set, only m uses root, and
// insert modifies it.
func (m *Map) insert(root *branch, key, value Value, own bool) {
	var added bool
	m.root, added = root.with(&leaf{hash: Hash(key), number: m.next, key: key, value: value}, 0, own)
	if added {
		m.count++
		m.next++
	}
}

// ordered returns the entries of a larger map in order.
func (m *Map) ordered() []*leaf {
	if m.root == nil {
		return nil
	}
	if all := m.order.Load(); all != nil {
		return *all
	}
	all := m.root.collect(make([]*leaf, 0, m.count))
	slices.SortFunc(all, func(a, b *leaf) int { return cmp.Compare(a.number, b.number) })
	m.order.Store(&all)
	return all
}

// slot returns the bit and the index of a hash in a branch, and whether the slot is used.
func (b *branch) slot(hash uint64, shift uint) (bit uint32, i int, is bool) {
	bit = 1 << (hash >> shift % (1 << level))
	return bit, bits.OnesCount32(b.mask & (bit - 1)), b.mask&bit != 0
}

func (b *branch) get(hash uint64, key Value) *leaf {
	for shift := uint(0); ; shift += level {
		_, i, is := b.slot(hash, shift)
		if !is {
			return nil
		}
		switch s := b.slots[i].(type) {
		case *branch:
			b = s
		case *leaf:
			if s.is(hash, key) {
				return s
			}
			return nil
		case []*leaf:
			if i := slices.IndexFunc(s, func(l *leaf) bool { return l.is(hash, key) }); i >= 0 {
				return s[i]
			}
			return nil
		}
	}
}

func (l *leaf) is(hash uint64, key Value) bool { return l.hash == hash && Equal(l.key, key) }

// with returns a branch with l added, or with l in place of the entry with the same key.
func (b *branch) with(l *leaf, shift uint, own bool) (with *branch, added bool) {
	bit, i, is := b.slot(l.hash, shift)
	if !is {
		if own {
			b.mask, b.slots = b.mask|bit, slices.Insert(b.slots, i, any(l))
			return b, true
		}
		return &branch{mask: b.mask | bit, slots: slices.Concat(b.slots[:i], []any{l}, b.slots[i:])}, true
	}
	var slot any
	switch s := b.slots[i].(type) {
	case *branch:
		slot, added = s.with(l, shift+level, own)
	case *leaf:
		if s.is(l.hash, l.key) {
			slot = l.instead(s)
		} else {
			slot, added = apart(s, l, shift+level), true
		}
	case []*leaf:
		slot, added = bucketWith(s, l)
	}
	if !own {
		b = &branch{mask: b.mask, slots: slices.Clone(b.slots)}
	}
	b.slots[i] = slot
	return b, added
}

// instead returns l with the position of another entry.
func (l *leaf) instead(of *leaf) *leaf {
	return &leaf{hash: l.hash, number: of.number, key: of.key, value: l.value}
}

func bucketWith(s []*leaf, l *leaf) (with []*leaf, added bool) {
	s = slices.Clone(s)
	if i := slices.IndexFunc(s, func(o *leaf) bool { return o.is(l.hash, l.key) }); i >= 0 {
		s[i] = l.instead(s[i])
		return s, false
	}
	return append(s, l), true
}

// apart returns a slot for two entries whose hashes are equal in the bits used so far.
func apart(x, y *leaf, shift uint) any {
	if shift >= 64 {
		return []*leaf{x, y}
	}
	b := &branch{}
	bx, _, _ := b.slot(x.hash, shift)
	by, _, _ := b.slot(y.hash, shift)
	b.mask = bx | by
	switch {
	case bx == by:
		b.slots = []any{apart(x, y, shift+level)}
	case bx < by:
		b.slots = []any{x, y}
	default:
		b.slots = []any{y, x}
	}
	return b
}

// without returns a branch without a key, or nil if it would be empty.
func (b *branch) without(hash uint64, key Value, shift uint) (left *branch, found bool) {
	bit, i, is := b.slot(hash, shift)
	if !is {
		return b, false
	}
	var slot any // remainder of the slot
	switch s := b.slots[i].(type) {
	case *branch:
		sub, found := s.without(hash, key, shift+level)
		if !found {
			return b, false
		}
		if sub != nil {
			slot = sub
		}
	case *leaf:
		if !s.is(hash, key) {
			return b, false
		}
	case []*leaf:
		at := slices.IndexFunc(s, func(l *leaf) bool { return l.is(hash, key) })
		if at < 0 {
			return b, false
		}
		if len(s) > 1 {
			slot = slices.Concat(s[:at], s[at+1:])
		}
	}
	switch {
	case slot != nil:
		slots := slices.Clone(b.slots)
		slots[i] = slot
		return &branch{mask: b.mask, slots: slots}, true
	case len(b.slots) == 1:
		return nil, true
	}
	return &branch{mask: b.mask &^ bit, slots: slices.Concat(b.slots[:i], b.slots[i+1:])}, true
}

func (b *branch) collect(all []*leaf) []*leaf {
	for _, slot := range b.slots {
		switch s := slot.(type) {
		case *branch:
			all = s.collect(all)
		case *leaf:
			all = append(all, s)
		case []*leaf:
			all = append(all, s...)
		}
	}
	return all
}
