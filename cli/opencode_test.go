package cli_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"glasshouse/cli"
)

// openCodeInit runs glasshouse opencode init, and returns its exit code and output.
func openCodeInit(t *testing.T, args ...string) (int, string) {
	t.Helper()
	var out bytes.Buffer
	code := cli.Run(t.Context(), append([]string{"opencode", "init"}, args...), cli.Env{
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" },
	})
	return code, out.String()
}

func mustRead(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Existing files are overwritten only with --force, and then all of them.
func TestOpenCodeInit(t *testing.T) {
	dir := t.TempDir()
	code, said := openCodeInit(t, dir)
	if code != 0 || !strings.Contains(said, "written    opencode.json") || !strings.Contains(said, "applies the last matching rule") {
		t.Fatalf("code %d: %s", code, said)
	}
	for _, name := range []string{"opencode.json", "AGENTS.md", ".opencode/plugin/autonomy-engine.ts", ".opencode/package-lock.json", ".opencode/node_modules/.keep"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o644 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if code, said := openCodeInit(t, dir); code != 0 || strings.Contains(said, "written") || !strings.Contains(said, "unchanged  AGENTS.md") {
		t.Errorf("a second time: code %d: %s", code, said)
	}

	// If one file was changed and one was removed, nothing is written.
	agents := filepath.Join(dir, "AGENTS.md")
	if err := os.WriteFile(agents, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	plugin := filepath.Join(dir, ".opencode/plugin/autonomy-engine.ts")
	if err := os.Remove(plugin); err != nil {
		t.Fatal(err)
	}
	code, said = openCodeInit(t, "--level", "3", dir)
	if code != 1 || !strings.Contains(said, "AGENTS.md") || !strings.Contains(said, "--force") {
		t.Errorf("code %d: %s", code, said)
	}
	if _, err := os.Stat(plugin); err == nil || mustRead(t, agents) != "mine" {
		t.Error("something was written")
	}
	if code, said := openCodeInit(t, "--level", "3", "--force", dir); code != 0 || !strings.Contains(said, "replaced   AGENTS.md") || !strings.Contains(mustRead(t, agents), "level 3 of 3") {
		t.Errorf("code %d: %s", code, said)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*.glasshouse-new"))
	if err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestOpenCodeInitStaysInsideProject checks links that lead out of the project.
func TestOpenCodeInitStaysInsideProject(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dir, ".opencode")); err != nil {
		t.Fatal(err)
	}
	code, said := openCodeInit(t, dir)
	if code != 1 {
		t.Errorf("code %d: %s", code, said)
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 0 {
		t.Errorf("written outside: %v, %v", entries, err)
	}
}

func TestOpenCodeInitErrors(t *testing.T) {
	if code, said := openCodeInit(t, "--level", "4", t.TempDir()); code != 2 || !strings.Contains(said, "is not one of 1, 2, 3") {
		t.Errorf("code %d: %s", code, said)
	}
	if code, said := openCodeInit(t, filepath.Join(t.TempDir(), "nowhere")); code != 1 || !strings.Contains(said, "nowhere") {
		t.Errorf("code %d: %s", code, said)
	}
	code, said := openCodeInit(t, "--json", t.TempDir())
	var files []struct{ Path, State string }
	if err := json.Unmarshal([]byte(said), &files); code != 0 || err != nil || len(files) != 6 || files[0].State != "written" {
		t.Errorf("code %d: %s: %v", code, said, err)
	}
}
