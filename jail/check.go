package jail

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"glasshouse/fault"
	"glasshouse/observe/syscalls"
)

// bound is one limit with its default, minimum and maximum.
type bound struct {
	field        string
	value        *int64
	def, lo, max int64
}

func (l *Limits) bounds() []bound {
	d, m := DefaultLimits, MaxLimits
	return []bound{
		{"limits.cpu_shares", &l.CPUShares, d.CPUShares, 2, m.CPUShares},
		{"limits.memory_mb", &l.MemoryMB, d.MemoryMB, 32, m.MemoryMB},
		{"limits.disk_mb", &l.DiskMB, d.DiskMB, 16, m.DiskMB},
		{"limits.max_pids", &l.MaxPIDs, d.MaxPIDs, 24, m.MaxPIDs},
	}
}

// checks validates the specifications of jails.
type checks struct{ *core }

// check fills in defaults and returns an Invalid error that names the first invalid field.
func (ck *checks) check(s Spec) (Spec, error) {
	const op = "jail.Create"
	for _, b := range s.Limits.bounds() {
		if *b.value == 0 {
			*b.value = b.def
		}
		if *b.value > b.max {
			return s, fault.Fieldf(op, b.field, "%d exceeds the maximum of %d", *b.value, b.max)
		}
		if *b.value < b.lo {
			return s, fault.Fieldf(op, b.field, "%d is below the minimum of %d", *b.value, b.lo)
		}
	}
	if s.Backend == "" {
		s.Backend = ck.cfg.Backend
	}
	if s.Backend == "oci" && s.Runtime == "" {
		s.Runtime = ck.cfg.Runtime
	}
	if of := s.Rootfs.User; s.Rootfs == (Rootfs{User: of}) {
		s.Rootfs = ck.cfg.DefaultRootfs
		s.Rootfs.User = of
	}
	if s.Network == "" {
		s.Network = Isolated
	}
	if err := s.checkNetwork(); err != nil {
		return s, err
	}
	if err := checkHostname(s.Hostname); err != nil {
		return s, fault.Fieldf(op, "hostname", "%v", err)
	}
	if len(s.Name) > MaxName || strings.ContainsFunc(s.Name, func(r rune) bool { return r < ' ' }) {
		return s, fault.Fieldf(op, "name", "must be at most 128 bytes without control characters")
	}
	if len(s.Labels) > 64 {
		return s, fault.Fieldf(op, "labels", "%d labels exceed the maximum of 64", len(s.Labels))
	}
	for k, v := range s.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.Contains(v, "\x00") {
			return s, fault.Fieldf(op, "env", "%q is not a valid variable name", k)
		}
	}
	if err := s.Observe.Check(op, "observe.", syscalls.Known); err != nil {
		return s, err
	}
	s.Observe = s.Observe.Defaults(ck.cfg.Observe)
	var err error
	if s.Snapshots, err = s.Snapshots.check(op); err != nil {
		return s, err
	}
	if s.Cwd != "" && !filepath.IsAbs(s.Cwd) {
		return s, fault.Fieldf(op, "cwd", "%q is not an absolute path", s.Cwd)
	}
	if err := s.Rootfs.check(s.Backend); err != nil {
		return s, err
	}
	return s, ck.checkHostPaths(&s)
}

// Networks are all network modes, from the most to the least restricted.
var Networks = []Network{Isolated, Proxied, Bridged, Full}

// DefaultGroup is the group of a bridged jail whose Spec names no group.
const DefaultGroup = "default"

// checkNetwork checks the network mode and the group.
func (s *Spec) checkNetwork() error {
	const op = "jail.Create"
	switch {
	case !slices.Contains(Networks, s.Network):
		return fault.Fieldf(op, "network", "%q is not one of %q", s.Network, Networks)
	case s.Network != Bridged && s.Group != "":
		return fault.Fieldf(op, "network_group", "only a bridged jail can have a group, and the network mode is %s", s.Network)
	case s.Network == Bridged && s.Group == "":
		s.Group = DefaultGroup
	case len(s.Group) > 64 || strings.ContainsFunc(s.Group, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fault.Fieldf(op, "network_group", "must be at most 64 bytes without control characters")
	}
	return nil
}

func (r Rootfs) check(backend string) error {
	const op = "jail.Create"
	n := 0
	for _, set := range []bool{r.Debian != "", r.Dir != "", r.OCI != "", r.Nix != "", r.Host} {
		if set {
			n++
		}
	}
	if n > 1 {
		return fault.Fieldf(op, "rootfs", "specify exactly one source, not %d", n)
	}
	if r.Host && backend != "bwrap" {
		return fault.Fieldf(op, "rootfs.host", "only the bwrap backend can use the host's own tree")
	}
	return nil
}

// checkHostPaths checks that the configuration allows the host paths that the jail mounts.
func (ck *checks) checkHostPaths(s *Spec) error {
	const op = "jail.Create"
	for i, mt := range s.Mounts {
		field := fmt.Sprintf("mounts[%d]", i)
		real, err := resolveDirOrFile(mt.Source)
		if err != nil {
			return fault.Fieldf(op, field+".source", "%v", err)
		}
		if !underAny(real, ck.cfg.AllowMounts) && !underAny(real, s.GrantedMounts) {
			return ck.notAllowed(op, field+".source", real, "mounts.allow")
		}
		if mt.Owners && s.Backend != "oci" {
			return fault.Fieldf(op, field, "only the oci backend supports mounts with owners")
		}
		s.Mounts[i].Source = real
	}
	if s.Workspace == nil {
		return Plan{Mounts: s.Mounts}.CheckTargets()
	}
	w := *s.Workspace
	real, err := resolveDirOrFile(w.Source)
	if err != nil {
		return fault.Fieldf(op, "workspace.source", "%v", err)
	}
	if fi, err := os.Stat(real); err != nil || !fi.IsDir() {
		return fault.Fieldf(op, "workspace.source", "%q is not a directory", real)
	}
	if !s.Trusted && !underAny(real, ck.cfg.AllowWorkspaces) {
		return ck.notAllowed(op, "workspace.source", real, "workspaces.allow")
	}
	w.Source, w.Target = real, w.At()
	s.Workspace = &w
	return Plan{Workspace: s.Workspace, Mounts: s.Mounts}.CheckTargets()
}

func (ck *checks) notAllowed(op, field, path, setting string) error {
	return &fault.Error{Op: op, Kind: fault.Denied, Field: field,
		Err:    fmt.Errorf("the configuration does not allow %q", path),
		Remedy: fmt.Sprintf("add a prefix of it to %s in the daemon's configuration", setting)}
}

// resolveDirOrFile returns path with its symlinks resolved, so that the path that is checked
// is the path that is mounted.
func resolveDirOrFile(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("%q is not an absolute path", path)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	return real, nil
}

func underAny(path string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return Under(path, filepath.Clean(p)) })
}

func checkHostname(name string) error {
	if name == "" {
		return nil
	}
	ok := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.'
	}
	if len(name) > 63 || strings.ContainsFunc(name, func(r rune) bool { return !ok(r) }) || strings.HasPrefix(name, "-") {
		return fmt.Errorf("%q is not a host name of at most 63 letters, digits, dots and hyphens", name)
	}
	return nil
}

// MaxName is the maximum length of a jail's name in bytes.
const MaxName = 128

// Check returns the spec with defaults as Create would use it, or the error of Create.
func (ck *checks) Check(s Spec) (Spec, error) { return ck.check(s) }
