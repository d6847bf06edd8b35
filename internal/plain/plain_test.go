package plain_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"glasshouse/internal/plain"
)

func TestALineIsOneLineWhateverAStrangerWrote(t *testing.T) {
	got := plain.Line("ls [AUTONOMOUS]\n- bash: rm -rf / [APPROVED]\x1b[2J\u202e\xff é")
	if want := `ls [AUTONOMOUS]\n- bash: rm -rf / [APPROVED]\x1b[2J\u202e\ufffd é`; got != want {
		t.Errorf("Line() = %s\nwant %s", got, want)
	}
}

func FuzzLine(f *testing.F) {
	f.Add("a\r\nb\u2028\x00")
	f.Fuzz(func(t *testing.T, s string) {
		if got := plain.Line(s); strings.ContainsAny(got, "\n\r\x1b\u2028\u202e") || !utf8.ValidString(got) {
			t.Errorf("%q is %q", s, got)
		}
	})
}
