package jail_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

// script is the backend bare with checkpoints. Each operation can be made to fail. Its images hold no memory: a restored jail is a new init.
type script struct {
	*bare
	store failingStore

	mu     sync.Mutex
	fails  map[string]func() error // by operation, called in its place. guarded by mu
	calls  []string                // guarded by mu
	steps  int                     // until the daemon is killed; 0: it is not. guarded by mu
	killed bool                    // nothing works any longer. guarded by mu
	shown  map[id.Jail][]string    // secrets that an instance sees, by its name on the host. guarded by mu
}

var (
	errScripted = errors.New("a scripted failure")
	errKilled   = errors.New("the daemon was killed")
)

// killAt has the daemon killed at the nth of the following operations: that one and all
// later ones do nothing. With 0 the daemon lives again.
func (s *script) killAt(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps, s.killed = n, false
}

func (s *script) wasKilled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.killed
}

// fail has an operation fail; nil has it work.
func (s *script) fail(op string, f func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails[op] = f
}

// at notes that an operation was called, and fails it if it is to.
func (s *script) at(op string) error {
	s.mu.Lock()
	s.calls = append(s.calls, op)
	f := s.fails[op]
	s.steps--
	s.killed = s.killed || s.steps == 0
	killed := s.killed
	s.mu.Unlock()
	if killed {
		return errKilled
	}
	if f != nil {
		return f()
	}
	return nil
}

func (s *script) called(op string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, c := range s.calls {
		if c == op {
			n++
		}
	}
	return n
}

func (s *script) wrap(i jail.Instance, err error) (jail.Instance, error) {
	if err != nil {
		return nil, err
	}
	return &scriptedInstance{i.(*bareInstance), s}, nil
}

func (s *script) Create(ctx context.Context, p jail.Plan) (jail.Instance, error) {
	if err := s.at("create"); err != nil {
		return nil, err
	}
	return s.wrap(s.bare.Create(ctx, p))
}

func (s *script) Open(ctx context.Context, p jail.Plan) (jail.Instance, error) {
	if err := s.at("open"); err != nil {
		return nil, err
	}
	return s.wrap(s.bare.Open(ctx, p))
}

func (s *script) Clean(ctx context.Context, p jail.Plan) error {
	if err := s.at("clean"); err != nil {
		return err
	}
	return s.bare.Clean(ctx, p)
}

func (s *script) Mount(ctx context.Context, p jail.Plan) (string, func() error, error) {
	if err := s.at("mount"); err != nil {
		return "", nil, err
	}
	dir, unmount, err := s.bare.Mount(ctx, p)
	return dir, unmount, errors.Join(err, s.at("mounted"))
}

func (s *script) Changes(_ context.Context, _ jail.Plan, o jail.ChangesOptions) ([]jail.Change, error) {
	return s.changes(o), s.at("changes")
}

func (s *script) Compare(_ context.Context, from, to jail.Tree, o jail.ChangesOptions) ([]jail.Change, error) {
	return s.changes(o), s.at(compared(from) + " to " + compared(to))
}

func compared(t jail.Tree) string {
	if t.Own {
		return "now"
	}
	return "then"
}

// changes has one file that the jail wrote and two directories that were made for it.
func (s *script) changes(o jail.ChangesOptions) []jail.Change {
	if o.Workspace {
		return []jail.Change{{Path: "/w/file", Kind: "modified", Type: "file"}}
	}
	return []jail.Change{
		{Path: "/etc/x", Kind: "added", Type: "file"},
		{Path: "/run/secrets", Kind: "added", Type: "dir"},
		{Path: "/w", Kind: "added", Type: "dir"},
	}
}

func (s *script) CanCheckpoint(context.Context) error { return nil }

func (s *script) Dumpable(context.Context, jail.Plan, jail.Instance) error { return s.at("dumpable") }

func (s *script) Steady(context.Context, jail.Plan, jail.Instance) error { return s.at("steady") }

func (s *script) Dump(_ context.Context, _ jail.Plan, _ jail.Instance, dir string) error {
	if err := s.at("dump"); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "image"), nil, 0o600)
}

func (s *script) Restore(ctx context.Context, p jail.Plan, dir string) (jail.Instance, error) {
	if err := s.at("restore"); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(dir, "image")); err != nil {
		return nil, err
	}
	i, err := s.wrap(s.bare.Create(ctx, p))
	if err != nil {
		return nil, err
	}
	return i, i.(*scriptedInstance).bareInstance.Freeze(ctx)
}

func (s *script) BeginCopy(_ context.Context, _ jail.Plan, to string) (jail.LayerCopy, error) {
	if err := s.at("copy"); err != nil {
		return nil, err
	}
	return scriptedCopy{s, to}, nil
}

func (s *script) FlushLayer(context.Context, jail.Plan) error {
	if s.called("seal") > s.called("flush sealed") {
		return s.at("flush sealed")
	}
	return s.at("flush")
}

func (s *script) SealLayer(_ context.Context, _ jail.Plan, to string) error {
	if err := s.at("seal"); err != nil {
		return err
	}
	return os.WriteFile(to, nil, 0o600)
}

