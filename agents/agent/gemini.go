package agent

import "glasshouse/fault"

// gemini is the Gemini CLI.
var gemini = Preset{
	Name: "gemini", Title: "Gemini CLI", Protocols: []Protocol{Run, ACP, Interactive},
	Layer: Layer{
		Name: "gemini", Debian: []string{"bash", "git", "python3"},
		Packages: []Package{{"@google/gemini-cli", geminiVersion}, {"node-linux-{arch}", nodeVersion}},
		Links: []Link{
			{"gemini", "node_modules/@google/gemini-cli/bundle/gemini.js"},
			{"node", "node_modules/node-linux-{arch}/bin/node"},
		},
	},
	launch:  launchGemini,
	outcome: geminiOutcome,
}

func launchGemini(b *builder) error {
	b.set("GEMINI_MODEL", b.Model, "GEMINI_SANDBOX", "false", "GEMINI_TELEMETRY_ENABLED", "false", "GEMINI_CLI_NO_RELAUNCH", "true")
	// Commands of Gemini do not read ~/.gitconfig.
	b.set("GIT_AUTHOR_NAME", b.preset.Name+" agent", "GIT_AUTHOR_EMAIL", agentEmail, "GIT_COMMITTER_NAME", b.preset.Name+" agent", "GIT_COMMITTER_EMAIL", agentEmail)
	b.file(".gemini/GEMINI.md", b.guidance())
	b.file(".gemini/settings.json", toJSON(b.geminiSettings()))
	if b.Resume != "" && b.Protocol != ACP {
		return fault.Cannot(opLaunch, "gemini identifies sessions by their position in a list, which changes", "use the protocol acp")
	}
	b.argv("gemini", "--model", b.Model, "--skip-trust")
	switch b.Protocol {
	case ACP:
		if b.MCP {
			b.addServer()
		}
		b.argv("--acp")
	case Run:
		b.hook()
		b.argv("--approval-mode", "yolo", "--output-format", "json")
		b.out.Stdin = []byte(b.Goal)
	default:
		b.hook()
		b.argv("--approval-mode", "yolo")
	}
	return nil
}

func (b *builder) geminiSettings() map[string]any {
	s := map[string]any{
		"general":   map[string]any{"enableAutoUpdate": false, "enableAutoUpdateNotification": false, "checkpointing": map[string]any{"enabled": false}},
		"privacy":   map[string]any{"usageStatisticsEnabled": false},
		"telemetry": map[string]any{"enabled": false},
		"security":  map[string]any{"auth": map[string]any{"selectedType": "gemini-api-key"}},
	}
	if b.Protocol == ACP {
		return s
	}
	s["hooks"] = b.hooks("BeforeTool", "AfterTool", ".*", hookSeconds*1000)
	if b.MCP {
		s["mcpServers"] = map[string]any{serverName: map[string]any{"httpUrl": b.mcpURL(), "trust": true}}
	}
	return s
}
