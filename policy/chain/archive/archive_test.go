package archive_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"

	"glasshouse/fault"
	"glasshouse/object"
	"glasshouse/object/dir"
	"glasshouse/object/objecttest"
	"glasshouse/policy/chain"
	"glasshouse/policy/chain/archive"
	"glasshouse/store"
)

// openLog opens an empty audit log.
func openLog(t *testing.T, key *chain.Key) *chain.Chain {
	t.Helper()
	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "g.db"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := chain.Open(t.Context(), chain.Config{Key: key, Store: s.Chain(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		s.Close()
	})
	return c
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

// A flaky store fails on request.
type flaky struct {
	object.Store
	lostPut, failDelete, failRead error
}

func (f *flaky) Put(ctx context.Context, key string, r io.Reader) error {
	return errors.Join(f.Store.Put(ctx, key, r), f.lostPut)
}

func (f *flaky) Delete(ctx context.Context, key string) error {
	if f.failDelete != nil {
		return f.failDelete
	}
	return f.Store.Delete(ctx, key)
}

func (f *flaky) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	r, err := f.Store.Get(ctx, key)
	if err == nil && f.failRead != nil {
		err = r.Close()
		r = io.NopCloser(io.MultiReader(strings.NewReader("age-encryption.org/v1\n"), failing{f.failRead}))
	}
	return r, err
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// A world is a node with its log and an object store.
type world struct {
	*testing.T
	key     *chain.Key
	log     *chain.Chain
	objects *flaky
	archive *archive.Archive
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s, err := dir.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	key, err := chain.LoadKey(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	secret, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, key: key, log: openLog(t, key), objects: &flaky{Store: s}}
	w.archive = &archive.Archive{Objects: w.objects, Key: secret}
	return w
}

// copier returns a copier as after a start of the daemon. Parts are full with 8 entries.
func (w *world) copier() *archive.Copier {
	c := &archive.Copier{Archive: w.archive, Node: "box1", Chain: w.log, Log: slog.New(slog.DiscardHandler)}
	c.SetFull(8)
	return c
}

func (w *world) keys() (keys []string) {
	w.Helper()
	for info, err := range w.objects.List(w.Context(), "") {
		if err != nil {
			w.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	slices.Sort(keys)
	return keys
}

// verify exports the copy and verifies it.
func (w *world) verify() chain.Report {
	w.Helper()
	var out bytes.Buffer
	if err := w.archive.Export(w.Context(), "box1", &out); err != nil {
		w.Fatal(err)
	}
	r, err := chain.VerifyExport(w.Context(), bytes.NewReader(out.Bytes()), chain.TrustedInput{Key: w.key.PublicKey()})
	if err != nil {
		w.Fatal(err)
	}
	return r
}

func (w *world) wantIntact(entries int64) {
	w.Helper()
	if r := w.verify(); r.Bad != nil || r.Entries != entries {
		w.Fatalf("the copy has %d entries and the defect %+v, want %d and none", r.Entries, r.Bad, entries)
	}
}

func TestCopyIsIntactLog(t *testing.T) {
	w := newWorld(t)
	c := w.copier()
	if err := c.Copy(t.Context()); err != nil || len(w.keys()) > 0 {
		t.Fatalf("Copy of an empty log = %v with objects %q, want none", err, w.keys())
	}
	for n := int64(1); n <= 40; n += 1 + n/4 {
		grow(t, w.log, n, "a")
		if n%2 == 0 {
			c = w.copier() // a new daemon
		}
		if err := c.Copy(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.wantIntact(n)
		if keys := w.keys(); int64(len(keys)) > n/4+1 {
			t.Fatalf("%d entries are in %d parts, want them replaced until they are full: %q", n, len(keys), keys)
		}
	}
	last := w.log.Last()
	before := w.keys()
	if err := c.Copy(t.Context()); err != nil || !slices.Equal(w.keys(), before) {
		t.Errorf("Copy without new entries = %v with objects %q, want %q", err, w.keys(), before)
	}
	logs, err := w.archive.Logs(t.Context())
	if err != nil || len(logs) != 1 || logs[0].Node != "box1" || logs[0].Entries != last || logs[0].Bytes == 0 || logs[0].At.IsZero() {
		t.Errorf("Logs = %+v, %v, want box1 with %d entries", logs, err, last)
	}
}

// More entries than a part should have can be between two checkpoints.
func TestPartEndsAtCheckpoint(t *testing.T) {
	w := newWorld(t)
	c := w.copier()
	for _, n := range []int64{5, 30, 31, 60} {
		grow(t, w.log, n, "a")
		if err := c.Copy(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.wantIntact(n)
	}
}

// Entries of a log that was rolled back or changed stay in the copy.
func TestRolledBackLogDoesNotReplaceCopy(t *testing.T) {
	for name, n := range map[string]int64{"shorter": 5, "as long": 12, "longer": 20} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			grow(t, w.log, 12, "a")
			if err := w.copier().Copy(t.Context()); err != nil {
				t.Fatal(err)
			}
			before := w.keys()
			w.log = openLog(t, w.key)
			grow(t, w.log, n, "b")
			c := w.copier()
			for range 2 {
				if err := c.Copy(t.Context()); !errors.Is(err, fault.Conflict) || fault.RemedyOf(err) == "" {
					t.Errorf("Copy = %v, want a conflict with a remedy", err)
				}
			}
			if !slices.Equal(w.keys(), before) {
				t.Errorf("objects = %q, want %q", w.keys(), before)
			}
			w.wantIntact(12)
		})
	}
}

func TestLostAnswersOfObjectStore(t *testing.T) {
	w := newWorld(t)
	c := w.copier()
	grow(t, w.log, 3, "a")
	w.objects.lostPut = errors.New("timeout")
	if err := c.Copy(t.Context()); err == nil {
		t.Error("Copy = nil, want the error of the store")
	}
	w.objects.lostPut = nil
	w.objects.failDelete = errors.New("down")
	grow(t, w.log, 5, "a")
	if err := c.Copy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(w.keys()); n != 2 {
		t.Errorf("%d objects, want the replaced part as well", n)
	}
	w.wantIntact(5)
	w.objects.failDelete = nil
	if err := w.copier().Copy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(w.keys()); n != 1 {
		t.Errorf("%d objects after the next start, want 1", n)
	}
	w.wantIntact(5)
}

// Half of all requests fail, or lose their answer.
func TestUnreliableObjectStore(t *testing.T) {
	w := newWorld(t)
	random := rand.New(rand.NewPCG(1, 1))
	unavailable := errors.New("503")
	c := w.copier()
	failed := 0
	repeat := func(do func() error) {
		t.Helper()
		for range 1000 {
			fails := func() error {
				if random.IntN(2) == 0 {
					return nil
				}
				return unavailable
			}
			w.objects.lostPut, w.objects.failDelete, w.objects.failRead = fails(), fails(), fails()
			if err := do(); err == nil {
				return
			}
			failed++
		}
		t.Fatal("a thousand attempts failed")
	}
	for n := int64(3); n <= 30; n += 3 {
		grow(t, w.log, n, "a")
		if n%9 == 0 {
			c = w.copier()
		}
		repeat(func() error { return c.Copy(t.Context()) })
	}
	repeat(func() error { return w.archive.Export(t.Context(), "box1", io.Discard) })
	if failed == 0 {
		t.Error("no request failed")
	}
	w.objects.failRead = nil
	w.wantIntact(30)
}

func TestDamagedCopy(t *testing.T) {
	w := newWorld(t)
	grow(t, w.log, 8, "a")
	c := w.copier()
	if err := c.Copy(t.Context()); err != nil {
		t.Fatal(err)
	}
	grow(t, w.log, 16, "a")
	if err := c.Copy(t.Context()); err != nil {
		t.Fatal(err)
	}
	keys := w.keys()
	if len(keys) != 2 {
		t.Fatalf("objects = %q, want 2", keys)
	}
	get := func(key string) []byte {
		t.Helper()
		data, err := objecttest.Get(t.Context(), w.objects, key)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	put := func(key string, data []byte) {
		t.Helper()
		if err := w.objects.Put(t.Context(), key, bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
	}
	first, second := get(keys[0]), get(keys[1])
	changed := bytes.Clone(second)
	changed[len(changed)-20] ^= 1
	for name, data := range map[string][]byte{"another part": first, "changed": changed, "cut off": second[:len(second)-30], "empty": nil, "not encrypted": []byte("{}\n")} {
		put(keys[1], data)
		if err := w.archive.Export(t.Context(), "box1", io.Discard); !errors.Is(err, fault.Invalid) || !strings.Contains(fmt.Sprint(err), "entries 9 to 16") {
			t.Errorf("Export of a part that is %s = %v, want that entries 9 to 16 are damaged", name, err)
		}
	}
	put(keys[1], second)
	w.objects.failRead = errors.New("connection reset")
	if err := w.archive.Export(t.Context(), "box1", io.Discard); !errors.Is(err, w.objects.failRead) || errors.Is(err, fault.Invalid) {
		t.Errorf("Export during a failure of the network = %v, want that failure", err)
	}
	w.objects.failRead = nil
	if err := w.objects.Delete(t.Context(), keys[0]); err != nil {
		t.Fatal(err)
	}
	if r := w.verify(); r.Bad == nil || r.Bad.Line != 1 {
		t.Errorf("without the first part the defect is %+v, want line 1", r.Bad)
	}
}

func TestForeignKeysAreIgnored(t *testing.T) {
	w := newWorld(t)
	for _, key := range []string{"audit/x", "audit/box1/x", "audit/box1/1-2", "audit/box1/0000000000000003-0000000000000002", "audit/box1/0000000000000001-0000000000000002x", "runs/r/s"} {
		if err := w.objects.Put(t.Context(), key, strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
	}
	if logs, err := w.archive.Logs(t.Context()); err != nil || len(logs) > 0 {
		t.Errorf("Logs = %+v, %v, want none", logs, err)
	}
	for node, want := range map[string]fault.Kind{"box1": fault.NotFound, "": fault.Invalid, "../runs": fault.Invalid} {
		if err := w.archive.Export(t.Context(), node, io.Discard); !errors.Is(err, want) {
			t.Errorf("Export(%q) = %v, want %s", node, err, want)
		}
	}
}

// The entries of the last minute are copied when the daemon stops.
func TestRunCopiesAtItsEnd(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	c := w.copier()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	for range 5 {
		if _, err := w.log.Append(t.Context(), chain.Entry{Kind: chain.OperatorActed}); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	<-done
	w.wantIntact(5)
}
