package enforce

import "golang.org/x/sys/unix"

// legacyCalls are the calls that arm64 does not have.
var legacyCalls = map[int32]edit{
	unix.SYS_OPEN:    {names: []nameArg{{cwd, 0, true}}, opens: true, flags: 1, how: -1},
	unix.SYS_CREAT:   {names: []nameArg{{cwd, 0, true}}, opens: true, flags: creatFlags, how: -1},
	unix.SYS_UNLINK:  {names: []nameArg{{cwd, 0, false}}, effect: removes},
	unix.SYS_RMDIR:   {names: []nameArg{{cwd, 0, false}}, effect: removes},
	unix.SYS_RENAME:  {names: []nameArg{{cwd, 0, false}, {cwd, 1, false}}, effect: moves},
	unix.SYS_LINK:    {names: []nameArg{{cwd, 0, false}, {cwd, 1, false}}, effect: links},
	unix.SYS_MKDIR:   {names: []nameArg{{cwd, 0, false}}, effect: creates},
	unix.SYS_MKNOD:   {names: []nameArg{{cwd, 0, false}}, effect: creates},
	unix.SYS_SYMLINK: {names: []nameArg{{cwd, 1, false}}, effect: creates},
}

var legacyNames = map[int32]string{
	unix.SYS_OPEN: "open", unix.SYS_CREAT: "creat", unix.SYS_UNLINK: "unlink", unix.SYS_RMDIR: "rmdir", unix.SYS_RENAME: "rename",
	unix.SYS_LINK: "link", unix.SYS_MKDIR: "mkdir", unix.SYS_MKNOD: "mknod", unix.SYS_SYMLINK: "symlink",
}
