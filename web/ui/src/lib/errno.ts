// The names of errors by number. The numbers are the same on all architectures that jails
// run on (include/uapi/asm-generic/errno.h).
const names =
  "EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT ENOTBLK EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP".split(
    " ",
  );
const others: Record<number, string> = {
  61: "ENODATA", 62: "ETIME", 71: "EPROTO", 75: "EOVERFLOW", 88: "ENOTSOCK", 90: "EMSGSIZE", 92: "ENOPROTOOPT", 93: "EPROTONOSUPPORT",
  95: "EOPNOTSUPP", 97: "EAFNOSUPPORT", 98: "EADDRINUSE", 99: "EADDRNOTAVAIL", 100: "ENETDOWN", 101: "ENETUNREACH", 103: "ECONNABORTED",
  104: "ECONNRESET", 106: "EISCONN", 107: "ENOTCONN", 110: "ETIMEDOUT", 111: "ECONNREFUSED", 113: "EHOSTUNREACH", 114: "EALREADY", 115: "EINPROGRESS",
  512: "ERESTARTSYS", 514: "ERESTARTNOHAND", 516: "ERESTART_RESTARTBLOCK",
};

// errno returns the name of the error that a system call returned, or "" if it succeeded.
export function errno(ret: number | null | undefined): string {
  if (ret == null || ret >= 0 || ret < -4095) return "";
  return names[-ret - 1] ?? others[-ret] ?? String(ret);
}
