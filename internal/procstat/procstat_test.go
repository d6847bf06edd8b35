package procstat

import (
	"os"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	s, err := Read(os.Getpid())
	if err != nil || s.Parent != os.Getppid() || s.Threads < 1 || s.Start == 0 || s.State == 0 {
		t.Errorf("Read of this process = %+v, %v; its parent is %d", s, err, os.Getppid())
	}
	id, err := Identify(os.Getpid())
	if err != nil || id.PID != os.Getpid() || id.Start != s.Start || len(id.Boot) != 36 {
		t.Errorf("Identify of this process = %+v, %v; its start is %d", id, err, s.Start)
	}
}

func TestParseWithAnyProgramName(t *testing.T) {
	got, err := Parse([]byte("1 (a) R 1 (b) S 7 1 1 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 5 0 77 1 1"))
	want := Stat{Comm: "a) R 1 (b", State: 'S', Parent: 7, Session: 1, User: 10, System: 20, Children: 70, Threads: 5, Start: 77}
	if err != nil || got != want {
		t.Errorf("Parse = %+v, %v, want %+v", got, err, want)
	}
}

func TestParseRejectsOtherText(t *testing.T) {
	for _, text := range []string{"", "1 (a", "1 )a( S 7", "1 (a) S 7", "1 (a) S x 1 1 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 5 0 77 1 1"} {
		if s, err := Parse([]byte(text)); err == nil {
			t.Errorf("Parse(%q) = %+v, want an error", text, s)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("1 (a) b) c) S 0 1 1 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 77 1 1"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := Parse(b); err == nil && !strings.Contains(string(b), "("+s.Comm+")") {
			t.Errorf("the name in %q is parsed as %q", b, s.Comm)
		}
	})
}
