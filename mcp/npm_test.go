package mcp_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/engine"
	"glasshouse/mcp"
	"glasshouse/rtfs/form"
)

// A server that others have written and publish.
const (
	npmServer  = "@modelcontextprotocol/server-filesystem"
	npmVersion = "2026.8.31"
)

// npm runs npm without what it does beside its work.
func npm(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "npm", append(args, "--no-audit", "--no-fund", "--no-update-notifier", "--ignore-scripts", "--loglevel=error")...)
	cmd.WaitDelay = time.Second
	return cmd.CombinedOutput()
}

// installServer returns the program of the published server, which is installed once
// on each machine.
func installServer(t *testing.T) string {
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
	program := filepath.Join(dir, "node_modules/.bin/mcp-server-filesystem")
	if _, err := os.Stat(program); err == nil {
		return program
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
	return program
}

func TestAPublishedServerIsImportedAndCalled(t *testing.T) {
	program := installServer(t)
	files := t.TempDir()
	command := func(string) *exec.Cmd { return exec.Command(program, files) }
	p, err := start(command(""))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	in, err := mcp.Import(t.Context(), like("npx"), p)
	if err != nil {
		t.Fatal(err)
	}
	if len(in.Capabilities) < 10 || len(in.Refused) > 0 {
		t.Fatalf("%d capabilities were made, and refused were %v; want more than ten and none", len(in.Capabilities), in.Refused)
	}
	t.Logf("%s: %d tools; what is not checked here: %v", in.Server, len(in.Capabilities), in.Lost)

	e := mcp.NewEngine("test", &sandboxes{command: command})
	defer e.Close()
	call := func(id string, input ...form.Value) (engine.Result, error) {
		c := &engine.Installed{Capability: find(t, in, id)}
		v := form.NewMap(input...)
		if err := c.Input.Check(v); err != nil {
			t.Errorf("%s does not take %s: %v", id, form.Text(v), err)
		}
		r, err := e.Call(t.Context(), &engine.Call{Capability: c, Session: "s", Input: v})
		if err == nil {
			if err := c.Output.Check(r.Output); err != nil {
				t.Errorf("%s gives what is not of its type: %v", id, err)
			}
		}
		return r, err
	}
	path := filepath.Join(files, "note.txt")
	if _, err := call("their.write_file", form.Keyword("path"), path, form.Keyword("content"), "seen\n"); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "seen\n" {
		t.Errorf("the file holds %q, %v", text, err)
	}
	r, err := call("their.read_text_file", form.Keyword("path"), path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(form.Text(r.Output), "seen") || !r.Warm {
		t.Errorf("reading it gives %s, warm %t", form.Text(r.Output), r.Warm)
	}
	if _, err := call("their.read_text_file", form.Keyword("path"), "/etc/passwd"); engine.KindOf(err) != engine.Failed {
		t.Errorf("what the server refuses = %v, want it failed", err)
	}
}
