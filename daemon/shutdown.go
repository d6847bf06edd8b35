package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
)

// systemdTime is the timeout of a query to systemd.
const systemdTime = 5 * time.Second

// hostStops reports whether systemd is shutting down this host, or for the daemon of an
// ordinary user, that user's session manager.
func hostStops() bool {
	if _, err := os.Stat("/run/systemd/system"); err != nil { // sd_booted(3)
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), systemdTime)
	defer cancel()
	args := []string{"is-system-running"}
	if os.Geteuid() != 0 {
		args = append(args, "--user")
	}
	out, _ := exec.CommandContext(ctx, "systemctl", args...).Output() // the exit status is nonzero in all states but running (systemctl(1))
	return strings.TrimSpace(string(out)) == "stopping"
}

// endJails ends the processes of all jails when the host shuts down. Jails do not belong
// to a unit, so systemd-shutdown(8) would wait for their inits, which ignore SIGTERM,
// until its timeout of 90 seconds. The records of the jails are left as they are: the
// next daemon finds that the host was restarted, as after a power cut, and resumes runs.
func (d *Daemon) endJails() error {
	open := cgroup.New
	if os.Geteuid() != 0 {
		open = cgroup.Delegated
	}
	tree, err := open(d.cgroups)
	if errors.Is(err, fault.Unsupported) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the parent cgroup %s: %w", d.cgroups, err)
	}
	return tree.KillAll(context.Background(), jailsTime)
}
