package ptrace_test

import (
	"testing"

	"glasshouse/observe/ptrace"
)

// A process can choose a name that looks like other fields of the file.
func FuzzParseStatus(f *testing.F) {
	f.Add([]byte("Name:\tsh\nState:\tS (sleeping)\nTgid:\t1\nPPid:\t0\nUid:\t0\t0\t0\t0\nNSpid:\t7\t1\nNStgid:\t7\t1\nVmHWM:\t 12 kB\n"))
	f.Add([]byte("Tgid:\nState:\n"))
	f.Fuzz(func(t *testing.T, b []byte) { ptrace.ParseStatus(b) })
}
