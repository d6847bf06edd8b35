package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/internal/thread"
	"glasshouse/jail"
)

// A kind describes the properties of one runtime.
type kind struct {
	name       string            // also the name of its package
	hideHybrid bool              // does not start if it sees both cgroup v1 and v2
	chowns     bool              // changes the owner of its standard streams to root in the jail
	defaults   bool              // sets its own pids limit if the spec has none
	sentry     bool              // gVisor: a user-space kernel between jail and host
	flags      []string          // flags before the subcommand
	lacks      map[string]string // as returned by jail.Backend.Lacks
}

var kinds = map[string]kind{
	"runc": {name: "runc"},
	"crun": {name: "crun", hideHybrid: true, chowns: true, defaults: true},
	"runsc": {
		name:   "runsc",
		sentry: true,
		flags: []string{
			"--platform=systrap", // needs no KVM
			"--oci-seccomp",      // apply the seccomp profile in gVisor's kernel
			"--overlay2=none",    // write to the upper layer, not to a file of gVisor
			// The network namespace belongs to the jail and has no other uplink. The gateway
			// listens on its loopback, which gVisor's own network stack would not reach.
			"--network=host",
		},
		lacks: map[string]string{
			"enforcement": "gVisor has no seccomp notifications, which enforcement needs",
			"pids":        "gVisor runs the jail's processes on its own threads: the host limits those to four times the limit plus 1024, and exceeding that ends the whole jail instead of failing one fork",
		},
	},
}

// adjust applies the runtime's special requirements to s.
func (k kind) adjust(s *specs.Spec, p jail.Plan) {
	if k.defaults {
		pids := k.limits(p.Limits).PIDs
		s.Linux.Resources = &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &pids}}
	}
	if !k.sentry {
		return
	}
	// gVisor reports this memory size to the jail. The limit itself is set on the cgroup.
	bytes := p.Limits.MemoryMB << 20
	s.Linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &bytes}}
	// gVisor would mount its own tmpfs on an empty /tmp. Mounts below /tmp come later in the
	// list.
	tmp := specs.Mount{
		Destination: "/tmp", Type: "bind", Source: filepath.Join(s.Root.Path, "tmp"),
		Options: []string{"bind", "rw", "nosuid", "nodev"},
	}
	s.Mounts = append([]specs.Mount{tmp}, s.Mounts...)
	allow(s.Linux.Seccomp, "clone3")
}

// allow allows calls that the profile denies with a specific errno, because gVisor always
// returns EPERM. A C library falls back from clone3 to clone only on ENOSYS.
func allow(profile *specs.LinuxSeccomp, calls ...string) {
	var rules []specs.LinuxSyscall
	for _, rule := range profile.Syscalls {
		rule.Names = slices.DeleteFunc(slices.Clone(rule.Names), func(name string) bool { return slices.Contains(calls, name) })
		if len(rule.Names) > 0 {
			rules = append(rules, rule)
		}
	}
	profile.Syscalls = append(rules, specs.LinuxSyscall{Names: calls, Action: specs.ActAllow})
}

// sentryMemory is the memory of gVisor's kernel in addition to the jail's. The kernel needs it
// to checkpoint and restore a jail that has used up its limit.
const sentryMemory = 64 << 20

// limits returns the limits of the cgroup. With gVisor the host's tasks are not the jail's
// processes, and part of the memory belongs to gVisor.
func (k kind) limits(l jail.Limits) cgroup.Limits {
	pids, memory := l.MaxPIDs+jail.InitThreads, l.MemoryMB<<20
	if k.sentry {
		pids, memory = 4*l.MaxPIDs+1024, memory+sentryMemory
	}
	return cgroup.Limits{CPUShares: l.CPUShares, MemoryBytes: memory, PIDs: pids}
}

// command returns the runtime's command line.
func (b *Backend) command(log string, args ...string) []string {
	argv := []string{b.path, "--root", b.state()}
	if log != "" {
		argv = append(argv, "--log", log, "--log-format", "json")
	}
	argv = append(argv, b.kind.flags...)
	if b.kind.sentry && b.releaseDate() >= sentrySince {
		argv = append(argv,
			"--gofer-network-namespace=new",    // the default stays mounted on the host
			"--restore-spec-validation=ignore") // a jail is restored with other ids and names
	}
	return append(argv, args...)
}

// state returns the state directory of the runtime.
func (b *Backend) state() string { return filepath.Join(b.cfg.RunDir, b.kind.name) }

// run starts the jail with the given runtime subcommand and returns when the jail runs.
//
// The runtime and init get dedicated standard streams, because a sandbox keeps inherited
// descriptors open for its lifetime. If this process dies the runtime is killed, so that it does
// not complete a jail that no daemon has recorded. Where possible the runtime runs in the jail's
// cgroup, where Clean finds it.
func (b *Backend) run(ctx context.Context, p jail.Plan, l layout, flags []string, how string, args ...string) error {
	null, err := b.nullDevice()
	if err != nil {
		return fmt.Errorf("open a null device: %w", err)
	}
	defer null.Close()
	stdin := null
	if b.kind.sentry {
		stdin, err = bindDatagramSocket(l)
		if err != nil {
			return fmt.Errorf("create the datagram socket: %w", err)
		}
		defer stdin.Close()
	}

	argv := b.command(l.log(), flags...)
	argv = append(argv, how, "--detach", "--bundle", l.bundle(), "--pid-file", l.pidFile())
	argv = append(append(argv, args...), string(p.ID))
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Dir = "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, null, null
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	group, err := b.openHybrid(p)
	if err != nil {
		return fmt.Errorf("open the cgroup of the jail: %w", err)
	}
	if group != nil {
		defer group.Close()
		cmd.SysProcAttr.UseCgroupFD = true
		cmd.SysProcAttr.CgroupFD = int(group.Fd())
	}
	err = b.onThread(func() error {
		if b.kind.sentry {
			if err := disableSeccompNotify(); err != nil {
				return fmt.Errorf("disable seccomp notifications: %w", err)
			}
		}
		return cmd.Run()
	})
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return b.notInstalled("oci.Create")
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w%s", b.kind.name, how, errors.Join(err, ctx.Err()), lastLogError(l.log()))
	}
	return nil
}

