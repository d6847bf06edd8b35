package budget

import (
	"math"
	"slices"
	"strings"

	"glasshouse/capability/rtfs/form"
	"glasshouse/fault"
)

// A Dimension is a resource that a budget limits.
type Dimension string

const (
	Steps   Dimension = "steps"          // calls
	Wall    Dimension = "wall-clock-ms"  // from forwarding a request until its response
	CPU     Dimension = "sandbox-cpu-ms" // CPU time of sandboxes, measured by their cgroups
	Network Dimension = "network-bytes"  // through the proxy
	Tokens  Dimension = "llm-tokens"     //
	Cost    Dimension = "cost-micros"    // millionths of the currency of the prices
	Storage Dimension = "storage-bytes"  // written
)

// dimensions lists all dimensions in display order.
var dimensions = []Dimension{Steps, Wall, CPU, Network, Tokens, Cost, Storage}

// Amounts maps dimensions to amounts. A missing dimension is zero as an amount and unlimited
// as a limit.
type Amounts map[Dimension]int64

// check refuses unknown dimensions and negative amounts.
func (a Amounts) check(op, field string) error {
	for d, n := range a {
		if !slices.Contains(dimensions, d) {
			return fault.Fieldf(op, field, "unknown dimension %q; use one of %s", string(d), names())
		}
		if n < 0 {
			return fault.Fieldf(op, field+"."+string(d), "must not be negative, got %d", n)
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

// value returns a as an RTFS map: {:steps 1 …}.
func (a Amounts) value() *form.Map {
	var pairs []form.Value
	for _, d := range dimensions {
		if n, ok := a[d]; ok {
			pairs = append(pairs, form.Keyword(d), n)
		}
	}
	return form.NewMap(pairs...)
}

// add returns a+b, saturating at the largest int64.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
