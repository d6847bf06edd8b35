package registry_test

import (
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
	"glasshouse/fault"
	"glasshouse/registry"
)

// A press makes signed bundles.
type press struct {
	t     *testing.T
	key   *bundle.SecretKey
	until time.Time // that signatures are good; zero: for ever
}

// newPress is a press whose bundles s takes.
func newPress(s *shop) *press {
	s.t.Helper()
	k, err := bundle.GenerateKey()
	must(s.t, err)
	must(s.t, s.cfg.Trust.Add("acme", bundle.Standard, k.Public()))
	return &press{t: s.t, key: k}
}

// places makes a version of a bundle, whose capability reaches hosts.
func (p *press) places(version, capability string, hosts ...string) string {
	p.t.Helper()
	return p.pack(p.dir(version, capability, hosts...))
}

// dir is places in a directory, not yet signed.
func (p *press) dir(version, capability string, hosts ...string) string {
	p.t.Helper()
	dir := p.t.TempDir()
	quoted := `"` + strings.Join(hosts, `", "`) + `"`
	for name, text := range map[string]string{
		"metadata.json": fmt.Sprintf(`{"name": "local-places", "version": %q, "publisher": "acme", "tier": "standard", "effects": ["network"], "hosts": [%s]}`, version, quoted),
		"skill.yaml":    fmt.Sprintf("---\nname: local-places\ndescription: Places nearby\nversion: %q\nccos:\n  capabilities: [%s]\n---\n\n# Places\n\nUse %s.\n", version, capability, capability),
		"capabilities/search.rtfs": fmt.Sprintf(`(capability %q :version %q :effects [:network]
  :runtime {:type :container :rootfs "debian" :entrypoint ["python3" "/app/main.py"]}
  :filesystem {:mounts [{:host "src" :guest "/app" :mode :ro}]}
  :network {:mode :proxy :allowed-hosts [%s]})`, capability, version, strings.ReplaceAll(quoted, ",", "")),
		"src/main.py": "print('" + version + "')\n",
	} {
		must(p.t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		must(p.t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	return dir
}

func (p *press) pack(dir string) string {
	p.t.Helper()
	b, err := bundle.Sign(dir, p.key, p.until)
	must(p.t, err)
	file := filepath.Join(p.t.TempDir(), "b.tar.gz")
	must(p.t, b.Pack(file))
	return file
}

func (s *shop) install(path string) registry.Bundle {
	s.t.Helper()
	b, err := s.Install(s.t.Context(), path, "anna")
	must(s.t, err)
	return b
}

// says answers what a bundle waits for.
func (s *shop) says(b registry.Bundle, v approval.Verdict) {
	s.t.Helper()
	_, err := s.queue.Answer(s.t.Context(), b.Next.Approval, approval.Answer{
		Verdict: v, By: approval.Person{ID: "uid 0", Name: "anna", Role: "admin"}, Channel: "api", Reason: "because",
	})
	must(s.t, err)
}

// installed waits until nothing of a bundle waits.
func (s *shop) installed(name string) registry.Bundle {
	s.t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		for _, b := range s.Bundles() {
			if b.Name == name && (b.Next == nil || b.Next.State != registry.Pending) {
				return b
			}
		}
	}
	s.t.Fatalf("%s still waits", name)
	return registry.Bundle{}
}

func (s *shop) find(name string) (registry.Bundle, bool) {
	all := s.Bundles()
	i := slices.IndexFunc(all, func(b registry.Bundle) bool { return b.Name == name })
	if i < 0 {
		return registry.Bundle{}, false
	}
	return all[i], true
}

func TestABundleIsInstalledWhenAPersonHasSeenWhatItMayDo(t *testing.T) {
	s := newShop(t)
	p := newPress(s)
	b := s.install(p.places("1.0.0", "places.search", "a.example.com"))
	if b.Next == nil || b.Next.State != registry.Pending || b.Now != nil {
		t.Fatalf("it is %+v", b)
	}
	if _, err := s.Resolve("places.search"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("its capability, before: %v", err)
	}
	asked, err := s.queue.Get(t.Context(), b.Next.Approval)
	must(t, err)
	if !strings.Contains(string(asked.Context), "a.example.com") || asked.Question.Attributes["publisher"] != "acme" {
		t.Errorf("who is asked sees %v, %s", asked.Question.Attributes, asked.Context)
	}
	s.says(b, approval.Allow)
	if b = s.installed("local-places"); b.Now == nil || b.Now.Version != "1.0.0" {
		t.Fatalf("then it is %+v", b)
	}
	c, err := s.Resolve("places.search")
	must(t, err)
	if text, err := os.ReadFile(filepath.Join(c.Dir, "src/main.py")); string(text) != "print('1.0.0')\n" {
		t.Errorf("its program is %q, %v", text, err)
	}
	if _, _, k, err := s.Skill("local-places"); err != nil || len(k.Capabilities) != 1 {
		t.Errorf("its skill is %+v, %v", k, err)
	}
}

func TestARefusedBundleLeavesNothing(t *testing.T) {
	s := newShop(t)
	p := newPress(s)
	s.says(s.install(p.places("1.0.0", "places.search", "a.example.com")), approval.Deny)
	if b := s.installed("local-places"); b.Now != nil || b.Next.State != registry.Refused || !strings.Contains(b.Next.Why, "because") {
		t.Errorf("it is %+v", b.Next)
	}
	if len(s.List()) != 0 || len(s.Skills()) != 0 {
		t.Errorf("there are %v, %v", s.List(), s.Skills())
	}
	must(t, s.RemoveBundle(t.Context(), "local-places"))
	if len(s.Bundles()) != 0 {
		t.Errorf("left: %+v", s.Bundles())
	}
}

func TestAnUpdateTakesThePlaceOfWhatWasThere(t *testing.T) {
	s := newShop(t)
	p := newPress(s)
	s.says(s.install(p.places("1.0.0", "places.search", "a.example.com")), approval.Allow)
	s.installed("local-places")
	b := s.install(p.places("2.0.0", "places.find", "b.example.com"))
	if b.Now.Version != "1.0.0" || b.Next.Version != "2.0.0" {
		t.Errorf("until then it is %+v", b)
	}
	s.says(b, approval.Allow)
	if b = s.installed("local-places"); b.Now.Version != "2.0.0" {
		t.Fatalf("then it is %+v", b.Now)
	}
	if _, err := s.Resolve("places.search"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("what it has no longer is %v", err)
	}
	_, err := s.Resolve("places.find")
	must(t, err)
	if _, err := s.Install(t.Context(), p.places("1.5.0", "places.find", "b.example.com"), "anna"); err == nil || bundle.ReasonOf(err) != bundle.Downgrade && !strings.Contains(err.Error(), "2.0.0") {
		t.Errorf("to go back is %v", err)
	}
	must(t, s.RemoveBundle(t.Context(), "local-places"))
	if len(s.List()) != 0 || len(s.Skills()) != 0 || len(s.Bundles()) != 0 {
		t.Errorf("left: %v, %v, %v", s.List(), s.Skills(), s.Bundles())
	}
}

func TestABundleOfAStrangerIsRefusedAtOnce(t *testing.T) {
	s := newShop(t)
	k, err := bundle.GenerateKey()
	must(t, err)
	_, err = s.Install(t.Context(), (&press{t: t, key: k}).places("1.0.0", "places.search", "a.example.com"), "anna")
	if bundle.ReasonOf(err) != bundle.UnknownPublisher {
		t.Errorf("it is %v", err)
	}
	if len(s.queue.Pending()) != 0 {
		t.Error("a person is asked")
	}
}

func TestAnInstallationOutlivesTheDaemon(t *testing.T) {
	s := newShop(t)
	p := newPress(s)
	file := p.places("1.0.0", "places.search", "a.example.com")
	b := s.install(file)
	must(t, os.Remove(file)) // what was uploaded is gone
	must(t, s.Close())       // as if it had been killed
	s.says(b, approval.Allow)
	must(t, errors.Join(s.queue.Close(), s.store.Close()))
	s.open()
	if b = s.installed("local-places"); b.Now == nil {
		t.Fatalf("it is %+v", b.Next)
	}
	s.close()
	s.open()
	_, err := s.Resolve("places.search")
	must(t, err)
}

func TestASkillWhoseCapabilityWasRevokedIsRefused(t *testing.T) {
	s := newShop(t)
	text := []byte("---\nname: doubling\ndescription: Double numbers\nversion: \"1.0.0\"\nccos:\n  capabilities: [math.double]\n---\n\nUse math.double.\n")
	if _, _, err := s.AddSkill(t.Context(), "SKILL.md", text, "anna", ""); fault.KindOf(err) != fault.Denied || !strings.Contains(err.Error(), "math.double") {
		t.Errorf("before its capability is there: %v", err)
	}
	s.register(double)
	_, _, err := s.AddSkill(t.Context(), "SKILL.md", text, "anna", "")
	must(t, err)
	_, err = s.Revoke(t.Context(), "math.double", "wrong")
	must(t, err)
	if _, _, _, err := s.Skill("doubling"); fault.KindOf(err) != fault.Denied {
		t.Errorf("then it is %v", err)
	}
	s.close()
	s.open()
	if all := s.Skills(); len(all) != 1 || all[0].Name != "doubling" {
		t.Errorf("after a start there are %v", all)
	}
	must(t, s.RemoveSkill(t.Context(), "doubling"))
}

func TestWhatIsTrustedNoLongerIsCalledNoLonger(t *testing.T) {
	s := newShop(t)
	p := newPress(s)
	file := p.places("1.0.0", "places.search", "a.example.com")
	s.says(s.install(file), approval.Allow)
	b := s.installed("local-places")
	key := p.key.Public()
	fresh, err := bundle.GenerateKey()
	must(t, err)

	called := func(why bundle.Reason) {
		t.Helper()
		must(t, s.TrustChanged(t.Context()))
		_, err := s.Resolve("places.search")
		if why == "" {
			must(t, errors.Join(err, s.Barred("local-places")))
			return
		}
		if fault.KindOf(err) != fault.Denied || !strings.Contains(err.Error(), string(why)) || bundle.ReasonOf(s.Barred("local-places")) != why {
			t.Errorf("it is %v, want %s", err, why)
		}
		if _, _, _, err := s.Skill("local-places"); err == nil {
			t.Error("agents are still given its skill")
		}
		if r, _, err := s.Find("places.search"); err != nil || r.State != registry.Revoked {
			t.Errorf("it is listed as %s, %v", r.State, err)
		}
	}
	called("")
	must(t, s.cfg.Trust.Rotate(key, fresh.Public())) // what the old one signed stays good
	called("")
	must(t, s.cfg.Trust.Add("acme", bundle.ReadOnly, fresh.Public()))
	called(bundle.TierExceeded)
	must(t, s.cfg.Trust.Remove("acme"))
	called(bundle.UnknownPublisher)
	s.close()
	s.open()
	called(bundle.UnknownPublisher) // also at the next start
	must(t, s.cfg.Trust.Add("acme", bundle.Standard, key))
	called("")
	must(t, s.cfg.Trust.RevokeBundle(b.Now.Digest, "it is wrong"))
	called(bundle.RevokedBundle)
	must(t, s.cfg.Trust.RevokeKey(key, "it was lost"))
	called(bundle.RevokedKey)
	must(t, s.RemoveBundle(t.Context(), "local-places"))
	if len(s.List()) != 0 {
		t.Errorf("left: %v", s.List())
	}
}

func TestABundleWhoseTimeIsOverIsCalledNoLongerUntilItIsSignedAnew(t *testing.T) {
	s := newShop(t)
	p := newPress(s)
	p.until = time.Now().Add(6 * time.Second).Truncate(time.Second)
	dir := p.dir("1.0.0", "places.search", "a.example.com")
	s.says(s.install(p.pack(dir)), approval.Allow)
	s.installed("local-places")
	for end := time.Now().Add(30 * time.Second); s.Barred("local-places") == nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it is good for ever")
		}
	}
	if _, err := s.Resolve("places.search"); bundle.ReasonOf(s.Barred("local-places")) != bundle.Expired || fault.KindOf(err) != fault.Denied {
		t.Errorf("it is %v", err)
	}
	p.until = time.Time{}
	s.install(p.pack(dir)) // the same content: nobody is asked
	s.installed("local-places")
	_, err := s.Resolve("places.search")
	must(t, err)
}

