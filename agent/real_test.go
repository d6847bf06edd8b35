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

	"glasshouse/agent"
	"glasshouse/agent/acp"
	"glasshouse/llm/mockllm"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// These tests run the agents themselves, against a scripted model. They are run where
// GLASSHOUSE_AGENTS names a directory for their layers; what is not there yet npm
// installs into it. Each takes some seconds.

func layerOf(t *testing.T, p agent.Preset) string {
	t.Helper()
	cache := os.Getenv("GLASSHOUSE_AGENTS")
	if cache == "" {
		t.Skip("GLASSHOUSE_AGENTS names no directory for agents")
	}
	dir, err := p.Layer.Build(t.Context(), cache)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("bwrap"); err != nil {
		t.Skip("needs bwrap, for a home and a /tmp of the agent's own")
	}
	return dir
}

// A door is the gateway of a jail, as far as agents are told of it.
type door struct {
	t     *testing.T
	model *mockllm.Server
	url   string

	down bool // it decides nothing

	mu    sync.Mutex
	told  []claim  // POST /sandbox/{id}/decisions
	asked []string // POST /decide: tool and what it is about
	calls []string // all else
	noted []string // by the one tool of its server
}

type claim struct {
	Tool  string         `json:"tool"`
	Args  map[string]any `json:"args"`
	Phase string         `json:"phase"`
	Time  time.Time      `json:"timestamp"`
}

func newDoor(t *testing.T, script string) *door {
	s, err := mockllm.Parse([]byte(script))
	if err != nil {
		t.Fatal(err)
	}
	d := &door{t: t, model: mockllm.New(s, nil)}
	mux := http.NewServeMux()
	mux.Handle("/v1/", d.model)
	mux.Handle("/v1beta/", d.model)
	mux.HandleFunc("POST /decide", d.decide)
	mux.HandleFunc("POST /sandbox/{id}/decisions", d.record)
	mux.HandleFunc("POST /sandbox/{id}/coordinate", d.answer)
	mux.HandleFunc("POST /sandbox/{id}/tasks", d.answer)
	mux.HandleFunc("POST /sandbox/{id}/resources", d.answer)
	mux.Handle("/mcp", d.tools())
	s2 := httptest.NewServer(mux)
	t.Cleanup(s2.Close)
	d.url = s2.URL
	return d
}

func (d *door) decide(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Tool string         `json:"tool"`
		Args map[string]any `json:"args"`
	}
	json.NewDecoder(r.Body).Decode(&q)
	if d.down {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `{"title": "unavailable", "status": 503, "detail": "the chain cannot be written"}`)
		return
	}
	d.mu.Lock()
	d.asked = append(d.asked, q.Tool+" "+about(q.Args))
	d.mu.Unlock()
	answer := map[string]any{"effect": "allow"}
	if strings.Contains(about(q.Args), "rm -rf") {
		answer = map[string]any{"effect": "deny", "reason": "what is removed cannot be brought back", "rule": "bash: rm -rf *", "remedy": "move it to .trash", "by": "policy"}
	}
	json.NewEncoder(w).Encode(answer)
}

func (d *door) record(w http.ResponseWriter, r *http.Request) {
	var c claim
	json.NewDecoder(r.Body).Decode(&c)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.told = append(d.told, c)
	fmt.Fprint(w, `{"n": 1}`)
}

func (d *door) answer(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, r.URL.Path+" "+string(body))
	fmt.Fprint(w, `{"state": "answered", "answer": "approved"}`)
}

// about is what a call is about: its command or its file.
func about(args map[string]any) string {
	for _, key := range []string{"command", "filePath", "file_path", "title", "targetSandboxId"} {
		if s, ok := args[key].(string); ok {
			return filepath.Base(s)
		}
	}
	return ""
}

// trail is what was told before and after, as the lines of an audit.
func (d *door) trail(phase string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var lines []string
	for _, c := range d.told {
		if c.Phase == phase {
			lines = append(lines, c.Tool+": "+about(c.Args))
		}
	}
	return lines
}

