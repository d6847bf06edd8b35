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

// Limits of an archive.
const (
	maxEntriesOfTar = 200_000
	maxPath         = 4 << 10
	maxDepth        = 100
)

// pack reads an archive from a client, a tar that may be compressed with gzip, and writes it to
// w in a form that can be trusted. The result contains only files, directories and links, with
// names inside the archive that do not pass through a link, and at most limit bytes. pack
// returns a digest of the contents, which does not depend on owners and times.
//
// It returns fault.Invalid for a damaged or hostile archive, and fault.TooLarge for one above
// the limit.
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
				return "", fmt.Errorf("complete the stored archive: %w", err)
			}
			_, err := io.Copy(io.Discard, io.LimitReader(in, 1<<20)) // padding; reading it verifies the checksum of gzip
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

// unzipped decompresses r if it is compressed with gzip.
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

// damaged converts errors of package tar and gzip to fault.Invalid.
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
	kinds       map[string]byte // types of the entries, by name
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
	// An empty entry also needs space.
	if p.left -= 512 + int64(len(h.Name)+len(h.Linkname)); p.left < 0 || h.Size > p.left {
		return fault.Newf(fault.TooLarge, "template.entry", "", "the files have more than %d MiB", p.limit>>20)
	}
	if len(p.kinds) >= maxEntriesOfTar {
		return fault.Newf(fault.TooLarge, "template.entry", "", "more than %d files", maxEntriesOfTar)
	}
	if err := p.record(name, h.Typeflag); err != nil {
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
			return invalid("%q is a link without a target", short(h.Name))
		}
		out.Linkname = h.Linkname
	case tar.TypeLink:
		out.Linkname, err = entryName(h.Linkname)
		if err != nil {
			return err
		}
		if p.kinds[out.Linkname] != tar.TypeReg || out.Linkname == name {
			return invalid("%q is a hard link to %q, which is not an earlier file", short(h.Name), short(h.Linkname))
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

// record stores the type of the entry at a name. A parent that is not a directory is an error:
// through a link, the entry could be anywhere.
func (p *packer) record(name string, kind byte) error {
	for above := path.Dir(name); above != "."; above = path.Dir(above) {
		if was, known := p.kinds[above]; known && was != tar.TypeDir {
			return invalid("the parent of %q is not a directory", short(name))
		} else if !known {
			p.kinds[above] = tar.TypeDir
		}
	}
	if was, known := p.kinds[name]; known && (was == tar.TypeDir) != (kind == tar.TypeDir) {
		return invalid("%q occurs twice, as a directory and as another type", short(name))
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
		return "", invalid("the name %q is too long", short(name))
	}
	return path.Clean(name), nil
}

// A destination describes where the files of an archive go in a tree, and their owner there.
type destination struct {
	from     string // path in the archive
	to       string // absolute path; for a file its own name, otherwise a directory
	into     bool   // to is a directory, and a single file is copied into it
	uid, gid int
	mode     int64 // -1 leaves it unchanged
}

// rewrite converts the files below l.from of an archive that pack wrote for extraction in a
// tree. It returns the number of files.
func rewrite(ctx context.Context, r io.Reader, w io.Writer, l destination) (int, error) {
	in, out := tar.NewReader(r), tar.NewWriter(w)
	count := 0
	for {
		h, err := in.Next()
		if err == io.EOF {
			return count, out.Close()
		}
		if err != nil {
			return count, fmt.Errorf("read the stored archive: %w", err)
		}
		if ctx.Err() != nil {
			return count, context.Cause(ctx)
		}
		name, ok := l.target(h.Name, h.Typeflag)
		if !ok {
			continue
		}
		if name == "" { // the directory itself
			count++
			continue
		}
		h.Name, h.Uid, h.Gid, h.Uname, h.Gname = name, l.uid, l.gid, "", ""
		if l.mode >= 0 && h.Typeflag != tar.TypeSymlink {
			h.Mode = l.mode
		}
		if h.Typeflag == tar.TypeLink {
			h.Linkname, ok = l.target(h.Linkname, tar.TypeReg)
			if !ok {
				return count, invalid("%q is a hard link to a file that is not copied", short(h.Name))
			}
		}
		if err := out.WriteHeader(h); err != nil {
			return count, fmt.Errorf("write the header of %s: %w", h.Name, err)
		}
		if _, err := io.Copy(out, in); err != nil {
			return count, fmt.Errorf("copy %s: %w", h.Name, err)
		}
		count++
	}
}

// target returns the path in the tree of a file of the archive, without the first slash. It
// returns "" for the directory whose contents are copied.
func (l destination) target(name string, kind byte) (string, bool) {
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
		rel, below = strings.CutPrefix(name, l.from+"/")
		if !below {
			return "", false
		}
	}
	return path.Join(to, rel), true
}

// eachEntry calls take for each entry of an archive that pack wrote.
func eachEntry(r io.Reader, take func(name string, dir bool)) error {
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the stored archive: %w", err)
		}
		take(h.Name, h.Typeflag == tar.TypeDir)
	}
}
