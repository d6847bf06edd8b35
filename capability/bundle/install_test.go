package bundle_test

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/capability/bundle"
	"glasshouse/fault"
	"glasshouse/internal/atomicfile"
	"glasshouse/internal/killtest"
)

func TestInstallUpdateAndRemove(t *testing.T) {
	s := newScene(t)
	first, err := s.Install(t.Context(), s.signed(good()))
	s.ok(err)
	if first.Name != "local-places" || first.Version != "1.2.0" || first.Publisher != "acme" || first.Tier != bundle.Standard {
		t.Errorf("installed = %+v", first)
	}
	b, err := s.Installer.Open(first.Digest)
	s.ok(err)
	if len(b.Capabilities) != 1 || b.Path() != filepath.Join(s.Dir, first.Digest) {
		t.Errorf("opened in %s with %d capabilities", b.Path(), len(b.Capabilities))
	}

	second, err := s.Install(t.Context(), s.signed(next(good())))
	s.ok(err)
	if s.have["local-places"].Version != "1.3.0" || len(s.seen) != 2 {
		t.Errorf("have %+v after %d approvals", s.have, len(s.seen))
	}
	s.ok(s.Sweep([]string{second.Digest}))
	if _, err := os.Stat(filepath.Join(s.Dir, first.Digest)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old version was not removed: %v", err)
	}
	s.ok(s.Remove(t.Context(), "local-places"))
	if left := below(t, s.Dir); len(left) != 0 || len(s.have) != 0 {
		t.Errorf("left are %v and %v", left, s.have)
	}
	if err := s.Remove(t.Context(), "local-places"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("Remove again = %v", err)
	}
}

func TestInstalledBundleNeedsNoNewApproval(t *testing.T) {
	s := newScene(t)
	dir := s.signed(good())
	first, err := s.Install(t.Context(), dir)
	s.ok(err)
	second, err := s.Install(t.Context(), dir)
	s.ok(err)
	if first.Digest != second.Digest || len(s.seen) != 1 {
		t.Errorf("asked %d times", len(s.seen))
	}
	// The same content with a new signature needs no approval either.
	fresh := newKey(t)
	s.ok(s.Trust.Rotate(s.Context(), s.key.Public(), fresh.Public()))
	third, err := s.Install(t.Context(), s.resigned(good(), fresh, func(*bundle.Signature) {}))
	s.ok(err)
	if third.Digest != first.Digest || len(s.seen) != 1 || !strings.Contains(string(third.Signature), fresh.Public().String()) {
		t.Errorf("asked %d times; signed by\n%s", len(s.seen), third.Signature)
	}
	if b, err := s.Installer.Open(first.Digest); err != nil || b.Signature.Key != fresh.Public() {
		t.Errorf("what lies there: %v", err)
	}
}

func TestDeniedBundleIsRemoved(t *testing.T) {
	s := newScene(t)
	s.answer = func(*bundle.Review) error { return fault.Newf(fault.Denied, "Approve", "", "no") }
	_, err := s.Install(t.Context(), s.signed(good()))
	if fault.KindOf(err) != fault.Denied {
		t.Errorf("Install = %v", err)
	}
	if left := below(t, s.Dir); len(left) != 0 || len(s.have) != 0 {
		t.Errorf("left are %v and %v", left, s.have)
	}
}

func TestChangesDuringApproval(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(s *scene, r *bundle.Review) error
		want      error
	}{
		"the key is revoked": {func(s *scene, _ *bundle.Review) error {
			return s.Trust.RevokeKey(s.Context(), s.key.Public(), "stolen")
		}, bundle.RevokedKey},
		"the files are changed": {func(s *scene, r *bundle.Review) error {
			name := filepath.Join(s.Dir, r.Digest, "src/main.py")
			return errors.Join(os.Chmod(name, 0o644), os.WriteFile(name, []byte("import evil"), 0o644))
		}, bundle.Tampered},
		"another version is installed": {func(s *scene, _ *bundle.Review) error {
			s.registry.have = map[string]bundle.Installed{"local-places": {Name: "local-places", Version: "1.2.1", Digest: "other"}}
			return nil
		}, fault.Conflict},
		"nobody waits any more": {func(*scene, *bundle.Review) error { return context.Canceled }, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.answer = func(r *bundle.Review) error { return c.meanwhile(s, r) }
			_, err := s.Install(t.Context(), s.signed(good()))
			if !errors.Is(err, c.want) {
				t.Errorf("Install = %v, want %v", err, c.want)
			}
			if in, ok := s.have["local-places"]; ok && in.Version == "1.2.0" {
				t.Error("it is registered")
			}
		})
	}
}

func TestReplacedArchiveIsNotExtracted(t *testing.T) {
	for name, c := range map[string]struct {
		swap func(s *scene, dir string)
		want bundle.Reason
	}{
		"another byte":     {func(s *scene, dir string) { changeFile(s, dir, "src/main.py", strings.ToUpper) }, bundle.Tampered},
		"another file":     {func(s *scene, dir string) { s.ok(os.WriteFile(filepath.Join(dir, "evil"), nil, 0o644)) }, bundle.Unlisted},
		"one file less":    {func(s *scene, dir string) { s.ok(os.Remove(filepath.Join(dir, "src/main.py"))) }, bundle.Missing},
		"a link":           {func(s *scene, dir string) { s.ok(os.Symlink("/etc/passwd", filepath.Join(dir, "x"))) }, bundle.Symlink},
		"a program":        {func(s *scene, dir string) { s.ok(os.Chmod(filepath.Join(dir, "src/main.py"), 0o755)) }, bundle.ModeChanged},
		"another metadata": {func(s *scene, dir string) { changeFile(s, dir, "metadata.json", strings.ToUpper) }, bundle.Tampered},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			dir := s.signed(good())
			b, err := s.Verify(dir)
			s.ok(err)
			c.swap(s, dir)
			_, err = s.Stage(b)
			if bundle.ReasonOf(err) != c.want {
				t.Errorf("Stage = %v, want %q", err, c.want)
			}
			if left := below(t, s.Dir); len(left) != 0 {
				t.Errorf("it left %v", left)
			}
		})
	}
}

