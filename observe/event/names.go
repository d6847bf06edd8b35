package event

import (
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// The restart errors of the kernel (include/linux/errno.h). Programs do not see them, but an
// observer at the end of a call does. Whether the call is restarted is decided afterwards,
// when signals are delivered.
var innerErrnos = map[int64]string{
	512: "ERESTARTSYS",
	513: "ERESTARTNOINTR",
	514: "ERESTARTNOHAND",
	515: "ENOIOCTLCMD",
	516: "ERESTART_RESTARTBLOCK",
	517: "EPROBE_DEFER",
	524: "ENOTSUPP",
}

// ErrnoName returns the error name of a return value, such as "EPERM" for -1, or "" if it has
// no name.
func ErrnoName(ret int64) string {
	// The kernel returns errors as -MAX_ERRNO, -4095, to -1 (include/linux/err.h).
	switch {
	case ret >= 0 || ret < -4095:
		return ""
	case ret == -int64(unix.EOPNOTSUPP):
		return "EOPNOTSUPP" // the kernel's name; ENOTSUP is an alias of the C library
	case ret <= -512:
		return innerErrnos[-ret]
	}
	return unix.ErrnoName(syscall.Errno(-ret))
}

// errnos maps all names, including aliases, to return values.
var errnos = sync.OnceValue(func() map[string]int64 {
	m := map[string]int64{
		"EWOULDBLOCK": -int64(unix.EWOULDBLOCK),
		"EDEADLOCK":   -int64(unix.EDEADLOCK),
		"ENOTSUP":     -int64(unix.ENOTSUP),
	}
	for ret := int64(-1); ret >= -4095; ret-- {
		if name := ErrnoName(ret); name != "" {
			m[name] = ret
		}
	}
	return m
})

// SignalName returns the name of a signal, such as "SIGKILL" for 9, or "" if the number is
// invalid. Real-time signals have no names; they are counted from 32, the kernel's first:
// "SIGRT_0" to "SIGRT_32". C libraries reserve some of them and begin later (signal(7)).
func SignalName(n int) string {
	if 32 <= n && n <= 64 {
		return "SIGRT_" + strconv.Itoa(n-32)
	}
	return unix.SignalName(syscall.Signal(n))
}

// signalNamed returns the full name of a signal given as "SIGKILL", "kill" or "9", or "".
func signalNamed(s string) string {
	if n, err := strconv.Atoi(s); err == nil {
		return SignalName(n)
	}
	s = strings.ToUpper(s)
	if !strings.HasPrefix(s, "SIG") {
		s = "SIG" + s
	}
	for n := 1; n <= 64; n++ {
		if SignalName(n) == s {
			return s
		}
	}
	return ""
}
