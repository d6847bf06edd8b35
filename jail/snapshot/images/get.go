package images

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// Get restores the image directory stored as dst to into, which must be empty or not exist. It
// verifies every byte. After an error, into contains no files.
//
// Get returns fault.NotFound if no snapshot is stored at dst, and fault.Conflict with the name
// of the affected file if the stored data is damaged.
func (s *Store) Get(ctx context.Context, dst, into string) (Sum, error) {
	x, done, err := s.index(dst)
	if err != nil {
		return Sum{}, wrapError("images.Get", filepath.Base(dst), err)
	}
	defer done()
	if err := s.restore(ctx, x, into); err != nil {
		return Sum{}, wrapError("images.Get", filepath.Base(dst), err)
	}
	return x.sum(), nil
}

// Verify reads and checks the same data as Get, and returns the same errors.
func (s *Store) Verify(ctx context.Context, dst string) (Sum, error) {
	x, done, err := s.index(dst)
	if err != nil {
		return Sum{}, wrapError("images.Verify", filepath.Base(dst), err)
	}
	defer done()
	if err := s.read(ctx, x, func([]position, []byte) error { return nil }); err != nil {
		return Sum{}, wrapError("images.Verify", filepath.Base(dst), err)
	}
	return x.sum(), nil
}

// index returns the index of dst. Its chunks remain readable until done is called.
func (s *Store) index(dst string) (x *index, done func(), err error) {
	x, err = readIndex(filepath.Join(dst, indexName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fault.New(fault.NotFound, "", "", err)
	}
	if errors.Is(err, errDamaged) {
		return nil, nil, damaged(err)
	}
	if err != nil {
		return nil, nil, err
	}
	done, ok := s.acquire(x.id)
	if !ok {
		return nil, nil, fault.Newf(fault.NotFound, "", "", "the image was deleted or belongs to another store")
	}
	return x, done, nil
}

// damaged adds a remedy to err.
func damaged(err error) error {
	return &fault.Error{Kind: fault.Conflict, Err: err, Remedy: "delete the snapshot; its memory is lost"}
}

func (s *Store) restore(ctx context.Context, x *index, into string) (err error) {
	madeDir, err := emptyDir(into)
	if err != nil {
		return err
	}
	made := 0
	defer func() {
		if err == nil {
			return
		}
		for _, f := range x.files[:made] {
			os.Remove(filepath.Join(into, f.name))
		}
		if madeDir {
			os.Remove(into)
		}
	}()
	for _, f := range x.files {
		if err := makeFile(filepath.Join(into, f.name), f.size); err != nil {
			return err
		}
		made++
	}
	return s.read(ctx, x, func(spots []position, data []byte) error {
		for _, sp := range spots {
			if err := writeFile(filepath.Join(into, x.files[sp.file].name), data, sp.off); err != nil {
				return err
			}
		}
		return nil
	})
}

// makeFile creates a file of zeros. It is world-readable, because a restored process reads its
// images with its own user ID; the directory restricts access.
func makeFile(name string, size int64) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Chmod(0o644), f.Truncate(size), f.Close()); err != nil {
		os.Remove(name)
		return err
	}
	return nil
}

