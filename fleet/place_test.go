package fleet_test

import (
	"slices"
	"testing"

	"glasshouse/fleet"
)

func TestSpread(t *testing.T) {
	nodes := []fleet.Node{
		{ID: "full", State: fleet.Up, Addr: "a:1", Jails: 9},
		{ID: "lost", State: fleet.Lost, Addr: "a:1"},
		{ID: "drained", State: fleet.Up, Addr: "a:1", Draining: true},
		{ID: "front", State: fleet.Up, Addr: "a:1", Front: true},
		{ID: "unreachable", State: fleet.Up},
		{ID: "empty", State: fleet.Up, Addr: "a:1"},
		{ID: "some", State: fleet.Up, Addr: "a:1", Jails: 4},
	}
	for count, want := range map[int][]fleet.Share{
		0:  nil,
		1:  {{"empty", 1}},
		2:  {{"empty", 1}, {"some", 1}},
		4:  {{"empty", 2}, {"some", 1}, {"full", 1}},
		40: {{"empty", 14}, {"some", 13}, {"full", 13}},
	} {
		if got := fleet.Spread(nodes, count); !slices.Equal(got, want) {
			t.Errorf("Spread of %d = %v, want %v", count, got, want)
		}
	}
	if got := fleet.Spread(nodes[1:5], 3); len(got) != 0 {
		t.Errorf("Spread without a node that accepts jails = %v, want none", got)
	}
	if nodes[0].ID != "full" {
		t.Error("Spread has changed the order of the nodes of the caller")
	}
}
