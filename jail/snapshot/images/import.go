package images

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"

	"glasshouse/fault"
)

// Import reads an archive from r, which may be untrusted, and writes its files to the new
// directory into. It returns metadata.json and checks only its JSON syntax. Pages of
// zeros become holes. The files are not synced; the caller does that if it keeps them.
//
// Import returns fault.Invalid if r is not a complete archive or contains unexpected data,
// fault.TooLarge if it exceeds the limits, and the error of r if reading fails. After an
// error, into does not exist.
func Import(r io.Reader, into string, limits Limits) (meta []byte, err error) {
	err = os.Mkdir(into, 0o700)
	if errors.Is(err, fs.ErrExist) {
		err = fault.New(fault.Conflict, "", "", err)
	}
	if err != nil {
		return nil, wrapError("images.Import", "", err)
	}
	meta, err = importFrom(r, into, limits)
	if err != nil {
		return nil, wrapError("images.Import", "", errors.Join(err, os.RemoveAll(into)))
	}
	return meta, nil
}

func importFrom(r io.Reader, into string, limits Limits) ([]byte, error) {
	src := &source{r: r}
	zr, err := zstd.NewReader(src, zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, src.readError(err)
	}
	defer zr.Close()
	i := &importer{src: src, tar: tar.NewReader(zr), into: into, limits: limits, left: limits.Bytes, dirs: map[string]bool{}}
	meta, err := i.meta()
	if err != nil {
		return nil, err
	}
	if err := i.files(); err != nil {
		return nil, err
	}
	return meta, i.checkEnd(zr)
}

// maxWindow bounds the window size of a compressed stream and thereby the memory of the
// decoder. Export uses a window of 8 MiB, and zstd(1) does not exceed maxWindow without
// --ultra.
const maxWindow = 32 << 20

// A source is a reader that records its errors, to distinguish them from errors in the
// archive.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		s.err = err
	}
	return n, err
}

// readError returns the reason for a failed read.
func (s *source) readError(err error) error {
	if s.err != nil {
		return fmt.Errorf("read the archive: %w", s.err)
	}
	if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
		return invalid("the archive is truncated")
	}
	return invalid("the archive is damaged: %w", err)
}

func invalid(format string, args ...any) error {
	return fault.Newf(fault.Invalid, "", "", format, args...)
}

func tooLarge(format string, args ...any) error {
	return fault.Newf(fault.TooLarge, "", "", format, args...)
}

type importer struct {
	src    *source
	tar    *tar.Reader
	into   string
	limits Limits
	left   int64 // remaining part of limits.Bytes
	dirs   map[string]bool
	sums   []string // expected lines of SHA256SUMS
	buf    []byte
}

// next returns the header of the next file.
func (i *importer) next() (*tar.Header, error) {
	h, err := i.tar.Next()
	if err != nil {
		return nil, i.src.readError(err)
	}
	if h.Typeflag != tar.TypeReg {
		return nil, invalid("%.100q is not a regular file", h.Name)
	}
	return h, nil
}

// readSmall returns the content of a file of at most max bytes.
func (i *importer) readSmall(h *tar.Header, max int64) ([]byte, error) {
	if h.Size > max {
		return nil, tooLarge("%s is larger than %d bytes", h.Name, max)
	}
	b, err := io.ReadAll(i.tar)
	if err != nil {
		return nil, i.src.readError(err)
	}
	return b, nil
}

func (i *importer) meta() ([]byte, error) {
	h, err := i.next()
	if err != nil {
		return nil, err
	}
	if h.Name != metaName {
		return nil, invalid("it begins with %.100q, not with %s", h.Name, metaName)
	}
	b, err := i.readSmall(h, i.limits.Meta)
	if err != nil {
		return nil, err
	}
	if !json.Valid(b) {
		return nil, invalid("%s is not JSON", metaName)
	}
	sum := sha256.Sum256(b)
	i.sums = append(i.sums, sumLine(sum[:], metaName))
	return b, nil
}

// files extracts the files up to SHA256SUMS, and verifies the checksums.
func (i *importer) files() error {
	for n := 0; ; n++ {
		h, err := i.next()
		if err != nil {
			return err
		}
		if h.Name == sumsName {
			return i.compare(h)
		}
		if !archiveName(h.Name) || !i.limits.named(h.Name) {
			return invalid("%.100q is not a file of a snapshot", h.Name)
		}
		if n == i.limits.Files {
			return tooLarge("there are more than %d files", n)
		}
		i.left -= h.Size
		if i.left < 0 {
			return tooLarge("the files are larger than %d bytes", i.limits.Bytes)
		}
		if err := i.file(h); err != nil {
			return err
		}
	}
}

func (i *importer) file(h *tar.Header) error {
	name := filepath.Join(i.into, h.Name)
	if dir := filepath.Dir(h.Name); dir != "." && !i.dirs[dir] {
		if err := os.Mkdir(filepath.Join(i.into, dir), 0o700); err != nil {
			return mapDuplicate(h, err)
		}
		i.dirs[dir] = true
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return mapDuplicate(h, err)
	}
	defer f.Close()
	if err := f.Truncate(h.Size); err != nil {
		return err
	}
	if err := i.copy(f, h); err != nil {
		return err
	}
	return f.Close()
}

// mapDuplicate returns fault.Invalid if err reports an existing file.
func mapDuplicate(h *tar.Header, err error) error {
	if errors.Is(err, fs.ErrExist) {
		return invalid("duplicate file %s", h.Name)
	}
	return err
}

func (i *importer) copy(f *os.File, h *tar.Header) error {
	if i.buf == nil {
		i.buf = make([]byte, 256<<10)
	}
	sum := sha256.New()
	for off := int64(0); off < h.Size; {
		b := i.buf[:min(int64(len(i.buf)), h.Size-off)]
		if _, err := io.ReadFull(i.tar, b); err != nil {
			return i.src.readError(err)
		}
		sum.Write(b)
		if err := writeSparse(f, b, off); err != nil {
			return err
		}
		off += int64(len(b))
	}
	i.sums = append(i.sums, sumLine(sum.Sum(nil), h.Name))
	return nil
}

// compare reads SHA256SUMS and compares it with the computed checksums.
func (i *importer) compare(h *tar.Header) error {
	want := len(strings.Join(i.sums, ""))
	if h.Size != int64(want) {
		return invalid("%s does not match the files in the archive", sumsName)
	}
	b, err := i.readSmall(h, h.Size)
	if err != nil {
		return err
	}
	lines := strings.SplitAfter(string(b), "\n")
	for n, sum := range i.sums {
		if n >= len(lines) || lines[n] != sum {
			_, name, _ := strings.Cut(strings.TrimSpace(sum), "  ")
			return invalid("%s: checksum differs from %s", name, sumsName)
		}
	}
	return nil
}

// checkEnd checks that only padding follows, which also verifies the compressed stream up to
// its end.
func (i *importer) checkEnd(rest io.Reader) error {
	if h, err := i.tar.Next(); err == nil {
		return invalid("%.100q follows %s", h.Name, sumsName)
	} else if err != io.EOF {
		return i.src.readError(err)
	}
	b, err := io.ReadAll(io.LimitReader(rest, 1<<20))
	if err != nil {
		return i.src.readError(err)
	}
	if len(b) == 1<<20 || len(bytes.Trim(b, "\x00")) > 0 {
		return invalid("unexpected data after the archive")
	}
	return nil
}
