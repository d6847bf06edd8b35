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
	m    *Manager
	wake chan struct{} // capacity 1
	done chan struct{}

	mu sync.Mutex
	// +checklocks:mu
	dirty map[*entry]struct{}
}

func newRecordFiles(m *Manager) *recordFiles {
	return &recordFiles{m: m, wake: make(chan struct{}, 1), done: make(chan struct{}), dirty: map[*entry]struct{}{}}
}

// schedule requests a write of the entry's jail.json.
func (c *recordFiles) schedule(e *entry) {
	c.mu.Lock()
	c.dirty[e] = struct{}{}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default: // a wake-up is already pending
	}
}

// run writes files until close, and then the remaining ones.
func (c *recordFiles) run() {
	for {
		select {
		case <-c.wake:
			c.flush()
		case <-c.done:
			c.flush()
			return
		}
	}
}

func (c *recordFiles) close() { close(c.done) }

func (c *recordFiles) flush() {
	c.mu.Lock()
	dirty := c.dirty
	c.dirty = map[*entry]struct{}{}
	c.mu.Unlock()
	for e := range dirty {
		c.write(e)
	}
}

func (c *recordFiles) write(e *entry) {
	e.file.Lock() // excludes destroy, which removes the directory
	defer e.file.Unlock()
	j := *e.jail.Load()
	if e.removed {
		return
	}
	data, err := json.MarshalIndent(j, "", "  ")
	if err == nil {
		err = atomicfile.Write(filepath.Join(c.m.dir(j.ID), "jail.json"), data, 0o600)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // the directory does not exist yet
		c.m.cfg.Log.Warn("cannot write jail.json", "jail", j.ID, "err", err)
	}
}
