package template

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"path"
	"slices"
	"strings"

	"glasshouse/fault"
)

// What an archive may have.
const (
	maxEntriesOfTar = 200_000
	maxPath         = 4 << 10
	maxDepth        = 100
)

// pack reads an archive that a client sent, a tar that may be compressed with gzip, and
// writes it to w as one that can be trusted: of files, directories and links, whose names
// lead nowhere outside and through no link, and of no more than limit bytes. It returns a
// digest of what is in it, which knows nothing of owners and times.
//
// It is fault.Invalid if it is damaged or hostile, and fault.TooLarge if there is more.
func pack(ctx context.Context, r io.Reader, w io.Writer, limit int64) (string, error) {
	in, err := unzipped(r)
	if err != nil {
		return "", err
	}
	p := &packer{in: tar.NewReader(in), out: tar.NewWriter(w), left: limit, limit: limit, kinds: map[string]byte{}, sum: sha256.New()}
	for {
		h, err := p.in.Next()
		switch {
		case err == io.EOF:
			if err := p.out.Close(); err != nil {
				return "", err
			}
			_, err := io.Copy(io.Discard, io.LimitReader(in, 1<<20)) // padding; what is compressed is checked at its end
			return hex.EncodeToString(p.sum.Sum(nil)), damaged(err)
		case err != nil:
			return "", damaged(err)
		case ctx.Err() != nil:
			return "", context.Cause(ctx)
		}
		if err := p.entry(h); err != nil {
			return "", damaged(err)
		}
	}
}

// unzipped takes gzip off, if it is there.
func unzipped(r io.Reader) (io.Reader, error) {
	b := bufio.NewReader(r)
	if magic, _ := b.Peek(2); !bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		return b, nil
	}
	z, err := gzip.NewReader(b)
	if err != nil {
		return nil, damaged(err)
	}
	return z, nil
}

// damaged gives what package tar and gzip say of an archive its kind.
func damaged(err error) error {
	if err == nil || fault.KindOf(err) != "" {
		return err
	}
	for _, known := range []error{tar.ErrHeader, tar.ErrFieldTooLong, tar.ErrWriteTooLong, tar.ErrWriteAfterClose, gzip.ErrHeader, gzip.ErrChecksum, io.ErrUnexpectedEOF} {
		if errors.Is(err, known) {
			return invalid("the archive is damaged: %v", err)
		}
	}
	if strings.HasPrefix(err.Error(), "flate: ") || strings.HasPrefix(err.Error(), "archive/tar: ") {
		return invalid("the archive is damaged: %v", err)
	}
	return err
}

type packer struct {
	in          *tar.Reader
	out         *tar.Writer
	left, limit int64
	kinds       map[string]byte // what there is, by name
	sum         hash.Hash
}

