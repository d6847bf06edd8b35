package daemon

import (
	"context"
	"errors"
	"os"
	"slices"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/host/probe"
	"glasshouse/jail/backend/microvm"
)

// The values of wire.Probe.Need.
const (
	Required    = "required"
	Recommended = "recommended"
	Optional    = "optional"
)

// A use is how much Glasshouse needs a feature of the host, and the purpose. A feature is
// recommended if a function for most users is missing or weaker without it.
type use struct{ need, purpose string }

// uses has an entry for each probe that is not required on all hosts. The entry applies to hosts
// on which the probe is not required.
var uses = map[string]use{
	"kernel":                       {Recommended, "jails of the backend oci, which have idmapped layers"},
	"root":                         {Recommended, "the backend oci, with disk limits, networks and memory snapshots"},
	"unprivileged user namespaces": {Optional, "sandboxes that ordinary users create"},
	"cgroup namespaces":            {Optional, "jails of the backend oci"},
	"time namespaces":              {Optional, "continuous clocks in restored jails"},

	"overlay with idmapped layers":          {Optional, "jails of a daemon that runs as root"},
	"overlay without root":                  {Optional, "jails of a daemon that runs without root"},
	"idmapped mounts of the data directory": {Recommended, "mounted directories with the file owners of the jail"},
	"sized disks":                           {Recommended, "disk limits"},
	"reflinks in the data directory":        {Optional, "fast branches with large disks"},
	"project quotas in the data directory":  {Optional, "nothing yet"},

	"cgroup limits":                    {Recommended, "limits of CPU, memory and processes"},
	"cgroup freeze, kill and identity": {Recommended, "pausing jails, and recording by jail"},
	"pressure stall information":       {Optional, "nothing yet"},
	"nftables":                         {Recommended, "network access from jails"},
	"seccomp user notification":        {Recommended, "policy enforcement by the kernel"},
	"landlock":                         {Optional, "nothing yet"},

	"bpf":                         {Recommended, "recording by the kernel"},
	"btf":                         {Recommended, "recording by the kernel"},
	"bpf tracing of kernel types": {Recommended, "recording by the kernel"},
	"bpf lsm":                     {Recommended, "policy denials without races"},
	"tcx":                         {Optional, "recording of packets, for which classic tc works as well"},
	"fanotify":                    {Optional, "nothing yet"},
	"userfaultfd":                 {Optional, "branches of large jails before all their memory is loaded"},

	"private tools":              {Optional, "newer programs than those of the system"},
	"runc":                       {Optional, "jails with runc (oci)"},
	"crun":                       {Optional, "jails with crun (oci)"},
	"runsc":                      {Optional, "jails with runsc (oci), which isolates more strongly"},
	"bubblewrap":                 {Optional, "jails with bubblewrap (bwrap)"},
	"criu":                       {Recommended, "snapshots with memory, and branches of running jails"},
	"tracking of written memory": {Optional, "shorter pauses for snapshots of large jails"},

	"kvm":              {Optional, "virtual machines that are not emulated"},
	"qemu":             {Optional, "jails in virtual machines (microvm)"},
	"virtual machines": {Optional, "jails in virtual machines (microvm)"},
	"mmdebstrap":       {Optional, "root filesystems from Debian packages"},
	"nix":              {Optional, "root filesystems from Nix"},
	"postgresql":       {Optional, "a database server on this host instead of SQLite"},

	"observe: calls, files, processes": {Recommended, "recording by the kernel"},
	"observe: packets":                 {Recommended, "recording of packets"},
	"observe: fallback":                {Optional, "recording without eBPF"},
}

// A runner is a backend with its runtime. program is the probe of its program.
type runner struct{ backend, runtime, program string }

// runners are all runners, the most capable ones first.
var runners = []runner{{"oci", "runc", "runc"}, {"oci", "crun", "crun"}, {"oci", "runsc", "runsc"}, {"bwrap", "", "bubblewrap"}}

func (r runner) String() string { return r.program + " (" + r.backend + ")" }

