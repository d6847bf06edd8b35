//go:build bench

package test_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"glasshouse/api/wire"
)

// TestBenchFleet measures a command in a jail, at the node with the jail and by way of another
// node, alternately.
func TestBenchFleet(t *testing.T) {
	f, one, two, _ := openFleet(t, "")
	j := two.running(wire.CreateJail{})
	const n = 400
	local, forwarded := make([]time.Duration, 0, n), make([]time.Duration, 0, n)
	here, there := two.as(f.token, ""), one.as(f.token, "")
	for i := range n + 20 {
		began := time.Now()
		_, err := here.Exec(t.Context(), j.ID, wire.ExecRequest{Cmd: "true"})
		middle := time.Now()
		if err == nil {
			_, err = there.Exec(t.Context(), j.ID, wire.ExecRequest{Cmd: "true"})
		}
		if err != nil {
			t.Fatal(err)
		}
		if i >= 20 { // the first ones open connections
			local, forwarded = append(local, middle.Sub(began)), append(forwarded, time.Since(middle))
		}
	}
	slices.Sort(local)
	slices.Sort(forwarded)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	fmt.Printf("fleet: a command in a jail, p50 %.2f ms at its node, %.2f ms by way of another one, ratio %.2f; p95 %.2f and %.2f ms\n",
		ms(local[n/2]), ms(forwarded[n/2]), ms(forwarded[n/2])/ms(local[n/2]), ms(local[n*95/100]), ms(forwarded[n*95/100]))
}
