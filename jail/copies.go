package jail

import (
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"
	"sync"

	"glasshouse/internal/atomicfile"
)

// copies keeps jails/{id}/jail.json, a copy of each jail's record for people and
// for a lost database. The record itself is in the store, so the copy may be a
// moment late: replacing a file can wait for the disk, and nobody who starts a
// jail should.
type copies struct {
	m    *Manager
	wake chan struct{} // capacity 1
	done chan struct{}

	mu sync.Mutex
	// +checklocks:mu
	dirty map[*cell]struct{}
}

func newCopies(m *Manager) *copies {
	return &copies{m: m, wake: make(chan struct{}, 1), done: make(chan struct{}), dirty: map[*cell]struct{}{}}
}

// want has the cell's record copied soon.
func (c *copies) want(of *cell) {
	c.mu.Lock()
	c.dirty[of] = struct{}{}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default: // it is awake
	}
}

// run copies until close, and then what is left.
func (c *copies) run() {
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

func (c *copies) close() { close(c.done) }

func (c *copies) flush() {
	c.mu.Lock()
	dirty := c.dirty
	c.dirty = map[*cell]struct{}{}
	c.mu.Unlock()
	for of := range dirty {
		c.write(of)
	}
}

func (c *copies) write(of *cell) {
	of.file.Lock() // not while its directory is being removed
	defer of.file.Unlock()
	j := *of.jail.Load()
	if of.gone {
		return
	}
	data, err := json.MarshalIndent(j, "", "  ")
	if err == nil {
		err = atomicfile.Write(filepath.Join(c.m.dir(j.ID), "jail.json"), data, 0o600)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // not made yet
		c.m.cfg.Log.Warn("jail.json not written", "jail", j.ID, "err", err)
	}
}
