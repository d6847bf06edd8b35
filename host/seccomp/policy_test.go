package seccomp_test

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"glasshouse/host/seccomp"
)

// An answer is the result of the filter for one call.
type answer uint32

const (
	allow  answer = unix.SECCOMP_RET_ALLOW
	eperm  answer = unix.SECCOMP_RET_ERRNO | answer(unix.EPERM)
	enosys answer = unix.SECCOMP_RET_ERRNO | answer(unix.ENOSYS)
	killed answer = unix.SECCOMP_RET_KILL_PROCESS & 0xffffffff
)

var processors = map[string]*arch.Info{"amd64": arch.X86_64, "arm64": arch.AARCH64}

// dangerous lists calls that no jail may make with any arguments. Each line is one escape path or
// one part of the kernel with a history of privilege escalations.
var dangerous = []string{
	"kexec_load", "kexec_file_load", "reboot",
	"init_module", "finit_module", "delete_module",
	"bpf", "perf_event_open", "userfaultfd",
	"keyctl", "add_key", "request_key",
	"io_uring_setup", "io_uring_enter", "io_uring_register",
	"mount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr",
	"unshare", "setns",
	"open_by_handle_at", "fanotify_init",
	"quotactl", "quotactl_fd", "swapon", "swapoff", "acct",
	"settimeofday", "clock_settime", "adjtimex", "clock_adjtime",
	"sethostname", "setdomainname",
	"ioperm", "iopl", "modify_ldt", "vhangup",
	"syslog", "lookup_dcookie", "kcmp", "pidfd_getfd",
	"process_madvise", "move_pages", "migrate_pages", "mbind", "set_mempolicy",
	"uselib", "ustat", "sysfs", "_sysctl", "nfsservctl", "remap_file_pages",
	"socketcall", "ipc",
}

// ordinary lists calls that common programs of agents need: shells, compilers, interpreters, git,
// apt, ssh, databases, a debugger, a browser.
var ordinary = []string{
	"read", "write", "openat", "openat2", "close", "close_range", "fstat", "statx", "lseek", "pread64", "pwrite64", "readv", "writev",
	"preadv", "pwritev", "preadv2", "pwritev2", "mmap", "mprotect", "munmap", "mremap", "msync", "madvise", "mlock", "munlock", "brk", "memfd_create", "mincore", "membarrier",
	"rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait", "rt_sigqueueinfo", "sigaltstack", "kill", "tkill", "tgkill",
	"signalfd4", "eventfd2", "epoll_create1", "epoll_ctl", "epoll_pwait", "ppoll", "pselect6", "timerfd_create", "timerfd_settime", "pipe2", "dup", "dup3", "fcntl", "ioctl", "flock",
	"execve", "execveat", "exit", "exit_group", "wait4", "waitid", "set_tid_address", "set_robust_list", "get_robust_list", "rseq", "futex", "futex_waitv", "sched_yield", "sched_getaffinity", "sched_setaffinity", "sched_getparam", "sched_setscheduler", "getcpu",
	"getpid", "getppid", "gettid", "getuid", "geteuid", "getgid", "getegid", "getresuid", "getresgid", "getgroups", "setgroups", "setuid", "setgid", "setresuid", "setresgid", "setreuid", "setregid", "setfsuid", "setfsgid", "setsid", "getsid", "setpgid", "getpgid", "capget", "capset", "prctl",
	"chdir", "fchdir", "getcwd", "mkdirat", "unlinkat", "renameat2", "linkat", "symlinkat", "readlinkat", "mknodat", "fchmod", "fchmodat", "fchmodat2", "fchown", "fchownat", "faccessat", "faccessat2", "utimensat", "umask", "truncate", "ftruncate", "fallocate", "fadvise64", "getdents64", "statfs", "fstatfs",
	"fsync", "fdatasync", "sync", "syncfs", "sync_file_range", "copy_file_range", "sendfile", "splice", "tee", "vmsplice", "readahead",
	"getxattr", "lgetxattr", "fgetxattr", "setxattr", "lsetxattr", "fsetxattr", "listxattr", "llistxattr", "flistxattr", "removexattr",
	"inotify_init1", "inotify_add_watch", "inotify_rm_watch",
	"connect", "bind", "listen", "accept", "accept4", "getsockname", "getpeername", "sendto", "recvfrom", "sendmsg", "recvmsg", "sendmmsg", "recvmmsg", "shutdown", "setsockopt", "getsockopt",
	"clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep", "gettimeofday", "getitimer", "setitimer", "timer_create", "timer_settime", "timer_delete", "times", "getrusage",
	"uname", "sysinfo", "getrandom", "getrlimit", "setrlimit", "getpriority", "setpriority", "ioprio_get", "ioprio_set",
	"shmget", "shmat", "shmctl", "shmdt", "semget", "semop", "semctl", "semtimedop", "msgget", "msgsnd", "msgrcv", "mq_open", "mq_timedsend", "mq_timedreceive",
	"io_setup", "io_submit", "io_getevents", "io_destroy", "pidfd_open", "pidfd_send_signal",
	"ptrace", "process_vm_readv", "process_vm_writev", // a debugger in the jail
	"seccomp", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", // a program that restricts itself further
	"pkey_alloc", "pkey_mprotect", "mlock2", "name_to_handle_at", "restart_syscall",
}

