package jailinit

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail/init/protocol"
)

// A program that a security module denies is an error of the request, not an internal error.
// Without such a kernel no other test gets EPERM from execve(2).
func TestExecDeniedBySecurityModule(t *testing.T) {
	err := explainExecError(unix.EPERM, &protocol.Exec{Argv: []string{"chmod", "600", "x"}}, "/", "/usr/bin/chmod")
	if fault.KindOf(err) != fault.Invalid || fault.FieldOf(err) != "argv" || !strings.Contains(err.Error(), `exec: "chmod": operation not permitted`) {
		t.Errorf("explainExecError(EPERM) = %v (kind %v, field %q), want an invalid argv", err, fault.KindOf(err), fault.FieldOf(err))
	}
}
