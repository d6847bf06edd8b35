package remote_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"filippo.io/age"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/snapshot"
	"glasshouse/jail/snapshot/remote"
	"glasshouse/object"
	"glasshouse/object/dir"
)

// fakeManager has archives of snapshots.
type fakeManager struct {
	mu       sync.Mutex
	archives map[id.Snapshot][]byte // guarded by mu, like the fields below
	imports  []snapshot.ImportOptions
	imported [][]byte
	fail     error // of Export, after half of the archive
}

func (m *fakeManager) Get(_ context.Context, s id.Snapshot) (snapshot.Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.archives[s] == nil {
		return snapshot.Snapshot{}, fault.Newf(fault.NotFound, "snapshot.Get", string(s), "no such snapshot")
	}
	return snapshot.Snapshot{ID: s}, nil
}

func (m *fakeManager) ExportInBackground(_ context.Context, s id.Snapshot, w io.Writer) error {
	m.mu.Lock()
	data, fail := m.archives[s], m.fail
	m.mu.Unlock()
	if fail != nil {
		w.Write(data[:len(data)/2])
		return fail
	}
	_, err := w.Write(data)
	return err
}

func (m *fakeManager) Import(_ context.Context, r io.Reader, o snapshot.ImportOptions) (snapshot.Snapshot, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.imports, m.imported = append(m.imports, o), append(m.imported, data)
	return snapshot.Snapshot{}, nil
}

// A world is two daemons that share an object store.
type world struct {
	*testing.T
	path     string
	from, to *fakeManager
	a, b     *remote.Snapshots
	run      id.Run
	snapshot id.Snapshot
	archive  []byte
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, path: t.TempDir(), from: &fakeManager{archives: map[id.Snapshot][]byte{}}, to: &fakeManager{}, run: id.NewRun(), snapshot: id.NewSnapshot()}
	w.archive = make([]byte, 300_000)
	rand.NewChaCha8([32]byte{}).Read(w.archive)
	w.from.archives[w.snapshot] = w.archive
	key := newKey(t)
	for _, m := range []*fakeManager{w.from, w.to} {
		objects, err := dir.Open(w.path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { objects.Close() })
		w.a, w.b = w.b, &remote.Snapshots{Objects: objects, Local: m, Key: key}
	}
	return w
}

func newKey(t *testing.T) *age.X25519Identity {
	t.Helper()
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (w *world) file(s id.Snapshot) string {
	return filepath.Join(w.path, "runs", string(w.run), string(s))
}

func (w *world) store(s id.Snapshot) {
	w.Helper()
	if err := w.a.Store(w.Context(), w.run, s); err != nil {
		w.Fatal(err)
	}
}

func TestSnapshotMovesToAnotherHost(t *testing.T) {
	w := newWorld(t)
	for range 2 {
		w.store(w.snapshot)
	}
	sources := map[string]string{"/target": "/source"}
	if err := w.b.Load(t.Context(), w.run, w.snapshot, sources); err != nil {
		t.Fatal(err)
	}
	if len(w.to.imports) != 1 || !bytes.Equal(w.to.imported[0], w.archive) {
		t.Fatalf("%d imports, want one of the archive", len(w.to.imports))
	}
	if o := w.to.imports[0]; !o.Move || !o.Trusted || o.Sources["/target"] != "/source" {
		t.Errorf("import options = %+v, want a move with the sources of this host", o)
	}
	data, err := os.ReadFile(w.file(w.snapshot))
	if err != nil || bytes.Contains(data, w.archive[:32]) {
		t.Errorf("the object of %d bytes (%v) is not encrypted", len(data), err)
	}
	if err := w.a.Load(t.Context(), w.run, w.snapshot, nil); err != nil || len(w.from.imports) != 0 {
		t.Errorf("Load = %v with %d imports, want nothing to do on the host that has the snapshot", err, len(w.from.imports))
	}
}

func TestForgedCopiesAreRefused(t *testing.T) {
	other := id.NewSnapshot()
	for name, change := range map[string]func(w *world){
		"other key":       func(w *world) { w.b.Key = newKey(w.T) },
		"another object":  func(w *world) { w.store(other); w.rename(other, w.snapshot) },
		"shorter":         func(w *world) { w.edit(func(data []byte) []byte { return data[:len(data)/2] }) },
		"a changed byte":  func(w *world) { w.edit(func(data []byte) []byte { data[len(data)/2] ^= 1; return data }) },
		"a changed head":  func(w *world) { w.edit(func(data []byte) []byte { data[100] ^= 1; return data }) },
		"empty":           func(w *world) { w.edit(func([]byte) []byte { return nil }) },
		"not encrypted":   func(w *world) { w.edit(func([]byte) []byte { return w.archive }) },
		"without a name":  func(w *world) { w.edit(func([]byte) []byte { return w.encrypt(nil) }) },
		"an endless name": func(w *world) { w.edit(func([]byte) []byte { return w.encrypt(bytes.Repeat([]byte("a"), 1<<20)) }) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.from.archives[other] = []byte("another archive")
			w.store(w.snapshot)
			change(w)
			if err := w.b.Load(t.Context(), w.run, w.snapshot, nil); err == nil || len(w.to.imports) != 0 {
				t.Errorf("Load = %v, and %d imports, want an error and none", err, len(w.to.imports))
			}
		})
	}
}

