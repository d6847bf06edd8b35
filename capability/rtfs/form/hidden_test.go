package form_test

import (
	"strings"
	"testing"

	"glasshouse/capability/rtfs/form"
)

// The line of a program that an error shows must not drive the terminal or change its direction.
func TestErrorsShowNoHiddenCharacters(t *testing.T) {
	for _, hidden := range []string{"\u009b2J", "\u202e", "\u200b"} {
		_, err := form.Read("a.rtfs", []byte(`"`+hidden+`" 12x`))
		if err == nil {
			t.Fatalf("reading the number 12x after %q: no error, want one", hidden)
		}
		if strings.Contains(err.Error(), hidden) {
			t.Errorf("the error shows %q, want it without %q", err, hidden)
		}
	}
}
