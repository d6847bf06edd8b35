package jailinit

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jailinit/protocol"
)

// A program that the bpf security module refuses is an error of the request, not
// an internal error. No other test gets EPERM of execve without such a kernel.
func TestAProgramThatASecurityModuleRefuses(t *testing.T) {
	err := refused(unix.EPERM, &protocol.Exec{Argv: []string{"chmod", "600", "x"}}, "/", "/usr/bin/chmod")
	if fault.KindOf(err) != fault.Invalid || fault.FieldOf(err) != "argv" || !strings.Contains(err.Error(), `exec: "chmod": operation not permitted`) {
		t.Errorf("EPERM of execve: %v (kind %v, field %q), want an invalid argv", err, fault.KindOf(err), fault.FieldOf(err))
	}
}
