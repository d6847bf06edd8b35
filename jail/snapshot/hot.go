package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/pages"
	"glasshouse/id"
)

// imageCache holds image directories on a memory file system: those recently taken or used.
// The image store also contains each of them, or will when the snapshot is complete.
type imageCache struct {
	dir   string
	limit int64

	mu sync.Mutex
	// +checklocks:mu
	all map[id.Snapshot]*cachedDir
}

type cachedDir struct {
	bytes   int64
	users   int
	used    time.Time
	dropped bool // remove the directory when the last user is done, or again if that failed
}

// openImageCache opens the cache in dir. It removes all directories of an earlier daemon
// except the memory that running branches still map. The image store contains the others.
func openImageCache(dir string, limit int64) (*imageCache, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	h := &imageCache{dir: dir, limit: limit, all: map[id.Snapshot]*cachedDir{}}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range entries {
		name := id.Snapshot(e.Name())
		if filepath.Ext(e.Name()) == orphanExt || filepath.Ext(e.Name()) == "" {
			h.all[name] = &cachedDir{}
			err = h.remove(name)
		} else { // belongs to a jail whose creation was interrupted by a crash
			err = os.RemoveAll(h.path(name))
		}
		if err != nil {
			return nil, err
		}
	}
	return h, nil
}

// orphanExt is the extension of directories that were dropped while branches map their files.
// Removing them would free no memory, so they count towards the limit.
const orphanExt = ".left"

// mapped reports whether branches map memory files in the directory of a snapshot.
func (h *imageCache) mapped(sid id.Snapshot) bool {
	files, _ := filepath.Glob(filepath.Join(h.path(sid), "pages-*.img")) // the pattern is valid
	return slices.ContainsFunc(files, pages.InUse)
}

func (h *imageCache) path(sid id.Snapshot) string { return filepath.Join(h.dir, string(sid)) }

// make creates an empty directory for about the given number of bytes, with one user. It
// returns fault.Exhausted if they do not fit even after evicting all unused directories.
func (h *imageCache) make(sid id.Snapshot, bytes int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d := h.all[sid]; d != nil && d.dropped && d.users == 0 { // its removal failed
		if err := h.remove(sid); err != nil {
			return err
		}
	}
	if err := h.evict(bytes); err != nil {
		return err
	}
	// The restored processes read the images with their own user IDs.
	if err := os.Mkdir(h.path(sid), 0o755); err != nil {
		return err
	}
	h.all[sid] = &cachedDir{bytes: bytes, users: 1, used: time.Now()}
	return nil
}

// evict removes the least recently used directories until bytes fit. The caller holds mu.
// +checklocks:h.mu
func (h *imageCache) evict(bytes int64) error {
	for {
		var total int64
		var oldest id.Snapshot
		for sid, d := range h.all {
			total += d.bytes
			if d.users == 0 && (oldest == "" || d.used.Before(h.all[oldest].used)) && !h.mapped(sid) {
				oldest = sid
			}
		}
		if total+bytes <= h.limit {
			return nil
		}
		if oldest == "" {
			return fault.Newf(fault.Exhausted, "snapshot.evict", "", "%d MiB of images do not fit into the image cache of %d MiB", bytes>>20, h.limit>>20)
		}
		if err := h.remove(oldest); err != nil {
			h.all[oldest].used = time.Now() // the next call tries another directory first
			return fmt.Errorf("remove %s from the image cache: %w", oldest, err)
		}
	}
}

// remove removes a directory, or renames it if branches map its files. If it fails, the directory
// stays in the cache, because it takes memory, but cannot be used, because it may be incomplete.
// The caller holds mu.
// +checklocks:h.mu
func (h *imageCache) remove(sid id.Snapshot) error {
	d := h.all[sid]
	d.dropped = true
	if !h.mapped(sid) {
		if err := os.RemoveAll(h.path(sid)); err != nil {
			return err
		}
		delete(h.all, sid)
		return nil
	}
	left := sid
	if filepath.Ext(string(sid)) != orphanExt {
		for n := 0; ; n++ {
			left = id.Snapshot(fmt.Sprintf("%s-%d%s", sid, n, orphanExt))
			if _, err := os.Lstat(h.path(left)); errors.Is(err, fs.ErrNotExist) {
				break
			}
		}
		if err := os.Rename(h.path(sid), h.path(left)); err != nil {
			return fmt.Errorf("rename the mapped images: %w", err)
		}
	}
	delete(h.all, sid)
	h.all[left] = &cachedDir{bytes: d.bytes}
	if d.bytes == 0 {
		h.all[left].bytes = sizeOf(h.path(left))
	}
	return nil
}

// updateSize sets the size of a directory to its actual size.
func (h *imageCache) updateSize(sid id.Snapshot) {
	total := sizeOf(h.path(sid))
	h.mu.Lock()
	defer h.mu.Unlock()
	if d := h.all[sid]; d != nil {
		d.bytes = total
	}
}

func sizeOf(dir string) (total int64) {
	filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return nil
		}
		if fi, err := e.Info(); err == nil {
			total += fi.Size()
		}
		return nil
	})
	return total
}

// get returns the cached directory of a snapshot. The caller must call put after use.
func (h *imageCache) get(sid id.Snapshot) (string, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.all[sid]
	if d == nil || d.dropped {
		return "", false
	}
	d.users++
	d.used = time.Now()
	return h.path(sid), true
}

func (h *imageCache) put(sid id.Snapshot) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.all[sid]
	if d == nil {
		return nil
	}
	d.users--
	if d.users == 0 && d.dropped {
		return h.remove(sid)
	}
	return nil
}

// drop removes a directory after its last user is done.
func (h *imageCache) drop(sid id.Snapshot) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.all[sid]
	if d == nil {
		return nil
	}
	if d.users > 0 {
		d.dropped = true
		return nil
	}
	return h.remove(sid)
}

// blocks returns the disk usage of a file in bytes.
func blocks(name string) (int64, error) {
	var st unix.Stat_t
	err := unix.Stat(name, &st)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fault.Newf(fault.NotFound, "snapshot.blocks", name, "layer file is missing")
	}
	if err != nil {
		return 0, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	return st.Blocks * 512, nil
}
