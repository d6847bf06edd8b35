// Package seccomp defines the system calls that a jail may make, as an OCI runtime profile and
// as a classic BPF program.
//
// The policy is the default profile of containers without extra capabilities, minus calls that
// an agent never needs. The user namespace already makes most of these calls harmless. Denying
// them also protects the kernel code behind them, in which privilege escalations are found.
package seccomp

import (
	"slices"

	moby "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// never lists the calls that no jail may make, even if a newer default profile allows them.
// They fail with EPERM.
//
// ptrace and process_vm_readv are not listed: an agent needs a debugger, and the pid namespace
// limits it to its own jail.
var never = []struct {
	why   string
	names []string
}{
	{"they replace or extend the running kernel", []string{
		"kexec_load", "kexec_file_load", "reboot",
		"init_module", "finit_module", "delete_module", "create_module", "query_module", "get_kernel_syms",
	}},
	{"they load programs into the kernel, or expose its internals", []string{
		"bpf", "perf_event_open", "lookup_dcookie", "syslog", "kcmp",
	}},
	{"it can pause the kernel during a copy, which exploits of races use", []string{
		"userfaultfd",
	}},
	{"keyrings belong to a user id, not to a jail", []string{
		"keyctl", "add_key", "request_key",
	}},
	{"their operations bypass system call filters and observers", []string{
		"io_uring_setup", "io_uring_enter", "io_uring_register",
	}},
	{"the daemon creates a jail's mounts", []string{
		"mount", "umount", "umount2", "pivot_root", "chroot", "move_mount", "mount_setattr",
		"open_tree", "open_tree_attr", "fsopen", "fsconfig", "fsmount", "fspick", "fanotify_init",
	}},
	{"a new user namespace would restore capabilities that the jail lacks", []string{
		"unshare", "setns",
	}},
	{"a handle opens a file outside of the jail's root", []string{
		"open_by_handle_at",
	}},
	{"it copies a descriptor from another process", []string{
		"pidfd_getfd",
	}},
	{"they manage the host's disks and memory", []string{
		"quotactl", "quotactl_fd", "swapon", "swapoff", "acct",
	}},
	{"they set the host's clock", []string{
		"settimeofday", "stime", "clock_settime", "clock_settime64", "adjtimex", "clock_adjtime", "clock_adjtime64",
	}},
	{"the daemon sets a jail's host name", []string{
		"sethostname", "setdomainname",
	}},
	{"they access I/O ports, segment tables and terminals of the machine", []string{
		"ioperm", "iopl", "modify_ldt", "vm86", "vm86old", "vhangup",
	}},
	{"only 32-bit programs use them, which the filter kills; their arguments are behind a pointer", []string{
		"socketcall", "ipc",
	}},
	{"obsolete: no current program uses them", []string{
		"_sysctl", "afs_syscall", "bdflush", "epoll_ctl_old", "epoll_wait_old", "getpmsg", "nfsservctl", "putpmsg",
		"remap_file_pages", "security", "sysfs", "tuxcall", "uselib", "ustat", "vserver",
	}},
}

// families lists the socket families that a jail may use. The default profile instead denies
// AF_ALG and AF_VSOCK by comparing all 64 bits of an argument. The kernel reads only 32 of them,
// so either family passes with a higher bit set. An allowlist does not have this hole.
var families = []uint64{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}

// OCI returns the policy as an OCI runtime profile for the architecture arch in Go's naming.
// It only contains native calls: a 32-bit program on a 64-bit machine is killed at its first
// call.
func OCI(arch string) *specs.LinuxSeccomp {
	eperm := uint(unix.EPERM)
	profile := &specs.LinuxSeccomp{
		DefaultAction:   specs.ActErrno,
		DefaultErrnoRet: &eperm,
		Syscalls:        slices.Concat(defaults(arch), sockets(), limits()),
	}
	switch arch {
	case "amd64":
		profile.Architectures = []specs.Arch{specs.ArchX86_64}
	case "arm64":
		profile.Architectures = []specs.Arch{specs.ArchAARCH64}
	}
	return profile
}

// defaults returns the rules of the default profile without those that this package defines.
func defaults(arch string) []specs.LinuxSyscall {
	denied := map[string]bool{"socket": true, "socketpair": true, "prlimit64": true}
	for _, n := range never {
		for _, name := range n.names {
			denied[name] = true
		}
	}
	var rules []specs.LinuxSyscall
	for _, r := range moby.DefaultProfile().Syscalls {
		if !applies(r, arch) {
			continue
		}
		rule := r.LinuxSyscall
		rule.Names = slices.DeleteFunc(slices.Clone(rule.Names), func(name string) bool { return denied[name] })
		if len(rule.Names) > 0 {
			rules = append(rules, rule)
		}
	}
	return rules
}

// applies reports whether r applies to a container without capabilities. All minimum kernel
// versions in rules are below the one that Glasshouse requires.
func applies(r *moby.Syscall, arch string) bool {
	if in := r.Includes; in != nil {
		if len(in.Caps) > 0 || len(in.Arches) > 0 && !slices.Contains(in.Arches, arch) {
			return false
		}
	}
	return r.Excludes == nil || !slices.Contains(r.Excludes.Arches, arch)
}

func sockets() []specs.LinuxSyscall {
	var rules []specs.LinuxSyscall
	for _, family := range families {
		rules = append(rules, allowIf("socket", 0, family))
	}
	return append(rules, allowIf("socketpair", 0, unix.AF_UNIX))
}

// limits allows a process to change its own resource limits and to read those of
// others. The kernel lets a process set the limits of any process with the same
// user ids (kernel/sys.c, check_prlimit_permission), with no check of capabilities
// or of ptrace access, so that root in a jail could keep its init from opening
// another descriptor.
func limits() []specs.LinuxSyscall {
	return []specs.LinuxSyscall{
		allowIf("prlimit64", 0, 0), // pid 0: the caller
		allowIf("prlimit64", 2, 0), // no new limit
	}
}

func allowIf(name string, arg uint, value uint64) specs.LinuxSyscall {
	return specs.LinuxSyscall{
		Names:  []string{name},
		Action: specs.ActAllow,
		Args:   []specs.LinuxSeccompArg{{Index: arg, Value: value, Op: specs.OpEqualTo}},
	}
}
