package enforce

import "golang.org/x/sys/unix"

// older are the calls that only this processor still has.
var older = map[int32]edit{
	unix.SYS_OPEN:    {names: []named{{cwd, 0, true}}, opens: true, flags: 1, how: -1},
	unix.SYS_CREAT:   {names: []named{{cwd, 0, true}}, opens: true, flags: create, how: -1},
	unix.SYS_UNLINK:  {names: []named{{cwd, 0, false}}, change: removes},
	unix.SYS_RMDIR:   {names: []named{{cwd, 0, false}}, change: removes},
	unix.SYS_RENAME:  {names: []named{{cwd, 0, false}, {cwd, 1, false}}, change: moves},
	unix.SYS_LINK:    {names: []named{{cwd, 0, false}, {cwd, 1, false}}, change: links},
	unix.SYS_MKDIR:   {names: []named{{cwd, 0, false}}, change: makes},
	unix.SYS_MKNOD:   {names: []named{{cwd, 0, false}}, change: makes},
	unix.SYS_SYMLINK: {names: []named{{cwd, 1, false}}, change: makes},
}

var olderNames = map[int32]string{
	unix.SYS_OPEN: "open", unix.SYS_CREAT: "creat", unix.SYS_UNLINK: "unlink", unix.SYS_RMDIR: "rmdir", unix.SYS_RENAME: "rename",
	unix.SYS_LINK: "link", unix.SYS_MKDIR: "mkdir", unix.SYS_MKNOD: "mknod", unix.SYS_SYMLINK: "symlink",
}
