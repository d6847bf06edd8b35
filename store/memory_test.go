package store_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glasshouse/capability/memory"
	"glasshouse/fault"
	"glasshouse/store/postgrestest"
)

func TestMemoryOfAgentsInSQLite(t *testing.T) {
	remembers(t, filepath.Join(t.TempDir(), "g.db"))
}

func TestMemoryOfAgentsInPostgreSQL(t *testing.T) {
	remembers(t, postgrestest.Start(t).URL(t))
}

// remembers checks that entries can be read after reopening the database, by scope, and that the
// usage counters match the entries.
func remembers(t *testing.T, where string) {
	ctx := t.Context()
	const here, there = memory.Scope("session/a"), memory.Scope("session/b")
	ms := open(t, where).Memory()
	entry := func(key string, version int64) *memory.Entry {
		return &memory.Entry{Key: key, Value: json.RawMessage(`{"b":"<\u0000>","a":[1]}`), Label: "pii.chat", Tags: []string{"x", "y"},
			From: memory.From{Run: "r", Call: "k", Step: "s", Agent: "a", Jail: "j"}, Version: version, Created: epoch, Updated: epoch}
	}
	put := func(s memory.Scope, key string) {
		t.Helper()
		if err := ms.Change(ctx, s, key, func(_ *memory.Entry, rest memory.Usage) (*memory.Entry, error) {
			return entry(key, rest.Version+1), nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	strange := "k'%_\\\u202e"
	put(here, "a")
	put(here, strange)
	put(here, "a")
	put(there, "a")
	ms = open(t, where).Memory()
	all, u, err := ms.All(ctx, here)
	slices.SortFunc(all, func(a, b memory.Entry) int { return strings.Compare(a.Key, b.Key) })
	want := []memory.Entry{*entry("a", 3), *entry(strange, 2)}
	if diff := cmp.Diff(want, all); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	if wantU := (memory.Usage{Version: 3, Entries: 2, Bytes: want[0].Bytes() + want[1].Bytes()}); u != wantU {
		t.Errorf("usage is %+v, want %+v", u, wantU)
	}
	if got, err := ms.Get(ctx, here, strange); err != nil || !cmp.Equal(got, want[1]) {
		t.Errorf("Get = %+v, %v", got, err)
	}
	if _, err := ms.Get(ctx, here, "b"); !errors.Is(err, fault.NotFound) {
		t.Errorf("Get of a missing entry = %v", err)
	}

	no := errors.New("no")
	err = ms.Change(ctx, here, "a", func(old *memory.Entry, rest memory.Usage) (*memory.Entry, error) {
		if old == nil || rest.Entries != 1 || rest.Bytes != want[1].Bytes() || rest.Version != 3 {
			t.Errorf("Change got the entry %+v and the usage %+v", old, rest)
		}
		return nil, no
	})
	if !errors.Is(err, no) {
		t.Errorf("Change = %v", err)
	}
	for range 2 { // deleting a missing entry is not an error
		if err := ms.Change(ctx, here, "a", func(*memory.Entry, memory.Usage) (*memory.Entry, error) { return nil, nil }); err != nil {
			t.Fatal(err)
		}
	}
	if _, u, err := ms.All(ctx, here); err != nil || u != (memory.Usage{Version: 3, Entries: 1, Bytes: want[1].Bytes()}) {
		t.Errorf("usage is %+v, %v", u, err)
	}

	if err := ms.Replace(ctx, here, []memory.Entry{*entry("c", 1), *entry("d", 2)}, 2); err != nil {
		t.Fatal(err)
	}
	if all, u, err := ms.All(ctx, here); err != nil || len(all) != 2 || u.Version != 3 || u.Entries != 2 || u.Bytes != all[0].Bytes()+all[1].Bytes() {
		t.Errorf("usage after Replace is %+v, %v", u, err)
	}
	if err := ms.Delete(ctx, here); err != nil {
		t.Fatal(err)
	}
	if all, u, err := ms.All(ctx, here); err != nil || len(all) != 0 || u != (memory.Usage{}) {
		t.Errorf("usage after Delete is %+v, %v", u, err)
	}
	if all, _, err := ms.All(ctx, there); err != nil || len(all) != 1 {
		t.Errorf("the other scope has %d entries, %v", len(all), err)
	}

	var wg sync.WaitGroup
	stores := []memory.Store{ms, open(t, where).Memory()}
	for n := range 20 {
		wg.Go(func() {
			key := fmt.Sprint(n % 5)
			err := stores[n%2].Change(ctx, here, key, func(_ *memory.Entry, rest memory.Usage) (*memory.Entry, error) {
				return entry(key, rest.Version+1), nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if all, u, err := ms.All(ctx, here); err != nil || len(all) != 5 || u.Version != 20 || u.Entries != 5 || u.Bytes != 5*all[0].Bytes() {
		t.Errorf("usage after twenty concurrent changes is %+v, %v", u, err)
	}
}
