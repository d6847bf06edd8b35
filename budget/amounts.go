package budget

import (
	"math"
	"slices"
	"strings"

	"glasshouse/fault"
	"glasshouse/rtfs/form"
)

// A Dimension is one kind of thing that is spent.
type Dimension string

const (
	Steps   Dimension = "steps"          // calls
	Wall    Dimension = "wall-clock-ms"  // from a request's being forwarded until its answer
	CPU     Dimension = "sandbox-cpu-ms" // of sandboxes, by their cgroups
	Network Dimension = "network-bytes"  // through the proxy
	Tokens  Dimension = "llm-tokens"     //
	Cost    Dimension = "cost-micros"    // millionths of the currency that prices are in
	Storage Dimension = "storage-bytes"  // written
)

// dimensions is all of them, in the order in which they are printed.
var dimensions = []Dimension{Steps, Wall, CPU, Network, Tokens, Cost, Storage}

// Amounts says of dimensions how much. What it does not name is none of an amount,
// and no limit.
type Amounts map[Dimension]int64

// check refuses what was not meant: unknown names, and less than nothing.
func (a Amounts) check(op, field string) error {
	for d, n := range a {
		if !slices.Contains(dimensions, d) {
			return fault.Fieldf(op, field, "unknown dimension %q; there are %s", string(d), names())
		}
		if n < 0 {
			return fault.Fieldf(op, field+"."+string(d), "%d is less than 0", n)
		}
	}
	return nil
}

func names() string {
	all := make([]string, len(dimensions))
	for i, d := range dimensions {
		all[i] = string(d)
	}
	return strings.Join(all, ", ")
}

// value is a as RTFS has it: {:steps 1 …}.
func (a Amounts) value() *form.Map {
	var pairs []form.Value
	for _, d := range dimensions {
		if n, ok := a[d]; ok {
			pairs = append(pairs, form.Keyword(d), n)
		}
	}
	return form.NewMap(pairs...)
}

// add counts up to the largest number and not beyond.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
