package bundle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/internal/atomicfile"
	"glasshouse/internal/dirs"
	"glasshouse/manifest"
)

// An Installed is a bundle that is installed, as the registry keeps it.
type Installed struct {
	Name      string          `json:"name"`
	Version   string          `json:"version"`
	Publisher string          `json:"publisher"`
	Tier      Tier            `json:"tier"`
	Digest    string          `json:"digest"`
	Signature json.RawMessage `json:"signature"` // signature.json
	Until     time.Time       `json:"until,omitzero"`
	At        time.Time       `json:"at"`
}

// Warrant is what the bundle was taken on.
func (in *Installed) Warrant() (Warrant, error) {
	s, err := parseSignature(in.Signature)
	if err != nil {
		return Warrant{}, on(in.Name, err)
	}
	return Warrant{s.Publisher, s.Key, s.Signed, in.Until, in.Digest, in.Tier}, nil
}

// A Registry knows what is installed. What it returned from outlives a power cut.
type Registry interface {
	// Installed returns the bundle of a name, or nil.
	Installed(ctx context.Context, name string) (*Installed, error)

	// Register makes the capabilities and the skill of b available, in place of
	// those of the bundle with the digest replaces, or of none if that is empty:
	// all at once or not at all. It is Conflict if that is not what is installed.
	// The same may be registered twice. b lies where it stays.
	Register(ctx context.Context, in *Installed, b *Bundle, replaces string) error

	// Forget takes the capabilities and the skill of a bundle away. NotFound is
	// nothing of that name.
	Forget(ctx context.Context, name string) error
}

// An Approver has somebody look at a review.
type Approver interface {
	// Approve returns nil if the bundle may be installed, and Denied if not. An
	// answer is for the digests that the review names, the new and the replaced, and
	// for nothing else. Asked again about the same it gives the same answer, as
	// Install may be repeated after a crash.
	Approve(ctx context.Context, r *Review) error
}

// An Installer installs bundles. Killed at any moment it leaves what is installed
// as it was, or as it should be; the same call again finishes. It is safe for
// concurrent use.
type Installer struct {
	Dir      string // {data}/bundles: one directory for each digest
	Trust    *Trust
	Approve  Approver
	Register Registry

	files sync.Mutex // while files are laid down in Dir, or removed
}

// Install installs the bundle at path. It waits until somebody has approved it. One
// that is installed already is not asked about again.
func (i *Installer) Install(ctx context.Context, path string) (*Installed, error) {
	b, err := i.Verify(path)
	if err != nil {
		return nil, err
	}
	if err := b.CheckClaims(); err != nil {
		return nil, err
	}
	was, err := i.replaces(ctx, b)
	if err != nil {
		return nil, err
	}
	if b, err = i.stage(b); err != nil {
		return nil, fmt.Errorf("keep %s: %w", filepath.Base(path), err)
	}
	if was != nil && was.Digest == b.Digest() {
		return i.register(ctx, b, was)
	}
	r, err := i.review(was, b)
	if err != nil {
		return nil, err
	}
	if err := i.Approve.Approve(ctx, r); err != nil {
		if errors.Is(err, fault.Denied) {
			err = errors.Join(err, i.discard(b.Digest()))
		}
		return nil, err
	}
	// That may have taken days.
	if b, err = i.Verify(b.path); err != nil {
		return nil, err
	}
	return i.register(ctx, b, was)
}

// Verify is the first step: the bundle is whole, and signed by somebody who is
// trusted.
func (i *Installer) Verify(path string) (*Bundle, error) {
	b, err := Open(path)
	if err != nil {
		return nil, err
	}
	return b, i.Trust.Check(b)
}

// replaces returns what is installed by that name, and refuses a bundle that cannot
// take its place.
func (i *Installer) replaces(ctx context.Context, b *Bundle) (*Installed, error) {
	m := b.Metadata
	was, err := i.Register.Installed(ctx, m.Name)
	if err != nil || was == nil {
		return nil, err
	}
	if was.Publisher != m.Publisher {
		return nil, refuse(OtherPublisher, b.name(), "%s is installed from %s, and this is from %s", m.Name, was.Publisher, m.Publisher)
	}
	switch c := manifest.CompareVersions(m.Version, was.Version); {
	case c < 0:
		return nil, refuse(Downgrade, b.name(), "%s %s is installed, and this is %s", m.Name, was.Version, m.Version)
	case c == 0 && was.Digest != b.Digest():
		return nil, refuse(Republished, b.name(), "%s %s is installed with another content", m.Name, m.Version)
	}
	return was, nil
}

// Dir of a digest, whether anything is there or not.
func (i *Installer) dirOf(digest string) string { return filepath.Join(i.Dir, digest) }

