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

// A kind is one of the runtimes, with what sets it apart from the others.
type kind struct {
	name     string            // also of the package that has it
	hide     bool              // refuses to start where it sees both generations of cgroups
	chowns   bool              // gives its standard streams to the jail's root
	defaults bool              // sets a limit of its own for processes where it is given none
	sentry   bool              // a kernel of its own stands between jail and host
	flags    []string          // before the subcommand
	lacks    map[string]string // as jail.Backend's
}

var kinds = map[string]kind{
	"runc": {name: "runc"},
	"crun": {name: "crun", hide: true, chowns: true, defaults: true},
	"runsc": {
		name:   "runsc",
		sentry: true,
		flags: []string{
			"--platform=systrap", // needs no KVM
			"--oci-seccomp",      // also towards gVisor's own kernel
			"--overlay2=none",    // writes reach the upper layer, not a file of gVisor's
			// The network is the jail's own namespace, which holds nothing it may
			// not use. Its 127.0.0.1 is then the one the gateway listens on, which
			// gVisor's own network stack would keep apart.
			"--network=host",
		},
		lacks: map[string]string{
			"enforcement": "gVisor has no seccomp notifications, by which calls are decided",
			"pids":        "gVisor runs the jail's processes on threads of its own: the host bounds those, at four times the limit and a thousand more, and there the whole jail ends instead of one fork",
		},
	},
}

// adjust changes s where a runtime wants it otherwise.
func (k kind) adjust(s *specs.Spec, p jail.Plan) {
	if k.defaults {
		pids := k.limits(p.Limits).PIDs
		s.Linux.Resources = &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &pids}}
	}
	if !k.sentry {
		return
	}
	// gVisor tells the jail how much memory there is by this; the limit itself
	// is on the cgroup.
	bytes := p.Limits.MemoryMB << 20
	s.Linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &bytes}}
	// On an empty /tmp gVisor would mount a tmpfs of its own. What is mounted
	// below it comes later in the list.
	tmp := specs.Mount{
		Destination: "/tmp", Type: "bind", Source: filepath.Join(s.Root.Path, "tmp"),
		Options: []string{"bind", "rw", "nosuid", "nodev"},
	}
	s.Mounts = append([]specs.Mount{tmp}, s.Mounts...)
	allow(s.Linux.Seccomp, "clone3")
}

// allow lets calls through that the profile refuses with an errno of their own:
// gVisor knows no errno but EPERM. To clone3 that is no answer that a C library
// would take for "use clone".
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

// sentryMemory is what gVisor's kernel may have beside the jail: that it needs to
// write down a jail that has used up its own, and to make it again.
const sentryMemory = 64 << 20

// limits returns what the cgroup is to hold: where a kernel of its own stands
// between, the processes are not the jail's, and not all of the memory is.
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
	if b.kind.sentry && b.released() >= sentrySince {
		argv = append(argv,
			"--gofer-network-namespace=new",    // rather than one that stays mounted on the host
			"--restore-spec-validation=ignore") // a jail is made again with other ids and names
	}
	return append(argv, args...)
}

// state is where the runtime keeps what it knows of its containers.
func (b *Backend) state() string { return filepath.Join(b.cfg.RunDir, b.kind.name) }

// run has the runtime start the jail, by the given subcommand, and returns when it
// runs.
//
// Runtime and init get streams of their own: whatever a sandbox inherits it
// keeps open for life. If this process dies the runtime is killed, so that no
// jail is finished that nobody will know of; and it runs in the jail's cgroup
// where that can be, to be found there by Clean.
func (b *Backend) run(ctx context.Context, p jail.Plan, l layout, flags []string, how string, args ...string) error {
	null, err := b.nullDevice()
	if err != nil {
		return fmt.Errorf("open a null device: %w", err)
	}
	defer null.Close()
	stdin := null
	if b.kind.sentry {
		if stdin, err = makeDoor(l); err != nil {
			return fmt.Errorf("make a door: %w", err)
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
		return err
	}
	if group != nil {
		defer group.Close()
		cmd.SysProcAttr.UseCgroupFD = true
		cmd.SysProcAttr.CgroupFD = int(group.Fd())
	}
	err = b.onThread(func() error {
		if b.kind.sentry {
			if err := refuseListeners(); err != nil {
				return err
			}
		}
		return cmd.Run()
	})
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return b.notInstalled("oci.Create")
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w%s", b.kind.name, how, errors.Join(err, ctx.Err()), lastWords(l.log()))
	}
	return nil
}

// tool runs a command of the runtime that is about a jail, and returns when it is
// done.
func (b *Backend) tool(ctx context.Context, log string, args ...string) error {
	argv := b.command(log, args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := b.onThread(cmd.Run); err != nil {
		return fmt.Errorf("%s %s: %w%s", b.kind.name, args[0], errors.Join(err, ctx.Err()), lastWords(log))
	}
	return nil
}

// makeDoor makes what init is to take connections from where its own socket could
// not be one of the host: a datagram socket, which the sandbox is given open and
// the host finds where the other kind would be.
func makeDoor(l layout) (*os.File, error) {
	dir, err := os.Open(l.control())
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// The path of a jail's directory may be longer than an address can be.
	at := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(l.socket()))
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: at}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return os.NewFile(uintptr(fd), l.socket()), nil
}

// onThread runs f on a thread that lasts as long: the thread is the parent whose
// death kills what f starts, and lends it its mount namespace.
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

// hide gives the thread a mount namespace of its own in which mount is not
// there.
func hide(mount string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	// What the host unmounts meanwhile goes here too; nothing goes back.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("make mounts follow the host's: %w", err)
	}
	if err := unix.Unmount(mount, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("hide %s: %w", mount, err)
	}
	return nil
}

// nullDevice opens what init's standard streams are. A runtime that gives them
// to the jail's root gets a device of its own, on a filesystem that is nowhere
// mounted: /dev/null would change its owner for the whole host.
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
		return nil, err
	}
	return os.NewFile(uintptr(fd), "null"), nil
}

// lastWords returns what the runtime wrote to its log before it failed.
func lastWords(log string) string {
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

// forget removes what the runtime noted about a jail whose processes are gone.
// Asking the runtime to do so would cost a process, for gVisor a second.
func (b *Backend) forget(p jail.Plan) error {
	name := string(p.ID)
	errs := []error{os.RemoveAll(filepath.Join(b.state(), name))} // runc, crun
	if b.kind.sentry {
		for _, file := range []string{sentryState(name), name + "_sandbox:" + name + ".lock"} {
			errs = append(errs, os.RemoveAll(filepath.Join(b.state(), file)))
		}
		// Where gVisor puts a sandbox's control socket: the first that is free.
		for _, dir := range []string{b.state(), "/var/run", "/run", "/tmp"} {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, "runsc-"+name+".sock")))
		}
	}
	return errors.Join(errs...)
}

// version returns the runtime's own name for its version, or fault.Unsupported
// if it is not installed.
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
		return "", fault.Cannot(op, fmt.Sprintf("%s is not %s: it says %.80q", b.path, b.kind.name, first), b.remedy())
	}
	return strings.TrimPrefix(first, b.kind.name+" version "), nil
}

func (b *Backend) notInstalled(op string) error {
	return fault.Cannot(op, fmt.Sprintf("%s is not installed", b.path), b.remedy())
}

func (b *Backend) remedy() string {
	return fmt.Sprintf("install the package %s, or put the binary into the daemon's directory of tools", b.kind.name)
}
