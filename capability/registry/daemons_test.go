package registry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"glasshouse/capability/bundle"
	"glasshouse/capability/engine"
	"glasshouse/capability/registry"
	"glasshouse/fault"
	"glasshouse/policy/approval"
	"glasshouse/store"
	"glasshouse/store/storetest"
)

// A group is several registries, of the daemons a, b and so on, on one database. Each has its own
// directory and its own approval queue.
type group struct {
	db    *store.Store
	shops map[string]*shop

	mu sync.Mutex
	// +checklocks:mu
	down map[string]bool // daemons that do not answer
	// +checklocks:mu
	forged []byte // what daemons answer instead of their files
	// +checklocks:mu
	dropped map[string][]string // capabilities whose resources a daemon has released
}

func newGroup(t *testing.T, names ...string) *group {
	t.Helper()
	db, err := storetest.Open(t, "")
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	g := &group{db: db, shops: map[string]*shop{}, down: map[string]bool{}, dropped: map[string][]string{}}
	for _, name := range names {
		s := &shop{t: t, dir: t.TempDir()}
		s.cfg.Shared = &registry.Shared{
			Node: name,
			Nodes: func(context.Context) (others []string, err error) {
				for _, n := range names {
					if n != name {
						others = append(others, n)
					}
				}
				return others, nil
			},
			Fetch: g.fetch,
		}
		s.cfg.Dropped = func(_ context.Context, c *engine.Installed, _ bool) error {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.dropped[name] = append(g.dropped[name], c.ID)
			return nil
		}
		g.shops[name] = s
		g.start(name)
		t.Cleanup(s.close)
	}
	return g
}

// start opens the registry of a daemon.
func (g *group) start(name string) {
	s := g.shops[name]
	s.t.Helper()
	s.openOn(func(registry.Store) registry.Store {
		var err error
		s.cfg.Trust, err = bundle.ShareTrust(s.t.Context(), g.db.Capabilities())
		must(s.t, err)
		return g.db.Capabilities()
	})
}

func (g *group) fetch(ctx context.Context, node string, f registry.Files) (io.ReadCloser, error) {
	g.mu.Lock()
	down, forged := g.down[node], g.forged
	g.mu.Unlock()
	if down {
		return nil, fault.Newf(fault.Unavailable, "test", node, "no answer")
	}
	if forged != nil {
		return io.NopCloser(bytes.NewReader(forged)), nil
	}
	var out bytes.Buffer
	err := g.shops[node].Send(ctx, f, &out)
	return io.NopCloser(&out), err
}

func (g *group) setDown(node string, down bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.down[node] = down
}

func (g *group) droppedAt(name string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Join(g.dropped[name], " ")
}

// program registers a capability with a file and approves it at the same daemon.
func (s *shop) program(version, text string) registry.Record {
	s.t.Helper()
	dir := s.t.TempDir()
	must(s.t, os.Mkdir(filepath.Join(dir, "src"), 0o755))
	must(s.t, os.WriteFile(filepath.Join(dir, "src", "main"), []byte(text), 0o755))
	must(s.t, os.Symlink("main", filepath.Join(dir, "src", "link")))
	all, err := s.registerShared(s.t, dir, version, "a.program")
	must(s.t, err)
	if all[0].State == registry.Pending {
		s.answer(all[0], approval.Allow)
	}
	return s.becomes("a.program@"+version, registry.Approved)
}

func (s *shop) refresh() {
	s.t.Helper()
	must(s.t, s.Refresh(s.t.Context()))
}

