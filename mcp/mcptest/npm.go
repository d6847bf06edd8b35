// Package mcptest has a server of others for tests to import: one that is published.
package mcptest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

const (
	npmServer  = "@modelcontextprotocol/server-filesystem"
	npmVersion = "2026.8.31"

	// Program is the server's, below the directory where it is installed.
	Program = "node_modules/" + npmServer + "/dist/index.js"
)

// npm runs npm without what it does beside its work.
func npm(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "npm", append(args, "--no-audit", "--no-fund", "--no-update-notifier", "--ignore-scripts", "--loglevel=error")...)
	cmd.WaitDelay = time.Second
	return cmd.CombinedOutput()
}

// Install returns where the published server is installed, once on each machine. Where
// there is no npm, or it reaches no registry, the test is skipped.
func Install(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("there is no npm on this host")
	}
	data := os.Getenv("GLASSHOUSE_DATA")
	if data == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			cache = t.TempDir()
		}
		data = filepath.Join(cache, "glasshouse")
	}
	dir := filepath.Join(data, "test", "mcp-server-filesystem-"+npmVersion)
	program := filepath.Join(dir, Program)
	if _, err := os.Stat(program); err == nil {
		return dir
	}

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if out, err := npm(ctx, "view", npmServer+"@"+npmVersion, "version"); err != nil {
		t.Skipf("the registry of npm does not answer: %v\n%s", err, out)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	fresh, err := os.MkdirTemp(filepath.Dir(dir), ".installing-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(fresh)
	for attempt := 1; ; attempt++ {
		out, err := npm(ctx, "install", "--no-save", "--prefix", fresh, npmServer+"@"+npmVersion)
		if err == nil {
			break
		}
		if attempt == 3 {
			t.Fatalf("npm install: %v\n%s", err, out)
		}
	}
	if err := os.Rename(fresh, dir); err != nil {
		if _, there := os.Stat(program); there != nil { // nobody else was faster
			t.Fatal(err)
		}
	}
	return dir
}
