package wasi

import (
	"errors"

	"golang.org/x/sys/unix"
)

// An errno is an error number of preview 1. The numbers differ from those of Linux.
type errno uint32

const (
	eOK          errno = 0
	eAcces       errno = 2
	eBadf        errno = 8
	eDquot       errno = 19
	eExist       errno = 20
	eFault       errno = 21
	eIlseq       errno = 25
	eIntr        errno = 27
	eInval       errno = 28
	eIo          errno = 29
	eIsdir       errno = 31
	eMfile       errno = 33
	eNametoolong errno = 37
	eNotdir      errno = 54
	eNotsock     errno = 57
	eNotsup      errno = 58
	ePerm        errno = 63
	eRofs        errno = 69
	eSpipe       errno = 70
	eXdev        errno = 75
)

// numbers maps the error numbers of Linux to those of preview 1.
var numbers = map[unix.Errno]errno{
	unix.E2BIG: 1, unix.EACCES: 2, unix.EADDRINUSE: 3, unix.EADDRNOTAVAIL: 4, unix.EAFNOSUPPORT: 5, unix.EAGAIN: 6, unix.EALREADY: 7,
	unix.EBADF: 8, unix.EBADMSG: 9, unix.EBUSY: 10, unix.ECANCELED: 11, unix.ECHILD: 12, unix.ECONNABORTED: 13, unix.ECONNREFUSED: 14,
	unix.ECONNRESET: 15, unix.EDEADLK: 16, unix.EDESTADDRREQ: 17, unix.EDOM: 18, unix.EDQUOT: 19, unix.EEXIST: 20, unix.EFAULT: 21,
	unix.EFBIG: 22, unix.EHOSTUNREACH: 23, unix.EIDRM: 24, unix.EILSEQ: 25, unix.EINPROGRESS: 26, unix.EINTR: 27, unix.EINVAL: 28,
	unix.EIO: 29, unix.EISCONN: 30, unix.EISDIR: 31, unix.ELOOP: 32, unix.EMFILE: 33, unix.EMLINK: 34, unix.EMSGSIZE: 35,
	unix.EMULTIHOP: 36, unix.ENAMETOOLONG: 37, unix.ENETDOWN: 38, unix.ENETRESET: 39, unix.ENETUNREACH: 40, unix.ENFILE: 41,
	unix.ENOBUFS: 42, unix.ENODEV: 43, unix.ENOENT: 44, unix.ENOEXEC: 45, unix.ENOLCK: 46, unix.ENOLINK: 47, unix.ENOMEM: 48,
	unix.ENOMSG: 49, unix.ENOPROTOOPT: 50, unix.ENOSPC: 51, unix.ENOSYS: 52, unix.ENOTCONN: 53, unix.ENOTDIR: 54, unix.ENOTEMPTY: 55,
	unix.ENOTRECOVERABLE: 56, unix.ENOTSOCK: 57, unix.ENOTSUP: 58, unix.ENOTTY: 59, unix.ENXIO: 60, unix.EOVERFLOW: 61,
	unix.EOWNERDEAD: 62, unix.EPERM: 63, unix.EPIPE: 64, unix.EPROTO: 65, unix.EPROTONOSUPPORT: 66, unix.EPROTOTYPE: 67, unix.ERANGE: 68,
	unix.EROFS: 69, unix.ESPIPE: 70, unix.ESRCH: 71, unix.ESTALE: 72, unix.ETIMEDOUT: 73, unix.ETXTBSY: 74, unix.EXDEV: 75,
}

// number returns the errno for the error of a system call.
func number(err error) errno {
	if err == nil {
		return eOK
	}
	if e, ok := errors.AsType[unix.Errno](err); ok {
		if n, ok := numbers[e]; ok {
			return n
		}
	}
	return eIo
}
