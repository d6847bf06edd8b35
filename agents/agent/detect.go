package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"glasshouse/fault"
)

// programDirs lists the directories of a root filesystem that are searched for programs in
// addition to PATH.
var programDirs = []string{
	"usr/local/bin", "usr/bin", "bin", "usr/local/sbin", "usr/sbin", "sbin",
	"home/agent/.local/bin", "home/agent/.opencode/bin", "root/.local/bin", "root/.opencode/bin", "root/.bun/bin",
	"usr/lib/node_modules/.bin", "usr/local/lib/node_modules/.bin",
}

// Detect returns the path of a program in a root filesystem, or "" if the root filesystem
// lacks it and the agent's Layer is needed.
func Detect(root fs.FS, program string) string {
	for _, dir := range programDirs {
		if name, ok := resolveLinks(root, path.Join(dir, program)); ok {
			if info, err := fs.Stat(root, name); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				return "/" + path.Join(dir, program)
			}
		}
	}
	return ""
}

// Locate finds the required programs of a launch in its jail and returns a launch with the
// path of the agent's program. has reports whether the jail has a program at a path.
//
// It returns fault.Unsupported if a program is missing.
func (l Launch) Locate(has func(name string) bool) (Launch, error) {
	for _, n := range l.Needs {
		if strings.Contains(n.Program, "/") {
			continue // an explicit path is not searched
		}
		at := l.find(n.Program, has)
		if at == "" {
			return l, fault.Cannot("agent.Locate", fmt.Sprintf("the jail has no program %s", n.Program),
				fmt.Sprintf("install %s in the jail or in the root filesystem", n.From))
		}
		if n.Program == l.Argv[0] {
			l.Argv = append([]string{at}, l.Argv[1:]...)
		}
	}
	return l, nil
}

// find searches the agent's PATH and then programDirs.
func (l Launch) find(program string, has func(name string) bool) string {
	var dirs []string
	for _, kv := range l.Env {
		if list, ok := strings.CutPrefix(kv, "PATH="); ok {
			dirs = strings.Split(list, ":")
		}
	}
	for _, dir := range programDirs {
		dirs = append(dirs, "/"+dir)
	}
	for _, dir := range dirs {
		if name := path.Join(dir, program); has(name) {
			return name
		}
	}
	return ""
}

// resolveLinks resolves symbolic links relative to root, as in the jail. It returns the
// resolved path, and false if the path does not exist or has too many links.
func resolveLinks(root fs.FS, name string) (string, bool) {
	const limit = 255 // path elements and links; Linux allows 40 links (path_resolution(7))
	rest := strings.Split(name, "/")
	at := "."
	for range limit {
		if len(rest) == 0 {
			return at, true
		}
		step := rest[0]
		rest = rest[1:]
		switch step {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, step)
		info, err := fs.Lstat(root, next)
		if err != nil {
			return "", false
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		target, err := fs.ReadLink(root, next)
		if errors.Is(err, fs.ErrInvalid) || err != nil {
			return "", false
		}
		if path.IsAbs(target) {
			at = "."
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return "", false
}
