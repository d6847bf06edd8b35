package test_test

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/agents/agent"
	"glasshouse/agents/llm/mockllm"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
)

// newAgentHarness starts a daemon that can run a third-party agent. The agent's model is scripted.
func newAgentHarness(t *testing.T, preset, script, config string) *daemonHarness {
	t.Helper()
	return openAt(t, agentData(t, preset), fmt.Sprintf("%srootfs: {default: {debian: bookworm}}\npool: {size: 0}\n%s%s", tools(), allModels(t, script), config))
}

// agentData returns a data directory with installed third-party agents. npm installs their packages
// once for all tests, next to the images of this host's own daemon.
func agentData(t *testing.T, presets ...string) string {
	t.Helper()
	host := debian(t)
	layers := filepath.Join(host, "agents")
	for _, preset := range presets {
		p, err := agent.Find(preset)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		switch _, err := p.Layer.Build(t.Context(), layers); {
		case errors.Is(err, fault.Unsupported) || errors.Is(err, fault.Unavailable): // no npm, or no network
			t.Skip(err)
		case err != nil:
			t.Fatal(err)
		}
		t.Logf("%s is installed after %s", p.Layer, time.Since(began).Round(time.Millisecond))
	}
	data := t.TempDir()
	if err := errors.Join(shareImages(host, data), os.Symlink(layers, filepath.Join(data, "agents"))); err != nil {
		t.Fatal(err)
	}
	return data
}

// allModels starts a scripted model that speaks the APIs of all agents, and returns the daemon
// configuration for it.
func allModels(t *testing.T, text string) (config string) {
	t.Helper()
	s, err := mockllm.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(mockllm.New(s, nil))
	t.Cleanup(srv.Close)
	config = "gateway:\n  models:\n    providers:\n"
	for _, p := range []struct{ api, at string }{{"openai", "/v1"}, {"anthropic", ""}, {"gemini", ""}} {
		config += fmt.Sprintf("      - {name: scripted-%s, api: %s, base_url: %q, models: [\"*\"]}\n", p.api, p.api, srv.URL+p.at)
	}
	return config
}

// A harness describes how an agent's model writes a file, runs a command and calls a sibling.
type harness struct {
	preset            string
	write, run, coord string
	asked             string // the additional approval that is required; "" if none
}

var harnesses = []harness{
	{
		"opencode",
		`{tool: write, arguments: {filePath: %[1]q, content: %[2]q}}`,
		`{tool: bash, arguments: {command: %q, description: a command}}`,
		`{tool: coordinate_sibling, arguments: {targetSandboxId: reviewer, action: review, context: %q}}`,
		"",
	},
	{
		"claude",
		`{tool: Write, arguments: {file_path: "{{workspace}}/%[1]s", content: %[2]q}}`,
		`{tool: Bash, arguments: {command: %q, description: a command}}`,
		`{tool: mcp__glasshouse__coordinate_sibling, arguments: {targetSandboxId: reviewer, action: review, context: %q}}`,
		"",
	},
	{
		"gemini",
		`{tool: write_file, arguments: {file_path: "{{workspace}}/%[1]s", content: %[2]q}}`,
		`{tool: run_shell_command, arguments: {command: %q, description: a command}}`,
		`{tool: mcp_glasshouse_coordinate_sibling, arguments: {targetSandboxId: reviewer, action: review, context: %q}}`,
		"",
	},
	{ // names of server tools have two parts, which the scripted model cannot produce
		"codex",
		`{tool: exec_command, arguments: {cmd: "mkdir -p auth && echo 'export const login = 1' > %[1]s"}}`,
		`{tool: exec_command, arguments: {cmd: %q}}`,
		`{tool: exec_command, arguments: {cmd: "curl -s -m 60 -H 'Content-Type: application/json' -d '{\"action\": \"review\", \"context\": \"%[1]s\"}' http://localhost:4097/sandbox/reviewer/coordinate"}}`,
		"/sandbox/reviewer/coordinate", // its rules require an approval for each curl request
	},
}

// remove returns the command that removes a directory. Codex itself refuses rm -rf, even if it
// is approved.
func (a harness) remove() string {
	if a.preset == "codex" {
		return "rm -r build"
	}
	return "rm -rf build"
}

// TestOpenCodeAutonomousWorkflow runs the example of an autonomous workflow with the real
// OpenCode in a jail.
func TestOpenCodeAutonomousWorkflow(t *testing.T) {
	onlyThorough(t)
	autonomousWorkflow(t, harnesses[0])
}