// writeFile writes data into a file of zeros. It does not keep the file open, because a
// checkpoint of many processes has thousands of files.
func writeFile(name string, data []byte, off int64) error {
	f, err := os.OpenFile(name, os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return errors.Join(writeSparse(f, data, off), f.Close())
}

func emptyDir(name string) (made bool, err error) {
	err = os.Mkdir(name, 0o700)
	if err == nil || !errors.Is(err, fs.ErrExist) {
		return err == nil, err
	}
	entries, err := os.ReadDir(name)
	if err == nil && len(entries) > 0 {
		err = fault.Newf(fault.Conflict, "", "", "%s is not empty", name)
	}
	return false, err
}

// writeSparse writes data except pages of zeros, which must already be zero in the file.
func writeSparse(w io.WriterAt, data []byte, off int64) error {
	for len(data) > 0 {
		skip := 0
		for skip < len(data) && isZero(data[skip:min(skip+page, len(data))]) {
			skip = min(skip+page, len(data))
		}
		end := skip
		for end < len(data) && !isZero(data[end:min(end+page, len(data))]) {
			end = min(end+page, len(data))
		}
		if end > skip {
			if _, err := w.WriteAt(data[skip:end], off+int64(skip)); err != nil {
				return err
			}
		}
		data, off = data[end:], off+int64(end)
	}
	return nil
}

// isZero reports whether p, which is at most a page, contains only zeros.
func isZero(p []byte) bool { return bytes.Equal(p, zeros[:len(p)]) }

// A position is the position of a chunk in a file.
type position struct {
	file int
	off  int64
}

// read calls fn concurrently with each chunk of x and its positions.
func (s *Store) read(ctx context.Context, x *index, fn func(spots []position, data []byte) error) error {
	spots := make([][]position, len(x.chunks))
	for i, f := range x.files {
		off := int64(0)
		for _, e := range f.extents {
			if e.hole == 0 {
				spots[e.chunk] = append(spots[e.chunk], position{i, off})
			}
			off += x.length(e)
		}
	}
	readers, running := errgroup.WithContext(ctx)
	next := make(chan int)
	for range workers() {
		readers.Go(func() error {
			var r chunkReader
			defer r.close()
			for n := range next {
				c := x.chunks[n]
				data, err := r.read(s.pack(x.packs[c.pack]), c.location)
				if errors.Is(err, errDamaged) {
					s.distrust(c.location)
					err = damaged(fmt.Errorf("%s: %w", x.describe(spots[n]), err))
				}
				if err == nil {
					err = fn(spots[n], data)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	for n := range x.chunks {
		select {
		case next <- n:
			continue
		case <-running.Done():
		}
		break
	}
	close(next)
	return cmp.Or(readers.Wait(), ctx.Err())
}

// describe returns the first position of a chunk for error messages.
func (x *index) describe(spots []position) string {
	if len(spots) == 0 {
		return "no file"
	}
	return fmt.Sprintf("%s at byte %d", x.files[spots[0].file].name, spots[0].off)
}

// A chunkReader reads chunks sequentially. It keeps the last pack open.
type chunkReader struct {
	pack         *os.File // the last one read, or nil
	packed, data []byte
}

func (r *chunkReader) close() {
	if r.pack != nil {
		r.pack.Close()
	}
}

func (r *chunkReader) open(pack string) (err error) {
	if r.pack != nil && r.pack.Name() == pack {
		return nil
	}
	r.close()
	r.pack, err = os.Open(pack)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	return err
}

// read returns the content of a chunk. It is valid until the next read.
func (r *chunkReader) read(pack string, p location) ([]byte, error) {
	err := r.open(pack)
	if err != nil {
		return nil, err
	}
	if int64(cap(r.packed)) < p.stored {
		r.packed = make([]byte, p.stored)
	}
	r.packed = r.packed[:p.stored]
	if _, err := r.pack.ReadAt(r.packed, p.off); err == io.EOF || errors.Is(err, unix.EIO) {
		return nil, fmt.Errorf("%w: read %s: %w", errDamaged, filepath.Base(pack), err)
	} else if err != nil {
		return nil, err
	}
	r.data, err = expander().DecodeAll(r.packed, r.data[:0])
	if err != nil {
		return nil, fmt.Errorf("%w: in pack %s at byte %d: %w", errDamaged, filepath.Base(pack), p.off, err)
	}
	if int64(len(r.data)) != p.raw || sha256.Sum256(r.data) != p.sum {
		return nil, fmt.Errorf("%w: in pack %s at byte %d: checksum mismatch", errDamaged, filepath.Base(pack), p.off)
	}
	return r.data, nil
}
