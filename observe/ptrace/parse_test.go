package ptrace_test

import (
	"testing"

	"glasshouse/observe/ptrace"
)

// A process can choose a name that looks like other fields of the file.
func TestParseStatWithUnusualNames(t *testing.T) {
	const rest = " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21\n"
	for _, name := range []string{"sh", "", ") Z (", "a b", "(((", ")))", "\n", "\xff\xfe"} {
		comm, state, err := ptrace.ParseStat([]byte("42 (" + name + ")" + rest))
		if err != nil || comm != name || state != 'S' {
			t.Errorf("name %q is parsed as %q in state %c, %v", name, comm, state, err)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("42 (sh) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21\n"))
	f.Add([]byte("42 (sh) R"))
	f.Fuzz(func(t *testing.T, b []byte) { ptrace.ParseStat(b) })
}

func FuzzParseStatus(f *testing.F) {
	f.Add([]byte("Name:\tsh\nState:\tS (sleeping)\nTgid:\t1\nPPid:\t0\nUid:\t0\t0\t0\t0\nNSpid:\t7\t1\nNStgid:\t7\t1\nVmHWM:\t 12 kB\n"))
	f.Add([]byte("Tgid:\nState:\n"))
	f.Fuzz(func(t *testing.T, b []byte) { ptrace.ParseStatus(b) })
}
