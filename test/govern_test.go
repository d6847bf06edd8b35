package test_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/jail/backend/backendtest"
)

// rootfsWith returns the small root filesystem with /work and more programs of this host.
func rootfsWith(t *testing.T, programs ...string) string {
	t.Helper()
	dir := filepath.Join(shortTemp(t), "root")
	if out, err := exec.Command("cp", "-a", backendtest.Rootfs(t), dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.Mkdir(filepath.Join(dir, "work"), 0o777); err != nil {
		t.Fatal(err)
	}
	for _, p := range programs {
		path, err := exec.LookPath(p)
		if err != nil {
			t.Skip(err)
		}
		files := []string{path}
		out, err := exec.Command("ldd", path).Output()
		if err != nil {
			t.Fatal(err)
		}
		for field := range strings.FieldsSeq(string(out)) {
			if strings.HasPrefix(field, "/") {
				files = append(files, field)
			}
		}
		for _, f := range files {
			if out, err := exec.Command("cp", "-L", "--parents", f, dir).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
	}
	return dir
}

// project returns the two files of a project that is set up for autonomous agents.
func project(t *testing.T) []wire.PolicyFile {
	t.Helper()
	var files []wire.PolicyFile
	for _, name := range []string{"opencode.json", "AGENTS.md"} {
		text, err := os.ReadFile(filepath.Join("../policy/testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, wire.PolicyFile{Name: name, Text: string(text)})
	}
	return files
}

// worker returns the policy of a jail that works on the project at a level.
func worker(t *testing.T, level int) *wire.Policy {
	return &wire.Policy{Files: project(t), Agent: "worker", Level: level, Workspace: "/work"}
}

// claim announces an agent's next action as a harness plugin does: with an HTTP POST that does
// not use this project's client.
func (h *daemonHarness) claim(j id.Jail, tool string, args any) wire.Verdict {
	h.Helper()
	body, err := json.Marshal(map[string]any{"tool": tool, "args": args, "timestamp": "2026-01-02T03:04:05.678Z"})
	if err != nil {
		h.Fatal(err)
	}
	door := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(h.data, "glasshouse.sock"))
	}}}
	resp, err := door.Post("http://localhost/sandbox/"+string(j)+"/decisions", "application/json", bytes.NewReader(body))
	if err != nil {
		h.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		h.Fatal(err)
	}
	var v wire.Verdict
	if err := json.Unmarshal(text, &v); err != nil || resp.StatusCode != http.StatusOK {
		h.Fatalf("claim %s: %s %s", tool, resp.Status, text)
	}
	return v
}

// does claims a step as an agent and executes it if it is allowed.
func (h *daemonHarness) does(j id.Jail, tool string, args map[string]string, do func()) wire.Verdict {
	h.Helper()
	v := h.claim(j, tool, args)
	if v.Allow {
		do()
	}
	return v
}

// TestAutonomousWorkflowTrail runs the example of an autonomous workflow: a worker
// writes, tests, has its code reviewed and commits, without approvals. The audit log of its
// actions is readable and verifiable.
func TestAutonomousWorkflowTrail(t *testing.T) {
	h := open(t, fmt.Sprintf("%srootfs: {default: {dir: %q}}\n", tools(), rootfsWith(t, "git")))
	work := h.running(wire.CreateJail{Name: "worker", Cwd: "/work", Policy: worker(t, 2), Env: map[string]string{
		"GIT_AUTHOR_NAME": "worker", "GIT_AUTHOR_EMAIL": "worker@localhost", "GIT_COMMITTER_NAME": "worker", "GIT_COMMITTER_EMAIL": "worker@localhost",
		"GIT_EDITOR": "echo 'add login' >", "GIT_TEMPLATE_DIR": "",
	}}).ID
	review := worker(t, 2)
	review.Agent = "reviewer"
	reviewer := h.running(wire.CreateJail{Name: "reviewer", Cwd: "/work", Policy: review}).ID

	// The project exists before the agent, which reads its rules.
	h.sh(work, "git init -q . && printf '#!/bin/sh\ntest \"$1\" = test && grep -q login auth/login.ts && echo 1 passing\n' > /usr/bin/npm && chmod 755 /usr/bin/npm")
	for _, f := range project(t) {
		h.copyIn(work, "/work/"+f.Name, f.Text)
	}
	if got := h.sh(work, "grep -c '^## ' AGENTS.md"); got != "3" {
		t.Fatalf("AGENTS.md has %s sections, want 3", got)
	}

	const code = "export const login = (user: string) => user !== ''\n"
	h.does(work, "write", map[string]string{"filePath": "auth/login.ts", "content": code}, func() {
		h.copyIn(work, "/work/auth/login.ts", code)
	})
	var tested string
	h.does(work, "bash", map[string]string{"command": "npm test", "description": "Run the tests"}, func() { tested = h.sh(work, "npm test") })
	h.does(work, "coordinate_sibling", map[string]string{"targetSandboxId": "reviewer", "action": "review", "context": "auth/login.ts"}, func() {
		h.copy(work, reviewer, "/work/auth/login.ts")
	})
	h.does(reviewer, "read", map[string]string{"filePath": "auth/login.ts"}, func() {
		if got := h.sh(reviewer, "cat auth/login.ts"); got != strings.TrimSpace(code) {
			t.Errorf("the reviewer reads %q, want the code", got)
		}
	})
	if v := h.claim(reviewer, "edit", map[string]string{"filePath": "auth/login.ts"}); v.Allow {
		t.Error("the reviewer is allowed to write")
	}
	h.sh(work, "git add auth")
	h.does(work, "bash", map[string]string{"command": "git commit"}, func() { h.sh(work, "git commit") })

	if tested != "1 passing" {
		t.Errorf("npm test printed %q", tested)
	}
	if got := h.sh(work, "git log --format='%an: %s' --name-only"); got != "worker: add login\n\nauth/login.ts" {
		t.Errorf("got commit %q", got)
	}
	if list, err := h.Approvals(t.Context(), "all", ""); err != nil || len(list) != 0 {
		t.Errorf("got approval requests %v, %v; want none", list, err)
	}
	if got, want := h.says("trail", "worker"), `- write: auth/login.ts [AUTONOMOUS]
- bash: npm test [AUTONOMOUS - whitelisted]
- coordinate_sibling: reviewer [AUTONOMOUS]
- bash: git commit [AUTONOMOUS]`; got != want {
		t.Errorf("got trail\n%s\nwant\n%s", got, want)
	}
	if got, want := h.says("trail", "reviewer"), "- read: auth/login.ts [AUTONOMOUS]\n- edit: auth/login.ts [DENIED]"; got != want {
		t.Errorf("got trail of the reviewer\n%s\nwant\n%s", got, want)
	}
	h.checkProofs(work)
}

