package snapshot

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// Layers works on sealed layers, which are files.
type Layers interface {
	// Flatten writes layers, topmost first, as one to the new file to, which is
	// there, whole and on the disk, or not at all. What it needs on the way is
	// below to.part.
	Flatten(ctx context.Context, layers []string, to string) error

	// Seal returns nil if a layer can be mounted as it is, and then it is on the
	// disk.
	Seal(layer string) error

	// Release lets go of what a daemon that was killed had mounted below dir.
	Release(dir string) error
}

// lend keeps layers from being removed until done is called. The caller holds mu.
//
// +checklocks:k.mu
func (k *Keeper) lend(layers []string) (done func()) {
	for _, l := range layers {
		k.lent[l]++
	}
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		for _, l := range layers {
			if k.lent[l]--; k.lent[l] == 0 {
				delete(k.lent, l)
			}
		}
	}
}

// making keeps what is being made at a path, and beside it as path.part, from
// being taken for something left over, until done is called.
func (k *Keeper) making(path string) (done func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lend([]string{path, path + ".part"})
}

// scratch makes a directory in that of a snapshot, which is left alone until done
// is called.
func (k *Keeper) scratch(dir, name string) (at string, done func(), err error) {
	k.tidying.RLock()
	defer k.tidying.RUnlock()
	if at, err = os.MkdirTemp(dir, name+"-*.part"); err != nil {
		return "", nil, err
	}
	return at, k.making(strings.TrimSuffix(at, ".part")), nil
}

// sweepSoon removes in the background what nobody stands on any more.
func (k *Keeper) sweepSoon() {
	if k.ctx.Err() != nil {
		return
	}
	k.wg.Go(func() {
		if err := k.sweep(k.ctx); err != nil {
			k.cfg.Log.Error("what is left of snapshots was not removed", "err", err)
		}
	})
}

// trim removes from the directory of a snapshot the layers that nobody stands on
// any more, and what a daemon left that was killed.
func (k *Keeper) trim(dir string, used map[string]bool) error {
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

// discard removes what is at a path, whatever is mounted below it.
func (k *Keeper) discard(e os.DirEntry, at string) error {
	if ext := filepath.Ext(at); e.IsDir() && k.cfg.Layers != nil && (ext == ".part" || ext == ".mnt") {
		if err := k.cfg.Layers.Release(at); err != nil {
			return err
		}
	}
	return os.RemoveAll(at)
}
