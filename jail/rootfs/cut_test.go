package rootfs

import (
	"testing"

	"glasshouse/internal/texttest"
)

func TestLongTextIsTruncatedAtCharacter(t *testing.T) {
	texttest.CutsBetweenCharacters(t, "short", short)
}
