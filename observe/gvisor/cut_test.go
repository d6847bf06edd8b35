package gvisor

import (
	"testing"

	"glasshouse/internal/texttest"
)

func TestTextIsTruncatedAtCharacterBoundary(t *testing.T) {
	texttest.CutsBetweenCharacters(t, "short", func(s string) string { return string(short([]byte(s))) })
}
