package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/api/wire"
	"glasshouse/jail"
)

// countEvery is the maximum age of the measured usage. A measurement reads the metadata of
// every file.
const countEvery = 30 * time.Second

// storage measures the disk usage of the data directory. It measures on request; concurrent
// requests share the result.
type storage struct {
	dir  string
	pool func() []jail.Spares
	size int // configured size of the pool

	shares shares

	lock  chan struct{} // lock with capacity 1, so that waiting can be cancelled
	count wire.Storage  // last measurement; guarded by lock
}

func newStorage(dir string, size int, pool func() []jail.Spares) *storage {
	return &storage{dir: dir, size: size, pool: pool, lock: make(chan struct{}, 1)}
}

// now returns the last measurement, or measures again if it is too old.
func (s *storage) now(ctx context.Context) (wire.Storage, error) {
	select {
	case s.lock <- struct{}{}:
		defer func() { <-s.lock }()
	case <-ctx.Done():
		return wire.Storage{}, ctx.Err()
	}
	if time.Since(s.count.At) > countEvery {
		parts, err := measure(ctx, s.dir)
		if err != nil {
			return wire.Storage{}, fmt.Errorf("measure the data directory: %w", err)
		}
		s.count = wire.Storage{At: time.Now().UTC(), Parts: parts, PoolSize: s.size}
	}
	w := s.count
	var err error
	w.Total, w.Free, err = diskSize(s.dir)
	if err != nil {
		return wire.Storage{}, fmt.Errorf("read the size of the disk: %w", err)
	}
	w.Warnings = s.shares.warnings(w)
	w.Pool = []wire.Spares{}
	for _, sp := range s.pool() {
		w.Pool = append(w.Pool, wire.Spares{
			Backend: sp.Backend, Runtime: sp.Runtime, Network: sp.Network, Digest: sp.Digest, Ready: sp.Ready, Making: sp.Making, Used: sp.Used.UTC(),
		})
	}
	return w, nil
}

// partOf returns the category of a file, given its path relative to the data directory.
func partOf(path string) string {
	words := strings.Split(path, "/")
	switch top := words[0]; top {
	case "jails":
		if len(words) > 2 && (words[2] == "events" || words[2] == "snapshots") {
			return words[2]
		}
		return "jails"
	case "pages":
		return "snapshots"
	case "images":
		return "images"
	case "capabilities", "bundles", "wasm", "sandboxes":
		return "capabilities"
	case "agent", "agents":
		return "agents"
	default:
		if strings.HasPrefix(top, "glasshouse.db") {
			return "database"
		}
		return "other"
	}
}

// measure sums up the disk usage below dir. It skips other filesystems, counts hard-linked
// files once, and ignores files that are deleted meanwhile.
func measure(ctx context.Context, dir string) ([]wire.StoragePart, error) {
	var top unix.Stat_t
	if err := unix.Lstat(dir, &top); err != nil {
		return nil, &fs.PathError{Op: "lstat", Path: dir, Err: err}
	}
	parts, seen := map[string]*wire.StoragePart{}, map[uint64]bool{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission):
			return nil
		case err != nil:
			return err
		case st.Dev != top.Dev && e.IsDir():
			return fs.SkipDir
		case st.Dev != top.Dev || path == dir:
			return nil
		}
		if st.Nlink > 1 && !e.IsDir() {
			if seen[st.Ino] {
				return nil
			}
			seen[st.Ino] = true
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		name := partOf(filepath.ToSlash(rel))
		if parts[name] == nil {
			parts[name] = &wire.StoragePart{Name: name}
		}
		parts[name].Bytes += st.Blocks * 512
		if !e.IsDir() {
			parts[name].Files++
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	list := []wire.StoragePart{}
	for _, p := range slices.SortedFunc(maps.Values(parts), func(a, b *wire.StoragePart) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name))
	}) {
		list = append(list, *p)
	}
	return list, nil
}
