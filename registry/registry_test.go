package registry_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/approval"
	"glasshouse/bundle"
	"glasshouse/engine"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/manifest"
	"glasshouse/policy"
	"glasshouse/registry"
	"glasshouse/store"
	"glasshouse/store/storetest"
)

// A shop is a registry on a real database and a real queue. Open and close may be
// called again, as a daemon's next life.
type shop struct {
	*registry.Registry
	t     *testing.T
	dir   string
	cfg   registry.Config
	queue *approval.Queue
	store *store.Store
}

func newShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{t: t, dir: t.TempDir()}
	s.open()
	t.Cleanup(func() { s.close() })
	return s
}

func (s *shop) open() {
	s.t.Helper()
	s.openOn(func(real registry.Store) registry.Store { return real })
}

// openOn is open with something between the registry and its database.
func (s *shop) openOn(between func(registry.Store) registry.Store) {
	s.t.Helper()
	var err error
	s.store, err = storetest.Open(s.t, filepath.Join(s.dir, "g.db"))
	must(s.t, err)
	s.queue, err = approval.New(s.t.Context(), s.store.Approvals(), approval.Config{})
	must(s.t, err)
	s.cfg.Store, s.cfg.Approvals, s.cfg.Dir = between(s.store.Capabilities()), s.queue, filepath.Join(s.dir, "capabilities")
	s.cfg.Bundles = filepath.Join(s.dir, "bundles")
	s.cfg.Trust, err = bundle.OpenTrust(filepath.Join(s.dir, "trust.json"))
	must(s.t, err)
	s.Registry, err = registry.Open(s.t.Context(), s.cfg)
	must(s.t, err)
}

func (s *shop) close() {
	s.t.Helper()
	must(s.t, errors.Join(s.Close(), s.queue.Close(), s.store.Close()))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *shop) register(text string) registry.Record {
	s.t.Helper()
	all, err := s.Register(s.t.Context(), registry.Request{File: "m.rtfs", Text: []byte(text), By: "anna"})
	must(s.t, err)
	return all[0]
}

func (s *shop) answer(r registry.Record, v approval.Verdict) {
	s.t.Helper()
	_, err := s.queue.Answer(s.t.Context(), r.Approval, approval.Answer{
		Verdict: v, By: approval.Person{ID: "uid 0", Name: "anna", Role: "admin"}, Channel: "api", Reason: "because",
	})
	must(s.t, err)
}

// becomes waits until a version is in a state.
func (s *shop) becomes(ref string, want registry.State) registry.Record {
	s.t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		r, _, err := s.Find(ref)
		must(s.t, err)
		if r.State == want {
			return r
		}
		if time.Now().After(end) {
			s.t.Fatalf("%s is %s, and not %s", ref, r.State, want)
		}
	}
}

// double is a capability that does nothing but compute.
const double = `(capability "math.double" :version "1.0.0" :effects []
  :runtime {:type :rtfs} :implementation (fn [x] (* 2 x)))`

// fetch is one that reaches hosts.
func fetch(version string, hosts ...string) string {
	return fmt.Sprintf(`(capability "web.fetch" :version %q :effects [:network]
  :runtime {:type :container :image "python:3.12-slim" :entrypoint ["python3" "/app/main.py"]}
  :network {:mode :proxy :allowed-hosts ["%s"]})`, version, strings.Join(hosts, `" "`))
}

func TestWhatTouchesNothingCanBeCalledAtOnce(t *testing.T) {
	s := newShop(t)
	if r := s.register(double); r.State != registry.Approved {
		t.Fatalf("it is %s: %v", r.State, r.Widens)
	}
	c, err := s.Resolve("math.double")
	must(t, err)
	if c.Version != "1.0.0" || c.Digest == "" {
		t.Errorf("it is version %q, digest %q", c.Version, c.Digest)
	}
	if len(s.queue.Pending()) != 0 {
		t.Error("a person is asked")
	}
}

