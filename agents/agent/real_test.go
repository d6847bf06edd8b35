package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/agents/agent"
	"glasshouse/agents/agent/acp"
	"glasshouse/agents/llm/mockllm"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// These tests run the real agents against a scripted model. They need GLASSHOUSE_AGENTS, the
// directory of their layers. Missing layers are installed with npm. Each test takes some
// seconds.

func layerOf(t *testing.T, p agent.Preset) string {
	t.Helper()
	cache := os.Getenv("GLASSHOUSE_AGENTS")
	if cache == "" {
		t.Skip("GLASSHOUSE_AGENTS is not set")
	}
	dir, err := p.Layer.Build(t.Context(), cache)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("bwrap"); err != nil {
		t.Skip("needs bwrap, for a private home and /tmp")
	}
	return dir
}

// A fakeGateway implements the part of the gateway that agents use.
type fakeGateway struct {
	t     *testing.T
	model *mockllm.Server
	url   string

	unavailable bool // requests for decisions fail

	mu       sync.Mutex
	reported []report // POST /sandbox/{id}/decisions
	asked    []string // POST /decide: tool and target
	calls    []string // other requests
	noted    []string // arguments of the tool note
}

type report struct {
	Tool  string         `json:"tool"`
	Args  map[string]any `json:"args"`
	Phase string         `json:"phase"`
	Time  time.Time      `json:"timestamp"`
}

func newFakeGateway(t *testing.T, script string) *fakeGateway {
	parsed, err := mockllm.Parse([]byte(script))
	if err != nil {
		t.Fatal(err)
	}
	d := &fakeGateway{t: t, model: mockllm.New(parsed, nil)}
	mux := http.NewServeMux()
	mux.Handle("/v1/", d.model)
	mux.Handle("/v1beta/", d.model)
	mux.HandleFunc("POST /decide", d.decide)
	mux.HandleFunc("POST /sandbox/{id}/decisions", d.record)
	mux.HandleFunc("POST /sandbox/{id}/coordinate", d.answer)
	mux.HandleFunc("POST /sandbox/{id}/tasks", d.answer)
	mux.HandleFunc("POST /sandbox/{id}/resources", d.answer)
	mux.Handle("/mcp", d.tools())
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	d.url = server.URL
	return d
}

func (d *fakeGateway) decide(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Tool string         `json:"tool"`
		Args map[string]any `json:"args"`
	}
	json.NewDecoder(r.Body).Decode(&q)
	if d.unavailable {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `{"title": "unavailable", "status": 503, "detail": "the chain cannot be written"}`)
		return
	}
	d.mu.Lock()
	d.asked = append(d.asked, q.Tool+" "+target(q.Args))
	d.mu.Unlock()
	answer := map[string]any{"effect": "allow"}
	if strings.Contains(target(q.Args), "rm -rf") {
		answer = map[string]any{"effect": "deny", "reason": "what is removed cannot be brought back", "rule": "bash: rm -rf *", "remedy": "move it to .trash", "by": "policy"}
	}
	json.NewEncoder(w).Encode(answer)
}

func (d *fakeGateway) record(w http.ResponseWriter, r *http.Request) {
	var c report
	json.NewDecoder(r.Body).Decode(&c)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reported = append(d.reported, c)
	fmt.Fprint(w, `{"n": 1}`)
}

func (d *fakeGateway) answer(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, r.URL.Path+" "+string(body))
	fmt.Fprint(w, `{"state": "answered", "answer": "approved"}`)
}

// target returns the command or the file of a call.
func target(args map[string]any) string {
	for _, key := range []string{"command", "filePath", "file_path", "title", "targetSandboxId"} {
		if s, ok := args[key].(string); ok {
			return filepath.Base(s)
		}
	}
	return ""
}

// reportedCalls returns the calls that were reported in a phase.
func (d *fakeGateway) reportedCalls(phase string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var lines []string
	for _, c := range d.reported {
		if c.Phase == phase {
			lines = append(lines, c.Tool+": "+target(c.Args))
		}
	}
	return lines
}

// A sandbox runs an agent in bubblewrap with its layer, a home and a project.
type sandbox struct {
	t       *testing.T
	layer   string
	preset  agent.Preset
	dir     string
	Project string
}

const (
	home      = "/home/agent"
	workspace = "/home/work"
)

