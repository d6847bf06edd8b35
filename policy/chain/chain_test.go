package chain_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/sumdb/tlog"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/chain"
	"glasshouse/store"
	"glasshouse/store/storetest"
)

// A harness is a data directory with a chain.
type harness struct {
	*chain.Chain
	store *store.Store
	dir   string
}

// db returns the database of the chain: that of the directory, or the one that a file in it
// names.
func (h *harness) db() string {
	if url, err := os.ReadFile(filepath.Join(h.dir, "url")); err == nil {
		return string(url)
	}
	return filepath.Join(h.dir, "glasshouse.db")
}

func openHarness(t testing.TB, dir string, cfg chain.Config) *harness {
	t.Helper()
	h, err := tryOpen(dir, cfg)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(h.close)
	return h
}

// tryOpen opens the chain of a data directory. cfg may contain another store on the same
// database.
func tryOpen(dir string, cfg chain.Config) (*harness, error) {
	ctx := context.Background()
	key, err := chain.LoadKey(dir)
	if err != nil {
		return nil, err
	}
	h := &harness{dir: dir}
	if err := storetest.Create(h.db()); err != nil {
		return nil, err
	}
	h.store, err = store.Open(ctx, h.db())
	if err != nil {
		return nil, err
	}
	cfg.Key = key
	if cfg.Store == nil {
		cfg.Store = h.store.Chain()
	} else if w, ok := cfg.Store.(*faultyStore); ok {
		w.Store = h.store.Chain()
	}
	h.Chain, err = chain.Open(ctx, cfg)
	if err != nil {
		return nil, errors.Join(err, h.store.Close())
	}
	return h, nil
}

func (h *harness) close() {
	h.Chain.Close()
	h.store.Close()
}

func (h *harness) append(t testing.TB, e chain.Entry) chain.Entry {
	t.Helper()
	got, err := h.Append(context.Background(), e)
	if err != nil {
		t.Fatalf("Append: %v", err)
	}
	return got
}

// checkVerifies checks that all entries verify.
func (h *harness) checkVerifies(t testing.TB, entries int64) {
	t.Helper()
	for name, verify := range map[string]func(context.Context) (chain.Report, error){"Verify": h.Verify, "VerifyAll": h.VerifyAll} {
		r, err := verify(context.Background())
		if err != nil || r.Bad != nil || r.Entries != entries {
			t.Fatalf("%s = %+v %v, %v; want %d entries", name, r, r.Bad, err, entries)
		}
	}
}

func anEntry(n int) chain.Entry {
	return chain.Entry{
		Kind: chain.Decided, Jail: id.Jail(fmt.Sprintf("j-aaaaaaaaaa%02d", n%50)), Session: fmt.Sprint("session-", n%20), Run: fmt.Sprint("run-", n%30),
		Agent: "worker", Body: json.RawMessage(`{"action":"bash","resource":"npm install --save left-pad","effect":"allow","rule":{"file":"opencode.json","line":12,"pattern":"npm *"}}`),
	}
}

