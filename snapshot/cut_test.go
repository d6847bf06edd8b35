package snapshot

import (
	"testing"

	"glasshouse/internal/texttest"
)

func TestLongTextIsCutBetweenCharacters(t *testing.T) {
	texttest.CutsBetweenCharacters(t, "told", func(s string) string { return string(*told(s, false)) })
	texttest.CutsBetweenCharacters(t, "trigger", func(s string) string { return trigger([]string{s}) })
}
