package jail

import (
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"
	"sync"

	"glasshouse/internal/atomicfile"
)

// recordFiles maintains jails/{id}/jail.json, a copy of each jail's record for people and for
// the loss of the database. The record itself is in the store. The copy is written
// asynchronously, because replacing a file can wait for the disk and would delay the start of
// a jail.
type recordFiles struct {
	rg   *registry
	wake chan struct{} // capacity 1
	done chan struct{}

	mu sync.Mutex
	// +checklocks:mu
	pending map[*entry]struct{}
}

func newRecordFiles(rg *registry) *recordFiles {
	return &recordFiles{rg: rg, wake: make(chan struct{}, 1), done: make(chan struct{}), pending: map[*entry]struct{}{}}
}

// schedule requests a write of the entry's jail.json.
func (f *recordFiles) schedule(e *entry) {
	f.mu.Lock()
	f.pending[e] = struct{}{}
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default: // a wake-up is already pending
	}
}

// run writes files until close, and then the remaining ones.
func (f *recordFiles) run() {
	for {
		select {
		case <-f.wake:
			f.flush()
		case <-f.done:
			f.flush()
			return
		}
	}
}

func (f *recordFiles) close() { close(f.done) }

func (f *recordFiles) flush() {
	f.mu.Lock()
	dirty := f.pending
	f.pending = map[*entry]struct{}{}
	f.mu.Unlock()
	for e := range dirty {
		f.write(e)
	}
}

func (f *recordFiles) write(e *entry) {
	e.file.Lock() // excludes destroy, which removes the directory
	defer e.file.Unlock()
	j := *e.jail.Load()
	if e.removed {
		return
	}
	data, err := json.MarshalIndent(j, "", "  ")
	if err == nil {
		err = atomicfile.Write(filepath.Join(f.rg.dir(j.ID), "jail.json"), data, 0o600)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // the directory does not exist yet
		f.rg.cfg.Log.Warn("cannot write jail.json", "jail", j.ID, "err", err)
	}
}
