package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Layers operates on the files of sealed layers.
type Layers interface {
	// Flatten merges layers, topmost first, into the new file to. Afterwards the file exists
	// completely and durably, or does not exist. Temporary files are below to.part.
	Flatten(ctx context.Context, layers []string, to string) error

	// Seal checks that a layer can be mounted unmodified, and makes it durable.
	Seal(layer string) error

	// Release unmounts everything that a killed daemon left mounted below dir.
	Release(dir string) error
}

// pinFiles protects files from removal until done is called. The caller holds mu.
// +checklocks:ss.mu
func (ss *snapshots) pinFiles(layers []string) (done func()) {
	for _, l := range layers {
		ss.pinned[l]++
	}
	return func() {
		ss.mu.Lock()
		defer ss.mu.Unlock()
		for _, l := range layers {
			ss.pinned[l]--
			if ss.pinned[l] == 0 {
				delete(ss.pinned, l)
			}
		}
	}
}

// protect protects an unfinished file or directory at path, and path.part, from removal until
// done is called.
func (ss *snapshots) protect(path string) (done func()) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.pinFiles([]string{path, path + ".part"})
}

// tempDir creates a temporary directory in the directory of a snapshot, and protects it from
// removal until done is called.
func (ss *snapshots) tempDir(dir, name string) (at string, done func(), err error) {
	ss.filesMu.RLock()
	defer ss.filesMu.RUnlock()
	at, err = os.MkdirTemp(dir, name+"-*.part")
	if err != nil {
		return "", nil, fmt.Errorf("create a temporary directory: %w", err)
	}
	return at, ss.protect(strings.TrimSuffix(at, ".part")), nil
}

// sweepSoon removes unused files in the background.
func (ss *snapshots) sweepSoon() {
	if ss.ctx.Err() != nil {
		return
	}
	ss.wg.Go(func() {
		if err := ss.sweep(ss.ctx); err != nil {
			ss.cfg.Log.Error("cannot remove leftover snapshot files", "err", err)
		}
	})
}

// trimDir removes unused layers and temporary files of a killed daemon from the directory of a
// snapshot.
func (ss *snapshots) trimDir(dir string, used map[string]bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		layer := strings.HasPrefix(e.Name(), "fs-") && strings.HasSuffix(e.Name(), ".img")
		begun := filepath.Ext(at) == ".part" || strings.HasPrefix(e.Name(), ".tmp-")
		if used[at] || !layer && !begun {
			continue
		}
		errs = append(errs, ss.discard(e, at))
	}
	return errors.Join(errs...)
}

// discard removes a directory entry and unmounts everything below it.
func (ss *snapshots) discard(e os.DirEntry, at string) error {
	if ext := filepath.Ext(at); e.IsDir() && (ext == ".part" || ext == ".mnt") {
		for _, l := range ss.cfg.Layers {
			if err := l.Release(at); err != nil {
				return fmt.Errorf("unmount %s: %w", at, err)
			}
		}
	}
	return os.RemoveAll(at)
}
