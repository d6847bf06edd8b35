package syscalls

import (
	"golang.org/x/sys/unix"

	"glasshouse/observe/event"
)

// A Shape describes the arguments of a call. Arguments are counted from 1; 0 means none.
type Shape struct {
	Path, Dir   int8 // a path, and the descriptor of the directory it is relative to
	To, ToDir   int8 // the same for a second path
	FD, FD2     int8 // descriptors of the files that the call uses; data flows from the first to the second
	Addr, Len   int8 // a socket address and its length; Len is 0 in a msghdr
	AddrOut     bool // the address is written by the kernel, Len points to its length
	Message     bool // Addr is a struct msghdr
	ReturnsFile bool // the call returns the descriptor of the opened file
	Closes      bool // FD is closed by the call
	Execs       bool // a successful call replaces the memory with its arguments
	Moves       bool // paths of other files also change
	Length      int8 // the argument with the number of bytes of Op, if it is not the return value

	Op     string // the file operation, or "": see Operation
	Rename int8   // the argument with the flags of a rename
}

// Operation returns the file operation of a call with these arguments, or "".
func (s *Shape) Operation(args *[6]uint64) string {
	// The flags are an unsigned int (renameat2(2)).
	if s.Rename != 0 && args[s.Rename-1]&unix.RENAME_EXCHANGE != 0 {
		return event.OpExchange
	}
	return s.Op
}

