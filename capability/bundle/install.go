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

	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/internal/atomicfile"
	"glasshouse/internal/dirs"
)

// An Installed is the registry's record of an installed bundle.
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

// Warrant returns the facts on which the bundle was trusted.
func (in *Installed) Warrant() (Warrant, error) {
	s, err := parseSignature(in.Signature)
	if err != nil {
		return Warrant{}, on(in.Name, err)
	}
	return Warrant{s.Publisher, s.Key, s.Signed, in.Until, in.Digest, in.Tier}, nil
}

// A Registry stores the installed bundles. Changes are durable when its methods return.
type Registry interface {
	// Installed returns the bundle with a name, or nil.
	Installed(ctx context.Context, name string) (*Installed, error)

	// Register makes the capabilities and the skill of b available and atomically replaces
	// those of the bundle with the digest replaces, or of none if replaces is empty. It fails
	// with Conflict if that bundle is not the installed one. It is idempotent. b is in its
	// final directory.
	Register(ctx context.Context, in *Installed, b *Bundle, replaces string) error

	// Forget removes the capabilities and the skill of a bundle. It fails with NotFound if no
	// bundle has that name.
	Forget(ctx context.Context, name string) error
}

// An Approver obtains a decision on a review.
type Approver interface {
	// Approve returns nil if the bundle may be installed, and Denied if not. The decision
	// applies only to the digests in the review, the new and the replaced one. Repeated calls
	// for the same digests return the same decision, because Install may be repeated after a
	// crash.
	Approve(ctx context.Context, r *Review) error
}

// An Installer installs bundles. If it is killed, either the old or the new version is
// installed; repeating the call completes the installation. It is safe for concurrent use.
type Installer struct {
	Dir      string // {data}/bundles, with one directory per digest
	Trust    *Trust
	Approve  Approver
	Register Registry

	files sync.Mutex // held while files in Dir are created or removed
}

// Install installs the bundle at path. It blocks until the bundle is approved. A bundle that
// is installed already needs no new approval.
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
		return nil, fmt.Errorf("store %s: %w", filepath.Base(path), err)
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
	// Approval may have taken days.
	if b, err = i.Verify(b.path); err != nil {
		return nil, err
	}
	return i.register(ctx, b, was)
}

// Verify opens the bundle and checks that its signer is trusted.
func (i *Installer) Verify(path string) (*Bundle, error) {
	b, err := Open(path)
	if err != nil {
		return nil, err
	}
	return b, i.Trust.Check(b)
}

// replaces returns the installed bundle of the same name. It rejects a bundle that cannot
// replace it.
func (i *Installer) replaces(ctx context.Context, b *Bundle) (*Installed, error) {
	m := b.Metadata
	was, err := i.Register.Installed(ctx, m.Name)
	if err != nil || was == nil {
		return nil, err
	}
	if was.Publisher != m.Publisher {
		return nil, refuse(OtherPublisher, b.name(), "%s is installed from %s, but this bundle is from %s", m.Name, was.Publisher, m.Publisher)
	}
	switch c := manifest.CompareVersions(m.Version, was.Version); {
	case c < 0:
		return nil, refuse(Downgrade, b.name(), "%s %s is installed, which is newer than %s", m.Name, was.Version, m.Version)
	case c == 0 && was.Digest != b.Digest():
		return nil, refuse(Republished, b.name(), "%s %s is installed with different content", m.Name, m.Version)
	}
	return was, nil
}

// dirOf returns the directory of a digest, whether it exists or not.
func (i *Installer) dirOf(digest string) string { return filepath.Join(i.Dir, digest) }

// Open opens an installed bundle and verifies that its files were not changed. Trust.Check
// decides whether its publisher is still trusted.
func (i *Installer) Open(digest string) (*Bundle, error) {
	if !IsDigest(digest) {
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

// IsDigest reports whether s is a SHA-256 digest in hexadecimal digits.
func IsDigest(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == ""
}

// Path returns the directory of an installed bundle.
func (b *Bundle) Path() string { return b.path }

// stage copies the files of a bundle atomically to their final directory.
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
	case err == nil: // the same files with a new signature
		if err := i.replaceSignature(there, b.text); err != nil {
			return nil, err
		}
		return i.Open(b.Digest())
	case !errors.Is(err, os.ErrNotExist):
		// The files were changed; they are replaced.
		if err := i.remove(b.Digest()); err != nil {
			return nil, err
		}
	}
	tmp, err := os.MkdirTemp(i.Dir, ".tmp-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp) // no effect after the rename
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

// Receive stores the files of a bundle that another daemon has installed. Trust.Holds decides whether
// its publisher is trusted.
func (i *Installer) Receive(path, digest string) error {
	b, err := Open(path)
	if err != nil {
		return err
	}
	if b.Digest() != digest {
		return refuse(Tampered, b.name(), "its files have the digest %s", b.Digest())
	}
	_, err = i.stage(b)
	return err
}

// replaceSignature atomically replaces signature.json. Concurrent readers see a complete
// bundle.
func (i *Installer) replaceSignature(b *Bundle, text []byte) error {
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

// remove is like discard, but for callers that hold i.files. It never leaves a partial bundle under
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

// review builds the review for the approver.
func (i *Installer) review(was *Installed, b *Bundle) (*Review, error) {
	var old *Bundle
	if was != nil {
		var err error
		if old, err = i.Open(was.Digest); err != nil {
			return nil, fmt.Errorf("compare with the installed bundle: %w", err)
		}
	}
	return NewReview(old, b)
}

// register records the bundle in the registry.
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

// Remove removes a bundle. It must not be in use.
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

// Sweep removes bundles that are not in keep: replaced versions, and files left by a crash. No
// bundle may be installed concurrently.
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
		case IsDigest(e.Name()) && !slices.Contains(keep, e.Name()):
			errs = append(errs, i.discard(e.Name()))
		}
	}
	return errors.Join(errs...)
}
