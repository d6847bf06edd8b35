package chain

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"golang.org/x/mod/sumdb/tlog"
)

// A tip is the end of the chain: the state that is needed to append to it.
type tip struct {
	seq   int64 // sequence number of the last entry, and thus the number of entries
	hash  Hash  // hash of the last entry
	peaks []Hash
}

// The entries are the leaves of a Merkle tree (RFC 6962, section 2.1). peaks are the roots of
// the complete subtrees that it consists of, the largest first: one for each bit of seq. The
// hash of any other complete subtree is stored with the entry that completed it, so the store
// needs no other data for the tree.

// push adds the next entry, and appends to nodes the hashes of the subtrees that it completes,
// the smallest first.
func (t *tip) push(h Hash, nodes []Hash) []Hash {
	t.hash = h
	for n := t.seq; n&1 == 1; n >>= 1 {
		last := len(t.peaks) - 1
		h = nodeHash(t.peaks[last], h)
		t.peaks = t.peaks[:last]
		nodes = append(nodes, h)
	}
	t.peaks = append(t.peaks, h)
	t.seq++
	return nodes
}

// root returns the root hash of the tree, which must not be empty.
func (t *tip) root() Hash {
	h := t.peaks[len(t.peaks)-1]
	for i := len(t.peaks) - 2; i >= 0; i-- {
		h = nodeHash(t.peaks[i], h)
	}
	return h
}

func (t *tip) clone() tip {
	return tip{seq: t.seq, hash: t.hash, peaks: slices.Clone(t.peaks)}
}

// nodeHash is like tlog.NodeHash, but does not allocate.
func nodeHash(left, right Hash) Hash {
	var b [1 + 2*sha256.Size]byte
	b[0] = 1 // RFC 6962, section 2.1: prefix of a node
	copy(b[1:], left[:])
	copy(b[1+sha256.Size:], right[:])
	return sha256.Sum256(b[:])
}

// packNodes encodes hashes for a store.
func packNodes(nodes []Hash) string {
	if len(nodes) == 0 {
		return ""
	}
	var b []byte
	for _, h := range nodes {
		b = append(b, h[:]...)
	}
	return base64.RawStdEncoding.EncodeToString(b)
}

// nodeOf returns the hash of the complete subtree of height level whose last entry is row.
func nodeOf(row Row, level int) (h Hash, err error) {
	if level == 0 {
		var f fields
		if reason := f.parse([]byte(row.Line)); reason != "" {
			return h, fmt.Errorf("entry %d is damaged: %s", row.Seq, reason)
		}
		return f.hash, nil
	}
	b, err := base64.RawStdEncoding.Strict().DecodeString(row.Nodes)
	if err != nil || len(b) != bits.TrailingZeros64(uint64(row.Seq))*sha256.Size {
		return h, fmt.Errorf("tree hashes of entry %d are damaged", row.Seq)
	}
	copy(h[:], b[(level-1)*sha256.Size:])
	return h, nil
}

// hashes returns a reader of the tree hashes for the proofs of package tlog.
func hashes(ctx context.Context, s Reader) tlog.HashReader {
	return tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		seqs := make([]int64, len(indexes))
		levels := make([]int, len(indexes))
		for i, index := range indexes {
			level, n := tlog.SplitStoredHashIndex(index)
			seqs[i], levels[i] = (n+1)<<level, level
		}
		nodes, err := readNodes(ctx, s, seqs, levels)
		out := make([]tlog.Hash, len(nodes))
		for i, h := range nodes {
			out[i] = tlog.Hash(h)
		}
		return out, err
	})
}

func readNodes(ctx context.Context, s Reader, seqs []int64, levels []int) ([]Hash, error) {
	rows, err := s.Rows(ctx, seqs)
	if err != nil {
		return nil, err
	}
	bySeq := map[int64]Row{}
	for _, r := range rows {
		bySeq[r.Seq] = r
	}
	out := make([]Hash, len(seqs))
	for i, seq := range seqs {
		row, ok := bySeq[seq]
		if !ok {
			return nil, fmt.Errorf("entry %d is missing", seq)
		}
		out[i], err = nodeOf(row, levels[i])
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// readTip reads the end of the chain in s. It reads as many entries as seq has bits,
// independent of the length of the chain.
func readTip(ctx context.Context, s Reader) (tip, error) {
	last, err := s.Last(ctx)
	if err != nil || last.Seq == 0 {
		return tip{}, err
	}
	var f fields
	if reason := f.parse([]byte(last.Line)); reason != "" {
		return tip{}, fmt.Errorf("entry %d is damaged: %s", last.Seq, reason)
	}
	if f.seq != last.Seq || hashOf([]byte(last.Line), f.at, nil) != f.hash {
		return tip{}, fmt.Errorf("entry %d is damaged: hash does not match the content", last.Seq)
	}
	var seqs []int64
	var levels []int
	for rest := last.Seq; rest > 0; { // the peaks, from the smallest
		level := bits.TrailingZeros64(uint64(rest))
		seqs, levels = append(seqs, rest), append(levels, level)
		rest -= 1 << level
	}
	slices.Reverse(seqs)
	slices.Reverse(levels)
	t := tip{seq: last.Seq, hash: f.hash}
	t.peaks, err = readNodes(ctx, s, seqs, levels)
	return t, err
}

// rootAt returns the root hash of the tree of the first size entries.
func rootAt(ctx context.Context, s Reader, size int64) (Hash, error) {
	if size <= 0 {
		return Hash{}, errors.New("an empty tree is never signed")
	}
	h, err := tlog.TreeHash(size, hashes(ctx, s))
	if err != nil {
		return Hash(h), fmt.Errorf("compute the root hash of %d entries: %w", size, err)
	}
	return Hash(h), nil
}
