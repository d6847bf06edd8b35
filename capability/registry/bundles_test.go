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

	"glasshouse/capability/bundle"
	"glasshouse/capability/registry"
	"glasshouse/fault"
	"glasshouse/policy/approval"
)

// A press builds signed bundles.
type press struct {
	t     *testing.T
	key   *bundle.SecretKey
	until time.Time // expiry of the signatures; zero: none
}

// newPress returns a press whose key s trusts.
func newPress(s *shop) *press {
	s.t.Helper()
	k, err := bundle.GenerateKey()
	must(s.t, err)
	must(s.t, s.cfg.Trust.Add(s.t.Context(), "acme", bundle.Standard, k.Public()))
	return &press{t: s.t, key: k}
}

// places builds a version of a bundle whose capability may reach hosts.
func (p *press) places(version, capability string, hosts ...string) string {
	p.t.Helper()
	return p.pack(p.dir(version, capability, hosts...))
}

// dir writes the bundle to a directory, without a signature.
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

// says answers the pending approval request of a bundle.
func (s *shop) says(b registry.Bundle, v approval.Verdict) {
	s.t.Helper()
	_, err := s.queue.Answer(s.t.Context(), b.Next.Approval, approval.Answer{
		Verdict: v, By: approval.Person{ID: "uid 0", Name: "anna", Role: "admin"}, Channel: "api", Reason: "because",
	})
	must(s.t, err)
}

// installed waits until a bundle has no pending installation.
func (s *shop) installed(name string) registry.Bundle {
	s.t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		for _, b := range s.Bundles() {
			if b.Name == name && (b.Next == nil || b.Next.State != registry.Pending) {
				return b
			}
		}
	}
	s.t.Fatalf("%s is still pending", name)
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

func TestBundleIsInstalledAfterApproval(t *testing.T) {
	s := newShop(t)
	p := newPress(s)
	b := s.install(p.places("1.0.0", "places.search", "a.example.com"))
	if b.Next == nil || b.Next.State != registry.Pending || b.Now != nil {
		t.Fatalf("bundle = %+v", b)
	}
	if _, err := s.Resolve("places.search"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("Resolve before the approval = %v", err)
	}
	asked, err := s.queue.Get(t.Context(), b.Next.Approval)
	must(t, err)
	if !strings.Contains(string(asked.Context), "a.example.com") || asked.Question.Attributes["publisher"] != "acme" {
		t.Errorf("the approval request shows %v, %s", asked.Question.Attributes, asked.Context)
	}
	s.says(b, approval.Allow)
	if b = s.installed("local-places"); b.Now == nil || b.Now.Version != "1.0.0" {
		t.Fatalf("bundle after the approval = %+v", b)
	}
	c, err := s.Resolve("places.search")
	must(t, err)
	if text, err := os.ReadFile(filepath.Join(c.Dir, "src/main.py")); string(text) != "print('1.0.0')\n" {
		t.Errorf("content of its program = %q, %v", text, err)
	}
	if _, _, k, err := s.Skill("local-places"); err != nil || len(k.Capabilities) != 1 {
		t.Errorf("Skill = %+v, %v", k, err)
	}
}

func TestRefusedBundleLeavesNothing(t *testing.T) {
	s := newShop(t)
	p := newPress(s)
	s.says(s.install(p.places("1.0.0", "places.search", "a.example.com")), approval.Deny)
	if b := s.installed("local-places"); b.Now != nil || b.Next.State != registry.Refused || !strings.Contains(b.Next.Why, "because") {
		t.Errorf("bundle = %+v", b.Next)
	}
	if len(s.List()) != 0 || len(s.Skills()) != 0 {
		t.Errorf("capabilities and skills = %v, %v, want none", s.List(), s.Skills())
	}
	must(t, s.RemoveBundle(t.Context(), "local-places"))
	if len(s.Bundles()) != 0 {
		t.Errorf("left: %+v", s.Bundles())
	}
}

