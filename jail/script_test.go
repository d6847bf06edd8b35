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

// scriptedBackend is a processBackend that supports checkpoints. Each operation can be made to
// fail. Its images have no memory: a restored jail is a new init.
type newScript struct {
	*processBackend
	store failingStore

	mu        sync.Mutex
	fails     map[string]func() error // by operation, called before it. guarded by mu
	calls     []string                // guarded by mu
	stepsLeft int                     // operations until the daemon is killed; 0: never. guarded by mu
	killed    bool                    // all operations fail. guarded by mu
	shown     map[id.Jail][]string    // visible secrets by instance. guarded by mu
}

var (
	errScripted = errors.New("a scripted failure")
	errKilled   = errors.New("the daemon was killed")
)

// killAt simulates a kill of the daemon at the nth operation from now: that one and all later
// ones fail and have no effect. killAt(0) ends the simulation.
func (s *newScript) killAt(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stepsLeft, s.killed = n, false
}

func (s *newScript) wasKilled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.killed
}

// fail makes an operation call f first, and fail with its error. With nil the operation works
// again.
func (s *newScript) fail(op string, f func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails[op] = f
}

// step records the call of an operation, and returns its scripted error.
func (s *newScript) step(op string) error {
	s.mu.Lock()
	s.calls = append(s.calls, op)
	f := s.fails[op]
	s.stepsLeft--
	s.killed = s.killed || s.stepsLeft == 0
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

func (s *newScript) called(op string) int {
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

func (s *newScript) wrap(i jail.Instance, err error) (jail.Instance, error) {
	if err != nil {
		return nil, err
	}
	return &scriptedInstance{i.(*processInstance), s}, nil
}

func (s *newScript) Create(ctx context.Context, p jail.Plan) (jail.Instance, error) {
	if err := s.step("create"); err != nil {
		return nil, err
	}
	return s.wrap(s.processBackend.Create(ctx, p))
}

func (s *newScript) Open(ctx context.Context, p jail.Plan) (jail.Instance, error) {
	if err := s.step("open"); err != nil {
		return nil, err
	}
	return s.wrap(s.processBackend.Open(ctx, p))
}

func (s *newScript) Clean(ctx context.Context, p jail.Plan) error {
	if err := s.step("clean"); err != nil {
		return err
	}
	return s.processBackend.Clean(ctx, p)
}

func (s *newScript) Mount(ctx context.Context, p jail.Plan) (string, func() error, error) {
	if err := s.step("mount"); err != nil {
		return "", nil, err
	}
	dir, unmount, err := s.processBackend.Mount(ctx, p)
	return dir, unmount, errors.Join(err, s.step("mounted"))
}

func (s *newScript) Changes(_ context.Context, _ jail.Plan, o jail.ChangesOptions) ([]jail.Change, error) {
	return s.changes(o), s.step("changes")
}

func (s *newScript) Compare(_ context.Context, from, to jail.Tree, o jail.ChangesOptions) ([]jail.Change, error) {
	return s.changes(o), s.step(treeName(from) + " to " + treeName(to))
}

func treeName(t jail.Tree) string {
	if t.Writable {
		return "now"
	}
	return "then"
}

// changes returns one file that the jail wrote and two directories that the daemon created.
func (s *newScript) changes(o jail.ChangesOptions) []jail.Change {
	if o.Workspace {
		return []jail.Change{{Path: "/w/file", Kind: "modified", Type: "file"}}
	}
	return []jail.Change{
		{Path: "/etc/x", Kind: "added", Type: "file"},
		{Path: "/run/secrets", Kind: "added", Type: "dir"},
		{Path: "/w", Kind: "added", Type: "dir"},
	}
}

func (s *newScript) CanCheckpoint(context.Context) error { return nil }

func (s *newScript) Dumpable(context.Context, jail.Plan, jail.Instance) error {
	return s.step("dumpable")
}

func (s *newScript) Stabilize(context.Context, jail.Plan, jail.Instance) error {
	return s.step("steady")
}

func (s *newScript) Dump(_ context.Context, _ jail.Plan, _ jail.Instance, dir string) error {
	if err := s.step("dump"); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "image"), nil, 0o600)
}

func (s *newScript) Restore(ctx context.Context, p jail.Plan, dir string) (jail.Instance, error) {
	if err := s.step("restore"); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(dir, "image")); err != nil {
		return nil, err
	}
	i, err := s.wrap(s.processBackend.Create(ctx, p))
	if err != nil {
		return nil, err
	}
	return i, i.(*scriptedInstance).processInstance.Freeze(ctx)
}

func (s *newScript) BeginCopy(_ context.Context, _ jail.Plan, to string) (jail.LayerCopy, error) {
	if err := s.step("copy"); err != nil {
		return nil, err
	}
	return scriptedCopy{s, to}, nil
}

func (s *newScript) FlushLayer(context.Context, jail.Plan) error {
	if s.called("seal") > s.called("flush sealed") {
		return s.step("flush sealed")
	}
	return s.step("flush")
}

