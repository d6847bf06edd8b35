package agent

import (
	"glasshouse/agents/agent/acp"
	"glasshouse/fault"
)

// serverName is the name of the gateway's MCP server. Agents use it as the prefix of tool
// names: glasshouse_…, mcp__glasshouse__….
const serverName = "glasshouse"

// addServer adds the gateway's MCP server to the servers of the ACP session.
func (b *builder) addServer() {
	b.out.Servers = append(b.out.Servers, acp.Server{Name: serverName, URL: b.mcpURL()})
}

// builtin is the reference agent. It gets its goal, model and tools from the gateway and
// resumes from the last checkpoint of its run.
var builtin = Preset{
	Name: "builtin", Title: "The reference agent", Protocols: []Protocol{Run},
	launch: func(b *builder) error {
		b.argv("glasshouse-agent")
		return nil
	},
}

// shell runs a command line, or a program with arguments, as an agent.
var shell = Preset{
	Name: "shell", Title: "A command", Protocols: []Protocol{Run, ACP, Interactive},
	launch: func(b *builder) error {
		if b.Protocol == ACP && b.MCP {
			b.addServer()
		}
		switch {
		case b.Protocol == ACP && len(b.Args) == 0:
			return fault.Fieldf(opLaunch, "args", "specify a program that speaks the Agent Client Protocol")
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
