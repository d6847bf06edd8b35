package probe

import (
	"testing"

	"glasshouse/internal/texttest"
)

func TestTextIsTruncatedAtCharacterBoundary(t *testing.T) {
	texttest.CutsBetweenCharacters(t, "firstWords", func(s string) string { return firstWords([]byte(s)) })
}
