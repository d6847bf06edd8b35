package fleet_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"glasshouse/fault"
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

func TestFill(t *testing.T) {
	node := func(id string, memory, free int64) fleet.Node {
		return fleet.Node{ID: id, State: fleet.Up, Addr: "a:1", Facts: fleet.Facts{Memory: memory, FreeMemory: free}}
	}
	draining := node("draining", 1000, 1000)
	draining.Draining = true
	nodes := []fleet.Node{node("small", 1000, 150), node("first", 1000, 100), node("big", 1000, 850), node("full", 1000, 49), draining, {ID: "lost", State: fleet.Lost, Addr: "a:1"}}
	for _, tt := range []struct {
		count int
		first string
		want  []fleet.Share
	}{
		{0, "first", nil},
		{5, "first", []fleet.Share{{"first", 5}}}, // (100 - 1000/20) / 10
		{6, "first", []fleet.Share{{"first", 5}, {"big", 1}}},
		{86, "first", []fleet.Share{{"first", 5}, {"big", 80}, {"small", 1}}},
		{200, "first", []fleet.Share{{"first", 110}, {"big", 80}, {"small", 10}}}, // more than all have memory for
		{4, "full", []fleet.Share{{"big", 4}}},
		{4, "draining", []fleet.Share{{"big", 4}}},
		{4, "none", []fleet.Share{{"big", 4}}},
	} {
		if got := fleet.Fill(nodes, tt.first, 10, tt.count); !slices.Equal(got, tt.want) {
			t.Errorf("Fill of %d from %s = %v, want %v", tt.count, tt.first, got, tt.want)
		}
	}
	if got := fleet.Fill([]fleet.Node{node("full", 1000, 0)}, "full", 10, 3); !slices.Equal(got, []fleet.Share{{"full", 3}}) {
		t.Errorf("Fill without memory = %v, want all on the first node", got)
	}
	if got := fleet.Fill([]fleet.Node{{ID: "lost", State: fleet.Lost}}, "none", 10, 3); len(got) != 0 {
		t.Errorf("Fill without nodes = %v, want none", got)
	}
	if got := fleet.Fill([]fleet.Node{node("unknown", 0, 0)}, "none", 10, 3); !slices.Equal(got, []fleet.Share{{"unknown", 3}}) {
		t.Errorf("Fill of a node with unknown memory = %v, want all", got)
	}
	if nodes[0].ID != "small" {
		t.Error("Fill has changed the order of the nodes of the caller")
	}
}

func TestBest(t *testing.T) {
	up := func(id string, jails int, memory, free, disk, freeDisk int64) fleet.Node {
		return fleet.Node{ID: id, State: fleet.Up, Addr: "a:1", Jails: jails, Facts: fleet.Facts{Memory: memory, FreeMemory: free, Disk: disk, FreeDisk: freeDisk}}
	}
	for name, tt := range map[string]struct {
		want  string
		nodes []fleet.Node
	}{
		"the fewest jails":              {"b", []fleet.Node{up("a", 3, 100, 90, 100, 90), up("b", 2, 100, 50, 100, 90)}},
		"the first of equal ones":       {"a", []fleet.Node{up("a", 2, 100, 90, 100, 90), up("b", 2, 100, 90, 100, 90)}},
		"more memory":                   {"b", []fleet.Node{up("a", 3, 100, 90, 100, 90), up("b", 5, 200, 90, 100, 90)}},
		"unknown memory":                {"a", []fleet.Node{up("a", 3, 0, 0, 0, 0), up("b", 5, 200, 90, 100, 90)}},
		"little memory is free":         {"b", []fleet.Node{up("a", 0, 100, 4, 100, 90), up("b", 9, 100, 5, 100, 90)}},
		"little of the disk is free":    {"b", []fleet.Node{up("a", 0, 100, 90, 100, 4), up("b", 9, 100, 90, 100, 5)}},
		"all have little":               {"b", []fleet.Node{up("a", 2, 100, 1, 100, 90), up("b", 1, 100, 90, 100, 1)}},
		"those that accept no new ones": {"b", []fleet.Node{{ID: "a", State: fleet.Lost, Addr: "a:1"}, up("b", 9, 100, 1, 100, 1)}},
	} {
		got, err := fleet.Best(tt.nodes, func(n *fleet.Node) int { return n.Jails })
		if err != nil || got.ID != tt.want {
			t.Errorf("%s: Best = %q, %v, want %s", name, got.ID, err, tt.want)
		}
	}
	if _, err := fleet.Best([]fleet.Node{{ID: "a"}}, func(*fleet.Node) int { return 0 }); !errors.Is(err, fault.Exhausted) {
		t.Errorf("Best without a node that accepts jails: %v, want Exhausted", err)
	}
	nodes := []fleet.Node{up("full", 0, 100, 1, 100, 90), up("b", 5, 100, 90, 100, 90)}
	if got := fleet.Spread(nodes, 3); !slices.Equal(got, []fleet.Share{{"b", 3}}) {
		t.Errorf("Spread with a full node = %v, want all on the other", got)
	}
}

func TestRunShare(t *testing.T) {
	nodes := []fleet.Node{{ID: "a", State: fleet.Up, Runs: 5}, {ID: "b", State: fleet.Up}, {ID: "c", State: fleet.Up, Runs: 1}, {ID: "front", State: fleet.Up, Front: true, Runs: 9}, {ID: "lost", State: fleet.Lost, Runs: 9}}
	sum := 0.0
	for id, want := range map[string]float64{"a": 6.0 / 9, "b": 1.0 / 9, "c": 2.0 / 9} {
		got := fleet.RunShare(nodes, id)
		sum += got
		if got != want {
			t.Errorf("RunShare of %s = %v, want %v", id, got, want)
		}
	}
	if math.Abs(sum-1) > 1e-9 {
		t.Errorf("sum of the shares = %v, want 1", sum)
	}
	if got := fleet.RunShare(nil, "a"); got != 1 {
		t.Errorf("RunShare without other nodes = %v, want 1", got)
	}
}
