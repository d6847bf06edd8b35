package oci

import (
	"fmt"
	"path"
	"strings"

	"glasshouse/fault"
	"glasshouse/jail"
)

// reserved are the places in a jail that are not a mount's to cover.
var reserved = []string{"/proc", "/sys", "/dev", "/.glasshouse"}

// checkTargets refuses mounts that would cover the jail's own machinery, be
// ambiguous, or lie in one another. A mount may lie inside the workspace.
func checkTargets(p jail.Plan) error {
	const op = "oci.Create"
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

// checkTarget refuses a path that is not absolute and clean, or is reserved.
func checkTarget(t string) error {
	switch {
	case !path.IsAbs(t):
		return fmt.Errorf("%q is not an absolute path", t)
	case path.Clean(t) != t:
		return fmt.Errorf("%q is not a clean path, such as %q", t, path.Clean(t))
	case strings.ContainsAny(t, "\x00\n"):
		return fmt.Errorf("%q holds a NUL byte or a line break", t)
	case t == "/":
		return fmt.Errorf("a mount cannot replace the root directory")
	}
	for _, r := range reserved {
		if under(t, r) {
			return fmt.Errorf("%s belongs to the jail itself", r)
		}
	}
	return nil
}

// workspaceTarget is where the workspace shows: the same path as on the host,
// unless the plan says otherwise.
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
