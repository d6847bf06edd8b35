package test_test

import (
	"os"
	"testing"
)

// thorough makes tests run long parts and more repetitions.
var thorough = os.Getenv("GLASSHOUSE_TEST") == "all"

// onlyThorough skips a test that takes long, unless the tests are thorough.
func onlyThorough(t *testing.T) {
	t.Helper()
	if !thorough {
		t.Skip("takes long: runs with GLASSHOUSE_TEST=all")
	}
}

// shortTemp is t.TempDir with permissions that let jails pass, and with a path that leaves room
// for the name of a socket: sun_path has 108 bytes, including the final null (unix(7)).
func shortTemp(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gh-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