// requires returns the probes that must be ok for jails of this runner. These cover what the
// backend's Probe method checks, and the namespaces that it assumes.
func (r runner) requires(root bool) []string {
	namespaces := []string{"user namespaces", "mount namespaces", "pid namespaces", "network namespaces", "uts namespaces", "ipc namespaces"}
	var list []string
	switch {
	case r.backend == "oci":
		list = append(append([]string{"root"}, namespaces...), "cgroup namespaces", "overlay with idmapped layers", "sized disks", "cgroup freeze, kill and identity")
	case root:
		list = append(namespaces, "overlay with idmapped layers", "sized disks")
	default:
		list = append(namespaces, "overlay without root")
	}
	return append(list, "seccomp", r.program)
}

func (d *Daemon) doctor(ctx context.Context) []wire.Probe {
	list := append(Doctor(ctx, d.Config), d.barredBundles(), d.probeDisk(ctx))
	if d.objects != nil {
		list = append(list, d.probeObjects(ctx))
	}
	return append(list, d.probeFleet(ctx)...)
}

// Doctor probes the features of this host, as the calling user, for a daemon with the
// configuration c.
func Doctor(ctx context.Context, c Config) []wire.Probe {
	var list []wire.Probe
	for _, r := range probe.All(ctx, probe.Host{Tools: c.Tools, Data: c.Data}) {
		list = append(list, wire.Probe{Name: r.Name, Status: string(r.Status), Detail: r.Detail, Reason: r.Reason, Remedy: r.Remedy})
	}
	list = append(list, probeOf("virtual machines", microvm.New(c.virtualMachines()).Usable()))
	list = append(list, observing(ctx)...)
	Classify(list, os.Geteuid() == 0, c.Backend, c.Runtime)
	return list
}

// probeOf returns the probe of something that err says does not work here, or nil.
func probeOf(name string, err error) wire.Probe {
	switch {
	case err == nil:
		return wire.Probe{Name: name, Status: string(probe.OK)}
	case errors.Is(err, fault.Unsupported):
		return wire.Probe{Name: name, Status: string(probe.Unsupported), Reason: err.Error(), Remedy: fault.RemedyOf(err)}
	}
	return wire.Probe{Name: name, Status: string(probe.Unknown), Reason: err.Error()}
}

// Classify sets need and purpose of each probe, for a daemon that runs as root or not and has these
// defaults for new jails. The probes of one runner are required: the default one if it works,
// otherwise the first that works, else the one that lacks least.
func Classify(list []wire.Probe, root bool, backend, runtime string) {
	isDefault := func(r runner) bool { return r.backend == backend && (r.runtime == "" || r.runtime == runtime) }
	lacks := func(r runner) int {
		return len(slices.DeleteFunc(r.requires(root), func(name string) bool { return isOK(list, name) }))
	}
	chosen := slices.MinFunc(runners, func(a, b runner) int { // the first of equal ones
		if n := lacks(a) - lacks(b); n != 0 {
			return n
		}
		switch {
		case isDefault(a):
			return -1
		case isDefault(b):
			return 1
		}
		return 0
	})
	required := chosen.requires(root)
	var ofDefault []string // probes of a default runner that does not work here, although another runner does
	for _, r := range runners {
		if isDefault(r) && r != chosen {
			ofDefault = r.requires(root)
		}
	}
	for i := range list {
		p := &list[i]
		u := uses[p.Name]
		switch {
		case slices.Contains(required, p.Name):
			u = use{Required, "jails with " + chosen.String()}
		case slices.Contains(ofDefault, p.Name):
			u = use{Recommended, "jails of the configured default backend and runtime"}
		case u.need == "":
			u.need = Optional // a probe that only a daemon of another version has
		}
		p.Need, p.Purpose = u.need, u.purpose
	}
}

func isOK(list []wire.Probe, name string) bool {
	return slices.ContainsFunc(list, func(p wire.Probe) bool { return p.Name == name && p.Status == string(probe.OK) })
}

// Runner returns how the host of classified probes runs jails, such as "runc (oci)". It returns
// an empty string and the required probe to repair first, if any, for a host that cannot run
// jails.
func Runner(list []wire.Probe) (string, wire.Probe) {
	for _, r := range runners {
		if !slices.ContainsFunc(list, func(p wire.Probe) bool { return p.Name == r.program && p.Need == Required }) {
			continue
		}
		for _, p := range list { // probes of causes precede those of effects
			if p.Need == Required && p.Status != string(probe.OK) {
				return "", p
			}
		}
		return r.String(), wire.Probe{}
	}
	return "", wire.Probe{}
}