func TestDaemonsShareCapabilities(t *testing.T) {
	g := newGroup(t, "a", "b")
	a, b := g.shops["a"], g.shops["b"]
	a.register(double)
	if _, err := b.Resolve("math.double"); err != nil { // at once
		t.Errorf("Resolve at the other daemon: %v", err)
	}
	rec := a.program("1.0.0", "#!/bin/true")
	in, err := b.Resolve("a.program")
	if err != nil {
		t.Fatalf("Resolve at the other daemon after the approval: %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(in.Dir, "src", "link")); string(text) != "#!/bin/true" || in.Digest != rec.Digest {
		t.Errorf("the copied program = %q, %v, digest %s, want that of the other daemon, %s", text, err, in.Digest, rec.Digest)
	}
	if st, err := os.Stat(filepath.Join(in.Dir, "src", "main")); err != nil || st.Mode().Perm() != 0o555 {
		t.Errorf("mode of the copied program = %v, %v, want 0555", st.Mode(), err)
	}

	_, err = b.Revoke(t.Context(), "a.program", "it is wrong")
	must(t, err)
	a.refresh()
	if _, err := a.Resolve("a.program"); fault.KindOf(err) != fault.Denied || !strings.Contains(err.Error(), "it is wrong") {
		t.Errorf("Resolve after the revocation by the other daemon: %v", err)
	}
	if got := g.droppedAt("a"); got != "a.program" {
		t.Errorf("resources released at a of %q, want of a.program", got)
	}

	dir := in.Dir
	must(t, a.Remove(t.Context(), "a.program"))
	b.refresh()
	if _, _, err := b.Find("a.program"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("Find after the removal by the other daemon: %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the files of a removed capability: %v, want none", err)
	}

	_, _, err = b.AddSkill(t.Context(), "double.md", []byte("---\nname: double\ndescription: d\nversion: \"1.0.0\"\nccos:\n  capabilities: [math.double]\n---\n\nUse math.double.\n"), "anna", "")
	must(t, err)
	a.refresh()
	if _, _, _, err := a.Skill("double"); err != nil {
		t.Errorf("Skill that another daemon has added: %v", err)
	}
}

// The outcome of an approval at one daemon applies to all, also after a restart.
func TestApprovalBelongsToOneDaemon(t *testing.T) {
	g := newGroup(t, "a", "b")
	a, b := g.shops["a"], g.shops["b"]
	first := a.register(fetch("1.0.0", "a.example.com"))
	b.refresh()
	b.close()
	g.start("b")
	if n := len(b.queue.Pending()); n != 0 {
		t.Fatalf("the other daemon requests %d approvals, want none", n)
	}
	// Registered again at the other daemon, perhaps because the first is lost.
	second := b.register(fetch("1.0.0", "a.example.com"))
	if second.Approval == "" || second.Approval == first.Approval || second.Node != "b" {
		t.Fatalf("registered again at another daemon: approval %s of node %s, want a new one of b", second.Approval, second.Node)
	}
	a.refresh()
	if n := len(a.queue.Pending()); n != 0 {
		t.Errorf("the first daemon still requests %d approvals, want none", n)
	}
	b.answer(second, approval.Allow)
	b.becomes("web.fetch", registry.Approved)
	a.refresh()
	a.becomes("web.fetch", registry.Approved)
}

func TestDaemonsRegisterAtOnce(t *testing.T) {
	g := newGroup(t, "a", "b", "c")
	const count = 20
	var wg sync.WaitGroup
	for _, s := range g.shops {
		wg.Go(func() {
			for i := range count {
				text := strings.Replace(double, "math.double", fmt.Sprintf("math.%s%d", s.cfg.Shared.Node, i), 1)
				if _, err := s.Register(t.Context(), registry.Request{File: "m.rtfs", Text: []byte(text)}); err != nil {
					t.Errorf("Register at %s: %v", s.cfg.Shared.Node, err)
				}
			}
		})
	}
	wg.Wait()
	for name, s := range g.shops {
		s.refresh()
		if n := len(s.List()); n != 3*count {
			t.Errorf("%s has %d capabilities, want %d", name, n, 3*count)
		}
	}
	// Two daemons register different contents as one version: one of them is refused.
	errs := make([]error, 2)
	for i, name := range []string{"a", "b"} {
		wg.Go(func() {
			text := strings.Replace(double, "* 2 x", fmt.Sprintf("* %d x", i+3), 1)
			_, errs[i] = g.shops[name].Register(t.Context(), registry.Request{File: "m.rtfs", Text: []byte(text)})
		})
	}
	wg.Wait()
	if fault.KindOf(errors.Join(errs...)) != fault.Conflict || (errs[0] == nil) == (errs[1] == nil) {
		t.Errorf("two contents of one version: %v and %v, want one Conflict", errs[0], errs[1])
	}
}

func TestDaemonsShareBundles(t *testing.T) {
	g := newGroup(t, "a", "b")
	a, b := g.shops["a"], g.shops["b"]
	p := newPress(a)
	a.says(a.install(p.places("1.0.0", "places.search", "a.example.com")), approval.Allow)
	a.installed("local-places")
	b.refresh()
	if _, err := b.Resolve("places.search"); err != nil {
		t.Fatalf("Resolve at the other daemon: %v", err)
	}
	if _, _, _, err := b.Skill("local-places"); err != nil {
		t.Errorf("Skill at the other daemon: %v", err)
	}
	// The other daemon compares an update with its copy of the installed version.
	next := b.install(p.places("2.0.0", "places.search", "a.example.com", "b.example.com"))
	asked, err := b.queue.Get(t.Context(), next.Next.Approval)
	must(t, err)
	if !strings.Contains(string(asked.Context), "b.example.com") {
		t.Errorf("the approval request of the update shows %s, want the new host", asked.Context)
	}
	b.says(next, approval.Allow)
	b.installed("local-places")
	a.refresh()
	if in, err := a.Resolve("places.search"); err != nil || in.Version != "2.0.0" {
		t.Errorf("Resolve after the update by the other daemon = %+v, %v, want version 2.0.0", in, err)
	}

	must(t, b.cfg.Trust.RevokeKey(t.Context(), p.key.Public(), "it was lost"))
	a.refresh()
	if _, err := a.Resolve("places.search"); fault.KindOf(err) != fault.Denied || !strings.Contains(err.Error(), "it was lost") {
		t.Errorf("Resolve after another daemon has revoked the key: %v, want Denied", err)
	}
	if !strings.Contains(g.droppedAt("a"), "places.search") {
		t.Error("the capability of a bundle that is no longer trusted keeps its resources")
	}
	must(t, a.RemoveBundle(t.Context(), "local-places"))
	b.refresh()
	if len(b.Bundles())+len(b.List())+len(b.Skills()) != 0 {
		t.Errorf("after another daemon has removed the bundle: %v, %v, %v, want nothing", b.Bundles(), b.List(), b.Skills())
	}
}

func TestFilesOfOtherDaemonsAreVerified(t *testing.T) {
	g := newGroup(t, "a", "b")
	a, b := g.shops["a"], g.shops["b"]
	a.program("1.0.0", "true")
	other := a.program("1.1.0", "other")

	g.setDown("a", true)
	if err := b.Refresh(t.Context()); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("Refresh without the only daemon with the files: %v, want Unavailable", err)
	}
	if _, err := b.Resolve("a.program@1.0.0"); fault.KindOf(err) != fault.Unavailable || fault.RemedyOf(err) == "" {
		t.Errorf("Resolve without the files: %v, want Unavailable and a remedy", err)
	}

	g.setDown("a", false)
	var forged bytes.Buffer
	must(t, a.Send(t.Context(), registry.Files{Digest: other.Files}, &forged))
	g.mu.Lock()
	g.forged = forged.Bytes()
	g.mu.Unlock()
	a.register(double) // a change, after which b tries again
	if err := b.Refresh(t.Context()); err == nil || !strings.Contains(err.Error(), "digest") {
		t.Errorf("Refresh with other files: %v, want an error about their digest", err)
	}
	if _, err := b.Resolve("a.program@1.0.0"); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("Resolve after other files were received: %v, want Unavailable", err)
	}
	g.mu.Lock()
	g.forged = []byte("garbage")
	g.mu.Unlock()
	must(t, a.Remove(t.Context(), "math.double"))
	if err := b.Refresh(t.Context()); err == nil {
		t.Error("Refresh with garbage succeeds")
	}
	g.mu.Lock()
	g.forged = nil
	g.mu.Unlock()
	a.register(double)
	b.refresh()
	if _, err := b.Resolve("a.program@1.0.0"); err != nil {
		t.Errorf("Resolve after the files were copied: %v", err)
	}
	for _, digest := range []string{"", "../../g.db", "sha256:" + strings.Repeat("g", 64), "sha256:" + strings.Repeat("../", 21) + "a"} {
		if err := a.Send(t.Context(), registry.Files{Digest: digest}, io.Discard); fault.KindOf(err) != fault.Invalid {
			t.Errorf("Send(%q) = %v, want Invalid", digest, err)
		}
	}
	if err := a.Send(t.Context(), registry.Files{Digest: strings.Repeat("a", 64)}, io.Discard); fault.KindOf(err) != fault.NotFound {
		t.Errorf("Send of unknown files = %v, want NotFound", err)
	}
}

