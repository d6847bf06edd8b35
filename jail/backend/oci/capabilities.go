package oci

import (
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// A capability is one that root in a jail keeps, or one that containers usually have and root
// in a jail lacks.
type capability struct {
	name string
	keep bool
	why  string
}

// capabilities is the complete list. It starts from the defaults of container engines.
// Capabilities only apply within the jail's user namespace: to files owned by the jail's ids
// and to the jail's own processes (user_namespaces(7)).
var capabilities = []capability{
	{"CAP_CHOWN", true, "package managers and tar give files to other users of the jail"},
	{"CAP_DAC_OVERRIDE", true, "root in the jail reads and writes the files of the jail's other users"},
	{"CAP_FOWNER", true, "and changes their modes and times"},
	{"CAP_FSETID", true, "a set-group-id directory keeps its bit when root writes to it"},
	{"CAP_KILL", true, "root in the jail kills processes of the jail's other users"},
	{"CAP_SETGID", true, "init and su run commands as another group"},
	{"CAP_SETUID", true, "init and su run commands as another user"},
	{"CAP_NET_BIND_SERVICE", true, "required by gVisor's own network stack; without effect on the host's stack, because the network namespace does not belong to the jail"},

	{"CAP_SETPCAP", false, "no process needs to change capability sets"},
	{"CAP_SETFCAP", false, "file capabilities are void under no_new_privs"},
	{"CAP_SYS_CHROOT", false, "a second root directory would hide programs from observers"},
	{"CAP_MKNOD", false, "a user namespace cannot create devices anyway; /dev has the necessary ones"},
	{"CAP_NET_RAW", false, "allows forged packets; without effect anyway, because the network namespace does not belong to the jail"},
	{"CAP_AUDIT_WRITE", false, "the audit log is the host's"},
}

// keptCapabilities returns the names of the capabilities of root in a jail.
func keptCapabilities() []string {
	var names []string
	for _, c := range capabilities {
		if c.keep {
			names = append(names, c.name)
		}
	}
	slices.Sort(names)
	return names
}

// initOnly are two capabilities that init has at its start. Init keeps the first for itself,
// so that a process without it cannot trace init (ptrace(2), PTRACE_MODE checks). It needs the
// second to remove both from its child processes. In a user namespace neither has power over
// the host.
var initOnly = []string{"CAP_WAKE_ALARM", "CAP_SETPCAP"}

// capabilitySets gives init the kept capabilities. The inheritable and ambient sets are empty,
// so programs cannot gain any others.
func (k kind) capabilitySets() *specs.LinuxCapabilities {
	names := keptCapabilities()
	if !k.sentry { // gVisor does not restrict access to init
		names = append(names, initOnly...)
	}
	return &specs.LinuxCapabilities{Bounding: names, Effective: names, Permitted: names}
}
