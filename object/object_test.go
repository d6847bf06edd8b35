package object_test

import (
	"path/filepath"
	"testing"

	"glasshouse/object"
)

func FuzzCheckKey(f *testing.F) {
	for _, key := range []string{"runs/r-1/s-2", "..", "a/../b", "/a", "a\x00", ".a"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if object.CheckKey(key) == nil && (!filepath.IsLocal(key) || filepath.Clean(key) != key) {
			t.Errorf("key %q is valid, but not the clean name of a file below a directory", key)
		}
	})
}
