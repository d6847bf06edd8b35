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

// maxSearched limits the number of files searched.
const maxSearched = 200_000

// pathsOf finds the paths of nodes in the jail of the process init. It searches the working
// directories of the watching processes first, and then common directories. It returns an
// error if a node is not found: a watched file can be deleted.
func pathsOf(init int, nodes map[node]int) (paths []string, err error) {
	root, err := os.OpenRoot(fmt.Sprintf("/proc/%d/root", init))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	left := map[node]bool{}
	var places []string
	for n, pid := range nodes {
		left[n] = true
		if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err == nil && cwd != "/" {
			places = append(places, cwd)
		}
	}
	looked := 0
	for _, place := range append(places, "/tmp", "/work", "/workspace", "/root", "/home", "/run", "/var", "/etc", "/") {
		err := fs.WalkDir(root.FS(), name(place), func(at string, e fs.DirEntry, err error) error {
			looked++
			if len(left) == 0 || looked > maxSearched {
				return fs.SkipAll
			}
			if err != nil {
				return nil // removed or missing
			}
			if e.IsDir() && (at == "proc" || at == "sys" || at == "dev") && place == "/" {
				return fs.SkipDir
			}
			var st unix.Stat_t
			if unix.Lstat(fmt.Sprintf("/proc/%d/root/%s", init, at), &st) != nil {
				return nil
			}
			// fdinfo has the kernel's internal device number (MKDEV in include/linux/kdev_t.h),
			// which differs from that of stat(2).
			n := node{uint64(unix.Major(st.Dev))<<20 | uint64(unix.Minor(st.Dev)), st.Ino}
			if left[n] {
				delete(left, n)
				paths = append(paths, path.Join("/", at))
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if len(left) > 0 {
		return paths, errors.New("a watched file was not found")
	}
	return paths, nil
}

// name converts an absolute path to the form of io/fs.
func name(p string) string {
	p = strings.Trim(path.Clean(p), "/")
	if p == "" {
		return "."
	}
	return p
}
