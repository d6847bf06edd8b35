// Package atomicfile replaces files in one step, so that a reader sees the old
// content or the new, never a part.
package atomicfile

import (
	"os"
	"path/filepath"
)

// Write replaces name with data. It does not sync: after a power cut the old
// content may be back. Use WriteSync for what must not be lost.
func Write(name string, data []byte, mode os.FileMode) error { return write(name, data, mode, false) }

// WriteSync is Write, and returns when a power cut would no longer undo it.
func WriteSync(name string, data []byte, mode os.FileMode) error {
	return write(name, data, mode, true)
}

func write(name string, data []byte, mode os.FileMode, sync bool) (err error) {
	dir := filepath.Dir(name)
	f, err := os.CreateTemp(dir, ".tmp-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if sync {
		if err := f.Sync(); err != nil {
			return err
		}
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), name); err != nil {
		return err
	}
	if !sync {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
