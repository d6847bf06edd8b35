package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"glasshouse/host/cgroup"
)

// layout reports whether this host uses cgroup v1, v2 or both.
func layout() string {
	v2 := func(dir string) bool { _, err := os.Stat(dir + "/cgroup.procs"); return err == nil }
	switch {
	case v2("/sys/fs/cgroup"):
		return "v2"
	case v2("/sys/fs/cgroup/unified"):
		return "hybrid"
	}
	return "v1"
}

// openCgroups opens the tree for jails of this user.
func openCgroups(prefix string) (*cgroup.Tree, error) {
	if os.Geteuid() != 0 {
		return cgroup.Delegated(prefix)
	}
	return cgroup.New(prefix)
}

func cgroupLimits(context.Context, Host) (string, error) {
	t, err := openCgroups("glasshouse-probe")
	if err != nil {
		return "", err
	}
	lacks := t.Lacks()
	var have, reasons []string
	for _, c := range []string{"cpu", "memory", "pids"} {
		if lacks[c] == "" {
			have = append(have, c)
			continue
		}
		reasons = append(reasons, lacks[c])
	}
	if len(reasons) > 0 {
		return "", cannot(strings.Join(reasons, "; "), "follow the advice in the reason and reboot; jails work without it, but without these limits")
	}
	detail := layout() + " with " + strings.Join(have, ", ")
	if lacks["swap"] != "" {
		detail += "; " + lacks["swap"]
	}
	return detail, nil
}

// cgroupControl creates a cgroup with a process and performs the operations that jails need.
func cgroupControl(ctx context.Context, _ Host) (_ string, err error) {
	name := fmt.Sprintf("glasshouse-probe-%d-%d", os.Getpid(), time.Now().UnixNano())
	t, err := openCgroups(name)
	if err != nil {
		return "", err
	}
	for _, power := range []string{"freeze", "identity"} {
		if why := t.Lacks()[power]; why != "" {
			return "", cannot(why, "mount the cgroup2 filesystem: mount -t cgroup2 none /sys/fs/cgroup/unified")
		}
	}
	// Clean up even after a timeout.
	defer func() { err = errors.Join(err, t.Remove()) }()
	c, err := t.Create("p", cgroup.Limits{})
	if err != nil {
		return "", refused("creating a cgroup", err, "run the daemon outside a container, or in one with the host's cgroups")
	}
	defer func() {
		err = errors.Join(err, c.Destroy(context.WithoutCancel(ctx)))
	}()
	pid, reap, err := sleeper()
	if err != nil {
		return "", err
	}
	defer reap()
	for _, step := range []func() error{
		func() error { return c.AddPID(pid) },
		func() error { return c.Freeze(ctx) },
		func() error { return c.Thaw(ctx) },
		func() error { return c.Kill(ctx) },
	} {
		if err := step(); err != nil {
			return "", fmt.Errorf("freeze, thaw and kill a process: %w", err)
		}
	}
	return layout(), nil
}

func pressure(context.Context, Host) (string, error) {
	const remedy = "boot with psi=1, or use a kernel with CONFIG_PSI"
	_, err := os.ReadFile("/proc/pressure/memory")
	if errors.Is(err, os.ErrNotExist) {
		return "", cannot("this kernel does not measure pressure", remedy)
	}
	return "", refused("measurements of pressure", err, remedy)
}