// Open opens an installed bundle, and verifies that nobody has changed its files.
// Whether its publisher is trusted still, Trust.Check says.
func (i *Installer) Open(digest string) (*Bundle, error) {
	if !isDigest(digest) {
		return nil, fault.Newf(fault.Invalid, "bundle.Open", "", "%q is not a digest", digest)
	}
	b, err := Open(i.dirOf(digest))
	if err != nil {
		return nil, err
	}
	if b.Digest() != digest {
		return nil, refuse(Tampered, b.name(), "its files have the digest %s", b.Digest())
	}
	return b, nil
}

func isDigest(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == ""
}

// Path is the directory that an installed bundle lies in.
func (b *Bundle) Path() string { return b.path }

// stage puts the files of a bundle where they stay, whole or not at all.
func (i *Installer) stage(b *Bundle) (*Bundle, error) {
	i.files.Lock()
	defer i.files.Unlock()
	if err := os.MkdirAll(i.Dir, 0o755); err != nil {
		return nil, err
	}
	there, err := i.Open(b.Digest())
	switch {
	case err == nil && string(there.text) == string(b.text):
		return there, nil
	case err == nil: // the same files, signed anew
		if err := i.signAnew(there, b.text); err != nil {
			return nil, err
		}
		return i.Open(b.Digest())
	case !errors.Is(err, os.ErrNotExist):
		// Somebody changed it: it is made anew.
		if err := i.remove(b.Digest()); err != nil {
			return nil, err
		}
	}
	tmp, err := os.MkdirTemp(i.Dir, ".tmp-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp) // of nothing, if all went well
	if err := b.extract(tmp); err != nil {
		return nil, on(b.path, err)
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return nil, err
	}
	if err := os.Rename(tmp, i.dirOf(b.Digest())); err != nil {
		return nil, err
	}
	if err := dirs.Sync(i.Dir); err != nil {
		return nil, err
	}
	return i.Open(b.Digest())
}

// signAnew puts another signature beside the files. It is never there in part, and
// nothing else is: whoever reads the bundle meanwhile finds it whole.
func (i *Installer) signAnew(b *Bundle, text []byte) error {
	tmp := filepath.Join(i.Dir, ".tmp-"+SignatureFile)
	if err := atomicfile.Durable(tmp, text, 0o444); err != nil {
		return err
	}
	if err := os.Rename(tmp, filepath.Join(b.path, SignatureFile)); err != nil {
		return err
	}
	return dirs.Sync(b.path)
}

// discard removes the files of a bundle.
func (i *Installer) discard(digest string) error {
	i.files.Lock()
	defer i.files.Unlock()
	return i.remove(digest)
}

// remove is discard for who has the lock. It never leaves a part of a bundle under
// its name.
func (i *Installer) remove(digest string) error {
	tmp, err := os.MkdirTemp(i.Dir, ".tmp-*")
	if err != nil {
		return err
	}
	err = os.Rename(i.dirOf(digest), filepath.Join(tmp, digest))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, os.RemoveAll(tmp))
}

// review is the third step.
func (i *Installer) review(was *Installed, b *Bundle) (*Review, error) {
	var old *Bundle
	if was != nil {
		var err error
		if old, err = i.Open(was.Digest); err != nil {
			return nil, fmt.Errorf("compare with what is installed: %w", err)
		}
	}
	return NewReview(old, b)
}

// register is the last step.
func (i *Installer) register(ctx context.Context, b *Bundle, was *Installed) (*Installed, error) {
	m := b.Metadata
	in := &Installed{
		Name: m.Name, Version: m.Version, Publisher: m.Publisher, Tier: m.Tier,
		Digest: b.Digest(), Signature: b.text, Until: b.Expires(), At: time.Now().UTC(),
	}
	replaces := ""
	if was != nil {
		replaces = was.Digest
	}
	if err := i.Register.Register(ctx, in, b, replaces); err != nil {
		return nil, fmt.Errorf("register %s %s: %w", m.Name, m.Version, err)
	}
	return in, nil
}

// Remove removes a bundle. Whoever uses it must have ended.
func (i *Installer) Remove(ctx context.Context, name string) error {
	was, err := i.Register.Installed(ctx, name)
	if err != nil {
		return err
	}
	if was == nil {
		return fault.Newf(fault.NotFound, "bundle.Remove", name, "no bundle of that name is installed")
	}
	if err := i.Register.Forget(ctx, name); err != nil {
		return err
	}
	return i.discard(was.Digest)
}

// Sweep removes what is neither in keep nor needed: versions that were replaced,
// and what a crash left. Nothing may be installed meanwhile.
func (i *Installer) Sweep(keep []string) error {
	all, err := os.ReadDir(i.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range all {
		switch {
		case strings.HasPrefix(e.Name(), ".tmp-"):
			errs = append(errs, os.RemoveAll(filepath.Join(i.Dir, e.Name())))
		case isDigest(e.Name()) && !slices.Contains(keep, e.Name()):
			errs = append(errs, i.discard(e.Name()))
		}
	}
	return errors.Join(errs...)
}