func (s *script) Shed(ctx context.Context, p jail.Plan) error {
	if err := s.at("shed"); err != nil {
		return err
	}
	return s.bare.Clean(ctx, p)
}

type scriptedCopy struct {
	s  *script
	to string
}

func (c scriptedCopy) Take(context.Context) error {
	if err := c.s.at("take"); err != nil {
		return err
	}
	return os.WriteFile(c.to, nil, 0o600)
}

func (c scriptedCopy) End() error { return c.s.at("end") }

type scriptedInstance struct {
	*bareInstance
	s *script
}

func (i *scriptedInstance) Freeze(ctx context.Context) error {
	if err := i.s.at("freeze"); err != nil {
		return err
	}
	return i.bareInstance.Freeze(ctx)
}

func (i *scriptedInstance) Thaw(ctx context.Context) error {
	if err := i.s.at("thaw"); err != nil {
		return err
	}
	return i.bareInstance.Thaw(ctx)
}

func (i *scriptedInstance) Kill(ctx context.Context) error {
	if err := i.s.at("kill"); err != nil {
		return err
	}
	return i.bareInstance.Kill(ctx)
}

func (i *scriptedInstance) ShowSecrets(_ context.Context, files []jail.SecretFile) error {
	if err := i.s.at("show"); err != nil {
		return err
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Name()+"="+string(f.Bytes()))
	}
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	i.s.shown[i.p.ID] = names
	return nil
}

func (i *scriptedInstance) HideSecrets(context.Context) error {
	if err := i.s.at("hide"); err != nil {
		return err
	}
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	delete(i.s.shown, i.p.ID)
	return nil
}

// failingStore is a Store whose Put fails once the given number of calls is over.
type failingStore struct {
	jail.Store
	at   func(op string) error
	mu   sync.Mutex
	left int // of calls that work; negative: all do. guarded by mu
}

func (f *failingStore) failAfter(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left = n
}

func (f *failingStore) Put(ctx context.Context, j jail.Jail) error {
	f.mu.Lock()
	fails := f.left == 0
	f.left--
	f.mu.Unlock()
	if fails {
		return errScripted
	}
	if err := f.at("put"); err != nil {
		return err
	}
	return f.Store.Put(ctx, j)
}

func (f *failingStore) Delete(ctx context.Context, jid id.Jail) error {
	if err := f.at("forget record"); err != nil {
		return err
	}
	return f.Store.Delete(ctx, jid)
}

// scripted opens a Manager on a scripted backend and store. At the end every jail
// is deleted.
func (w *world) scripted() (*jail.Manager, *script) {
	w.Helper()
	s := w.script()
	return w.scriptedManager(s), s
}

func (w *world) script() *script {
	s := &script{bare: w.backend, fails: map[string]func() error{}, shown: map[id.Jail][]string{}}
	s.store.Store, s.store.at, s.store.left = w.db.Jails(), s.at, -1
	return s
}

func (w *world) scriptedManager(s *script) *jail.Manager {
	w.Helper()
	cfg := w.config(s)
	cfg.Store = &s.store
	if w.attended {
		s.attend(&cfg)
	}
	m := w.open(cfg)
	w.Cleanup(func() { // before the jails are deleted
		s.mu.Lock()
		clear(s.fails)
		s.mu.Unlock()
		s.killAt(0)
		s.store.failAfter(-1)
	})
	return m
}

// checkpoint takes a checkpoint of a jail.
func (w *world) checkpoint(m *jail.Manager, j id.Jail, how jail.Layering) (jail.Checkpoint, error) {
	w.Helper()
	dir := w.TempDir()
	return m.Checkpoint(w.Context(), j, jail.CheckpointOptions{
		Snapshot: id.NewSnapshot(), Images: dir, Layer: filepath.Join(dir, "layer"), Layering: how,
	})
}

// holds insists on the jails that the database and the data directory have.
func (w *world) holds(want ...id.Jail) {
	w.Helper()
	all, err := w.db.Jails().All(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	var records, dirs []id.Jail
	for _, j := range all {
		records = append(records, j.ID)
	}
	entries, _ := os.ReadDir(filepath.Join(w.dir, "jails"))
	for _, e := range entries {
		dirs = append(dirs, id.Jail(e.Name()))
	}
	slices.Sort(want)
	slices.Sort(records)
	slices.Sort(dirs)
	if !slices.Equal(records, want) {
		w.Errorf("the database has records of %v, want %v", records, want)
	}
	if !slices.Equal(dirs, want) {
		w.Errorf("the data directory has %v, want %v", dirs, want)
	}
}

// ways are how an operation can fail.
var ways = map[string]func() error{
	"error": func() error { return errScripted },
	"panic": func() error { panic(errScripted) },
}

// failedAs insists that err is of the scripted failure.
func failedAs(t *testing.T, way string, err error) {
	t.Helper()
	var p *fault.Panic
	if way == "panic" {
		if !errors.As(err, &p) || p.Value != errScripted {
			t.Errorf("error = %v, want the panic", err)
		}
		return
	}
	if !errors.Is(err, errScripted) || strings.Contains(err.Error(), "panic") {
		t.Errorf("error = %v, want %v", err, errScripted)
	}
}

func mustMkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
}
