package agent

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"path"

	"glasshouse/fault"
)

// opencode is OpenCode. Its plugin requests decisions from the gateway and reports tool calls.
var opencode = Preset{
	Name: "opencode", Title: "OpenCode", Protocols: []Protocol{ACP, Run, Interactive},
	Layer: Layer{
		Name: "opencode", Debian: []string{"bash", "git"},
		Packages: []Package{{"opencode-linux-{arch}", openCodeVersion}},
		Links:    []Link{{"opencode", "node_modules/opencode-linux-{arch}/bin/opencode"}},
	},
	launch:  launchOpenCode,
	outcome: openCodeOutcome,
}

//go:embed files/autonomy-engine.ts
var plugin []byte

// pluginLock marks the imports of plugins as installed. Without it OpenCode waits for npm,
// which takes minutes without a network.
var pluginLock = toJSON(map[string]any{
	"name": "opencode", "lockfileVersion": 3,
	"packages": map[string]any{"": map[string]any{"dependencies": map[string]any{"@opencode-ai/plugin": openCodeVersion}}},
})

func launchOpenCode(b *builder) error {
	content, err := b.openCodeConfig()
	if err != nil {
		return err
	}
	b.set(
		"OPENCODE_CONFIG_CONTENT", string(content),
		// The agent can write to the workspace, so its configuration is ignored.
		"OPENCODE_DISABLE_PROJECT_CONFIG", "1",
		"OPENCODE_DISABLE_MODELS_FETCH", "1", "OPENCODE_DISABLE_AUTOUPDATE", "1",
		"OPENCODE_DISABLE_LSP_DOWNLOAD", "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS", "1",
	)
	b.file(".config/opencode/package-lock.json", pluginLock)
	b.file(".config/opencode/node_modules/.keep", nil)
	b.file(pluginName, plugin)
	b.file(guidanceName, b.guidance())
	b.note("OpenCode runs a server without authentication on the loopback, which its tools can reach. Use the jail for this agent alone.")
	b.out.Prepare = initRepository

	switch b.Protocol {
	case ACP:
		if b.MCP {
			b.addServer()
		}
		b.argv("opencode", "acp", "--cwd", b.Workspace)
	case Interactive:
		b.argv("opencode")
		if b.Resume != "" {
			b.argv("--session", b.Resume)
		}
	default:
		b.argv("opencode", "run", "--format", "json")
		if b.Resume != "" {
			b.argv("--session", b.Resume)
		}
		// OpenCode quotes a goal that is passed as an argument.
		b.out.Stdin = []byte(b.Goal)
	}
	return nil
}

// initRepository is a command that makes the workspace a git repository with a commit, unless
// it is one. OpenCode uses the repository as its project and reports paths relative to it.
// Without a repository its project is the entire file system.
var initRepository = []string{"sh", "-c", `git rev-parse -q --verify HEAD >/dev/null 2>&1 || { git init -q && git commit -q --allow-empty -m "An empty beginning"; }`}

const (
	pluginName   = ".glasshouse/autonomy-engine.ts"
	guidanceName = ".glasshouse/AGENTS.md"
)

// openCodeConfig returns the configuration that overrides all other configuration files.
func (b *builder) openCodeConfig() ([]byte, error) {
	agents, primary, err := b.openCodeAgents()
	if err != nil {
		return nil, err
	}
	model := "glasshouse/" + b.Model
	c := map[string]any{
		"model": model, "small_model": model, "enabled_providers": []string{"glasshouse"},
		"provider": map[string]any{"glasshouse": map[string]any{
			"npm": "@ai-sdk/openai-compatible", "name": "Glasshouse",
			"options": map[string]any{"baseURL": b.Endpoint + "/v1", "apiKey": placeholder},
			"models": map[string]any{b.Model: map[string]any{
				"name": b.Model, "tool_call": true, "limit": map[string]any{"context": 200_000, "output": 32_000},
			}},
		}},
		"autoupdate": false, "share": "disabled", "snapshot": false,
		"instructions": []string{b.Home + "/" + guidanceName, b.Workspace + "/AGENTS.md"},
		"permission":   b.openCodePermission(),
		// With ACP, OpenCode requests permission itself, so the plugin must not.
		"plugin": []any{[]any{"file://" + b.Home + "/" + pluginName, map[string]any{"decide": b.Protocol != ACP}}},
	}
	if len(agents) > 0 {
		c["agent"] = agents
	}
	if primary != "" {
		c["default_agent"] = primary
	}
	if b.MCP && b.Protocol != ACP {
		c["mcp"] = map[string]any{serverName: map[string]any{"type": "remote", "url": b.mcpURL(), "oauth": false, "enabled": true}}
	}
	data, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("write opencode's configuration: %w", err)
	}
	return data, nil
}

