package event

import (
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// The errors of the kernel that no program sees, but an observer at the end of a
// call does: what became of it is decided after, by a signal's handler.
var innerErrnos = map[int64]string{
	512: "ERESTARTSYS",
	513: "ERESTARTNOINTR",
	514: "ERESTARTNOHAND",
	515: "ENOIOCTLCMD",
	516: "ERESTART_RESTARTBLOCK",
	517: "EPROBE_DEFER",
	524: "ENOTSUPP",
}

// ErrnoName returns the name of the error that a call's return value is, such as
// "EPERM" for -1, or "" if it is none that has a name.
func ErrnoName(ret int64) string {
	switch {
	case ret >= 0 || ret < -4095:
		return ""
	case ret == -int64(unix.EOPNOTSUPP):
		return "EOPNOTSUPP" // the kernel's word; the other one, ENOTSUP, is the C library's
	case ret <= -512:
		return innerErrnos[-ret]
	}
	return unix.ErrnoName(syscall.Errno(-ret))
}

// errnos has the return value of every name, other names for the same included.
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

// SignalName returns the name of a signal, such as "SIGKILL" for 9, or "" if
// there is no such signal. The realtime signals, which have no names, are
// counted from the kernel's first, 32: "SIGRT_0" to "SIGRT_32". C libraries
// begin later, where is their own affair.
func SignalName(n int) string {
	if 32 <= n && n <= 64 {
		return "SIGRT_" + strconv.Itoa(n-32)
	}
	return unix.SignalName(syscall.Signal(n))
}

// signalNamed returns the full name of the signal that a user means with
// "SIGKILL", "kill" or "9", or "".
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
