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
	"glasshouse/jail/backend/base"
)

const (
	controlDir = "/.glasshouse"      // in the jail; {Dir}/ctl on the host
	initPath   = "/.glasshouse/init" // the host's init binary
)

// A bind is a prepared host mount that is given to a jail.
type bind struct {
	source string // on the host
	target string // in the jail
	write  bool
}

// newSpec returns the OCI spec. It omits what the daemon does itself: the limits are set on
// the cgroup, and the owners of files come from the idmapped layers of the root.
func newSpec(p jail.Plan, k kind, l layout, netns, cgroup string, binds []bind) *specs.Spec {
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: p.IDs.First, Size: p.IDs.Count}}
	score := jail.InitOOMScore
	files := rlimitFiles()
	own := []bind{
		{source: l.sysfs(), target: "/sys"}, // sysfs of its own network namespace
		{source: l.staged("control"), target: controlDir, write: true},
	}
	mounts := ownMounts(p.Limits)
	if !k.sentry { // gVisor has its own devices
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
			MaskedPaths:   base.Masked,
			ReadonlyPaths: base.ReadOnly,
		},
	}
	k.adjust(s, p)
	return s
}

// ownMounts returns the mounts that every jail has in addition to its root: /proc and a
// private /dev. /tmp and /run are on the root filesystem, so that they count as disk usage and
// are part of a snapshot.
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

// bindMounts returns the mounts of the staged binds. The sources are single mounts that are
// already nosuid, nodev and, unless writable, read-only. A bind keeps these flags and further
// restrictions of the host's administrator. Requesting the flags again would be a remount,
// which fails in a user namespace if it omits any locked flag (mount_namespaces(7)).
func bindMounts(binds []bind, k kind) []specs.Mount {
	var ms []specs.Mount
	for _, b := range binds {
		options := []string{"bind"}
		if k.sentry { // gVisor's kernel applies its own flags
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

// rlimitFiles returns base.MaxFiles or the hard limit of this process if that is lower. Raising a
// hard limit needs CAP_SYS_RESOURCE (getrlimit(2)).
func rlimitFiles() uint64 {
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		return 1024
	}
	return min(own.Max, base.MaxFiles)
}

// capabilitySets gives init the kept capabilities. The inheritable and ambient sets are empty,
// so programs cannot gain any others.
func (k kind) capabilitySets() *specs.LinuxCapabilities {
	names := base.KeptCapabilities()
	if !k.sentry { // gVisor does not restrict access to init
		names = base.InitCapabilities()
	}
	return &specs.LinuxCapabilities{Bounding: names, Effective: names, Permitted: names}
}

// A layout contains the paths of a jail's resources in its directory.
type layout struct{ dir string }

func (l layout) image() string   { return filepath.Join(l.dir, "disk.img") }
func (l layout) volume() string  { return filepath.Join(l.dir, "rootfs") } // disk.img mounted
func (l layout) upper() string   { return filepath.Join(l.volume(), "upper") }
func (l layout) work() string    { return filepath.Join(l.volume(), "work") }
func (l layout) wsUpper() string { return filepath.Join(l.volume(), "ws-upper") }
func (l layout) wsWork() string  { return filepath.Join(l.volume(), "ws-work") }
func (l layout) merged() string  { return filepath.Join(l.volume(), "merged") }

// staged returns the path of a mount that exists only until the runtime has started the jail.
// These mounts are on the volume because its mount is private. A mount on the host's own
// filesystem could propagate to other mount namespaces and stay there.
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
func (l layout) sentryLog() string { return filepath.Join(l.volume(), "sentry.log") } // on the volume, where the jail's disk limit applies
func (l layout) log() string       { return filepath.Join(l.bundle(), "runtime.log") }
func (l layout) images() string    { return filepath.Join(l.dir, "images") }  // link to the images that the jail is restored from
func (l layout) missing() string   { return filepath.Join(l.dir, "missing") } // link to the socket of the page server
func (l layout) record() string    { return filepath.Join(l.dir, "oci.json") }
