package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"glasshouse/internal/fork"
	"glasshouse/internal/thread"
)

// KernelRelease returns the release of the running kernel, such as 6.12.9-amd64.
func KernelRelease() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", fmt.Errorf("get the release of the kernel: %w", err)
	}
	return unix.ByteSliceToString(u.Release[:]), nil
}

func kernel(context.Context, Host) (string, error) {
	release, err := KernelRelease()
	if err != nil {
		return "", err
	}
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return "", fmt.Errorf("parse kernel release %q: %w", release, err)
	}
	if major < 5 || major == 5 && minor < 19 {
		return "", cannot("Linux "+release+" is older than 5.19, the first with overlays of idmapped layers", "use a newer kernel")
	}
	return "Linux " + release + " " + machineName(), nil
}

// needed lists the capabilities that the daemon needs.
var needed = map[int]string{
	0: "chown", 1: "dac_override", 3: "fowner", 5: "kill", 6: "setgid", 7: "setuid", 12: "net_admin", 18: "sys_chroot", 21: "sys_admin", 27: "mknod",
}

func privileges(context.Context, Host) (string, error) {
	caps, err := effective()
	if err != nil {
		return "", err
	}
	var missing []string
	for n, name := range needed {
		if caps&(1<<n) == 0 {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return "", cannot(
			fmt.Sprintf("user %d lacks %d of the %d capabilities that the daemon needs", os.Geteuid(), len(missing), len(needed)),
			"run the daemon as root, or use jails of the bwrap backend")
	}
	detail := "user " + strconv.Itoa(os.Geteuid()) + " with all needed capabilities"
	if caps&(1<<24) == 0 {
		detail += "; without sys_resource, which is needed to raise limits"
	}
	return detail, nil
}

// effective returns this process's effective capabilities.
func effective() (uint64, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
			return strconv.ParseUint(strings.TrimSpace(v), 16, 64)
		}
	}
	return 0, errors.New("/proc/self/status has no CapEff")
}

// try runs true(1) with attr and returns an error if it does not start.
func try(ctx context.Context, attr *syscall.SysProcAttr) error {
	cmd := exec.CommandContext(ctx, "true")
	cmd.SysProcAttr = attr
	if err := fork.StartMapped(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// asUser makes attr create a user namespace in which this user is root.
func asUser(attr *syscall.SysProcAttr) *syscall.SysProcAttr {
	attr.Cloneflags |= unix.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	return attr
}

const userNSRemedy = "sysctl -w user.max_user_namespaces=15000, and in a container allow creating user namespaces"

func userNamespaces(ctx context.Context, _ Host) (string, error) {
	err := try(ctx, asUser(&syscall.SysProcAttr{}))
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EUSERS) {
		return "", cannot("the limit of user namespaces is reached", userNSRemedy)
	}
	return sysctl("user/max_user_namespaces", "%s at most"), refusedUserNS(err)
}

// refusedUserNS returns a negative result whose remedy is for a setting that also applies to
// root, or the result of refused.
func refusedUserNS(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return cannot("creating a user namespace is not permitted", unprivilegedRemedy())
	}
	return refused("user namespaces", err, userNSRemedy)
}

// unprivilegedUserNamespaces probes as the user nobody if this process is root: bubblewrap and
// the agents' own sandboxes are run by ordinary users.
func unprivilegedUserNamespaces(ctx context.Context, h Host) (string, error) {
	if os.Geteuid() != 0 {
		return userNamespaces(ctx, h)
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		return "", fmt.Errorf("find the program unshare: %w", err)
	}
	const nobody = 65534
	// Some systems only forbid mapping oneself to root.
	cmd := exec.CommandContext(ctx, unshare, "--user", "--map-root-user", "true")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if _, ended := errors.AsType[*exec.ExitError](err); ended && ctx.Err() == nil {
		return "", cannot("an ordinary user cannot create a user namespace: "+strings.TrimSpace(string(out)), unprivilegedRemedy())
	}
	return "", err
}

// unprivilegedRemedy returns the remedy for the setting that is disabled.
func unprivilegedRemedy() string {
	for _, s := range []struct{ name, off, on string }{
		{"kernel/unprivileged_userns_clone", "0", "1"},
		{"kernel/apparmor_restrict_unprivileged_userns", "1", "0"},
		{"user/max_user_namespaces", "0", "15000"},
	} {
		if sysctl(s.name, "%s") == s.off {
			return "sysctl -w " + strings.ReplaceAll(s.name, "/", ".") + "=" + s.on
		}
	}
	return "allow user namespaces in the security profile of the daemon"
}

// sysctl returns a formatted kernel setting, or "" if it does not exist.
func sysctl(name, form string) string {
	b, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		return ""
	}
	return fmt.Sprintf(form, strings.TrimSpace(string(b)))
}

// namespace returns a probe for one type of namespace. Without root it probes in a user
// namespace.
func namespace(flag uintptr) func(context.Context, Host) (string, error) {
	return func(ctx context.Context, _ Host) (string, error) {
		attr := &syscall.SysProcAttr{Cloneflags: flag}
		if os.Geteuid() == 0 {
			return "", refused("namespaces of this type", try(ctx, attr), "use a kernel with CONFIG_NAMESPACES and all types of them, and allow them in the container this runs in")
		}
		return "in a user namespace", refusedUserNS(try(ctx, asUser(attr)))
	}
}

func timeNamespaces(context.Context, Host) (string, error) {
	if _, err := os.Stat("/proc/self/ns/time"); err != nil {
		return "", cannot("this kernel has no time namespaces", "use Linux 5.6 or later with CONFIG_TIME_NS; without them the clocks of restored jails jump")
	}
	if os.Geteuid() != 0 {
		return "", nil
	}
	// clone(2) cannot create a time namespace. unshare(2) creates it for the children of a thread
	// (time_namespaces(7)).
	err := thread.Alone(func() error { return unix.Unshare(unix.CLONE_NEWTIME) })
	return "", refused("time namespaces", err, "use Linux 5.6 or later with CONFIG_TIME_NS")
}
