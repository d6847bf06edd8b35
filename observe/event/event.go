// Package event defines the event record: one observed system call, file operation, packet or
// process change. Logs and readers use its JSON form, one object per line.
package event

import "glasshouse/id"

// A Type is the subject of an event.
type Type uint8

const (
	Syscall Type = iota + 1 // a completed system call
	File                    // an operation on a file, with the path inside the jail
	Net                     // a packet, or the summary of a flow
	Proc                    // a process or thread started, executed a program, or ended
	Gap                     // events that are missing, and their number
	Usage                   // resource usage of the jail
	Lineage                 // a snapshot was taken of the jail, or the jail was created from or rewound to one
)

// Types lists all types in the order of their constants.
var Types = []Type{Syscall, File, Net, Proc, Gap, Usage, Lineage}

var typeNames = [...]string{Syscall: "syscall", File: "file", Net: "net", Proc: "proc", Gap: "gap", Usage: "usage", Lineage: "lineage"}

func (t Type) String() string {
	if int(t) < len(typeNames) && t != 0 {
		return typeNames[t]
	}
	return "unknown"
}

// ParseType returns the type with a name, or 0.
func ParseType(s string) Type {
	for _, t := range Types {
		if typeNames[t] == s {
			return t
		}
	}
	return 0
}

// Flags mark unusual events. Each set flag is a key in JSON.
type Flags uint16

const (
	Denied     Flags = 1 << iota // "denied": seccomp denied the call
	Unfinished                   // "unfinished": the caller died in the call, or the call never returns; no ret
	Partial                      // "partial": the caller was in the call when observation began; no dur_ns
	Child                        // "child": the return of fork or clone in the new task
	Cut                          // "cut": a string or list was truncated
	Raced                        // "raced": the memory the path was read from changed during the call
	Injected                     // "injected": caused by Glasshouse in the jail's processes
	Unresolved                   // "unresolved": the path of a descriptor is unknown
	Existing                     // "existing": the process existed when observation began
	Thread                       // "thread": of a thread that is not the first of its process
	ReadOnly                     // "read_only": the jail's disk rejects writes after an error; in Usage
)

// Names returns the names of the set flags.
func (f Flags) Names() []string {
	var names []string
	for i, name := range flagNames {
		if f&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// An Event is one record. It is flat, so that one value can be reused for many records. Type
// determines which fields are valid.
//
// Strings contain the kernel's bytes, so a path or an argument need not be valid UTF-8. In
// JSON, invalid bytes are written as the escapes \udc80 to \udcff, like Python's
// surrogateescape, and are read back unchanged.
type Event struct {
	Type  Type
	Flags Flags

	Seq  uint64 // without gaps in one jail, from 1 or, in a branch, from the parent's number; assigned by the log
	TS   int64  // milliseconds since the Unix epoch
	NS   int64  // CLOCK_MONOTONIC of the host in nanoseconds, at completion
	Jail id.Jail

	// The acting thread. PID and TID are those inside the jail.
	PID, TID int32
	HostPID  int32
	Comm     string

	// Syscall. Path and To are the path arguments. Real is the path that the kernel opened, if
	// it differs.
	NR   int32
	Name string
	ABI  string // "" is native; otherwise "i386", "x32", "arm"
	Args [6]uint64
	Ret  int64 // also of File; negative is -errno
	Dur  int64 // nanoseconds from entry to return
	Addr string

	// File, and the paths of Syscall.
	Op    string // also of Proc and Lineage; see the Op constants
	Path  string
	To    string // the second path of a rename or link
	Real  string
	Bytes int64 // also of Net
	Calls int64 // number of calls summed up; 0 in the event of one call
	FD    int32 // -1: no descriptor

	// Net. Addresses have the form "10.0.0.2:54321" and "[::1]:80", without a port if the
	// protocol has none.
	Dir     string // "egress", "ingress", "loopback"
	Proto   string // "tcp", "udp", "icmp", "icmp6", "arp", or "ip-41", "eth-88cc"
	Src     string
	Dst     string
	Host    string // the host name whose lookup returned the remote address
	Iface   string // interface name inside the jail
	Packets int64  // of a flow; 0 in the event of one packet
	TCP     string // flags of the packet, or of all packets of a flow: "SYN,ACK"
	Begin   int64  // of a flow: NS of its first packet; of Proc: NS of the start of the process

	// Proc.
	PPID     int32
	UID, GID uint32 // as inside the jail
	Exe      string
	Argv     []string
	Cwd      string
	Code     int32  // exit code
	Signal   string // terminating signal, such as "SIGKILL"; "" if it exited
	UserNS   int64  // CPU time used, at exit; also of Usage
	SystemNS int64
	RSS      int64 // peak resident set size in bytes, at exit

	// Gap. The lost events were of type Source, between the preceding and the following event.
	// From and To limit the range to sequence numbers that were assigned and removed again.
	Source  Type
	Lost    int64 // -1 if unknown
	Reason  string
	From    uint64
	Through uint64

	// Usage, of the whole jail.
	CPU    int64 // nanoseconds since its start
	Memory int64
	PIDs   int64
	Disk   int64
	Rx, Tx int64

	// Lineage. The snapshot was taken of Parent when ParentSeq was the sequence number of the
	// last event in its log.
	Snapshot  id.Snapshot
	Parent    id.Jail
	ParentSeq uint64
}

// File operations.
const (
	OpOpen     = "open"
	OpCreate   = "create" // an open that created the file
	OpClose    = "close"
	OpRead     = "read"
	OpWrite    = "write"
	OpDelete   = "delete"
	OpRename   = "rename"
	OpTruncate = "truncate"
	OpAllocate = "allocate"
	OpMode     = "chmod"
	OpOwner    = "chown"
	OpLink     = "link"
	OpSymlink  = "symlink"
	OpMkdir    = "mkdir"
	OpMknod    = "mknod"
	OpTimes    = "utime"
	OpXattr    = "xattr"
	OpMmap     = "mmap" // shared and writable: later writes through memory are not observed
	OpMount    = "mount"
	OpUnmount  = "unmount"
	OpChroot   = "chroot"
)

// Process operations. Events of threads have the flag Thread.
const (
	OpFork = "fork"
	OpExec = "exec"
	OpExit = "exit"
)

// Snapshot operations.
const (
	OpSnapshot = "snapshot" // a snapshot was taken of the jail; Parent is the jail itself
	OpRestore  = "restore"  // the jail was created from a snapshot
	OpBranch   = "branch"   // the jail is one of several created from a snapshot
	OpRewind   = "rewind"   // the jail was rewound to one of its snapshots; later events were undone
)

// The operations on files, processes and snapshots.
var (
	fileOps = []string{
		OpOpen, OpCreate, OpClose, OpRead, OpWrite, OpDelete, OpRename, OpTruncate, OpAllocate, OpMode, OpOwner,
		OpLink, OpSymlink, OpMkdir, OpMknod, OpTimes, OpXattr, OpMmap, OpMount, OpUnmount, OpChroot,
	}
	procOps    = []string{OpFork, OpExec, OpExit}
	lineageOps = []string{OpSnapshot, OpRestore, OpBranch, OpRewind}
)

// Directions of packets from the jail's perspective.
const (
	Egress   = "egress"
	Ingress  = "ingress"
	Loopback = "loopback" // inside the jail; recorded once
)
