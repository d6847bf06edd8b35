package agent

import (
	"glasshouse/agent/acp"
	"glasshouse/fault"
)

// serverName is what agents call the gateway's tools: glasshouse_…, mcp__glasshouse__….
const serverName = "glasshouse"

// useServer names the gateway's tools to whoever opens the session.
func (b *builder) useServer() {
	b.out.Servers = append(b.out.Servers, acp.Server{Name: serverName, URL: b.mcpURL()})
}

// builtin is the reference agent. It has its goal, its model and its tools from the
// gateway, and goes on from its run's checkpoint.
var builtin = Preset{
	Name: "builtin", Title: "The reference agent", Protocols: []Protocol{Run},
	launch: func(b *builder) error {
		b.argv("glasshouse-agent")
		return nil
	},
}

// shell is a command line, or a program with its arguments, as an agent.
var shell = Preset{
	Name: "shell", Title: "A command", Protocols: []Protocol{Run, ACP, Interactive},
	launch: func(b *builder) error {
		if b.Protocol == ACP && b.MCP {
			b.useServer()
		}
		switch {
		case b.Protocol == ACP && len(b.Args) == 0:
			return fault.Fieldf(opLaunch, "args", "say which program speaks the Agent Client Protocol")
		case len(b.Args) > 0:
			b.argv(b.Args...)
		case b.Protocol == Interactive:
			b.argv("bash", "-i")
		default:
			b.argv("bash", "-c", b.Goal)
		}
		return nil
	},
	outcome: plainOutcome,
}
