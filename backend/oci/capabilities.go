package oci

import (
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// A capability is one that root in a jail keeps, or that containers usually
// have and root in a jail does not.
type capability struct {
	name string
	keep bool
	why  string
}

// capabilities is the whole decision. It starts from what container engines
// give by default. Whatever is kept is worth something only inside the jail's
// user namespace: on files owned by the jail's ids and on the jail's own
// processes.
var capabilities = []capability{
	{"CAP_CHOWN", true, "package managers and tar give files to other users of the jail"},
	{"CAP_DAC_OVERRIDE", true, "root in the jail reads and writes the files of the jail's other users"},
	{"CAP_FOWNER", true, "and changes their modes and times"},
	{"CAP_FSETID", true, "a set-group-id directory keeps its bit when root writes to it"},
	{"CAP_KILL", true, "root in the jail ends what the jail's other users started"},
	{"CAP_SETGID", true, "init and su run commands as another group"},
	{"CAP_SETUID", true, "init and su run commands as another user"},
	{"CAP_NET_BIND_SERVICE", true, "for gVisor, whose own network stack asks for it; on the host's stack it is powerless, since the network namespace is not the jail's"},

	{"CAP_SETPCAP", false, "nobody hands capabilities on: the bounding set is what it is"},
	{"CAP_SETFCAP", false, "file capabilities are void under no_new_privs"},
	{"CAP_SYS_CHROOT", false, "a jail has one root; a second one hides what runs from its observers"},
	{"CAP_MKNOD", false, "a user namespace cannot make devices anyway; /dev holds what is needed"},
	{"CAP_NET_RAW", false, "forged packets; the network namespace is not the jail's, so it would be powerless too"},
	{"CAP_AUDIT_WRITE", false, "the audit log is the host's"},
}

// kept returns the names of the capabilities in every set a jail's root has.
func kept() []string {
	var names []string
	for _, c := range capabilities {
		if c.keep {
			names = append(names, c.name)
		}
	}
	slices.Sort(names)
	return names
}

// initOnly are two that init has at the start: it keeps the first to itself, so
// that nobody who lacks it may trace init, and takes both away from all it will
// run, which it needs the second for. In a user namespace neither has power over
// the host.
var initOnly = []string{"CAP_WAKE_ALARM", "CAP_SETPCAP"}

// capabilitySets gives init the kept capabilities and lets no program inherit
// or gain any by other means.
func (k kind) capabilitySets() *specs.LinuxCapabilities {
	names := kept()
	if !k.sentry { // where anybody may look at init in any case
		names = append(names, initOnly...)
	}
	return &specs.LinuxCapabilities{Bounding: names, Effective: names, Permitted: names}
}
