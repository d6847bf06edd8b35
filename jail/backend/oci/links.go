package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
)

// Hard links. An open file may have lost the name under which it was opened but still have
// others, as in caches of package managers and compilers. CRIU creates a temporary name for it
// during the dump (link-remap) and expects that name at the restore. The notes of a checkpoint
// contain one of the file's other names.

// linksFile maps CRIU's temporary name of each such file to another name of it.
const linksFile = "links.json"

// saveLinks finds other names for the files with the given names, in the jail of the process
// init.
func saveLinks(init int, names []string, dir string) error {
	links := map[string]string{}
	for _, name := range names {
		other, err := otherName(fmt.Sprintf("/proc/%d/root", init), name)
		if err != nil {
			return fmt.Errorf("find another name of %s: %w", name, err)
		}
		if other == "" {
			return fault.Cannot("oci.saveLinks", "a program has a file open whose name was removed, and no other name of the file was found",
				"end the program or make it reopen the file, and try again")
		}
		links[name] = other
	}
	b, err := json.Marshal(links)
	if err != nil {
		return fmt.Errorf("encode the names of removed files: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, linksFile), b, 0o600)
}

// otherName searches the filesystem of a file for another name of it, first near its known
// name.
func otherName(root, name string) (other string, err error) {
	var file unix.Stat_t
	if err := unix.Lstat(root+name, &file); err != nil {
		return "", &os.PathError{Op: "stat", Path: name, Err: err}
	}
	looked := 0
	look := func(at string, e fs.DirEntry, err error) error {
		looked++
		if other != "" || looked > maxSearched {
			return fs.SkipAll
		}
		var st unix.Stat_t
		if err != nil || unix.Lstat(at, &st) != nil {
			return nil // unreadable or removed
		}
		found := strings.TrimPrefix(at, root)
		switch {
		case e.IsDir() && (found == "/proc" || found == "/sys"):
			return fs.SkipDir
		case st.Dev == file.Dev && st.Ino == file.Ino && found != name:
			other = found
		}
		return nil
	}
	for _, from := range []string{path.Dir(name), "/"} {
		if err := filepath.WalkDir(root+from, look); err != nil {
			return "", err
		}
	}
	return other, nil
}

// restoreLinks creates the names that CRIU expects.
func (m *builder) restoreLinks(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, linksFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the names of removed files: %w", err)
	}
	var links map[string]string
	if err := json.Unmarshal(b, &links); err != nil {
		return fmt.Errorf("%s: %w", linksFile, err)
	}
	for name, other := range links {
		if err := m.giveLink(name, other); err != nil {
			return fmt.Errorf("link %s: %w", other, err)
		}
	}
	return nil
}

func (m *builder) giveLink(name, other string) error {
	dir, at := m.mountOf(name)
	from, target := m.mountOf(other)
	if dir != from {
		return fault.Newf(fault.Invalid, "oci.Restore", name, "%s is in another mount", other)
	}
	return base.AsOwner(m.plan.IDs.First, func() error {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return err
		}
		defer root.Close()
		// The layer may have been copied while CRIU's name existed.
		if err := root.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the earlier %s: %w", at, err)
		}
		return root.Link(target, at)
	})
}

// mountOf returns the prepared mount that contains a path of the jail, and the path relative
// to it.
func (m *builder) mountOf(name string) (dir, rel string) {
	mounts := append([]bind{
		{source: m.layout.merged(), target: "/"}, {source: m.layout.dev(), target: "/dev"}, {source: m.layout.shm(), target: "/dev/shm"},
	}, m.binds...)
	top := mounts[0]
	for _, b := range mounts {
		if jail.Under(name, b.target) && len(b.target) >= len(top.target) {
			top = b
		}
	}
	rel, err := filepath.Rel(top.target, name)
	if err != nil {
		rel = "."
	}
	return top.source, rel
}
