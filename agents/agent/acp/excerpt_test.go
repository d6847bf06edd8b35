package acp

import (
	"strings"
	"testing"
)

// A cut inside a rune would be quoted as \xe4, which the agent did not send.
func TestExcerptCutsAtRuneBoundaries(t *testing.T) {
	long := "x" + strings.Repeat("世", 100)
	for name, s := range map[string]string{"long": long, "shifted": long[1:], "shifted by two": "x" + long} {
		if got := excerpt([]byte(s)); strings.Contains(got, `\x`) || len(got) > 130 {
			t.Errorf("excerpt of the text %q is %s, want at most 130 bytes that end at a rune boundary", name, got)
		}
	}
}