// Shapes maps names, which have the same meaning on all architectures, to shapes.
var Shapes = map[string]Shape{
	"open":      {Path: 1, ReturnsFile: true, Op: event.OpOpen},
	"creat":     {Path: 1, ReturnsFile: true, Op: event.OpOpen},
	"openat":    {Dir: 1, Path: 2, ReturnsFile: true, Op: event.OpOpen},
	"openat2":   {Dir: 1, Path: 2, ReturnsFile: true, Op: event.OpOpen},
	"open_tree": {Dir: 1, Path: 2},
	"close":     {FD: 1, Closes: true, Op: event.OpClose},

	"read":       {FD: 1, Op: event.OpRead},
	"pread64":    {FD: 1, Op: event.OpRead},
	"readv":      {FD: 1, Op: event.OpRead},
	"preadv":     {FD: 1, Op: event.OpRead},
	"preadv2":    {FD: 1, Op: event.OpRead},
	"write":      {FD: 1, Op: event.OpWrite},
	"pwrite64":   {FD: 1, Op: event.OpWrite},
	"writev":     {FD: 1, Op: event.OpWrite},
	"pwritev":    {FD: 1, Op: event.OpWrite},
	"pwritev2":   {FD: 1, Op: event.OpWrite},
	"sendfile":   {FD: 2, FD2: 1, Op: event.OpRead},
	"sendfile64": {FD: 2, FD2: 1, Op: event.OpRead},
	"splice":     {FD: 1, FD2: 3, Op: event.OpRead},
	// The input descriptor also precedes the output descriptor.
	"copy_file_range": {FD: 1, FD2: 3, Op: event.OpRead},
	"vmsplice":        {FD: 1, Op: event.OpWrite},

	"mmap":  {FD: 5, Op: event.OpMmap},
	"mmap2": {FD: 5, Op: event.OpMmap},

	"truncate":    {Path: 1, Length: 2, Op: event.OpTruncate},
	"truncate64":  {Path: 1, Length: 2, Op: event.OpTruncate},
	"ftruncate":   {FD: 1, Length: 2, Op: event.OpTruncate},
	"ftruncate64": {FD: 1, Length: 2, Op: event.OpTruncate},
	"fallocate":   {FD: 1, Length: 4, Op: event.OpAllocate},

	"unlink":    {Path: 1, Moves: true, Op: event.OpDelete},
	"unlinkat":  {Dir: 1, Path: 2, Moves: true, Op: event.OpDelete},
	"rmdir":     {Path: 1, Moves: true, Op: event.OpDelete},
	"rename":    {Path: 1, To: 2, Moves: true, Op: event.OpRename},
	"renameat":  {Dir: 1, Path: 2, ToDir: 3, To: 4, Moves: true, Op: event.OpRename},
	"renameat2": {Dir: 1, Path: 2, ToDir: 3, To: 4, Moves: true, Op: event.OpRename, Rename: 5},
	"link":      {Path: 1, To: 2, Op: event.OpLink},
	"linkat":    {Dir: 1, Path: 2, ToDir: 3, To: 4, Op: event.OpLink},
	"symlink":   {To: 1, Path: 2, Op: event.OpSymlink},
	"symlinkat": {To: 1, Dir: 2, Path: 3, Op: event.OpSymlink},
	"mkdir":     {Path: 1, Op: event.OpMkdir},
	"mkdirat":   {Dir: 1, Path: 2, Op: event.OpMkdir},
	"mknod":     {Path: 1, Op: event.OpMknod},
	"mknodat":   {Dir: 1, Path: 2, Op: event.OpMknod},

	"chmod":     {Path: 1, Op: event.OpMode},
	"fchmod":    {FD: 1, Op: event.OpMode},
	"fchmodat":  {Dir: 1, Path: 2, Op: event.OpMode},
	"fchmodat2": {Dir: 1, Path: 2, Op: event.OpMode},
	"chown":     {Path: 1, Op: event.OpOwner},
	"chown32":   {Path: 1, Op: event.OpOwner},
	"lchown":    {Path: 1, Op: event.OpOwner},
	"lchown32":  {Path: 1, Op: event.OpOwner},
	"fchown":    {FD: 1, Op: event.OpOwner},
	"fchown32":  {FD: 1, Op: event.OpOwner},
	"fchownat":  {Dir: 1, Path: 2, Op: event.OpOwner},
	"utime":     {Path: 1, Op: event.OpTimes},
	"utimes":    {Path: 1, Op: event.OpTimes},
	"futimesat": {Dir: 1, Path: 2, Op: event.OpTimes},
	"utimensat": {Dir: 1, Path: 2, Op: event.OpTimes},

	"setxattr":     {Path: 1, Op: event.OpXattr},
	"lsetxattr":    {Path: 1, Op: event.OpXattr},
	"fsetxattr":    {FD: 1, Op: event.OpXattr},
	"setxattrat":   {Dir: 1, Path: 2, Op: event.OpXattr},
	"removexattr":  {Path: 1, Op: event.OpXattr},
	"lremovexattr": {Path: 1, Op: event.OpXattr},
	"fremovexattr": {FD: 1, Op: event.OpXattr},

	"mount":      {To: 1, Path: 2, Moves: true, Op: event.OpMount},
	"umount":     {Path: 1, Moves: true, Op: event.OpUnmount},
	"umount2":    {Path: 1, Moves: true, Op: event.OpUnmount},
	"move_mount": {Dir: 1, Path: 2, ToDir: 3, To: 4, Moves: true, Op: event.OpMount},
	"pivot_root": {Path: 1, To: 2, Moves: true, Op: event.OpChroot},
	"chroot":     {Path: 1, Moves: true, Op: event.OpChroot},

	// Paths without a file operation.
	"stat":              {Path: 1},
	"lstat":             {Path: 1},
	"stat64":            {Path: 1},
	"lstat64":           {Path: 1},
	"newfstatat":        {Dir: 1, Path: 2},
	"fstatat64":         {Dir: 1, Path: 2},
	"statx":             {Dir: 1, Path: 2},
	"statfs":            {Path: 1},
	"access":            {Path: 1},
	"faccessat":         {Dir: 1, Path: 2},
	"faccessat2":        {Dir: 1, Path: 2},
	"readlink":          {Path: 1},
	"readlinkat":        {Dir: 1, Path: 2},
	"chdir":             {Path: 1},
	"getxattr":          {Path: 1},
	"lgetxattr":         {Path: 1},
	"listxattr":         {Path: 1},
	"llistxattr":        {Path: 1},
	"inotify_add_watch": {Path: 2},
	"fanotify_mark":     {Dir: 4, Path: 5},
	"name_to_handle_at": {Dir: 1, Path: 2},
	"swapon":            {Path: 1},
	"swapoff":           {Path: 1},
	"acct":              {Path: 1},
	"quotactl":          {Path: 2},
	"memfd_create":      {Path: 1},
	"execve":            {Path: 1, Execs: true},
	"execveat":          {Dir: 1, Path: 2, Execs: true},
	// Restores the registers of the code that a signal interrupted.
	"rt_sigreturn": {Execs: true},
	"sigreturn":    {Execs: true},

	"connect":     {Addr: 2, Len: 3},
	"bind":        {Addr: 2, Len: 3},
	"sendto":      {Addr: 5, Len: 6},
	"sendmsg":     {Addr: 2, Message: true},
	"sendmmsg":    {Addr: 2, Message: true}, // the first message
	"accept":      {Addr: 2, Len: 3, AddrOut: true},
	"accept4":     {Addr: 2, Len: 3, AddrOut: true},
	"recvfrom":    {Addr: 5, Len: 6, AddrOut: true},
	"getsockname": {Addr: 2, Len: 3, AddrOut: true},
	"getpeername": {Addr: 2, Len: 3, AddrOut: true},
}
