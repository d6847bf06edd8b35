package policy

import (
	"strings"
	"testing"
)

// A cut inside a character is shown as \xe4, which is not in the file.
func TestLongTextIsCutBetweenCharacters(t *testing.T) {
	long := "x" + strings.Repeat("世", 100)
	for name, s := range map[string]string{"long": long, "shifted": long[1:], "shifted by two": "x" + long} {
		if got := snippet(s); strings.Contains(got, `\x`) || len(got) > 30 {
			t.Errorf("snippet of the text %q is %s, want at most 30 bytes that end with a whole character", name, got)
		}
	}
}
