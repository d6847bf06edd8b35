package wasm

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"glasshouse/capability/engine"
	"glasshouse/capability/engine/wasi"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
)

// files are the directories to which modules write:
//
//	scratch/N                            files of one instance
//	kept/{capability}/sessions/{session} files of mode session
//	kept/{capability}/persistent         files of mode persistent
//
// Capability and session are hashed, because these names come from clients.
type files struct {
	dir  string
	next atomic.Int64

	mu      sync.Mutex
	volumes map[string]*wasi.Volume // by limit and directory; shared by concurrent calls
}

func openFiles(dir string) (*files, error) {
	if err := ownDir(dir); err != nil {
		return nil, err
	}
	f := &files{dir: dir, volumes: map[string]*wasi.Volume{}}
	if err := f.close(); err != nil {
		return nil, fmt.Errorf("remove the files of earlier calls: %w", err)
	}
	return f, os.Mkdir(f.scratch(), 0o700)
}

// close removes the files of single calls.
func (f *files) close() error { return os.RemoveAll(f.scratch()) }

func (f *files) scratch() string { return filepath.Join(f.dir, "scratch") }

func (f *files) kept(capability string) string {
	return filepath.Join(f.dir, "kept", hashed(capability))
}

func hashed(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:16])
}

// persistent is the scope of calls with files of mode persistent.
const persistent = "persistent"

// scopeOf returns the scope of a call, which identifies the files that it uses. "" means files
// of the single call.
func scopeOf(c *engine.Installed, session string) (string, error) {
	switch c.Filesystem.Mode {
	case manifest.Session:
		if session == "" {
			return "", fault.Newf(fault.Invalid, "wasm.Call", c.ID, "the capability stores its files per session, but the call has no session")
		}
		return "session " + session, nil
	case manifest.Persistent:
		return persistent, nil
	}
	return "", nil
}

// own returns a directory for a single instance. The directory is created at the first use.
// done removes it.
func (f *files) own(limit int64) (d wasi.Dir, done func() error) {
	var dir string
	made := func() (string, *wasi.Volume, error) {
		dir = filepath.Join(f.scratch(), strconv.FormatInt(f.next.Add(1), 10))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return "", nil, err
		}
		v, err := wasi.NewVolume(dir, limit)
		return dir, v, err
	}
	return wasi.Dir{Guest: "/", Make: made}, func() error {
		if dir == "" {
			return nil
		}
		return os.RemoveAll(dir)
	}
}

// dirs returns the directories of an instance: "/" and the mounts of its manifest.
func (f *files) dirs(c *engine.Installed, session string) (dirs []wasi.Dir, done func() error, err error) {
	limit := int64(or(c.Filesystem.QuotaMB, defaultQuotaMB)) << 20
	root, done, err := f.root(c, session, limit)
	if err != nil {
		return nil, nil, fmt.Errorf("create a directory for %s: %w", c.ID, err)
	}
	dirs = []wasi.Dir{root}
	for _, m := range c.Filesystem.Mounts {
		d := wasi.Dir{Below: c.Dir, Host: m.Host, Guest: m.Guest, ReadOnly: !m.Write}
		if m.Write {
			if d.Volume, err = f.volume(filepath.Join(c.Dir, m.Host), limit); err != nil {
				return nil, nil, err
			}
		}
		dirs = append(dirs, d)
	}
	return dirs, done, nil
}

// root returns the directory of an instance for "/".
func (f *files) root(c *engine.Installed, session string, limit int64) (d wasi.Dir, done func() error, err error) {
	var dir string
	switch c.Filesystem.Mode {
	case manifest.Session:
		dir = filepath.Join(f.kept(c.ID), "sessions", hashed(session))
	case manifest.Persistent:
		dir = filepath.Join(f.kept(c.ID), "persistent")
	default:
		d, done = f.own(limit)
		return d, done, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return wasi.Dir{}, nil, err
	}
	v, err := f.volume(dir, limit)
	return wasi.Dir{Host: dir, Guest: "/", Volume: v}, func() error { return nil }, err
}

// volume returns the quota accounting of a directory. All instances that use the directory
// share it.
func (f *files) volume(dir string, limit int64) (*wasi.Volume, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := strconv.FormatInt(limit, 10) + " " + dir
	if v := f.volumes[key]; v != nil {
		return v, nil
	}
	v, err := wasi.NewVolume(dir, limit)
	if err != nil {
		return nil, err
	}
	f.volumes[key] = v
	return v, nil
}

func (f *files) removeCapability(id string) error { return f.remove(f.kept(id)) }

func (f *files) removeSession(session string) error {
	dirs, err := filepath.Glob(filepath.Join(f.dir, "kept", "*", "sessions", hashed(session)))
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		errs = append(errs, f.remove(dir))
	}
	return errors.Join(errs...)
}

func (f *files) remove(dir string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key := range f.volumes {
		if _, at, _ := strings.Cut(key, " "); at == dir || strings.HasPrefix(at, dir+"/") {
			delete(f.volumes, key)
		}
	}
	return os.RemoveAll(dir)
}
