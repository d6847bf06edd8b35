package oci

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// A node identifies a file as in the inotify lines of fdinfo (proc(5)).
type node struct{ dev, ino uint64 }

// watchedBy returns the files that the processes watch with inotify, each with one watching
// process. Overlayfs provides no file handles by which CRIU could find such a file, so CRIU
// needs its path.
func watchedBy(pids []int) map[node]int {
	found := map[node]int{}
	for _, pid := range pids {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // it has exited
		}
		for _, e := range entries {
			if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && to == "anon_inode:inotify" {
				for _, n := range readWatches(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, e.Name())) {
					found[n] = pid
				}
			}
		}
	}
	return found
}

func readWatches(name string) (nodes []node) {
	f, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var wd int
		var n node
		if _, err := fmt.Sscanf(lines.Text(), "inotify wd:%x ino:%x sdev:%x", &wd, &n.ino, &n.dev); err == nil {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// maxSearched limits the number of files that pathsOf searches.
const maxSearched = 200_000

// pathsOf finds the paths of nodes in the jail of the process init. It searches the working
// directories of the watching processes first, and then common directories; all of them level
// by level, because a program mostly watches a few files near the top of a tree that may be
// large. It returns an error if a node is not among most files: a watched file can be deleted.
func pathsOf(init int, nodes map[node]int, most int) (paths []string, err error) {
	root, err := os.OpenRoot(fmt.Sprintf("/proc/%d/root", init))
	if err != nil {
		return nil, fmt.Errorf("open the root of the jail: %w", err)
	}
	defer root.Close()
	s := search{init: init, left: map[node]bool{}, seen: map[string]bool{}}
	for n := range nodes {
		s.left[n] = true
	}
	for _, pid := range nodes {
		if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err == nil && cwd != "/" {
			s.look(name(cwd), true)
		}
	}
	for _, dir := range []string{"tmp", "work", "workspace", "root", "home", "run", "var", "etc", "."} {
		s.look(dir, true)
	}
	for len(s.left) > 0 && len(s.dirs) > 0 && s.looked <= most {
		dir := s.dirs[0]
		s.dirs = s.dirs[1:]
		entries, _ := fs.ReadDir(root.FS(), dir) // it may be removed or missing
		for _, e := range entries {
			s.look(path.Join(dir, e.Name()), e.IsDir())
		}
	}
	if len(s.left) > 0 {
		return s.found, errors.New("a watched file was not found")
	}
	return s.found, nil
}

// A search looks for the paths of nodes. Names are relative to the root of the jail.
type search struct {
	init   int
	left   map[node]bool
	found  []string
	dirs   []string        // directories to search
	seen   map[string]bool // directories that are or were in dirs
	looked int
}

// look compares a file with the nodes, and adds a directory to those to search.
func (s *search) look(at string, dir bool) {
	if dir {
		if s.seen[at] || at == "proc" || at == "sys" || at == "dev" {
			return
		}
		s.seen[at] = true
		s.dirs = append(s.dirs, at)
	}
	s.looked++
	var st unix.Stat_t
	if unix.Lstat(fmt.Sprintf("/proc/%d/root/%s", s.init, at), &st) != nil {
		return // it was removed, or is missing
	}
	// fdinfo has the kernel's internal device number (MKDEV in include/linux/kdev_t.h), which
	// differs from that of stat(2).
	n := node{uint64(unix.Major(st.Dev))<<20 | uint64(unix.Minor(st.Dev)), st.Ino}
	if s.left[n] {
		delete(s.left, n)
		s.found = append(s.found, path.Join("/", at))
	}
}

// name converts an absolute path to the form of io/fs.
func name(p string) string {
	p = strings.Trim(path.Clean(p), "/")
	if p == "" {
		return "."
	}
	return p
}
