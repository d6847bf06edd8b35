package form

import "hash/maphash"

// seed differs between processes, so that colliding keys cannot be prepared. Programs cannot
// observe it.
var seed = maphash.MakeSeed()

// Hash returns equal hashes for values that are Equal, within this process.
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
			sum += mix(mix(0, hash(k, depth+1)), hash(item, depth+1)) // independent of the order
		}
		return sum
	case nil, bool, int64, float64, string, Keyword, Symbol, Resource:
		return maphash.Comparable(seed, v)
	}
	return 0 // functions and errors
}

// deepestHash is the depth to which values are hashed. Values that differ only below it have
// equal hashes.
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
