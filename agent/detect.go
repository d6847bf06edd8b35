package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"glasshouse/fault"
)

// places are where a root filesystem may have an agent's program, besides its PATH.
var places = []string{
	"usr/local/bin", "usr/bin", "bin", "usr/local/sbin", "usr/sbin", "sbin",
	"home/agent/.local/bin", "home/agent/.opencode/bin", "root/.local/bin", "root/.opencode/bin", "root/.bun/bin",
	"usr/lib/node_modules/.bin", "usr/local/lib/node_modules/.bin",
}

// Detect finds a program in a root filesystem, and returns its path there: "" if there
// is none, and the agent's Layer is needed.
func Detect(root fs.FS, program string) string {
	for _, dir := range places {
		if name, ok := follow(root, path.Join(dir, program)); ok {
			if info, err := fs.Stat(root, name); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				return "/" + path.Join(dir, program)
			}
		}
	}
	return ""
}

// Locate finds what a launch needs in its jail, of which has reports whether there is
// a program at a path, and has it start the one that was found.
//
// It returns fault.Unsupported if something is missing.
func (l Launch) Locate(has func(name string) bool) (Launch, error) {
	for _, n := range l.Needs {
		if strings.Contains(n.Program, "/") {
			continue // whoever wrote it knows where it is
		}
		at := l.find(n.Program, has)
		if at == "" {
			return l, fault.Cannot("agent.Locate", fmt.Sprintf("the jail has no %s", n.Program),
				fmt.Sprintf("have it in the jail, or in the root filesystem: it comes from %s", n.From))
		}
		if n.Program == l.Argv[0] {
			l.Argv = append([]string{at}, l.Argv[1:]...)
		}
	}
	return l, nil
}

// find looks where the agent itself looks for programs first.
func (l Launch) find(program string, has func(name string) bool) string {
	var dirs []string
	for _, kv := range l.Env {
		if list, ok := strings.CutPrefix(kv, "PATH="); ok {
			dirs = strings.Split(list, ":")
		}
	}
	for _, dir := range places {
		dirs = append(dirs, "/"+dir)
	}
	for _, dir := range dirs {
		if name := path.Join(dir, program); has(name) {
			return name
		}
	}
	return ""
}

// follow resolves links as the jail will: an absolute one begins at its own root, and
// none leads out of it.
func follow(root fs.FS, name string) (string, bool) {
	const most = 255 // steps and links, as the kernel has bounds
	rest := strings.Split(name, "/")
	at := "."
	for range most {
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
