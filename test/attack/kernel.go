package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kernel makes system calls with a history of kernel exploits, and reports which kernel handles
// them.
func kernel(map[string]string) []attempt {
	runtime.LockOSThread()
	null := func() uintptr { return 0 }
	attr := make([]byte, 256)
	at := func() uintptr { return uintptr(unsafe.Pointer(&attr[0])) }
	all := []attempt{{"which kernel", func() (string, error) {
		b, err := os.ReadFile("/proc/version")
		return string(b), err
	}}}
	for _, c := range []struct {
		what string
		call uintptr
		a, b func() uintptr
		c    uintptr
	}{
		{"io_uring", unix.SYS_IO_URING_SETUP, func() uintptr { return 1 }, at, 0},
		{"bpf", unix.SYS_BPF, func() uintptr { return unix.BPF_MAP_CREATE }, at, 72},
		{"userfaultfd", unix.SYS_USERFAULTFD, null, null, 0},
		{"perf_event_open", unix.SYS_PERF_EVENT_OPEN, at, null, ^uintptr(0)},
		{"add_key", unix.SYS_ADD_KEY, at, at, 0},
		{"keyctl", unix.SYS_KEYCTL, func() uintptr { return unix.KEYCTL_GET_KEYRING_ID }, func() uintptr { return ^uintptr(2) }, 1},
		{"a user namespace", unix.SYS_UNSHARE, func() uintptr { return unix.CLONE_NEWUSER }, null, 0},
		{"a mount namespace", unix.SYS_UNSHARE, func() uintptr { return unix.CLONE_NEWNS }, null, 0},
		{"a network namespace", unix.SYS_UNSHARE, func() uintptr { return unix.CLONE_NEWNET }, null, 0},
		{"init_module", unix.SYS_INIT_MODULE, at, func() uintptr { return 1 }, at()},
		{"finit_module", unix.SYS_FINIT_MODULE, null, at, 0},
		{"kexec_load", unix.SYS_KEXEC_LOAD, null, null, 0},
		{"fsopen", unix.SYS_FSOPEN, func() uintptr { return cstring("tmpfs") }, null, 0},
		{"open_tree", unix.SYS_OPEN_TREE, func() uintptr { return ^uintptr(99) }, func() uintptr { return cstring("/") }, unix.OPEN_TREE_CLONE},
		{"pivot_root", unix.SYS_PIVOT_ROOT, func() uintptr { return cstring("/tmp") }, func() uintptr { return cstring("/tmp") }, 0},
		{"swapon", unix.SYS_SWAPON, func() uintptr { return cstring("/tmp/none") }, null, 0},
		{"acct", unix.SYS_ACCT, func() uintptr { return cstring("/tmp/none") }, null, 0},
		{"the kernel's log", unix.SYS_SYSLOG, func() uintptr { return 10 }, null, 0},
		{"settimeofday", unix.SYS_SETTIMEOFDAY, at, null, 0},
		{"quotactl", unix.SYS_QUOTACTL, null, null, 0},
	} {
		all = append(all, attempt{c.what, func() (string, error) {
			_, _, errno := unix.Syscall6(c.call, c.a(), c.b(), c.c, 0, 0, 0)
			return refused(errno)
		}})
	}
	for _, s := range []struct {
		what               string
		domain, typ, proto int
	}{
		{"a packet socket", unix.AF_PACKET, unix.SOCK_RAW, 0},
		{"the kernel's ciphers", unix.AF_ALG, unix.SOCK_SEQPACKET, 0},
		{"vsock", unix.AF_VSOCK, unix.SOCK_STREAM, 0},
		{"bluetooth", unix.AF_BLUETOOTH, unix.SOCK_RAW, 0},
		{"tipc", unix.AF_TIPC, unix.SOCK_STREAM, 0},
	} {
		all = append(all, attempt{s.what, func() (string, error) {
			fd, err := unix.Socket(s.domain, s.typ, s.proto)
			if err != nil {
				return "", err
			}
			unix.Close(fd)
			return "there is such a socket", nil
		}})
	}
	return all
}

