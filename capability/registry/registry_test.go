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

	"glasshouse/capability/bundle"
	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/capability/registry"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy"
	"glasshouse/policy/approval"
	"glasshouse/store"
	"glasshouse/store/storetest"
)

// A shop is a registry on a real database and a real approval queue. open and close can be
// called repeatedly to simulate restarts of the daemon.
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

// openOn is like open, but with a wrapper around the store.
func (s *shop) openOn(between func(registry.Store) registry.Store) {
	s.t.Helper()
	var err error
	name := "g.db"
	if s.cfg.Shared != nil {
		name = "shared.db"
	}
	s.store, err = storetest.Open(s.t, filepath.Join(s.dir, name))
	must(s.t, err)
	s.queue, err = approval.New(s.t.Context(), s.store.Approvals(), approval.Config{})
	must(s.t, err)
	s.cfg.Store, s.cfg.Approvals, s.cfg.Dir = between(s.store.Capabilities()), s.queue, filepath.Join(s.dir, "capabilities")
	s.cfg.Bundles = filepath.Join(s.dir, "bundles")
	if s.cfg.Shared == nil {
		s.cfg.Trust, err = bundle.OpenTrust(filepath.Join(s.dir, "trust.json"))
		must(s.t, err)
	}
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
			s.t.Fatalf("state of %s = %s, want %s", ref, r.State, want)
		}
	}
}

// double is a capability without effects.
const double = `(capability "math.double" :version "1.0.0" :effects []
  :runtime {:type :rtfs} :implementation (fn [x] (* 2 x)))`

// fetch returns the manifest of a capability that reaches hosts.
func fetch(version string, hosts ...string) string {
	return fmt.Sprintf(`(capability "web.fetch" :version %q :effects [:network]
  :runtime {:type :container :image "python:3.12-slim" :entrypoint ["python3" "/app/main.py"]}
  :network {:mode :proxy :allowed-hosts ["%s"]})`, version, strings.Join(hosts, `" "`))
}

func TestCapabilityWithoutEffectsNeedsNoApproval(t *testing.T) {
	s := newShop(t)
	if r := s.register(double); r.State != registry.Approved {
		t.Fatalf("state = %s: %v", r.State, r.Widens)
	}
	c, err := s.Resolve("math.double")
	must(t, err)
	if c.Version != "1.0.0" || c.Digest == "" {
		t.Errorf("version = %q, digest = %q", c.Version, c.Digest)
	}
	if len(s.queue.Pending()) != 0 {
		t.Error("an approval was requested")
	}
}

func TestNetworkCapabilityNeedsApproval(t *testing.T) {
	s := newShop(t)
	r := s.register(fetch("1.0.0", "a.example.com"))
	if r.State != registry.Pending || !slices.ContainsFunc(r.Widens, func(w string) bool { return strings.Contains(w, "a.example.com") }) {
		t.Fatalf("state = %s, widens = %q", r.State, r.Widens)
	}
	_, err := s.Resolve("web.fetch")
	if fault.KindOf(err) != fault.Denied || !strings.Contains(fault.RemedyOf(err), string(r.Approval)) {
		t.Errorf("Resolve before the approval = %v (%s)", err, fault.RemedyOf(err))
	}
	if again := s.register(fetch("1.0.0", "a.example.com")); again.Approval != r.Approval || len(s.queue.Pending()) != 1 {
		t.Error("registering the same version again requested another approval")
	}
	s.answer(r, approval.Allow)
	s.becomes("web.fetch", registry.Approved)
	_, err = s.Resolve("web.fetch@1.0.0")
	must(t, err)
}

func TestRefusedCapabilityIsNotCallable(t *testing.T) {
	s := newShop(t)
	r := s.register(fetch("1.0.0", "a.example.com"))
	s.answer(r, approval.Deny)
	if r = s.becomes("web.fetch", registry.Refused); !strings.Contains(r.Why, "because") {
		t.Errorf("reason = %q", r.Why)
	}
	if _, err := s.Resolve("web.fetch"); fault.KindOf(err) != fault.Denied {
		t.Errorf("Resolve = %v", err)
	}
	_, err := s.Register(t.Context(), registry.Request{Text: []byte(fetch("1.0.0", "a.example.com"))})
	if fault.KindOf(err) != fault.Denied {
		t.Errorf("registering it again = %v", err)
	}
	all, err := s.Register(t.Context(), registry.Request{Text: []byte(fetch("1.0.0", "a.example.com")), Again: true})
	must(t, err)
	if all[0].State != registry.Pending {
		t.Errorf("state after the second approval = %s", all[0].State)
	}
}

func TestWiderVersionNeedsApproval(t *testing.T) {
	s := newShop(t)
	s.answer(s.register(fetch("1.0.0", "a.example.com")), approval.Allow)
	s.becomes("web.fetch", registry.Approved)
	if r := s.register(fetch("1.0.1", "a.example.com")); r.State != registry.Approved {
		t.Errorf("state of a version with the same effects = %s: %q", r.State, r.Widens)
	}
	r := s.register(fetch("1.1.0", "a.example.com", "b.example.com"))
	if r.State != registry.Pending || len(r.Widens) != 1 || !strings.Contains(r.Widens[0], "b.example.com") {
		t.Errorf("state of a version with one more host = %s: %q", r.State, r.Widens)
	}
	c, err := s.Resolve("web.fetch")
	must(t, err)
	if c.Version != "1.0.1" {
		t.Errorf("Resolve before the approval = %s", c.Version)
	}
}

