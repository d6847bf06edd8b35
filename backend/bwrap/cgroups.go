package bwrap

import (
	"os"

	"glasshouse/host/cgroup"
)

const cgroupRemedy = "run the daemon as a systemd user service with Delegate=yes, or as root"

// ownCgroups returns the tree in which we may make cgroups for jails.
func ownCgroups(prefix string) (*cgroup.Tree, error) {
	if os.Geteuid() == 0 {
		return cgroup.New(prefix)
	}
	return cgroup.Delegated(prefix)
}
