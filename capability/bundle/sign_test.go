package bundle_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glasshouse/capability/bundle"
	"glasshouse/fault"
	"glasshouse/policy/chain"
)

func TestBundleIsEqualInAllFormats(t *testing.T) {
	s := newScene(t)
	dir := s.signed(good())
	b, err := bundle.Open(dir)
	s.ok(err)
	out := t.TempDir()
	for _, name := range []string{"x.tar.gz", "x.tgz", "x.zip"} {
		packed := filepath.Join(out, name)
		s.ok(b.Pack(packed))
		same, err := bundle.Open(packed)
		s.ok(err)
		if diff := cmp.Diff(b.Signature, same.Signature, cmp.Comparer(func(a, b bundle.PublicKey) bool { return a == b })); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
		if len(same.Capabilities) != 1 || same.Capabilities[0].ID != "places.search" || same.SkillFile != "skill.yaml" || same.Metadata.Version != "1.2.0" {
			t.Errorf("%s: read as %+v", name, same.Metadata)
		}
		staged, err := s.Stage(same)
		s.ok(err)
		for _, f := range items(t, staged.Path()) {
			want, err := os.ReadFile(filepath.Join(dir, f.name))
			s.ok(err)
			if f.body != string(want) {
				t.Errorf("%s: %s has other bytes", name, f.name)
			}
			if f.mode&0o222 != 0 || f.mode&0o111 != 0 != strings.HasSuffix(f.name, ".sh") {
				t.Errorf("%s: %s has mode %o", name, f.name, f.mode)
			}
		}
		again := filepath.Join(t.TempDir(), name)
		s.ok(b.Pack(again))
		first, err := os.ReadFile(packed)
		s.ok(err)
		if second, err := os.ReadFile(again); err != nil || !bytes.Equal(first, second) {
			t.Errorf("%s is packed in two ways (%v)", name, err)
		}
	}
}

// Signs and verifies according to the documentation, without package bundle.
func TestSignatureFormat(t *testing.T) {
	s := newScene(t)
	dir := s.signed(good())
	text, err := os.ReadFile(filepath.Join(dir, bundle.SignatureFile))
	s.ok(err)
	var whole map[string]any
	s.ok(json.Unmarshal(text, &whole))

	var listed []map[string]any
	for _, i := range items(t, dir) {
		if i.name != bundle.SignatureFile {
			f := fileOf(i)
			listed = append(listed, map[string]any{"path": f.Path, "mode": f.Mode, "size": f.Size, "sha256": f.SHA256})
		}
	}
	slices.SortFunc(listed, func(a, b map[string]any) int { return strings.Compare(a["path"].(string), b["path"].(string)) })
	files := canonical(t, listed)
	if got := canonical(t, whole["files"]); got != files {
		t.Errorf("files = %s\nwant %s", got, files)
	}
	if whole["digest"] != sha(files) {
		t.Errorf("digest = %v, want %s", whole["digest"], sha(files))
	}

	signature, err := base64.StdEncoding.DecodeString(whole["signature"].(string))
	s.ok(err)
	key, err := base64.StdEncoding.DecodeString(whole["key"].(string))
	s.ok(err)
	delete(whole, "signature")
	if !ed25519.Verify(key[10:], []byte(canonical(t, whole)), signature) {
		t.Error("the signature is not one of the canonical JSON without it")
	}
}

func canonical(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	text, err = chain.Canonical(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestSignRejectsInvalidBundles(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  bundle.Reason
	}{
		"more than it says": {with(good(), "metadata.json", strings.Replace(metadata, `"network"`, "", 1)), bundle.Exceeds},
		"no metadata":       {with(good(), "metadata.json", ""), bundle.BadMetadata},
		"no skill":          {with(good(), "skill.yaml", "words"), bundle.BadSkill},
		"colliding names":   {with(good(), "src/Main.py", "x"), bundle.Collision},
	} {
		t.Run(name, func(t *testing.T) {
			dir := lay(t, c.files)
			_, err := bundle.Sign(dir, newKey(t), time.Time{})
			if bundle.ReasonOf(err) != c.want || fault.RemedyOf(err) == "" {
				t.Errorf("signed: %v, want %q", err, c.want)
			}
			if _, err := os.Stat(filepath.Join(dir, bundle.SignatureFile)); err == nil {
				t.Error("it left a signature")
			}
		})
	}
}

func TestSigningAgainKeepsDigest(t *testing.T) {
	s := newScene(t)
	dir := s.signed(good())
	first, err := bundle.Open(dir)
	s.ok(err)
	second, err := bundle.Sign(dir, newKey(t), time.Now().Add(time.Hour))
	s.ok(err)
	if first.Digest() != second.Digest() {
		t.Error("the digest is not one of the content alone")
	}
	if second.Expires().IsZero() || !first.Expires().IsZero() {
		t.Errorf("expires %v and %v", first.Expires(), second.Expires())
	}
}

func TestEarlierExpiryTakesPrecedence(t *testing.T) {
	s := newScene(t)
	dir := lay(t, with(good(), "metadata.json", strings.Replace(metadata, "{", `{"expires": "2999-01-01T00:00:00+02:00",`, 1)))
	early := time.Now().Add(time.Hour).Truncate(time.Second)
	b, err := bundle.Sign(dir, s.key, early)
	s.ok(err)
	if !b.Expires().Equal(early) {
		t.Errorf("expires %v, want %v", b.Expires(), early)
	}
	b, err = bundle.Sign(dir, s.key, time.Time{})
	s.ok(err)
	if !b.Expires().Equal(time.Date(2998, 12, 31, 22, 0, 0, 0, time.UTC)) {
		t.Errorf("expires %v, want what metadata.json says", b.Expires())
	}
}

func TestPackRejectsConcurrentChanges(t *testing.T) {
	s := newScene(t)
	dir := s.signed(good())
	b, err := bundle.Open(dir)
	s.ok(err)
	changeFile(s, dir, "src/main.py", strings.ToUpper)
	to := t.TempDir()
	if err := b.Pack(filepath.Join(to, "x.zip")); bundle.ReasonOf(err) != bundle.Tampered {
		t.Errorf("packed: %v", err)
	}
	if left := below(t, to); len(left) != 0 {
		t.Errorf("it left %v", left)
	}
}
