package agent_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"glasshouse/agents/agent"
	"glasshouse/fault"
)

// each calls f for every agent and protocol.
func each(t *testing.T, r agent.Request, f func(t *testing.T, p agent.Preset, l agent.Launch)) {
	t.Helper()
	for _, p := range agent.Presets() {
		for _, protocol := range p.Protocols {
			t.Run(fmt.Sprintf("%s/%s", p.Name, protocol), func(t *testing.T) {
				r.Protocol, r.Args = protocol, nil
				if p.Name == "shell" && protocol == agent.ACP {
					r.Args = []string{"my-agent"}
				}
				l, err := p.Launch(r)
				if err != nil {
					t.Fatal(err)
				}
				f(t, p, l)
			})
		}
	}
}

func env(l agent.Launch, key string) string {
	for _, e := range l.Env {
		if k, v, _ := strings.Cut(e, "="); k == key {
			return v
		}
	}
	return ""
}

func file(l agent.Launch, name string) string {
	for _, f := range l.Files {
		if f.Path == name {
			return string(f.Data)
		}
	}
	return ""
}

// TestLaunchRoutesEveryAgentToTheGateway checks the environment, which has no real API keys, and
// the files of every launch.
func TestLaunchRoutesEveryAgentToTheGateway(t *testing.T) {
	each(t, agent.Request{Goal: "work", Model: "m-1", MCP: true, Skills: "Use the skill."}, func(t *testing.T, p agent.Preset, l agent.Launch) {
		for key, want := range map[string]string{
			"OPENAI_BASE_URL": "http://localhost:4097/v1", "ANTHROPIC_BASE_URL": "http://localhost:4097",
			"GOOGLE_GEMINI_BASE_URL": "http://localhost:4097", "GLASSHOUSE_DOOR": "http://localhost:4097",
			"OPENAI_API_KEY": "glasshouse", "ANTHROPIC_API_KEY": "glasshouse", "GEMINI_API_KEY": "glasshouse",
			"HOME": "/home/agent", "XDG_CONFIG_HOME": "/home/agent/.config", "NO_PROXY": "localhost,127.0.0.1,::1",
		} {
			if got := env(l, key); got != want {
				t.Errorf("%s=%s, want %s", key, got, want)
			}
		}
		if !slices.IsSorted(l.Env) {
			t.Error("Env is not sorted")
		}
		for _, f := range l.Files {
			if !strings.HasPrefix(f.Path, "/home/agent/") || path.Clean(f.Path) != f.Path {
				t.Errorf("file %s is not in the home of the agent", f.Path)
			}
		}
		if l.Cwd != "/workspace" || len(l.Argv) == 0 {
			t.Errorf("Argv = %q, Cwd = %s, want a command in /workspace", l.Argv, l.Cwd)
		}
		if !slices.ContainsFunc(l.Needs, func(n agent.Need) bool { return n.Program == l.Argv[0] }) {
			t.Errorf("Needs = %+v, want %s among them", l.Needs, l.Argv[0])
		}
		if p.Layer.Name != "" && !strings.HasPrefix(env(l, "PATH"), p.Layer.Mount()+"/bin:") {
			t.Errorf("PATH=%s, want the layer first", env(l, "PATH"))
		}
		if (l.Protocol == agent.Run) != (l.Stdin != nil) && p.Name != "builtin" && p.Name != "shell" {
			t.Errorf("Stdin = %q with the protocol %s", l.Stdin, l.Protocol)
		}
		if l.Protocol == agent.ACP && len(l.Servers) != 1 {
			t.Errorf("Servers = %+v, want one", l.Servers)
		}
	})
}

// TestGuidanceHasFrameworkAndSkills checks the instruction file that each agent reads.
func TestGuidanceHasFrameworkAndSkills(t *testing.T) {
	guidanceFiles := map[string]string{
		"claude": "/home/agent/.claude/CLAUDE.md", "codex": "/home/agent/.codex/AGENTS.md",
		"gemini": "/home/agent/.gemini/GEMINI.md", "opencode": "/home/agent/.glasshouse/AGENTS.md",
	}
	each(t, agent.Request{Goal: "work", Skills: "Use the skill.", Level: 3}, func(t *testing.T, p agent.Preset, l agent.Launch) {
		name, ok := guidanceFiles[p.Name]
		if !ok {
			return
		}
		text := file(l, name)
		for _, want := range []string{"Self-Decision Framework", "level 3 of 3", "Use the skill."} {
			if !strings.Contains(text, want) {
				t.Errorf("%s does not contain %q", name, want)
			}
		}
	})
}

