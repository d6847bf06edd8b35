package enforce

import (
	"golang.org/x/sys/unix"
)

// An edit says where the arguments of a call that changes files are.
type edit struct {
	names  []named
	opens  bool // it returns a descriptor
	flags  int  // the argument with the flags of an open; -1: those are how
	how    int  // the argument that leads to a struct open_how, or -1
	change what // what it does to its last name
}

// named is one name: the directory it begins at, or -1 for the working
// directory, the name, and whether a link at its end is gone through.
type named struct {
	dir, name int
	follow    bool
}

// what a call does to the names it has.
type what int

const (
	writes  what = iota // the file is another afterwards
	makes               // something is there that was not
	removes             // nothing is there any more
	moves               // the first name's file has the second name
	links               // the first name's file has the second name too
)

const (
	cwd    = -1
	create = -2 // for flags: those of creat
)

// calls are what the filter asks about, by number.
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
	edits: with(map[int32]edit{
		unix.SYS_OPENAT:    {names: []named{{0, 1, true}}, opens: true, flags: 2, how: -1},
		unix.SYS_OPENAT2:   {names: []named{{0, 1, true}}, opens: true, flags: -1, how: 2},
		unix.SYS_TRUNCATE:  {names: []named{{cwd, 0, true}}},
		unix.SYS_UNLINKAT:  {names: []named{{0, 1, false}}, change: removes},
		unix.SYS_RENAMEAT2: {names: []named{{0, 1, false}, {2, 3, false}}, change: moves},
		unix.SYS_LINKAT:    {names: []named{{0, 1, false}, {2, 3, false}}, change: links},
		unix.SYS_MKDIRAT:   {names: []named{{0, 1, false}}, change: makes},
		unix.SYS_MKNODAT:   {names: []named{{0, 1, false}}, change: makes},
		unix.SYS_SYMLINKAT: {names: []named{{1, 2, false}}, change: makes},
		unix.SYS_RENAMEAT:  {names: []named{{0, 1, false}, {2, 3, false}}, change: moves},
	}, older),
}

func with(all, more map[int32]edit) map[int32]edit {
	for nr, e := range more {
		all[nr] = e
	}
	return all
}

// callName is a call as people know it.
func callName(nr int32) string {
	if name, ok := names[nr]; ok {
		return name
	}
	return olderNames[nr]
}

var names = map[int32]string{
	unix.SYS_OPENAT: "openat", unix.SYS_OPENAT2: "openat2", unix.SYS_TRUNCATE: "truncate", unix.SYS_UNLINKAT: "unlinkat",
	unix.SYS_RENAMEAT2: "renameat2", unix.SYS_RENAMEAT: "renameat", unix.SYS_LINKAT: "linkat", unix.SYS_MKDIRAT: "mkdirat",
	unix.SYS_MKNODAT: "mknodat", unix.SYS_SYMLINKAT: "symlinkat", unix.SYS_CONNECT: "connect", unix.SYS_SENDTO: "sendto",
	unix.SYS_SENDMSG: "sendmsg", unix.SYS_SENDMMSG: "sendmmsg",
}