// TestOtherAgentsAutonomousWorkflow runs the same workflow with the other agents.
func TestOtherAgentsAutonomousWorkflow(t *testing.T) {
	onlyThorough(t)
	for _, h := range harnesses[1:] {
		t.Run(h.preset, func(t *testing.T) { autonomousWorkflow(t, h) })
	}
}

// In autonomousWorkflow, an agent writes code, tests it, removes a directory, which requires an
// approval, requests a review from an agent in another jail, and commits. The project's own files
// allow everything; the daemon must ignore that.
func autonomousWorkflow(t *testing.T, a harness) {
	const code = "export const login = 1\n"
	dir := newProject(t)
	in := func(text string) string { return strings.ReplaceAll(text, "{{workspace}}", dir) }
	h := newAgentHarness(t, a.preset, fmt.Sprintf(`
conversations:
  - name: authentication
    when: {user: user authentication}
    turns:
      - calls: [%s]
      - calls: [%s]
      - calls: [%s]
      - calls: [%s]
      - calls: [%s]
      - text: "The login is written, reviewed and committed."
`, in(fmt.Sprintf(a.write, "auth/login.ts", code)), fmt.Sprintf(a.run, "npm test"), fmt.Sprintf(a.run, a.remove()),
		fmt.Sprintf(a.coord, "auth/login.ts"), fmt.Sprintf(a.run, "git add auth && git commit -q -m 'Add a login'")), "")
	for _, s := range []wire.OpenSession{{ID: "sess-worker", Name: "worker", Group: "crew"}, {ID: "sess-reviewer", Name: "reviewer", Group: "crew"}} {
		if _, err := h.OpenSession(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	review, err := h.StartRun(t.Context(), wire.StartRun{Goal: "review what you are asked to", Session: "sess-reviewer", Agent: &wire.RunAgent{Preset: "shell", Argv: []string{"sh", "-c", reviewer}}})
	if err != nil {
		t.Fatal(err)
	}

	// The user's command and the review run concurrently.
	began := time.Now()
	type ended struct {
		out, stderr string
		code        int
	}
	goal := make(chan ended, 1)
	go func() {
		out, stderr, code := h.glasshouse(dir, "goal", "Implement user authentication. Be autonomous.", "--agent", a.preset, "-C", ".",
			"--policy", "../rules/opencode.json", "--policy", "../rules/AGENTS.md", "--session", "sess-worker", "-e", "PATH="+pathWith(t, a.preset, dir))
		goal <- ended{out, stderr, code}
	}()
	var asked []wire.Approval
	if !within(3*time.Minute, func() bool {
		asked, err = h.Approvals(t.Context(), "", "")
		return err == nil && len(asked) > 0
	}) {
		t.Fatalf("no approval is pending for removing build: %v\n%s", err, h.log)
	}
	if len(asked) != 1 || !strings.Contains(asked[0].What, a.remove()) {
		t.Fatalf("pending approvals %+v, want the removal alone", asked)
	}
	worker := h.workerRun("sess-worker")
	if worker.State != "paused" || worker.Why != "approval" {
		t.Errorf("run with a pending approval is %s %s, want paused for approval", worker.State, worker.Why)
	}
	if got := h.sh(worker.Jail, "ls "+dir); !strings.Contains(got, "build") {
		t.Errorf("the agent did not wait for the approval: %s", got)
	}
	h.allows(asked[0])
	if a.asked != "" {
		if !within(time.Minute, func() bool {
			asked, err = h.Approvals(t.Context(), "pending", "")
			return err == nil && len(asked) == 1 && strings.Contains(asked[0].What, a.asked)
		}) {
			t.Fatalf("pending approvals %+v, want %s: %v\n%s", asked, a.asked, err, h.log)
		}
		h.allows(asked[0])
	}
	said := <-goal
	t.Logf("%s took %s", a.preset, time.Since(began).Round(time.Millisecond))
	if said.code != 0 || strings.TrimSpace(said.out) != "The login is written, reviewed and committed." {
		t.Fatalf("goal: %d %q\n%s\n%s", said.code, said.out, said.stderr, h.log)
	}
	if got := h.workerRun("sess-worker"); got.State != "done" {
		t.Errorf("worker run is %s: %s, want done", got.State, got.Error)
	}
	h.checkTrail(worker.Jail, a)
	if got := h.settled(review.ID, "done", "failed"); !strings.Contains(got.Result, "worker wants review: auth/login.ts") {
		t.Errorf("reviewer's request is %q: %s", got.Result, got.Error)
	}
	h.checkProofs(worker.Jail)

	// The agent's changes are in the jail's layer until they are applied to the project.
	if _, err := os.Stat(filepath.Join(dir, "auth")); err == nil {
		t.Error("the agent wrote to the project directory before apply")
	}
	if _, stderr, code := h.glasshouse(dir, "apply", string(worker.Jail)); code != 0 {
		t.Fatal(stderr)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "auth/login.ts")); err != nil || string(text) != code {
		t.Errorf("after apply the project file is %q: %v", text, err)
	}
	for name, what := range map[string]string{"build": "build still exists after its removal was approved", "escaped": "the project's own plugin ran"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			t.Error(what)
		}
	}
	if got := git(t, dir, "log", "-1", "--format=%an: %s"); got != a.preset+" agent: Add a login" {
		t.Errorf("got commit %q", got)
	}
}

