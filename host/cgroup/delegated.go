package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

const delegateRemedy = "run the daemon as a systemd user service, or as a service with Delegate=yes, on a host whose controllers are in cgroup2"

// Delegated is like New, but for a daemon without root. The tree is in the cgroup v2 subtree that
// is delegated to its user. systemd delegates subtrees to users and to services with Delegate=yes.
// Without a delegated subtree it returns fault.Unsupported.
//
// Limits can only be set below a cgroup without processes. If only the daemon's own cgroup is
// delegated, its processes move to a child cgroup.
func Delegated(prefix string) (*Tree, error) {
	const op = "cgroup.Delegated"
	if !plain(prefix) {
		return nil, fault.Newf(fault.Invalid, op, prefix, "not a plain name")
	}
	if !cgroups.IsCgroup2UnifiedMode() {
		return nil, fault.Cannot(op, "only cgroup2 can be delegated, and its controllers are elsewhere on this host", delegateRemedy)
	}
	own, err := ownPath()
	if err != nil {
		return nil, err
	}
	base, err := delegatedBase(mountpoint, own)
	if err != nil {
		return nil, err
	}
	t := &Tree{prefix: filepath.Join(strings.TrimPrefix(base, "/"), prefix), unified: mountpoint, v2: true, lacks: map[string]string{}}
	if err := t.findLacks(); err != nil {
		return nil, err
	}
	for what := range t.lacks {
		t.lacks[what] = "the cgroup controller " + what + " is not delegated to this user; " + delegateRemedy
	}
	return t, nil
}

// ownPath returns this process's cgroup v2 path.
func ownPath() (string, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", fmt.Errorf("read this process's cgroup: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok && filepath.IsAbs(path) && filepath.Clean(path) == path {
			return path, nil
		}
	}
	return "", fault.Cannot("cgroup.Delegated", "this process has no cgroup v2 cgroup", delegateRemedy)
}

// delegatedBase returns the nearest cgroup, own or an ancestor, that is writable and has no
// processes.
func delegatedBase(root, own string) (string, error) {
	given := ""
	for path := own; ; path = filepath.Dir(path) {
		if !writable(filepath.Join(root, path)) {
			break // cgroups above are not writable either, or not delegated
		}
		given = path
		pids, err := cgroups.GetPids(filepath.Join(root, path))
		if err != nil {
			return "", fmt.Errorf("list the processes of cgroup %s: %w", path, err)
		}
		if len(pids) == 0 || path == "/" { // only the root may have processes and distribute controllers (cgroups(7), "no internal processes")
			return path, nil
		}
	}
	if given == "" {
		return "", fault.Cannot("cgroup.Delegated", "no cgroup is delegated to this user", delegateRemedy)
	}
	return given, evacuate(filepath.Join(root, given))
}

// writable reports whether this process may create cgroups in a cgroup, move processes within
// it and delegate its controllers.
func writable(dir string) bool {
	for _, file := range []string{"", "cgroup.procs", "cgroup.subtree_control"} {
		if unix.Access(filepath.Join(dir, file), unix.W_OK) != nil {
			return false
		}
	}
	return true
}

// evacuate moves the processes of a cgroup to a child cgroup.
func evacuate(dir string) error {
	below := filepath.Join(dir, "daemon")
	if err := os.Mkdir(below, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("move processes out of cgroup %s: %w", dir, err)
	}
	for range 100 { // other processes of the same service may be starting
		pids, err := cgroups.GetPids(dir)
		if err != nil {
			return fmt.Errorf("list the processes of cgroup %s: %w", dir, err)
		}
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			if err := cgroups.WriteCgroupProc(below, pid); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("move processes out of cgroup %s: %w", dir, err)
			}
		}
	}
	return fault.Newf(fault.Unavailable, "cgroup.Delegated", dir, "new processes kept appearing in the cgroup")
}
