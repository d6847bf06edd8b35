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

// A node is a file as the kernel names it in what it tells of a watch.
type node struct{ dev, ino uint64 }

// watchedBy returns what the processes watch by inotify, each with a process
// that does. An overlay gives no handles by which such a file could be found
// again: CRIU has to be told its path.
func watchedBy(pids []int) map[node]int {
	found := map[node]int{}
	for _, pid := range pids {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // it has ended
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

// lookAtMost bounds the search for what is watched.
const lookAtMost = 200_000

// pathsOf finds the paths of nodes in the jail of the process init: first where
// those who watch them are, and in the usual places. Not all may be found: a
// watched file can be deleted.
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
			if looked++; len(left) == 0 || looked > lookAtMost {
				return fs.SkipAll
			}
			if err != nil {
				return nil // it went away, or is not there
			}
			if e.IsDir() && (at == "proc" || at == "sys" || at == "dev") && place == "/" {
				return fs.SkipDir
			}
			var st unix.Stat_t
			if unix.Lstat(fmt.Sprintf("/proc/%d/root/%s", init, at), &st) != nil {
				return nil
			}
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
		return paths, errors.New("what is watched cannot be found")
	}
	return paths, nil
}

// name puts an absolute path in the words of io/fs.
func name(p string) string {
	if p = strings.Trim(path.Clean(p), "/"); p == "" {
		return "."
	}
	return p
}
