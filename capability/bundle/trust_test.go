package bundle_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/capability/bundle"
	"glasshouse/fault"
)

func TestTrustIsPersistent(t *testing.T) {
	dir := t.TempDir()
	first, second, third := newKey(t).Public(), newKey(t).Public(), newKey(t).Public()
	trust := openTrust(t, dir)
	for _, err := range []error{
		trust.Add(t.Context(), "acme", bundle.Standard, first),
		trust.Add(t.Context(), "other", bundle.ReadOnly, third),
		trust.Rotate(t.Context(), first, second),
		trust.RevokeKey(t.Context(), first, "stolen"),
		trust.RevokeBundle(t.Context(), strings.Repeat("a", 64), "spies"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	again := openTrust(t, dir)
	p := again.Publishers()
	if len(p) != 2 || p[0].Name != "acme" || p[0].Tier != bundle.Standard || len(p[0].Keys) != 2 || p[1].Name != "other" {
		t.Fatalf("publishers = %+v", p)
	}
	if k := p[0].Keys[0]; k.Key != first || k.Revoked == nil || k.Retired == nil || k.Reason != "stolen" {
		t.Errorf("the old key = %+v", k)
	}
	if k := p[0].Keys[1]; k.Key != second || k.Revoked != nil || k.Retired != nil {
		t.Errorf("the new key = %+v", k)
	}
	if r := again.RevokedBundles(); len(r) != 1 || r[0].Reason != "spies" {
		t.Errorf("revoked bundles = %+v", r)
	}
}

func TestSignaturesOfRetiredKeyStayValid(t *testing.T) {
	s := newScene(t)
	dir := s.signed(good())
	fresh := newKey(t)
	s.ok(s.Trust.Rotate(t.Context(), s.key.Public(), fresh.Public()))
	for name, path := range map[string]string{
		"signed before":         s.resigned(good(), s.key, func(sig *bundle.Signature) { sig.Signed = "2026-01-01T00:00:00Z" }),
		"signed by the new key": s.resigned(good(), fresh, func(*bundle.Signature) {}),
	} {
		if _, err := s.Verify(path); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.ok(s.Trust.RevokeKey(t.Context(), s.key.Public(), ""))
	if _, err := s.Verify(dir); bundle.ReasonOf(err) != bundle.RevokedKey {
		t.Errorf("after the key was revoked: %v", err)
	}
}

func TestRevokedKeyCannotBeAdded(t *testing.T) {
	s := newScene(t)
	key := s.key.Public()
	s.ok(s.Trust.RevokeKey(t.Context(), key, "stolen"))
	if err := s.Trust.Add(t.Context(), "acme", bundle.Standard, key); fault.KindOf(err) != fault.Conflict {
		t.Errorf("Add = %v, want a conflict", err)
	}
	s.ok(s.Trust.Remove(t.Context(), "acme"))
	if err := s.Trust.Add(t.Context(), "emca", bundle.Standard, key); fault.KindOf(err) != fault.Conflict {
		t.Errorf("Add under another name = %v, want a conflict", err)
	}
	s.ok(s.Trust.Add(t.Context(), "acme", bundle.Standard, newKey(t).Public()))
	if _, err := s.Verify(s.signed(good())); bundle.ReasonOf(err) != bundle.RevokedKey {
		t.Errorf("what it signed: %v", err)
	}
}

func TestRemovedPublisherIsUnknown(t *testing.T) {
	s := newScene(t)
	dir := s.signed(good())
	s.ok(s.Trust.Remove(t.Context(), "acme"))
	if _, err := s.Verify(dir); bundle.ReasonOf(err) != bundle.UnknownPublisher {
		t.Errorf("Verify = %v", err)
	}
	if err := s.Trust.Remove(t.Context(), "acme"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("Remove again = %v", err)
	}
}

func TestInvalidTrustChanges(t *testing.T) {
	s := newScene(t)
	key := newKey(t).Public()
	for name, c := range map[string]struct {
		err  error
		want fault.Kind
	}{
		"a tier that is none":        {s.Trust.Add(t.Context(), "acme", "harmless", key), fault.Invalid},
		"a name that is none":        {s.Trust.Add(t.Context(), "../acme", bundle.Standard, key), fault.Invalid},
		"another's key":              {s.Trust.Add(t.Context(), "emca", bundle.Standard, s.key.Public()), fault.Conflict},
		"a key nobody has":           {s.Trust.Rotate(t.Context(), key, newKey(t).Public()), fault.NotFound},
		"a new key that is known":    {s.Trust.Rotate(t.Context(), s.key.Public(), s.key.Public()), fault.Conflict},
		"revoking what nobody has":   {s.Trust.RevokeKey(t.Context(), key, ""), fault.NotFound},
		"revoking what is no digest": {s.Trust.RevokeBundle(t.Context(), "../x", ""), fault.Invalid},
	} {
		if fault.KindOf(c.err) != c.want {
			t.Errorf("%s: %v, want %s", name, c.err, c.want)
		}
	}
	if p := s.Trust.Publishers(); len(p) != 1 || len(p[0].Keys) != 1 {
		t.Errorf("publishers = %+v", p)
	}
}

func TestWritableTrustStoreIsRefused(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, bundle.TrustFile)
	if err := openTrust(t, dir).Add(t.Context(), "acme", bundle.Standard, newKey(t).Public()); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := bundle.OpenTrust(name); fault.KindOf(err) != fault.Denied || fault.RemedyOf(err) == "" {
		t.Errorf("OpenTrust = %v", err)
	}
	for what, text := range map[string]string{
		"half":                `{"publishers": [`,
		"a word nobody knows": `{"publishers": [], "trust_everybody": true}`,
		"a tier that is none": `{"publishers": [{"name": "acme", "tier": "root", "keys": []}]}`,
		"a key that is none":  `{"publishers": [{"name": "acme", "tier": "standard", "keys": [{"key": "RWQ="}]}]}`,
	} {
		broken := file(t, "trust.json", []byte(text))
		if _, err := bundle.OpenTrust(broken); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestUnwrittenTrustChangeHasNoEffect(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	trust := openTrust(t, dir)
	if err := trust.Add(t.Context(), "acme", bundle.Standard, newKey(t).Public()); err == nil {
		t.Fatal("Add into a directory that is not there succeeded")
	}
	if p := trust.Publishers(); len(p) != 0 {
		t.Errorf("publishers = %+v", p)
	}
}

func TestCheckKeyNeedsNoTrustStore(t *testing.T) {
	s := newScene(t)
	b, err := bundle.Sign(lay(t, good()), s.key, time.Now().Add(time.Hour))
	s.ok(err)
	if err := b.CheckKey(newKey(t).Public(), s.key.Public()); err != nil {
		t.Errorf("CheckKey = %v", err)
	}
	if err := b.CheckKey(newKey(t).Public()); bundle.ReasonOf(err) != bundle.UnknownKey {
		t.Errorf("CheckKey of another = %v", err)
	}
}

// A store that was taken does not bring back publishers that were removed later.
func TestTrustIsTakenOnce(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	fleet, own := openTrust(t, t.TempDir()), openTrust(t, dir)
	kept, gone, lost := newKey(t).Public(), newKey(t).Public(), newKey(t).Public()
	for _, err := range []error{
		fleet.Add(ctx, "kept", bundle.ReadOnly, kept), fleet.Add(ctx, "kept", bundle.ReadOnly, lost),
		own.Add(ctx, "kept", bundle.Elevated, lost), own.RevokeKey(ctx, lost, "stolen"), own.Add(ctx, "gone", bundle.Standard, gone),
		own.RevokeBundle(ctx, strings.Repeat("a", 64), "spies"),
		fleet.Take(ctx, own),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	list := fleet.Publishers()
	if len(list) != 2 || list[1].Name != "kept" || list[1].Tier != bundle.ReadOnly || list[1].Keys[0].Revoked != nil || list[1].Keys[1].Revoked == nil || len(fleet.RevokedBundles()) != 1 {
		t.Errorf("after Take: %+v, revoked %v, want both publishers, the own tier, and the revocations", list, fleet.RevokedBundles())
	}
	if err := fleet.Remove(ctx, "gone"); err != nil {
		t.Fatal(err)
	}
	if err := fleet.Take(ctx, openTrust(t, dir)); err != nil { // as at the next start
		t.Fatal(err)
	}
	if list := fleet.Publishers(); len(list) != 1 {
		t.Errorf("after another Take: %+v, want no removed publisher", list)
	}
}