func TestUpdatesAndTelemetryAreDisabled(t *testing.T) {
	tests := []struct {
		preset string
		env    []string
		files  map[string][]string
	}{
		{"claude", []string{"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1", "DISABLE_TELEMETRY=1", "IS_SANDBOX=1"}, nil},
		{"codex", nil, map[string][]string{".codex/config.toml": {"check_for_update_on_startup = false", "[analytics]\nenabled = false", `base_url = "http://localhost:4097/v1"`, `wire_api = "responses"`}}},
		{"gemini", []string{"GEMINI_TELEMETRY_ENABLED=false"}, map[string][]string{".gemini/settings.json": {`"enableAutoUpdate": false`, `"usageStatisticsEnabled": false`}}},
		{"opencode", []string{"OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_LSP_DOWNLOAD=1", "OPENCODE_DISABLE_PROJECT_CONFIG=1"}, nil},
	}
	for _, tt := range tests {
		l, err := find(t, tt.preset).Launch(agent.Request{Goal: "work"})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range tt.env {
			if !slices.Contains(l.Env, e) {
				t.Errorf("%s: Env lacks %s", tt.preset, e)
			}
		}
		for name, parts := range tt.files {
			for _, part := range parts {
				if !strings.Contains(file(l, "/home/agent/"+name), part) {
					t.Errorf("%s: %s does not contain %q", tt.preset, name, part)
				}
			}
		}
	}
}

// Either the protocol or a hook.
func TestExactlyOneMechanismChecksTools(t *testing.T) {
	hooks := map[string]string{"claude": ".claude/settings.json", "codex": ".codex/hooks.json", "gemini": ".gemini/settings.json"}
	each(t, agent.Request{Goal: "work"}, func(t *testing.T, p agent.Preset, l agent.Launch) {
		if name, ok := hooks[p.Name]; ok {
			asks := strings.Contains(file(l, "/home/agent/"+name), "hook.py")
			if asks == (l.Protocol == agent.ACP) {
				t.Errorf("hooks are registered: %t, with the protocol %s", asks, l.Protocol)
			}
			if asks != (file(l, "/home/agent/.glasshouse/hook.py") != "") {
				t.Error("hook.py and its registration do not match")
			}
		}
		// Settings of the workspace could allow tools without a permission request.
		if own := fmt.Sprint(l.Meta) == "map[claudeCode:map[options:map[settingSources:[user]]]]"; own != (p.Name == "claude" && l.Protocol == agent.ACP) {
			t.Errorf("Meta = %v", l.Meta)
		}
		if p.Name == "opencode" {
			c := openCodeConfig(t, l)
			acp := l.Protocol == agent.ACP
			if want := map[bool]string{true: "ask", false: "allow"}[acp]; c.Permission["*"] != want {
				t.Errorf("permission = %v, want %s", c.Permission, want)
			}
			if options := c.Plugin[0][1].(map[string]any); options["decide"] != !acp {
				t.Errorf("plugin options = %v, want decide %t", options, !acp)
			}
		}
	})
}

type config struct {
	Permission map[string]string `json:"permission"`
	Plugin     [][]any           `json:"plugin"`
	Default    string            `json:"default_agent"`
	Agent      map[string]struct {
		Mode       string            `json:"mode"`
		Steps      int               `json:"steps"`
		Permission map[string]string `json:"permission"`
	} `json:"agent"`
	MCP map[string]any `json:"mcp"`
}

