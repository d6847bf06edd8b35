package test_test

import (
	"os"
	"path/filepath"
	"testing"
)

// newcomer starts a daemon with the default root filesystem for a reader with an empty home directory.
func newcomer(t *testing.T, config string, args ...string) (*daemonHarness, reader) {
	t.Helper()
	dataDir, data := debian(t), t.TempDir()
	if err := shareImages(dataDir, data); err != nil {
		t.Fatal(err)
	}
	h := openAt(t, data, tools()+"pool: {size: 0}\nrootfs: {default: {debian: bookworm}}\n"+config, args...)
	return h, h.newReader(t)
}

// newReader returns a reader with an empty home directory, who uses the data directory of the
// harness.
func (h *daemonHarness) newReader(t *testing.T) reader {
	t.Helper()
	home := shortTemp(t)
	return reader{home, []string{
		"HOME=" + home, "GLASSHOUSE_DATA=" + h.data, "PATH=" + filepath.Dir(h.bin) + ":" + os.Getenv("PATH"),
		// Packages are downloaded once for all tests.
		"npm_config_cache=" + filepath.Join(os.Getenv("HOME"), ".npm"), "npm_config_prefer_offline=true", "npm_config_update_notifier=false",
	}}
}

// TestDocumentedCommands runs all commands of docs/tutorials/capability.md, from a
// script to a signed and installed capability, and compares the output.
func TestDocumentedCommands(t *testing.T) {
	all := lessons(t, "../docs/tutorials/capability.md", "From a script to a signed, installed capability")
	if len(all) < 10 {
		t.Fatalf("got %d commands, want at least 10", len(all))
	}
	_, r := newcomer(t, "")
	f := follows(t, r)
	for _, l := range all {
		f.follow(l)
	}
}
