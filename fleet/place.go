package fleet

import (
	"cmp"
	"errors"
	"slices"

	"glasshouse/fault"
)

// Accepts reports whether a node gets new jails.
func (n Node) Accepts() bool { return n.State == Up && !n.Draining && !n.Front && n.Addr != "" }

// ErrNoNode is the error if no node accepts new jails.
var ErrNoNode error = &fault.Error{
	Op: "fleet.Place", Kind: fault.Exhausted, Err: errors.New("no node accepts new jails"), Remedy: "glasshouse node ls shows which nodes are up, and not draining",
}

// A Share is how many of several jails a node gets.
type Share struct {
	Node  string
	Count int
}

// Spread divides new jails evenly among the nodes that accept jails. Those with the fewest jails
// get one more if necessary.
func Spread(nodes []Node, count int) []Share {
	accepting := slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool { return !n.Accepts() })
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
