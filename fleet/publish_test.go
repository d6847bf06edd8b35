package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

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

// A paged index has the given objects.
type paged []fleet.Object

func (p paged) Objects(_ context.Context, _ fleet.Kind, _, after string, limit int) ([]fleet.Object, error) {
	i := 0
	if after != "" {
		i = slices.IndexFunc(p, func(o fleet.Object) bool { return o.Cursor() == after }) + 1
	}
	return p[i:min(len(p), i+limit)], nil
}

func TestAllObjects(t *testing.T) {
	var p paged
	for n := range 2000 {
		p = append(p, fleet.Object{ID: fmt.Sprint(n)})
	}
	all, err := fleet.All(t.Context(), p, fleet.Jail, "")
	if err != nil || !slices.Equal(all, p) {
		t.Errorf("All returns %d objects, %v, want 2000", len(all), err)
	}
}

func TestCursors(t *testing.T) {
	for _, at := range []time.Time{{}, time.Unix(0, 0), time.Unix(1796000795, 41), time.Unix(-5, 0)} {
		o := fleet.Object{ID: "a@b", Created: at}
		created, id, err := fleet.ParseCursor(o.Cursor())
		if err != nil || id != "a@b" || created != at.UnixNano() {
			t.Errorf("ParseCursor(%s) = %d, %q, %v, want %d and a@b", o.Cursor(), created, id, err, at.UnixNano())
		}
	}
	for _, bad := range []string{"j-x", "@", "@1", "j-x@", "j-x@-", "j-x@zzzzzzzzzzzzzzzz", "\x00"} {
		if created, id, err := fleet.ParseCursor(bad); fault.FieldOf(err) != "after" {
			t.Errorf("ParseCursor(%q) = %d, %q, %v, want an error", bad, created, id, err)
		}
	}
}
