package protocol

import (
	"testing"

	"glasshouse/internal/texttest"
)

func TestLongTextIsCutBetweenCharacters(t *testing.T) {
	texttest.CutsBetweenCharacters(t, "plain", plain)
}