// A place is where an agent runs: its layer, its home and a project.
type place struct {
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

func newPlace(t *testing.T, p agent.Preset) *place {
	pl := &place{t: t, layer: layerOf(t, p), preset: p, dir: t.TempDir()}
	pl.Project = filepath.Join(pl.dir, "work")
	for _, d := range []string{"home", "work"} {
		if err := os.Mkdir(filepath.Join(pl.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return pl
}

// command returns argv as it is run there.
func (pl *place) command(ctx context.Context, l agent.Launch, argv []string) *exec.Cmd {
	args := []string{
		"--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-pid", "--die-with-parent",
		"--tmpfs", "/tmp", "--tmpfs", "/home", "--tmpfs", "/opt",
		"--bind", filepath.Join(pl.dir, "home"), home, "--bind", pl.Project, workspace,
		"--ro-bind", pl.layer, pl.preset.Layer.Mount(), "--chdir", l.Cwd, "--",
	}
	cmd := exec.CommandContext(ctx, "bwrap", append(args, argv...)...)
	cmd.Env = append(slices.Clone(l.Env), "SANDBOX_ID=j-worker")
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

func (pl *place) prepare(l agent.Launch) {
	pl.t.Helper()
	for _, f := range l.Files {
		rel, ok := strings.CutPrefix(f.Path, home+"/")
		if !ok {
			pl.t.Fatalf("%s is not under the agent's home", f.Path)
		}
		name := filepath.Join(pl.dir, "home", rel)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			pl.t.Fatal(err)
		}
		if err := os.WriteFile(name, f.Data, f.Mode); err != nil {
			pl.t.Fatal(err)
		}
	}
	if l.Prepare != nil {
		if out, err := pl.command(pl.t.Context(), l, l.Prepare).CombinedOutput(); err != nil {
			pl.t.Fatalf("prepare: %v: %s", err, out)
		}
	}
}

// run starts the agent with a goal, waits for its end, and reads what it printed.
func (pl *place) run(l agent.Launch) agent.Outcome {
	pl.t.Helper()
	pl.prepare(l)
	ctx, cancel := context.WithTimeout(pl.t.Context(), 4*time.Minute)
	defer cancel()
	cmd := pl.command(ctx, l, l.Argv)
	cmd.Stdin = bytes.NewReader(l.Stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if keep := os.Getenv("GLASSHOUSE_RECORD"); keep != "" {
		os.WriteFile(filepath.Join(keep, pl.preset.Name+".out"), stdout.Bytes(), 0o644)
	}
	pl.t.Logf("%v: %v\n%s\n%s", l.Argv, err, stdout.String(), stderr.String())
	got, parseErr := pl.preset.Outcome(&stdout)
	if parseErr != nil {
		pl.t.Fatalf("%v\n%s", parseErr, stderr.String())
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

// workflow is the seed's example: write, try, be refused, coordinate, commit.
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

// TestOpenCodeWorksOnItsOwn: the workflow of the guide, with OpenCode itself.
func TestOpenCodeWorksOnItsOwn(t *testing.T) {
	p := find(t, "opencode")
	pl := newPlace(t, p)
	d := newDoor(t, workflow(openCodeWrite, openCodeBash, openCodeAsk))
	got := pl.run(launch(t, p, agent.Request{Goal: `Implement "user authentication". Be autonomous.`, Protocol: agent.Run, Door: d.url}))

	if got.Error != "" || !strings.Contains(got.Text, "login is written") || got.Session == "" || got.Turns != 6 {
		t.Errorf("outcome %+v", got)
	}
	if len(got.Denied) != 1 || got.Denied[0] != "bash" {
		t.Errorf("denied %v, want the one rm -rf", got.Denied)
	}
	wantTrail := []string{
		"write: login.ts", "bash: npm --version", "coordinate_sibling: reviewer", "bash: git add -A && git commit -q -m 'auth: login'",
	}
	if before := d.trail("before"); !slices.Equal(before, wantTrail) {
		t.Errorf("told before: %q, want %q", before, wantTrail)
	}
	if after := d.trail("after"); !slices.Equal(after, wantTrail) {
		t.Errorf("told after: %q, want %q", after, wantTrail)
	}
	if len(d.calls) != 1 || !strings.HasPrefix(d.calls[0], "/sandbox/reviewer/coordinate ") || !strings.Contains(d.calls[0], `"fromSandboxId":"j-worker"`) {
		t.Errorf("coordinated %q", d.calls)
	}
	if slices.Contains(d.asked, "coordinate_sibling reviewer") {
		t.Error("the gateway was asked twice about a request to a sibling")
	}
	log, err := exec.Command("git", "-C", pl.Project, "-c", "safe.directory=*", "log", "--format=%an %s").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(log), "opencode agent auth: login\n") {
		t.Errorf("git log: %v: %s", err, log)
	}
	if _, err := os.Stat(filepath.Join(pl.Project, "auth", "login.ts")); err != nil {
		t.Error(err)
	}
	// The goal is what the model was told, without quotes around it.
	if !strings.Contains(fmt.Sprint(string(d.model.Seen()[0].Body)), `Implement \"user authentication\". Be autonomous.`) {
		t.Errorf("the model was told %s", d.model.Seen()[0].Body)
	}
}

// host is a gateway's answers to an agent that asks by the protocol.
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

// Next tells an agent that stops at a refusal to go on.
func (h *host) Next(_ context.Context, turn acp.Turn) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.turns = append(h.turns, turn)
	if len(turn.Refused) > 0 && len(h.turns) < 2 {
		return "Refused: " + turn.Refused[0].Reason + ". Go on with user authentication.", nil
	}
	return "", nil
}

// drive has an agent work by the protocol.
func (pl *place) drive(l agent.Launch, h *host, prompt string) (acp.Result, error) {
	pl.t.Helper()
	pl.prepare(l)
	ctx, cancel := context.WithTimeout(pl.t.Context(), 4*time.Minute)
	defer cancel()
	cmd := pl.command(ctx, l, l.Argv)
	in, err := cmd.StdinPipe()
	if err != nil {
		pl.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		pl.t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		pl.t.Fatal(err)
	}
	var from io.ReadCloser = out
	if keep := os.Getenv("GLASSHOUSE_RECORD"); keep != "" {
		f, err := os.Create(filepath.Join(keep, pl.preset.Name+".acp"))
		if err != nil {
			pl.t.Fatal(err)
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
	pl.t.Logf("%+v: %v\n%s", got, driveErr, stderr.String())
	for _, c := range h.asked {
		pl.t.Logf("asked: %s %q %q %v %s", c.Kind, c.Title, c.Command, c.Paths, c.Input)
	}
	for _, u := range h.updates {
		pl.t.Logf("update: %s %q %s %q %+v", u.Event, u.Text, u.Call.Kind, u.Call.Title, u.Outcome)
	}
	return got, driveErr
}

// TestOpenCodeAsksByTheProtocol: the same, with the questions asked by the Agent Client
// Protocol. OpenCode ends its turn at the first no.
func TestOpenCodeAsksByTheProtocol(t *testing.T) {
	p := find(t, "opencode")
	pl := newPlace(t, p)
	d := newDoor(t, workflow(openCodeWrite, openCodeBash, openCodeAsk))
	h := &host{}
	got, err := pl.drive(launch(t, p, agent.Request{Protocol: agent.ACP, Door: d.url}), h, "Implement user authentication.")
	if err != nil {
		t.Fatal(err)
	}
	if got.Agent != "OpenCode 1.18.33" || got.Session == "" || got.Usage.Context == 0 {
		t.Errorf("result %+v", got)
	}
	if len(d.asked) != 0 {
		t.Errorf("the plugin asked as well: %v", d.asked)
	}
	var commands []string
	for _, c := range h.asked {
		commands = append(commands, c.Command)
	}
	if !slices.Contains(commands, "npm --version") || !slices.Contains(commands, "rm -rf auth") {
		t.Errorf("asked about %q", commands)
	}
}

// simple writes a file, is refused to remove it, and ends.
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

// TestClaudeCodeAsksTheGateway before each tool, by its hooks.
func TestClaudeCodeAsksTheGateway(t *testing.T) {
	p := find(t, "claude")
	pl := newPlace(t, p)
	d := newDoor(t, simple(`{tool: Write, arguments: {file_path: `+workspace+`/login.ts, content: "export const login = 1\n"}}`, `{tool: Bash, arguments: {command: rm -rf login.ts, description: a command}}`))
	got := pl.run(launch(t, p, agent.Request{Goal: "Implement user authentication.", Protocol: agent.Run, Door: d.url}))
	if got.Error != "" || got.Text != "Done: login is written." || got.Session == "" || got.Usage.InputTokens == 0 {
		t.Errorf("outcome %+v", got)
	}
	if want := []string{"Write login.ts", "Bash rm -rf login.ts"}; !slices.Equal(d.asked, want) {
		t.Errorf("asked %q, want %q", d.asked, want)
	}
	if want := []string{"Write: login.ts"}; !slices.Equal(d.trail("before"), want) || !slices.Equal(d.trail("after"), want) {
		t.Errorf("told %q and %q, want %q", d.trail("before"), d.trail("after"), want)
	}
	if _, err := os.Stat(filepath.Join(pl.Project, "login.ts")); err != nil {
		t.Errorf("what was refused was done: %v", err)
	}
}

// TestGeminiAsksTheGateway before each tool, by its hooks.
func TestGeminiAsksTheGateway(t *testing.T) {
	p := find(t, "gemini")
	pl := newPlace(t, p)
	d := newDoor(t, simple(`{tool: write_file, arguments: {file_path: `+workspace+`/login.ts, content: "export const login = 1\n"}}`, `{tool: run_shell_command, arguments: {command: rm -rf login.ts, description: a command}}`))
	got := pl.run(launch(t, p, agent.Request{Goal: "Implement user authentication.", Protocol: agent.Run, Door: d.url}))
	if got.Error != "" || got.Text != "Done: login is written." || got.Usage.InputTokens == 0 {
		t.Errorf("outcome %+v", got)
	}
	if want := []string{"write_file login.ts", "run_shell_command rm -rf login.ts"}; !slices.Equal(d.asked, want) {
		t.Errorf("asked %q, want %q", d.asked, want)
	}
	if _, err := os.Stat(filepath.Join(pl.Project, "login.ts")); err != nil {
		t.Errorf("what was refused was done: %v", err)
	}
}

// TestCodexAsksTheGateway before each tool, by its hooks.
func TestCodexAsksTheGateway(t *testing.T) {
	p := find(t, "codex")
	pl := newPlace(t, p)
	d := newDoor(t, simple(`{any: [{tool: exec_command, arguments: {cmd: "echo 1 > login.ts"}}, {tool: shell_command, arguments: {command: "echo 1 > login.ts"}}, {tool: shell, arguments: {command: [bash, -lc, "echo 1 > login.ts"]}}]}`, `{any: [{tool: exec_command, arguments: {cmd: "rm -rf login.ts"}}, {tool: shell_command, arguments: {command: "rm -rf login.ts"}}, {tool: shell, arguments: {command: [bash, -lc, "rm -rf login.ts"]}}]}`))
	got := pl.run(launch(t, p, agent.Request{Goal: "Implement user authentication.", Protocol: agent.Run, Door: d.url}))
	if got.Error != "" || got.Text != "Done: login is written." || got.Session == "" || got.Usage.InputTokens == 0 {
		t.Errorf("outcome %+v", got)
	}
	if want := []string{"Bash echo 1 > login.ts", "Bash rm -rf login.ts"}; !slices.Equal(d.asked, want) {
		t.Errorf("asked %q, want %q", d.asked, want)
	}
	if _, err := os.Stat(filepath.Join(pl.Project, "login.ts")); err != nil {
		t.Error(err)
	}
}

// TestTheOthersAskByTheProtocol: a file is written, its removal is refused.
func TestTheOthersAskByTheProtocol(t *testing.T) {
	tests := []struct{ preset, write, remove string }{
		{"claude", `{tool: Write, arguments: {file_path: ` + workspace + `/login.ts, content: "export const login = 1\n"}}`, `{tool: Bash, arguments: {command: rm -rf login.ts, description: a command}}`},
		{"gemini", `{tool: write_file, arguments: {file_path: ` + workspace + `/login.ts, content: "export const login = 1\n"}}`, `{tool: run_shell_command, arguments: {command: rm -rf login.ts, description: a command}}`},
		{"codex", `{any: [{tool: exec_command, arguments: {cmd: "echo 1 > login.ts"}}, {tool: shell_command, arguments: {command: "echo 1 > login.ts"}}, {tool: shell, arguments: {command: [bash, -lc, "echo 1 > login.ts"]}}]}`, `{any: [{tool: exec_command, arguments: {cmd: "rm -rf login.ts"}}, {tool: shell_command, arguments: {command: "rm -rf login.ts"}}, {tool: shell, arguments: {command: [bash, -lc, "rm -rf login.ts"]}}]}`},
	}
	for _, tt := range tests {
		t.Run(tt.preset, func(t *testing.T) {
			p := find(t, tt.preset)
			pl := newPlace(t, p)
			d := newDoor(t, simple(tt.write, tt.remove))
			h := &host{}
			got, err := pl.drive(launch(t, p, agent.Request{Protocol: agent.ACP, Door: d.url}), h, "Implement user authentication.")
			if err != nil {
				t.Fatal(err)
			}
			if got.Agent == "" || got.Session == "" {
				t.Errorf("result %+v", got)
			}
			if !slices.ContainsFunc(h.asked, func(c acp.ToolCall) bool { return strings.Contains(c.Command, "rm -rf login.ts") }) {
				t.Errorf("it was not asked whether login.ts may be removed: %+v", h.asked)
			}
			if _, err := os.Stat(filepath.Join(pl.Project, "login.ts")); err != nil {
				t.Errorf("what was refused was done, or the file never written: %v", err)
			}
		})
	}
}

const anyShell = `{any: [{tool: bash, arguments: {command: "%[1]s", description: a command}}, {tool: Bash, arguments: {command: "%[1]s", description: a command}}, {tool: run_shell_command, arguments: {command: "%[1]s", description: a command}}, {tool: exec_command, arguments: {cmd: "%[1]s"}}]}`

// TestNothingIsDoneThatTheGatewayCannotDecide: agents that ask it fail closed.
func TestNothingIsDoneThatTheGatewayCannotDecide(t *testing.T) {
	for _, name := range []string{"claude", "codex", "gemini", "opencode"} {
		t.Run(name, func(t *testing.T) {
			p := find(t, name)
			pl := newPlace(t, p)
			d := newDoor(t, simple(fmt.Sprintf(anyShell, "touch made"), fmt.Sprintf(anyShell, "touch made")))
			d.down = true
			// A workspace that would have nobody asked.
			if err := os.Mkdir(filepath.Join(pl.Project, ".claude"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(pl.Project, ".claude", "settings.json"), []byte(`{"disableAllHooks": true}`), 0o644); err != nil {
				t.Fatal(err)
			}
			got := pl.run(launch(t, p, agent.Request{Goal: "Implement user authentication.", Protocol: agent.Run, Door: d.url}))
			if got.Error != "" || got.Text != "Done: login is written." {
				t.Errorf("outcome %+v", got)
			}
			if _, err := os.Stat(filepath.Join(pl.Project, "made")); err == nil {
				t.Error("it was done")
			}
			if len(d.told) != 0 {
				t.Errorf("told %+v", d.told)
			}
			if !strings.Contains(d.seen(), "the chain cannot be written") {
				t.Error("the model was not told why")
			}
		})
	}
}

// seen is all that the model was sent.
func (d *door) seen() string {
	var all strings.Builder
	for _, s := range d.model.Seen() {
		all.Write(s.Body)
	}
	return all.String()
}

// TestAnAgentGoesOnWhereItWas, in another process.
func TestAnAgentGoesOnWhereItWas(t *testing.T) {
	for _, name := range []string{"claude", "codex", "opencode"} {
		t.Run(name, func(t *testing.T) {
			p := find(t, name)
			pl := newPlace(t, p)
			d := newDoor(t, "models: [fake-1]\nconversations:\n  - name: all\n    when: {user_matches: '(?s).*'}\n    turns:\n      - text: \"I will keep it.\"\n")
			first := pl.run(launch(t, p, agent.Request{Goal: "Remember the word heliotrope.", Protocol: agent.Run, Door: d.url}))
			begun := len(d.seen())
			pl.run(launch(t, p, agent.Request{Goal: "Which word was it?", Protocol: agent.Run, Door: d.url, Resume: first.Session}))
			if later := d.seen()[begun:]; !strings.Contains(later, "heliotrope") || !strings.Contains(later, "Which word was it?") {
				t.Error("it does not know what was before")
			}
		})
	}
}

// TestTheGatewaysToolsAreTheAgents, by the Model Context Protocol.
func TestTheGatewaysToolsAreTheAgents(t *testing.T) {
	for _, name := range []string{"claude", "codex", "gemini", "opencode"} {
		for _, protocol := range []agent.Protocol{agent.Run, agent.ACP} {
			t.Run(fmt.Sprintf("%s/%s", name, protocol), func(t *testing.T) {
				p := find(t, name)
				pl := newPlace(t, p)
				turns := "      - calls: [{any: [{tool: glasshouse_note, arguments: {text: hi}}, {tool: mcp__glasshouse__note, arguments: {text: hi}}, {tool: mcp_glasshouse_note, arguments: {text: hi}}]}]\n"
				if name == "codex" {
					turns = "" // its model calls tools in namespaces, which the scripted one cannot
				}
				d := newDoor(t, `
models: [fake-1]
conversations:
  - name: notes
    when: {user: make a note}
    turns:
`+turns+`      - text: "It is noted."
`)
				l := launch(t, p, agent.Request{Goal: "make a note", Protocol: protocol, Door: d.url, MCP: true})
				if protocol == agent.Run {
					if got := pl.run(l); got.Text != "It is noted." {
						t.Errorf("outcome %+v", got)
					}
				} else {
					h := &host{}
					got, err := pl.drive(l, h, "make a note")
					if err != nil || !strings.Contains(got.Last.Text, "It is noted.") {
						t.Errorf("result %+v: %v", got, err)
					}
				}
				if name == "codex" {
					if !strings.Contains(d.seen(), `"name":"mcp__glasshouse"`) || !strings.Contains(d.seen(), "notes a text") {
						t.Error("its model was not offered the tool")
					}
				} else if len(d.noted) != 1 || d.noted[0] != "hi" {
					t.Errorf("noted %q", d.noted)
				}
			})
		}
	}
}

// tools is a server of one tool, which notes what it is given.
func (d *door) tools() http.Handler {
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
