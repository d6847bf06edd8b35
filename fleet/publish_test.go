package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"glasshouse/fault"
	"glasshouse/fleet"
)

// A memoryIndex is an index whose calls can fail.
type memoryIndex struct {
	fleet.Index
	all    map[fleet.Key]fleet.Object
	writes int
	fail   error
}

func (m *memoryIndex) Publish(_ context.Context, node string, put []fleet.Object, removed []fleet.Key) error {
	if m.fail != nil {
		return m.fail
	}
	m.writes++
	for _, o := range put {
		o.Node = node
		m.all[o.Key()] = o
	}
	for _, k := range removed {
		delete(m.all, k)
	}
	return nil
}

func (m *memoryIndex) Published(_ context.Context, node string) ([]fleet.Object, error) {
	return slices.Collect(maps.Values(m.all)), m.fail
}

func TestPublisher(t *testing.T) {
	var own []fleet.Object
	jail := func(id, summary string) fleet.Object { return fleet.Object{Kind: fleet.Jail, ID: id, Summary: summary} }
	stale := jail("stale", "of an earlier process")
	index := &memoryIndex{all: map[fleet.Key]fleet.Object{stale.Key(): stale}}
	p := &fleet.Publisher{Index: index, Node: "me", List: func(context.Context) ([]fleet.Object, error) { return own, nil }}
	sync := func(want map[string]string, writes int) {
		t.Helper()
		if err := p.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for k, o := range index.all {
			got[k.ID] = o.Summary + "@" + o.Node
		}
		if !maps.Equal(got, want) || index.writes != writes {
			t.Errorf("index = %v after %d writes, want %v after %d", got, index.writes, want, writes)
		}
	}
	sync(map[string]string{}, 1)
	own = []fleet.Object{jail("a", "running"), jail("b", "running")}
	sync(map[string]string{"a": "running@me", "b": "running@me"}, 2)
	sync(map[string]string{"a": "running@me", "b": "running@me"}, 2) // nothing has changed
	own = []fleet.Object{jail("a", "stopped")}
	sync(map[string]string{"a": "stopped@me"}, 3)

	own = []fleet.Object{jail("c", "running")}
	index.fail = errors.New("no database")
	if err := p.Sync(t.Context()); !errors.Is(err, index.fail) {
		t.Errorf("Sync = %v, want the error of the index", err)
	}
	index.fail = nil
	clear(index.all) // another process has changed it
	sync(map[string]string{"c": "running@me"}, 4)
}

// A shrinking index loses the last object of the first page when that was read.
type shrinking struct {
	all   []fleet.Object
	calls int
}

func (s *shrinking) Objects(_ context.Context, _ fleet.Kind, _, after string, limit int) ([]fleet.Object, error) {
	s.calls++
	if s.calls == 2 {
		s.all = append(s.all[:limit-1], s.all[limit:]...)
	}
	i := 0
	if after != "" {
		i = slices.IndexFunc(s.all, func(o fleet.Object) bool { return o.ID == after }) + 1
		if i == 0 {
			return nil, fault.Newf(fault.NotFound, "test", after, "no such object")
		}
	}
	return s.all[i:min(len(s.all), i+limit)], nil
}

func TestAllObjectsAlthoughSomeAreRemoved(t *testing.T) {
	s := &shrinking{}
	for n := range 2000 {
		s.all = append(s.all, fleet.Object{ID: fmt.Sprint(n)})
	}
	all, err := fleet.All(t.Context(), s, fleet.Jail, "")
	if err != nil || len(all) != 1999 || all[0].ID != "0" || all[1998].ID != "1999" {
		t.Errorf("All returns %d objects, %v, want the 1999 that are left", len(all), err)
	}
}
