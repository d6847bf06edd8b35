package jailfs

import (
	"testing"

	"glasshouse/internal/texttest"
)

func TestLongPathIsTruncatedAtCharacter(t *testing.T) {
	texttest.CutsBetweenCharacters(t, "the path in an error", func(name string) string {
		_, err := (&packer{ctx: t.Context()}).entry(-1, "", name)
		if err == nil {
			t.Fatalf("a path of %d bytes is packed, want an error", len(name))
		}
		return err.Error()
	})
	texttest.CutsBetweenCharacters(t, "a name in an archive", func(name string) string {
		_, err := entryName("name", name+"/..")
		if err == nil {
			t.Fatal(`a name with ".." is accepted, want an error`)
		}
		return err.Error()
	})
}