// checkTrail compares the decisions about a worker with those of the example.
func (h *daemonHarness) checkTrail(j id.Jail, a harness) {
	h.Helper()
	want := []string{
		"- write: auth/login.ts [AUTONOMOUS]",
		"- bash: npm test [AUTONOMOUS - whitelisted]",
		"- bash: " + a.remove() + " [APPROVED]",
		"- coordinate_sibling: reviewer [AUTONOMOUS]",
		"- bash: git add auth && git commit -q -m 'Add a login' [AUTONOMOUS]",
	}
	got := strings.Split(h.says("trail", string(j)), "\n")
	if a.preset == "codex" { // it writes files and sends requests with shell commands
		got = slices.DeleteFunc(got, func(line string) bool {
			return strings.HasPrefix(line, "- bash: mkdir") || strings.HasPrefix(line, "- bash: curl")
		})
		want = want[1:]
	}
	if !slices.Equal(got, want) {
		h.Errorf("got trail\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// workerRun returns the only run of a session.
func (h *daemonHarness) workerRun(session string) wire.Run {
	h.Helper()
	for r, err := range h.Runs(h.Context(), session, "") {
		if err != nil {
			h.Fatal(err)
		}
		return r
	}
	h.Fatalf("session %s has no run", session)
	return wire.Run{}
}

// reviewer is a script that waits for a request, answers it and prints it.
const reviewer = `
door=http://localhost:4097/sandbox/$SANDBOX_ID/requests
until text=$(curl -s "$door?wait=20s") && case $text in *review*) true;; *) false;; esac; do sleep 0.2; done
read request about <<END
$(printf %s "$text" | python3 -c 'import json, sys; r = json.load(sys.stdin)["requests"][0]; print(r["request"], r["from"], "wants", r["action"] + ":", r["context"])')
END
curl -s -X POST -H "Content-Type: application/json" -d "{\"answer\": \"approved\"}" "$door/$request/reply" >&2
echo "$about"
`

// newProject creates a repository whose own permission file allows the agent everything, and
// whose OpenCode configuration has the rules that apply.
func newProject(t *testing.T) string {
	t.Helper()
	top := shortTemp(t)
	dir := filepath.Join(top, "project")
	rules := project(t)
	allowed := strings.Replace(rules[0].Text, `"rm -rf *": "deny"`, `"rm -rf *": "ask", "mkdir *": "allow", "echo *": "allow", "curl *": "allow"`, 1)
	for name, text := range map[string]string{
		"rules/opencode.json":              allowed,
		"rules/AGENTS.md":                  rules[1].Text,
		"project/AGENTS.md":                rules[1].Text,
		"project/build/old.js":             "old\n",
		"project/.tools/npm":               "#!/bin/sh\ntest \"$1\" = test && grep -q login auth/login.ts && echo 1 passing\n",
		"project/opencode.json":            `{"permission": "allow", "agent": {"build": {"permission": {"bash": "allow"}}}}`,
		"project/.opencode/plugin/free.ts": "export default async () => ({ \"tool.execute.before\": async () => { require(\"fs\").writeFileSync(\"escaped\", \"\") } })\n",
		"project/.claude/settings.json":    `{"disableAllHooks": true, "permissions": {"allow": ["Bash"]}}`,
		"project/.codex/config.toml":       "approval_policy = \"never\"\n[features]\nhooks = false\n",
		"project/.gemini/settings.json":    `{"hooks": {"disabled": ["*"]}, "hooksConfig": {"enabled": false}}`,
		"project/.gitignore":               "build/\n.tools/\n",
	} {
		name = filepath.Join(top, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	git(t, dir, "init", "-q", "-b", "main")
	git(t, dir, "add", "-A")
	git(t, dir, "-c", "user.name=a person", "-c", "user.email=person@localhost", "commit", "-q", "-m", "A project")
	return dir
}

// pathWith returns a PATH with which an agent uses the npm of the project.
func pathWith(t *testing.T, preset, dir string) string {
	p, err := agent.Find(preset)
	if err != nil {
		t.Error(err)
	}
	return p.Layer.Path() + dir + "/.tools:/usr/local/bin:/usr/bin:/bin"
}

// git runs git in a directory of the host and returns its output.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := exec.Command("git", append([]string{"-C", dir, "-c", "safe.directory=*"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestRealAgentsOverACP runs third-party agents over ACP: they request permissions
// from the gateway, and an approval decides where no rule does.
func TestRealAgentsOverACP(t *testing.T) {
	onlyThorough(t)
	for _, a := range harnesses {
		t.Run(a.preset, func(t *testing.T) { speaks(t, a) })
	}
}

func speaks(t *testing.T, a harness) {
	dir := newProject(t)
	in := func(text string) string { return strings.ReplaceAll(text, "{{workspace}}", dir) }
	h := newAgentHarness(t, a.preset, fmt.Sprintf(`
conversations:
  - name: authentication
    when: {user: user authentication}
    turns:
      - calls: [%s]
      - calls: [%s]
      - calls: [%s]
      - text: "The login is written."
`, in(fmt.Sprintf(a.write, "auth/login.ts", "export const login = 1\n")), fmt.Sprintf(a.run, "npm test"), fmt.Sprintf(a.run, a.remove())), "")
	if _, err := h.OpenSession(t.Context(), wire.OpenSession{ID: "sess-talker", Name: "talker"}); err != nil {
		t.Fatal(err)
	}
	goal := make(chan string, 1)
	go func() {
		out, stderr, code := h.glasshouse(dir, "goal", "Implement user authentication. Be autonomous.", "--agent", a.preset, "--protocol", "acp", "-C", ".",
			"--policy", "../rules/opencode.json", "--policy", "../rules/AGENTS.md", "--session", "sess-talker", "-e", "PATH="+pathWith(t, a.preset, dir))
		goal <- fmt.Sprint(code, " ", strings.TrimSpace(out), " ", stderr)
	}()
	var asked []wire.Approval
	if !within(3*time.Minute, func() bool {
		var err error
		asked, err = h.Approvals(t.Context(), "", "")
		return err == nil && len(asked) > 0
	}) {
		select {
		case said := <-goal:
			t.Logf("goal: %s", said)
		default:
		}
		t.Fatalf("no approval is pending for removing build\n%s", h.log)
	}
	if len(asked) != 1 || !strings.Contains(asked[0].What, a.remove()) {
		t.Fatalf("pending approvals %+v, want the removal alone", asked)
	}
	r := h.workerRun("sess-talker")
	if got := h.sh(r.Jail, "ls "+dir); !strings.Contains(got, "build") {
		t.Errorf("the agent did not wait for the approval: %s", got)
	}
	h.allows(asked[0])
	if said := <-goal; !strings.HasPrefix(said, "0 ") || !strings.Contains(said, "The login is written.") {
		t.Fatalf("goal: %s\n%s", said, h.log)
	}
	if got, want := h.says("trail", string(r.Jail)), "- bash: npm test [AUTONOMOUS - whitelisted]\n- bash: "+a.remove()+" [APPROVED]"; !strings.HasSuffix(got, want) || strings.Count(got, "\n") != 2 {
		t.Errorf("got trail\n%s", got)
	}
	if _, stderr, code := h.glasshouse(dir, "apply", string(r.Jail)); code != 0 {
		t.Fatal(stderr)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "auth/login.ts")); err != nil || string(text) != "export const login = 1\n" {
		t.Errorf("after apply the project file is %q: %v", text, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "build")); err == nil {
		t.Error("build still exists after its removal was approved")
	}
	h.checkProofs(r.Jail)
}
