package template

import (
	"testing"

	"glasshouse/internal/texttest"
)

func TestLongTextIsCutBetweenCharacters(t *testing.T) {
	texttest.CutsBetweenCharacters(t, "short", short)
}
