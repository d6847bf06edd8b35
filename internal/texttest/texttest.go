// Package texttest checks functions that shorten text.
package texttest

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// CutsBetweenCharacters fails t if shorten cuts a long text inside a character, which
// leaves bytes that are not UTF-8, or does not shorten it. The texts consist of
// characters of three bytes. Whether shorten keeps the beginning or the end, one of the
// texts has each byte of a character at the cut.
func CutsBetweenCharacters(t *testing.T, name string, shorten func(string) string) {
	t.Helper()
	for _, shift := range []string{"", "x", "xx"} {
		long := shift + strings.Repeat("世", 20000) + shift
		got := shorten(long)
		if !utf8.ValidString(got) || strings.ContainsRune(got, utf8.RuneError) || len(got) >= len(long) {
			t.Errorf("%s of a text of %d bytes is %d bytes from %q to %q, want a shorter text of whole characters",
				name, len(long), len(got), got[:min(8, len(got))], got[max(0, len(got)-8):])
		}
	}
}