// brokenReads damages the first reads of an object. If fails is set, they end with an error, as
// those of a store with checksums do.
type brokenReads struct {
	object.Store
	left  int
	fails error
}

func (b *brokenReads) Get(ctx context.Context, k string) (io.ReadCloser, error) {
	in, err := b.Store.Get(ctx, k)
	if err != nil || b.left == 0 {
		return in, err
	}
	b.left--
	data, err := io.ReadAll(in)
	if err := errors.Join(err, in.Close()); err != nil {
		return nil, err
	}
	data[0] ^= 1
	read := io.Reader(bytes.NewReader(data))
	if b.fails != nil {
		read = io.MultiReader(read, iotest.ErrReader(b.fails))
	}
	return io.NopCloser(read), nil
}

func TestDamagedTransfer(t *testing.T) {
	w := newWorld(t)
	w.store(w.snapshot)
	objects := &brokenReads{Store: w.b.Objects, left: 2}
	w.b.Objects = objects
	if err := w.b.Load(t.Context(), w.run, w.snapshot, nil); err != nil || len(w.to.imports) != 1 {
		t.Errorf("Load = %v, and %d imports, want that a damaged transfer is repeated", err, len(w.to.imports))
	}
	// A reader of a long object decrypts its beginning before the end, which has the checksum.
	objects.left, objects.fails = 1, fault.New(fault.Unavailable, "get", "", errors.New("wrong checksum"))
	if err := w.b.Load(t.Context(), w.run, w.snapshot, nil); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Load = %v, want that of the checksum", err)
	}
}

func (w *world) rename(from, to id.Snapshot) {
	w.Helper()
	if err := os.Rename(w.file(from), w.file(to)); err != nil {
		w.Fatal(err)
	}
}

func (w *world) edit(change func([]byte) []byte) {
	w.Helper()
	data, err := os.ReadFile(w.file(w.snapshot))
	if err == nil {
		err = os.WriteFile(w.file(w.snapshot), change(data), 0o600)
	}
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) encrypt(text []byte) []byte {
	w.Helper()
	var b bytes.Buffer
	to, err := age.Encrypt(&b, w.b.Key.Recipient())
	if err != nil {
		w.Fatal(err)
	}
	_, err = to.Write(text)
	if err := errors.Join(err, to.Close()); err != nil {
		w.Fatal(err)
	}
	return b.Bytes()
}

func TestFailedExportStoresNothing(t *testing.T) {
	w := newWorld(t)
	w.from.fail = errors.New("the disk failed")
	if err := w.a.Store(t.Context(), w.run, w.snapshot); !errors.Is(err, w.from.fail) {
		t.Errorf("Store = %v, want the error of the export", err)
	}
	if err := w.b.Load(t.Context(), w.run, w.snapshot, nil); !errors.Is(err, fault.NotFound) {
		t.Errorf("Load = %v, want not found", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	w.from.fail = nil
	if err := w.a.Store(ended, w.run, w.snapshot); err == nil {
		t.Error("Store with an ended context = nil, want an error")
	}
	w.store(w.snapshot)
}

func TestPruneKeepsOneSnapshot(t *testing.T) {
	w := newWorld(t)
	second := id.NewSnapshot()
	w.from.archives[second] = []byte("second")
	w.store(w.snapshot)
	w.store(second)
	if runs, err := w.b.Runs(t.Context()); err != nil || len(runs) != 0 {
		t.Errorf("Runs = %v, %v, want none: the copies are new", runs, err)
	}
	for _, s := range []id.Snapshot{w.snapshot, second} {
		if err := os.Chtimes(w.file(s), time.Time{}, time.Now().Add(-2*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	if runs, err := w.b.Runs(t.Context()); err != nil || !slices.Equal(runs, []id.Run{w.run}) {
		t.Errorf("Runs = %v, %v, want the run once", runs, err)
	}
	if err := w.b.Prune(t.Context(), w.run, second); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(w.file(second)); err != nil {
		t.Errorf("the kept copy: %v", err)
	}
	if _, err := os.Stat(w.file(w.snapshot)); !os.IsNotExist(err) {
		t.Errorf("the old copy: %v, want it deleted", err)
	}
	if err := w.b.Prune(t.Context(), w.run, ""); err != nil {
		t.Fatal(err)
	}
	if runs, err := w.b.Runs(t.Context()); err != nil || len(runs) != 0 {
		t.Errorf("Runs = %v, %v, want none", runs, err)
	}
}
