package store_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/chain"
	"glasshouse/store"
	"glasshouse/store/postgrestest"
)

func TestChainInSQLite(t *testing.T) {
	conformChain(t, func(t *testing.T) string { return filepath.Join(t.TempDir(), "glass house?#%.db") })
}

func TestChainInPostgreSQL(t *testing.T) {
	server := postgrestest.Start(t)
	conformChain(t, func(t *testing.T) string { return server.URL(t) })
	t.Run("AConnectionThatIsLostIsMadeAgain", func(t *testing.T) { lostConnection(t, server.URL(t)) })
	t.Run("ALockThatIsLostToAnotherIsNotTakenBack", func(t *testing.T) { lostLock(t, server.URL(t)) })
}

func TestChainInMemory(t *testing.T) {
	s := open(t, "")
	key := chainKey(t)
	c := openChain(t, s, key)
	appendTo(t, c, 10)
	if _, err := chain.Open(t.Context(), chain.Config{Store: s.Chain(), Key: key}); !errors.Is(err, fault.Conflict) {
		t.Errorf("second Open = %v, want conflict", err)
	}
	chainRight(t, c, 10)
}

func conformChain(t *testing.T, fresh func(t *testing.T) string) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, where string)
	}{
		{"ManyAppend", manyAppend},
		{"ItGoesOnAfterReopening", chainReopened},
		{"OneAppends", oneAppends},
		{"EntriesAreFound", entriesFound},
		{"ABatchIsAddedWholeOrNotAtAll", wholeBatch},
		{"ItIsReadWithoutAClaim", readAlone},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, fresh(t)) })
	}
}

