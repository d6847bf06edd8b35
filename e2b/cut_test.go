package e2b

import (
	"testing"

	"glasshouse/internal/texttest"
)

func TestLongTextIsTruncatedAtCharacter(t *testing.T) {
	texttest.CutsBetweenCharacters(t, "short", short)
}
