package agent

// claude is Claude Code. For ACP it is run by an adapter, which includes its own Claude Code.
var claude = Preset{
	Name: "claude", Title: "Claude Code", Protocols: []Protocol{Run, ACP, Interactive},
	Layer: Layer{
		Name: "claude", Debian: []string{"bash", "git", "python3"},
		Packages: []Package{
			// The package without the platform in its name needs its install script, and
			// scripts are not run.
			{"@anthropic-ai/claude-code-linux-{arch}", claudeVersion},
			{"@agentclientprotocol/claude-agent-acp", claudeACPVersion},
			{"node-linux-{arch}", nodeVersion},
		},
		Links: []Link{
			{"claude", "node_modules/@anthropic-ai/claude-code-linux-{arch}/claude"},
			{"claude-agent-acp", "node_modules/@agentclientprotocol/claude-agent-acp/dist/index.js"},
			{"node", "node_modules/node-linux-{arch}/bin/node"},
		},
	},
	launch:  launchClaude,
	outcome: claudeOutcome,
}

func launchClaude(b *builder) error {
	b.set(
		"CLAUDE_CONFIG_DIR", b.Home+"/.claude",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1",
		"DISABLE_AUTOUPDATER", "1", "DISABLE_TELEMETRY", "1", "DISABLE_ERROR_REPORTING", "1",
		"ANTHROPIC_MODEL", b.Model, "ANTHROPIC_SMALL_FAST_MODEL", b.Model, "ANTHROPIC_DEFAULT_HAIKU_MODEL", b.Model,
		"IS_SANDBOX", "1", // required to start as root
	)
	b.file(".claude/CLAUDE.md", b.guidance())
	b.file(".claude/settings.json", toJSON(b.claudeSettings()))
	// Skips the prompts for a theme and a login at the first start in a terminal.
	b.file(".claude/.claude.json", toJSON(map[string]any{"hasCompletedOnboarding": true, "autoUpdates": false}))

	if b.Protocol == ACP {
		if b.MCP {
			b.addServer()
		}
		// Settings of the workspace are ignored. The agent could write an allow rule there,
		// and Claude Code would then not request permission.
		b.out.Meta = map[string]any{"claudeCode": map[string]any{"options": map[string]any{"settingSources": []string{"user"}}}}
		b.argv("claude-agent-acp")
		return nil
	}
	b.hook()
	// Settings of the workspace are ignored. The agent could write settings there that
	// disable hooks.
	b.argv("claude", "--model", b.Model, "--permission-mode", "bypassPermissions", "--strict-mcp-config", "--setting-sources", "user")
	if b.MCP {
		b.file(".claude/mcp.json", toJSON(map[string]any{"mcpServers": map[string]any{serverName: map[string]any{"type": "http", "url": b.mcpURL()}}}))
		b.argv("--mcp-config", b.Home+"/.claude/mcp.json")
	}
	if b.Resume != "" {
		b.argv("--resume", b.Resume)
	}
	if b.Protocol == Run {
		b.argv("-p", "--output-format", "json")
		b.out.Stdin = []byte(b.Goal)
	}
	return nil
}

// claudeSettings returns settings in which a hook checks every tool, except with ACP, which
// requests permission itself.
func (b *builder) claudeSettings() map[string]any {
	s := map[string]any{"includeCoAuthoredBy": false, "cleanupPeriodDays": 36500}
	if b.Protocol != ACP {
		s["hooks"] = b.hooks("PreToolUse", "PostToolUse", "*", hookSeconds)
	}
	return s
}