func TestWhatReachesTheNetworkIsCalledWhenAPersonHasAllowedIt(t *testing.T) {
	s := newShop(t)
	r := s.register(fetch("1.0.0", "a.example.com"))
	if r.State != registry.Pending || !slices.ContainsFunc(r.Widens, func(w string) bool { return strings.Contains(w, "a.example.com") }) {
		t.Fatalf("it is %s, and would be able to %q", r.State, r.Widens)
	}
	_, err := s.Resolve("web.fetch")
	if fault.KindOf(err) != fault.Denied || !strings.Contains(fault.RemedyOf(err), string(r.Approval)) {
		t.Errorf("to call it before is %v (%s)", err, fault.RemedyOf(err))
	}
	if again := s.register(fetch("1.0.0", "a.example.com")); again.Approval != r.Approval || len(s.queue.Pending()) != 1 {
		t.Error("to register the same again asks again")
	}
	s.answer(r, approval.Allow)
	s.becomes("web.fetch", registry.Approved)
	_, err = s.Resolve("web.fetch@1.0.0")
	must(t, err)
}

func TestWhatIsRefusedIsNotCalled(t *testing.T) {
	s := newShop(t)
	r := s.register(fetch("1.0.0", "a.example.com"))
	s.answer(r, approval.Deny)
	if r = s.becomes("web.fetch", registry.Refused); !strings.Contains(r.Why, "because") {
		t.Errorf("it says %q", r.Why)
	}
	if _, err := s.Resolve("web.fetch"); fault.KindOf(err) != fault.Denied {
		t.Errorf("to call it is %v", err)
	}
	_, err := s.Register(t.Context(), registry.Request{Text: []byte(fetch("1.0.0", "a.example.com"))})
	if fault.KindOf(err) != fault.Denied {
		t.Errorf("to register it again is %v", err)
	}
	all, err := s.Register(t.Context(), registry.Request{Text: []byte(fetch("1.0.0", "a.example.com")), Again: true})
	must(t, err)
	if all[0].State != registry.Pending {
		t.Errorf("asked again it is %s", all[0].State)
	}
}

func TestAVersionThatWantsMoreIsAskedAbout(t *testing.T) {
	s := newShop(t)
	s.answer(s.register(fetch("1.0.0", "a.example.com")), approval.Allow)
	s.becomes("web.fetch", registry.Approved)
	if r := s.register(fetch("1.0.1", "a.example.com")); r.State != registry.Approved {
		t.Errorf("a version that may do the same is %s: %q", r.State, r.Widens)
	}
	r := s.register(fetch("1.1.0", "a.example.com", "b.example.com"))
	if r.State != registry.Pending || len(r.Widens) != 1 || !strings.Contains(r.Widens[0], "b.example.com") {
		t.Errorf("one more host is %s: %q", r.State, r.Widens)
	}
	c, err := s.Resolve("web.fetch")
	must(t, err)
	if c.Version != "1.0.1" {
		t.Errorf("until then %s is called", c.Version)
	}
}

func TestAVersionDoesNotChange(t *testing.T) {
	s := newShop(t)
	s.answer(s.register(fetch("1.0.0", "a.example.com")), approval.Allow)
	s.becomes("web.fetch", registry.Approved)
	_, err := s.Register(t.Context(), registry.Request{Text: []byte(fetch("1.0.0", "b.example.com"))})
	if fault.KindOf(err) != fault.Conflict {
		t.Errorf("other contents under the same version are %v", err)
	}
	_, err = s.Register(t.Context(), registry.Request{Text: []byte(fetch("0.9.0", "a.example.com"))})
	if fault.KindOf(err) != fault.Conflict {
		t.Errorf("an older version is %v", err)
	}
}