func TestMoveToSharedStore(t *testing.T) {
	g := newGroup(t, "a", "b")
	b := g.shops["b"]
	b.register(double)
	b.register(strings.Replace(double, "math.double", "math.same", 1))

	own := newShop(t)
	p := newPress(own)
	own.says(own.install(p.places("1.0.0", "places.search", "a.example.com")), approval.Allow)
	own.installed("local-places")
	own.register(strings.Replace(double, "* 2 x", "+ x x", 1)) // another content
	own.register(strings.Replace(double, "math.double", "math.same", 1))
	own.register(strings.Replace(double, "math.double", "math.triple", 1))
	own.program("1.0.0", "true")

	a := g.shops["a"]
	a.dir = own.dir
	a.cfg.Shared.Own = own.store.Capabilities()
	for range 2 {
		a.close()
		g.start("a")
	}
	must(t, a.cfg.Trust.Take(t.Context(), own.cfg.Trust))
	for _, s := range g.shops {
		s.refresh()
		for _, ref := range []string{"places.search", "math.triple", "math.same", "a.program"} {
			if _, err := s.Resolve(ref); err != nil {
				t.Errorf("Resolve %s at %s: %v", ref, s.cfg.Shared.Node, err)
			}
		}
	}
	if all, err := own.store.Capabilities().Capabilities(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("the own store has %d capabilities, %v, want the one that was not moved", len(all), err)
	}
}
