package wasm

import (
	"testing"

	"glasshouse/internal/texttest"
)

func TestLongTextIsCutBetweenCharacters(t *testing.T) {
	texttest.CutsBetweenCharacters(t, "beginning", func(s string) string { return beginning([]byte(s)) })
}
