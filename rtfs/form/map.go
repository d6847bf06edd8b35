package form

import (
	"cmp"
	"iter"
	"math/bits"
	"slices"
	"sync/atomic"
)

// A Map keeps its entries in the order in which their keys came. A small one is two
// slices. A larger one is a tree of hashes, of which a map with one more entry shares
// all but a few branches: so a program may build a map entry by entry.
type Map struct {
	keys   []Value // of a small map
	values []Value

	root  *branch // of a larger one
	count int
	next  int // the number of the next entry

	order atomic.Pointer[[]*leaf] // the entries of root in their order, once asked for
}

// small is how many keys are found faster one by one.
const small = 8

// A leaf is an entry of a larger map, which nobody changes.
type leaf struct {
	hash       uint64
	number     int // in the order of the map
	key, value Value
}

// A branch divides by five bits of the hash. A slot is a *branch, a *leaf, or, where
// the hash is used up, []*leaf.
type branch struct {
	mask  uint32
	slots []any
}

// level is how many bits a branch divides by; a hash has 64.
const level = 5

// NewMap returns a map of keys and values in turn. Of keys that are equal the last
// value counts.
func NewMap(pairs ...Value) *Map {
	n := min(len(pairs)/2, small)
	m := &Map{keys: make([]Value, 0, n), values: make([]Value, 0, n)}
	for i := 0; i+1 < len(pairs); i += 2 {
		m.put(pairs[i], pairs[i+1])
	}
	return m
}

// Len is how many entries m has. A nil map is empty.
func (m *Map) Len() int {
	switch {
	case m == nil:
		return 0
	case m.root != nil:
		return m.count
	}
	return len(m.keys)
}

// Get looks a key up.
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

// All yields the entries in their order.
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

// With returns m with one more entry, or another value in one.
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

// Without returns m without a key.
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

// find is where a small map has a key.
func (m *Map) find(key Value) int {
	return slices.IndexFunc(m.keys, func(k Value) bool { return Equal(k, key) })
}

// put changes a map that nobody has seen yet.
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

// insert makes m the map of what is below root and one entry. If root is m's own, it
// is changed.
func (m *Map) insert(root *branch, key, value Value, own bool) {
	var added bool
	m.root, added = root.with(&leaf{hash: Hash(key), number: m.next, key: key, value: value}, 0, own)
	if added {
		m.count++
		m.next++
	}
}

// ordered are the entries of a larger map.
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

// slot is where a branch has what a hash leads to, and whether there is anything.
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

// with is a branch with one more entry, or with l in the place of one of the same key.
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

// instead is an entry at another's place in the order.
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

// apart is a slot for two entries whose hashes are the same so far.
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

// without is a branch without a key; nil if nothing is left.
func (b *branch) without(hash uint64, key Value, shift uint) (left *branch, found bool) {
	bit, i, is := b.slot(hash, shift)
	if !is {
		return b, false
	}
	var slot any // what is left in the slot
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
