package protocol

import (
	"testing"

	"glasshouse/internal/texttest"
)

func TestPlainTruncatesBetweenCharacters(t *testing.T) {
	texttest.CutsBetweenCharacters(t, "plain", plain)
}
