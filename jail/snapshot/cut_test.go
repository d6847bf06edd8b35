package snapshot

import (
	"testing"

	"glasshouse/internal/texttest"
)

func TestLongTextIsClippedAtRunes(t *testing.T) {
	texttest.CutsBetweenCharacters(t, "told", func(s string) string { return string(*envValue(s, false)) })
	texttest.CutsBetweenCharacters(t, "trigger", func(s string) string { return trigger([]string{s}) })
}
