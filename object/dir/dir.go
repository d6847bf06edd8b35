// Package dir stores objects as files in a directory, such as a network file system.
package dir

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"glasshouse/fault"
	"glasshouse/object"
)

// Store stores objects in a directory. It implements object.Store.
type Store struct {
	root *os.Root
}

// partial is the directory of objects that are being written. Keys cannot name it.
const partial = ".partial"

// maxAge is how long an unfinished object is kept, whose process may have been killed.
const maxAge = 24 * time.Hour

// Open opens a directory, and creates it if it does not exist.
func Open(name string) (*Store, error) {
	if err := os.MkdirAll(name, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	s := &Store{root}
	if err := s.clean(); err != nil {
		return nil, errors.Join(fmt.Errorf("clean the directory of objects %s: %w", name, err), root.Close())
	}
	return s, nil
}

// Close closes the directory.
func (s *Store) Close() error { return s.root.Close() }

// clean removes the files of writers that were killed.
func (s *Store) clean() error {
	if err := s.root.MkdirAll(partial, 0o700); err != nil {
		return err
	}
	list, err := fs.ReadDir(s.root.FS(), partial)
	if err != nil {
		return err
	}
	for _, e := range list {
		info, err := e.Info()
		if err != nil || time.Since(info.ModTime()) < maxAge {
			continue
		}
		if err := s.root.Remove(path.Join(partial, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func wrap(op, key string, err error) error {
	switch {
	case err == nil:
		return nil
	case op != "object.Put" && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)):
		return fault.Newf(fault.NotFound, op, key, "no such object")
	case fault.DiskFull(err):
		return fault.New(fault.NoSpace, op, key, err)
	}
	return fault.New(fault.Unavailable, op, key, err)
}

// Put implements object.Store.
func (s *Store) Put(ctx context.Context, key string, r io.Reader) error {
	if err := object.CheckKey(key); err != nil {
		return err
	}
	name := path.Join(partial, rand.Text())
	err := s.write(ctx, name, r)
	if err == nil {
		err = s.publish(name, key)
	}
	if err != nil {
		s.root.Remove(name) // it may not exist
	}
	return wrap("object.Put", key, err)
}

func (s *Store) write(ctx context.Context, name string, r io.Reader) error {
	f, err := s.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, &reader{ctx, r})
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// publish gives a file its name. A concurrent Delete may remove the directory in between.
func (s *Store) publish(name, key string) error {
	for range 10 {
		if err := s.root.MkdirAll(path.Dir(key), 0o700); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		err := s.root.Rename(name, key)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for dir := path.Dir(key); ; dir = path.Dir(dir) {
			if err := s.sync(dir); err != nil && !errors.Is(err, fs.ErrNotExist) || dir == "." {
				return err
			}
		}
	}
	return fmt.Errorf("the directory of %s was removed ten times", key)
}

func (s *Store) sync(dir string) error {
	d, err := s.root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Get implements object.Store. An object that is replaced is read to the end of its old data.
func (s *Store) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	if err := object.CheckKey(key); err != nil {
		return nil, err
	}
	f, err := s.root.OpenFile(key, os.O_RDONLY|syscall.O_NONBLOCK, 0) // does not wait for the writer of a pipe
	if err != nil {
		return nil, wrap("object.Get", key, err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		f.Close()
		return nil, wrap("object.Get", key, err)
	}
	return struct {
		io.Reader
		io.Closer
	}{&reader{ctx, f}, f}, nil
}

// Head implements object.Store.
func (s *Store) Head(_ context.Context, key string) (object.Info, error) {
	if err := object.CheckKey(key); err != nil {
		return object.Info{}, err
	}
	info, err := s.root.Stat(key)
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return object.Info{}, wrap("object.Head", key, err)
	}
	return object.Info{Key: key, Size: info.Size(), Modified: info.ModTime()}, nil
}

// Delete implements object.Store. It also removes directories that become empty.
func (s *Store) Delete(_ context.Context, key string) error {
	if err := object.CheckKey(key); err != nil {
		return err
	}
	if err := s.root.Remove(key); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return wrap("object.Delete", key, err)
	}
	for dir := path.Dir(key); dir != "."; dir = path.Dir(dir) {
		if s.root.Remove(dir) != nil { // not empty, or removed
			break
		}
	}
	return nil
}

// List implements object.Store.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[object.Info, error] {
	return func(yield func(object.Info, error) bool) {
		top := "." // the directory that contains all matching objects
		if i := strings.LastIndexByte(prefix, '/'); i > 0 {
			top = prefix[:i]
		}
		if top != "." {
			if err := object.CheckKey(top); err != nil {
				yield(object.Info{}, err)
				return
			}
		}
		err := fs.WalkDir(s.root.FS(), top, func(name string, e fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist): // deleted meanwhile
				return nil
			case err != nil:
				return err
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case name == partial:
				return fs.SkipDir
			case !e.Type().IsRegular() || !strings.HasPrefix(name, prefix):
				return nil
			}
			info, err := e.Info()
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			if !yield(object.Info{Key: name, Size: info.Size(), Modified: info.ModTime()}, nil) {
				return fs.SkipAll
			}
			return nil
		})
		if err != nil {
			yield(object.Info{}, wrap("object.List", prefix, err))
		}
	}
}

// A reader ends with its context.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r *reader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}