func newSandbox(t *testing.T, p agent.Preset) *sandbox {
	s := &sandbox{t: t, layer: layerOf(t, p), preset: p, dir: t.TempDir()}
	s.Project = filepath.Join(s.dir, "work")
	for _, d := range []string{"home", "work"} {
		if err := os.Mkdir(filepath.Join(s.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// command returns the command that runs argv in the sandbox.
func (s *sandbox) command(ctx context.Context, l agent.Launch, argv []string) *exec.Cmd {
	args := []string{
		"--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-pid", "--die-with-parent",
		"--tmpfs", "/tmp", "--tmpfs", "/home", "--tmpfs", "/opt",
		"--bind", filepath.Join(s.dir, "home"), home, "--bind", s.Project, workspace,
		"--ro-bind", s.layer, s.preset.Layer.Mount(), "--chdir", l.Cwd, "--",
	}
	cmd := exec.CommandContext(ctx, "bwrap", append(args, argv...)...)
	cmd.Env = append(slices.Clone(l.Env), "SANDBOX_ID=j-worker")
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

func (s *sandbox) prepare(l agent.Launch) {
	s.t.Helper()
	for _, f := range l.Files {
		rel, ok := strings.CutPrefix(f.Path, home+"/")
		if !ok {
			s.t.Fatalf("%s is not under the agent's home", f.Path)
		}
		name := filepath.Join(s.dir, "home", rel)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			s.t.Fatal(err)
		}
		if err := os.WriteFile(name, f.Data, f.Mode); err != nil {
			s.t.Fatal(err)
		}
	}
	if l.Prepare != nil {
		if out, err := s.command(s.t.Context(), l, l.Prepare).CombinedOutput(); err != nil {
			s.t.Fatalf("prepare: %v: %s", err, out)
		}
	}
}

// run runs the agent until it exits and parses its output.
func (s *sandbox) run(l agent.Launch) agent.Outcome {
	s.t.Helper()
	s.prepare(l)
	ctx, cancel := context.WithTimeout(s.t.Context(), 4*time.Minute)
	defer cancel()
	cmd := s.command(ctx, l, l.Argv)
	cmd.Stdin = bytes.NewReader(l.Stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if recordDir := os.Getenv("GLASSHOUSE_RECORD"); recordDir != "" {
		os.WriteFile(filepath.Join(recordDir, s.preset.Name+".out"), stdout.Bytes(), 0o644)
	}
	s.t.Logf("%v: %v\n%s\n%s", l.Argv, err, stdout.String(), stderr.String())
	got, parseErr := s.preset.Outcome(&stdout)
	if parseErr != nil {
		s.t.Fatalf("%v\n%s", parseErr, stderr.String())
	}
	return got
}

func find(t *testing.T, name string) agent.Preset {
	t.Helper()
	p, err := agent.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func launch(t *testing.T, p agent.Preset, r agent.Request) agent.Launch {
	t.Helper()
	r.Home, r.Workspace, r.Model = home, workspace, "fake-1"
	l, err := p.Launch(r)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// workflow is the script of the guide's example: write, run, be denied, coordinate, commit.
func workflow(write, bash, coordinate string) string {
	return fmt.Sprintf(`
models: [fake-1]
conversations:
  - name: authentication
    when: {user: user authentication}
    turns:
      - calls: [%s]
      - calls: [%s]
      - calls: [%s]
      - calls: [%s]
      - calls: [%s]
      - text: "Done: login is written and committed."
`, write, fmt.Sprintf(bash, "npm --version"), fmt.Sprintf(bash, "rm -rf auth"), coordinate, fmt.Sprintf(bash, "git add -A && git commit -q -m 'auth: login'"))
}

const (
	openCodeWrite = `{tool: write, arguments: {filePath: ` + workspace + `/auth/login.ts, content: "export const login = 1\n"}}`
	openCodeBash  = `{tool: bash, arguments: {command: "%s", description: a command}}`
	openCodeAsk   = `{tool: coordinate_sibling, arguments: {targetSandboxId: reviewer, action: review, context: auth/login.ts}}`
)

// TestOpenCodeRunsTheWorkflow runs the workflow of the guide with hooks.
func TestOpenCodeRunsTheWorkflow(t *testing.T) {
	p := find(t, "opencode")
	s := newSandbox(t, p)
	d := newFakeGateway(t, workflow(openCodeWrite, openCodeBash, openCodeAsk))
	got := s.run(launch(t, p, agent.Request{Goal: `Implement "user authentication". Be autonomous.`, Protocol: agent.Run, Endpoint: d.url}))

	if got.Error != "" || !strings.Contains(got.Text, "login is written") || got.Session == "" || got.Turns != 6 {
		t.Errorf("outcome = %+v", got)
	}
	if len(got.Denied) != 1 || got.Denied[0] != "bash" {
		t.Errorf("denied tools %v, want bash once", got.Denied)
	}
	wantCalls := []string{
		"write: login.ts", "bash: npm --version", "coordinate_sibling: reviewer", "bash: git add -A && git commit -q -m 'auth: login'",
	}
	if before := d.reportedCalls("before"); !slices.Equal(before, wantCalls) {
		t.Errorf("reported before: %q, want %q", before, wantCalls)
	}
	if after := d.reportedCalls("after"); !slices.Equal(after, wantCalls) {
		t.Errorf("reported after: %q, want %q", after, wantCalls)
	}
	if len(d.calls) != 1 || !strings.HasPrefix(d.calls[0], "/sandbox/reviewer/coordinate ") || !strings.Contains(d.calls[0], `"fromSandboxId":"j-worker"`) {
		t.Errorf("other requests %q, want one to coordinate", d.calls)
	}
	if slices.Contains(d.asked, "coordinate_sibling reviewer") {
		t.Error("the gateway got a second request for a decision about coordinate_sibling")
	}
	log, err := exec.Command("git", "-C", s.Project, "-c", "safe.directory=*", "log", "--format=%an %s").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(log), "opencode agent auth: login\n") {
		t.Errorf("git log: %v: %s", err, log)
	}
	if _, err := os.Stat(filepath.Join(s.Project, "auth", "login.ts")); err != nil {
		t.Error(err)
	}
	// The model receives the goal without additional quotes.
	if !strings.Contains(fmt.Sprint(string(d.model.Seen()[0].Body)), `Implement \"user authentication\". Be autonomous.`) {
		t.Errorf("the model received %s", d.model.Seen()[0].Body)
	}
}

// host is an acp.Host that denies removals.
type host struct {
	mu      sync.Mutex
	asked   []acp.ToolCall
	updates []acp.Update
	turns   []acp.Turn
}

func (h *host) Decide(_ context.Context, c acp.ToolCall) (acp.Verdict, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = append(h.asked, c)
	if strings.Contains(c.Command, "rm -rf") {
		return acp.Verdict{Reason: "what is removed cannot be brought back"}, nil
	}
	return acp.Verdict{Allow: true}, nil
}

func (h *host) Update(_ context.Context, u acp.Update) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.updates = append(h.updates, u)
	return nil
}

// Next continues with another prompt if the agent has stopped at a denial.
func (h *host) Next(_ context.Context, turn acp.Turn) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.turns = append(h.turns, turn)
	if len(turn.Refused) > 0 && len(h.turns) < 2 {
		return "Refused: " + turn.Refused[0].Reason + ". Go on with user authentication.", nil
	}
	return "", nil
}

// drive runs an agent over ACP.
func (s *sandbox) drive(l agent.Launch, h *host, prompt string) (acp.Result, error) {
	s.t.Helper()
	s.prepare(l)
	ctx, cancel := context.WithTimeout(s.t.Context(), 4*time.Minute)
	defer cancel()
	cmd := s.command(ctx, l, l.Argv)
	in, err := cmd.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	var from io.ReadCloser = out
	if recordDir := os.Getenv("GLASSHOUSE_RECORD"); recordDir != "" {
		f, err := os.Create(filepath.Join(recordDir, s.preset.Name+".acp"))
		if err != nil {
			s.t.Fatal(err)
		}
		defer f.Close()
		from = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(out, f), out}
	}
	got, driveErr := acp.Drive(ctx, acp.Pipes(in, from), h, acp.Options{Cwd: l.Cwd, Prompt: prompt, Servers: l.Servers})
	cancel()
	cmd.Wait()
	s.t.Logf("%+v: %v\n%s", got, driveErr, stderr.String())
	for _, c := range h.asked {
		s.t.Logf("asked: %s %q %q %v %s", c.Kind, c.Title, c.Command, c.Paths, c.Input)
	}
	for _, u := range h.updates {
		s.t.Logf("update: %s %q %s %q %+v", u.Event, u.Text, u.Call.Kind, u.Call.Title, u.Outcome)
	}
	return got, driveErr
}

// TestOpenCodeRequestsPermissionOverACP runs the same workflow over the Agent Client Protocol.
// OpenCode ends its turn at the first denial.
func TestOpenCodeRequestsPermissionOverACP(t *testing.T) {
	p := find(t, "opencode")
	s := newSandbox(t, p)
	d := newFakeGateway(t, workflow(openCodeWrite, openCodeBash, openCodeAsk))
	h := &host{}
	got, err := s.drive(launch(t, p, agent.Request{Protocol: agent.ACP, Endpoint: d.url}), h, "Implement user authentication.")
	if err != nil {
		t.Fatal(err)
	}
	if got.Agent != "OpenCode 1.18.33" || got.Session == "" || got.Usage.Context == 0 {
		t.Errorf("result = %+v", got)
	}
	if len(d.asked) != 0 {
		t.Errorf("the plugin requested decisions too: %v", d.asked)
	}
	var commands []string
	for _, c := range h.asked {
		commands = append(commands, c.Command)
	}
	if !slices.Contains(commands, "npm --version") || !slices.Contains(commands, "rm -rf auth") {
		t.Errorf("permission requests for %q, want npm --version and rm -rf auth", commands)
	}
}

// simple is a script that writes a file and tries to remove it.
func simple(write, remove string) string {
	return fmt.Sprintf(`
models: [fake-1]
conversations:
  - name: authentication
    when: {user: user authentication}
    turns:
      - calls: [%s]
      - calls: [%s]
      - text: "Done: login is written."
`, write, remove)
}

// TestClaudeCodeHooksAskTheGateway checks that the hooks call the gateway before each tool call.
func TestClaudeCodeHooksAskTheGateway(t *testing.T) {
	p := find(t, "claude")
	s := newSandbox(t, p)
	d := newFakeGateway(t, simple(`{tool: Write, arguments: {file_path: `+workspace+`/login.ts, content: "export const login = 1\n"}}`, `{tool: Bash, arguments: {command: rm -rf login.ts, description: a command}}`))
	got := s.run(launch(t, p, agent.Request{Goal: "Implement user authentication.", Protocol: agent.Run, Endpoint: d.url}))
	if got.Error != "" || got.Text != "Done: login is written." || got.Session == "" || got.Usage.InputTokens == 0 {
		t.Errorf("outcome = %+v", got)
	}
	if want := []string{"Write login.ts", "Bash rm -rf login.ts"}; !slices.Equal(d.asked, want) {
		t.Errorf("requests for decisions %q, want %q", d.asked, want)
	}
	if want := []string{"Write: login.ts"}; !slices.Equal(d.reportedCalls("before"), want) || !slices.Equal(d.reportedCalls("after"), want) {
		t.Errorf("reported before %q and after %q, want %q", d.reportedCalls("before"), d.reportedCalls("after"), want)
	}
	if _, err := os.Stat(filepath.Join(s.Project, "login.ts")); err != nil {
		t.Errorf("the denied removal was executed: %v", err)
	}
}

// TestGeminiHooksAskTheGateway checks that the hooks call the gateway before each tool call.
func TestGeminiHooksAskTheGateway(t *testing.T) {
	p := find(t, "gemini")
	s := newSandbox(t, p)
	d := newFakeGateway(t, simple(`{tool: write_file, arguments: {file_path: `+workspace+`/login.ts, content: "export const login = 1\n"}}`, `{tool: run_shell_command, arguments: {command: rm -rf login.ts, description: a command}}`))
	got := s.run(launch(t, p, agent.Request{Goal: "Implement user authentication.", Protocol: agent.Run, Endpoint: d.url}))
	if got.Error != "" || got.Text != "Done: login is written." || got.Usage.InputTokens == 0 {
		t.Errorf("outcome = %+v", got)
	}
	if want := []string{"write_file login.ts", "run_shell_command rm -rf login.ts"}; !slices.Equal(d.asked, want) {
		t.Errorf("requests for decisions %q, want %q", d.asked, want)
	}
	if _, err := os.Stat(filepath.Join(s.Project, "login.ts")); err != nil {
		t.Errorf("the denied removal was executed: %v", err)
	}
}

// TestCodexHooksAskTheGateway checks that the hooks call the gateway before each tool call.
func TestCodexHooksAskTheGateway(t *testing.T) {
	p := find(t, "codex")
	s := newSandbox(t, p)
	d := newFakeGateway(t, simple(`{any: [{tool: exec_command, arguments: {cmd: "echo 1 > login.ts"}}, {tool: shell_command, arguments: {command: "echo 1 > login.ts"}}, {tool: shell, arguments: {command: [bash, -lc, "echo 1 > login.ts"]}}]}`, `{any: [{tool: exec_command, arguments: {cmd: "rm -rf login.ts"}}, {tool: shell_command, arguments: {command: "rm -rf login.ts"}}, {tool: shell, arguments: {command: [bash, -lc, "rm -rf login.ts"]}}]}`))
	got := s.run(launch(t, p, agent.Request{Goal: "Implement user authentication.", Protocol: agent.Run, Endpoint: d.url}))
	if got.Error != "" || got.Text != "Done: login is written." || got.Session == "" || got.Usage.InputTokens == 0 {
		t.Errorf("outcome = %+v", got)
	}
	if want := []string{"Bash echo 1 > login.ts", "Bash rm -rf login.ts"}; !slices.Equal(d.asked, want) {
		t.Errorf("requests for decisions %q, want %q", d.asked, want)
	}
	if _, err := os.Stat(filepath.Join(s.Project, "login.ts")); err != nil {
		t.Error(err)
	}
}

// A file is written and its removal is denied.
func TestOtherAgentsRequestPermissionOverACP(t *testing.T) {
	tests := []struct{ preset, write, remove string }{
		{"claude", `{tool: Write, arguments: {file_path: ` + workspace + `/login.ts, content: "export const login = 1\n"}}`, `{tool: Bash, arguments: {command: rm -rf login.ts, description: a command}}`},
		{"gemini", `{tool: write_file, arguments: {file_path: ` + workspace + `/login.ts, content: "export const login = 1\n"}}`, `{tool: run_shell_command, arguments: {command: rm -rf login.ts, description: a command}}`},
		{"codex", `{any: [{tool: exec_command, arguments: {cmd: "echo 1 > login.ts"}}, {tool: shell_command, arguments: {command: "echo 1 > login.ts"}}, {tool: shell, arguments: {command: [bash, -lc, "echo 1 > login.ts"]}}]}`, `{any: [{tool: exec_command, arguments: {cmd: "rm -rf login.ts"}}, {tool: shell_command, arguments: {command: "rm -rf login.ts"}}, {tool: shell, arguments: {command: [bash, -lc, "rm -rf login.ts"]}}]}`},
	}
	for _, tt := range tests {
		t.Run(tt.preset, func(t *testing.T) {
			p := find(t, tt.preset)
			s := newSandbox(t, p)
			d := newFakeGateway(t, simple(tt.write, tt.remove))
			h := &host{}
			got, err := s.drive(launch(t, p, agent.Request{Protocol: agent.ACP, Endpoint: d.url}), h, "Implement user authentication.")
			if err != nil {
				t.Fatal(err)
			}
			if got.Agent == "" || got.Session == "" {
				t.Errorf("result = %+v", got)
			}
			if !slices.ContainsFunc(h.asked, func(c acp.ToolCall) bool { return strings.Contains(c.Command, "rm -rf login.ts") }) {
				t.Errorf("no permission request for the removal of login.ts: %+v", h.asked)
			}
			if _, err := os.Stat(filepath.Join(s.Project, "login.ts")); err != nil {
				t.Errorf("the file was not written, or the denied removal was executed: %v", err)
			}
		})
	}
}

const anyShell = `{any: [{tool: bash, arguments: {command: "%[1]s", description: a command}}, {tool: Bash, arguments: {command: "%[1]s", description: a command}}, {tool: run_shell_command, arguments: {command: "%[1]s", description: a command}}, {tool: exec_command, arguments: {cmd: "%[1]s"}}]}`

// No tool runs while the gateway cannot decide.
func TestAgentsFailClosed(t *testing.T) {
	for _, name := range []string{"claude", "codex", "gemini", "opencode"} {
		t.Run(name, func(t *testing.T) {
			p := find(t, name)
			s := newSandbox(t, p)
			d := newFakeGateway(t, simple(fmt.Sprintf(anyShell, "touch made"), fmt.Sprintf(anyShell, "touch made")))
			d.unavailable = true
			// Settings of the workspace that would disable the hooks.
			if err := os.Mkdir(filepath.Join(s.Project, ".claude"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(s.Project, ".claude", "settings.json"), []byte(`{"disableAllHooks": true}`), 0o644); err != nil {
				t.Fatal(err)
			}
			got := s.run(launch(t, p, agent.Request{Goal: "Implement user authentication.", Protocol: agent.Run, Endpoint: d.url}))
			if got.Error != "" || got.Text != "Done: login is written." {
				t.Errorf("outcome = %+v", got)
			}
			if _, err := os.Stat(filepath.Join(s.Project, "made")); err == nil {
				t.Error("the command was executed without a decision")
			}
			if len(d.reported) != 0 {
				t.Errorf("reported %+v, want nothing", d.reported)
			}
			if !strings.Contains(d.seen(), "the chain cannot be written") {
				t.Error("the model did not receive the reason")
			}
		})
	}
}

// seen returns the bodies of all requests to the model.
func (d *fakeGateway) seen() string {
	var all strings.Builder
	for _, request := range d.model.Seen() {
		all.Write(request.Body)
	}
	return all.String()
}

// TestAgentsResumeSessions resumes a session in another process.
func TestAgentsResumeSessions(t *testing.T) {
	for _, name := range []string{"claude", "codex", "opencode"} {
		t.Run(name, func(t *testing.T) {
			p := find(t, name)
			s := newSandbox(t, p)
			d := newFakeGateway(t, "models: [fake-1]\nconversations:\n  - name: all\n    when: {user_matches: '(?s).*'}\n    turns:\n      - text: \"I will recordDir it.\"\n")
			first := s.run(launch(t, p, agent.Request{Goal: "Remember the word heliotrope.", Protocol: agent.Run, Endpoint: d.url}))
			begun := len(d.seen())
			s.run(launch(t, p, agent.Request{Goal: "Which word was it?", Protocol: agent.Run, Endpoint: d.url, Resume: first.Session}))
			if later := d.seen()[begun:]; !strings.Contains(later, "heliotrope") || !strings.Contains(later, "Which word was it?") {
				t.Error("the resumed session lacks the earlier conversation")
			}
		})
	}
}

// TestAgentsUseTheGatewaysTools calls a tool over the Model Context Protocol.
func TestAgentsUseTheGatewaysTools(t *testing.T) {
	for _, name := range []string{"claude", "codex", "gemini", "opencode"} {
		for _, protocol := range []agent.Protocol{agent.Run, agent.ACP} {
			t.Run(fmt.Sprintf("%s/%s", name, protocol), func(t *testing.T) {
				p := find(t, name)
				s := newSandbox(t, p)
				turns := "      - calls: [{any: [{tool: glasshouse_note, arguments: {text: hi}}, {tool: mcp__glasshouse__note, arguments: {text: hi}}, {tool: mcp_glasshouse_note, arguments: {text: hi}}]}]\n"
				if name == "codex" {
					turns = "" // Codex uses tool namespaces, which the scripted model does not support
				}
				d := newFakeGateway(t, `
models: [fake-1]
conversations:
  - name: notes
    when: {user: make a note}
    turns:
`+turns+`      - text: "It is noted."
`)
				l := launch(t, p, agent.Request{Goal: "make a note", Protocol: protocol, Endpoint: d.url, MCP: true})
				if protocol == agent.Run {
					if got := s.run(l); got.Text != "It is noted." {
						t.Errorf("outcome = %+v", got)
					}
				} else {
					h := &host{}
					got, err := s.drive(l, h, "make a note")
					if err != nil || !strings.Contains(got.Last.Text, "It is noted.") {
						t.Errorf("result = %+v, %v", got, err)
					}
				}
				if name == "codex" {
					if !strings.Contains(d.seen(), `"name":"mcp__glasshouse"`) || !strings.Contains(d.seen(), "notes a text") {
						t.Error("the model was not offered the tool")
					}
				} else if len(d.noted) != 1 || d.noted[0] != "hi" {
					t.Errorf("notes %q, want hi once", d.noted)
				}
			})
		}
	}
}

// tools returns an MCP server with the tool note, which stores its argument.
func (d *fakeGateway) tools() http.Handler {
	s := mcp.NewServer(&mcp.Implementation{Name: "glasshouse", Version: "1"}, nil)
	type note struct {
		Text string `json:"text"`
	}
	mcp.AddTool(s, &mcp.Tool{Name: "note", Description: "notes a text"}, func(_ context.Context, _ *mcp.CallToolRequest, n note) (*mcp.CallToolResult, any, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.noted = append(d.noted, n.Text)
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "noted"}}}, nil, nil
	})
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil)
}
