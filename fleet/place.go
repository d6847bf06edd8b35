package fleet

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"glasshouse/fault"
)

// Accepts reports whether a node gets new jails.
func (n *Node) Accepts() bool { return n.State == Up && !n.Draining && !n.Front && n.Addr != "" }

// ErrNoNode is the error if no node accepts new jails.
var ErrNoNode error = &fault.Error{
	Op: "fleet.Place", Kind: fault.Exhausted, Err: errors.New("no node accepts new jails"), Remedy: "glasshouse node ls shows which nodes are up, and not draining",
}

// Best returns the node for a new jail: the one with the fewest jails for its memory, of those that
// accept jails. Nodes with little free memory or disk are used only if all others are, too. jails
// is how many jails a node has or gets soon.
func Best(nodes []Node, jails func(*Node) int) (Node, error) {
	best, fewest := (*Node)(nil), 0
	for i := range nodes { // a node is large: copies of a thousand take longer than the choice
		n := &nodes[i]
		if !n.Accepts() {
			continue
		}
		if has := jails(n); best == nil || better(n, has, best, fewest) {
			best, fewest = n, has
		}
	}
	if best == nil {
		return Node{}, ErrNoNode
	}
	return *best, nil
}

// better reports whether a new jail of a, which has m jails, is better than one of b, which has n.
func better(a *Node, m int, b *Node, n int) bool {
	if full := a.Facts.full(); full != b.Facts.full() {
		return !full
	}
	if a.Facts.Memory == 0 || b.Facts.Memory == 0 {
		return m < n
	}
	return float64(m)/float64(a.Facts.Memory) < float64(n)/float64(b.Facts.Memory)
}

// minFree is the part of memory and disk that stays free on a node that gets new jails.
const minFree = 20 // a twentieth

func (f *Facts) full() bool {
	return f.FreeMemory < f.Memory/minFree || f.FreeDisk < f.Disk/minFree
}

// RunShare returns the share of a node in a limit that all nodes have together, for example of a model
// provider: that of its active runs, where each node counts as one more.
func RunShare(nodes []Node, self string) float64 {
	own, all := 1, 0
	for _, n := range nodes {
		if n.State != Up || n.Front {
			continue
		}
		all += n.Runs + 1
		if n.ID == self {
			own = n.Runs + 1
		}
	}
	return float64(own) / float64(max(all, own))
}

// A Share is how many of several jails a node gets.
type Share struct {
	Node  string
	Count int
}

// Spread divides new jails evenly among the nodes that accept jails, without those with little free
// memory or disk, unless all have little. Those with the fewest jails get one more if necessary.
func Spread(nodes []Node, count int) []Share {
	accepting := slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool { return !n.Accepts() })
	if slices.ContainsFunc(accepting, func(n Node) bool { return !n.Facts.full() }) {
		accepting = slices.DeleteFunc(accepting, func(n Node) bool { return n.Facts.full() })
	}
	slices.SortStableFunc(accepting, func(a, b Node) int { return cmp.Compare(a.Jails, b.Jails) })
	var shares []Share
	for i, n := range accepting {
		left := len(accepting) - i
		mine := (count + left - 1) / left
		if mine > 0 {
			shares = append(shares, Share{n.ID, mine})
		}
		count -= mine
	}
	return shares
}

// Fill divides new jails, which need the given memory each, among as few nodes as possible: the first
// node is named, the next are those with the most free memory. It gives those for which no node
// has memory to the first node as well.
func Fill(nodes []Node, first string, need int64, count int) []Share {
	order := slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool { return n.ID != first && !n.Accepts() })
	slices.SortStableFunc(order, func(a, b Node) int {
		switch {
		case a.ID == first:
			return -1
		case b.ID == first:
			return 1
		}
		return cmp.Compare(b.Facts.FreeMemory, a.Facts.FreeMemory)
	})
	if len(order) == 0 || count == 0 {
		return nil
	}
	shares := []Share{{Node: order[0].ID}}
	for i, n := range order {
		mine := min(n.room(need), count)
		count -= mine
		switch {
		case i == 0:
			shares[0].Count = mine
		case mine > 0:
			shares = append(shares, Share{n.ID, mine})
		}
	}
	shares[0].Count += count
	return slices.DeleteFunc(shares, func(s Share) bool { return s.Count == 0 })
}

// room returns for how many more jails a node has memory.
func (n *Node) room(need int64) int {
	if !n.Accepts() {
		return 0
	}
	return n.Facts.Room(need)
}

// Room returns for how many more jails, which need the given memory each, a host has memory.
func (f Facts) Room(need int64) int {
	switch {
	case f.full():
		return 0
	case f.Memory == 0: // unknown
		return math.MaxInt
	}
	return int((f.FreeMemory - f.Memory/minFree) / max(need, 1))
}
