package main

import (
	"encoding/binary"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An attempt is a system call that a jail must refuse. Its arguments are valid, or such that an
// allowed call would do no harm: the host's clock is set to its current value, reboot gets an
// undefined command.
type attempt struct {
	name string
	try  func() unix.Errno
}

var attempts = []attempt{
	{"mknod-block", func() unix.Errno { return num(unix.Mknod("/tmp/block", unix.S_IFBLK|0o600, int(unix.Mkdev(254, 0)))) }},
	{"mknod-char", func() unix.Errno { return num(unix.Mknod("/tmp/char", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 1)))) }},
	{"mount-tmpfs", func() unix.Errno { return num(unix.Mount("none", "/tmp", "tmpfs", 0, "")) }},
	{"mount-proc", func() unix.Errno { return num(unix.Mount("none", "/proc", "proc", 0, "")) }},
	{"remount-proc-sys", func() unix.Errno { return num(unix.Mount("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND, "")) }},
	{"umount-proc", func() unix.Errno { return num(unix.Unmount("/proc", unix.MNT_DETACH)) }},
	{"umount-control", func() unix.Errno { return num(unix.Unmount("/.glasshouse", unix.MNT_DETACH)) }},
	{"pivot-root", func() unix.Errno { return num(unix.PivotRoot("/", "/")) }},
	{"fsopen", func() unix.Errno { return second(unix.Fsopen("tmpfs", 0)) }},
	{"open-tree", func() unix.Errno { return second(unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE)) }},

	{"unshare-user", func() unix.Errno { return through(unix.EINVAL, unix.Unshare(unix.CLONE_NEWUSER)) }}, // a process with threads may not
	{"clone-user", cloneUser},
	{"unshare-mount", func() unix.Errno { return apart(unix.CLONE_NEWNS) }},
	{"unshare-net", func() unix.Errno { return apart(unix.CLONE_NEWNET) }},
	{"unshare-pid", func() unix.Errno { return apart(unix.CLONE_NEWPID) }},
	{"setns", joinNamespace},

	{"bpf", func() unix.Errno { return call(unix.SYS_BPF, 0, zeros(72), 72) }},
	{"userfaultfd", func() unix.Errno { return call(unix.SYS_USERFAULTFD, 0) }},
	{"perf-event-open", perfEventOpen},
	{"io-uring-setup", func() unix.Errno { return call(unix.SYS_IO_URING_SETUP, 4, zeros(120)) }},
	{"keyctl", func() unix.Errno { return call(unix.SYS_KEYCTL, 0, ^uintptr(2), 1) }}, // the session keyring
	{"add-key", addKey},
	{"kexec-load", func() unix.Errno { return call(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0) }},
	{"init-module", func() unix.Errno { return call(unix.SYS_INIT_MODULE, zeros(64), 64, zeros(1)) }},
	{"finit-module", finitModule},
	{"delete-module", func() unix.Errno { return call(unix.SYS_DELETE_MODULE, text("no-such-module"), unix.O_NONBLOCK) }},
	{"reboot", func() unix.Errno { return through(unix.EINVAL, unix.Reboot(0x1234567)) }}, // no such command
	{"syslog", func() unix.Errno { return second(unix.Klogctl(3, make([]byte, 4096))) }},
	{"iopl", ioPorts},
	{"swapon", func() unix.Errno { return call(unix.SYS_SWAPON, text("/etc/passwd"), 0) }},
	{"swapoff", func() unix.Errno { return call(unix.SYS_SWAPOFF, text("/etc/passwd")) }},
	{"quotactl", func() unix.Errno { return call(unix.SYS_QUOTACTL, 0x800002<<8, text("/"), 0, 0) }},
	{"acct", func() unix.Errno { return call(unix.SYS_ACCT, text("/etc/passwd")) }},

	{"settimeofday", setTime},
	{"clock-settime", setClock},
	{"adjtimex", func() unix.Errno { return second(unix.Adjtimex(&unix.Timex{Modes: 0x4000, Tick: 10000})) }},
	{"sethostname", func() unix.Errno { return num(unix.Sethostname([]byte("conquered"))) }},
	{"setdomainname", func() unix.Errno { return num(unix.Setdomainname([]byte("conquered"))) }},

	{"open-by-handle-at", openByHandle},
	{"fanotify-init", func() unix.Errno { return second(unix.FanotifyInit(0x0c, unix.O_RDONLY)) }},
	{"raw-socket", func() unix.Errno { return second(unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)) }},
	{"packet-socket", func() unix.Errno { return second(unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0x300)) }},
	{"vsock", func() unix.Errno { return second(unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)) }},
	{"alg-socket", func() unix.Errno { return second(unix.Socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0)) }},
	{"alg-socket-high-bit", func() unix.Errno {
		return call(unix.SYS_SOCKET, 1<<32|unix.AF_ALG, unix.SOCK_SEQPACKET, 0)
	}},
	{"net-admin", setLinkDown},
	{"personality", func() unix.Errno { return call(unix.SYS_PERSONALITY, 0x400000) }},
	{"nice", func() unix.Errno { return num(unix.Setpriority(unix.PRIO_PROCESS, 0, -20)) }},
	{"raise-limit", raiseLimit},
	{"oom-score", func() unix.Errno { return num(os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0)) }},
	{"take-capabilities", takeCapabilities},
	{"drop-no-new-privs", func() unix.Errno { return num(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0)) }},
	{"chroot", func() unix.Errno { return num(unix.Chroot("/tmp")) }},
}

