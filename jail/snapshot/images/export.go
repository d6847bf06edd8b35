package images

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// An archive is a tar file compressed with zstd, which standard tools can read: metadata.json,
// then the files, then SHA256SUMS over all of them in the format of sha256sum(1). Holes are
// stored as zeros, which compress to almost nothing.
const (
	metaName = "metadata.json"
	sumsName = "SHA256SUMS"
)

// A File is a file of an archive.
type File struct {
	Name string // in the archive: a plain name, or one in a directory: "memory/pages-1.img"
	Path string // on the host
}

// Export writes an archive to w. The files must not change meanwhile. After an error, Import
// rejects the data written so far.
func Export(w io.Writer, meta []byte, files []File) error {
	if err := export(w, meta, files); err != nil {
		return wrapError("images.Export", "", err)
	}
	return nil
}

func export(w io.Writer, meta []byte, files []File) error {
	zw, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(workers()))
	if err != nil {
		return fmt.Errorf("create the compressor: %w", err)
	}
	defer zw.Close() // stops its goroutines; a second Close does nothing
	e := &exporter{tar: tar.NewWriter(zw), buf: make([]byte, 256<<10)}
	if err := e.add(metaName, int64(len(meta)), bytes.NewReader(meta)); err != nil {
		return err
	}
	for _, f := range files {
		if !archiveName(f.Name) {
			return fault.Newf(fault.Invalid, "", "", "%q is not a valid file name in an archive", f.Name)
		}
		if err := e.addFile(f); err != nil {
			return err
		}
	}
	sums := e.sums.String()
	if err := e.add(sumsName, int64(len(sums)), strings.NewReader(sums)); err != nil {
		return err
	}
	if err := e.tar.Close(); err != nil {
		return fmt.Errorf("end the archive: %w", err)
	}
	return zw.Close()
}

type exporter struct {
	tar  *tar.Writer
	sums strings.Builder
	buf  []byte
}

func (e *exporter) addFile(f File) error {
	in, err := os.OpenFile(f.Path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fault.Newf(fault.Invalid, "", "", "%s is not a regular file", f.Path)
	}
	return e.add(f.Name, st.Size(), in)
}

func (e *exporter) add(name string, size int64, r io.Reader) error {
	if err := e.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600}); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	h := sha256.New()
	n, err := io.CopyBuffer(io.MultiWriter(e.tar, h), io.LimitReader(r, size), e.buf)
	if err == nil && n < size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	e.sums.WriteString(sumLine(h.Sum(nil), name))
	return nil
}

// sumLine returns a line in the format of sha256sum(1).
func sumLine(sum []byte, name string) string { return hex.EncodeToString(sum) + "  " + name + "\n" }

// archiveName reports whether s is a valid file name in an archive.
func archiveName(s string) bool {
	if s == metaName || s == sumsName || strings.ContainsAny(s, "\r\\") {
		return false
	}
	dir, base, nested := strings.Cut(s, "/")
	return plainName(dir) && (!nested || plainName(base))
}

// Limits are the limits of Import.
type Limits struct {
	Names []string // permitted file names, as patterns of filepath.Match
	Files int      // number of files
	Bytes int64    // bytes of all files, including holes
	Meta  int64    // metadata of metadata.json
}

func (l Limits) named(name string) bool {
	for _, p := range l.Names {
		if ok, err := filepath.Match(p, name); ok && err == nil {
			return true
		}
	}
	return false
}
