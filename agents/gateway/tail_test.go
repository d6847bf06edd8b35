package gateway

import (
	"testing"

	"glasshouse/internal/texttest"
)

func TestTailCutsBetweenCharacters(t *testing.T) {
	texttest.CutsBetweenCharacters(t, "tail", func(s string) string { return tail([]byte(s)) })
}