func TestUpdateReplacesInstalledVersion(t *testing.T) {
	s := newShop(t)
	p := newPress(s)
	s.says(s.install(p.places("1.0.0", "places.search", "a.example.com")), approval.Allow)
	s.installed("local-places")
	b := s.install(p.places("2.0.0", "places.find", "b.example.com"))
	if b.Now.Version != "1.0.0" || b.Next.Version != "2.0.0" {
		t.Errorf("bundle before the approval = %+v", b)
	}
	s.says(b, approval.Allow)
	if b = s.installed("local-places"); b.Now.Version != "2.0.0" {
		t.Fatalf("bundle after the approval = %+v", b.Now)
	}
	if _, err := s.Resolve("places.search"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("Resolve of the removed capability = %v", err)
	}
	_, err := s.Resolve("places.find")
	must(t, err)
	if _, err := s.Install(t.Context(), p.places("1.5.0", "places.find", "b.example.com"), "anna"); err == nil || bundle.ReasonOf(err) != bundle.Downgrade && !strings.Contains(err.Error(), "2.0.0") {
		t.Errorf("install of the older version = %v", err)
	}
	must(t, s.RemoveBundle(t.Context(), "local-places"))
	if len(s.List()) != 0 || len(s.Skills()) != 0 || len(s.Bundles()) != 0 {
		t.Errorf("left: %v, %v, %v", s.List(), s.Skills(), s.Bundles())
	}
}

func TestBundleOfUnknownPublisherIsRefused(t *testing.T) {
	s := newShop(t)
	k, err := bundle.GenerateKey()
	must(t, err)
	_, err = s.Install(t.Context(), (&press{t: t, key: k}).places("1.0.0", "places.search", "a.example.com"), "anna")
	if bundle.ReasonOf(err) != bundle.UnknownPublisher {
		t.Errorf("Install = %v", err)
	}
	if len(s.queue.Pending()) != 0 {
		t.Error("an approval was requested")
	}
}

func TestInstallationSurvivesRestart(t *testing.T) {
	s := newShop(t)
	p := newPress(s)
	file := p.places("1.0.0", "places.search", "a.example.com")
	b := s.install(file)
	must(t, os.Remove(file)) // the upload was deleted
	must(t, s.Close())       // as if the daemon had been killed
	s.says(b, approval.Allow)
	must(t, errors.Join(s.queue.Close(), s.store.Close()))
	s.open()
	if b = s.installed("local-places"); b.Now == nil {
		t.Fatalf("bundle = %+v", b.Next)
	}
	s.close()
	s.open()
	_, err := s.Resolve("places.search")
	must(t, err)
}

func TestSkillWithRevokedCapabilityIsRefused(t *testing.T) {
	s := newShop(t)
	text := []byte("---\nname: doubling\ndescription: Double numbers\nversion: \"1.0.0\"\nccos:\n  capabilities: [math.double]\n---\n\nUse math.double.\n")
	if _, _, err := s.AddSkill(t.Context(), "SKILL.md", text, "anna", ""); fault.KindOf(err) != fault.Denied || !strings.Contains(err.Error(), "math.double") {
		t.Errorf("AddSkill without its capability = %v", err)
	}
	s.register(double)
	_, _, err := s.AddSkill(t.Context(), "SKILL.md", text, "anna", "")
	must(t, err)
	_, err = s.Revoke(t.Context(), "math.double", "wrong")
	must(t, err)
	if _, _, _, err := s.Skill("doubling"); fault.KindOf(err) != fault.Denied {
		t.Errorf("Check of the skill after revocation = %v", err)
	}
	s.close()
	s.open()
	if all := s.Skills(); len(all) != 1 || all[0].Name != "doubling" {
		t.Errorf("skills after a restart = %v", all)
	}
	must(t, s.RemoveSkill(t.Context(), "doubling"))
}