func openCodeConfig(t *testing.T, l agent.Launch) config {
	t.Helper()
	var c config
	if err := json.Unmarshal([]byte(env(l, "OPENCODE_CONFIG_CONTENT")), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// Of their permissions only fully denied tools are kept, which are then not offered to the model.
// The gateway enforces the other rules.
func TestPermissionFileDefinesAgents(t *testing.T) {
	files, err := agent.OpenCodeFiles(2)
	if err != nil {
		t.Fatal(err)
	}
	l, err := find(t, "opencode").Launch(agent.Request{Goal: "work", Permissions: files[0].Data})
	if err != nil {
		t.Fatal(err)
	}
	c := openCodeConfig(t, l)
	if len(c.Permission) != 2 || c.Default != "worker" || c.Agent["worker"].Steps != 20 || c.Agent["worker"].Permission != nil {
		t.Errorf("config = %+v", c)
	}
	if r := c.Agent["reviewer"]; r.Mode != "subagent" || r.Permission["bash"] != "deny" || r.Permission["edit"] != "deny" {
		t.Errorf("reviewer = %+v", r)
	}

	// The older format of the guide, with an agent that would allow its own commands.
	seed := `{"permission": {"bash": "allow"}, "agent": {"worker": {"mode": "primary", "maxSteps": 5, "tools": {"bash": true, "write": false}, "permission": {"bash": {"*": "allow"}, "webfetch": "deny", "*": "deny"}}}}`
	l, err = find(t, "opencode").Launch(agent.Request{Goal: "work", Permissions: json.RawMessage(seed)})
	if err != nil {
		t.Fatal(err)
	}
	w := openCodeConfig(t, l).Agent["worker"]
	if w.Steps != 5 || len(w.Permission) != 2 || w.Permission["write"] != "deny" || w.Permission["webfetch"] != "deny" {
		t.Errorf("worker = %+v", w)
	}
}

func TestLaunchResumesASession(t *testing.T) {
	tests := []struct{ preset, want string }{
		{"claude", "--resume s-1 -p"}, {"codex", "exec --dangerously-bypass-hook-trust resume --json --skip-git-repo-check s-1 -"}, {"opencode", "--session s-1"},
	}
	for _, tt := range tests {
		l, err := find(t, tt.preset).Launch(agent.Request{Goal: "work", Protocol: agent.Run, Resume: "s-1"})
		if err != nil || !strings.Contains(strings.Join(l.Argv, " "), tt.want) {
			t.Errorf("%s: Argv = %q, %v, want %q in it", tt.preset, l.Argv, err, tt.want)
		}
	}
	if _, err := find(t, "gemini").Launch(agent.Request{Goal: "work", Resume: "s-1"}); fault.KindOf(err) != fault.Unsupported || fault.RemedyOf(err) == "" {
		t.Errorf("gemini: got %v, want unsupported with a remedy", err)
	}
}

func TestInvalidRequestIsRejected(t *testing.T) {
	tests := []struct {
		preset  string
		request agent.Request
		kind    fault.Kind
		field   string
	}{
		{"claude", agent.Request{}, fault.Invalid, "goal"},
		{"claude", agent.Request{Goal: "x", Protocol: "telepathy"}, fault.Unsupported, ""},
		{"builtin", agent.Request{Protocol: agent.ACP}, fault.Unsupported, ""},
		{"claude", agent.Request{Goal: "x", Home: "/tmp/x"}, fault.Invalid, "home"},
		{"claude", agent.Request{Goal: "x", Home: "relative"}, fault.Invalid, "home"},
		{"claude", agent.Request{Goal: "x", Home: "/a/../b"}, fault.Invalid, "home"},
		{"claude", agent.Request{Goal: "x", Home: "/it's"}, fault.Invalid, "home"},
		{"codex", agent.Request{Goal: "x", Workspace: "/a\"\nb"}, fault.Invalid, "workspace"},
		{"codex", agent.Request{Goal: "x", Model: "m\"\nx = 1"}, fault.Invalid, "model"},
		{"claude", agent.Request{Goal: "x", Model: "--dangerously"}, fault.Invalid, "model"},
		{"claude", agent.Request{Goal: "x", Resume: "-x"}, fault.Invalid, "resume"},
		{"claude", agent.Request{Goal: "x", Level: 4}, fault.Invalid, "level"},
		{"claude", agent.Request{Goal: "x", Env: []string{"=x"}}, fault.Invalid, "env"},
		{"opencode", agent.Request{Goal: "x", Permissions: json.RawMessage("[")}, fault.Invalid, "permissions"},
		{"opencode", agent.Request{Goal: "x", Permissions: json.RawMessage(`{"agent": {"a": {"steps": "many"}}}`)}, fault.Invalid, "permissions"},
	}
	for _, tt := range tests {
		_, err := find(t, tt.preset).Launch(tt.request)
		if fault.KindOf(err) != tt.kind || fault.FieldOf(err) != tt.field {
			t.Errorf("%s %+v: %v, want %s about %q", tt.preset, tt.request, err, tt.kind, tt.field)
		}
	}
	if _, err := agent.Find("hal"); fault.KindOf(err) != fault.NotFound || !strings.Contains(fault.RemedyOf(err), "claude") {
		t.Errorf("Find of an unknown agent: %v", err)
	}
	if _, err := (agent.Preset{}).Launch(agent.Request{}); err == nil {
		t.Error("Launch of an empty preset succeeded")
	}
}

func TestShellRunsGoalOrArguments(t *testing.T) {
	p := find(t, "shell")
	tests := []struct {
		request agent.Request
		want    []string
	}{
		{agent.Request{Goal: "make && make test"}, []string{"bash", "-c", "make && make test"}},
		{agent.Request{Goal: "fix it", Args: []string{"my-agent", "--once"}}, []string{"my-agent", "--once"}},
		{agent.Request{Protocol: agent.Interactive}, []string{"bash", "-i"}},
	}
	for _, tt := range tests {
		l, err := p.Launch(tt.request)
		if err != nil || !slices.Equal(l.Argv, tt.want) {
			t.Errorf("%+v: Argv = %q, %v, want %q", tt.request, l.Argv, err, tt.want)
		}
	}
	l, err := find(t, "claude").Launch(agent.Request{Goal: "x", Args: []string{"--max-turns", "3"}, Env: []string{"HOME=/home/agent/x", "MORE=1"}})
	if err != nil || !strings.HasSuffix(strings.Join(l.Argv, " "), " --max-turns 3") || env(l, "HOME") != "/home/agent/x" || env(l, "MORE") != "1" {
		t.Errorf("Argv = %q, Env = %q: %v", l.Argv, l.Env, err)
	}
}

// Links resolve as in the jail and never leave the root.
func TestDetectResolvesLinksInsideTheRoot(t *testing.T) {
	root := t.TempDir()
	outside := filepath.Join(t.TempDir(), "claude")
	write := func(name string, mode os.FileMode) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target, name string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	write(outside, 0o755)
	write(filepath.Join(root, "opt/codex/codex"), 0o755)
	write(filepath.Join(root, "usr/bin/gemini"), 0o644)
	link("/opt/codex/codex", "usr/local/bin/codex") // absolute, relative to the root
	link(outside, "usr/bin/claude")                 // exists only outside the root
	link("../../../../../../opt/codex/codex", "root/.local/bin/opencode")
	link("loop", "usr/bin/loop")
	link("/usr/bin/loop", "usr/bin/glasshouse-agent")

	for name, want := range map[string]string{
		"codex": "/usr/local/bin/codex", "claude": "", "gemini": "", "opencode": "/root/.local/bin/opencode", "glasshouse-agent": "", "bash": "",
	} {
		if got := agent.Detect(os.DirFS(root), name); got != want {
			t.Errorf("Detect(%s) = %q, want %q", name, got, want)
		}
	}
}

// TestLocate covers present and missing programs.
func TestLocate(t *testing.T) {
	l, err := find(t, "claude").Launch(agent.Request{Goal: "x"})
	if err != nil {
		t.Fatal(err)
	}
	has := func(programs ...string) func(string) bool {
		return func(name string) bool { return slices.Contains(programs, name) }
	}
	for _, tt := range []struct {
		programs []string
		want     string // path of the started program
		missing  string
	}{
		{[]string{"/opt/agents/claude/bin/claude", "/usr/bin/claude", "/usr/bin/python3"}, "/opt/agents/claude/bin/claude", ""},
		{[]string{"/home/agent/.local/bin/claude", "/usr/bin/python3"}, "/home/agent/.local/bin/claude", ""},
		{[]string{"/usr/bin/claude"}, "", "python3"},
		{[]string{"/usr/bin/python3", "/srv/claude"}, "", "claude"},
	} {
		got, err := l.Locate(has(tt.programs...))
		if tt.missing != "" {
			if fault.KindOf(err) != fault.Unsupported || !strings.Contains(err.Error(), "no program "+tt.missing) || fault.RemedyOf(err) == "" {
				t.Errorf("with %q: %v, want an error about %s", tt.programs, err, tt.missing)
			}
			continue
		}
		if err != nil || got.Argv[0] != tt.want || !slices.Equal(got.Argv[1:], l.Argv[1:]) || l.Argv[0] != "claude" {
			t.Errorf("with %q: Argv = %q, %v, want %s", tt.programs, got.Argv, err, tt.want)
		}
	}
}