// tool runs a runtime command for a jail and waits for it.
func (b *Backend) tool(ctx context.Context, log string, args ...string) error {
	argv := b.command(log, args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := b.onThread(cmd.Run); err != nil {
		return fmt.Errorf("%s %s: %w%s", b.kind.name, args[0], errors.Join(err, ctx.Err()), lastLogError(log))
	}
	return nil
}

// bindDatagramSocket creates the datagram socket through which init of a gVisor jail receives
// connections. gVisor's init cannot create a socket that is visible on the host, so the
// sandbox inherits this one as its stdin. The host finds it at the path of the usual socket.
func bindDatagramSocket(l layout) (*os.File, error) {
	dir, err := os.Open(l.control())
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// A jail's path may exceed the size of sun_path (unix(7)).
	at := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(l.socket()))
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: at}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return os.NewFile(uintptr(fd), l.socket()), nil
}

// onThread runs f on a locked thread. The thread is the parent whose exit kills the child
// (PR_SET_PDEATHSIG, prctl(2)) and provides the mount namespace.
func (b *Backend) onThread(f func() error) error {
	if b.hidden == "" && !b.kind.sentry {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		return f()
	}
	return thread.Alone(func() error {
		if b.hidden != "" {
			if err := hide(b.hidden); err != nil {
				return err
			}
		}
		return f()
	})
}

// hide moves the thread to a new mount namespace without mount.
func hide(mount string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	// MS_SLAVE: unmounts on the host propagate into this namespace, and nothing propagates
	// back (mount_namespaces(7)).
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("make mounts follow the host's: %w", err)
	}
	if err := unix.Unmount(mount, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("hide %s: %w", mount, err)
	}
	return nil
}

// nullDevice opens the device for init's standard streams. For a runtime that changes their
// owner it creates a device on a detached tmpfs. Otherwise the owner of the host's /dev/null
// would change.
func (b *Backend) nullDevice() (*os.File, error) {
	if !b.kind.chowns {
		return os.OpenFile("/dev/null", os.O_RDWR, 0)
	}
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, fmt.Errorf("fsconfig: %w", err)
	}
	dir, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOEXEC|unix.MOUNT_ATTR_NOSUID)
	if err != nil {
		return nil, fmt.Errorf("fsmount: %w", err)
	}
	defer unix.Close(dir)
	if err := unix.Mknodat(dir, "null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		return nil, fmt.Errorf("mknod: %w", err)
	}
	fd, err := unix.Openat(dir, "null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("openat: %w", err)
	}
	return os.NewFile(uintptr(fd), "null"), nil
}

// lastLogError returns the last error in the runtime's log.
func lastLogError(log string) string {
	b, err := os.ReadFile(log)
	if err != nil {
		return ""
	}
	last := ""
	for line := range bytes.Lines(b) {
		var entry struct{ Level, Msg string }
		if json.Unmarshal(line, &entry) == nil && entry.Level == "error" {
			last = ": " + strings.TrimSpace(entry.Msg)
		}
	}
	return last
}

// removeRuntimeState removes the runtime's state of a jail whose processes have exited. The
// delete command of the runtime would do the same, but costs a process and, with gVisor, a
// second.
func (b *Backend) removeRuntimeState(p jail.Plan) error {
	name := string(p.ID)
	errs := []error{os.RemoveAll(filepath.Join(b.state(), name))} // runc, crun
	if b.kind.sentry {
		for _, file := range []string{sentryState(name), name + "_sandbox:" + name + ".lock"} {
			errs = append(errs, os.RemoveAll(filepath.Join(b.state(), file)))
		}
		// gVisor creates a sandbox's control socket in the first usable of these directories.
		for _, dir := range []string{b.state(), "/var/run", "/run", "/tmp"} {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, "runsc-"+name+".sock")))
		}
	}
	return errors.Join(errs...)
}

// version returns the version string of the runtime, or fault.Unsupported if it is not
// installed.
func (b *Backend) version(ctx context.Context) (string, error) {
	const op = "oci.Probe"
	if _, err := exec.LookPath(b.path); err != nil {
		return "", b.notInstalled(op)
	}
	out, err := exec.CommandContext(ctx, b.path, "--version").Output()
	if err != nil {
		return "", fault.Cannot(op, fmt.Sprintf("%s --version: %v", b.path, err), b.remedy())
	}
	first, _, _ := strings.Cut(string(out), "\n")
	if !strings.HasPrefix(first, b.kind.name+" version ") {
		return "", fault.Cannot(op, fmt.Sprintf("%s is not %s: its version is %.80q", b.path, b.kind.name, first), b.remedy())
	}
	return strings.TrimPrefix(first, b.kind.name+" version "), nil
}

func (b *Backend) notInstalled(op string) error {
	return fault.Cannot(op, fmt.Sprintf("%s is not installed", b.path), b.remedy())
}

func (b *Backend) remedy() string {
	return fmt.Sprintf("install the package %s, or put the binary into the daemon's tools directory", b.kind.name)
}
