// Package atomicfile replaces files atomically: a reader sees the old or the new content, never
// a part of it.
package atomicfile

import (
	"bytes"
	"os"
	"path/filepath"

	"glasshouse/internal/dirs"
)

// Write replaces name with data. It does not sync: after a power failure the file may have the
// old content.
func Write(name string, data []byte, mode os.FileMode) error {
	return write(name, data, mode, false)
}

// Durable is like Write, but the new content survives a power failure after it returns.
func Durable(name string, data []byte, mode os.FileMode) error {
	return write(name, data, mode, true)
}

// Update is like Write, but does not write a file that already has the content and mode. A
// daemon that updates its files can therefore start when the disk is full.
func Update(name string, data []byte, mode os.FileMode) error {
	have, err := os.ReadFile(name)
	if err == nil && bytes.Equal(have, data) {
		if fi, err := os.Lstat(name); err == nil && fi.Mode() == mode {
			return nil
		}
	}
	return Write(name, data, mode)
}

func write(name string, data []byte, mode os.FileMode, durable bool) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), ".tmp-*")
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
	if durable {
		if err := f.Sync(); err != nil {
			return err
		}
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), name); err != nil || !durable {
		return err
	}
	return dirs.Sync(filepath.Dir(name))
}
