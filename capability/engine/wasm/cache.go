package wasm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/tetratelabs/wazero"
)

// A cache keeps compiled modules on disk. They are machine code that is executed without
// verification, so no other user may be able to write to the directory.
type cache struct {
	dir      string
	limit    int64
	compiled wazero.CompilationCache
}

func openCache(dir string, limit int64) (*cache, error) {
	if err := ownDir(dir); err != nil {
		return nil, fmt.Errorf("open the cache of compiled modules: %w", err)
	}
	compiled, err := wazero.NewCompilationCacheWithDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open the cache of compiled modules: %w", err)
	}
	c := &cache{dir: dir, limit: limit, compiled: compiled}
	return c, c.prune()
}

// prune removes the oldest files until the size of the cache is within its limit.
func (c *cache) prune() error {
	type entry struct {
		path string
		size int64
		at   time.Time
	}
	var all []entry
	var total int64
	err := filepath.WalkDir(c.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another process has pruned it
		}
		if err != nil {
			return err
		}
		all = append(all, entry{path, info.Size(), info.ModTime()})
		total += info.Size()
		return nil
	})
	if err != nil {
		return fmt.Errorf("prune the cache of compiled modules: %w", err)
	}
	slices.SortFunc(all, func(a, b entry) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.path, b.path)) })
	for _, e := range all {
		if total <= c.limit {
			break
		}
		if err := os.Remove(e.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("prune the cache of compiled modules: %w", err)
		}
		total -= e.size
	}
	return nil
}

func (c *cache) close() error { return c.compiled.Close(context.Background()) }

func ownedByUs(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}
