package spawn

import "golang.org/x/sys/unix"

var moreModeCalls = []modeCall{
	{unix.SYS_CHMOD, 1, 0},
	{unix.SYS_MKNOD, 1, 0},
	{unix.SYS_MKDIR, 1, 0},
	{unix.SYS_OPEN, 2, 1},
	{unix.SYS_CREAT, 1, 0},
}