func TestABundleTakesNothingAwayThatWasRegisteredByItself(t *testing.T) {
	s := newShop(t)
	p := newPress(s)
	dir := p.dir("1.0.0", "places.search", "a.example.com")
	text, err := os.ReadFile(filepath.Join(dir, "capabilities/search.rtfs"))
	must(t, err)
	all, err := s.Register(t.Context(), registry.Request{File: "m.rtfs", Text: text, Dir: dir, By: "bert"})
	must(t, err)
	if all[0].State != registry.Pending {
		t.Fatalf("it is %s", all[0].State)
	}
	s.says(s.install(p.pack(dir)), approval.Allow)
	s.installed("local-places")
	// What was asked before is withdrawn once the bundle is recorded.
	for end := time.Now().Add(30 * time.Second); len(s.queue.Pending()) != 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if _, err := s.Resolve("places.search"); err != nil || len(s.queue.Pending()) != 0 {
		t.Errorf("what was allowed with the bundle: %v; still asked: %v", err, s.queue.Pending())
	}
	must(t, s.RemoveBundle(t.Context(), "local-places"))

	s.register(double)
	dir = p.dir("2.0.0", "places.search", "a.example.com")
	must(t, os.WriteFile(filepath.Join(dir, "capabilities/double.rtfs"), []byte(double), 0o644))
	s.says(s.install(p.pack(dir)), approval.Allow)
	s.installed("local-places")
	must(t, s.RemoveBundle(t.Context(), "local-places"))
	_, err = s.Resolve("math.double")
	must(t, err)
}

