package e2b

import (
	"testing"

	"glasshouse/internal/texttest"
)

func TestLongTextIsCutBetweenCharacters(t *testing.T) {
	texttest.CutsBetweenCharacters(t, "short", short)
}
