// Package event is the record of one observed fact: a system call, an operation
// on a file, a packet, a process. Its JSON form, one object a line, is what the
// log keeps and what every reader gets.
package event

import "glasshouse/id"

// A Type is what a record is about.
type Type uint8

const (
	Syscall Type = iota + 1 // a system call, whole: entered and returned
	File                    // an operation on a file, with the path inside the jail
	Net                     // a packet, or a flow's sum of them
	Proc                    // a process or thread that began, changed its program, or ended
	Gap                     // records that are missing here, and how many
	Usage                   // what the jail uses at this moment
	Lineage                 // a snapshot was taken of the jail, or it goes on from one
)

// Types lists all, in the order of their constants.
var Types = []Type{Syscall, File, Net, Proc, Gap, Usage, Lineage}

var typeNames = [...]string{Syscall: "syscall", File: "file", Net: "net", Proc: "proc", Gap: "gap", Usage: "usage", Lineage: "lineage"}

func (t Type) String() string {
	if int(t) < len(typeNames) && t != 0 {
		return typeNames[t]
	}
	return "unknown"
}

// ParseType returns the type of that name, or 0.
func ParseType(s string) Type {
	for _, t := range Types {
		if typeNames[t] == s {
			return t
		}
	}
	return 0
}

// Flags say what is unusual about a record. Each is a word of its own in JSON,
// present when set.
type Flags uint16

const (
	Denied     Flags = 1 << iota // "denied": seccomp refused the call before it was entered
	Unfinished                   // "unfinished": the caller died inside the call, or never returns; no ret
	Partial                      // "partial": the caller was inside the call when observation began; no dur_ns
	Child                        // "child": the return of fork or clone in the new task
	Cut                          // "cut": a string or list is longer than what is kept
	Raced                        // "raced": the memory the path was read from changed during the call
	Injected                     // "injected": made by Glasshouse in the jail's processes, not by them
	Unresolved                   // "unresolved": the path of a descriptor is not known
	Existing                     // "existing": was there when observation began
	Thread                       // "thread": of a thread, not of a whole process
	ReadOnly                     // "read_only": the jail's disk refuses writes after an error; of Usage
)

// Names returns the words of those that are set.
func (f Flags) Names() []string {
	var names []string
	for i, name := range flagNames {
		if f&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// An Event is one record. It is flat, so that one value can be reused for many
// records: which fields mean something follows from Type.
//
// Strings are bytes as the kernel had them, so a path or an argument need not be
// valid UTF-8. In JSON such bytes are written as the escapes \udc80 to \udcff, as
// Python's surrogateescape does, and read back as the same bytes.
type Event struct {
	Type  Type
	Flags Flags

	Seq  uint64 // gapless in one jail, from 1 or, of a branch, from where its parent was; given by the log
	TS   int64  // milliseconds since 1970
	NS   int64  // monotonic nanoseconds of the host, when the fact was complete
	Jail id.Jail

	// Whose doing it was. PID and TID are those inside the jail.
	PID, TID int32
	HostPID  int32
	Comm     string

	// Syscall. Path and To are what the path arguments said; Real is what the
	// kernel opened, where that differs.
	NR   int32
	Name string
	ABI  string // "" is the machine's own; "i386", "x32", "arm" else
	Args [6]uint64
	Ret  int64 // also of File: negative is -errno
	Dur  int64 // nanoseconds from entry to return
	Addr string

	// File, and the paths of Syscall.
	Op    string // also of Proc and Lineage; see the Op constants
	Path  string
	To    string // the second path of a rename or link
	Real  string
	Bytes int64 // also of Net
	Calls int64 // of which this is the sum; 0 is a record of one
	FD    int32 // -1 is none

	// Net. Addresses are "10.0.0.2:54321" and "[::1]:80"; without a port where
	// the protocol has none.
	Dir     string // "egress", "ingress", "loopback"
	Proto   string // "tcp", "udp", "icmp", "icmp6", "arp", or "ip-41", "eth-88cc"
	Src     string
	Dst     string
	Host    string // the name the jail asked for to get the other side's address
	Iface   string // as the jail calls it
	Packets int64  // of a flow; 0 in the record of one packet
	TCP     string // flags of the packet, or all of a flow: "SYN,ACK"
	Begin   int64  // of a flow: NS of its first packet. Of Proc: NS at which the process began

	// Proc.
	PPID     int32
	UID, GID uint32 // as inside the jail
	Exe      string
	Argv     []string
	Cwd      string
	Code     int32  // exit code
	Signal   string // that ended it, "SIGKILL"; "" if it exited
	UserNS   int64  // processor time it used, at exit; also of Usage
	SystemNS int64
	RSS      int64 // most memory it held, in bytes, at exit

	// Gap. Lost records were of Source, between the records before and after
	// this one; From and To narrow that to sequence numbers where those were
	// given and removed again.
	Source  Type
	Lost    int64 // -1 is unknown
	Reason  string
	From    uint64
	Through uint64

	// Usage, of the whole jail.
	CPU    int64 // nanoseconds since its start
	Memory int64
	PIDs   int64
	Disk   int64
	Rx, Tx int64

	// Lineage. The snapshot was taken of Parent when the last record in its log
	// had the number ParentSeq.
	Snapshot  id.Snapshot
	Parent    id.Jail
	ParentSeq uint64
}

// Operations on files.
const (
	OpOpen     = "open"
	OpCreate   = "create" // an open that made the file
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
	OpMmap     = "mmap" // shared and writable: from here on memory writes the file, unseen
	OpMount    = "mount"
	OpUnmount  = "unmount"
	OpChroot   = "chroot"
)

// What happens to processes. A thread's records carry the flag Thread.
const (
	OpFork = "fork"
	OpExec = "exec"
	OpExit = "exit"
)

// What snapshots have to do with a jail.
const (
	OpSnapshot = "snapshot" // one was taken of it; Parent is itself
	OpRestore  = "restore"  // it is a new jail made from one
	OpBranch   = "branch"   // it is one of several made from one
	OpRewind   = "rewind"   // it goes on from one of its own: what it did since is undone
)

// All operations, of files, of processes and with snapshots.
var (
	fileOps = []string{
		OpOpen, OpCreate, OpClose, OpRead, OpWrite, OpDelete, OpRename, OpTruncate, OpAllocate, OpMode, OpOwner,
		OpLink, OpSymlink, OpMkdir, OpMknod, OpTimes, OpXattr, OpMmap, OpMount, OpUnmount, OpChroot,
	}
	procOps    = []string{OpFork, OpExec, OpExit}
	lineageOps = []string{OpSnapshot, OpRestore, OpBranch, OpRewind}
)

// Directions of packets, as the jail sees them.
const (
	Egress   = "egress"
	Ingress  = "ingress"
	Loopback = "loopback" // inside the jail, recorded once
)
