package agent

import (
	"fmt"
	"strings"
)

// codex is the Codex CLI. For ACP it is run by an adapter that includes Codex.
var codex = Preset{
	Name: "codex", Title: "Codex CLI", Protocols: []Protocol{Run, ACP, Interactive},
	Layer: Layer{
		Name: "codex", Debian: []string{"bash", "git", "python3"},
		Packages: []Package{
			{"@openai/codex", codexVersion + "-linux-{arch}"},
			{"@zed-industries/codex-acp-linux-{arch}", codexACPVersion},
		},
		Links: []Link{
			{"codex", "node_modules/@openai/codex/vendor/{triple}/bin/codex"},
			{"codex-acp", "node_modules/@zed-industries/codex-acp-linux-{arch}/bin/codex-acp"},
		},
	},
	launch:  launchCodex,
	outcome: codexOutcome,
}

func launchCodex(b *builder) error {
	home := b.Home + "/.codex"
	b.set("CODEX_HOME", home)
	b.file(".codex/AGENTS.md", b.guidance())
	b.file(".codex/config.toml", []byte(b.codexConfig()))
	switch b.Protocol {
	case ACP:
		if b.MCP {
			b.addServer()
		}
		b.note("With ACP, Codex requests permission for patches and for commands, except those it considers safe, such as ls and cat.")
		b.argv("codex-acp")
	case Interactive:
		b.codexHooks()
		b.argv("codex", "--dangerously-bypass-hook-trust")
		if b.Resume != "" {
			b.argv("resume", b.Resume)
		}
	default:
		b.codexHooks()
		b.argv("codex", "exec", "--dangerously-bypass-hook-trust")
		if b.Resume != "" {
			b.argv("resume")
		}
		b.argv("--json", "--skip-git-repo-check")
		if b.Resume != "" {
			b.argv(b.Resume)
		}
		b.argv("-") // read the prompt from standard input
		b.out.Stdin = []byte(b.Goal)
	}
	return nil
}

// codexHooks configures hooks that ask the gateway. Codex ignores hooks until a person has
// trusted them, unless it is started with --dangerously-bypass-hook-trust.
func (b *builder) codexHooks() {
	b.hook()
	b.file(".codex/hooks.json", toJSON(map[string]any{"hooks": b.hooks("PreToolUse", "PostToolUse", ".*", hookSeconds)}))
}

// codexConfig returns config.toml. Strings with quotes or backslashes are written with %q.
func (b *builder) codexConfig() string {
	approval, sandbox := "never", "danger-full-access"
	if b.Protocol == ACP {
		approval, sandbox = "untrusted", "workspace-write"
	}
	// The sandbox of Codex uses bubblewrap, which does not work in a jail. With
	// danger-full-access only the jail confines it.
	var t strings.Builder
	fmt.Fprintf(&t, "model = %q\nmodel_provider = \"glasshouse\"\n", b.Model)
	fmt.Fprintf(&t, "approval_policy = %q\nsandbox_mode = %q\n", approval, sandbox)
	fmt.Fprintf(&t, "check_for_update_on_startup = false\n\n")
	fmt.Fprintf(&t, "[model_providers.glasshouse]\nname = \"glasshouse\"\nbase_url = %q\n", b.Endpoint+"/v1")
	fmt.Fprintf(&t, "wire_api = \"responses\"\nenv_key = \"OPENAI_API_KEY\"\nrequest_max_retries = 2\nstream_max_retries = 2\n\n")
	fmt.Fprintf(&t, "[analytics]\nenabled = false\n\n[feedback]\nenabled = false\n\n[otel]\nexporter = \"none\"\n\n")
	// The agent can write to the workspace, so its configuration is not trusted.
	fmt.Fprintf(&t, "[projects.%q]\ntrust_level = \"untrusted\"\n", b.Workspace)
	if b.MCP && b.Protocol != ACP {
		fmt.Fprintf(&t, "\n[mcp_servers.%s]\nurl = %q\n", serverName, b.mcpURL())
	}
	return t.String()
}
