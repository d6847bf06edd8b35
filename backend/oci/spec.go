package oci

import (
	"fmt"
	"path/filepath"
	"runtime"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"glasshouse/host/seccomp"
	"glasshouse/jail"
)

const (
	controlDir = "/.glasshouse"      // in the jail; {Dir}/ctl on the host
	initPath   = "/.glasshouse/init" // the host's init binary
)

// maxFiles bounds the open files of one process. It is far above what programs
// need and far below where those that walk all descriptors become slow.
const maxFiles = 65536

// masked and readOnly are the paths of /proc and /sys through which a jail would
// see or change the machine. What only the host's root may open, as /proc/kcore
// and /proc/timer_list, is closed to a jail already, which has no such user.
var (
	masked = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/keys", "/proc/sched_debug", "/proc/scsi",
		"/sys/devices/virtual/powercap", "/sys/firmware", "/sys/fs/bpf", "/sys/kernel/debug",
		"/sys/kernel/security", "/sys/kernel/tracing",
	}
	readOnly = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// A bind is a mount of the host, prepared by us, that a jail is given.
type bind struct {
	source string // on the host
	target string // in the jail
	write  bool
}

// newSpec returns what the runtime is told. What it is not told, we have done
// ourselves: the limits are set on the cgroup it joins, and the owners of files
// come from the idmapped layers under root.
func newSpec(p jail.Plan, k kind, l layout, netns, cgroup string, binds []bind) *specs.Spec {
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: p.IDs.First, Size: p.IDs.Count}}
	score := jail.InitOOMScore
	files := rlimitFiles()
	own := []bind{
		{source: l.sysfs(), target: "/sys"}, // the machine as its own network namespace sees it
		{source: l.staged("control"), target: controlDir, write: true},
	}
	mounts := ownMounts(p.Limits)
	if !k.sentry { // which has devices of its own
		mounts = append(bindMounts([]bind{{source: l.dev(), target: "/dev", write: true}, {source: l.shm(), target: "/dev/shm", write: true}}, k),
			slices.DeleteFunc(mounts, func(m specs.Mount) bool { return m.Type == "tmpfs" })...)
	}
	args := []string{initPath}
	if k.sentry {
		args = append(args, "-door")
	}
	s := &specs.Spec{
		Version:  "1.0.2",
		Root:     &specs.Root{Path: l.merged()},
		Hostname: p.Hostname,
		Process: &specs.Process{
			Args:            args,
			Env:             []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Cwd:             "/",
			NoNewPrivileges: true,
			Capabilities:    k.capabilitySets(),
			OOMScoreAdj:     &score,
			Rlimits: []specs.POSIXRlimit{
				{Type: "RLIMIT_NOFILE", Soft: files, Hard: files},
				{Type: "RLIMIT_CORE"},
			},
		},
		Mounts: append(mounts, bindMounts(append(own, binds...), k)...),
		Linux: &specs.Linux{
			UIDMappings: ids,
			GIDMappings: ids,
			CgroupsPath: cgroup,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.UserNamespace}, {Type: specs.PIDNamespace}, {Type: specs.MountNamespace},
				{Type: specs.UTSNamespace}, {Type: specs.IPCNamespace}, {Type: specs.CgroupNamespace},
				{Type: specs.NetworkNamespace, Path: netns},
			},
			Seccomp:       seccomp.OCI(runtime.GOARCH),
			MaskedPaths:   masked,
			ReadonlyPaths: readOnly,
		},
	}
	k.adjust(s, p)
	return s
}

// ownMounts are what every jail has beside its root: /proc and a private /dev.
// /tmp and /run are on the root filesystem, so that they count as disk and are
// part of a snapshot.
func ownMounts(limits jail.Limits) []specs.Mount {
	shm := fmt.Sprintf("size=%dk", limits.MemoryMB<<10/2)
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "strictatime", "mode=755", "size=1024k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", shm}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
	}
}

// bindMounts shows what was staged. The sources are single mounts that already
// are nosuid, nodev and, unless they may be written, read-only; a bind takes
// that along, with whatever else the host's administrator has forbidden there.
// To ask for it again would be a remount, which a user namespace is refused if
// it leaves out any of it.
func bindMounts(binds []bind, k kind) []specs.Mount {
	var ms []specs.Mount
	for _, b := range binds {
		options := []string{"bind"}
		if k.sentry { // its own kernel keeps its own flags
			options = append(options, b.mode(), "nosuid", "nodev")
		}
		ms = append(ms, specs.Mount{Destination: b.target, Type: "bind", Source: b.source, Options: options})
	}
	return ms
}

func (b bind) mode() string {
	if b.write {
		return "rw"
	}
	return "ro"
}

// rlimitFiles is maxFiles, or what this process may have at most: without
// CAP_SYS_RESOURCE nobody can be given more.
func rlimitFiles() uint64 {
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		return 1024
	}
	return min(own.Max, maxFiles)
}

// layout is where a jail's parts lie under its directory.
type layout struct{ dir string }

func (l layout) image() string   { return filepath.Join(l.dir, "disk.img") }
func (l layout) volume() string  { return filepath.Join(l.dir, "rootfs") } // disk.img mounted
func (l layout) upper() string   { return filepath.Join(l.volume(), "upper") }
func (l layout) work() string    { return filepath.Join(l.volume(), "work") }
func (l layout) wsUpper() string { return filepath.Join(l.volume(), "ws-upper") }
func (l layout) wsWork() string  { return filepath.Join(l.volume(), "ws-work") }
func (l layout) merged() string  { return filepath.Join(l.volume(), "merged") }

// staged are mounts that exist only until the runtime has taken them over. They
// are made on the volume because its mount is private: what is mounted on the
// host's own filesystem may appear in other mount namespaces, and stay there.
func (l layout) staged(name string) string { return filepath.Join(l.volume(), "lower", name) }
func (l layout) sysfs() string             { return l.staged("sys") }
func (l layout) dev() string               { return l.staged("dev") }
func (l layout) shm() string               { return l.staged("shm") }
func (l layout) layer(i int) string        { return l.staged(fmt.Sprintf("layer-%d", i)) }
func (l layout) sealed(i int) string       { return l.staged(fmt.Sprintf("sealed-%d", i)) }
func (l layout) secrets() string           { return l.staged("secrets") }
func (l layout) mount(i int) string        { return l.staged(fmt.Sprintf("mount-%d", i)) }

func (l layout) control() string   { return filepath.Join(l.dir, "ctl") }
func (l layout) socket() string    { return filepath.Join(l.control(), "init.sock") }
func (l layout) identity() string  { return filepath.Join(l.dir, "identity") }
func (l layout) bundle() string    { return filepath.Join(l.dir, "bundle") }
func (l layout) pidFile() string   { return filepath.Join(l.bundle(), "init.pid") }
func (l layout) sentryLog() string { return filepath.Join(l.volume(), "sentry.log") } // which the jail's limit bounds
func (l layout) log() string       { return filepath.Join(l.bundle(), "runtime.log") }
func (l layout) images() string    { return filepath.Join(l.dir, "images") }  // leads to those the jail is made from
func (l layout) missing() string   { return filepath.Join(l.dir, "missing") } // leads to who gives what its memory lacks
func (l layout) record() string    { return filepath.Join(l.dir, "oci.json") }
