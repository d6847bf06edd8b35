package base

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A capability is one that root in a jail keeps, or one that containers usually have and root
// in a jail lacks.
type capability struct {
	name   string
	number uintptr
	keep   bool
	why    string
}

// capabilities is the complete list. It starts from the defaults of container engines.
// Capabilities only apply within the jail's user namespace: to files owned by the jail's ids
// and to the jail's own processes (user_namespaces(7)).
var capabilities = []capability{
	{"CAP_CHOWN", unix.CAP_CHOWN, true, "package managers and tar give files to other users of the jail"},
	{"CAP_DAC_OVERRIDE", unix.CAP_DAC_OVERRIDE, true, "root in the jail reads and writes the files of the jail's other users"},
	{"CAP_FOWNER", unix.CAP_FOWNER, true, "and changes their modes and times"},
	{"CAP_FSETID", unix.CAP_FSETID, true, "a set-group-id directory keeps its bit when root writes to it"},
	{"CAP_KILL", unix.CAP_KILL, true, "root in the jail kills processes of the jail's other users"},
	{"CAP_SETGID", unix.CAP_SETGID, true, "init and su run commands as another group"},
	{"CAP_SETUID", unix.CAP_SETUID, true, "init and su run commands as another user"},
	{"CAP_NET_BIND_SERVICE", unix.CAP_NET_BIND_SERVICE, true, "required by gVisor's own network stack; without effect on the host's stack, because the network namespace does not belong to the jail"},

	{"CAP_SETPCAP", unix.CAP_SETPCAP, false, "no process needs to change capability sets"},
	{"CAP_SETFCAP", unix.CAP_SETFCAP, false, "file capabilities are void under no_new_privs"},
	{"CAP_SYS_CHROOT", unix.CAP_SYS_CHROOT, false, "a second root directory would hide programs from observers"},
	{"CAP_MKNOD", unix.CAP_MKNOD, false, "a user namespace cannot create devices anyway; /dev has the necessary ones"},
	{"CAP_NET_RAW", unix.CAP_NET_RAW, false, "allows forged packets; without effect anyway, because the network namespace does not belong to the jail"},
	{"CAP_AUDIT_WRITE", unix.CAP_AUDIT_WRITE, false, "the audit log is the host's"},
}

// initial are two capabilities that init has at its start. Init keeps the first for itself, so that
// a process without it cannot trace init (ptrace(2), PTRACE_MODE checks), and cannot change its
// priority, scheduling, affinity or I/O class (security/commoncap.c, cap_safe_nice). It needs the
// second to remove both from its child processes. In a user namespace neither has power over the
// host.
var initial = []capability{
	{"CAP_WAKE_ALARM", unix.CAP_WAKE_ALARM, true, "commands lack it, so they have no access to init"},
	{"CAP_SETPCAP", unix.CAP_SETPCAP, true, "init gives both up for its commands"},
}

// kept returns the capabilities of root in a jail, sorted by name.
func kept() []capability {
	list := slices.DeleteFunc(slices.Clone(capabilities), func(c capability) bool { return !c.keep })
	slices.SortFunc(list, func(a, b capability) int { return strings.Compare(a.name, b.name) })
	return list
}

// KeptCapabilities returns the names of the capabilities of root in a jail.
func KeptCapabilities() []string { return names(kept()) }

// InitCapabilities returns the names of the capabilities with which init starts.
func InitCapabilities() []string { return names(append(kept(), initial...)) }

// KeptNumbers returns the numbers of the KeptCapabilities.
func KeptNumbers() []uintptr { return numbers(kept()) }

// InitNumbers returns the numbers of the InitCapabilities.
func InitNumbers() []uintptr { return numbers(append(kept(), initial...)) }

func names(list []capability) (all []string) {
	for _, c := range list {
		all = append(all, c.name)
	}
	return all
}

func numbers(list []capability) (all []uintptr) {
	for _, c := range list {
		all = append(all, c.number)
	}
	return all
}

// DropBounding removes all capabilities except some from the bounding set of the calling thread, to
// which its goroutine is locked.
func DropBounding(keep []uintptr) error {
	for c := range uintptr(unix.CAP_LAST_CAP + 1) {
		if slices.Contains(keep, c) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && err != unix.EINVAL { // EINVAL: unknown to an older kernel
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	return nil
}

// MaxFiles limits the open files of one process. It is far more than programs need, and few
// enough for programs that iterate over all descriptor numbers.
const MaxFiles = 65536

// Masked and ReadOnly are the paths of /proc and /sys through which a jail could see or change
// the host. Paths that only root of the host may open, such as /proc/kcore and
// /proc/timer_list, need no mask, because a jail does not have that user.
var (
	Masked = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/keys", "/proc/sched_debug", "/proc/scsi",
		"/sys/devices/virtual/powercap", "/sys/firmware", "/sys/fs/bpf", "/sys/kernel/debug",
		"/sys/kernel/security", "/sys/kernel/tracing",
	}
	ReadOnly = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)
