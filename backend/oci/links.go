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
)

// Links. A file that a process has open may have lost the name it was opened by
// and have others: caches of packages and compilers work like that. CRIU gives it
// a name for the time of a dump, and expects that name at a restore. What is kept
// of it is one of its other names.

// linksFile holds, by CRIU's name for each such file, another name of it.
const linksFile = "links.json"

// keepLinks finds other names for the files that have the given ones, in the jail
// of the process init.
func keepLinks(init int, names []string, dir string) error {
	links := map[string]string{}
	for _, name := range names {
		other, err := otherName(fmt.Sprintf("/proc/%d/root", init), name)
		if err != nil {
			return err
		}
		if other == "" {
			return fault.Cannot("snapshot", "a program has a file open whose name is gone, and its other names cannot be found",
				"end the program, or have it open the file again, and try again")
		}
		links[name] = other
	}
	b, err := json.Marshal(links)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, linksFile), b, 0o600)
}

// otherName searches a file's filesystem for another name of it: near the one it
// has first.
func otherName(root, name string) (other string, err error) {
	var file unix.Stat_t
	if err := unix.Lstat(root+name, &file); err != nil {
		return "", &os.PathError{Op: "stat", Path: name, Err: err}
	}
	looked := 0
	look := func(at string, e fs.DirEntry, err error) error {
		if looked++; other != "" || looked > lookAtMost {
			return fs.SkipAll
		}
		var st unix.Stat_t
		if err != nil || unix.Lstat(at, &st) != nil {
			return nil // not to be seen, or gone
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

// giveLinks gives files of a jail that is being made the names that CRIU expects.
func (m *making) giveLinks(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, linksFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var links map[string]string
	if err := json.Unmarshal(b, &links); err != nil {
		return fmt.Errorf("%s: %w", linksFile, err)
	}
	for name, other := range links {
		if err := m.giveLink(name, other); err != nil {
			return fmt.Errorf("a name for %s: %w", other, err)
		}
	}
	return nil
}

func (m *making) giveLink(name, other string) error {
	dir, at := m.mountOf(name)
	from, target := m.mountOf(other)
	if dir != from {
		return fault.Newf(fault.Invalid, "oci.Restore", name, "%s is in another mount", other)
	}
	return asOwner(m.plan.IDs.First, func() error {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return err
		}
		defer root.Close()
		// The layer may be of an instant at which CRIU's name was there.
		if err := root.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return root.Link(target, at)
	})
}

// mountOf returns the prepared mount on which a path of the jail is, and where.
func (m *making) mountOf(name string) (dir, rel string) {
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