func TestVersionIsImmutable(t *testing.T) {
	s := newShop(t)
	s.answer(s.register(fetch("1.0.0", "a.example.com")), approval.Allow)
	s.becomes("web.fetch", registry.Approved)
	_, err := s.Register(t.Context(), registry.Request{Text: []byte(fetch("1.0.0", "b.example.com"))})
	if fault.KindOf(err) != fault.Conflict {
		t.Errorf("Register of other contents with the same version = %v", err)
	}
	_, err = s.Register(t.Context(), registry.Request{Text: []byte(fetch("0.9.0", "a.example.com"))})
	if fault.KindOf(err) != fault.Conflict {
		t.Errorf("Register of an older version = %v", err)
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
		t.Errorf("mode of the program = %v, %v", st.Mode(), err)
	}
	if _, err := s.Register(t.Context(), registry.Request{Text: []byte(text), Dir: src}); fault.KindOf(err) != fault.Conflict {
		t.Errorf("Register of the same version with another file = %v", err)
	}
	must(t, s.Remove(t.Context(), "app.run@"+all[0].Version))
	if left, _ := os.ReadDir(filepath.Join(s.dir, "capabilities")); len(left) != 0 {
		t.Errorf("left-over files: %v", left)
	}
}

func TestFilesOutsideDirectoryAreRefused(t *testing.T) {
	s := newShop(t)
	for name, link := range map[string]string{"absolute": "/etc/passwd", "upwards": "../../secret"} {
		t.Run(name, func(t *testing.T) {
			src := t.TempDir()
			must(t, os.MkdirAll(filepath.Join(src, "code"), 0o755))
			must(t, os.Symlink(link, filepath.Join(src, "code/x")))
			_, err := s.Register(t.Context(), registry.Request{Dir: src, Text: []byte(`(capability "app.run" :version "1.0.0" :effects []
  :runtime {:type :container :image "x" :entrypoint ["x"]} :filesystem {:mounts [{:host "code" :guest "/app" :mode :ro}]})`)})
			if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), link) {
				t.Errorf("Register = %v", err)
			}
		})
	}
}

func TestMissingFileIsNamed(t *testing.T) {
	s := newShop(t)
	_, err := s.Register(t.Context(), registry.Request{Dir: t.TempDir(), Text: []byte(`(capability "app.run" :version "1.0.0" :effects []
  :runtime {:type :wasm :module "built/app.wasm"})`)})
	if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "built/app.wasm") || fault.RemedyOf(err) == "" {
		t.Errorf("Register = %v", err)
	}
	if left, _ := os.ReadDir(filepath.Join(s.dir, "capabilities")); len(left) != 0 {
		t.Errorf("left-over files: %v", left)
	}
}

func TestOutcomeIsAppliedAtNextStart(t *testing.T) {
	s := newShop(t)
	r := s.register(fetch("1.0.0", "a.example.com"))
	must(t, s.Close()) // as if the daemon had been killed: the queue still accepts answers
	s.answer(r, approval.Allow)
	must(t, errors.Join(s.queue.Close(), s.store.Close()))
	s.open()
	s.becomes("web.fetch", registry.Approved)
	s.close()
	s.open()
	if _, err := s.Resolve("web.fetch"); err != nil {
		t.Errorf("after another restart: %v", err)
	}
}

// pendingStore has capabilities with pending approvals and discards writes.
type pendingStore struct {
	registry.Store
	pending []registry.Record
}

func (s pendingStore) Capabilities(context.Context) ([]registry.Record, error) { return s.pending, nil }
func (s pendingStore) Change(context.Context, int64, registry.Change) error    { return nil }
func (s pendingStore) Version(context.Context) (int64, error)                  { return 1, nil }
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

// An outcome that is already known is applied while Open is still reading the pending
// versions. The race detector reports if Open reads without the lock.
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
	must(t, r.Close()) // waits until all outcomes are applied
	for _, rec := range r.List() {
		if rec.State != registry.Refused {
			t.Errorf("%s is %s, want %s", rec.ID, rec.State, registry.Refused)
		}
	}
	if n := len(r.List()); n != count {
		t.Errorf("%d capabilities, want %d", n, count)
	}
}

func TestRevokedCapabilityIsNotCallable(t *testing.T) {
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
		t.Errorf("Resolve = %v", err)
	}
	must(t, s.Remove(t.Context(), "math.double"))
	if want := []string{"math.double false", "math.double true"}; !slices.Equal(dropped, want) {
		t.Errorf("dropped: %q", dropped)
	}
	if _, err := s.Resolve("math.duoble"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("Revoke of an unknown version = %v", err)
	}
}

func TestMisspelledNameGetsSuggestion(t *testing.T) {
	s := newShop(t)
	s.register(double)
	if _, err := s.Resolve("math.doubel"); !strings.Contains(err.Error(), "math.double?") {
		t.Errorf("Resolve = %v", err)
	}
}

func TestFailedPrepareRegistersNothing(t *testing.T) {
	s := newShop(t)
	s.close()
	fail := errors.New("no")
	s.cfg.Changed = func(context.Context, registry.Record, *manifest.Capability) error { return fail }
	s.open()
	if _, err := s.Register(t.Context(), registry.Request{Text: []byte(double)}); !errors.Is(err, fail) {
		t.Errorf("Register = %v", err)
	}
	if len(s.List()) != 0 {
		t.Error("the capability is registered although Prepare failed")
	}
}
