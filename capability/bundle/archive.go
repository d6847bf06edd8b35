package bundle

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits of a bundle.
const (
	maxFiles   = 10_000
	maxBytes   = 512 << 20 // unpacked
	maxArchive = 256 << 20 // packed

	// An archive is rejected as a bomb if it unpacks to more than bombSlack plus bombRatio
	// times its size.
	bombSlack = 16 << 20
	bombRatio = 100
)

// An entry is a file of a bundle that is being read. Its name is valid. r may be used until
// visit returns; its read errors are rejections.
type entry struct {
	name string
	exec bool
	r    io.Reader
}

func (e entry) mode() string {
	if e.exec {
		return execMode
	}
	return plainMode
}

// walk calls visit for every file of the directory or archive at path, in storage order. The
// input is untrusted. The entries passed to visit are within the limits and have valid names.
func walk(path string, visit func(entry) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	switch {
	case st.IsDir():
		return walkDir(path, visit)
	case !st.Mode().IsRegular():
		return refuse(Malformed, "", "neither a directory nor a file")
	}
	return walkArchive(f, st.Size(), visit)
}

func walkArchive(r io.ReaderAt, size int64, visit func(entry) error) error {
	if size > maxArchive {
		return refuse(TooLarge, "", "the archive has %d bytes, more than %d", size, maxArchive)
	}
	magic := make([]byte, 4)
	n, err := r.ReadAt(magic, 0)
	if err != nil && err != io.EOF {
		return err
	}
	w := &walker{names: newNames(), visit: visit, left: min(maxBytes, bombSlack+bombRatio*size), packed: true}
	switch magic = magic[:n]; {
	case bytes.HasPrefix(magic, []byte("PK\x03\x04")):
		return w.zip(r, size)
	case bytes.HasPrefix(magic, []byte("\x1f\x8b")):
		return w.targz(io.NewSectionReader(r, 0, size))
	}
	return refuse(Malformed, "", "neither a zip nor a tar.gz")
}

// A walker passes files to visit and enforces the limits.
type walker struct {
	names  *names
	visit  func(entry) error
	left   int64 // remaining bytes before the limit
	packed bool  // reading an archive
}

// admit checks the name and mode of an entry and reports whether it is a regular file.
func (w *walker) admit(name string, mode fs.FileMode) (file bool, err error) {
	if err := checkName(name); err != nil {
		return false, err
	}
	switch {
	case mode.IsDir():
		return false, w.names.add(name, false)
	case mode&fs.ModeSymlink != 0:
		return false, refuse(Symlink, "", "%q", name)
	case !mode.IsRegular():
		return false, refuse(Special, "", "%q is a device, a pipe or a socket", name)
	case mode&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0:
		return false, refuse(Special, "", "%q has mode bits other than rwx: %v", name, mode)
	}
	return true, w.names.add(name, true)
}

// file passes an admitted file to visit.
func (w *walker) file(name string, mode fs.FileMode, r io.Reader) error {
	return w.visit(entry{name: name, exec: mode&0o111 != 0, r: w.metered(name, r)})
}

func (w *walker) metered(name string, r io.Reader) io.Reader {
	return &meter{r: r, name: name, left: &w.left, packed: w.packed}
}

// A meter reads untrusted data. It fails when the limit is exceeded and converts errors to
// rejections.
type meter struct {
	r      io.Reader
	name   string
	left   *int64
	packed bool
}

func (m *meter) Read(b []byte) (int, error) {
	n, err := m.r.Read(b)
	if *m.left -= int64(n); *m.left < 0 {
		if m.packed {
			return 0, refuse(Bomb, "", "%s unpacks to more than %d times the archive, or more than %d bytes", m.name, bombRatio, maxBytes)
		}
		return 0, refuse(TooLarge, "", "more than %d bytes", maxBytes)
	}
	if err != nil && err != io.EOF && ReasonOf(err) == "" {
		err = refuse(Malformed, "", "%s: %w", m.name, err)
	}
	return n, err
}

func walkDir(path string, visit func(entry) error) error {
	root, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	defer root.Close()
	w := &walker{names: newNames(), visit: visit, left: maxBytes}
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if file, err := w.admit(name, info.Mode()); err != nil || !file {
			return err
		}
		// The file may have been replaced by a link or a pipe since Info.
		f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if errors.Is(err, unix.ELOOP) {
			return refuse(Symlink, "", "%q", name)
		}
		if err != nil {
			return err
		}
		defer f.Close()
		if info, err = f.Stat(); err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return refuse(Special, "", "%q is a device, a pipe or a socket", name)
		}
		if info.Size() > w.left {
			return refuse(TooLarge, "", "more than %d bytes", maxBytes)
		}
		return w.file(name, info.Mode(), f)
	})
}

