package bwrap

import (
	"os"
	"strconv"

	"glasshouse/jail/backend/base"
)

// Paths of /proc through which a jail could see or change the host.
var (
	maskedFiles = []string{"/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/timer_list", "/proc/timer_stats"}
	maskedDirs  = []string{"/proc/acpi", "/proc/asound", "/proc/scsi"}
	readOnly    = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// arguments returns bwrap's command line. bwrap mounts in the order of the arguments.
//
// bwrap runs as root of an existing user namespace and creates the other namespaces. It gets
// no --die-with-parent, because a jail outlives the daemon.
func (o *stageRequest) arguments(info, filter int) []string {
	l := layout{o.Plan.Dir}
	args := []string{
		"--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--unshare-cgroup-try",
		"--hostname", o.Plan.Hostname,
		"--clearenv", "--setenv", "PATH", defaultPath,
		"--new-session", "--as-pid-1",
		"--seccomp", strconv.Itoa(filter), "--info-fd", strconv.Itoa(info),
		"--cap-drop", "ALL",
	}
	// The network namespace belongs to the jail's user namespace, so NET_BIND_SERVICE lets its
	// programs listen on ports below 1024.
	for _, c := range base.InitCapabilities() {
		args = append(args, "--cap-add", c)
	}
	args = append(args, "--bind", l.merged(), "/", "--proc", "/proc")
	for _, path := range readOnly {
		args = append(args, "--ro-bind-try", path, path)
	}
	for _, path := range maskedFiles {
		if exists(path) {
			args = append(args, "--dev-bind", "/dev/null", path)
		}
	}
	for _, path := range maskedDirs {
		if exists(path) {
			args = append(args, "--tmpfs", path, "--remount-ro", path)
		}
	}
	// /tmp and /run are on the root filesystem, so that they count as disk usage and are kept.
	// /sys only contains the files from which programs read the number of processors. /dev/shm
	// is limited to half of the jail's memory, so that filling it does not cost the jail its
	// init.
	shm := o.Plan.Limits.MemoryMB << 20 / 2
	args = append(args,
		"--dev", "/dev",
		"--perms", "1777", "--size", strconv.FormatInt(max(shm, 1<<20), 10), "--tmpfs", "/dev/shm",
		"--mqueue", "/dev/mqueue",
		"--remount-ro", "/dev",
		"--tmpfs", "/sys",
		"--ro-bind-try", "/sys/devices/system/cpu", "/sys/devices/system/cpu",
		"--remount-ro", "/sys",
		"--bind", l.control(), "/.glasshouse",
	)
	for _, b := range o.binds() {
		show := "--ro-bind"
		if b.write {
			show = "--bind"
		}
		args = append(args, show, b.source, b.target)
	}
	return append(args, "--chdir", "/", "--", "/.glasshouse/init")
}

// hostDirs returns the program directories of the host that are bind-mounted. makeHostTree
// creates the rest of the tree.
func hostDirs() []string {
	var dirs []string
	for _, dir := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"} {
		if st, err := os.Lstat(dir); err == nil && st.IsDir() {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}