func TestAppendAndReadEntry(t *testing.T) {
	h := openHarness(t, t.TempDir(), chain.Config{})
	before := time.Now().Add(-time.Millisecond)
	first := h.append(t, chain.Entry{
		Kind: chain.JailCreated, Jail: "j-aaaaaaaaaaaa", Session: `quote " and \`, Run: "r 🏠", Capability: "places.search", Agent: "o'brien",
		Body: json.RawMessage(` { "z" : 1.50 , "a" : "\u00e9\u0000" } `),
		Seq:  99, Prev: chain.Hash{1}, Hash: chain.Hash{2}, Time: time.Unix(0, 0), // assigned by the chain
	})
	second := h.append(t, chain.Entry{Kind: chain.JailStarted, Parent: first.Seq})

	if first.Seq != 1 || first.Prev != (chain.Hash{}) || first.Time.Before(before) || string(first.Body) != `{"a":"é\u0000","z":1.5}` {
		t.Errorf("first entry = %+v", first)
	}
	if second.Seq != 2 || second.Prev != first.Hash || second.Parent != 1 || string(second.Body) != "{}" {
		t.Errorf("second entry = %+v", second)
	}
	dir := h.dir
	h.close()
	h = openHarness(t, dir, chain.Config{})
	list, err := h.Entries(t.Context(), chain.Query{})
	if diff := cmp.Diff([]chain.Entry{first, second}, list); err != nil || diff != "" {
		t.Errorf("Entries: %v (-appended +read):\n%s", err, diff)
	}
	// JSON encoding in any form preserves the entry and its hash.
	text, err := json.MarshalIndent(first, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	var again chain.Entry
	if err := json.Unmarshal(text, &again); err != nil || !cmp.Equal(first, again) {
		t.Errorf("entry after JSON round trip = %+v, %v", again, err)
	}
	if err := again.Check(); err != nil {
		t.Error(err)
	}
	again.Session = "another"
	if err := again.Check(); !errors.Is(err, fault.Conflict) {
		t.Errorf("Check of a changed entry = %v, want conflict", err)
	}
	h.checkVerifies(t, 2)
}

func TestAppendRejectsInvalidEntries(t *testing.T) {
	h := openHarness(t, t.TempDir(), chain.Config{})
	ok := chain.Entry{Kind: chain.Egress}
	for name, c := range map[string]struct {
		change func(e *chain.Entry)
		kind   fault.Kind
		field  string
	}{
		"no kind":             {func(e *chain.Entry) { e.Kind = "" }, fault.Invalid, "kind"},
		"unknown kind":        {func(e *chain.Entry) { e.Kind = "jail.exploded" }, fault.Invalid, "kind"},
		"a future cause":      {func(e *chain.Entry) { e.Parent = 1 }, fault.Invalid, "parent"},
		"a negative cause":    {func(e *chain.Entry) { e.Parent = -1 }, fault.Invalid, "parent"},
		"NUL in a name":       {func(e *chain.Entry) { e.Session = "a\x00b" }, fault.Invalid, "session"},
		"an escape sequence":  {func(e *chain.Entry) { e.Agent = "\x1b[2J" }, fault.Invalid, "agent"},
		"not UTF-8":           {func(e *chain.Entry) { e.Run = "\xff" }, fault.Invalid, "run"},
		"a name too long":     {func(e *chain.Entry) { e.Capability = strings.Repeat("x", 257) }, fault.Invalid, "capability"},
		"a body not JSON":     {func(e *chain.Entry) { e.Body = json.RawMessage("x") }, fault.Invalid, "body"},
		"a body no object":    {func(e *chain.Entry) { e.Body = json.RawMessage("[]") }, fault.Invalid, "body"},
		"a body of two kinds": {func(e *chain.Entry) { e.Body = json.RawMessage(`{"a":1,"a":2}`) }, fault.Invalid, "body"},
		"a body too large": {func(e *chain.Entry) {
			e.Body = json.RawMessage(`{"a":"` + strings.Repeat("x", chain.MaxBody) + `"}`)
		}, fault.TooLarge, "body"},
		"a body of megabytes": {func(e *chain.Entry) { e.Body = bytes.Repeat([]byte("["), 4<<20) }, fault.TooLarge, "body"},
	} {
		e := ok
		c.change(&e)
		if _, err := h.Append(t.Context(), e); !errors.Is(err, c.kind) || fault.FieldOf(err) != c.field {
			t.Errorf("%s: Append = %v; want %s, for %s", name, err, c.kind, c.field)
		}
	}
	largest := ok
	largest.Body = json.RawMessage(`{"a":"` + strings.Repeat("x", chain.MaxBody-8) + `"}`)
	deepest := ok
	deepest.Body = json.RawMessage(`{"a":` + strings.Repeat("[", 62) + strings.Repeat("]", 62) + `}`)
	for i, e := range []chain.Entry{largest, deepest} {
		e = h.append(t, e)
		text, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &e); err != nil || e.Seq != int64(i+1) {
			t.Errorf("appended entry cannot be read: %v", err)
		}
	}
	h.checkVerifies(t, 2)
}

func TestConcurrentAppendIsGapless(t *testing.T) {
	h := openHarness(t, t.TempDir(), chain.Config{Every: 50})
	const writers, each = 32, 40
	var mu sync.Mutex
	seen := map[int64]chain.Hash{}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			var parent int64
			for i := range each {
				e := anEntry(w)
				e.Parent = parent
				got, err := h.Append(context.Background(), e)
				if err != nil {
					t.Error(err)
					return
				}
				parent = got.Seq
				if i%8 == 0 {
					if r, err := h.Verify(context.Background()); err != nil || r.Bad != nil {
						t.Errorf("concurrent Verify = %+v %v, %v", r, r.Bad, err)
					}
				}
				mu.Lock()
				seen[got.Seq] = got.Hash
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for seq := int64(1); seq <= writers*each; seq++ {
		e, err := h.Entry(t.Context(), seq)
		if err != nil || e.Hash != seen[seq] {
			t.Fatalf("entry %d = %v, %v; differs from the result of Append", seq, e.Hash, err)
		}
	}
	h.checkVerifies(t, writers*each)
	// Each transaction signs at most one checkpoint.
	if size := h.Latest().Size; size <= writers*each-50-writers {
		t.Errorf("%[2]d of %[1]d entries are signed, want a checkpoint for every 50", writers*each, size)
	}
}

func TestCheckpointTriggers(t *testing.T) {
	h := openHarness(t, t.TempDir(), chain.Config{Every: 5, Interval: time.Hour})
	if cp, err := h.Checkpoint(t.Context()); err != nil || cp.Size != 0 {
		t.Errorf("Checkpoint of an empty chain = %+v, %v", cp, err)
	}
	for n := range 12 {
		h.append(t, anEntry(n))
	}
	if size := h.Latest().Size; size != 10 {
		t.Errorf("%d of 12 entries are signed, want 10", size)
	}
	cp, err := h.Checkpoint(t.Context())
	if err != nil || cp.Size != 12 {
		t.Errorf("Checkpoint = %+v, %v; want 12", cp, err)
	}
	if again, err := h.Checkpoint(t.Context()); err != nil || again != cp {
		t.Errorf("second Checkpoint = %+v, %v; want %+v", again, err, cp)
	}
	lines := strings.Split(cp.Note, "\n")
	if origin, _, _ := strings.Cut(h.Key().String(), "+"); len(lines) != 6 || lines[0] != origin || lines[1] != "12" || lines[3] != "" || !strings.HasPrefix(lines[4], "— "+origin+" ") {
		t.Errorf("unexpected checkpoint:\n%s", cp.Note)
	}
	h.append(t, anEntry(0))
	dir := h.dir
	h.close() // signs the remaining entries
	h = openHarness(t, dir, chain.Config{Interval: time.Millisecond})
	if size := h.Latest().Size; size != 13 {
		t.Errorf("%d entries are signed after Close, want 13", size)
	}
	h.append(t, anEntry(1))
	for h.Latest().Size != 14 { // until the timeout of the test
		time.Sleep(time.Millisecond)
	}
	h.checkVerifies(t, 14)
}

func TestProofsNeedOnlyPublicKey(t *testing.T) {
	h := openHarness(t, t.TempDir(), chain.Config{Every: 7})
	var notes []string
	for n := range 40 {
		h.append(t, anEntry(n))
		if n%9 == 0 {
			cp, err := h.Checkpoint(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			notes = append(notes, cp.Note)
		}
	}
	text, err := os.ReadFile(filepath.Join(h.dir, chain.PublicFile))
	if err != nil {
		t.Fatal(err)
	}
	public, err := chain.ParsePublic(string(text))
	if err != nil || public != h.Key() && public.String() != h.Key().String() {
		t.Fatalf("ParsePublic = %v, %v; want %v", public, err, h.Key())
	}
	for seq := int64(1); seq <= 40; seq++ {
		p, err := h.Prove(t.Context(), seq)
		if err != nil {
			t.Fatalf("Prove(%d): %v", seq, err)
		}
		wire, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var got chain.Inclusion
		if err := json.Unmarshal(wire, &got); err != nil {
			t.Fatal(err)
		}
		if err := got.Check(public); err != nil {
			t.Fatalf("Check of entry %d: %v", seq, err)
		}
		for name, change := range map[string]func(p *chain.Inclusion){
			"another body":    func(p *chain.Inclusion) { p.Entry.Body = json.RawMessage(`{"action":"none"}`) },
			"another number":  func(p *chain.Inclusion) { p.Entry.Seq = p.Entry.Seq%40 + 1 },
			"another hash":    func(p *chain.Inclusion) { p.Entry.Hash[0] ^= 1 },
			"another path":    func(p *chain.Inclusion) { p.Path[0][0] ^= 1 },
			"a shorter path":  func(p *chain.Inclusion) { p.Path = p.Path[1:] },
			"a longer path":   func(p *chain.Inclusion) { p.Path = append(p.Path, tlog.Hash{}) },
			"an earlier tree": func(p *chain.Inclusion) { p.Checkpoint = notes[0] },
		} {
			bad := got
			bad.Path = slices.Clone(got.Path)
			change(&bad)
			if name == "an earlier tree" && seq == 1 && len(notes) > 0 {
				continue // the proof is the same for that tree
			}
			if bad.Check(public) == nil {
				t.Errorf("entry %d with %s: the proof is valid", seq, name)
			}
		}
	}
	for i, note := range notes {
		p, err := h.ProveConsistency(t.Context(), note)
		if err != nil {
			t.Fatalf("ProveConsistency of checkpoint %d: %v", i, err)
		}
		if err := p.Check(public); err != nil {
			t.Errorf("checkpoint %d: %v", i, err)
		}
		p.From, p.To = p.To, p.From
		if len(p.Path) > 0 && p.Check(public) == nil {
			t.Errorf("checkpoint %d: the reversed proof is valid", i)
		}
	}
	stranger := newFixture(t, 8)
	if _, err := h.ProveConsistency(t.Context(), stranger.checkpoint(t, 8)); !errors.Is(err, fault.Invalid) {
		t.Errorf("ProveConsistency of another chain's checkpoint = %v, want invalid", err)
	}
	if _, err := h.Prove(t.Context(), 41); !errors.Is(err, fault.NotFound) {
		t.Errorf("Prove of a missing entry = %v, want not found", err)
	}
}

func TestKeyFilePermissions(t *testing.T) {
	dir := t.TempDir()
	key, err := chain.LoadKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	mode := func(name string) os.FileMode {
		st, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return st.Mode().Perm()
	}
	if got := mode(chain.KeyFile); got != 0o600 {
		t.Errorf("%s has mode %04o", chain.KeyFile, got)
	}
	if got := mode(chain.PublicFile); got != 0o644 {
		t.Errorf("%s has mode %04o", chain.PublicFile, got)
	}
	secret, err := os.ReadFile(filepath.Join(dir, chain.KeyFile))
	if err != nil {
		t.Fatal(err)
	}
	if out := fmt.Sprintf("%v %+v %#v", key, key, key); strings.Contains(out, strings.TrimSpace(string(secret))) {
		t.Error("formatting a key reveals its secret")
	}
	if again, err := chain.LoadKey(dir); err != nil || again.PublicKey().String() != key.PublicKey().String() {
		t.Errorf("LoadKey again = %v, %v", again, err)
	}
	// A missing public key file is created again, a missing private key never.
	os.Remove(filepath.Join(dir, chain.PublicFile))
	if _, err := chain.LoadKey(dir); err != nil || mode(chain.PublicFile) != 0o644 {
		t.Errorf("LoadKey without %s: %v", chain.PublicFile, err)
	}
	os.Chmod(filepath.Join(dir, chain.KeyFile), 0o640)
	if _, err := chain.LoadKey(dir); !errors.Is(err, fault.Denied) {
		t.Errorf("LoadKey of a group-readable file = %v, want denied", err)
	}
	os.Chmod(filepath.Join(dir, chain.KeyFile), 0o600)
	os.WriteFile(filepath.Join(dir, chain.KeyFile), bytes.ToUpper(secret), 0o600)
	if _, err := chain.LoadKey(dir); !errors.Is(err, fault.Invalid) || strings.Contains(err.Error(), strings.ToUpper(string(secret[30:60]))) {
		t.Errorf("LoadKey of a damaged key = %v, want invalid without parts of the key", err)
	}
	os.Remove(filepath.Join(dir, chain.KeyFile))
	if _, err := chain.LoadKey(dir); !errors.Is(err, fault.Conflict) {
		t.Errorf("LoadKey with a missing key = %v, want conflict", err)
	}
}

func TestOpenRejectsDifferentKey(t *testing.T) {
	h := openHarness(t, t.TempDir(), chain.Config{})
	h.append(t, anEntry(1))
	dir := h.dir
	h.close()
	os.Remove(filepath.Join(dir, chain.KeyFile))
	os.Remove(filepath.Join(dir, chain.PublicFile))
	if _, err := tryOpen(dir, chain.Config{}); !errors.Is(err, fault.Conflict) || fault.RemedyOf(err) == "" {
		t.Errorf("Open with another key = %v, want conflict and a remedy", err)
	}
}

func TestQueries(t *testing.T) {
	h := openHarness(t, t.TempDir(), chain.Config{})
	root := h.append(t, chain.Entry{Kind: chain.RunStarted, Session: "s", Run: "r"})
	step := h.append(t, chain.Entry{Kind: chain.RunMoved, Session: "s", Run: "r", Parent: root.Seq})
	call := h.append(t, chain.Entry{Kind: chain.CallStarted, Session: "s", Run: "r", Jail: "j-a", Capability: "c", Parent: step.Seq})
	other := h.append(t, chain.Entry{Kind: chain.CallStarted, Session: "s2", Jail: "j-a", Capability: "c"})
	for range 2 { // until the next millisecond
		time.Sleep(time.Millisecond)
	}
	end := h.append(t, chain.Entry{Kind: chain.CallEnded, Session: "s", Run: "r", Jail: "j-a", Capability: "c", Parent: call.Seq})
	for _, c := range []struct {
		name string
		q    chain.Query
		want []int64
	}{
		{"all", chain.Query{}, []int64{1, 2, 3, 4, 5}},
		{"of a session", chain.Query{Session: "s"}, []int64{1, 2, 3, 5}},
		{"of a run", chain.Query{Run: "r", Kinds: []chain.Kind{chain.RunMoved, chain.CallEnded}}, []int64{2, 5}},
		{"of a jail", chain.Query{Jail: "j-a"}, []int64{3, 4, 5}},
		{"of a capability", chain.Query{Capability: "c", Session: "s2"}, []int64{4}},
		{"of a kind", chain.Query{Kinds: []chain.Kind{chain.CallStarted}}, []int64{3, 4}},
		{"its effects", chain.Query{Parent: root.Seq}, []int64{2}},
		{"their effects too", chain.Query{Under: root.Seq}, []int64{2, 3, 5}},
		{"their effects, on", chain.Query{Under: root.Seq, After: 2, Limit: 1}, []int64{3}},
		{"an unknown session", chain.Query{Session: "' OR 1=1 --"}, nil},
		{"strange text", chain.Query{Session: "\x00\xff"}, nil},
		{"the first page", chain.Query{Limit: 2}, []int64{1, 2}},
		{"the next", chain.Query{Limit: 2, After: 2}, []int64{3, 4}},
		{"from a time", chain.Query{From: end.Time}, []int64{5}},
		{"until a time", chain.Query{Until: end.Time}, []int64{1, 2, 3, 4}},
		{"the last", chain.Query{Newest: true, Limit: 2}, []int64{5, 4}},
		{"those before", chain.Query{Newest: true, Limit: 2, After: 4}, []int64{3, 2}},
		{"the last of a run", chain.Query{Newest: true, Run: "r", Limit: 2}, []int64{5, 3}},
		{"in a time", chain.Query{From: other.Time, Until: end.Time, Jail: "j-a", After: 3}, []int64{4}},
	} {
		list, err := h.Entries(t.Context(), c.q)
		var got []int64
		for _, e := range list {
			got = append(got, e.Seq)
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v; want %v", c.name, got, err, c.want)
		}
	}
	causes, err := h.Causes(t.Context(), end.Seq)
	if diff := cmp.Diff([]chain.Entry{root, step, call, end}, causes); err != nil || diff != "" {
		t.Errorf("Causes: %v (-want +got):\n%s", err, diff)
	}
	if _, err := h.Entry(t.Context(), 6); !errors.Is(err, fault.NotFound) {
		t.Errorf("Entry of a missing entry = %v, want not found", err)
	}
}

func TestSealSegments(t *testing.T) {
	h := openHarness(t, t.TempDir(), chain.Config{})
	s := chain.Segment{Stream: "syscalls", File: "syscalls-00000001.jsonl", First: 1, Last: 900, SHA256: strings.Repeat("ab", 32)}
	e, err := h.Seal(t.Context(), "j-a", s)
	var got chain.Segment
	if err != nil || e.Kind != chain.EventsSealed || e.Jail != "j-a" || json.Unmarshal(e.Body, &got) != nil || got != s {
		t.Errorf("Seal = %+v, %v", e, err)
	}
	next := s
	next.First, next.Last, next.File = 901, 1000, "syscalls-00000901.jsonl"
	for _, seal := range []struct {
		jail id.Jail
		chain.Segment
	}{{"j-b", s}, {"j-a", next}} {
		if _, err := h.Seal(t.Context(), seal.jail, seal.Segment); err != nil {
			t.Fatal(err)
		}
	}
	h.append(t, chain.Entry{Kind: chain.JailStopped, Jail: "j-a"})
	list, err := h.Sealed(t.Context(), "j-a")
	if diff := cmp.Diff([]chain.Segment{s, next}, list); err != nil || diff != "" {
		t.Errorf("Sealed: %v (-want +got):\n%s", err, diff)
	}
	s.SHA256 = "x"
	if _, err := h.Seal(t.Context(), "j-a", s); !errors.Is(err, fault.Invalid) {
		t.Errorf("Seal without a digest = %v, want invalid", err)
	}
}

func TestVerifyLargeExport(t *testing.T) {
	h := openHarness(t, t.TempDir(), chain.Config{Every: 1000})
	const n = 5000 // more than a page and a chunk
	var wg sync.WaitGroup
	for w := range 20 {
		wg.Go(func() {
			for range n / 20 {
				h.append(t, anEntry(w))
			}
		})
	}
	wg.Wait()
	var export bytes.Buffer
	cp, err := h.Export(t.Context(), &export)
	if err != nil || cp.Size != n {
		t.Fatalf("Export = %+v, %v", cp, err)
	}
	r := verifyExport(t, export.Bytes(), chain.TrustedInput{Key: h.Key(), Seen: cp.Note})
	if r.Bad != nil || r.Entries != n || r.Signed != n || r.Checkpoints < 5 {
		t.Errorf("VerifyExport = %+v %v", r, r.Bad)
	}
	for _, seq := range []int64{1, 512, 513, 4096, n} { // at boundaries of pages and chunks
		broken := bytes.Replace(export.Bytes(), fmt.Appendf(nil, `"seq":%d,`, seq), fmt.Appendf(nil, `"seq":%d,`, seq+1), 1)
		if r := verifyExport(t, broken, chain.TrustedInput{Key: h.Key()}); r.Bad == nil || r.Bad.Seq != seq || r.Entries != seq-1 {
			t.Errorf("VerifyExport with entry %d changed = %+v %v", seq, r, r.Bad)
		}
	}
	h.checkVerifies(t, n)
}

func TestAppendEndsWithContextOrChain(t *testing.T) {
	h := openHarness(t, t.TempDir(), chain.Config{})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 { // it may have been added: then it must exist
		before := h.Last()
		e, err := h.Append(ended, anEntry(1))
		switch {
		case err == nil:
			if _, err := h.Entry(t.Context(), e.Seq); err != nil {
				t.Fatal(err)
			}
		case !errors.Is(err, context.Canceled):
			t.Fatalf("Append = %v, want canceled", err)
		case h.Last() != before:
			t.Fatalf("Append reports that the entry was not added, but there are %d entries, not %d", h.Last(), before)
		}
	}
	var wg sync.WaitGroup
	var added atomic.Int64
	added.Store(h.Last())
	for w := range 50 {
		wg.Go(func() {
			for {
				_, err := h.Append(context.Background(), anEntry(w))
				if errors.Is(err, fault.Unavailable) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				added.Add(1)
			}
		})
	}
	for added.Load() < 200 {
		time.Sleep(time.Millisecond)
	}
	if err := h.Chain.Close(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if err := h.Chain.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	r, err := chain.VerifyStore(t.Context(), h.store.Chain(), chain.TrustedInput{Key: h.Key()})
	if err != nil || r.Bad != nil || r.Entries != added.Load() || r.Signed != added.Load() {
		t.Errorf("VerifyStore after Close = %+v %v, %v; want %d entries, all signed", r, r.Bad, err, added.Load())
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, writers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			h := openHarness(b, b.TempDir(), chain.Config{})
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ResetTimer()
			var wg sync.WaitGroup
			for w := range writers {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						h.append(b, anEntry(w))
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "entries/s")
		})
	}
}

// fill appends n entries.
func fill(t testing.TB, h *harness, n int) {
	var wg sync.WaitGroup
	for w := range 256 {
		wg.Go(func() {
			for i := w; i < n; i += 256 {
				h.append(t, anEntry(i))
			}
		})
	}
	wg.Wait()
}

func BenchmarkVerifyDatabase(b *testing.B) {
	const n = 50_000
	h := openHarness(b, b.TempDir(), chain.Config{})
	fill(b, h, n)
	for b.Loop() {
		if r, err := h.VerifyAll(context.Background()); err != nil || r.Bad != nil {
			b.Fatal(r.Bad, err)
		}
	}
	b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "entries/s")
}

// BenchmarkOpen shows that the time of Open is independent of the length of the chain.
func BenchmarkOpen(b *testing.B) {
	for _, n := range []int{100, 50_000} {
		b.Run(fmt.Sprint("entries=", n), func(b *testing.B) {
			h := openHarness(b, b.TempDir(), chain.Config{})
			fill(b, h, n)
			h.Chain.Close()
			key, err := chain.LoadKey(h.dir)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				c, err := chain.Open(context.Background(), chain.Config{Store: h.store.Chain(), Key: key})
				if err != nil {
					b.Fatal(err)
				}
				c.Close()
			}
		})
	}
}

func BenchmarkProve(b *testing.B) {
	const n = 20_000
	h := openHarness(b, b.TempDir(), chain.Config{})
	fill(b, h, n)
	for i := 0; b.Loop(); i++ {
		if _, err := h.Prove(context.Background(), int64(i*7919%n+1)); err != nil {
			b.Fatal(err)
		}
	}
}
