package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// readHost tries to read files and memory of the host that contain one of the values.
func readHost(words map[string]string) []attempt {
	values := list(words, "values")
	var all []attempt
	read := func(what, path string) {
		all = append(all, attempt{what + " " + path, func() (string, error) {
			b, err := os.ReadFile(path)
			return has(b, err, values)
		}})
	}
	for _, path := range list(words, "paths") {
		read("by its path", path)
		read("through the mount", "/app/../../../../../../.."+path)
		read("next to the mount", "/app/../"+filepath.Base(path))
		read("by the root of init", "/proc/1/root"+path)
		read("by the directory of init", "/proc/1/cwd"+path)
		all = append(all, attempt{"by a link " + path, func() (string, error) {
			link := filepath.Join("/tmp", strings.ReplaceAll(path, "/", "-"))
			if err := os.Symlink(path, link); err != nil {
				return "", err
			}
			b, err := os.ReadFile(link)
			return has(b, err, values)
		}}, attempt{"by the descriptor of the mount " + path, func() (string, error) {
			dir, err := unix.Open("/app", unix.O_PATH, 0)
			if err != nil {
				return "", err
			}
			fd, err := unix.Openat(dir, strings.Repeat("../", 20)+path, unix.O_RDONLY, 0)
			if err != nil {
				return "", err
			}
			b := make([]byte, 4096)
			n, err := unix.Read(fd, b)
			return has(b[:max(n, 0)], err, values)
		}}, attempt{"by its handle " + path, func() (string, error) { return byHandle() }})
	}
	for _, path := range glob("/app/*", "/run/*", "/run/glasshouse/*", "/usr/share/glasshouse/*", "/.glasshouse/*", "/tmp/*", "/dev/shm/*") {
		read("what is shown", path)
	}
	for _, path := range glob("/proc/[0-9]*/environ", "/proc/[0-9]*/cmdline", "/proc/[0-9]*/mountinfo") {
		read("of a process", path)
	}
	for _, path := range slices.Concat(glob("/dev/sd*", "/dev/vd*", "/dev/nvme*", "/dev/loop*", "/dev/dm-*"), []string{"/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", "/proc/kcore", "/proc/kmsg"}) {
		all = append(all, attempt{"the device " + path, func() (string, error) { return firstByte(path) }})
	}
	for _, number := range []uint64{unix.Mkdev(1, 1), unix.Mkdev(7, 0), unix.Mkdev(8, 0), unix.Mkdev(253, 0), unix.Mkdev(254, 0), unix.Mkdev(259, 0)} {
		all = append(all, attempt{fmt.Sprintf("a device of its own %d:%d", unix.Major(number), unix.Minor(number)), func() (string, error) {
			path := fmt.Sprintf("/tmp/device-%d", number)
			if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(number)); err != nil {
				return "", err
			}
			return firstByte(path)
		}})
	}
	return all
}

func glob(patterns ...string) (all []string) {
	for _, p := range patterns {
		found, _ := filepath.Glob(p) // the patterns are valid
		all = append(all, found...)
	}
	return all
}

// firstByte reads one byte, which must already fail.
func firstByte(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, make([]byte, 1))
	if err != nil || n == 0 {
		return "", err
	}
	return "it can be read", nil
}

