package mcp_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"glasshouse/capability/engine"
	"glasshouse/capability/mcp"
	"glasshouse/capability/mcp/mcptest"
	"glasshouse/capability/rtfs/form"
)

func TestPublishedServerIsImportedAndCalled(t *testing.T) {
	program := filepath.Join(mcptest.Install(t), "node_modules/.bin/mcp-server-filesystem")
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
