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

// hot are image directories on a filesystem in memory: those just taken or used.
// What is here is also in the store, or about to be.
type hot struct {
	dir   string
	limit int64

	mu sync.Mutex
	// +checklocks:mu
	all map[id.Snapshot]*hotDir
}

type hotDir struct {
	bytes int64
	users int
	used  time.Time
	gone  bool // to be removed when the last user is done
}

// openHot begins with nothing but what branches of an earlier daemon still need:
// what that had here it had in the store as well.
func openHot(dir string, limit int64) (*hot, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	h := &hot{dir: dir, limit: limit, all: map[id.Snapshot]*hotDir{}}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range entries {
		name := id.Snapshot(e.Name())
		if filepath.Ext(e.Name()) == leftExt || filepath.Ext(e.Name()) == "" {
			h.all[name] = &hotDir{}
			err = h.remove(name)
		} else { // a jail's own, of which a crash has kept the jail
			err = os.RemoveAll(h.path(name))
		}
		if err != nil {
			return nil, err
		}
	}
	return h, nil
}

// leftExt is that of directories that only the memory of branches is in: removing
// them would free nothing, and they count.
const leftExt = ".left"

// mapped reports whether branches have their memory from the directory of a
// snapshot.
func (h *hot) mapped(sid id.Snapshot) bool {
	files, _ := filepath.Glob(filepath.Join(h.path(sid), "pages-*.img")) // the pattern is good
	return slices.ContainsFunc(files, pages.InUse)
}

func (h *hot) path(sid id.Snapshot) string { return filepath.Join(h.dir, string(sid)) }

// make makes an empty directory for about the given number of bytes, with one
// user. If there is no room for them even alone it returns fault.Exhausted.
func (h *hot) make(sid id.Snapshot, bytes int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.room(bytes); err != nil {
		return err
	}
	// Those who go on with the processes read the images as users of their own.
	if err := os.Mkdir(h.path(sid), 0o755); err != nil {
		return err
	}
	h.all[sid] = &hotDir{bytes: bytes, users: 1, used: time.Now()}
	return nil
}

// room removes what was not used for longest until bytes fit. The caller holds mu.
//
// +checklocks:h.mu
func (h *hot) room(bytes int64) error {
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
			return fault.Newf(fault.Exhausted, "snapshot", "", "%d MiB of images do not fit in the %d MiB of memory kept for them", bytes>>20, h.limit>>20)
		}
		if err := h.remove(oldest); err != nil {
			return err
		}
	}
}

// remove removes a directory, or its name if branches have their memory there. The
// caller holds mu.
//
// +checklocks:h.mu
func (h *hot) remove(sid id.Snapshot) error {
	d := h.all[sid]
	delete(h.all, sid)
	if !h.mapped(sid) {
		return os.RemoveAll(h.path(sid))
	}
	left := sid
	if filepath.Ext(string(sid)) != leftExt {
		for n := 0; ; n++ {
			left = id.Snapshot(fmt.Sprintf("%s-%d%s", sid, n, leftExt))
			if _, err := os.Lstat(h.path(left)); errors.Is(err, fs.ErrNotExist) {
				break
			}
		}
		if err := os.Rename(h.path(sid), h.path(left)); err != nil {
			return err
		}
	}
	h.all[left] = &hotDir{bytes: d.bytes}
	if d.bytes == 0 {
		h.all[left].bytes = sizeOf(h.path(left))
	}
	return nil
}

// measured corrects the number of bytes that a directory was made for.
func (h *hot) measured(sid id.Snapshot) {
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

// get returns the directory of a snapshot, if it is here, until put.
func (h *hot) get(sid id.Snapshot) (string, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.all[sid]
	if d == nil || d.gone {
		return "", false
	}
	d.users++
	d.used = time.Now()
	return h.path(sid), true
}

func (h *hot) put(sid id.Snapshot) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.all[sid]
	if d == nil {
		return nil
	}
	if d.users--; d.users == 0 && d.gone {
		return h.remove(sid)
	}
	return nil
}

// drop removes a directory as soon as nobody uses it.
func (h *hot) drop(sid id.Snapshot) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.all[sid]
	if d == nil {
		return nil
	}
	if d.users > 0 {
		d.gone = true
		return nil
	}
	return h.remove(sid)
}

// blocks returns the bytes a file takes on the disk.
func blocks(name string) (int64, error) {
	var st unix.Stat_t
	err := unix.Stat(name, &st)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fault.Newf(fault.NotFound, "snapshot", name, "a layer is missing")
	}
	if err != nil {
		return 0, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	return st.Blocks * 512, nil
}