// through is like num, but for a call that fails with the errno good if the kernel gets as far as
// checking the arguments.
func through(good unix.Errno, err error) unix.Errno {
	if e := num(err); e != good {
		return e
	}
	return 0
}

// apart calls unshare in a thread that ends with its goroutine.
func apart(flags int) unix.Errno {
	errno := make(chan unix.Errno)
	go func() {
		runtime.LockOSThread() // never unlocked
		errno <- num(unix.Unshare(flags))
	}()
	return <-errno
}

func cloneUser() unix.Errno {
	pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.CLONE_NEWUSER|unix.SIGCHLD), 0, 0, 0, 0, 0)
	if e == 0 && pid == 0 {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	if e == 0 {
		unix.Wait4(int(pid), nil, 0, nil)
	}
	return e
}

func joinNamespace() unix.Errno {
	fd, err := unix.Open("/proc/1/ns/uts", unix.O_RDONLY, 0)
	if err != nil {
		return num(err)
	}
	defer unix.Close(fd)
	return num(unix.Setns(fd, unix.CLONE_NEWUTS))
}

func perfEventOpen() unix.Errno {
	attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK}
	attr.Size = uint32(unsafe.Sizeof(attr))
	return second(unix.PerfEventOpen(&attr, 0, -1, -1, 0))
}

func addKey() unix.Errno {
	return second(unix.AddKey("user", "glasshouse-probe", []byte("x"), unix.KEY_SPEC_SESSION_KEYRING))
}

func finitModule() unix.Errno {
	fd, err := unix.Open("/etc/passwd", unix.O_RDONLY, 0)
	if err != nil {
		return num(err)
	}
	defer unix.Close(fd)
	return num(unix.FinitModule(fd, "", 0))
}

func setTime() unix.Errno {
	var tv unix.Timeval
	if err := unix.Gettimeofday(&tv); err != nil {
		return num(err)
	}
	return num(unix.Settimeofday(&tv))
}

func setClock() unix.Errno {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &ts); err != nil {
		return num(err)
	}
	return num(unix.ClockSettime(unix.CLOCK_REALTIME, &ts))
}

func openByHandle() unix.Errno {
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, "/etc", 0)
	if err != nil {
		handle = unix.NewFileHandle(1, make([]byte, 8))
	}
	fd, err := unix.Open("/", unix.O_RDONLY, 0)
	if err != nil {
		return num(err)
	}
	defer unix.Close(fd)
	return second(unix.OpenByHandleAt(fd, handle, unix.O_RDONLY))
}

// setLinkDown makes a request that needs CAP_NET_ADMIN in the network namespace.
func setLinkDown() unix.Errno {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return num(err)
	}
	defer unix.Close(fd)
	var ifreq [40]byte
	copy(ifreq[:], "lo")
	binary.NativeEndian.PutUint16(ifreq[16:], unix.IFF_RUNNING) // without IFF_UP
	return call(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&ifreq[0])))
}

func raiseLimit() unix.Errno {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return num(err)
	}
	r.Max++
	return num(unix.Setrlimit(unix.RLIMIT_NOFILE, &r))
}

func takeCapabilities() unix.Errno {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	all := [2]unix.CapUserData{{Effective: ^uint32(0), Permitted: ^uint32(0)}, {Effective: 0x1ff, Permitted: 0x1ff}}
	return num(unix.Capset(&header, &all[0]))
}

// zeros and text return memory for a system call, and keep it alive.
var kept []any

func zeros(n int) uintptr {
	b := make([]byte, n)
	kept = append(kept, b)
	return uintptr(unsafe.Pointer(&b[0]))
}

func text(s string) uintptr {
	b := append([]byte(s), 0)
	kept = append(kept, b)
	return uintptr(unsafe.Pointer(&b[0]))
}

func call(nr uintptr, args ...uintptr) unix.Errno {
	var a [6]uintptr
	copy(a[:], args)
	_, _, e := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
	return e
}

func num(err error) unix.Errno {
	if err == nil {
		return 0
	}
	for {
		if e, ok := err.(unix.Errno); ok {
			return e
		}
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			return unix.ENOTRECOVERABLE
		}
		err = u.Unwrap()
	}
}

func second[T any](_ T, err error) unix.Errno { return num(err) }
