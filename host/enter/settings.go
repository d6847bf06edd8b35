package enter

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"glasshouse/fault"
	"glasshouse/internal/atomicfile"
)

// volatile is the directory in which settings are copied to the host: they end with its boot, like
// the mounts of a container.
const volatile = "/run/"

const (
	maxSettings = 256
	maxSetting  = 1 << 20
)

// settings are files of a directory, by their paths in it.
type settings struct {
	dir   string
	files map[string][]byte
}

// readSettings reads the files of a directory. Kubernetes mounts ConfigMaps and Secrets with links to
// a directory whose name begins with two dots, which is left out.
func readSettings(dir string) (settings, error) {
	s := settings{dir, map[string][]byte{}}
	if dir == "" {
		return s, nil
	}
	if !strings.HasPrefix(dir, volatile) {
		return s, fault.Cannot(op, "the settings are in "+dir+", which is not below "+volatile, "mount the directory of the configuration file below "+volatile+": it is copied to the host")
	}
	return s, s.read("")
}

func (s settings) read(at string) error {
	entries, err := os.ReadDir(filepath.Join(s.dir, at))
	if err != nil {
		return fmt.Errorf("list the settings: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") {
			continue
		}
		path := filepath.Join(at, e.Name())
		info, err := os.Stat(filepath.Join(s.dir, path))
		if err != nil {
			return fmt.Errorf("read the settings: %w", err)
		}
		switch {
		case info.IsDir():
			err = s.read(path)
		case !info.Mode().IsRegular():
			err = fault.Newf(fault.Invalid, op, path, "a setting is neither a file nor a directory")
		default:
			s.files[path], err = readSetting(filepath.Join(s.dir, path))
		}
		if err == nil && len(s.files) > maxSettings {
			err = fault.Newf(fault.TooLarge, op, s.dir, "the directory of the configuration has more than %d files", maxSettings)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func readSetting(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the settings: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSetting+1))
	if err != nil {
		return nil, fmt.Errorf("read the settings: %w", err)
	}
	if len(data) > maxSetting {
		return nil, fault.Newf(fault.TooLarge, op, path, "a setting is larger than %d bytes", maxSetting)
	}
	return data, nil
}

// marker is a file in the copy on the host: only a directory that has it is replaced.
const marker = ".glasshouse-settings"

// write replaces the directory on the host. It returns fault.Conflict if another program has made it.
func (s settings) write() error {
	if s.dir == "" {
		return nil
	}
	_, err := os.Stat(filepath.Join(s.dir, marker))
	if errors.Is(err, fs.ErrNotExist) {
		_, err = os.Stat(s.dir)
		if err == nil {
			err = &fault.Error{Op: op, Kind: fault.Conflict, On: s.dir, Err: errors.New("the host has this directory, and it is no copy of settings"),
				Remedy: "mount the settings in another directory below " + volatile}
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, path := range slices.Concat([]string{marker}, slices.Collect(maps.Keys(s.files))) {
		to := filepath.Join(s.dir, path)
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return fmt.Errorf("create the directory of the settings on the host: %w", err)
		}
		if err := atomicfile.Write(to, s.files[path], 0o600); err != nil {
			return fmt.Errorf("copy the settings to the host: %w", err)
		}
	}
	return filepath.WalkDir(s.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(s.dir, path)
		if err != nil || e.IsDir() {
			return err
		}
		if _, ok := s.files[name]; ok || name == marker {
			return nil
		}
		return os.Remove(path) // of an earlier daemon
	})
}
