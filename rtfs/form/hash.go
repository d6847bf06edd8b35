package form

import "hash/maphash"

// seed differs from process to process, so that nobody can prepare keys of one hash.
// Nothing that a program sees depends on it.
var seed = maphash.MakeSeed()

// Hash is the same for values that are Equal, within this process.
func Hash(v Value) uint64 { return hash(v, 0) }

func hash(v Value, depth int) uint64 {
	if depth > deepestHash {
		return 0
	}
	switch v := v.(type) {
	case Vector:
		return hashAll(v, depth)
	case List:
		return hashAll(v, depth)
	case *Map:
		sum := uint64(v.Len())
		for k, item := range v.All() {
			sum += mix(mix(0, hash(k, depth+1)), hash(item, depth+1)) // in whatever order they come
		}
		return sum
	case nil, bool, int64, float64, string, Keyword, Symbol, Resource:
		return maphash.Comparable(seed, v)
	}
	return 0 // functions and errors
}

// deepestHash is how far down a value is looked into. What differs only below has the
// same hash.
const deepestHash = 64

func hashAll(values []Value, depth int) uint64 {
	sum := uint64(len(values))
	for _, v := range values {
		sum = mix(sum, hash(v, depth+1))
	}
	return sum
}

func mix(sum, h uint64) uint64 {
	sum = (sum ^ h) * 0x9E3779B97F4A7C15
	return sum ^ sum>>29
}