// refused returns the result of a system call that seccomp must block: an error about its
// arguments shows that the kernel has started to handle it.
func refused(errno unix.Errno) (string, error) {
	switch errno {
	case unix.EPERM, unix.ENOSYS, unix.EACCES, unix.EOPNOTSUPP:
		return "", errno
	case 0:
		return "the kernel did it", nil
	}
	return "the kernel checked the arguments: " + errno.Error(), errno
}

var kept []*byte // memory that the kernel reads

func cstring(s string) uintptr {
	p, err := unix.BytePtrFromString(s)
	if err != nil {
		panic(err) // the strings are constants of this program
	}
	kept = append(kept, p)
	return uintptr(unsafe.Pointer(p))
}

// privilege tries to gain privileges.
func privilege(map[string]string) []attempt {
	runtime.LockOSThread()
	do := func(what string, f func() error) attempt {
		return attempt{what, func() (string, error) { return done(f()) }}
	}
	all := []attempt{
		{"capabilities, or room for more privileges", func() (string, error) { return status("CapInh:", "CapAmb:") }},
		{"privileges by a program", func() (string, error) {
			if v, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err != nil || v == 1 {
				return "", err
			}
			return "set-user-id programs count", nil
		}},
		do("all capabilities", func() error {
			hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			full := [2]unix.CapUserData{{Effective: ^uint32(0), Permitted: ^uint32(0)}, {Effective: ^uint32(0), Permitted: ^uint32(0)}}
			return unix.Capset(&hdr, &full[0])
		}),
		do("an id map of its own", func() error { return os.WriteFile("/proc/self/uid_map", []byte("0 0 4294967295"), 0) }),
		do("a mount", func() error { return unix.Mount("none", "/mnt", "tmpfs", 0, "") }),
		do("the host's processes", func() error { return unix.Mount("none", "/mnt", "proc", 0, "") }),
		do("a device", func() error { return unix.Mknod("/tmp/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))) }),
		do("a higher limit", func() error {
			var r unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
				return err
			}
			return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: r.Max + 1, Max: r.Max + 1})
		}),
		do("real time", func() error {
			return unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: 1, Priority: 50}, 0)
		}),
		do("another host name", func() error { return unix.Sethostname([]byte("host")) }),
		do("another time", func() error { return unix.ClockSettime(unix.CLOCK_REALTIME, &unix.Timespec{Sec: 1}) }),
		do("the machine's end", func() error { return unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_ON) }),
	}
	for _, name := range []string{"user", "mnt", "net", "pid", "uts", "ipc", "cgroup"} {
		all = append(all, do("the namespace "+name+" of init", func() error {
			f, err := os.Open("/proc/1/ns/" + name)
			if err != nil {
				return err
			}
			defer f.Close()
			return unix.Setns(int(f.Fd()), 0)
		}))
	}
	for _, path := range []string{"/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/loop-control", "/proc/1/mem"} {
		all = append(all, do("open "+path, func() error {
			fd, err := unix.Open(path, unix.O_RDWR, 0)
			if err == nil {
				unix.Close(fd)
			}
			return err
		}))
	}
	return append(all, do("out of the root", escapeRoot))
}

// status returns the fields of its own status that should be zero and are not.
func status(names ...string) (string, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		for _, name := range names {
			if rest, ok := strings.CutPrefix(line, name); ok && strings.Trim(rest, " \t\n0") != "" {
				return line, nil
			}
		}
	}
	return "", nil
}

var errInside = errors.New("still inside")

// escapeRoot is the classic escape from a chroot: a second chroot to a directory below the
// working directory (chroot(2)).
func escapeRoot() error {
	if err := os.MkdirAll("/tmp/inner", 0o755); err != nil {
		return err
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Chroot("/tmp/inner"); err != nil {
		return err
	}
	for range 50 {
		if err := unix.Chdir(".."); err != nil {
			return err
		}
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	if _, err := os.Stat("/app/attack"); err == nil {
		return fmt.Errorf("chroot: %w", errInside)
	}
	return nil
}