func (p *packer) entry(h *tar.Header) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := entryName(h.Name)
	if err != nil {
		return err
	}
	if name == "." {
		return nil
	}
	// Each entry costs something, were it empty.
	if p.left -= 512 + int64(len(h.Name)+len(h.Linkname)); p.left < 0 || h.Size > p.left {
		return fault.Newf(fault.TooLarge, "e2b", "", "the files have more than %d MiB", p.limit>>20)
	}
	if len(p.kinds) >= maxEntriesOfTar {
		return fault.Newf(fault.TooLarge, "e2b", "", "more than %d files", maxEntriesOfTar)
	}
	if err := p.place(name, h.Typeflag); err != nil {
		return err
	}
	out := &tar.Header{Typeflag: h.Typeflag, Name: name, Mode: h.Mode & 0o7777, ModTime: h.ModTime, Format: tar.FormatPAX}
	switch h.Typeflag {
	case tar.TypeReg:
		out.Size = h.Size
		p.left -= h.Size
	case tar.TypeDir:
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) > maxPath || strings.Contains(h.Linkname, "\x00") {
			return invalid("%q is a link that leads nowhere", short(h.Name))
		}
		out.Linkname = h.Linkname
	case tar.TypeLink:
		if out.Linkname, err = entryName(h.Linkname); err != nil {
			return err
		}
		if p.kinds[out.Linkname] != tar.TypeReg || out.Linkname == name {
			return invalid("%q is a second name of %q, which is no file before it", short(h.Name), short(h.Linkname))
		}
		p.kinds[name] = tar.TypeReg
	default:
		return invalid("%q is neither a file, a directory nor a link", short(h.Name))
	}
	fmt.Fprintf(p.sum, "%c %q %o %d %q\n", out.Typeflag, out.Name, out.Mode, out.Size, out.Linkname)
	if err := p.out.WriteHeader(out); err != nil {
		return err
	}
	n, err := io.Copy(io.MultiWriter(p.out, p.sum), p.in)
	if err == nil && n != out.Size {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// place notes what there is at a name. Nothing is below what is not a directory: through
// a link of the archive it could be anywhere.
func (p *packer) place(name string, kind byte) error {
	for above := path.Dir(name); above != "."; above = path.Dir(above) {
		if was, known := p.kinds[above]; known && was != tar.TypeDir {
			return invalid("%q is below what is not a directory", short(name))
		} else if !known {
			p.kinds[above] = tar.TypeDir
		}
	}
	if was, known := p.kinds[name]; known && (was == tar.TypeDir) != (kind == tar.TypeDir) {
		return invalid("%q is there twice, as a directory and as something else", short(name))
	}
	p.kinds[name] = kind
	return nil
}

// entryName checks a name in an archive and makes it relative.
func entryName(name string) (string, error) {
	parts := strings.Split(name, "/")
	switch {
	case name == "" || strings.Contains(name, "\x00"):
		return "", invalid("a file in the archive has no name")
	case strings.HasPrefix(name, "/") || slices.Contains(parts, ".."):
		return "", invalid("%q leads out of the archive", short(name))
	case len(name) > maxPath || len(parts) > maxDepth:
		return "", invalid("%q is too long a name", short(name))
	}
	return path.Clean(name), nil
}

// A landing is where the files of an archive go in a tree, and whose they are there.
type landing struct {
	from     string // in the archive
	to       string // absolute; of a file its own name, else a directory
	into     bool   // to is a directory into which a single file goes
	uid, gid int
	mode     int64 // -1 leaves it
}

// rewrite writes the files below l.from of an archive that pack made, as they are to be in
// a tree. It returns how many there were.
func rewrite(ctx context.Context, r io.Reader, w io.Writer, l landing) (int, error) {
	in, out := tar.NewReader(r), tar.NewWriter(w)
	count := 0
	for {
		h, err := in.Next()
		if err == io.EOF {
			return count, out.Close()
		}
		if err != nil {
			return count, err
		}
		if ctx.Err() != nil {
			return count, context.Cause(ctx)
		}
		name, ok := l.place(h.Name, h.Typeflag)
		if !ok {
			continue
		}
		if name == "" { // what is copied is a directory, and this is that
			count++
			continue
		}
		h.Name, h.Uid, h.Gid, h.Uname, h.Gname = name, l.uid, l.gid, "", ""
		if l.mode >= 0 && h.Typeflag != tar.TypeSymlink {
			h.Mode = l.mode
		}
		if h.Typeflag == tar.TypeLink {
			if h.Linkname, ok = l.place(h.Linkname, tar.TypeReg); !ok {
				return count, invalid("%q is a second name of a file that is not copied", short(h.Name))
			}
		}
		if err := out.WriteHeader(h); err != nil {
			return count, err
		}
		if _, err := io.Copy(out, in); err != nil {
			return count, err
		}
		count++
	}
}

// place returns where in the tree a file of the archive goes, without the first slash. It
// is "" for the directory itself whose files are copied.
func (l landing) place(name string, kind byte) (string, bool) {
	to := strings.TrimPrefix(path.Clean(l.to), "/")
	if name == l.from {
		switch {
		case kind == tar.TypeDir:
			return "", true
		case l.into:
			return path.Join(to, path.Base(name)), true
		}
		return to, true
	}
	rel := name
	if l.from != "." {
		var below bool
		if rel, below = strings.CutPrefix(name, l.from+"/"); !below {
			return "", false
		}
	}
	return path.Join(to, rel), true
}

// eachEntry tells of all that is in an archive that pack made.
func eachEntry(r io.Reader, take func(name string, dir bool)) error {
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		take(h.Name, h.Typeflag == tar.TypeDir)
	}
}