func TestModifiedInstalledBundleIsReplaced(t *testing.T) {
	s := newScene(t)
	src := s.signed(good())
	in, err := s.Install(t.Context(), src)
	s.ok(err)
	name := filepath.Join(s.Dir, in.Digest, "src/main.py")
	s.ok(os.Chmod(name, 0o644))
	s.ok(os.WriteFile(name, []byte("import evil"), 0o644))
	if _, err := s.Installer.Open(in.Digest); bundle.ReasonOf(err) != bundle.Tampered {
		t.Errorf("Open = %v", err)
	}
	_, err = s.Install(t.Context(), src)
	s.ok(err)
	if _, err := s.Installer.Open(in.Digest); err != nil {
		t.Errorf("Open after it was installed again = %v", err)
	}
	if len(s.seen) != 1 {
		t.Errorf("asked %d times", len(s.seen))
	}
}

func TestConcurrentInstalls(t *testing.T) {
	s := newScene(t)
	laid := []string{s.signed(good()), s.resigned(good(), s.key, func(sig *bundle.Signature) { sig.Signed = "2026-01-01T00:00:00Z" })}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			_, err := s.Install(t.Context(), laid[i%2])
			if err != nil && fault.KindOf(err) != fault.Conflict {
				t.Errorf("Install = %v", err)
			}
		})
	}
	wg.Wait()
	in := s.have["local-places"]
	if _, err := s.Installer.Open(in.Digest); err != nil {
		t.Errorf("Open = %v", err)
	}
	if all, err := os.ReadDir(s.Dir); err != nil || len(all) != 1 {
		t.Errorf("left are %v, %v", all, err)
	}
}

// fileRegistry is a registry that survives the death of the process.
type fileRegistry struct{ name string }

func (r fileRegistry) Installed(context.Context, string) (*bundle.Installed, error) {
	text, err := os.ReadFile(r.name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	in := &bundle.Installed{}
	return in, json.Unmarshal(text, in)
}

func (r fileRegistry) Register(_ context.Context, in *bundle.Installed, _ *bundle.Bundle, _ string) error {
	text, err := json.Marshal(in)
	if err != nil {
		return err
	}
	return atomicfile.Write(r.name, text, 0o644)
}

func (r fileRegistry) Forget(context.Context, string) error { return os.Remove(r.name) }

func TestMain(m *testing.M) { killtest.Main(m, install) }

func installerIn(dir string) (*bundle.Installer, error) {
	trust, err := bundle.OpenTrust(filepath.Join(dir, bundle.TrustFile))
	return &bundle.Installer{
		Dir: filepath.Join(dir, "bundles"), Trust: trust, Approve: &approver{}, Register: fileRegistry{filepath.Join(dir, "installed.json")},
	}, err
}

// install alternately installs two versions without end.
func install(args []string) error {
	dir := args[0]
	i, err := installerIn(dir)
	if err != nil {
		return err
	}
	for ctx := context.Background(); ; {
		for _, name := range []string{"one.tar.gz", "two.zip"} {
			if _, err := i.Install(ctx, filepath.Join(dir, name)); err != nil {
				return err
			}
		}
		if err := errors.Join(i.Remove(ctx, "local-places"), i.Sweep(nil)); err != nil {
			return err
		}
	}
}

func TestInstallSurvivesKill(t *testing.T) {
	s := newScene(t)
	dir := t.TempDir()
	s.ok(openTrust(t, dir).Add(t.Context(), "acme", bundle.Standard, s.key.Public()))
	for name, files := range map[string]map[string]string{"one.tar.gz": good(), "two.zip": next(good())} {
		b, err := bundle.Open(s.signed(files))
		s.ok(err)
		s.ok(b.Pack(filepath.Join(dir, name)))
	}
	for range 12 {
		p := killtest.Start(t, dir)
		time.Sleep(time.Duration(rand.N(60)) * time.Millisecond)
		p.Kill()
		p.Wait()
		whole(t, dir)
	}
}

// whole checks the state after a kill, and that a repeated installation completes.
func whole(t *testing.T, dir string) {
	t.Helper()
	i, err := installerIn(dir)
	if err != nil {
		t.Fatal(err)
	}
	all, err := os.ReadDir(i.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range all {
		if strings.HasPrefix(e.Name(), ".tmp-") {
			continue
		}
		if _, err := i.Open(e.Name()); err != nil {
			t.Errorf("a partial bundle exists: %v", err)
		}
	}
	was, err := i.Register.Installed(t.Context(), "local-places")
	if err != nil {
		t.Fatal(err)
	}
	var keep []string
	if was != nil {
		keep = append(keep, was.Digest)
		if _, err := i.Open(was.Digest); err != nil {
			t.Errorf("the registered bundle is missing: %v", err)
		}
	}
	if err := i.Sweep(keep); err != nil {
		t.Fatal(err)
	}
	in, err := i.Install(t.Context(), filepath.Join(dir, "two.zip"))
	if err != nil {
		t.Fatalf("the repeated installation fails: %v", err)
	}
	if _, err := i.Open(in.Digest); err != nil {
		t.Error(err)
	}
	if err := errors.Join(i.Remove(t.Context(), "local-places"), i.Sweep(nil)); err != nil {
		t.Fatal(err)
	}
	if left := below(t, i.Dir); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
}