// TestTrailHasAnnouncedAndObservedActions runs the example with kernel-level enforcement: the
// trail has both the announced and the observed actions, whether announced or not.
func TestTrailHasAnnouncedAndObservedActions(t *testing.T) {
	h := open(t, fmt.Sprintf("%srootfs: {default: {dir: %q}}\n", tools(), rootfsWith(t)))
	p := worker(t, 2)
	p.Files[0].Text = strings.Replace(p.Files[0].Text, `"npm *": "allow",`, `"npm *": "allow", "cat *": "allow",`, 1)
	j := h.running(wire.CreateJail{Name: "worker", Cwd: "/work", Policy: p, Enforce: true}).ID
	h.copyIn(j, "/work/notes", "remember\n")
	h.does(j, "bash", map[string]string{"command": "npm test"}, func() { h.sh(j, "cat notes; rm -rf notes; true") })
	if got, want := h.says("trail", "--said", "worker"), "- bash: npm test [AUTONOMOUS - whitelisted]"; got != want {
		t.Errorf("announced actions: got %q, want %q", got, want)
	}
	got := h.says("trail", "--observed", "worker")
	if strings.Contains(got, "npm") || !strings.Contains(got, "cat notes [AUTONOMOUS]\n") || !strings.Contains(got, "rm -rf notes [DENIED]") {
		t.Errorf("observed actions: got\n%s", got)
	}
	if out := h.sh(j, "cat notes"); out != "remember" {
		t.Errorf("a denied command removed the file: %q", out)
	}
}

// copyIn writes a file to a jail.
func (h *daemonHarness) copyIn(j id.Jail, path, text string) {
	h.Helper()
	if _, err := h.WriteFile(h.Context(), j, path, strings.NewReader(text), client.WriteOptions{Parents: true}); err != nil {
		h.Fatal(err)
	}
}

// copy copies a file from one jail to another.
func (h *daemonHarness) copy(from, to id.Jail, path string) {
	h.Helper()
	r, err := h.ReadFile(h.Context(), from, path, 0, -1)
	if err != nil {
		h.Fatal(err)
	}
	defer r.Close()
	if _, err := h.WriteFile(h.Context(), to, path, r, client.WriteOptions{Parents: true}); err != nil {
		h.Fatal(err)
	}
}

// checkProofs verifies the audit log with the daemon and, from an export and the public key, without
// it, and detects a change in another export.
func (h *daemonHarness) checkProofs(j id.Jail) {
	h.Helper()
	if got := h.says("audit", "verify"); !strings.HasPrefix(got, "the audit log is intact\n") {
		h.Errorf("audit verify: got %q", got)
	}
	dir := h.TempDir()
	text, stderr, code := h.glasshouse(dir, "audit", "export")
	if code != 0 {
		h.Fatalf("export: exit code %d\n%s", code, stderr)
	}
	export, forged, key := filepath.Join(dir, "chain.jsonl"), filepath.Join(dir, "forged.jsonl"), filepath.Join(dir, "chain.pub")
	public, err := os.ReadFile(filepath.Join(h.data, "chain.pub"))
	if err != nil {
		h.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^.*"resource":"npm test".*$`).FindString(text)
	changed := strings.Replace(line, `"resource":"npm test"`, `"resource":"npm best"`, 1)
	var entry wire.ChainEntry
	if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Kind != "decision" || entry.Jail != string(j) {
		h.Fatalf("the export lacks the decision about npm test: %q, %v", line, err)
	}
	for name, data := range map[string]string{export: text, forged: strings.Replace(text, line, changed, 1), key: string(public)} {
		if err := os.WriteFile(name, []byte(data), 0o600); err != nil {
			h.Fatal(err)
		}
	}
	offline := func(file string) (string, int) {
		cmd := exec.Command(h.bin, "audit", "verify", "--export", file, "--key", key)
		cmd.Env = []string{"HOME=" + dir, "GLASSHOUSE_DATA=" + dir, "GLASSHOUSE_ADDR=http://127.0.0.1:1"}
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	if out, code := offline(export); code != 0 || !strings.HasPrefix(out, "the audit log is intact\n") || strings.Contains(out, "the key was not given") {
		h.Errorf("offline: exit code %d, %s", code, out)
	}
	if out, code := offline(forged); code != 1 || !strings.HasPrefix(out, fmt.Sprintf("BAD: entry %d: ", entry.Seq)) {
		h.Errorf("audit verify of a forged export: exit code %d, %s; want entry %d", code, out, entry.Seq)
	}
	if _, err := os.Stat(filepath.Join(dir, "glasshouse.sock")); err == nil {
		h.Error("audit verify --offline started a daemon")
	}
}