const (
	zipEnd      = "PK\x05\x06" // signature of the end of central directory record (APPNOTE.TXT, section 4.3.16)
	zipEndLen   = 22
	zipEntryLen = 46 // fixed part of a central directory header
)

// checkZipEnd rejects a zip whose central directory does not end at the end of the file, or is
// larger than that of any valid bundle, because reading it would exhaust memory.
func checkZipEnd(r io.ReaderAt, size int64) error {
	if size < zipEndLen {
		return refuse(Malformed, "", "the file is truncated")
	}
	end := make([]byte, zipEndLen)
	if _, err := r.ReadAt(end, size-zipEndLen); err != nil {
		return err
	}
	if string(end[:4]) != zipEnd || binary.LittleEndian.Uint16(end[20:]) != 0 {
		return refuse(Trailing, "", "the central directory does not end at the end of the file: the file is truncated or has trailing data")
	}
	length, offset := int64(binary.LittleEndian.Uint32(end[12:])), int64(binary.LittleEndian.Uint32(end[16:]))
	if binary.LittleEndian.Uint16(end[10:]) > maxFiles || length > maxFiles*(zipEntryLen+2*maxName) {
		return refuse(TooMany, "", "more than %d entries", maxFiles)
	}
	if offset+length != size-zipEndLen {
		return refuse(Malformed, "", "the central directory is not at the declared offset")
	}
	return nil
}

func (w *walker) zip(r io.ReaderAt, size int64) error {
	if err := checkZipEnd(r, size); err != nil {
		return err
	}
	z, err := zip.NewReader(r, size)
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) { // admit checks names
		return refuse(Malformed, "", "%w", err)
	}
	if len(z.File) > maxFiles {
		return refuse(TooMany, "", "%d entries, more than %d", len(z.File), maxFiles)
	}
	for _, f := range z.File {
		if err := w.zipped(f); err != nil {
			return err
		}
	}
	return nil
}

func (w *walker) zipped(f *zip.File) error {
	name := strings.TrimSuffix(f.Name, "/")
	file, err := w.admit(name, f.Mode())
	switch {
	case err != nil:
		return err
	case f.Flags&1 != 0:
		return refuse(Encrypted, "", "%q", name)
	case f.UncompressedSize64 > maxBytes:
		return refuse(TooLarge, "", "%q declares %d bytes, more than %d", name, f.UncompressedSize64, maxBytes)
	case !file && f.UncompressedSize64 > 0:
		return refuse(Malformed, "", "%q is a directory with content", name)
	case !file:
		return nil
	}
	r, err := f.Open()
	if err != nil {
		return refuse(Malformed, "", "%q: %w", name, err)
	}
	defer r.Close()
	return w.file(name, f.Mode(), r)
}

func (w *walker) targz(r io.Reader) error {
	packed := bufio.NewReader(r)
	z, err := gzip.NewReader(packed)
	if err != nil {
		return refuse(Malformed, "", "%w", err)
	}
	z.Multistream(false)

	// Headers are metered separately from files, because a sparse file is larger than its
	// packed data.
	stream := w.left
	plain := &meter{r: z, name: "the archive", left: &stream, packed: true}
	if err := w.tar(plain); err != nil {
		return err
	}
	if err := onlyZeros(plain); err != nil {
		return err
	}
	if _, err := packed.ReadByte(); err != io.EOF {
		return refuse(Trailing, "", "data follows the end of the archive")
	}
	return nil
}

func (w *walker) tar(r io.Reader) error {
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		switch {
		case err == io.EOF:
			return nil
		case err != nil && !errors.Is(err, tar.ErrInsecurePath): // admit checks names
			if ReasonOf(err) == "" {
				err = refuse(Malformed, "", "%w", err)
			}
			return err
		}
		if err := w.tarred(h, t); err != nil {
			return err
		}
	}
}

func (w *walker) tarred(h *tar.Header, r io.Reader) error {
	name := strings.TrimSuffix(strings.TrimPrefix(h.Name, "./"), "/")
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeSymlink:
	case tar.TypeDir:
		if name == "" || name == "." {
			return nil // the root of the bundle
		}
	case tar.TypeLink:
		return refuse(HardLink, "", "%q", name)
	default:
		return refuse(Special, "", "%q is of type %q", name, h.Typeflag)
	}
	mode := h.FileInfo().Mode()
	file, err := w.admit(name, mode)
	if err != nil || !file {
		return err
	}
	if h.Size > maxBytes {
		return refuse(TooLarge, "", "%q declares %d bytes, more than %d", name, h.Size, maxBytes)
	}
	return w.file(name, mode, r)
}

// onlyZeros reads to the end and rejects anything but zero padding.
func onlyZeros(r io.Reader) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		if len(bytes.Trim(buf[:n], "\x00")) > 0 {
			return refuse(Trailing, "", "data follows the end of the archive")
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read to the end: %w", err)
		}
	}
}
