// Package event defines the event record: one observed system call, file operation, packet or
// process change. Logs and readers use its JSON form, one object per line.
package event

//go:generate go run gen.go

import "slices"

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

// File operations.
const (
	OpOpen     = "open"
	OpCreate   = "create" // an open that created the file
	OpClose    = "close"
	OpRead     = "read"
	OpWrite    = "write"
	OpDelete   = "delete"
	OpRename   = "rename"
	OpExchange = "exchange" // two files exchanged their paths
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
	OpMove     = "move"     // the jail continues on another node of the fleet, with its log
)

// The operations on files, processes and snapshots.
var (
	fileOps = []string{
		OpOpen, OpCreate, OpClose, OpRead, OpWrite, OpDelete, OpRename, OpExchange, OpTruncate, OpAllocate, OpMode, OpOwner,
		OpLink, OpSymlink, OpMkdir, OpMknod, OpTimes, OpXattr, OpMmap, OpMount, OpUnmount, OpChroot,
	}
	procOps    = []string{OpFork, OpExec, OpExit}
	lineageOps = []string{OpSnapshot, OpRestore, OpBranch, OpRewind, OpMove}
)

// IsFileOperation reports whether op is an operation on files.
func IsFileOperation(op string) bool { return slices.Contains(fileOps, op) }

// Directions of packets from the jail's perspective.
const (
	Egress   = "egress"
	Ingress  = "ingress"
	Loopback = "loopback" // inside the jail; recorded once
)
