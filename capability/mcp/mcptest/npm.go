// Package mcptest installs published programs for tests, such as an MCP server, and keeps
// them in a cache.
package mcptest

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

const (
	npmServer  = "@modelcontextprotocol/server-filesystem"
	npmVersion = "2026.8.31"

	// Program is the server's, below the directory where it is installed.
	Program = "node_modules/" + npmServer + "/dist/index.js"
)

// npm runs npm without update checks, audits and telemetry.
func npm(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "npm", append(args, "--no-audit", "--no-fund", "--no-update-notifier", "--ignore-scripts", "--loglevel=error")...)
	cmd.WaitDelay = time.Second
	return cmd.CombinedOutput()
}

// Install returns where the published server is installed, once on each machine. Where
// there is no npm, or it reaches no registry, the test is skipped.
func Install(t *testing.T) string {
	t.Helper()
	return install(t, "mcp-server-filesystem-"+npmVersion, Program, npmServer+"@"+npmVersion)
}

const (
	suite        = "@modelcontextprotocol/conformance"
	suiteVersion = "0.1.16"
	suiteProgram = "node_modules/" + suite + "/dist/index.js"

	// nodeVersion is of the package node-linux-ARCH, which is Node itself.
	nodeVersion = "22.23.3"
)

// Suite returns the command of the protocol's conformance suite, without arguments. It is
// installed as Install does. The suite needs Node 22: where the host has an older one, that
// is installed with it.
func Suite(t *testing.T) []string {
	t.Helper()
	packages, node := []string{suite + "@" + suiteVersion}, "node"
	dir := "mcp-conformance-" + suiteVersion
	if exec.Command("node", "-e", "process.exit(require('fs').globSync ? 0 : 1)").Run() != nil {
		arch := map[string]string{"amd64": "x64"}[runtime.GOARCH]
		bundled := "node-linux-" + cmp.Or(arch, runtime.GOARCH)
		packages, dir = append(packages, bundled+"@"+nodeVersion), dir+"-node-"+nodeVersion
		node = "node_modules/" + bundled + "/bin/node"
	}
	root := install(t, dir, suiteProgram, packages...)
	if node != "node" {
		node = filepath.Join(root, node)
	}
	return []string{node, filepath.Join(root, suiteProgram)}
}

// install installs packages in a directory of the cache for tests, unless they are there
// already.
func install(t *testing.T, name, program string, packages ...string) string {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("there is no npm on this host")
	}
	return Cached(t, name, program, func(dir string) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		if out, err := npm(ctx, "view", packages[0], "version"); err != nil {
			t.Skipf("the registry of npm does not answer: %v\n%s", err, out)
		}
		for attempt := 1; ; attempt++ {
			out, err := npm(ctx, append([]string{"install", "--no-save", "--prefix", dir}, packages...)...)
			if err == nil {
				return
			}
			if attempt == 3 {
				t.Fatalf("npm install: %v\n%s", err, out)
			}
		}
	})
}

// Cached returns the directory with this name in the cache for tests, which later runs on
// this machine find again. If it lacks the file, fill makes the content of the directory,
// in another place that is renamed then. Processes may do that at the same time. The name
// must contain the versions of the content.
func Cached(t *testing.T, name, file string, fill func(dir string)) string {
	t.Helper()
	data := os.Getenv("GLASSHOUSE_DATA")
	if data == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			cache = t.TempDir()
		}
		data = filepath.Join(cache, "glasshouse")
	}
	dir := filepath.Join(data, "test", name)
	file = filepath.Join(dir, file)
	if _, err := os.Stat(file); err == nil {
		return dir
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	fresh, err := os.MkdirTemp(filepath.Dir(dir), ".installing-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(fresh)
	if err := os.Chmod(fresh, 0o755); err != nil {
		t.Fatal(err)
	}
	fill(fresh)
	if err := os.Rename(fresh, dir); err != nil {
		if _, there := os.Stat(file); there != nil { // no other process has made it first
			t.Fatal(err)
		}
	}
	return dir
}
