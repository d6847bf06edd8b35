package bwrap

import (
	"os"

	"glasshouse/host/cgroup"
)

const cgroupRemedy = "run the daemon as a systemd user service with Delegate=yes, or as root"

// newCgroupTree returns the tree in which this process can create cgroups for jails.
func newCgroupTree(prefix string) (*cgroup.Tree, error) {
	if os.Geteuid() == 0 {
		return cgroup.New(prefix)
	}
	return cgroup.Delegated(prefix)
}
