package bundle

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// extract writes the files of a bundle to an empty directory. It reads them again and rejects
// any difference from the verified content. When it returns, the files are synced to disk.
func (b *Bundle) extract(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	x := &extraction{root: root, want: map[string]File{}, dirs: map[string]bool{".": true}}
	for _, f := range b.Signature.Files {
		x.want[f.Path] = f
	}
	if err := walk(b.path, x.file); err != nil {
		return err
	}
	for name := range x.want {
		return refuse(Missing, "", "%q was removed", name)
	}
	if _, err := x.write(File{Path: SignatureFile}, bytes.NewReader(b.text)); err != nil {
		return err
	}
	return x.sync()
}

// An extraction is the state of extract.
type extraction struct {
	root *os.Root
	want map[string]File // files not yet written
	dirs map[string]bool // directories created
}

func (x *extraction) file(e entry) error {
	if e.name == SignatureFile {
		return nil // the verified one is written instead
	}
	want, ok := x.want[e.name]
	if !ok {
		return refuse(Unlisted, "", "%q was not signed", e.name)
	}
	delete(x.want, e.name)
	sum := sha256.New()
	n, err := x.write(want, io.TeeReader(e.r, sum))
	if err != nil {
		return err
	}
	return want.same(File{Path: e.name, Mode: e.mode(), Size: n, SHA256: hex.EncodeToString(sum.Sum(nil))})
}

// write creates a read-only file and returns its size.
func (x *extraction) write(f File, r io.Reader) (int64, error) {
	if err := x.makeDirs(path.Dir(f.Path)); err != nil {
		return 0, err
	}
	w, err := x.root.OpenFile(f.Path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(w, r)
	if err != nil {
		return n, errors.Join(err, w.Close())
	}
	return n, errors.Join(w.Chmod(f.perm()&^0o222), w.Sync(), w.Close())
}

func (x *extraction) makeDirs(dir string) error {
	for d := dir; !x.dirs[d]; d = path.Dir(d) {
		x.dirs[d] = true
	}
	return x.root.MkdirAll(dir, 0o755)
}

func (x *extraction) sync() error {
	for d := range x.dirs {
		f, err := x.root.Open(d)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return nil
}
