package snapshot

import (
	"context"
	"errors"
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
// +checklocks:k.mu
func (k *Manager) pinFiles(layers []string) (done func()) {
	for _, l := range layers {
		k.pinned[l]++
	}
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		for _, l := range layers {
			k.pinned[l]--
			if k.pinned[l] == 0 {
				delete(k.pinned, l)
			}
		}
	}
}

// protect protects an unfinished file or directory at path, and path.part, from removal until
// done is called.
func (k *Manager) protect(path string) (done func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.pinFiles([]string{path, path + ".part"})
}

// tempDir creates a temporary directory in the directory of a snapshot, and protects it from
// removal until done is called.
func (k *Manager) tempDir(dir, name string) (at string, done func(), err error) {
	k.filesMu.RLock()
	defer k.filesMu.RUnlock()
	at, err = os.MkdirTemp(dir, name+"-*.part")
	if err != nil {
		return "", nil, err
	}
	return at, k.protect(strings.TrimSuffix(at, ".part")), nil
}

// sweepSoon removes unused files in the background.
func (k *Manager) sweepSoon() {
	if k.ctx.Err() != nil {
		return
	}
	k.wg.Go(func() {
		if err := k.sweep(k.ctx); err != nil {
			k.cfg.Log.Error("cannot remove leftover snapshot files", "err", err)
		}
	})
}

// trimDir removes unused layers and temporary files of a killed daemon from the directory of a
// snapshot.
func (k *Manager) trimDir(dir string, used map[string]bool) error {
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
		errs = append(errs, k.discard(e, at))
	}
	return errors.Join(errs...)
}

// discard removes a directory entry and unmounts everything below it.
func (k *Manager) discard(e os.DirEntry, at string) error {
	if ext := filepath.Ext(at); e.IsDir() && k.cfg.Layers != nil && (ext == ".part" || ext == ".mnt") {
		if err := k.cfg.Layers.Release(at); err != nil {
			return err
		}
	}
	return os.RemoveAll(at)
}
