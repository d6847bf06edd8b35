package engine

import (
	"strings"
	"testing"
)

func TestLogEndCutsNoWord(t *testing.T) {
	for _, tt := range []struct {
		log   string
		limit int
		cut   bool
		want  string
	}{
		{"all of it\n", 100, false, "all of it\n"},
		{"secret-value\nlast line\n", 15, false, "…last line\n"},
		{"first secret-value second", 16, false, "…second"},
		{"one-long-secret-value", 10, false, "…"},
		{"value\nrest", 100, true, "…rest"},
		{"", 100, true, "…"},
		{"\xff", 100, false, "�"},
	} {
		if got := LogEnd([]byte(tt.log), tt.limit, tt.cut); got != tt.want {
			t.Errorf("LogEnd(%q, %d, %t) = %q, want %q", tt.log, tt.limit, tt.cut, got, tt.want)
		}
		if got := LogEnd([]byte(strings.Repeat("x", 50)+tt.log), len(tt.log), false); strings.HasPrefix(got, "x") {
			t.Errorf("LogEnd of a longer text = %q, want it to begin after a word", got)
		}
	}
}