// openCodePermission makes exactly one mechanism check every tool call: OpenCode's own
// permission requests with ACP, and otherwise the plugin. OpenCode does not enforce its
// rules completely, so they are not used. The gateway evaluates the same rules.
func (b *builder) openCodePermission() map[string]any {
	if b.Protocol == ACP {
		return map[string]any{"*": "ask", "question": "deny"}
	}
	return map[string]any{"*": "allow", "question": "deny"}
}

// openCodeAgents returns the agents that Request.Permissions defines, and the name of the
// default agent. Of their permissions it keeps only tools that are denied entirely, so that
// they are not offered to the model. The gateway enforces all other rules.
func (b *builder) openCodeAgents() (map[string]any, string, error) {
	if len(b.Permissions) == 0 {
		return nil, "", nil
	}
	var file struct {
		Primary string                     `json:"default_agent"`
		Agent   map[string]json.RawMessage `json:"agent"`
	}
	if err := json.Unmarshal(b.Permissions, &file); err != nil {
		return nil, "", fault.Fieldf(opLaunch, "permissions", "not an opencode.json without comments: %w", err)
	}
	agents := map[string]any{}
	for name, raw := range file.Agent {
		a, err := b.openCodeAgent(raw)
		if err != nil {
			return nil, "", fault.Fieldf(opLaunch, "permissions", "agent %q: %w", name, err)
		}
		agents[name] = a
	}
	return agents, file.Primary, nil
}

func (b *builder) openCodeAgent(raw json.RawMessage) (map[string]any, error) {
	var a struct {
		Description string          `json:"description"`
		Mode        string          `json:"mode"`
		Prompt      string          `json:"prompt"`
		Disable     bool            `json:"disable"`
		Hidden      bool            `json:"hidden"`
		Steps       int             `json:"steps"`
		MaxSteps    int             `json:"maxSteps"`
		Temperature *float64        `json:"temperature"`
		Tools       map[string]bool `json:"tools"`
		Permission  json.RawMessage `json:"permission"`
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return nil, fmt.Errorf("decode the definition of an agent: %w", err)
	}
	out := map[string]any{}
	set := func(key string, value any, present bool) {
		if present {
			out[key] = value
		}
	}
	set("description", a.Description, a.Description != "")
	set("mode", a.Mode, a.Mode != "")
	set("prompt", a.Prompt, a.Prompt != "")
	set("disable", true, a.Disable)
	set("hidden", true, a.Hidden)
	set("steps", max(a.Steps, a.MaxSteps), max(a.Steps, a.MaxSteps) > 0)
	set("temperature", a.Temperature, a.Temperature != nil)
	denied := fullDenials(a.Permission)
	for tool, has := range a.Tools {
		if !has {
			denied[tool] = "deny"
		}
	}
	set("permission", denied, len(denied) > 0)
	return out, nil
}

// fullDenials returns the tools that a permission block denies entirely.
func fullDenials(raw json.RawMessage) map[string]any {
	denied := map[string]any{}
	var all string
	if json.Unmarshal(raw, &all) == nil && all == "deny" {
		denied["*"] = "deny"
		return denied
	}
	var byTool map[string]json.RawMessage
	if json.Unmarshal(raw, &byTool) != nil {
		return denied
	}
	for tool, rule := range byTool {
		var word string
		if json.Unmarshal(rule, &word) == nil && word == "deny" && tool != "*" {
			denied[tool] = "deny"
		}
	}
	return denied
}

// OpenCodeFiles returns the files that configure a project for OpenCode with the gateway, for
// users who start OpenCode themselves. Paths are relative to the project.
func OpenCodeFiles(level int) ([]File, error) {
	if level < 1 || level > 3 {
		return nil, fault.Fieldf("agent.OpenCodeFiles", "level", "%d is not 1, 2 or 3", level)
	}
	file := func(name string, data []byte) File { return File{Path: path.Clean(name), Mode: 0o644, Data: data} }
	return []File{
		file("opencode.json", openCodeJSON(level)),
		file("AGENTS.md", []byte(Framework(level))),
		file(".opencode/plugin/autonomy-engine.ts", plugin),
		file(".opencode/package-lock.json", pluginLock),
		file(".opencode/node_modules/.keep", nil),
		file(".opencode/.gitignore", []byte("node_modules\npackage.json\nbun.lock\n")),
	}, nil
}