// byHandle opens the root of the file system that a mount comes from by file handle, which
// bypasses paths and mounts (open_by_handle_at(2)).
func byHandle() (string, error) {
	mount, err := unix.Open("/app", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(mount)
	inode := []byte{2, 0, 0, 0, 0, 0, 0, 0} // the root inode of ext4
	fd, err := unix.OpenByHandleAt(mount, unix.NewFileHandle(1, inode), unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	unix.Close(fd)
	return "the root of the host's filesystem can be opened", nil
}

// writeHost tries to change read-only mounts and settings of the host, and to write more than
// the quota.
func writeHost(words map[string]string) []attempt {
	file := words["file"] // in the mount
	change := func(what string, f func() error) attempt {
		return attempt{what, func() (string, error) { return done(f()) }}
	}
	all := []attempt{
		change("write to a file", func() error { return os.WriteFile(file, []byte("changed"), 0o644) }),
		change("truncate it", func() error { return os.Truncate(file, 0) }),
		change("remove it", func() error { return os.Remove(file) }),
		change("rename it", func() error { return os.Rename(file, file+"2") }),
		change("change its mode", func() error { return os.Chmod(file, 0o777) }),
		change("change its owner", func() error { return os.Chown(file, 0, 0) }),
		change("change its times", func() error { return unix.Utimes(file, []unix.Timeval{{}, {}}) }),
		change("give it an attribute", func() error { return unix.Setxattr(file, "user.x", []byte("x"), 0) }),
		change("link to it", func() error { return os.Link(file, "/app/link") }),
		change("make a file", func() error { return os.WriteFile("/app/new", nil, 0o644) }),
		change("make a directory", func() error { return os.Mkdir("/app/dir", 0o755) }),
		change("make a symbolic link", func() error { return os.Symlink("/etc/passwd", "/app/sym") }),
		change("reopen it for writing", func() error {
			fd, err := unix.Open(file, unix.O_PATH, 0)
			if err != nil {
				return err
			}
			_, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_WRONLY, 0)
			return err
		}),
		change("mount it writable", func() error { return unix.Mount("", "/app", "", unix.MS_REMOUNT|unix.MS_BIND, "") }),
		change("mount over it", func() error { return unix.Mount("none", "/app", "tmpfs", 0, "") }),
		change("unmount it", func() error { return unix.Unmount("/app", unix.MNT_DETACH) }),
		change("write to what init runs", func() error { return os.WriteFile("/proc/1/exe", []byte("x"), 0o755) }),
		change("put a file past the root", func() error { return os.WriteFile("/proc/1/root/../../"+words["outside"], []byte("x"), 0o644) }),
		{"write more than the quota", func() (string, error) { return fill("/tmp/full", 64<<20) }},
	}
	for _, path := range []string{
		"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/drop_caches", "/proc/sys/kernel/hostname",
		"/proc/sysrq-trigger", "/sys/kernel/uevent_helper", "/sys/power/state", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory.max",
		"/sys/fs/cgroup/memory/memory.limit_in_bytes",
	} {
		all = append(all, change("the host's "+path, func() error {
			fd, err := unix.Open(path, unix.O_WRONLY, 0) // does not create the file
			if err != nil {
				return err
			}
			_, err = unix.Write(fd, []byte("x\n"))
			return err
		}))
	}
	return all
}

// fill writes n bytes and keeps the file.
func fill(path string, n int) (string, error) {
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b := make([]byte, 1<<20)
	for i := range b {
		b[i] = byte(i)
	}
	for at := 0; at < n; at += len(b) {
		if _, err := f.Write(b); err != nil {
			return "", err
		}
	}
	return done(f.Sync())
}

// places are locations where the next call would find leftover files.
var places = []string{
	"/tmp/plant", "/var/tmp/plant", "/dev/shm/plant", "/run/plant", "/root/.bashrc", "/root/plant", "/etc/ld.so.preload",
	"/etc/cron.d/plant", "/etc/profile", "/usr/local/bin/sh", "/bin/sh", "/run/glasshouse/plant", "/usr/share/glasshouse/glasshouse_call.py",
	"/app/plant", "/run/secrets/plant", "/.glasshouse/plant", "/plant",
}

// plant leaves files for the next call, and a listening process. It may succeed, because it
// writes to the jail's own files.
func plant(words map[string]string) []attempt {
	var all []attempt
	for _, path := range places {
		all = append(all, attempt{path, func() (string, error) {
			os.MkdirAll(filepath.Dir(path), 0o755)
			return done(os.WriteFile(path, []byte(words["mark"]), 0o755))
		}})
	}
	return append(all, attempt{"a process", func() (string, error) { return done(daemonize(words["mark"])) }})
}

// lookForPlants searches for files that another call has left.
func lookForPlants(words map[string]string) []attempt {
	mark := []string{words["mark"]}
	var all []attempt
	for _, path := range slices.Concat(places, glob("/proc/[0-9]*/cmdline", "/proc/[0-9]*/environ")) {
		if path == "/proc/self/cmdline" || path == fmt.Sprintf("/proc/%d/cmdline", os.Getpid()) {
			continue
		}
		all = append(all, attempt{path, func() (string, error) {
			b, err := os.ReadFile(path)
			return has(b, err, mark)
		}})
	}
	return append(all, attempt{"a process that listens", reachDaemon})
}
