package event

// Security lists the calls recorded with "syscalls: security": calls that gain privileges,
// affect other processes, or have lasting effects. It omits calls that work on open
// descriptors, such as read, write, wait, poll, and clock calls. Those are about 90 % of the
// calls of most programs, and file and packet events cover their effects.
//
// The selection is by name, because sources apply it before they read arguments. Therefore it
// includes every open, not only those for writing, and every mmap, not only executable
// mappings. It includes io_uring_enter although it is frequent, because operations submitted
// to a ring are not observed otherwise.
//
// The list contains the names of all architectures; "setuid32" is setuid on 32-bit machines.
var Security = []string{
	// Start, exec, exit and termination of processes.
	"fork", "vfork", "clone", "clone3", "execve", "execveat", "exit", "exit_group",
	"kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open", "pidfd_send_signal",

	// Identity and privileges.
	"setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setfsuid", "setfsgid", "setgroups",
	"setuid32", "setgid32", "setreuid32", "setregid32", "setresuid32", "setresgid32", "setfsuid32", "setfsgid32", "setgroups32",
	"capset", "prctl", "seccomp", "personality", "setrlimit", "prlimit64",
	"landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self",

	// Access to other processes.
	"ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd", "kcmp", "userfaultfd",

	// Namespaces, mounts, and access by handle.
	"unshare", "setns", "chroot", "pivot_root", "mount", "umount", "umount2", "open_tree", "open_tree_attr", "move_mount",
	"fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "name_to_handle_at", "open_by_handle_at",
	"swapon", "swapoff", "quotactl", "quotactl_fd",

	// Network peers. send and recv are omitted, because packets are recorded.
	"socket", "socketpair", "bind", "connect", "listen", "accept", "accept4", "sendto", "sendmsg", "sendmmsg", "socketcall",

	// Opening, creation, deletion, renaming and attributes of files.
	"open", "openat", "openat2", "creat", "memfd_create", "memfd_secret",
	"unlink", "unlinkat", "rmdir", "rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat",
	"mkdir", "mkdirat", "mknod", "mknodat", "truncate", "truncate64",
	"chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchown", "fchownat", "chown32", "lchown32", "fchown32",
	"setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr", "lremovexattr", "fremovexattr", "removexattrat", "file_setattr",
	"fanotify_init", "fanotify_mark",

	// Executable memory.
	"mmap", "mmap2", "mprotect", "pkey_mprotect", "modify_ldt",

	// The kernel itself.
	"init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "bpf", "perf_event_open",
	"add_key", "request_key", "keyctl", "io_uring_setup", "io_uring_enter", "io_uring_register",
	"ioperm", "iopl", "reboot", "syslog", "acct", "vhangup", "sethostname", "setdomainname",
	"settimeofday", "clock_settime", "clock_settime64", "clock_adjtime", "clock_adjtime64", "adjtimex",
}