// ordinaryX86 lists the older variants that x86-64 still has.
var ordinaryX86 = []string{
	"open", "creat", "stat", "lstat", "access", "pipe", "dup2", "fork", "vfork", "getpgrp", "rename", "mkdir", "rmdir", "link", "unlink", "symlink", "readlink",
	"chmod", "chown", "lchown", "poll", "select", "alarm", "pause", "utime", "utimes", "futimesat", "getdents", "time", "epoll_create", "epoll_wait", "eventfd", "inotify_init", "signalfd", "mknod", "arch_prctl",
}

func TestDangerousCallsAreDenied(t *testing.T) {
	for _, f := range filters(t) {
		for _, name := range dangerous {
			nr, ok := f.table.SyscallNames[name]
			if !ok {
				continue // a call of another architecture
			}
			if got := f.answer(t, nr); got == allow {
				t.Errorf("%s: %s is allowed", f.arch, name)
			}
		}
	}
}

func TestOrdinaryCallsAreAllowed(t *testing.T) {
	for _, f := range filters(t) {
		names := append(slices.Clone(ordinary), "fstatat")
		if f.arch == "amd64" {
			names = append(append(slices.Clone(ordinary), "newfstatat"), ordinaryX86...)
		}
		for _, name := range names {
			nr, ok := f.table.SyscallNames[name]
			if !ok {
				t.Errorf("%s: %s has no number", f.arch, name)
				continue
			}
			if got := f.answer(t, nr); got != allow {
				t.Errorf("%s: %s returns %#x, want allowed", f.arch, name, got)
			}
		}
	}
}

func TestArgumentConditions(t *testing.T) {
	const high = 1 << 32 // a bit that the kernel ignores in an int
	tests := []struct {
		call string
		args []uint64
		want answer
		why  string
	}{
		{"socket", []uint64{unix.AF_UNIX, unix.SOCK_STREAM}, allow, "local sockets"},
		{"prlimit64", []uint64{0, unix.RLIMIT_NOFILE, 0x1000, 0}, allow, "a process sets its own limits"},
		{"prlimit64", []uint64{7, unix.RLIMIT_NOFILE, 0, 0x1000}, allow, "a process reads the limits of another"},
		{"prlimit64", []uint64{1, unix.RLIMIT_NOFILE, 0x1000, 0}, eperm, "root in a jail could starve its init"},
		{"prlimit64", []uint64{high | 1, unix.RLIMIT_NOFILE, 0x1000, 0}, eperm, "the kernel reads 32 bits of a pid"},
		{"prlimit64", []uint64{1, unix.RLIMIT_NOFILE, high, 0}, eperm, "a pointer has 64 bits"},
		{"socket", []uint64{unix.AF_INET, unix.SOCK_STREAM}, allow, "TCP"},
		{"socket", []uint64{unix.AF_INET6, unix.SOCK_DGRAM}, allow, "UDP"},
		{"socket", []uint64{unix.AF_NETLINK, unix.SOCK_RAW}, allow, "getaddrinfo asks which addresses there are"},
		{"socket", []uint64{unix.AF_VSOCK, unix.SOCK_STREAM}, eperm, "reaches the hypervisor"},
		{"socket", []uint64{unix.AF_ALG, unix.SOCK_SEQPACKET}, eperm, "the kernel's cryptography"},
		{"socket", []uint64{unix.AF_PACKET, unix.SOCK_RAW}, eperm, "raw frames"},
		{"socket", []uint64{unix.AF_BLUETOOTH, unix.SOCK_RAW}, eperm, "not in the namespace"},
		{"socket", []uint64{high | unix.AF_VSOCK, unix.SOCK_STREAM}, eperm, "the kernel reads 32 bits"},
		{"socket", []uint64{high | unix.AF_INET, unix.SOCK_STREAM}, eperm, "no valid program sets that bit"},
		{"socketpair", []uint64{unix.AF_UNIX, unix.SOCK_STREAM}, allow, "pipes with two ends"},
		{"socketpair", []uint64{unix.AF_TIPC, unix.SOCK_STREAM}, eperm, "the only other family that has pairs"},

		{"clone", []uint64{uint64(unix.SIGCHLD)}, allow, "fork"},
		{"clone", []uint64{unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD}, allow, "a thread"},
		{"clone", []uint64{unix.CLONE_NEWUSER}, eperm, "a namespace"},
		{"clone", []uint64{unix.CLONE_NEWNET | uint64(unix.SIGCHLD)}, eperm, "a namespace"},
		{"clone", []uint64{unix.CLONE_NEWNS}, eperm, "a namespace"},
		{"clone", []uint64{unix.CLONE_NEWPID}, eperm, "a namespace"},
		{"clone", []uint64{unix.CLONE_NEWCGROUP}, eperm, "a namespace"},
		{"clone", []uint64{high | unix.CLONE_NEWUSER}, eperm, "a namespace, with a bit that the kernel ignores"},
		{"clone3", []uint64{0x7f0000000000, 88}, enosys, "its flags are behind a pointer; libc falls back to clone"},

		{"personality", []uint64{0}, allow, "plain Linux"},
		{"personality", []uint64{0xffffffff}, allow, "asks only"},
		{"personality", []uint64{8}, allow, "setarch i386"},
		{"personality", []uint64{0x0400000}, eperm, "READ_IMPLIES_EXEC"},
		{"personality", []uint64{0x0040000}, eperm, "ADDR_NO_RANDOMIZE"},
	}
	for _, f := range filters(t) {
		for _, tt := range tests {
			if got := f.answer(t, f.table.SyscallNames[tt.call], tt.args...); got != tt.want {
				t.Errorf("%s: %s(%#x) returns %#x, want %#x: %s", f.arch, tt.call, tt.args, got, tt.want, tt.why)
			}
		}
	}
}