func TestAnOlderVersionInPlaceOfARevokedOneIsCalledWithAWarning(t *testing.T) {
	s := newShop(t)
	p := newPress(s)
	s.register(double)
	dir := p.dir("2.0.0", "places.search", "a.example.com")
	newer := strings.Replace(double, "1.0.0", "2.0.0", 1)
	must(t, os.WriteFile(filepath.Join(dir, "capabilities/double.rtfs"), []byte(newer), 0o644))
	s.says(s.install(p.pack(dir)), approval.Allow)
	s.installed("local-places")

	resolves := func(ref, version string, warned ...string) {
		t.Helper()
		c, err := s.Resolve(ref)
		must(t, err)
		if c.Version != version || (c.Warning != "") != (len(warned) > 0) {
			t.Fatalf("%s is version %s, with the warning %q", ref, c.Version, c.Warning)
		}
		for _, w := range warned {
			if !strings.Contains(c.Warning, w) {
				t.Errorf("the warning %q does not mention %q", c.Warning, w)
			}
		}
	}
	resolves("math.double", "2.0.0")
	must(t, s.cfg.Trust.RevokeKey(p.key.Public(), "it was lost"))
	must(t, s.TrustChanged(t.Context()))
	resolves("math.double", "1.0.0", "version 2.0.0 is revoked", "it was lost", "version 1.0.0", "registered by itself", "capability revoke math.double@1.0.0")
	resolves("math.double@1.0.0", "1.0.0")
	resolves("math.double", "1.0.0", "2.0.0") // the version itself was not changed by the first warning

	// A newer version that is good is called without a warning.
	s.register(strings.Replace(double, "1.0.0", "3.0.0", 1))
	resolves("math.double", "3.0.0")
}
