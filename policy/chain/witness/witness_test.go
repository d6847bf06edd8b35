package witness_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"glasshouse/fault"
	"glasshouse/policy/chain"
	"glasshouse/policy/chain/witness"
	"glasshouse/store"
)

// openLog opens an audit log. Two with the same key are those of a node before and after someone
// has replaced its database.
func openLog(t *testing.T, key *chain.Key) *chain.Chain {
	t.Helper()
	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "g.db"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := chain.Open(t.Context(), chain.Config{Key: key, Store: s.Chain()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		s.Close()
	})
	return c
}

func newKey(t *testing.T) *chain.Key {
	t.Helper()
	k, err := chain.LoadKey(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// grow adds entries to a log, up to a number, and signs them.
func grow(t *testing.T, c *chain.Chain, to int64, agent string) {
	t.Helper()
	for c.Last() < to {
		if _, err := c.Append(t.Context(), chain.Entry{Kind: chain.OperatorActed, Agent: agent}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A world is a witness of the log of the node "n", whose log can be replaced.
type world struct {
	*testing.T
	*witness.Witness
	log   witness.Log
	fails bool
}

func newWorld(t *testing.T, log witness.Log) *world {
	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "g.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	w := &world{T: t, log: log}
	w.Witness = &witness.Witness{
		Store: s.Witness(),
		Nodes: func(context.Context) ([]string, error) { return []string{"n"}, nil },
		Ask: func(ctx context.Context, _ string, q witness.Question) (witness.Answer, error) {
			if w.fails {
				return witness.Answer{}, fault.Newf(fault.Unavailable, "ask", "", "down")
			}
			return witness.Reply(ctx, w.log, q)
		},
		Log: slog.New(slog.DiscardHandler),
	}
	return w
}

// round asks once, and returns what is known then.
func (w *world) round() witness.Seen {
	w.Helper()
	if err := w.Round(w.Context()); err != nil {
		w.Fatal(err)
	}
	list, err := w.Store.Seen(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	if len(list) == 0 {
		return witness.Seen{}
	}
	return list[0]
}

func (w *world) check(what string, entries, missing int64, reason string) {
	w.Helper()
	s := w.round()
	got, lost := "", int64(0)
	if s.Conflict != nil {
		got, lost = s.Conflict.Reason, s.Conflict.Missing
	}
	if s.Entries != entries || lost != missing || (reason == "") != (got == "") || !strings.Contains(got, reason) {
		w.Errorf("%s: %d entries were seen, %d are missing, conflict %q; want %d, %d, %q", what, s.Entries, lost, got, entries, missing, reason)
	}
}

func TestLogIsWatched(t *testing.T) {
	key := newKey(t)
	log := openLog(t, key)
	w := newWorld(t, log)
	if s := w.round(); s.Checkpoint != "" {
		t.Errorf("an empty log: %+v was seen, want nothing", s)
	}
	grow(t, log, 3, "a")
	w.check("first entries", 3, 0, "")
	w.check("no new entries", 3, 0, "")
	grow(t, log, 200, "a")
	w.check("more entries", 200, 0, "")
	w.fails = true
	w.check("no answer", 200, 0, "")
	w.fails = false

	// The database is replaced by an old one.
	short := openLog(t, key)
	grow(t, short, 50, "a")
	w.log = short
	w.check("rolled back", 200, 150, "the log has 50 entries, and had 200")
	grow(t, short, 60, "a")
	w.check("rolled back, and continued", 200, 150, "the log has 60 entries, and had 200")
	w.log = log
	w.check("restored", 200, 0, "")

	w.log = short
	w.check("rolled back again", 200, 140, "the log has 60 entries")
	grow(t, short, 300, "b")
	w.check("forked", 200, 140, "the log does not contain the 200 entries that it had")
	w.log = log
	grow(t, log, 301, "a")
	w.check("forked, and the first log again", 301, 140, "the log does not contain the 200 entries that it had") // there are two signed logs
}

func TestOtherKeyIsConflict(t *testing.T) {
	log := openLog(t, newKey(t))
	grow(t, log, 5, "a")
	w := newWorld(t, log)
	w.check("first", 5, 0, "")
	other := openLog(t, newKey(t))
	grow(t, other, 9, "a")
	w.log = other
	w.check("other key", 5, 0, "the log is signed with another key")
}

// A node that answers with garbage does not change what is known, and is no reason to stop.
func TestInvalidAnswers(t *testing.T) {
	log := openLog(t, newKey(t))
	grow(t, log, 5, "a")
	w := newWorld(t, log)
	w.check("first", 5, 0, "")
	good := w.Ask
	for name, change := range map[string]func(a *witness.Answer){
		"no key":               func(a *witness.Answer) { a.Key = "x" },
		"no checkpoint of key": func(a *witness.Answer) { a.Checkpoint = strings.Replace(a.Checkpoint, "5", "6", 1) },
	} {
		w.Ask = func(ctx context.Context, n string, q witness.Question) (witness.Answer, error) {
			a, err := good(ctx, n, q)
			change(&a)
			return a, err
		}
		if err := w.Round(t.Context()); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: Round = %v, want invalid", name, err)
		}
		if list, err := w.Store.Seen(t.Context()); err != nil || len(list) != 1 || list[0].Entries != 5 || list[0].Conflict != nil {
			t.Errorf("%s: seen = %+v, %v, want it unchanged", name, list, err)
		}
	}
	w.Ask = func(ctx context.Context, n string, q witness.Question) (witness.Answer, error) {
		a, err := good(ctx, n, q)
		a.Path = append(a.Path, [32]byte{1})
		return a, err
	}
	w.check("wrong proof", 5, 0, "the log does not contain the 5 entries that it had")
}

func TestPredecessors(t *testing.T) {
	var nodes []string
	for n := range 20 {
		nodes = append(nodes, fmt.Sprintf("n%02d", n))
	}
	watched := map[string]int{}
	for _, n := range nodes {
		list := witness.Predecessors(n, nodes)
		if len(list) != 8 || slices.Contains(list, n) {
			t.Errorf("Predecessors(%s) = %v, want eight others", n, list)
		}
		for _, o := range list {
			watched[o]++
		}
	}
	for n, count := range watched {
		if count != 8 {
			t.Errorf("%s is watched by %d nodes, want 8", n, count)
		}
	}
	if got := witness.Predecessors("b", []string{"c", "a", "b"}); len(got) != 2 || !slices.Contains(got, "a") || !slices.Contains(got, "c") {
		t.Errorf("Predecessors in a fleet of three = %v, want both others", got)
	}
	if got := witness.Predecessors("a", []string{"a"}); len(got) != 0 {
		t.Errorf("Predecessors of the only node = %v, want none", got)
	}
}
