package store_test

import (
	"errors"
	"sync"
	"testing"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/store"

	"github.com/google/go-cmp/cmp"
)

// demandsShared runs as a part of nodesConform: two nodes share the quota of a token.
func demandsShared(t *testing.T, s *store.Store) {
	ctx := t.Context()
	a := joined(t, s, "a", "host a", "1")
	joined(t, s, "b", "host b", "1")
	joined(t, s, "c", "host c", "1")
	ds := s.Demands()
	set := func(node string, token id.Token, d, others jail.Demand) {
		t.Helper()
		err := ds.Share(ctx, node, token, func(got jail.Demand) (jail.Demand, error) {
			if got != others {
				t.Errorf("demand of the nodes other than %s = %+v, want %+v", node, got, others)
			}
			return d, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	// Both nodes create jails at the same time, 10 in all.
	const quota = 10
	own := map[string]*jail.Demand{"a": {}, "b": {}}
	var wg sync.WaitGroup
	for node, d := range own {
		wg.Go(func() {
			for range quota {
				err := ds.Share(ctx, node, "t-1", func(others jail.Demand) (jail.Demand, error) {
					if d.Jails+others.Jails == quota {
						return jail.Demand{Jails: 1000}, fault.Exhausted
					}
					*d = d.Plus(jail.Demand{Jails: 1, Memory: 1 << 40, Disk: 2})
					return *d, nil
				})
				if err != nil && !errors.Is(err, fault.Exhausted) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := own["a"].Jails + own["b"].Jails; n != quota {
		t.Errorf("created jails = %d, want %d", n, quota)
	}
	sum := jail.Demand{Jails: quota, Memory: quota << 40, Disk: 2 * quota}
	set("c", "t-1", jail.Demand{}, sum)
	set("c", "t-2", jail.Demand{Jails: 1}, jail.Demand{})
	want := map[id.Token]jail.Demand{"t-2": {Jails: 1}}
	if *own["b"] != (jail.Demand{}) { // node a may have created all jails
		want["t-1"] = *own["b"]
	}
	if got := got(ds.Others(ctx, "a"))(t); !cmp.Equal(got, want) {
		t.Errorf("Others = %+v, want the demand of b and c, %+v", got, want)
	}
	if got := got(ds.OfNode(ctx, "c"))(t); !cmp.Equal(got, map[id.Token]jail.Demand{"t-2": {Jails: 1}}) {
		t.Errorf("OfNode = %+v, want one jail of t-2", got)
	}
	expire(t, s, a)
	set("c", "t-1", jail.Demand{}, *own["b"])
	joined(t, s, "a", "host a", "2") // it has its jails
	set("c", "t-1", jail.Demand{}, sum)
	if err := s.Nodes().Remove(ctx, "b", true); err != nil {
		t.Fatal(err)
	}
	set("c", "t-1", jail.Demand{}, *own["a"])
	if got := got(ds.OfNode(ctx, "b"))(t); len(got) != 0 {
		t.Errorf("OfNode of a removed node = %+v, want nothing", got)
	}
}
