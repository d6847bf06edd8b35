package bwrap

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"glasshouse/fault"
	"glasshouse/jail"
)

// reserved are the places in a jail that are not a mount's to cover.
var reserved = []string{"/proc", "/sys", "/dev", "/.glasshouse"}

// checkTargets refuses mounts that would cover the jail's own machinery or one
// another. A mount may lie inside the workspace.
func checkTargets(p jail.Plan) error {
	const op = "bwrap.Create"
	if p.Workspace != nil {
		if err := checkTarget(workspaceTarget(p)); err != nil {
			return fault.Fieldf(op, "workspace.target", "%w", err)
		}
	}
	for i, m := range p.Mounts {
		field := fmt.Sprintf("mounts[%d].target", i)
		if err := checkTarget(m.Target); err != nil {
			return fault.Fieldf(op, field, "%w", err)
		}
		if p.Workspace != nil && under(workspaceTarget(p), m.Target) {
			return fault.Fieldf(op, field, "%s would hide the workspace at %s", m.Target, workspaceTarget(p))
		}
		for j, other := range p.Mounts {
			if i != j && under(other.Target, m.Target) {
				return fault.Fieldf(op, field, "%s would hide the mount at %s", m.Target, other.Target)
			}
		}
	}
	return nil
}

func checkTarget(t string) error {
	switch {
	case !path.IsAbs(t) || path.Clean(t) != t || strings.ContainsRune(t, 0):
		return fmt.Errorf("%q is not a clean absolute path", t)
	case t == "/":
		return errors.New("a mount cannot replace the root directory")
	}
	for _, r := range reserved {
		if under(t, r) {
			return fmt.Errorf("%s belongs to the jail itself", r)
		}
	}
	return nil
}

func workspaceTarget(p jail.Plan) string {
	if p.Workspace.Target != "" {
		return p.Workspace.Target
	}
	return p.Workspace.Source
}

// under reports whether p is dir or lies below it.
func under(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// makeTarget makes sure that target, seen from the directory root, is there to
// mount on. bwrap would make it too, but would follow a symbolic link that the
// jail has left there for the next start, and out of root. A link that leads to
// a place inside root is followed, one that does not is refused.
func makeTarget(root *os.Root, target string, dir bool) error {
	rel := strings.TrimPrefix(target, "/")
	st, err := root.Stat(rel)
	switch {
	case err == nil && st.IsDir() == dir:
		return nil
	case err == nil:
		return fault.Newf(fault.Invalid, "bwrap.Create", target, "a directory can only be mounted on a directory, a file only on a file")
	case !errors.Is(err, os.ErrNotExist):
		return fault.Newf(fault.Invalid, "bwrap.Create", target, "cannot be mounted on: %w", err)
	}
	if err := makeEntry(root, rel, dir); err != nil {
		return fault.Newf(fault.Invalid, "bwrap.Create", target, "cannot be made to mount on: %w", err)
	}
	return nil
}

func makeEntry(root *os.Root, rel string, dir bool) error {
	if dir {
		return root.MkdirAll(rel, 0o755)
	}
	if err := root.MkdirAll(path.Dir(rel), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(rel, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}
