package event_test

import (
	"testing"

	"glasshouse/observe/event"
)

func TestErrnoName(t *testing.T) {
	for ret, want := range map[int64]string{
		-1: "EPERM", -2: "ENOENT", -11: "EAGAIN", -95: "EOPNOTSUPP", -512: "ERESTARTSYS", -516: "ERESTART_RESTARTBLOCK",
		0: "", 1: "", 13: "", -41: "", -4095: "", -4096: "", -1 << 63: "",
	} {
		if got := event.ErrnoName(ret); got != want {
			t.Errorf("ErrnoName(%d) = %q, want %q", ret, got, want)
		}
	}
}

func TestSignalName(t *testing.T) {
	for n, want := range map[int]string{1: "SIGHUP", 9: "SIGKILL", 31: "SIGSYS", 32: "SIGRT_0", 64: "SIGRT_32", 0: "", -1: "", 65: ""} {
		if got := event.SignalName(n); got != want {
			t.Errorf("SignalName(%d) = %q, want %q", n, got, want)
		}
	}
}
