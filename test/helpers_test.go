package test_test

import (
	"os"
	"testing"
)

// thorough has the tests do what takes long, and repeats.
var thorough = os.Getenv("GLASSHOUSE_TEST") == "all"

// onlyThorough skips a test unless the tests are thorough.
func onlyThorough(t *testing.T) {
	t.Helper()
	if !thorough {
		t.Skip("takes long: runs with GLASSHOUSE_TEST=all")
	}
}

// shortTemp is t.TempDir where jails may pass and names leave room for a
// socket's, which has at most 107 bytes.
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
