package bundle

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/internal/atomicfile"
)

// Sign writes signature.json for the bundle in dir. It rejects a bundle that an installer would
// reject. A zero expires means never.
func Sign(dir string, k *SecretKey, expires time.Time) (*Bundle, error) {
	b, err := sign(dir, k, expires)
	if err != nil {
		return nil, on(dir, err)
	}
	return b, nil
}

func sign(dir string, k *SecretKey, expires time.Time) (*Bundle, error) {
	c, err := scan(dir)
	if err != nil {
		return nil, err
	}
	b := &Bundle{path: dir}
	if err := b.read(c); err != nil {
		return nil, err
	}
	if err := b.CheckClaims(); err != nil {
		return nil, err
	}
	s := Signature{
		Name: b.Metadata.Name, Version: b.Metadata.Version, Publisher: b.Metadata.Publisher,
		Signed: stamp(time.Now()), Files: c.files,
	}
	if !expires.IsZero() {
		s.Expires = stamp(expires)
	}
	if err := s.sign(k); err != nil {
		return nil, err
	}
	text, err := s.text()
	if err != nil {
		return nil, fmt.Errorf("encode the signature: %w", err)
	}
	if err := atomicfile.Write(filepath.Join(dir, SignatureFile), text, 0o644); err != nil {
		return nil, fmt.Errorf("write the signature: %w", err)
	}
	return open(dir)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Archives are the file name extensions of packed bundles.
var Archives = []string{".tar.gz", ".tgz", ".zip"}

// IsArchive reports whether a file name has an extension of a packed bundle.
func IsArchive(name string) bool {
	for _, end := range Archives {
		if strings.HasSuffix(name, end) {
			return true
		}
	}
	return false
}

// Pack packs a bundle that was opened from a directory. The extension of file selects zip or
// tar.gz. The output is deterministic.
func (b *Bundle) Pack(file string) (err error) {
	const op = "bundle.Pack"
	if !IsArchive(file) {
		return fault.Newf(fault.Invalid, op, file, "the name does not end in one of %s", strings.Join(Archives, ", "))
	}
	if inside(b.path, file) {
		return fault.Newf(fault.Invalid, op, file, "the archive would be inside the bundle, as an unsigned file")
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".tmp-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	to := packer(newTarGz(f))
	if strings.HasSuffix(file, ".zip") {
		to = &zipPacker{zip.NewWriter(f)}
	}
	if err := b.pack(to); err != nil {
		return fmt.Errorf("pack %s: %w", file, err)
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

// inside reports whether file is in dir.
func inside(dir, file string) bool {
	at, err1 := filepath.EvalSymlinks(dir)
	in, err2 := filepath.EvalSymlinks(filepath.Dir(file))
	if err1 == nil && err2 == nil {
		at, err1 = filepath.Abs(at)
		in, err2 = filepath.Abs(in)
	}
	if err1 != nil || err2 != nil {
		return false // creating the file will return the error
	}
	rel, err := filepath.Rel(at, in)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

func (b *Bundle) pack(to packer) error {
	root, err := os.OpenRoot(b.path)
	if err != nil {
		return err
	}
	defer root.Close()
	at, err := utc(b.Signature.Signed)
	if err != nil {
		return err
	}
	if err := to.add(File{Path: SignatureFile, Mode: plainMode, Size: int64(len(b.text))}, at, bytes.NewReader(b.text)); err != nil {
		return err
	}
	for _, f := range b.Signature.Files {
		if err := packFile(root, f, at, to); err != nil {
			return err
		}
	}
	return to.Close()
}

// packFile adds a file and checks that it matches its signature.
func packFile(root *os.Root, f File, at time.Time, to packer) error {
	r, err := root.Open(f.Path)
	if err != nil {
		return err
	}
	defer r.Close()
	sum := sha256.New()
	if err := to.add(f, at, io.TeeReader(r, sum)); err != nil {
		return err
	}
	if hex.EncodeToString(sum.Sum(nil)) != f.SHA256 {
		return refuse(Tampered, "", "%q was changed during packing", f.Path)
	}
	return nil
}

// A packer writes an archive.
type packer interface {
	add(f File, at time.Time, r io.Reader) error
	Close() error
}

func (f File) perm() fs.FileMode {
	if f.Mode == execMode {
		return 0o755
	}
	return 0o644
}

type tarGz struct {
	z *gzip.Writer
	t *tar.Writer
}

func newTarGz(w io.Writer) *tarGz {
	z := gzip.NewWriter(w)
	return &tarGz{z: z, t: tar.NewWriter(z)}
}

func (p *tarGz) add(f File, at time.Time, r io.Reader) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: f.Path, Mode: int64(f.perm()), Size: f.Size, ModTime: at}
	if err := p.t.WriteHeader(h); err != nil {
		return fmt.Errorf("write the header of %s: %w", f.Path, err)
	}
	if _, err := io.Copy(p.t, r); err != nil {
		return fmt.Errorf("copy %s: %w", f.Path, err)
	}
	return nil
}

func (p *tarGz) Close() error { return errors.Join(p.t.Close(), p.z.Close()) }

type zipPacker struct{ *zip.Writer }

func (p *zipPacker) add(f File, at time.Time, r io.Reader) error {
	h := &zip.FileHeader{Name: f.Path, Method: zip.Deflate, Modified: at}
	h.SetMode(f.perm())
	w, err := p.CreateHeader(h)
	if err != nil {
		return fmt.Errorf("write the header of %s: %w", f.Path, err)
	}
	if _, err := io.Copy(w, r); err != nil {
		return fmt.Errorf("copy %s: %w", f.Path, err)
	}
	return nil
}