func TestUnknownCallsReturnENOSYS(t *testing.T) {
	for _, f := range filters(t) {
		for _, nr := range []int{500, 1 << 20, -1} {
			if got := f.answer(t, nr); got != enosys {
				t.Errorf("%s: call %d returns %#x, want ENOSYS, so that a libc falls back", f.arch, nr, got)
			}
		}
	}
}

func TestOtherABIsAreKilled(t *testing.T) {
	for _, f := range filters(t) {
		for _, other := range []*arch.Info{arch.I386, arch.ARM} {
			d := data{nr: 1, arch: uint32(other.ID)}
			if got := f.run(t, d); got != killed {
				t.Errorf("%s: a call of the ABI of %s returns %#x, want the process killed", f.arch, other.Name, got)
			}
		}
	}
	f := filters(t)[0]
	for name, nr := range arch.X32.SyscallNames {
		d := data{nr: uint32(nr | arch.X32.SeccompMask), arch: uint32(arch.X86_64.ID)}
		if got := f.run(t, d); got != enosys {
			t.Fatalf("x32 call %s returns %#x, want ENOSYS", name, got)
		}
	}
}

// TestBPFMatchesOCIProfile compares the result of the BPF program with the OCI profile for every
// call.
func TestBPFMatchesOCIProfile(t *testing.T) {
	for _, f := range filters(t) {
		plain := map[string]bool{}
		for _, rule := range seccomp.OCI(f.arch).Syscalls {
			for _, name := range rule.Names {
				plain[name] = plain[name] || rule.Action == specs.ActAllow && len(rule.Args) == 0
			}
		}
		plain["fstatat"] = plain["newfstatat"] // its name in the arm64 table
		const odd = 0xdead_beef_dead_beef      // satisfies no rule about arguments
		for name, nr := range f.table.SyscallNames {
			got := f.answer(t, nr, odd, odd, odd, odd, odd, odd)
			if (got == allow) != plain[name] {
				t.Errorf("%s: %s returns %#x, but is allowed by the profile without conditions: %t", f.arch, name, got, plain[name])
			}
		}
	}
}

func TestBPFIsDeterministic(t *testing.T) {
	for name := range processors {
		first, err := seccomp.BPF(name)
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			if again, _ := seccomp.BPF(name); !slices.Equal(first, again) {
				t.Fatalf("BPF(%s) differs between two calls", name)
			}
		}
		if n := len(first) / 8; n > 1024 {
			t.Errorf("BPF(%s) has %d instructions; they run at every call of every jail", name, n)
		}
	}
}

// A filter is the policy for one architecture, run by an interpreter.
type filter struct {
	arch  string
	table *arch.Info
	vm    *bpf.VM
}

func filters(t *testing.T) []filter {
	t.Helper()
	var all []filter
	for _, name := range []string{"amd64", "arm64"} {
		code, err := seccomp.BPF(name)
		if err != nil {
			t.Fatal(err)
		}
		var program []bpf.Instruction
		for len(code) > 0 {
			raw := bpf.RawInstruction{Op: binary.LittleEndian.Uint16(code), Jt: code[2], Jf: code[3], K: binary.LittleEndian.Uint32(code[4:])}
			program = append(program, raw.Disassemble())
			code = code[8:]
		}
		vm, err := bpf.NewVM(program)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, filter{name, processors[name], vm})
	}
	return all
}

func (f filter) answer(t *testing.T, nr int, args ...uint64) answer {
	t.Helper()
	d := data{nr: uint32(nr), arch: uint32(f.table.ID)}
	copy(d.args[:], args)
	return f.run(t, d)
}

// data is the kernel's struct seccomp_data.
type data struct {
	nr, arch uint32
	args     [6]uint64
}

// run encodes d for the interpreter, which reads big-endian words, whereas the kernel reads
// native ones.
func (f filter) run(t *testing.T, d data) answer {
	t.Helper()
	words := []uint32{d.nr, d.arch, 0, 0}
	for _, a := range d.args {
		words = append(words, uint32(a), uint32(a>>32))
	}
	var packet []byte
	for _, w := range words {
		packet = binary.BigEndian.AppendUint32(packet, w)
	}
	got, err := f.vm.Run(packet)
	if err != nil {
		t.Fatal(err)
	}
	return answer(uint32(got))
}
