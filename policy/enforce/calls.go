package enforce

import (
	"golang.org/x/sys/unix"
)

// An edit describes the arguments of a call that changes files.
type edit struct {
	names  []nameArg
	opens  bool   // it returns a descriptor
	flags  int    // index of the argument with the open flags; -1: see how
	how    int    // index of the argument that points to a struct open_how, or -1
	effect effect // effect on the last name
}

// nameArg is one name argument: the index of its directory descriptor, or -1 for the working
// directory, the index of the name, and whether a link at its end is followed.
type nameArg struct {
	dir, name int
	follow    bool
}

// effect is the effect of a call on its names.
type effect int

const (
	writes  effect = iota // the content changes
	creates               // a file is created
	removes               // the file is removed
	moves                 // the first name's file has the second name
	links                 // the second name becomes a hard link to the file of the first
)

const (
	cwd        = -1
	creatFlags = -2 // value of flags: the implicit flags of creat(2)
)

// calls lists the intercepted system calls by number.
var calls = struct {
	exec      map[int32]bool
	connect   map[int32]bool
	forbidden map[int32]bool
	edits     map[int32]edit
	execveat  int32
}{
	exec:      map[int32]bool{unix.SYS_EXECVE: true, unix.SYS_EXECVEAT: true},
	connect:   map[int32]bool{unix.SYS_CONNECT: true, unix.SYS_SENDTO: true, unix.SYS_SENDMSG: true, unix.SYS_SENDMMSG: true},
	forbidden: map[int32]bool{unix.SYS_PTRACE: true, unix.SYS_PROCESS_VM_WRITEV: true},
	execveat:  unix.SYS_EXECVEAT,
	edits: merged(map[int32]edit{
		unix.SYS_OPENAT:    {names: []nameArg{{0, 1, true}}, opens: true, flags: 2, how: -1},
		unix.SYS_OPENAT2:   {names: []nameArg{{0, 1, true}}, opens: true, flags: -1, how: 2},
		unix.SYS_TRUNCATE:  {names: []nameArg{{cwd, 0, true}}},
		unix.SYS_UNLINKAT:  {names: []nameArg{{0, 1, false}}, effect: removes},
		unix.SYS_RENAMEAT2: {names: []nameArg{{0, 1, false}, {2, 3, false}}, effect: moves},
		unix.SYS_LINKAT:    {names: []nameArg{{0, 1, false}, {2, 3, false}}, effect: links},
		unix.SYS_MKDIRAT:   {names: []nameArg{{0, 1, false}}, effect: creates},
		unix.SYS_MKNODAT:   {names: []nameArg{{0, 1, false}}, effect: creates},
		unix.SYS_SYMLINKAT: {names: []nameArg{{1, 2, false}}, effect: creates},
		unix.SYS_RENAMEAT:  {names: []nameArg{{0, 1, false}, {2, 3, false}}, effect: moves},
	}, legacyCalls),
}

func merged(all, more map[int32]edit) map[int32]edit {
	for nr, e := range more {
		all[nr] = e
	}
	return all
}

// callName returns the name of a call.
func callName(nr int32) string {
	if name, ok := names[nr]; ok {
		return name
	}
	return legacyNames[nr]
}

var names = map[int32]string{
	unix.SYS_OPENAT: "openat", unix.SYS_OPENAT2: "openat2", unix.SYS_TRUNCATE: "truncate", unix.SYS_UNLINKAT: "unlinkat",
	unix.SYS_RENAMEAT2: "renameat2", unix.SYS_RENAMEAT: "renameat", unix.SYS_LINKAT: "linkat", unix.SYS_MKDIRAT: "mkdirat",
	unix.SYS_MKNODAT: "mknodat", unix.SYS_SYMLINKAT: "symlinkat", unix.SYS_CONNECT: "connect", unix.SYS_SENDTO: "sendto",
	unix.SYS_SENDMSG: "sendmsg", unix.SYS_SENDMMSG: "sendmmsg",
}