func TestBundleWithoutTrustIsNotCallable(t *testing.T) {
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
			must(t, errors.Join(err, s.NotCallableReason("local-places")))
			return
		}
		if fault.KindOf(err) != fault.Denied || !strings.Contains(err.Error(), string(why)) || bundle.ReasonOf(s.NotCallableReason("local-places")) != why {
			t.Errorf("Resolve = %v, want %s", err, why)
		}
		if _, _, _, err := s.Skill("local-places"); err == nil {
			t.Error("its skill is still offered to agents")
		}
		if r, _, err := s.Find("places.search"); err != nil || r.State != registry.Revoked {
			t.Errorf("listed with state %s, %v", r.State, err)
		}
	}
	called("")
	must(t, s.cfg.Trust.Rotate(t.Context(), key, fresh.Public())) // signatures of the old key stay valid
	called("")
	must(t, s.cfg.Trust.Add(t.Context(), "acme", bundle.ReadOnly, fresh.Public()))
	called(bundle.TierExceeded)
	must(t, s.cfg.Trust.Remove(t.Context(), "acme"))
	called(bundle.UnknownPublisher)
	s.close()
	s.open()
	called(bundle.UnknownPublisher) // also after a restart
	must(t, s.cfg.Trust.Add(t.Context(), "acme", bundle.Standard, key))
	called("")
	must(t, s.cfg.Trust.RevokeBundle(t.Context(), b.Now.Digest, "it is wrong"))
	called(bundle.RevokedBundle)
	must(t, s.cfg.Trust.RevokeKey(t.Context(), key, "it was lost"))
	called(bundle.RevokedKey)
	must(t, s.RemoveBundle(t.Context(), "local-places"))
	if len(s.List()) != 0 {
		t.Errorf("left: %v", s.List())
	}
}

func TestExpiredBundleIsNotCallableUntilSignedAgain(t *testing.T) {
	s := newShop(t)
	p := newPress(s)
	p.until = time.Now().Add(6 * time.Second).Truncate(time.Second)
	dir := p.dir("1.0.0", "places.search", "a.example.com")
	s.says(s.install(p.pack(dir)), approval.Allow)
	s.installed("local-places")
	for end := time.Now().Add(30 * time.Second); s.NotCallableReason("local-places") == nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("its signature does not expire")
		}
	}
	if _, err := s.Resolve("places.search"); bundle.ReasonOf(s.NotCallableReason("local-places")) != bundle.Expired || fault.KindOf(err) != fault.Denied {
		t.Errorf("Resolve = %v", err)
	}
	p.until = time.Time{}
	s.install(p.pack(dir)) // the same content needs no new approval
	s.installed("local-places")
	_, err := s.Resolve("places.search")
	must(t, err)
}

func TestBundleKeepsSeparatelyRegisteredCapabilities(t *testing.T) {
	s := newShop(t)
	p := newPress(s)
	dir := p.dir("1.0.0", "places.search", "a.example.com")
	text, err := os.ReadFile(filepath.Join(dir, "capabilities/search.rtfs"))
	must(t, err)
	all, err := s.Register(t.Context(), registry.Request{File: "m.rtfs", Text: text, Dir: dir, By: "bert"})
	must(t, err)
	if all[0].State != registry.Pending {
		t.Fatalf("state = %s", all[0].State)
	}
	s.says(s.install(p.pack(dir)), approval.Allow)
	s.installed("local-places")
	// Pending approval requests are withdrawn after the bundle is recorded.
	for end := time.Now().Add(30 * time.Second); len(s.queue.Pending()) != 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if _, err := s.Resolve("places.search"); err != nil || len(s.queue.Pending()) != 0 {
		t.Errorf("Resolve of a capability approved with the bundle = %v; pending approvals: %v", err, s.queue.Pending())
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

func TestFallbackFromRevokedVersionWarns(t *testing.T) {
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
	must(t, s.cfg.Trust.RevokeKey(t.Context(), p.key.Public(), "it was lost"))
	must(t, s.TrustChanged(t.Context()))
	resolves("math.double", "1.0.0", "version 2.0.0 is revoked", "it was lost", "version 1.0.0", "registered by itself", "capability revoke math.double@1.0.0")
	resolves("math.double@1.0.0", "1.0.0")
	resolves("math.double", "1.0.0", "2.0.0") // the first warning did not modify the version itself

	// A newer approved version is called without a warning.
	s.register(strings.Replace(double, "1.0.0", "3.0.0", 1))
	resolves("math.double", "3.0.0")
}
