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

// Get makes the image directory that was kept as dst again, in into, which must
// not exist, or be empty. Every byte is checked. If it fails, nothing is left in
// into.
//
// It returns fault.NotFound if nothing is kept at dst, and fault.Conflict, with
// the file it is about, if what is kept is damaged.
func (s *Store) Get(ctx context.Context, dst, into string) (Sum, error) {
	x, done, err := s.index(dst)
	if err != nil {
		return Sum{}, failed("images.Get", filepath.Base(dst), err)
	}
	defer done()
	if err := s.restore(ctx, x, into); err != nil {
		return Sum{}, failed("images.Get", filepath.Base(dst), err)
	}
	return x.sum(), nil
}

// Verify reads all that Get would, and returns its errors.
func (s *Store) Verify(ctx context.Context, dst string) (Sum, error) {
	x, done, err := s.index(dst)
	if err != nil {
		return Sum{}, failed("images.Verify", filepath.Base(dst), err)
	}
	defer done()
	if err := s.read(ctx, x, func([]spot, []byte) error { return nil }); err != nil {
		return Sum{}, failed("images.Verify", filepath.Base(dst), err)
	}
	return x.sum(), nil
}

// index returns the index of dst, whose chunks stay until done is called.
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
		return nil, nil, fault.Newf(fault.NotFound, "", "", "it was deleted, or is of another store")
	}
	return x, done, nil
}

// damaged says to the caller what can be done about err.
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
	return s.read(ctx, x, func(spots []spot, data []byte) error {
		for _, sp := range spots {
			if err := writeFile(filepath.Join(into, x.files[sp.file].name), data, sp.off); err != nil {
				return err
			}
		}
		return nil
	})
}

// makeFile makes a file of zeros. Who may come to it, its directory says: who goes
// on with the processes reads their images as a user of its own.
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

// writeFile writes data into a file of zeros. Files are not kept open: a
// checkpoint of many processes has thousands.
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

// writeSparse writes data except pages of zeros, which must be zero already.
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

// isZero tells whether p, a page or less, is of zeros.
func isZero(p []byte) bool { return bytes.Equal(p, zeros[:len(p)]) }

// A spot is where in a file a chunk belongs.
type spot struct {
	file int
	off  int64
}

// read calls fn with every chunk of x and where it belongs, many at a time.
func (s *Store) read(ctx context.Context, x *index, fn func(spots []spot, data []byte) error) error {
	spots := make([][]spot, len(x.chunks))
	for i, f := range x.files {
		off := int64(0)
		for _, e := range f.extents {
			if e.hole == 0 {
				spots[e.chunk] = append(spots[e.chunk], spot{i, off})
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
				data, err := r.read(s.pack(x.packs[c.pack]), c.place)
				if errors.Is(err, errDamaged) {
					s.distrust(c.place)
					err = damaged(fmt.Errorf("%s: %w", x.about(spots[n]), err))
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

// about names what a chunk is part of.
func (x *index) about(spots []spot) string {
	if len(spots) == 0 {
		return "no file"
	}
	return fmt.Sprintf("%s at byte %d", x.files[spots[0].file].name, spots[0].off)
}

// A chunkReader reads one chunk after the other, most of them from one pack.
type chunkReader struct {
	pack         *os.File // nil, or the last one read
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

// read returns the content of a chunk, valid until the next read.
func (r *chunkReader) read(pack string, p place) ([]byte, error) {
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
		return nil, fmt.Errorf("%w: in pack %s at byte %d: not what was written", errDamaged, filepath.Base(pack), p.off)
	}
	return r.data, nil
}
