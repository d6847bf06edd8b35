package jail

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"glasshouse/fault"
)

// reserved are the places in a jail that are its own, and no mount's to cover.
var reserved = []string{"/proc", "/sys", "/dev", "/.glasshouse"}

// Reserved returns the places in a jail that nothing may be mounted on.
func Reserved() []string { return slices.Clone(reserved) }

// CheckTarget returns why nothing can be mounted on path in a jail, or nil.
func CheckTarget(p string) error {
	switch {
	case !path.IsAbs(p):
		return fmt.Errorf("%q is not an absolute path", p)
	case path.Clean(p) != p:
		return fmt.Errorf("%q is not a clean path, such as %q", p, path.Clean(p))
	case strings.ContainsAny(p, "\x00\n"):
		return fmt.Errorf("%q holds a NUL byte or a line break", p)
	case p == "/":
		return errors.New("a mount cannot replace the root directory")
	}
	for _, r := range reserved {
		if Under(p, r) {
			return fmt.Errorf("%s belongs to the jail itself", r)
		}
	}
	return nil
}

// CheckTargets refuses mounts that would cover the jail's own machinery, be
// ambiguous, or lie in one another. A mount may lie inside the workspace. The
// error is an Invalid one that names the field of the jail's specification.
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

// At is where a workspace shows in its jail.
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