func (s *newScript) SealLayer(_ context.Context, _ jail.Plan, to string) error {
	if err := s.step("seal"); err != nil {
		return err
	}
	return os.WriteFile(to, nil, 0o600)
}

func (s *newScript) CleanAndRemoveLayer(ctx context.Context, p jail.Plan) error {
	if err := s.step("shed"); err != nil {
		return err
	}
	return s.processBackend.Clean(ctx, p)
}

type scriptedCopy struct {
	s  *newScript
	to string
}

func (c scriptedCopy) Copy(context.Context) error {
	if err := c.s.step("take"); err != nil {
		return err
	}
	return os.WriteFile(c.to, nil, 0o600)
}

func (c scriptedCopy) Close() error { return c.s.step("end") }

type scriptedInstance struct {
	*processInstance
	s *newScript
}

func (i *scriptedInstance) Freeze(ctx context.Context) error {
	if err := i.s.step("freeze"); err != nil {
		return err
	}
	return i.processInstance.Freeze(ctx)
}

func (i *scriptedInstance) Thaw(ctx context.Context) error {
	if err := i.s.step("thaw"); err != nil {
		return err
	}
	return i.processInstance.Thaw(ctx)
}

func (i *scriptedInstance) Kill(ctx context.Context) error {
	if err := i.s.step("kill"); err != nil {
		return err
	}
	return i.processInstance.Kill(ctx)
}

func (i *scriptedInstance) ShowSecrets(_ context.Context, files []jail.SecretFile) error {
	if err := i.s.step("show"); err != nil {
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
	if err := i.s.step("hide"); err != nil {
		return err
	}
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	delete(i.s.shown, i.p.ID)
	return nil
}

// failingStore is a Store whose Put fails once after the given number of successful calls.
type failingStore struct {
	jail.Store
	step func(op string) error
	mu   sync.Mutex
	left int // successful Put calls before the failure; negative: no failure. guarded by mu
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
	if err := f.step("put"); err != nil {
		return err
	}
	return f.Store.Put(ctx, j)
}

func (f *failingStore) Delete(ctx context.Context, jid id.Jail) error {
	if err := f.step("forget record"); err != nil {
		return err
	}
	return f.Store.Delete(ctx, jid)
}

// scripted opens a Manager on a scripted backend and store. All jails are deleted at the end
// of the test.
func (h *harness) scripted() (*jail.Manager, *newScript) {
	h.Helper()
	s := h.newScript()
	return h.scriptedManager(s), s
}

func (h *harness) newScript() *newScript {
	s := &newScript{processBackend: h.backend, fails: map[string]func() error{}, shown: map[id.Jail][]string{}}
	s.store.Store, s.store.step, s.store.left = h.db.Jails(), s.step, -1
	return s
}

func (h *harness) scriptedManager(s *newScript) *jail.Manager {
	h.Helper()
	cfg := h.config(s)
	cfg.Store = &s.store
	if h.scriptParts {
		s.installParts(&cfg)
	}
	m := h.open(cfg)
	h.Cleanup(func() { // before the jails are deleted
		s.mu.Lock()
		clear(s.fails)
		s.mu.Unlock()
		s.killAt(0)
		s.store.failAfter(-1)
	})
	return m
}

// checkpoint takes a checkpoint of a jail.
func (h *harness) checkpoint(m *jail.Manager, j id.Jail, how jail.Layering) (jail.Checkpoint, error) {
	h.Helper()
	dir := h.TempDir()
	return m.Checkpoint(h.Context(), j, jail.CheckpointOptions{
		Snapshot: id.NewSnapshot(), Images: dir, Layer: filepath.Join(dir, "layer"), Layering: how,
	})
}

// wantJails checks the jails in the database and in the data directory.
func (h *harness) wantJails(want ...id.Jail) {
	h.Helper()
	all, err := h.db.Jails().All(h.Context())
	if err != nil {
		h.Fatal(err)
	}
	var records, dirs []id.Jail
	for _, j := range all {
		records = append(records, j.ID)
	}
	entries, _ := os.ReadDir(filepath.Join(h.dir, "jails"))
	for _, e := range entries {
		dirs = append(dirs, id.Jail(e.Name()))
	}
	slices.Sort(want)
	slices.Sort(records)
	slices.Sort(dirs)
	if !slices.Equal(records, want) {
		h.Errorf("records = %v, want %v", records, want)
	}
	if !slices.Equal(dirs, want) {
		h.Errorf("directories = %v, want %v", dirs, want)
	}
}

// failureModes are the ways in which an operation can fail.
var failureModes = map[string]func() error{
	"error": func() error { return errScripted },
	"panic": func() error { panic(errScripted) },
}

// wantFailure checks that err is the scripted failure.
func wantFailure(t *testing.T, mode string, err error) {
	t.Helper()
	var p *fault.Panic
	if mode == "panic" {
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