func TestFilesAreCopiedAndStayAsTheyWere(t *testing.T) {
	s := newShop(t)
	src := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(src, "code/lib"), 0o755))
	must(t, os.WriteFile(filepath.Join(src, "code/main.py"), []byte("print(1)\n"), 0o755))
	must(t, os.WriteFile(filepath.Join(src, "code/lib/x.py"), []byte("x = 1\n"), 0o600))
	must(t, os.Symlink("lib/x.py", filepath.Join(src, "code/y.py")))
	text := `(capability "app.run" :version "1.0.0" :effects []
  :runtime {:type :container :image "python:3.12-slim" :entrypoint ["python3" "/app/main.py"]}
  :filesystem {:mode :ephemeral :mounts [{:host "code" :guest "/app" :mode :ro}]})`
	all, err := s.Register(t.Context(), registry.Request{Text: []byte(text), Dir: src})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(src, "code/main.py"), []byte("print('changed')\n"), 0o755))
	_, c, err := s.Find("app.run")
	must(t, err)
	for name, want := range map[string]string{"code/main.py": "print(1)\n", "code/y.py": "x = 1\n"} {
		if b, err := os.ReadFile(filepath.Join(c.Dir, name)); string(b) != want {
			t.Errorf("%s is %q, %v", name, b, err)
		}
	}
	if st, err := os.Stat(filepath.Join(c.Dir, "code/main.py")); err != nil || st.Mode().Perm() != 0o555 {
		t.Errorf("the program's mode is %v, %v", st.Mode(), err)
	}
	if _, err := s.Register(t.Context(), registry.Request{Text: []byte(text), Dir: src}); fault.KindOf(err) != fault.Conflict {
		t.Errorf("the same version with another file is %v", err)
	}
	must(t, s.Remove(t.Context(), "app.run@"+all[0].Version))
	if left, _ := os.ReadDir(filepath.Join(s.dir, "capabilities")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestFilesFromElsewhereAreNotTaken(t *testing.T) {
	s := newShop(t)
	for name, link := range map[string]string{"absolute": "/etc/passwd", "upwards": "../../secret"} {
		t.Run(name, func(t *testing.T) {
			src := t.TempDir()
			must(t, os.MkdirAll(filepath.Join(src, "code"), 0o755))
			must(t, os.Symlink(link, filepath.Join(src, "code/x")))
			_, err := s.Register(t.Context(), registry.Request{Dir: src, Text: []byte(`(capability "app.run" :version "1.0.0" :effects []
  :runtime {:type :container :image "x" :entrypoint ["x"]} :filesystem {:mounts [{:host "code" :guest "/app" :mode :ro}]})`)})
			if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), link) {
				t.Errorf("it is %v", err)
			}
		})
	}
}

