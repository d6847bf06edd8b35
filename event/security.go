package event

// Security lists the calls recorded under "syscalls: security": those by which a
// process becomes more than it was, reaches beyond itself, or leaves something
// behind. What is left out works on what such a call has opened: reading,
// writing, waiting, polling, asking for the time. Those are nine in ten calls of
// most programs, and the records of files and packets tell what they did.
//
// The choice is by name, since a source makes it before it looks at arguments.
// So every open is here, not only those for writing (a secret that is read was
// opened), and every mmap, not only those of code. io_uring_enter is here though
// it is frequent: what goes through a ring is seen nowhere else.
//
// Names of every architecture are in the list; "setuid32" is setuid on 32-bit
// machines.
var Security = []string{
	// Processes begin, change their program, end, and end each other.
	"fork", "vfork", "clone", "clone3", "execve", "execveat", "exit", "exit_group",
	"kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open", "pidfd_send_signal",

	// Who a process is, and what it may do.
	"setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setfsuid", "setfsgid", "setgroups",
	"setuid32", "setgid32", "setreuid32", "setregid32", "setresuid32", "setresgid32", "setfsuid32", "setfsgid32", "setgroups32",
	"capset", "prctl", "seccomp", "personality", "setrlimit", "prlimit64",
	"landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self",

	// Into other processes.
	"ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd", "kcmp", "userfaultfd",

	// Namespaces, mounts, and ways around them.
	"unshare", "setns", "chroot", "pivot_root", "mount", "umount", "umount2", "open_tree", "open_tree_attr", "move_mount",
	"fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "name_to_handle_at", "open_by_handle_at",
	"swapon", "swapoff", "quotactl", "quotactl_fd",

	// To whom it speaks. send and recv name nobody; the packets are recorded.
	"socket", "socketpair", "bind", "connect", "listen", "accept", "accept4", "sendto", "sendmsg", "sendmmsg", "socketcall",

	// Files that are opened, come, go, move, and change hands.
	"open", "openat", "openat2", "creat", "memfd_create", "memfd_secret",
	"unlink", "unlinkat", "rmdir", "rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat",
	"mkdir", "mkdirat", "mknod", "mknodat", "truncate", "truncate64",
	"chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchown", "fchownat", "chown32", "lchown32", "fchown32",
	"setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr", "lremovexattr", "fremovexattr", "removexattrat", "file_setattr",
	"fanotify_init", "fanotify_mark",

	// Memory that becomes code.
	"mmap", "mmap2", "mprotect", "pkey_mprotect", "modify_ldt",

	// The kernel itself.
	"init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "bpf", "perf_event_open",
	"add_key", "request_key", "keyctl", "io_uring_setup", "io_uring_enter", "io_uring_register",
	"ioperm", "iopl", "reboot", "syslog", "acct", "vhangup", "sethostname", "setdomainname",
	"settimeofday", "clock_settime", "clock_settime64", "clock_adjtime", "clock_adjtime64", "adjtimex",
}
