package jail

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"glasshouse/fault"
)

// reserved are the paths in a jail that are its own. Mounts must not cover them.
var reserved = []string{"/proc", "/sys", "/dev", "/.glasshouse"}

// Reserved returns the paths in a jail on which nothing may be mounted.
func Reserved() []string { return slices.Clone(reserved) }

// CheckTarget returns an error if nothing can be mounted on path p in a jail.
func CheckTarget(p string) error {
	switch {
	case !path.IsAbs(p):
		return fmt.Errorf("%q is not an absolute path", p)
	case path.Clean(p) != p:
		return fmt.Errorf("%q is not a clean path, such as %q", p, path.Clean(p))
	case strings.ContainsAny(p, "\x00\n"):
		return fmt.Errorf("%q contains a NUL byte or a line break", p)
	case p == "/":
		return errors.New("a mount cannot replace the root directory")
	}
	for _, r := range reserved {
		if Under(p, r) {
			return fmt.Errorf("%s is reserved for the jail", r)
		}
	}
	return nil
}

// CheckTargets returns an error if a mount would cover a reserved path, another mount or the
// workspace. A mount may lie inside the workspace. The error is an Invalid one and names the
// field of the jail's specification.
func (p Plan) CheckTargets() error {
	const op = "jail.Create"
	at := ""
	if p.Workspace != nil {
		at = p.Workspace.At()
		if err := CheckTarget(at); err != nil {
			return fault.Fieldf(op, "workspace.target", "%w", err)
		}
	}
	for i, m := range p.Mounts {
		field := fmt.Sprintf("mounts[%d].target", i)
		if err := CheckTarget(m.Target); err != nil {
			return fault.Fieldf(op, field, "%w", err)
		}
		if at != "" && Under(at, m.Target) {
			return fault.Fieldf(op, field, "%s would hide the workspace at %s", m.Target, at)
		}
		for j, other := range p.Mounts {
			if i != j && Under(other.Target, m.Target) {
				return fault.Fieldf(op, field, "%s would hide the mount at %s", m.Target, other.Target)
			}
		}
	}
	return nil
}

// At returns the path of a workspace in its jail.
func (w Workspace) At() string {
	if w.Target != "" {
		return w.Target
	}
	return w.Source
}

// Under reports whether the clean path p is dir or lies below it.
func Under(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}