func TestAFileThatIsNotThereIsNamed(t *testing.T) {
	s := newShop(t)
	_, err := s.Register(t.Context(), registry.Request{Dir: t.TempDir(), Text: []byte(`(capability "app.run" :version "1.0.0" :effects []
  :runtime {:type :wasm :module "built/app.wasm"})`)})
	if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "built/app.wasm") || fault.RemedyOf(err) == "" {
		t.Errorf("it is %v", err)
	}
	if left, _ := os.ReadDir(filepath.Join(s.dir, "capabilities")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestAnAnswerThatNobodySawCountsAtTheNextStart(t *testing.T) {
	s := newShop(t)
	r := s.register(fetch("1.0.0", "a.example.com"))
	must(t, s.Close()) // as if it had been killed: the queue still takes answers
	s.answer(r, approval.Allow)
	must(t, errors.Join(s.queue.Close(), s.store.Close()))
	s.open()
	s.becomes("web.fetch", registry.Approved)
	s.close()
	s.open()
	if _, err := s.Resolve("web.fetch"); err != nil {
		t.Errorf("after one more start: %v", err)
	}
}

// pendingStore has capabilities that wait for an approval, and keeps nothing.
type pendingStore struct {
	registry.Store
	pending []registry.Record
}

func (s pendingStore) Capabilities(context.Context) ([]registry.Record, error) { return s.pending, nil }
func (s pendingStore) PutCapability(context.Context, registry.Record) error    { return nil }
func (s pendingStore) Skills(context.Context) ([]registry.Skill, error)        { return nil, nil }
func (s pendingStore) Bundles(context.Context) ([]registry.Bundle, error)      { return nil, nil }

// denied are approvals that expired without an answer.
type denied struct{ registry.Approvals }

func (denied) Open(_ context.Context, r approval.Request) (approval.Request, error) { return r, nil }
func (denied) Wait(_ context.Context, aid id.Approval) (approval.Request, error) {
	return approval.Request{ID: aid, State: approval.Expired}, nil
}
func (denied) Take(_ context.Context, aid id.Approval, _ policy.Question) (approval.Request, error) {
	return approval.Request{ID: aid}, nil
}

// An outcome that is known already counts while Open still reads which versions are pending.
// The race detector reports if Open reads without the lock.
func TestOpenWithAnsweredApprovals(t *testing.T) {
	const count = 50
	s := pendingStore{}
	for i := range count {
		cid := fmt.Sprintf("web.fetch%d", i)
		source := strings.Replace(fetch("1.0.0", "a.example.com"), "web.fetch", cid, 1)
		s.pending = append(s.pending, registry.Record{ID: cid, Version: "1.0.0", Digest: cid, Source: source, State: registry.Pending})
	}
	trust, err := bundle.OpenTrust(filepath.Join(t.TempDir(), "trust.json"))
	must(t, err)
	r, err := registry.Open(t.Context(), registry.Config{Store: s, Approvals: denied{}, Dir: t.TempDir(), Bundles: t.TempDir(), Trust: trust})
	must(t, err)
	must(t, r.Close()) // waits until all answers count
	for _, rec := range r.List() {
		if rec.State != registry.Refused {
			t.Errorf("%s is %s, want %s", rec.ID, rec.State, registry.Refused)
		}
	}
	if n := len(r.List()); n != count {
		t.Errorf("%d capabilities, want %d", n, count)
	}
}

func TestWhatIsRevokedIsNotCalled(t *testing.T) {
	s := newShop(t)
	var dropped []string
	s.close()
	s.cfg.Dropped = func(_ context.Context, c *engine.Installed, purge bool) error {
		dropped = append(dropped, fmt.Sprintf("%s %v", c.ID, purge))
		return nil
	}
	s.open()
	s.register(double)
	_, err := s.Revoke(t.Context(), "math.double", "it is wrong")
	must(t, err)
	if _, err := s.Resolve("math.double"); fault.KindOf(err) != fault.Denied || !strings.Contains(err.Error(), "it is wrong") {
		t.Errorf("to call it is %v", err)
	}
	must(t, s.Remove(t.Context(), "math.double"))
	if want := []string{"math.double false", "math.double true"}; !slices.Equal(dropped, want) {
		t.Errorf("dropped: %q", dropped)
	}
	if _, err := s.Resolve("math.duoble"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("what is not there is %v", err)
	}
}

func TestAMisspeltNameIsGuessed(t *testing.T) {
	s := newShop(t)
	s.register(double)
	if _, err := s.Resolve("math.doubel"); !strings.Contains(err.Error(), "math.double?") {
		t.Errorf("it is %v", err)
	}
}

func TestWhatDoesNotCountIsNotKept(t *testing.T) {
	s := newShop(t)
	s.close()
	fail := errors.New("no")
	s.cfg.Changed = func(context.Context, registry.Record, *manifest.Capability) error { return fail }
	s.open()
	if _, err := s.Register(t.Context(), registry.Request{Text: []byte(double)}); !errors.Is(err, fail) {
		t.Errorf("it is %v", err)
	}
	if len(s.List()) != 0 {
		t.Error("it is registered all the same")
	}
}