func chainKey(t testing.TB) *chain.Key {
	t.Helper()
	key, err := chain.LoadKey(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func openChain(t testing.TB, s *store.Store, key *chain.Key) *chain.Chain {
	t.Helper()
	c, err := chain.Open(context.Background(), chain.Config{Store: s.Chain(), Key: key, Every: 16, Interval: time.Hour})
	if err != nil {
		t.Fatalf("Open the chain: %v", err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Close the chain: %v", err)
		}
	})
	return c
}

func entryFor(n int) chain.Entry {
	return chain.Entry{
		Kind: chain.Egress, Jail: id.Jail(fmt.Sprint("j-", n%5)), Session: fmt.Sprint("s", n%3), Run: "r", Agent: `o'"\`,
		Body: json.RawMessage(`{"host":"example.com","text":"\u0000 🏠"}`),
	}
}

func appendTo(t testing.TB, c *chain.Chain, n int) {
	t.Helper()
	for i := range n {
		if _, err := c.Append(context.Background(), entryFor(i)); err != nil {
			t.Fatalf("Append: %v", err)
		}
	}
}

func chainRight(t testing.TB, c *chain.Chain, entries int64) {
	t.Helper()
	r, err := c.VerifyAll(context.Background())
	if err != nil || r.Bad != nil || r.Entries != entries {
		t.Fatalf("VerifyAll = %+v %v, %v; want %d entries", r, r.Bad, err, entries)
	}
}

func manyAppend(t *testing.T, where string) {
	c := openChain(t, open(t, where), chainKey(t))
	var wg sync.WaitGroup
	for range 100 { // batches of all sizes
		wg.Go(func() { appendTo(t, c, 10) })
	}
	wg.Wait()
	chainRight(t, c, 1000)
	for _, seq := range []int64{1, 500, 1000} {
		if _, err := c.Prove(t.Context(), seq); err != nil {
			t.Errorf("Prove(%d): %v", seq, err)
		}
	}
}

func chainReopened(t *testing.T, where string) {
	key := chainKey(t)
	var want int64
	for round := range 6 {
		s := open(t, where)
		c := openChain(t, s, key)
		appendTo(t, c, 3+round)
		want += int64(3 + round)
		chainRight(t, c, want)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func oneAppends(t *testing.T, where string) {
	key := chainKey(t)
	first := openChain(t, open(t, where), key)
	other := open(t, where)
	if _, err := chain.Open(t.Context(), chain.Config{Store: other.Chain(), Key: key}); !errors.Is(err, fault.Conflict) || fault.RemedyOf(err) == "" {
		t.Errorf("Open of an open chain = %v, want conflict and a remedy", err)
	}
	if err := other.Chain().Append(t.Context(), 0, nil, chain.Checkpoint{Size: 1, Note: "x"}); !errors.Is(err, fault.Conflict) {
		t.Errorf("Append without a claim = %v, want conflict", err)
	}
	appendTo(t, first, 2)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := openChain(t, other, key)
	appendTo(t, second, 2)
	chainRight(t, second, 4)
}

func entriesFound(t *testing.T, where string) {
	c := openChain(t, open(t, where), chainKey(t))
	appendTo(t, c, 10)
	child := entryFor(0)
	child.Kind, child.Capability, child.Parent = chain.CallEnded, "cap", 4
	if _, err := c.Append(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	child.Parent = 11
	if _, err := c.Append(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	for _, q := range []struct {
		q    chain.Query
		want string
	}{
		{chain.Query{Jail: "j-1"}, "[2 7]"},
		{chain.Query{Session: "s0", Jail: "j-0"}, "[1 11 12]"},
		{chain.Query{Run: "r", After: 9}, "[10 11 12]"},
		{chain.Query{Capability: "cap"}, "[11 12]"},
		{chain.Query{Kinds: []chain.Kind{chain.CallEnded, chain.CallStarted}}, "[11 12]"},
		{chain.Query{Parent: 4}, "[11]"},
		{chain.Query{Under: 4}, "[11 12]"},
		{chain.Query{Limit: 2, After: 3}, "[4 5]"},
		{chain.Query{From: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour), Limit: 1}, "[1]"},
		{chain.Query{From: time.Now().Add(time.Hour)}, "[]"},
		{chain.Query{From: time.Now().Add(-time.Hour), Kinds: []chain.Kind{chain.CallEnded}, Limit: 1}, "[11]"},
		{chain.Query{Until: time.Now().Add(time.Hour), After: 5, Limit: 3}, "[6 7 8]"},
		{chain.Query{From: time.Now().Add(-time.Hour), Jail: "j-1"}, "[2 7]"},
		{chain.Query{Kinds: []chain.Kind{chain.Egress, chain.CallEnded}, After: 8, Limit: 3}, "[9 10 11]"},
		{chain.Query{Newest: true, Limit: 3}, "[12 11 10]"},
		{chain.Query{Newest: true, Limit: 2, After: 3}, "[2 1]"},
		{chain.Query{Newest: true, Kinds: []chain.Kind{chain.Egress, chain.CallEnded}, After: 12, Limit: 2}, "[11 10]"},
		{chain.Query{Newest: true, From: time.Now().Add(-time.Hour), Limit: 1}, "[12]"},
		{chain.Query{Newest: true, Under: 4}, "[12 11]"},
		{chain.Query{Session: "\x00"}, "[]"},
	} {
		list, err := c.Entries(t.Context(), q.q)
		got := []int64{}
		for _, e := range list {
			got = append(got, e.Seq)
		}
		if err != nil || fmt.Sprint(got) != q.want {
			t.Errorf("%+v: %v, %v; want %s", q.q, got, err, q.want)
		}
	}
}

func wholeBatch(t *testing.T, where string) {
	s := open(t, where)
	release, err := s.Chain().Claim(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	row := func(seq int64) chain.Row {
		return chain.Row{Seq: seq, Kind: "egress", Line: fmt.Sprint("line ", seq)}
	}
	var many []chain.Row
	for seq := int64(1); seq <= 150; seq++ {
		many = append(many, row(seq))
	}
	if err := s.Chain().Append(t.Context(), 0, many, chain.Checkpoint{Size: 150, Note: "n"}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		last int64
		rows []chain.Row
		cp   chain.Checkpoint
	}{
		"wrong last entry":     {149, []chain.Row{row(151)}, chain.Checkpoint{}},
		"duplicate number":     {150, []chain.Row{row(151), row(152), row(7)}, chain.Checkpoint{}},
		"duplicate checkpoint": {150, []chain.Row{row(151)}, chain.Checkpoint{Size: 150, Note: "other"}},
	} {
		if err := s.Chain().Append(t.Context(), c.last, c.rows, c.cp); !errors.Is(err, fault.Conflict) {
			t.Errorf("%s: Append = %v, want conflict", name, err)
		}
		last, err := s.Chain().Last(t.Context())
		if err != nil || last.Seq != 150 || last.Line != "line 150" {
			t.Errorf("%s: last entry afterwards is %+v, %v", name, last, err)
		}
	}
	cps, err := s.Chain().Checkpoints(t.Context(), 0, 10)
	if err != nil || len(cps) != 1 || cps[0].Note != "n" {
		t.Errorf("Checkpoints = %+v, %v", cps, err)
	}
}

func readAlone(t *testing.T, where string) {
	key := chainKey(t)
	c := openChain(t, open(t, where), key)
	appendTo(t, c, 40)
	r, err := store.ReadChain(t.Context(), where)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	report, err := chain.VerifyStore(t.Context(), r, chain.TrustedInput{Key: key.PublicKey(), Seen: c.Latest().Note})
	if err != nil || report.Bad != nil || report.Entries != 40 {
		t.Errorf("VerifyStore = %+v %v, %v", report, report.Bad, err)
	}
}

// endConnections makes the server end all other connections to the database.
func endConnections(t *testing.T, where string) {
	t.Helper()
	db, err := sql.Open("pgx", where)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"); err != nil {
		t.Fatal(err)
	}
}

func lostConnection(t *testing.T, where string) {
	c := openChain(t, open(t, where), chainKey(t))
	var added int64
	for range 5 {
		appendTo(t, c, 10)
		added += 10
		endConnections(t, where)
		if _, err := c.Append(t.Context(), entryFor(0)); err == nil {
			added++
		} else if !errors.Is(err, fault.Unavailable) {
			t.Errorf("Append on a terminated connection = %v, want unavailable", err)
		}
	}
	appendTo(t, c, 1)
	chainRight(t, c, added+1)
}

func lostLock(t *testing.T, where string) {
	key := chainKey(t)
	s := open(t, where)
	old, err := chain.Open(t.Context(), chain.Config{Store: s.Chain(), Key: key})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { old.Close() })
	appendTo(t, old, 3)
	endConnections(t, where)
	next := openChain(t, open(t, where), key)
	appendTo(t, next, 3)
	if _, err := old.Append(t.Context(), entryFor(0)); err == nil { // its connections were terminated
		t.Fatal("both stores can append")
	}
	if _, err := old.Append(t.Context(), entryFor(0)); !errors.Is(err, fault.Conflict) {
		t.Errorf("Append after another process has claimed the chain = %v, want conflict", err)
	}
	chainRight(t, next, 6)
}

func BenchmarkChainAppend(b *testing.B) {
	server := postgrestest.Start(b)
	s, err := store.Open(context.Background(), server.URL(b))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	c := openChain(b, s, chainKey(b))
	defer c.Close()
	b.ResetTimer()
	var wg sync.WaitGroup
	const writers = 256
	for w := range writers {
		wg.Go(func() {
			for i := w; i < b.N; i += writers {
				if _, err := c.Append(context.Background(), entryFor(i)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "entries/s")
}
